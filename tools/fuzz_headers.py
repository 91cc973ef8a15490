"""Damage the metadata of random files, and compare what we understand of each with h5py.

    python tools/fuzz_headers.py --files 10000

The files are those of `tests/header_files.py`. Bytes of object headers, indexes, heaps and trees are changed, mostly
with the checksum put right again, so that what is behind it is reached. Each file is read in a process of its own,
first by us alone, then beside h5py. Whatever is understood and opens in h5py must be what h5py says. Ends with status 1
at the first difference, crash or hang of ours, and leaves the file behind.
"""

from __future__ import annotations

import argparse
import collections
import faulthandler
import functools
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from hypothesis import HealthCheck, Phase, given, seed, settings

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from header_files import compare_with_h5py, header_files, open_object, write_file  # type: ignore[import-not-found]

from h5stream.storage import headers, links
from h5stream.storage.metadata_bytes import SLACK_NBYTES, checksum

SIGNATURES = (
    b"OCHK",
    b"TREE",
    b"SNOD",
    b"HEAP",
    b"FRHP",
    b"FHDB",
    b"FHIB",
    b"BTHD",
    b"BTIN",
    b"BTLF",
    b"FAHD",
    b"FADB",
)
WITHOUT_CHECKSUM = (b"TREE", b"SNOD", b"HEAP")
DAMAGED_A_FILE = 25
"""Times that each file is damaged anew."""
MOST_SECONDS = 60
REGION_NBYTES = 320
NUMBERS = (0, 1, 2, 3, 7, 8, 255, 256, 65535, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 1)


@dataclass(frozen=True)
class Target:
    """A file to be damaged.

    Attributes
    ----------
    content : bytes
        The whole file.
    superblock : Superblock
        As it was.
    addresses, groups : list of int
        Of all objects, and of those that are groups.
    regions : list of (int, int, bool)
        First byte, bytes, and whether the last four are a checksum.
    """

    content: bytes
    superblock: headers.Superblock
    addresses: list[int]
    groups: list[int]
    regions: list[tuple[int, int, bool]]


def target_of(path: Path) -> Target:
    """Find what there is to be damaged in a file."""
    content = path.read_bytes()
    with h5py.File(path, "r") as file:
        superblock = headers.superblock_of(file, len(content))
        found: dict[int, bool] = {}
        todo = [int(h5py.h5o.get_info(file.id).addr)]
        while todo:
            address = todo.pop()
            if address in found:
                continue
            try:
                thing = open_object(file, address)
            except OSError:
                continue
            found[address] = isinstance(thing, h5py.h5g.GroupID)
            if found[address]:
                thing.links.iterate(lambda _, info: todo.append(info.u) if info.type == 0 else None, info=True)
    starts = [address + superblock.base_address for address in found]
    for signature in SIGNATURES:
        at = content.find(signature)
        while at >= 0:
            starts.append(at)
            at = content.find(signature, at + 1)
    return Target(
        content=content,
        superblock=superblock,
        addresses=list(found),
        groups=[address for address, is_group in found.items() if is_group],
        regions=[_region(content, start) for start in sorted(set(starts))],
    )


def _region(content: bytes, start: int) -> tuple[int, int, bool]:
    """Find the end of a structure by its checksum, where it has one."""
    buffer = np.frombuffer(content[start : start + 4096] + bytes(SLACK_NBYTES), dtype=np.uint8)
    most = min(1024, len(content) - start)
    if content[start] != 1 and content[start : start + 4] not in WITHOUT_CHECKSUM:
        for nbytes in range(8, most):
            if checksum(buffer, 0, nbytes) == int.from_bytes(content[start + nbytes : start + nbytes + 4], "little"):
                return start, nbytes + 4, True
    return start, min(REGION_NBYTES, most), False


def damaged(target: Target, generator: np.random.Generator) -> bytes:
    """Change a few bytes of a file's metadata."""
    content = bytearray(target.content)
    for _ in range(int(generator.integers(1, 4))):
        start, nbytes, checked = target.regions[int(generator.integers(len(target.regions)))]
        at = start + int(generator.integers(max(nbytes - 4 * checked, 1)))
        how = int(generator.integers(5))
        if how == 0:
            content[at] = int(generator.integers(256))
        elif how == 1:
            content[at] ^= 1 << int(generator.integers(8))
        elif how == 2:
            content[at] = (content[at] + int(generator.choice([-1, 1]))) % 256
        else:
            width = int(generator.choice([1, 2, 4, 8]))
            number = (
                int(NUMBERS[int(generator.integers(len(NUMBERS)))])
                if how == 3
                else int(generator.integers(len(content)))
            )
            content[at : at + width] = (number % 256**width).to_bytes(width, "little")[: max(len(content) - at, 0)]
        if checked and generator.random() < 0.8:
            body = np.frombuffer(bytes(content[start : start + nbytes]) + bytes(SLACK_NBYTES), dtype=np.uint8)
            content[start + nbytes - 4 : start + nbytes] = int(checksum(body, 0, nbytes - 4)).to_bytes(4, "little")
    return bytes(content[: len(target.content)])


def read_alone(path: Path, target: Target) -> None:
    """Read a damaged file by ourselves, as if its superblock and its addresses were still known."""
    descriptor = os.open(path, os.O_RDONLY)
    read = headers.read_headers(
        descriptor, target.superblock, np.array(target.addresses), ["number 0", "text 2", "big"]
    )
    headers.chunks_of(descriptor, target.superblock, read)
    for address in target.groups:
        links.read_links(address, descriptor, target.superblock)
    os.close(descriptor)


def in_a_child(alone: Callable[[], None], beside: Callable[[], Mapping[str, int]]) -> str:
    """Read a damaged file in a child process; gives how that went, beginning with "WRONG" where we are to blame."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        signal.alarm(MOST_SECONDS)
        faulthandler.disable()  # libhdf5 may well crash
        said = b"WRONG: our own reading failed"
        try:
            alone()
            os.write(writing, b"\n")
            counts = beside()
            said = b" ".join(f"{key}={count}".replace(" ", "_").encode() for key, count in counts.items())
        except AssertionError:
            said = b"WRONG: " + traceback.format_exc().encode()
        except Exception as error:
            ours = any("h5stream" in frame.filename for frame in traceback.extract_tb(error.__traceback__))
            said = b"WRONG: " + traceback.format_exc().encode() if ours else b"file:_h5py_fails=1"
        finally:
            os.write(writing, said[-60_000:])
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        heard = pipe.read().decode()
    _, status = os.waitpid(child, 0)
    if status == 0:
        return heard.lstrip("\n")
    if not heard:
        return f"WRONG: our own reading ended with signal {status}"
    return f"beside h5py: it ended with signal {status}"


def fuzz(files: int, number: int, keep: Path) -> tuple[collections.Counter[str], str]:
    """Damage so many files and read each; gives what was found, and what was wrong, empty where nothing was."""
    counts: collections.Counter[str] = collections.Counter()
    wrong = ""
    with tempfile.TemporaryDirectory() as folder:
        sound, path = Path(folder) / "sound.h5", Path(folder) / "damaged.h5"

        @seed(number)
        @settings(
            max_examples=-(-files // DAMAGED_A_FILE),
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=header_files())
        def damage(case: Any) -> None:
            nonlocal wrong
            if wrong:
                return
            write_file(case, sound)
            target = target_of(sound)
            read_alone(sound, target)
            for k in range(DAMAGED_A_FILE):
                path.write_bytes(damaged(target, np.random.default_rng([number, counts["files"], k])))
                said = in_a_child(
                    functools.partial(read_alone, path, target),
                    functools.partial(compare_with_h5py, path, sound=False),
                )
                counts["files"] += 1
                if said.startswith("WRONG"):
                    shutil.copy(path, keep)
                    wrong = said
                    return
                if said.startswith("beside h5py"):
                    counts[said] += 1
                    continue
                for one in said.split():
                    key, _, count = one.rpartition("=")
                    counts[key.replace("_", " ")] += int(count)

        damage()
    return counts, wrong


def main(arguments: list[str] | None = None) -> int:
    """Damage files until as many were read as wanted; gives the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=None, help="of the random files; by default the time")
    parser.add_argument("--keep", type=Path, default=Path("wrong.h5"), help="where the first wrong file goes")
    options = parser.parse_args(arguments)
    number = int(time.time()) if options.seed is None else options.seed
    counts, wrong = fuzz(options.files, number, options.keep)
    for what, count in sorted(counts.items()):
        print(f"{count:>9,}  {what}")
    if wrong:
        print(f"seed {number}: {wrong}\nThe file is {options.keep}")
        return 1
    print(f"seed {number}: {counts['files']:,} damaged files, nothing wrong")
    return 0


if __name__ == "__main__":
    sys.exit(main())
