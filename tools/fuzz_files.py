"""Damage random files, and compare what we read of each with h5py.

    python tools/fuzz_files.py heaps --files 10000
    python tools/fuzz_files.py samples --files 10000

`heaps`: values of variable length; bytes of collections, of the objects in them and of what datasets keep of each value
are changed; read in a process of its own, first by us alone, with little memory, then beside h5py.

`samples`: objects of one file, files that are one each, ragged rows and CSR groups, contiguous or in compressed chunks;
bytes of object headers, indexes, heaps and trees are changed, mostly with the checksum put right again, so that what is
behind it is reached; read first by h5py and then as a user does.

What we read must be what h5py says. Ends with status 1 at the first difference, crash or hang of
ours, and leaves the files behind.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import faulthandler
import functools
import itertools
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

import h5stream
from h5stream import Field, H5Dataset, Objects
from h5stream.errors import H5StreamError
from h5stream.storage.headers.templates import checksums
from h5stream.storage.layout.access import HEAP
from h5stream.storage.open.opening import open_layout

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
IN_A_CHILD = 5
"""Files that one process reads: it takes longer to begin than to read."""
MOST_SECONDS = 60
"""Of processor time, that reading these may take."""
MOST_NBYTES = 1 << 30
"""Memory that reading may take beyond what the process has."""
OURS = os.path.join(os.path.dirname(h5stream.__file__), "")
"""Where the package is. A folder above it may be called h5stream too, and the tests lie there."""
REGION_NBYTES = 320
NUMBERS = (0, 1, 2, 3, 7, 8, 255, 256, 65535, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 1)


BASES = ("f4", "u1", "i8", "text")
_READS_BADLY = (OSError, RuntimeError, ValueError, KeyError, MemoryError, OverflowError)
"""What h5py raises of a damaged file."""


@dataclass(frozen=True)
class Case:
    """A sound file, how to damage it, to read it alone, and to compare that with h5py, which may read first."""

    content: bytes
    damaged: Callable[[np.random.Generator], bytes]
    alone: Callable[[Path], Any]
    beside: Callable[[Path, Any], Mapping[str, int]]
    is_h5py_first: bool = False


# --- headers --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Target:
    """A file to be damaged, whole, and its structures: first byte, bytes, whether the last four are a checksum."""

    content: bytes
    regions: list[tuple[int, int, bool]]


def target_of(path: Path) -> Target:
    """Find what there is to be damaged in a file."""
    content = path.read_bytes()
    with h5py.File(path, "r") as file:
        found = [file]
        file.visititems(lambda _, thing: found.append(thing))
        starts = {int(h5py.h5o.get_info(thing.id).addr) + file.userblock_size for thing in found}
    for signature in SIGNATURES:
        at = content.find(signature)
        while at >= 0:
            starts.add(at)
            at = content.find(signature, at + 1)
    return Target(content=content, regions=[_region(content, start) for start in sorted(starts)])


def _region(content: bytes, start: int) -> tuple[int, int, bool]:
    """Find the end of a structure by its checksum, where it has one."""
    buffer = np.frombuffer(content[start : start + 4096], dtype=np.uint8)
    most = min(1024, len(content) - start)
    if content[start] != 1 and content[start : start + 4] not in WITHOUT_CHECKSUM:
        for nbytes in range(8, most):
            if checksums(buffer[None, :nbytes])[0] == int.from_bytes(
                content[start + nbytes : start + nbytes + 4], "little"
            ):
                return start, nbytes + 4, True
    return start, min(REGION_NBYTES, most), False


def damaged_headers(target: Target, generator: np.random.Generator) -> bytes:
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
            body = np.frombuffer(bytes(content[start : start + nbytes - 4]), dtype=np.uint8)
            content[start + nbytes - 4 : start + nbytes] = int(checksums(body[None])[0]).to_bytes(4, "little")
    return bytes(content[: len(target.content)])


# --- heaps ----------------------------------------------------------------------------------------------------


def write_values(path: Path, generator: np.random.Generator) -> None:
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
        # Text may spell GCOL as well, and any length then follows.
        end, inner = min(len(content), at + int.from_bytes(content[at + 8 : at + 16], "little")), at + 16
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


def damaged_heaps(content: bytes, places: list[int], generator: np.random.Generator) -> bytes:
    """Change a few bytes of the heap or of what leads there."""
    changed = bytearray(content)
    for _ in range(int(generator.integers(1, 4))):
        at = places[int(generator.integers(len(places)))] + int(generator.choice([0, 0, 2, 4, 8, 12]))
        how = int(generator.integers(5))
        if how == 0:
            changed[at] = int(generator.integers(256))
        elif how == 1:
            changed[at] = (changed[at] + int(generator.choice([-8, -1, 1, 8]))) % 256
        elif how == 4:  # as behind the end of an incomplete copy
            stop = min(len(changed), at + int(generator.choice([16, 64, 4096])))
            changed[at:stop] = bytes(stop - at)
        else:
            width = int(generator.choice([1, 2, 4, 8]))
            number = NUMBERS[int(generator.integers(len(NUMBERS)))] if how == 2 else int(generator.choice(places))
            changed[at : at + width] = (number % 256**width).to_bytes(width, "little")
    return bytes(changed[: len(content)])


def read_values_alone(path: Path) -> list[Any]:
    """Read all values without h5py; what cannot be had is None."""
    try:
        layout = open_layout(str(path), "x")
    except H5StreamError:  # the damage is told
        return []
    part = layout.datasets[0][0]
    if part.access != HEAP or part.heap is None:
        raise AssertionError(f"read as {part.access}: {part.reason}")
    heap, source = part.heap, layout.files[0].open()
    every = np.arange(part.rows)
    edges = np.append(0, np.cumsum(heap.nbytes_of(every)))
    memory = np.full(int(edges[-1]) + 16, 0xAB, dtype=np.uint8)
    targets = memory.ctypes.data + edges[:-1]
    room = np.empty(heap.room_nbytes, dtype=np.uint8)
    failed, _ = heap.read(source, every, targets, np.diff(edges), room)
    if (memory[-16:] != 0xAB).any():
        raise AssertionError("something was written behind the values")
    found = [memory[edges[k] : edges[k + 1]].tobytes() for k in range(part.rows)]
    found = [value.split(b"\0", 1)[0] if heap.is_text else value for value in found]
    return [None if missing else value for value, missing in zip(found, failed.tolist(), strict=True)]


def values_beside_h5py(path: Path, ours: list[Any]) -> dict[str, int]:
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


def of_heaps(number: int, files: int, sound: Path) -> Iterator[Case]:
    """Make files of values of variable length."""
    for turn in itertools.count():
        write_values(sound, np.random.default_rng([number, turn]))
        content = sound.read_bytes()
        if places := places_of(content, sound):
            yield Case(
                content, functools.partial(damaged_heaps, content, places), read_values_alone, values_beside_h5py
            )


# --- samples --------------------------------------------------------------------------------------------------


def of_samples(number: int, files: int, sound: Path) -> Iterator[Case]:
    """Make objects of one file, files that are a sample each, ragged ones of both, and CSR groups."""
    for turn in itertools.count():
        generator = np.random.default_rng([number, turn])
        what = ("objects", "files", "csr")[int(generator.integers(3))]
        is_ragged = bool(generator.integers(2))
        count = 1 if what == "csr" else int(generator.integers(3, 20))
        libver = [None, "latest"][int(generator.integers(2))]
        how: Any = {} if generator.integers(3) == 0 else {"chunks": (4,)}
        if how and generator.integers(2):
            how["compression"] = "gzip"
        if how and generator.integers(2):
            how["maxshape"] = (None,)
        folder = sound.with_suffix("")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for k in range(count if what == "files" else 1):
            with h5py.File(folder / f"{k:02}.h5", "w", libver=libver) as file:
                _write_samples(file, what, count, is_ragged, how, generator)
        target = target_of(folder / "00.h5")
        yield Case(
            target.content,
            functools.partial(damaged_headers, target),
            functools.partial(_theirs, folder, what, count),
            functools.partial(_samples_beside_h5py, folder, what, is_ragged),
            is_h5py_first=True,
        )


def _write_samples(file: Any, what: str, count: int, is_ragged: bool, how: Any, generator: Any) -> None:
    if what == "csr":
        edges = np.cumsum([0, *generator.integers(0, 9, 12)])
        group = file.create_group("X")
        group.attrs.update({"encoding-type": "csr_matrix", "encoding-version": "0.1.0", "shape": [12, 30]})
        inner = [np.sort(generator.permutation(30)[:n]) for n in np.diff(edges)]
        for name, values in (
            ("indptr", edges),
            ("indices", np.concatenate(inner)),
            ("data", np.arange(1.0, edges[-1] + 1)),
        ):
            group.create_dataset(name, data=values, **(how if len(values) > 3 else {}))
        return
    for k in range(count if what == "objects" else 1):
        rows = int(generator.integers(1, 14)) if is_ragged else 10
        name = f"data/{k:02}" if what == "objects" else "data/x"
        if "chunks" in how:
            how["chunks"] = (min(4, rows),)
        dataset = file.create_dataset(name, (rows,), "f8", fillvalue=-1, **how)
        for number in range(int(generator.choice([0, 0, 12]))):  # so many lie elsewhere
            dataset.attrs[f"{number}"] = number
        dataset.attrs["a"] = k
        if generator.random() < 0.9:
            dataset[: rows if generator.random() < 0.9 else 1] = generator.random()


def _theirs(folder: Path, what: str, count: int, path: Path) -> list[Any]:
    """Read every sample with h5py; what it refuses is None."""
    found: list[Any] = []
    for k in range(12 if what == "csr" else count):
        try:
            with h5py.File(path if what != "files" or k == 0 else folder / f"{k:02}.h5") as file:
                if what == "csr":
                    group, row = file["X"], np.zeros(30)
                    dict(group.attrs)
                    low, high = group["indptr"][:][k : k + 2].tolist()
                    np.add.at(row, group["indices"][:][low:high], group["data"][:][low:high])
                    found.append((row,))
                else:
                    inner = [f"data/{i:02}" for i in range(count)] if what == "objects" else ["data/x"]
                    for name in inner if not found else ():  # we ask so, and libhdf5 may crash
                        with contextlib.suppress(*_READS_BADLY, TypeError, AttributeError):
                            bool("a" in file[name].attrs)
                    if what == "objects" and list(file["data"]) != [f"{i:02}" for i in range(count)]:
                        raise KeyError("one has another name, and so another number")
                    thing = file[f"data/{k:02}" if what == "objects" else "data/x"]
                    dict(thing.attrs), thing.fillvalue  # what else we ask for, which may crash libhdf5
                    found.append((thing[:], dict(thing.attrs)["a"]))
        except (*_READS_BADLY, TypeError, IndexError, AttributeError):  # or it is no dataset any more
            found.append(None)
    return found


def _samples_beside_h5py(folder: Path, what: str, is_ragged: bool, path: Path, theirs: list[Any]) -> dict[str, int]:
    """Compare each sample with what h5py read; what h5py refuses is not compared."""
    counts: collections.Counter[str] = collections.Counter()
    paths = [path, *sorted(folder.glob("*.h5"))[1:]] if what == "files" else path
    inner = "data/x" if what == "files" else "."
    try:
        if what == "csr":
            data = H5Dataset(path, {"x": Field("X", ragged="dense")})
        else:
            samples = Objects("files" if what == "files" else "data/*")
            field = Field(inner, ragged="list") if is_ragged else inner
            data = H5Dataset(paths, {"x": field, "a": "@a" if inner == "." else f"{inner}@a"}, samples=samples)
    except (H5StreamError, *_READS_BADLY):
        return {f"{what}:_opening_is_refused": 1}
    if len(data) != len(theirs):
        return {f"{what}:_of_another_length": 1}
    for k, expected in enumerate(theirs):
        try:
            ours = [np.asarray(value) for value in data[k].values()]
        except (H5StreamError, *_READS_BADLY):
            counts[f"{what}:_a_sample_is_refused"] += 1
            continue
        if expected is None:
            counts[f"{what}:_h5py_refuses_a_sample"] += 1
            continue
        for mine, other in zip(ours, expected, strict=True):
            assert mine.tobytes() == np.asarray(other, mine.dtype).tobytes(), f"sample {k}: {mine}, and h5py {other}"
        counts[f"{what}:_a_sample_is_the_same"] += 1
    return counts


# --- all ------------------------------------------------------------------------------------------------------

KINDS = {"heaps": of_heaps, "samples": of_samples}


def in_a_child(case: Case, paths: list[Path]) -> str:
    """Read damaged files in a child process; gives how that went, beginning with "WRONG" where we are to blame."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (mapped + MOST_NBYTES, -1))
        signal.setitimer(signal.ITIMER_PROF, MOST_SECONDS)  # waiting for a busy machine is no hang
        faulthandler.disable()  # libhdf5 may well crash, and the C library tell of it
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        said, path = b"WRONG: our own reading failed", paths[0]
        try:
            first = [case.alone(path) for path in paths]
            os.write(writing, b"\n")
            counts: collections.Counter[str] = collections.Counter()
            for path, one in zip(paths, first, strict=True):
                try:
                    counts.update(case.beside(path, one))
                except AssertionError:
                    raise
                except Exception as error:
                    if any(frame.filename.startswith(OURS) for frame in traceback.extract_tb(error.__traceback__)):
                        raise
                    counts["file: h5py fails"] += 1
            said = b" ".join(f"{key}={count}".replace(" ", "_").encode() for key, count in counts.items())
        except BaseException:
            said = b"WRONG: " + f"{path}: {traceback.format_exc()}".encode()
        finally:
            os.write(writing, said[-60_000:])
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        heard = pipe.read().decode()
    _, status = os.waitpid(child, 0)
    if status == 0:
        return heard.lstrip("\n")
    if bool(heard) == case.is_h5py_first:
        return f"WRONG: our own reading ended with signal {status}"
    return f"beside h5py: it ended with signal {status}"


def fuzz(kind: str, files: int, number: int, keep: Path) -> tuple[collections.Counter[str], str]:
    """Damage so many files and read each; gives what was found, and what was wrong, empty where nothing was."""
    counts: collections.Counter[str] = collections.Counter()
    with tempfile.TemporaryDirectory() as folder:
        sound, paths = Path(folder) / "sound.h5", [Path(folder) / f"damaged{k}.h5" for k in range(IN_A_CHILD)]
        for case in KINDS[kind](number, files, sound):
            sound.write_bytes(case.content)
            case.beside(sound, case.alone(sound))  # compiled here, for all children
            for turn in range(DAMAGED_A_FILE // IN_A_CHILD):
                generator = np.random.default_rng([number, counts["files"], turn])
                for path in paths:
                    path.write_bytes(case.damaged(generator))
                said = in_a_child(case, paths)
                counts["files"] += len(paths)
                if said.startswith("WRONG"):
                    shutil.copytree(folder, keep, dirs_exist_ok=True)
                    return counts, said
                if said.startswith("beside h5py"):
                    counts[said] += 1
                    continue
                for one in said.split():
                    key, _, count = one.rpartition("=")
                    counts[key.replace("_", " ")] += int(count)
                if counts["files"] >= files:
                    return counts, ""
    raise AssertionError("there is always another file")


def main(arguments: list[str] | None = None) -> int:
    """Damage files until as many were read as wanted; gives the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=None, help="of the random files; by default the time")
    parser.add_argument("--keep", type=Path, default=Path("wrong"), help="folder that the first wrong files go to")
    options = parser.parse_args(arguments)
    number = int(time.time()) if options.seed is None else options.seed
    counts, wrong = fuzz(options.kind, options.files, number, options.keep)
    for what, count in sorted(counts.items()):
        print(f"{count:>9,}  {what}")
    if wrong:
        print(f"seed {number}: {wrong}\nThe files are in {options.keep}")
        return 1
    print(f"seed {number}: {counts['files']:,} damaged files, nothing wrong")
    return 0


if __name__ == "__main__":
    sys.exit(main())
