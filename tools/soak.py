"""Stream random files with random settings for a while, with checksums, and fail on growth.

    python tools/soak.py --minutes 30

Each round makes a file of samples of one kind, streams it with random settings by one to three ranks, and now and then
breaks off, drops the iterator, damages a chunk or resumes from a state, with other ranks too; every batch is compared
with what was written. Memory, descriptors and threads are printed over time; the run fails if any of them grew, or at
the first wrong byte.

Resident memory alone does not tell a leak from holes between what is in use: glibc keeps freed memory, and rounds of
random sizes leave ever other holes. So before each measurement what is free is given back (``malloc_trim``, and
libhdf5's own free lists), and what the C library counts as in use is measured too, and Python's blocks: of these a
few bytes a round show within minutes.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import ctypes
import gc
import itertools
import json
import logging
import os
import random
import statistics
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import h5py
import hdf5plugin
import imagecodecs
import numpy as np
import psutil
import torch

from bench.object_server import Distance, store_of
from h5stream import (
    Balanced,
    Bounds,
    Boxes,
    Crop,
    Ends,
    Field,
    H5Dataset,
    H5StreamLoader,
    Ids,
    Lengths,
    Mixture,
    Objects,
    Padding,
    Ragged,
    SampleNumber,
    Sequences,
    Sized,
    SourceNumber,
    Weighted,
)
from h5stream.errors import CorruptChunkError, OptionError, WeakShuffleWarning
from h5stream.results import Packed
from h5stream.samples.kinds import Pad
from h5stream.structure import Padded, SparseRows

SAMPLES = 40
"""Measurements in a run; each is the sum of all rounds since the last, so more tell no more."""

FILTERS: tuple[dict[str, Any], ...] = (
    {},
    {"compression": "gzip"},
    {"compression": "gzip", "shuffle": True},
    {"compression": "lzf", "fletcher32": True},
    {"scaleoffset": 0},
    dict(hdf5plugin.LZ4()),
    dict(hdf5plugin.Zstd()),
    dict(hdf5plugin.Blosc()),
    dict(hdf5plugin.Bitshuffle()),
)


UNCOMPRESSED_OR_GZIP = FILTERS[:3]
"""What elements of no fixed bytes are stored with."""

PROCESS_SHARE = 0.01
"""Of the rounds, read in a child process; as many have samples made in workers. Few, because each takes seconds."""

REMOTE_SHARE = 0.3
"""Of the rounds, read from a store, half of these through a cache on disk."""

STORE = Distance(latency_ms=1, connection_mb_s=1000, fault_share=0.005)

FORMS: tuple[Literal["packed", "pad", "list"], ...] = ("packed", "pad", "list")

PAD = 7
"""What ragged samples are filled up with."""


# --- kinds of samples -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """Samples of one kind that were written to a file.

    Attributes
    ----------
    count : int
        How many an epoch has.
    fields : dict
        As a loader takes them; `SampleNumber` is added.
    held : dict
        What each field should be: a value for each sample, or where starts are random a function of the sample's number
        and of the sample, whose first value says where it starts.
    options : dict
        What else a loader takes.
    source : callable or None
        Opens what is read in place of the file.
    is_drawn : bool
        Whether an epoch may have a sample several times, or never.
    encoded : sequence of bytes
        What has a checksum of its own, beside chunks.
    """

    count: int
    fields: dict[str, Any]
    held: dict[str, Any]
    options: dict[str, Any] = field(default_factory=dict)
    source: Callable[[], H5Dataset] | None = None
    is_drawn: bool = False
    encoded: Sequence[bytes] = ()


def stored(file: h5py.Group, name: str, data: Any, rng: random.Random, **options: Any) -> Any:
    """Write a dataset in any way, and give what was written."""
    shape = np.shape(data)
    storage = rng.choice(UNCOMPRESSED_OR_GZIP if options or data.dtype.kind not in "iu" else FILTERS)
    chunks = tuple(rng.randint(1, min(length, 2000)) for length in shape) if min(shape) else None
    while chunks and np.prod([-(-n // c) for n, c in zip(shape, chunks, strict=True)]) > 3000:
        chunks = tuple(min(n, 2 * c) for n, c in zip(shape, chunks, strict=True))
    is_chunked = chunks and (storage or rng.random() < 0.5)
    file.create_dataset(name, data=data, **options, **({"chunks": chunks, **storage} if is_chunked else {}))
    return data


def numbers_of(rng: random.Random, *shape: int) -> Any:
    """Give numbers that compress a little."""
    return np.random.default_rng(rng.getrandbits(32)).integers(0, 1000, shape, dtype="i4")


def _lengths(rng: random.Random, count: int) -> list[int]:
    return [rng.choice([0, 1, rng.randint(2, 60)]) for _ in range(count - 1)] + [rng.randint(2, 60)]


def _rows(file: h5py.File, rng: random.Random) -> Kind:
    x = stored(file, "x", numbers_of(rng, rng.randint(1, 30_000), rng.choice([1, 4, 33])), rng)
    return Kind(count=len(x), fields={"x": "x"}, held={"x": x})


def _drawn(file: h5py.File, rng: random.Random) -> Kind:
    rows = rng.randint(20, 5000)
    x, label = stored(file, "x", numbers_of(rng, rows, 3), rng), np.arange(rows) % 5
    file["label"], file["weight"] = label, np.arange(1.0, rows + 1)
    count, even = rng.choice([rows // 2, rows]), rows // 5 * 5
    draw: Any = rng.choice(
        [
            Weighted("weight", count),
            Balanced("label", count=count),
            Balanced(label, count=even, replacement=False),
            count,
        ]
    )
    per_epoch = draw if isinstance(draw, int) else draw.count
    return Kind(count=per_epoch, fields={"x": "x"}, held={"x": x}, options={"draw": draw}, is_drawn=True)


def _mixture(file: h5py.File, rng: random.Random) -> Kind:
    sizes, path = [rng.randint(20, 3000) for _ in range(rng.randint(1, 3))], file.filename
    x = [stored(file, f"{k}/x", numbers_of(rng, rows, 3), rng) for k, rows in enumerate(sizes)]
    shares = [rng.random() + 0.1 for _ in sizes]
    stop: Literal["first", "all"] = "first" if rng.random() < 0.5 else "all"

    def mixed() -> H5Dataset:
        fields: list[dict[str, Any]] = [
            {"x": f"{k}/x", "source": SourceNumber(), "number": SampleNumber()} for k in range(len(sizes))
        ]
        parts = {str(k): H5Dataset(path, one) for k, one in enumerate(fields)}
        return Mixture(parts, shares, stop=stop)

    held = {"x": np.concatenate(x), "source": np.repeat(np.arange(len(sizes)), sizes)}
    return Kind(count=sum(sizes), fields={}, held=held, options={"shuffle": True}, source=mixed, is_drawn=True)


def _sequences(file: h5py.File, rng: random.Random) -> Kind:
    lengths = [rng.randint(12, 80) for _ in range(rng.randint(1, 30))]
    edges, rows = np.append(0, np.cumsum(lengths)), sum(lengths)
    x, stride = numbers_of(rng, rows, 3), rng.randint(1, 3)
    pads: list[Pad] = [None, "edge", "zeros", PAD]
    pad = rng.choice(pads)
    of: Any = rng.choice([Bounds("bounds"), Lengths("lengths"), Ids("ids"), Ends("ends"), "group*"])
    if of == "group*":
        for k, rows_of in enumerate(np.split(x, edges[1:-1])):
            stored(file, f"group{k:02}/x", rows_of, rng)
    else:
        stored(file, "x", x, rng)
        file["bounds"], file["lengths"] = edges, np.array(lengths)
        file["ids"], file["ends"] = np.repeat(np.arange(len(lengths)), lengths), np.isin(np.arange(rows) + 1, edges)
    steps, length = sorted(rng.sample(range(-4, 5), 3)), rng.randint(1, 6)
    first, last = min(steps[0], 0), max(steps[-1], length - 1)
    anchors: list[int] = []
    segments: list[Any] = []
    for k, (low, high) in enumerate(itertools.pairwise(edges.tolist())):
        found = range(low, high, stride) if pad is not None else range(low - first, high - last, stride)
        anchors, segments = [*anchors, *found], segments + [k] * len(found)
    low, high = edges[:-1][segments][:, None], edges[1:][segments][:, None] - 1

    def taken(steps: Sequence[int]) -> tuple[Any, Any]:
        wanted = np.array(anchors)[:, None] + np.array(steps)
        outside = (wanted < low) | (wanted > high)
        values = x[np.clip(wanted, low, high)]
        values[outside & (pad not in (None, "edge"))] = PAD if pad == PAD else 0
        return values, outside

    held = {"few": taken(steps)[0], "padding": taken(range(length))[1], "all": taken(range(length))[0]}
    fields = {"few": Field("x", take=steps), "all": "x", "padding": Padding()}
    samples = Sequences(length, of=of, pad=pad, stride=stride)
    return Kind(count=len(anchors), fields=fields, held=held, options={"samples": samples})


def _objects(file: h5py.File, rng: random.Random) -> Kind:
    count = 2100 if rng.random() < 0.05 else rng.randint(2, 60)
    form, lengths = rng.choice(FORMS), _lengths(rng, count)
    alike = None if count < 100 and rng.random() < 0.3 else rng.getrandbits(30)
    x = [numbers_of(rng, length, 2) for length in lengths]
    for k, one in enumerate(x):
        stored(file, f"object{k:04d}/x", one, rng if alike is None else random.Random(alike))
        file[f"object{k:04d}"].attrs["label"] = k % 7
    fields = {"x": Field("x", ragged=Ragged(form, pad_value=PAD if form == "pad" else 0)), "label": "@label"}
    held = {"x": x, "label": np.arange(count) % 7}
    return Kind(count=count, fields=fields, held=held, options={"samples": Objects("object*")})


def _ragged(file: h5py.File, rng: random.Random) -> Kind:
    lengths = _lengths(rng, rng.randint(2, 2000))
    edges, form = np.append(0, np.cumsum(lengths)), rng.choice(FORMS)
    tokens = stored(file, "tokens", np.arange(10, 10 + edges[-1], dtype="i4"), rng)
    file["bounds"] = edges
    crop = rng.choice([None, Crop(rng.randint(1, 30), at=rng.choice(["random", "start", "center"]))])
    is_random = crop is not None and crop.at == "random"
    x = np.split(tokens, edges[1:-1])

    def cropped(k: int, sample: dict[str, Any]) -> Any:
        assert crop is not None
        length = min(crop.length, lengths[k])
        begin = min(max(0, sample["tokens"][0] - 10 - edges[k]), lengths[k] - length) if length else 0
        return x[k][begin : begin + length]

    if crop is not None and not is_random:
        spare = [max(0, n - crop.length) // (2 if crop.at == "center" else n + 1) for n in lengths]
        x = [one[begin : begin + crop.length] for one, begin in zip(x, spare, strict=True)]
    fields = {
        "tokens": Field(
            "tokens", lookup=Bounds("bounds"), ragged=Ragged(form, crop=crop, pad_value=PAD * (form == "pad"))
        )
    }
    draw = rng.choice([None, Sized(rng.randint(60, 2000), bucket=rng.random() < 0.3)])
    options = {"draw": draw} | ({"shuffle": True} if draw is not None and draw.bucket else {})
    return Kind(count=len(x), fields=fields, held={"tokens": cropped if is_random else x}, options=options)


def _boxes(file: h5py.File, rng: random.Random) -> Kind:
    shape = tuple(rng.randint(6, 40) for _ in range(3))
    size = tuple(rng.randint(1, min(n, 12)) for n in shape)
    volume = stored(file, "volume", np.arange(np.prod(shape), dtype="i4").reshape(shape), rng)
    stored(file, "label", (volume % 7).astype("u1"), rng)
    at: dict[str, Any] = rng.choice([{"at": "grid"}, {"at": "random", "per_epoch": rng.randint(2, 200)}])
    grid = int(np.prod([-(-(n - m) // m) + 1 for n, m in zip(shape, size, strict=True)]))

    def box(k: int, sample: dict[str, Any]) -> Any:
        begin = np.unravel_index(sample["volume"].flat[0], shape)
        return volume[tuple(slice(low, low + n) for low, n in zip(begin, size, strict=True))]

    return Kind(
        count=at.get("per_epoch", grid),
        fields={"volume": "volume", "label": "label"},
        held={"volume": box, "label": lambda k, sample: (box(k, sample) % 7).astype("u1")},
        options={"samples": Boxes(size, **at)},
        is_drawn="per_epoch" in at,
    )


def _lookup(file: h5py.File, rng: random.Random) -> Kind:
    count, rows = rng.randint(2, 3000), rng.randint(1, 800)
    features, question = numbers_of(rng, rows, rng.choice([1, 30])), numbers_of(rng, count, 2)
    stored(file, "features", features, rng), stored(file, "question", question, rng)
    index = np.random.default_rng(rng.getrandbits(32)).integers(0, rows, count)
    file["index"] = index
    fields = {"feature": Field("features", lookup=rng.choice(["index", index])), "question": "question"}
    return Kind(count=count, fields=fields, held={"feature": features[index], "question": question})


def _variable(file: h5py.File, rng: random.Random) -> Kind:
    lengths = _lengths(rng, rng.randint(2, 600))
    form = rng.choice([None, *FORMS])
    values, texts = np.empty(len(lengths), object), np.empty(len(lengths), object)
    values[:] = [numbers_of(rng, length) for length in lengths]
    texts[:] = [f"{rng.getrandbits(40)} \u00e9" * (length % 3) for length in lengths]
    stored(file, "values", values, rng, dtype=h5py.vlen_dtype("i4"))
    stored(file, "texts", texts, rng, dtype=h5py.string_dtype())
    short = stored(file, "short", np.array([f"{length:05}".encode() for length in lengths]), rng)
    fields = {
        "values": Field("values", ragged=form and Ragged(form, pad_value=PAD * (form == "pad"))),
        "texts": "texts",
        "short": "short",
    }
    held = {"values": [*values], "texts": [text.encode() for text in texts], "short": short.tolist()}
    return Kind(count=len(lengths), fields=fields, held=held)


def _images(file: h5py.File, rng: random.Random) -> Kind:
    count, unlike = rng.randint(2, 150), rng.random() < 0.5
    shapes = [(5 + k % 3 * unlike, 6, 3) for k in range(count)]
    images = [numbers_of(rng, *shape).astype("u1") for shape in shapes]
    encoded, values = [bytes(imagecodecs.png_encode(image)) for image in images], np.empty(count, object)
    values[:] = [np.frombuffer(one, "u1") for one in encoded]
    stored(file, "image", values, rng, dtype=h5py.vlen_dtype("u1"))
    fields = {"image": Field("image", decode=rng.choice(["png", "auto"]), ragged="list" if unlike else None)}
    held = {"image": images if unlike else np.stack(images)}
    return Kind(count=count, fields=fields, held=held, encoded=encoded)


def _sparse(file: h5py.File, rng: random.Random) -> Kind:
    full = numbers_of(rng, rng.randint(2, 1500), rng.randint(2, 60))
    full[full > 300] = 0
    rows, columns = np.nonzero(full)
    counts = np.bincount(rows, minlength=len(full))
    group = file.create_group("X")
    group.attrs["encoding-type"], group.attrs["shape"] = "csr_matrix", full.shape
    values, at = stored(group, "data", full[rows, columns], rng), stored(group, "indices", columns.astype("i4"), rng)
    edges = group["indptr"] = np.append(0, counts.cumsum())
    if rng.random() < 0.5:
        held: Any = list(zip(np.split(values, edges[1:-1]), np.split(at, edges[1:-1]), strict=True))
        return Kind(count=len(full), fields={"x": Field("X", ragged="packed")}, held={"x": held})
    wanted = rng.choice([None, rng.sample(range(full.shape[1]), rng.randint(1, full.shape[1]))])
    held = full if wanted is None else full[:, wanted]
    return Kind(count=len(full), fields={"x": Field("X", ragged="dense", columns=wanted)}, held={"x": held})


KINDS: Mapping[str, Callable[[h5py.File, random.Random], Kind]] = {
    "rows": _rows,
    "drawn": _drawn,
    "mixture": _mixture,
    "sequences": _sequences,
    "objects": _objects,
    "ragged": _ragged,
    "boxes": _boxes,
    "lookup": _lookup,
    "variable": _variable,
    "images": _images,
    "sparse": _sparse,
}


# --- rounds ---------------------------------------------------------------------------------------------------

Identity = tuple[int, ...]
"""Which sample it is: its number, and where it starts at random what it starts with."""


def doubled(sample: dict[str, Any]) -> dict[str, Any]:
    """Stand for what users do to samples."""
    return {**sample, "twice": 2 * sample["number"]}


def parts_of(got: Any, count: int) -> Any:
    """Take what a batch has of a field apart, into samples."""
    if isinstance(got, Padded):
        behind = torch.arange(got.values.shape[1]) >= got.lengths[:, None]
        assert (got.values[behind] == PAD).all(), "wrong padding"
    return [got.sample(k) for k in range(count)] if isinstance(got, (Packed, Padded, SparseRows)) else got


def plain(value: Any) -> Any:
    """Give what is equal only of equal types, shapes and bytes."""
    if isinstance(value, SparseRows):
        value = value.values, value.columns
    if isinstance(value, tuple):
        return tuple(map(plain, value))
    return (
        value
        if isinstance(value, bytes)
        else (str(np.asarray(value).dtype), np.shape(value), np.asarray(value).tobytes())
    )


class Round:
    """One file and what is done with it."""

    def __init__(self, folder: Path, rng: random.Random, kind: str, store: str = "") -> None:
        # A name of its own: a loader that ended with an error may hold the last one until the next collection.
        self.rng, self.path = rng, str(folder / f"{rng.getrandbits(60):x}.h5")
        with h5py.File(self.path, "w", libver=rng.choice(["earliest", "latest"])) as file:
            self.kind = KINDS[kind](file, rng)
        count = self.kind.count
        self.ranks = min(rng.choice([1, 1, 2, 3]), max(1, count // 2))
        self.settings: dict[str, Any] = {
            "batch_size": max(2, count // 200, rng.randint(1, 1 + count // rng.choice([1, 4, 40]))),
            "shuffle": rng.random() < 0.8,
            "seed": rng.getrandbits(20),
            "num_workers": rng.choice([0, 1, 2, 3, 8, 16]),
            "window": rng.choice(["auto", "all", rng.randint(1, 5000)]),
            "keep": rng.choice(["auto", "never"]),
            "memory_budget": rng.choice([None, "256MiB"]),
            **self.kind.options,
        }
        self.address, self.cache = self.path, dict[str, Any]()
        if store and rng.random() < REMOTE_SHARE:
            self.address = f"{store}/{Path(self.path).name}"
            if rng.random() < 0.5:
                self.cache = {"cache": folder / "cache", "cache_size": rng.choice(["64kB", "64MB"])}
        self.busy_s = rng.choice([0.0, 0.0, 0.001, 0.004])  # of Python alone, for each batch
        self.processes: dict[str, Any] = {}
        if rng.random() < 2 * PROCESS_SHARE:
            self.processes = {"sample_transform": doubled, "collate_fn": list, "sample_workers": 2}

    def loader(self, **options: Any) -> H5StreamLoader:
        """Make a loader with settings of this round."""
        options = {**self.settings, **self.processes, **options}
        if self.kind.source is not None:
            return H5StreamLoader(self.kind.source(), **options)
        fields = {**self.kind.fields, "number": SampleNumber()}
        if self.address == self.path:
            return H5StreamLoader(self.path, fields=fields, **options)
        samples = options.pop("samples", None)
        return H5StreamLoader(H5Dataset(self.address, fields, samples=samples, **self.cache), **options)

    def loaders(self, ranks: int) -> list[H5StreamLoader]:
        """Make those of all ranks."""
        return [self.loader(rank=rank, world_size=ranks) for rank in range(ranks)]

    def check(self, batch: Any) -> list[Identity]:
        """Compare a batch with what was written, and be busy for a while; say which samples it has."""
        until = time.perf_counter() + self.busy_s
        while time.perf_counter() < until:
            pass
        if isinstance(batch, list):
            assert all(sample["twice"] == 2 * sample["number"] for sample in batch), "a transform is lost"
            batch = {name: [sample[name] for sample in batch] for name in batch[0]}
        numbers = np.array([int(number) for number in batch["number"]])
        found: list[Identity] = [(number,) for number in numbers.tolist()]
        samples = {name: parts_of(batch[name], len(numbers)) for name in self.kind.held}
        for name, held in self.kind.held.items():
            got, wrong = samples[name], f"wrong bytes of {name!r} in {self.path}"
            assert len(got) == len(numbers), f"{name!r} lacks samples in {self.path}"
            if isinstance(got, torch.Tensor) and isinstance(held, np.ndarray):
                assert plain(got) == plain(held[numbers]), wrong
                continue
            for k, number in enumerate(numbers.tolist()):
                if callable(held):
                    sample = {name: samples[name][k].numpy() for name in samples}
                    found[k] += tuple(sample[name].flatten()[:1].tolist())
                assert plain(got[k]) == plain(held(number, sample) if callable(held) else held[number]), wrong
        return found

    def steps(self, loaders: Sequence[H5StreamLoader]) -> Iterator[list[Identity]]:
        """Give the samples of each step of all ranks, of which each has as many."""
        for batches in zip(*loaders, strict=True):
            yield [one for batch in batches for one in self.check(batch)]

    def epoch(self, number: int) -> list[Identity]:
        """Give the samples that an epoch should have; where chance decides, those of the simplest loader."""
        if not self.kind.is_drawn and not any(map(callable, self.kind.held.values())):
            return [(k,) for k in range(self.kind.count)]
        simple = self.loader(num_workers=0)
        simple.set_epoch(number)
        return sorted(one for batch in simple for one in self.check(batch))

    def same(self, found: Sequence[Identity], number: int, when: str) -> None:
        """Compare the samples that came with those of an epoch."""
        assert sorted(found) == self.epoch(number), f"samples lost or repeated {when} in {self.path}"

    def whole_epochs(self) -> str:
        """Two epochs, every sample once in each over all ranks."""
        with contextlib.ExitStack() as stack:
            loaders = [stack.enter_context(loader) for loader in self.loaders(self.ranks)]
            for number in range(2):
                self.same([one for step in self.steps(loaders) for one in step], number, f"of epoch {number}")
        return "whole"

    def abort(self) -> str:
        """Break off anywhere, by several ways of leaving."""
        loader = self.loader()
        for _ in range(5):
            iterator = iter(loader)
            for _ in range(self.rng.randint(0, 5)):
                batch = next(iterator, None)
                if batch is not None:
                    self.check(batch)
            if self.rng.random() < 0.5:
                loader.close()
        return "aborted"

    def resume(self) -> str:
        """Break off, take the state, and go on in other loaders, of perhaps another number: every sample once."""
        loaders, found, in_the_middle = self.loaders(self.ranks), [], False
        for step in self.steps(loaders):
            found += step
            if in_the_middle := self.rng.random() < 0.3:
                break
        states = [loader.state_dict() | {"rank": 0} for loader in loaders]
        assert all(state == states[0] for state in states), f"ranks differ in their states of {self.path}"
        in_the_middle = in_the_middle and states[0]["epoch"] == 0
        if in_the_middle:
            twins = self.loaders(self.rng.choice([1, self.ranks, 2, 3]))
            for twin in twins:
                twin.load_state_dict(json.loads(json.dumps(states[0])))
            found += [one for step in self.steps(twins) for one in step]
        self.same(found, 0, "over a resume")
        return "resumed" if in_the_middle else "whole"

    def place_with_a_checksum(self) -> int | None:
        """Find a byte of which a checksum tells: of a chunk, or of what is encoded."""
        found: list[int] = []

        def look(name: str, one: Any) -> None:
            if isinstance(one, h5py.Dataset) and one.chunks and (one.compression == "gzip" or one.fletcher32):
                infos = [one.id.get_chunk_info(k) for k in range(min(50, one.id.get_num_chunks()))]
                # Of a chunk that gzip would make larger libhdf5 leaves it out.
                found.extend(info.byte_offset + info.size // 2 for info in infos if not info.filter_mask)

        with h5py.File(self.path, "r") as file:
            file.visititems(look)
        if self.kind.encoded:
            one = self.rng.choice(self.kind.encoded)
            found.append(Path(self.path).read_bytes().index(one) + len(one) // 2)
        return self.rng.choice(found) if found else None

    def damage(self) -> str:
        """Damage a byte where a checksum tells: an error or fewer samples, and those that come are right."""
        place, epoch = self.place_with_a_checksum(), collections.Counter(self.epoch(0))
        if place is None:
            return self.abort()
        with open(self.path, "r+b") as raw:
            raw.seek(place)
            byte = raw.read(1)[0]
            raw.seek(-1, os.SEEK_CUR)
            raw.write(bytes([byte ^ 0x10]))
        with contextlib.suppress(CorruptChunkError):
            loader = self.loader(on_error=self.rng.choice(["raise", "skip"]))
            found = collections.Counter(one for batch in loader for one in self.check(batch))
            left_out = (epoch - found).total()
            assert found <= epoch, f"samples repeated around damage in {self.path}"
            assert left_out == loader.stats().skipped_rows, f"samples lost around damage in {self.path}"
        return "damaged"


Act = Callable[[Round], str]
ACTS: tuple[Act, ...] = (Round.whole_epochs, Round.abort, Round.resume, Round.damage)


# --- measuring ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What the process holds, once what is over is gone.

    Attributes
    ----------
    elapsed_s : float
        Since the run began.
    resident_nbytes : int
        After free memory was given back.
    heap_nbytes : int
        In use of the C library's heap; 0 where it does not tell.
    blocks : int
        Python's small blocks in use.
    descriptors, connections, threads : int
        Open files, open connections to the store, and what runs.
    """

    elapsed_s: float
    resident_nbytes: int
    heap_nbytes: int
    blocks: int
    descriptors: int
    connections: int
    threads: int


SLACK: Mapping[str, tuple[str, int]] = {
    "resident_nbytes": ("resident memory", 64 << 20),
    "heap_nbytes": ("heap in use", 4 << 20),
    "blocks": ("Python's blocks", 20_000),
    "descriptors": ("descriptors", 0),
    "connections": ("connections", 16),  # a client keeps those that it may use again for 10 s
    "threads": ("threads", 0),
}
"""What may be added between the halves of a run: of resident memory the holes, of the rest what is met for the first
time late (measured in 8,000 rounds: 0.3 MB of heap, 2 MB once where a table of Python's doubled, and 200 blocks)."""

_NUMPY_KEEPS_BELOW, _NUMPY_KEEPS = 1024, 7
"""Bytes of an array below which NumPy keeps its memory, and for how many of each size (``alloc.c``, NumPy 2.4)."""

_HEAP_FIELDS = [
    "arena",
    "ordblks",
    "smblks",
    "hblks",
    "hblkhd",
    "usmblks",
    "fsmblks",
    "uordblks",
    "fordblks",
    "keepcost",
]


class _HeapInfo(ctypes.Structure):
    """Source: ``mallinfo(3)``."""

    _fields_ = tuple((name, ctypes.c_size_t) for name in _HEAP_FIELDS)


def _give_back_what_is_free() -> None:
    gc.collect()
    with open("/proc/self/maps") as maps:
        libraries = {line.split()[-1] for line in maps if "/libhdf5-" in line or "/libhdf5.so" in line}
    for library in libraries:  # the free lists are libhdf5's own, and grow until they have seen it all
        ctypes.CDLL(library).H5garbage_collect()
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(ctypes.c_size_t(0))


def _heap_in_use() -> int:
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallinfo2"):
        return 0
    libc.mallinfo2.restype = _HeapInfo
    info = libc.mallinfo2()
    return int(info.uordblks + info.hblkhd)


def _fill_what_numpy_keeps() -> None:
    """Let NumPy's own store of small memory be full, which fills over hours and then stops: 3.8 MB of heap."""
    held = [np.empty(size, np.uint8) for size in range(_NUMPY_KEEPS_BELOW) for _ in range(_NUMPY_KEEPS + 1)]
    del held


def measure(elapsed_s: float) -> Sample:
    """Give what the process holds."""
    _give_back_what_is_free()
    process = psutil.Process()
    connections = len(process.net_connections(kind="tcp"))
    return Sample(
        elapsed_s=elapsed_s,
        resident_nbytes=int(process.memory_info().rss),
        heap_nbytes=_heap_in_use(),
        blocks=sys.getallocatedblocks(),
        descriptors=int(process.num_fds()) - connections,
        connections=connections,
        threads=threading.active_count(),
    )


def grown(samples: Sequence[Sample]) -> list[str]:
    """Name what grew: the median of the last half against that of the quarter before it.

    The first quarter is warming up. Medians, because what a single round holds comes and goes.
    """
    end = samples[-1].elapsed_s
    before = [one for one in samples if end / 4 <= one.elapsed_s < end / 2] or list(samples[:1])
    after = [one for one in samples if one.elapsed_s >= end / 2]
    found = []
    for name, (words, slack) in SLACK.items():
        old, new = (statistics.median(getattr(one, name) for one in part) for part in (before, after))
        if new > old + slack:
            found.append(f"{words} by {new - old:,.0f}")
    return found


# --- running --------------------------------------------------------------------------------------------------


def soak(
    minutes: float, seed: int, acts: Sequence[Act] = ACTS, clock: Callable[[], float] = time.monotonic
) -> tuple[collections.Counter[str], list[Sample]]:
    """Run for so long; give what was done how often, and what was measured.

    Raises
    ------
    AssertionError
        At the first wrong byte, or row that is lost or repeated.
    """
    began, rng = clock(), random.Random(seed)
    done: collections.Counter[str] = collections.Counter()
    samples: list[Sample] = []
    _fill_what_numpy_keeps()
    with tempfile.TemporaryDirectory() as folder, store_of(Path(folder), STORE) as store:
        while (elapsed := clock() - began) < 60 * minutes:
            done[play(Path(folder), rng, acts, store)] += 1
            if elapsed >= len(samples) * 60 * minutes / SAMPLES:
                samples.append(measure(elapsed))
                report(samples[-1], done)
    return done, samples


def play(folder: Path, rng: random.Random, acts: Sequence[Act], store: str = "") -> str:
    """Play one round and give the kind of samples and what became of it; nothing of it is left."""
    kind = rng.choice([*KINDS])
    one = Round(folder, rng, kind, store)
    try:
        return f"{kind} {rng.choice(acts)(one)}"
    except OptionError as error:
        if "ranks" not in str(error):
            raise
        return f"{kind} refused"  # too few batches for so many ranks
    finally:
        os.remove(one.path)


def report(one: Sample, done: collections.Counter[str]) -> None:
    """Print one line."""
    memory = f"{one.resident_nbytes / 1e6:6.1f} MB resident, {one.heap_nbytes / 1e6:.3f} MB of heap"
    others = f"{one.blocks:,} blocks, {one.descriptors} fds, {one.connections} connections, {one.threads} threads"
    acts: collections.Counter[str] = collections.Counter()
    for what, count in done.items():
        acts[what.split()[1]] += count
    counts = ", ".join(f"{count} {what}" for what, count in sorted(acts.items()))
    print(f"{one.elapsed_s:6.0f} s  {memory}, {others}; {counts}", flush=True)


def main() -> int:
    """Run as the command line says; give the exit status."""
    parser = argparse.ArgumentParser(description="Stream random files, and fail on growth or a wrong byte.")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    logging.getLogger("h5stream").setLevel(logging.ERROR)  # damaged chunks are warned of, as they should be
    warnings.simplefilter("ignore", WeakShuffleWarning)  # and small windows; warnings that are shown are remembered
    os.environ["H5STREAM_CATALOGUE"] = "0"  # else the user's cache folder gets an entry of each file of many objects
    done, samples = soak(arguments.minutes, arguments.seed)
    missing = {f"{kind} {what}" for kind in KINDS for what in ("whole", "aborted", "resumed", "damaged")} - set(done)
    failures = [f"grown: {one}" for one in grown(samples)] + [f"never {what}: run longer" for what in sorted(missing)]
    print("\n".join(failures) or f"{done.total():,} rounds: nothing has grown; every sample was right", flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
