"""Damage the global heaps of random files, and compare what we read of values of variable length with h5py.

    python tools/fuzz_heaps.py --files 10000

Bytes of collections, of the objects in them and of what datasets keep of each value are changed. Each file is read in a
process of its own with little memory, first by us alone, then beside h5py. A value that we read ourselves must be that
of h5py. Ends with status 1 at the first difference, crash or hang of ours, and leaves the file behind.
"""

from __future__ import annotations

import argparse
import collections
import functools
import resource
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from h5stream.storage.layout import HEAP
from h5stream.storage.opening import open_layout

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools.fuzz_headers import NUMBERS, in_a_child

DAMAGED_A_FILE = 50
"""Times that each file is damaged anew."""

IN_A_CHILD = 10
"""Files that one process reads: it takes longer to begin than to read."""

MOST_NBYTES = 1 << 30
"""Memory that reading may take beyond what the process has."""

BASES = ("f4", "u1", "i8", "text")


def write(path: Path, generator: np.random.Generator) -> None:
    """Write a random file of values of variable length, unfiltered, so that their places can be damaged."""
    base, rows = BASES[int(generator.integers(len(BASES)))], int(generator.integers(1, 40))
    libver, block = [None, "latest"][int(generator.integers(2))], [0, 512][int(generator.integers(2))]
    longest = int(generator.choice([3, 40, 900]))
    with h5py.File(path, "w", libver=libver, userblock_size=block) as file:
        dtype = h5py.string_dtype() if base == "text" else h5py.vlen_dtype(np.dtype(base))
        chunks = None if generator.random() < 0.5 else (int(generator.integers(1, rows + 1)),)
        dataset = file.create_dataset("x", (rows,), dtype=dtype, chunks=chunks)
        for k in np.flatnonzero(generator.random(rows) < 0.9).tolist():
            items = generator.integers(65, 91, int(generator.integers(longest)))
            dataset[k] = items.astype("u1").tobytes() if base == "text" else items.astype(base)


def places_of(content: bytes, path: Path) -> list[int]:
    """Give where the headers of collections and objects begin, and what the dataset keeps of each value."""
    found, at = [], content.find(b"GCOL")
    while at >= 0:
        found.append(at)
        end, inner = at + int.from_bytes(content[at + 8 : at + 16], "little"), at + 16
        while inner + 16 <= end:
            found.append(inner)
            size = int.from_bytes(content[inner + 8 : inner + 16], "little")
            inner += 16 + (size + 7) // 8 * 8 if content[inner : inner + 2] != b"\0\0" else max(size, 16)
        at = content.find(b"GCOL", at + 4)
    with h5py.File(path) as file:
        dataset = file["x"]
        if dataset.chunks is None:
            begins = [dataset.id.get_offset()]
        else:
            begins = [dataset.id.get_chunk_info(k).byte_offset for k in range(dataset.id.get_num_chunks())]
        each = (dataset.chunks or dataset.shape)[0]
    return found + [begin + 16 * k for begin in begins if begin is not None for k in range(each)]


def damaged(content: bytes, places: list[int], generator: np.random.Generator) -> bytes:
    """Change a few bytes of the heap or of what leads there."""
    changed = bytearray(content)
    for _ in range(int(generator.integers(1, 4))):
        at = places[int(generator.integers(len(places)))] + int(generator.choice([0, 0, 2, 4, 8, 12]))
        how = int(generator.integers(4))
        if how == 0:
            changed[at] = int(generator.integers(256))
        elif how == 1:
            changed[at] = (changed[at] + int(generator.choice([-8, -1, 1, 8]))) % 256
        else:
            width = int(generator.choice([1, 2, 4, 8]))
            number = NUMBERS[int(generator.integers(len(NUMBERS)))] if how == 2 else int(generator.choice(places))
            changed[at : at + width] = (number % 256**width).to_bytes(width, "little")
    return bytes(changed[: len(content)])


def read_all_alone(paths: list[Path], into: list[list[Any]]) -> None:
    """Read files without h5py, with little memory."""
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + MOST_NBYTES, -1))
    into.extend(read_alone(path) for path in paths)


def all_beside_h5py(paths: list[Path], ours: list[list[Any]]) -> collections.Counter[str]:
    """Compare what was read of files with what h5py reads."""
    counts: collections.Counter[str] = collections.Counter()
    for path, values in zip(paths, ours, strict=True):
        try:
            counts.update(beside_h5py(path, values))
        except AssertionError as error:
            raise AssertionError(f"{path}: {error}") from error
    return counts


def read_alone(path: Path) -> list[Any]:
    """Read all values without h5py; what cannot be had is None."""
    layout = open_layout(str(path), "x")
    part = layout.datasets[0][0]
    if part.access != HEAP or part.heap is None:
        raise AssertionError(f"read as {part.access}: {part.reason}")
    heap, source = part.heap, layout.files[0].open()
    every = np.arange(part.rows)
    edges = np.append(0, np.cumsum(heap.nbytes_of(every)))
    memory = np.full(int(edges[-1]) + 16, 0xAB, dtype=np.uint8)
    targets = memory.ctypes.data + edges[:-1]
    descriptor = source.descriptor()
    assert descriptor is not None
    room = np.empty(heap.room_nbytes, dtype=np.uint8)
    failed, _ = heap.read(descriptor.number, every, targets, np.diff(edges), room)
    if (memory[-16:] != 0xAB).any():
        raise AssertionError("something was written behind the values")
    found = [memory[edges[k] : edges[k + 1]].tobytes() for k in range(part.rows)]
    found = [value.split(b"\0", 1)[0] if heap.is_text else value for value in found]
    return [None if missing else value for value, missing in zip(found, failed.tolist(), strict=True)]


def beside_h5py(path: Path, ours: list[Any]) -> dict[str, int]:
    """Compare each value with h5py's; gives how many there were of each kind."""
    counts: collections.Counter[str] = collections.Counter()
    with h5py.File(path) as file:
        for k, value in enumerate(ours):
            if value is None:
                counts["value_left_to_h5py"] += 1
                continue
            try:
                theirs = file["x"][k]
            except (OSError, MemoryError, RuntimeError) as error:
                raise AssertionError(f"row {k}: h5py refuses what we read: {error}") from error
            counts["value"] += 1
            if (theirs if isinstance(theirs, bytes) else theirs.tobytes()) != value:
                raise AssertionError(f"row {k}: {value[:80]!r}, and h5py reads {theirs!r}")
    return dict(counts)


def fuzz(files: int, number: int, keep: Path) -> tuple[collections.Counter[str], str]:
    """Damage so many files and read each; gives what was found, and what was wrong, empty where nothing was."""
    counts: collections.Counter[str] = collections.Counter()
    with tempfile.TemporaryDirectory() as folder:
        sound = Path(folder) / "sound.h5"
        while counts["files"] < files:
            generator = np.random.default_rng([number, counts["files"]])
            write(sound, generator)
            content = sound.read_bytes()
            places = places_of(content, sound)
            for first in range(0, DAMAGED_A_FILE if places else 0, IN_A_CHILD):
                paths = [Path(folder) / f"{k}.h5" for k in range(IN_A_CHILD)]
                for k, path in enumerate(paths):
                    path.write_bytes(damaged(content, places, generator) if first + k else content)
                ours: list[list[Any]] = []
                said = in_a_child(
                    functools.partial(read_all_alone, paths, ours), functools.partial(all_beside_h5py, paths, ours)
                )
                counts["files"] += len(paths)
                if said.startswith("WRONG"):
                    keep.mkdir(exist_ok=True)
                    for path in paths:
                        shutil.copy(path, keep)
                    return counts, said
                if said.startswith("beside h5py"):
                    counts[said] += 1
                    continue
                for one in said.split():
                    key, _, count = one.rpartition("=")
                    counts[key.replace("_", " ")] += int(count)
            counts["files"] += not places
    return counts, ""


def main(arguments: list[str] | None = None) -> int:
    """Damage files until as many were read as wanted; gives the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=None, help="of the random files; by default the time")
    parser.add_argument("--keep", type=Path, default=Path("wrong"), help="folder that the first wrong file goes to")
    options = parser.parse_args(arguments)
    number = int(time.time()) if options.seed is None else options.seed
    counts, wrong = fuzz(options.files, number, options.keep)
    for what, count in sorted(counts.items()):
        print(f"{count:>9,}  {what}")
    if wrong:
        print(f"seed {number}: {wrong}\nThe file is in {options.keep}")
        return 1
    print(f"seed {number}: {counts['files']:,} damaged files, nothing wrong")
    return 0


if __name__ == "__main__":
    sys.exit(main())
