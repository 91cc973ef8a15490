"""Ways of reading in which something goes wrong outside: bytes that change, damaged structure, stores that tell little.

What comes then is what was there before, or what is there now, by h5py's word; or an error of h5stream. Never anything
else, and never the end of the process, so that such cases are run in a process of their own.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import urllib.parse
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from h5py import h5d, h5s, h5t
from support.object_server import ObjectServer  # type: ignore[import-not-found]

from h5stream import H5Dataset, H5StreamError
from h5stream.errors import SourceChangedError

from . import writing
from .compare import WrongError, count_of, parts_of, plain
from .model import Crops, Model
from .reading import Reading
from .stored import members_of


def is_told(there: Reading) -> bool:
    """Tell whether samples have numbers, and values that are right, so that each can be told from the others."""
    return "number" in there.trees and not there.model.is_drawn and there.model.answers() == "right"


Samples = list[dict[str, Any]] | None
"""What each sample is, by field; nothing of one that the model has no value of."""


def every_sample(model: Model) -> list[dict[str, Any]]:
    """Return all samples as the model has them."""
    return [as_plain(model, number) for number in range(len(model.samples))]


def as_plain(model: Model, number: int) -> dict[str, Any]:
    """Return one of the samples."""
    return {name: one if isinstance(one, Crops) else plain(one) for name, one in model.sample(number).items()}


def as_it_is_now(there: Reading) -> Samples:
    """Return all samples as h5py has them now, None if it cannot; of a copy, since libhdf5 keeps what it has read."""
    folder, every = Path(f"{there.base}-now"), list[dict[str, Any]]()
    shutil.copytree(there.base, folder)
    try:
        model = Model(there.case, folder)
    except Exception:
        return None
    for number in range(len(model.samples)):
        every.append({})
        for _ in model.fields:  # each of which may be one that h5py cannot read as a whole
            try:
                every[-1] = as_plain(model, number)
                break
            except Exception:
                read_apart(model, there.model)
    return every


def read_apart(model: Model, before: Model) -> None:
    """Read what is of a fixed length in compounds that h5py cannot read as a whole; the rest stays as it was."""
    pairs = [*zip(model.parts, before.parts, strict=False)]
    pairs += [(one.part, other.part) for one, other in zip(model.samples, before.samples, strict=False)]
    for key, parts in model.others.items():
        pairs += zip(parts, before.others.get(key, ()), strict=False)
    for part, old in pairs:
        for name in [name for name, value in part.known.items() if isinstance(value, Exception)]:
            owner, members, _ = part.find(name)
            with contextlib.suppress(Exception):
                values, fixed = np.asarray(old.read(name)).copy(), without_references(owner)  # np.array shares them
                for member in members:
                    fixed = fixed[member]
                for leaf in fixed.dtype.names or ():
                    if fixed.dtype[leaf].base.kind != "V":
                        values[leaf] = fixed[leaf]
                part.known[name] = values if fixed.dtype.names else np.asarray(fixed, values.dtype)


def without_references(dataset: h5py.Dataset) -> np.ndarray:
    """Read a compound's elements with opaque bytes for members of variable length, which h5py reads with all others."""
    every, shape, shift, kinds = members_of(dataset.id.get_type()), dataset.shape, 0, list[tuple[str, Any, int]]()
    for name, (offset, one) in sorted(every.items(), key=lambda member: member[1][0]):
        is_fixed = one.dtype.kind != "O"
        kinds.append((name, one.dtype if is_fixed else "V16", offset + shift))
        shift += 0 if is_fixed else 16 - one.get_size()  # texts are pointers in memory
    names, formats, offsets = (list(column) for column in zip(*kinds, strict=True))
    nbytes = dataset.id.get_type().get_size() + shift
    kind = np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": nbytes})
    if not dataset.chunks:
        data = Path(dataset.file.filename).read_bytes()
        return np.frombuffer(data, kind, int(np.prod(shape)), dataset.id.get_offset()).reshape(shape)
    with h5py.File("without references", "w", driver="core", backing_store=False) as file:
        creation = dataset.id.get_create_plist()
        twin = h5d.create(file.id, b"x", h5t.py_create(kind), h5s.create_simple(shape), creation)
        for number in range(dataset.id.get_num_chunks()):
            start = dataset.id.get_chunk_info(number).chunk_offset
            mask, data = dataset.id.read_direct_chunk(start)
            twin.write_direct_chunk(start, data, mask)
        return h5py.Dataset(twin)[()]


def is_one_of(ours: Any, some: list[Any]) -> bool:
    """Tell whether a value, as `plain` makes it, is made of parts of others."""
    if any(isinstance(one, Crops) for one in some):
        return True  # any stretch is right
    first = some[0]
    if isinstance(ours, dict):
        same = [one for one in some if isinstance(one, dict) and list(one) == list(ours)]
        return bool(same) and all(is_one_of(ours[name], [one[name] for one in same]) for name in ours)
    if isinstance(ours, list):
        same = [one for one in some if isinstance(one, list) and len(one) == len(ours)]
        return bool(same) and all(is_one_of(ours[k], [one[k] for one in same]) for k in range(len(ours)))
    if isinstance(ours, (np.ndarray, np.generic)) and isinstance(first, (np.ndarray, np.generic)):
        ours = np.asarray(ours)
        same = [np.asarray(one) for one in some if np.shape(one) == ours.shape and np.asarray(one).dtype == ours.dtype]
        if not same:
            return False
        if ours.dtype == bool:  # any byte but 0 is true
            ours, same = ours.view("u1") != 0, [one.view("u1") != 0 for one in same]
        width = max(1, ours.dtype.itemsize)
        parts = [np.ascontiguousarray(one).reshape(-1).view("u1").reshape(-1, width) for one in (ours, *same)]
        is_nan = np.isnan(ours).reshape(-1) if ours.dtype.kind == "f" else False  # sums of NaNs have the bits of any
        nans = [is_nan & np.isnan(one).reshape(-1) if ours.dtype.kind == "f" else is_nan for one in same]
        pairs = zip(parts[1:], nans, strict=True)
        return bool(np.any([(parts[0] == one).all(axis=1) | both for one, both in pairs], axis=0).all())
    return any(type(one) is type(ours) and one == ours for one in some)


def check_samples(there: Reading, batch: Any, versions: list[Samples], what: str) -> None:
    """Compare a batch with samples as they were and as they are."""
    there.be_busy()
    fields = there.named(batch)
    parts = {name: parts_of(one) for name, one in fields.items()}
    sound = [one for one in versions if one is not None]
    for k in range(count_of(next(iter(fields.values())))):
        number = int(parts["number"][k])
        if not 0 <= number < len(sound[0]):
            raise WrongError(f"{what}: sample number {number} of {len(sound[0])}")
        for name in parts:
            right = [one[number][name] for one in sound if number < len(one) and one[number]]
            if not is_one_of(plain(parts[name][k]), right):
                raise WrongError(f"{what}: sample {number}, field {name!r} is {plain(parts[name][k])!r:.200}, "
                                 f"and neither of {right!r:.400}")  # fmt: skip


def copied(reading: Reading, name: str) -> Reading:
    """Write the files of a case once more, in a folder of their own."""
    there = reading.elsewhere(str(reading.folder / name))
    for file in reading.case["files"]:
        writing.write_file(there.base, file)
    return there


def stretches_of(path: str, name: str) -> list[tuple[int, int]]:
    """Return where the bytes of a dataset are in its file."""
    with h5py.File(path, "r") as file:
        if name not in file or not isinstance(file[name], h5py.Dataset):
            return []
        dataset = file[name].id
        layout = dataset.get_create_plist().get_layout()
        if layout == h5d.CHUNKED:
            infos = [dataset.get_chunk_info(k) for k in range(dataset.get_num_chunks())]
            return [(info.byte_offset, info.size) for info in infos if info.size]
        offset = dataset.get_offset() if layout == h5d.CONTIGUOUS else None
        return [(offset, dataset.get_storage_size())] if offset is not None and dataset.get_storage_size() else []


def change(path: str, where: tuple[int, int], options: dict[str, Any]) -> None:
    """Write other bytes into a stretch of a file, which may look as if it had not changed."""
    was, rng = os.stat(path), random.Random(options["seed"])
    first, nbytes = where
    start = rng.randrange(0, nbytes, 8) if nbytes > 8 else 0
    count = min(nbytes - start, rng.choice([4, 8, 64, nbytes]))
    value = {"huge": 2**30, "many": 52_000, "negative": -50_000, "one": 1, "most": 2**62}.get(options["with"])
    size = 8 if value is not None and value > 2**31 else rng.choice([4, 8])
    filling = rng.randbytes(count) if value is None else value.to_bytes(size, "little", signed=True) * count
    with open(path, "r+b") as file:
        file.seek(first + start)
        file.write(filling[:count])
    if options["unseen"]:
        os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))
    else:
        os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns + 10**9))


def changed(reading: Reading, options: dict[str, Any]) -> None:
    """Bytes of a dataset change between epochs, seen or unseen."""
    there = copied(reading, "changed")
    path = f"{there.base}/{options['file']}"
    if not (some := stretches_of(path, options["path"])) or not is_told(there):
        return
    old = every_sample(reading.model)
    with there.loader(shuffle=True, drop_last=False, keep=options["keep"]) as loader:
        for batch in loader:
            check_samples(there, batch, [old], "before anything changes")
        change(path, some[options["seed"] % len(some)], options)
        new = as_it_is_now(there)
        try:
            for _ in range(2):
                for batch in loader:
                    check_samples(there, batch, [old, new], f"{options['path']!r} of {options['file']!r} has changed")
        except H5StreamError:
            return


def filters_of(path: str, name: str) -> set[int]:
    """Return the filters that chunks of a dataset pass through."""
    with h5py.File(path, "r") as file:
        creation = file[name].id.get_create_plist()
        return {creation.get_filter(k)[0] for k in range(creation.get_nfilters())}


def keys_of(path: str, name: str) -> list[tuple[int, int]]:
    """Return where the keys of chunks are in a file whose B-trees are of version 1, and how many numbers each has."""
    data = Path(path).read_bytes()
    with h5py.File(path, "r") as file:
        if name not in file or not isinstance(file[name], h5py.Dataset) or not file[name].chunks:
            return []
        dataset, block = file[name].id, file.userblock_size
        infos = [dataset.get_chunk_info(k) for k in range(dataset.get_num_chunks())]
        axes = len(file[name].shape) + 1
    found = []
    for info in infos:
        address = (info.byte_offset - block).to_bytes(8, "little")
        place = data.find(address)
        while place > 0:
            key = place - 8 * axes - 8
            if key > 0 and data[key : key + 4] == info.size.to_bytes(4, "little"):
                found.append((key, axes))
                break
            place = data.find(address, place + 1)
    return found


def keyed(reading: Reading, options: dict[str, Any]) -> None:
    """A key of a chunk, in a B-tree, is damaged: its size, its mask, a coordinate or its address."""
    there = copied(reading, "keyed")
    path = f"{there.base}/{options['file']}"
    if not (keys := keys_of(path, options["path"])) or not is_told(there):
        return
    old, filters = every_sample(reading.model), filters_of(path, options["path"])
    rng = random.Random(options["seed"])
    key, axes = rng.choice(keys)
    with open(path, "r+b") as file:
        place = rng.choice([*range(axes), axes - 1, axes, -1])  # the coordinates, of which the last is 0; address; size
        file.seek(key + 8 + 8 * place)
        if place < 0:
            file.write(rng.choice([0, 1, 2**31, 7]).to_bytes(4, "little"))
        else:
            file.write(rng.choice([1, 2, 3, 4, 7, 100, 2**40, 2**63, 5_275_904]).to_bytes(8, "little"))
    # Of a filtered chunk of another size libhdf5 may give what the memory held, end the process, or never come back.
    new = None if place < 0 and filters else as_it_is_now(there)
    what = f"a key of {options['path']!r} of {options['file']!r} is damaged"
    try:
        dataset = H5Dataset(there.source, **there.asked)
        if new is not None and len(dataset) not in {len(old), len(new)}:
            raise WrongError(f"{what}: {len(dataset)} samples, where there were {len(old)} and h5py has {len(new)} now")
        check_samples(there, dataset[:], [old, new], what)
        with there.loader(dataset, shuffle=True, drop_last=False) as loader:
            for batch in loader:
                check_samples(there, batch, [old, new], what)
    except H5StreamError:
        return


class Store(ObjectServer):
    """A store that has neither ETags nor dates, dates alone, weak ETags that it compares strictly, or strong ones."""

    def __init__(self, folder: Path, how: str) -> None:
        self.how = how
        super().__init__(folder)
        self.has_tags = how != "no tags"
        self.tag = 'W/"{}"' if how == "weak tags" else '"{}"'

    async def answer(self, method: str, url: Any, fields: dict[str, str], writer: Any) -> bool:
        """Refuse weak tags in If-Match, as servers that follow the rules do."""
        if self.how == "weak tags" and fields.get("if-match", "").startswith("W/"):
            return bool(await self.send(writer, 412, {}, b""))
        return bool(await super().answer(method, url, fields, writer))

    def begin(self, writer: Any, status: int, facts: dict[str, str], nbytes: int) -> None:
        """Leave out ETags where there are dates alone."""
        known = {name: fact for name, fact in facts.items() if name != "ETag" or self.how != "dates"}
        super().begin(writer, status, known, nbytes)


def served(reading: Reading, options: dict[str, Any]) -> None:
    """Samples of the files as objects of a web server, whose names are written as browsers write them."""
    there, store = copied(reading, "served"), Store(reading.folder / "served", options["how"])
    try:
        there.base, there.quote = store.url, urllib.parse.quote
        if options["replaced"] and options["how"] != "no tags" and is_told(there):
            _replaced(there, reading)
        else:
            there.check_once(_epoch(there), dropped=there.case["loader"].get("drop_last", False))
    finally:
        store.close()


def _epoch(there: Reading) -> list[int]:
    with there.loader(shuffle=True) as loader:
        return [number for batch in loader for number in there.check_batch(batch)]


def _replaced(there: Reading, reading: Reading) -> None:
    """Read an epoch in which objects are replaced by others after the first batch: none of these may come."""
    old, began = every_sample(reading.model), False
    narrow = {"batch_size": 1, "window": 1, "memory_budget": "1GiB"}
    with there.loader(shuffle=True, drop_last=False, keep="never", num_workers=0, **narrow) as loader:
        try:
            for batch in loader:
                check_samples(there, batch, [old], "objects were replaced" if began else "nothing has changed")
                if not began:
                    replace(reading)
                    began = True
        except SourceChangedError:
            if not began:
                raise WrongError("nothing has changed, and it says so") from None


def replace(reading: Reading) -> None:
    """Write other numbers into the files that are served, and more bytes; each has a later date."""
    for file in reading.case["files"]:
        nodes = [{**node, "seed": node["seed"] + 1000} if "seed" in node else node for node in file["nodes"]]
        path = writing.write_file(str(reading.folder / "served-anew"), {**file, "nodes": nodes})
        with open(path, "ab") as end:
            end.write(bytes(4096))
        os.utime(path, (2e9, 2e9))
    for file in reading.case["files"]:
        os.replace(reading.folder / "served-anew" / file["name"], reading.folder / "served" / file["name"])
