"""The small parts: space, residency, checksum, layout, each by itself."""

from dataclasses import replace

import pytest
import xxhash

from h5stream.filesystem import Mount
from h5stream.staging import stage
from h5stream.staging.run import Place, little_gain

DISK = Place(device=1, mount=Mount(kind="ext4", point="/"), rotates=False)
RAM = Place(device=2, mount=Mount(kind="tmpfs", point="/x"), rotates=None)


def test_the_checksum_can_be_made_by_anybody_with_xxhash(write, ram):
    import json

    source = write("a.h5", (32 << 20) + 5)
    stage(source, to=ram)
    recorded = json.loads((ram / ".h5stream/manifest.json").read_text())["files"]["a.h5"]["checksum"]
    content, size = source.read_bytes(), recorded["block_bytes"]
    digests = [xxhash.xxh3_128_digest(content[at : at + size]) for at in range(0, len(content), size)]
    assert recorded["algorithm"] == "xxh3_128"
    assert recorded["digest"] == xxhash.xxh3_128_hexdigest(b"".join(digests))


@pytest.mark.parametrize(
    ("source", "target", "resident", "words"),
    [
        (DISK, RAM, 0, ""),
        (DISK, RAM, None, ""),
        (DISK, RAM, 950, "in the page cache already"),
        (RAM, replace(RAM, device=3), 0, "in memory already"),
        (DISK, replace(DISK, mount=Mount(kind="xfs", point="/")), 0, "same file system"),
        (DISK, replace(DISK, device=3), 0, ""),
        (DISK, replace(DISK, device=3, mount=Mount(kind="nfs4", point="/")), 0, "on the network"),
        (DISK, replace(DISK, device=3, rotates=True), 0, "rotating disk"),
        (replace(DISK, rotates=None), replace(DISK, device=3, rotates=True), 0, ""),
    ],
)
def test_little_gain_is_told_with_its_reason(source, target, resident, words):
    text = little_gain("a.h5", 1000, resident, source, target)
    assert words in text
    assert bool(words) == bool(text)


def test_what_reads_from_the_page_cache_is_noticed_when_it_is_staged(write, small_tmpfs, monkeypatch):
    from h5stream.staging import run

    folder = small_tmpfs("8m")
    monkeypatch.setattr(run, "resident_bytes", lambda path: path.stat().st_size)
    sources = [write(f"{n}.h5", 1000) for n in range(10)]
    notices = stage(sources, to=folder).notices
    assert len(notices) == 4
    assert "7 more of 10 files likewise" in notices[-1]
