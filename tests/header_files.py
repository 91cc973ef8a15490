"""Files with objects of every kind, and the check that what we make of their headers is what h5py says.

`tests/storage/test_headers.py` draws some; ``python tools/fuzz_files.py headers`` damages them.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from hypothesis import strategies as st
from making import libhdf5

from h5stream.storage import headers as ours
from h5stream.storage import templates
from h5stream.storage.source import identity_of

LIBVERS = ("earliest", "v108", "v110", "v112", "v114", "latest")
COMPOUND = np.dtype([("a", "<f4"), ("b", ">i2"), ("c", "S3"), ("d", "<u1", (2, 3))])
DTYPES: dict[str, Any] = {
    "f4": np.dtype("<f4"),
    ">i2": np.dtype(">i2"),
    "bool": np.dtype("?"),
    "enum": h5py.enum_dtype({"red": 1, "green": 2}, basetype="i2"),
    "S5": np.dtype("S5"),
    "text": h5py.string_dtype(),
    "fixed text": h5py.string_dtype(length=7),
    "vlen": h5py.vlen_dtype("i4"),
    "compound": COMPOUND,
    "nested": np.dtype([("x", COMPOUND), ("y", "<c8")]),
    "opaque": np.dtype("V5"),
    "reference": h5py.ref_dtype,
}
LAYOUTS = {
    h5py.h5d.COMPACT: templates.COMPACT,
    h5py.h5d.CONTIGUOUS: templates.CONTIGUOUS,
    h5py.h5d.CHUNKED: templates.CHUNKED,
}
MOST_NAMES = 40
_FAILURES = (OSError, RuntimeError, ValueError, TypeError, KeyError, NotImplementedError, OverflowError, MemoryError)


# --- files ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Made:
    """One dataset, and what is done to it."""

    shape: tuple[int, ...] | None
    dtype: str
    layout: str
    early: bool
    filters: tuple[str, ...]
    grows: str
    fill: bool
    written: bool
    attributes: tuple[str, ...]
    attributes_late: bool


@dataclass(frozen=True)
class HeaderFile:
    """A group of datasets, and the file that it is in."""

    libver: str
    userblock: int
    sizes: tuple[int, int]
    times: bool
    tracked: bool
    other_links: bool
    objects: tuple[Made, ...]


@st.composite
def made_objects(draw):
    shape = draw(st.sampled_from([(), None, (0,), (5,), (40,), (3, 4), (7, 2), (2, 3, 4), (1,) * 8]))
    kinds = ["contiguous"] if not shape else ["contiguous", "contiguous", "compact", "chunked", "chunked"]
    layout = draw(st.sampled_from(["contiguous", "compact"] if shape == () else kinds))
    chunked = layout == "chunked"
    filters = st.lists(st.sampled_from(["shuffle", "gzip", "fletcher32", "lzf"]), unique=True, max_size=3)
    dtype = draw(st.sampled_from(sorted(DTYPES)))
    attribute = st.sampled_from(["number", "array", "text", "bytes", "empty", "compound", "big", "nothing", "bool"])
    return Made(
        shape=shape,
        dtype=dtype,
        layout=layout,
        early=draw(st.booleans()),
        filters=tuple(draw(filters)) if chunked and dtype not in ("text", "vlen") else (),
        grows=draw(st.sampled_from(["no", "no", "first", "every", "to more"])) if chunked else "no",
        fill=draw(st.booleans()) and dtype in ("f4", ">i2", "S5", "compound"),
        written=draw(st.booleans()),
        attributes=tuple(
            draw(st.one_of(st.lists(attribute, max_size=3), st.lists(attribute, min_size=7, max_size=20)))
        ),
        attributes_late=draw(st.booleans()),
    )


@st.composite
def header_files(draw):
    return HeaderFile(
        libver=draw(st.sampled_from(LIBVERS)),
        userblock=draw(st.sampled_from([0, 0, 512, 2048])),
        sizes=draw(st.sampled_from([(8, 8), (8, 8), (8, 8), (4, 4), (8, 4)])),
        times=draw(st.booleans()),
        tracked=draw(st.booleans()),
        other_links=draw(st.booleans()),
        objects=tuple(draw(st.lists(made_objects(), min_size=1, max_size=14))),
    )


def write_file(case: HeaderFile, path: Path) -> None:
    """Write a file to a path."""
    access, creation = h5py.h5p.create(h5py.h5p.FILE_ACCESS), h5py.h5p.create(h5py.h5p.FILE_CREATE)
    low = getattr(h5py.h5f, {"v108": "LIBVER_V18"}.get(case.libver, f"LIBVER_{case.libver.upper()}"))
    access.set_libver_bounds(low, h5py.h5f.LIBVER_LATEST)
    creation.set_sizes(*case.sizes)
    creation.set_userblock(case.userblock)
    with h5py.File(h5py.h5f.create(os.fsencode(path), h5py.h5f.ACC_TRUNC, creation, access)) as file:
        group = file.create_group("data", track_order=case.tracked)
        late = []
        for k, one in enumerate(case.objects):
            dataset = _make(group, f"object {k:02} " + "long" * (k % 3) * 9, one, case)
            if one.attributes_late:
                late.append((dataset, one))
            else:
                _set_attributes(dataset, one)
        # What is added after other objects were made goes to continuation blocks.
        for dataset, one in late:
            _set_attributes(dataset, one)
        if case.other_links:
            group["soft"] = h5py.SoftLink("/data")
            group["out"] = h5py.ExternalLink("other.h5", "/x")
            group["again"] = group[next(iter(group))]
            group.create_group("below").attrs["number"] = 3


def _make(group: Any, name: str, one: Made, case: HeaderFile) -> Any:
    dtype = DTYPES[one.dtype]
    stored = h5py.h5t.py_create(dtype, logical=True)
    how = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    how.set_obj_track_times(case.times)
    if one.layout == "compact":
        how.set_layout(h5py.h5d.COMPACT)
    if one.layout == "chunked":
        how.set_chunk(tuple(max(1, n * 2 // 3) for n in one.shape))
    if one.early or one.layout == "compact":
        how.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    lzf = (h5py.h5z.FILTER_LZF, h5py.h5z.FLAG_OPTIONAL)
    added = {
        "shuffle": how.set_shuffle,
        "gzip": lambda: how.set_deflate(3),
        "fletcher32": how.set_fletcher32,
        "lzf": lambda: how.set_filter(*lzf),
    }
    for name_of_filter in one.filters:
        added[name_of_filter]()
    if one.fill:
        how.set_fill_value(np.ones((), dtype=dtype))
    space = h5py.h5s.create(h5py.h5s.NULL if one.shape is None else h5py.h5s.SCALAR)
    if one.shape:
        unlimited = h5py.h5s.UNLIMITED
        most = {
            "no": one.shape,
            "first": (unlimited, *one.shape[1:]),
            "every": (unlimited,) * len(one.shape),
            "to more": tuple(n * 3 + 1 for n in one.shape),
        }[one.grows]
        space = h5py.h5s.create_simple(one.shape, most)
    dataset = h5py.Dataset(h5py.h5d.create(group.id, name.encode(), stored, space, how))
    if one.written and one.shape is not None and dtype.kind != "O":
        values = np.frombuffer(
            np.random.default_rng(7).integers(1, 2, dataset.size * dtype.itemsize, np.uint8).tobytes(), dtype=dtype
        )
        dataset.id.write(h5py.h5s.ALL, h5py.h5s.ALL, values.reshape(one.shape).copy(), mtype=stored)
    elif one.written and one.dtype == "text" and one.shape:
        dataset[...] = "some text"
    return dataset


def _set_attributes(dataset: Any, one: Made) -> None:
    values: dict[str, Any] = {
        "number": 1.5,
        "array": np.arange(6).reshape(2, 3),
        "text": "some text",
        "bytes": np.bytes_(b"abc"),
        "empty": h5py.Empty("f4"),
        "compound": np.ones(2, dtype=COMPOUND),
        "big": np.arange(400, dtype="f8"),
        "nothing": np.zeros(0, dtype="i4"),
        "bool": True,
    }
    for k, what in enumerate(one.attributes):
        dataset.attrs[f"{what} {'é' if k % 4 == 3 else k}" if k < 4 else f"{what} {k:02} " + "l" * k * 4] = values[what]


# --- what h5py says -------------------------------------------------------------------------------------------


def compare_with_h5py(path: Path, *, every: bool = True, sound: bool = True) -> collections.Counter[str]:
    """Compare all that we understand of a file with what h5py says, and count how many things went which way.

    What h5py cannot open is not compared; of a file that is not `sound` datatypes are compared with each other alone,
    and where not `every` object is looked at, a few of each kind are.
    """
    counts: collections.Counter[str] = collections.Counter()
    try:
        file = h5py.File(path, "r")
    except _FAILURES:
        counts["file: h5py refuses"] += 1
        return counts
    with file:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            superblock = ours.superblock_of(file, os.fstat(descriptor).st_size)
            raw = ours.raw_of(identity_of(str(path)).open(), superblock)
            addresses = _walk(file, counts)
            names = _attribute_names(file, addresses)
            read = ours.read_headers(raw, np.array(addresses, dtype=np.int64), [*names, "none such"])
            chunks = ours.chunks_of(raw, read)
            _check_shapes_of_arrays(read, chunks, len(addresses))
            seen: collections.Counter[int] = collections.Counter()
            alike: dict[Any, Any] = {}
            for i in range(len(addresses)):
                seen[int(read.kind[i])] += 1
                if every or seen[int(read.kind[i])] <= 20:
                    _compare_object(file, descriptor, addresses[i], i, read, chunks, alike, counts, sound)
        finally:
            os.close(descriptor)
    return counts


def _walk(file: Any, counts: collections.Counter[str]) -> list[int]:
    """Give the addresses of all objects."""
    found: dict[int, None] = {}
    try:
        todo = [int(h5py.h5o.get_info(file.id).addr)]
    except _FAILURES:  # it opens a file whose root it cannot read
        counts["file: h5py refuses"] += 1
        return []
    while todo:
        address = todo.pop()
        if address in found:
            continue
        found[address] = None
        inside: list[int] = []
        with contextlib.suppress(*_FAILURES):
            thing = open_object(file, address)
            if isinstance(thing, h5py.h5g.GroupID):
                thing.links.iterate(
                    lambda _, info, into=inside: into.append(int(info.u)) if info.type == 0 else None, info=True
                )
        todo += [one for one in inside if one < 1 << 63]
    return list(found)


def open_object(file: Any, address: int) -> Any:
    """Open the object at an address, as what it is."""
    ask = libhdf5().H5Oopen_by_addr
    ask.argtypes, ask.restype = [ctypes.c_int64, ctypes.c_uint64], ctypes.c_int64
    number = ask(file.id.id, address)
    if number < 0:
        raise OSError("libhdf5 cannot open it")
    ask_kind = libhdf5().H5Iget_type
    ask_kind.argtypes = [ctypes.c_int64]
    kind = ask_kind(number)
    if kind == h5py.h5i.DATASET:
        return h5py.h5d.DatasetID(number)
    return h5py.h5g.GroupID(number) if kind == h5py.h5i.GROUP else h5py.h5t.TypeID(number)


def _attribute_names(file: Any, addresses: list[int]) -> list[str]:
    names: dict[str, None] = {}
    for address in addresses[:50]:
        try:
            h5py.h5a.iterate(
                open_object(file, address), lambda name: names.setdefault(name.decode(errors="surrogateescape"))
            )
        except _FAILURES:
            continue
        if len(names) > MOST_NAMES:
            break
    return list(names)[:MOST_NAMES]


def _check_shapes_of_arrays(read: Any, chunks: Any, count: int) -> None:
    for name in ("kind", "rank", "dims", "layout", "address", "nbytes", "filter_mask", "understood"):
        assert len(getattr(read, name)) == count, name
    assert {int(k) for k in read.kind if k >= 0} <= set(range(len(read.kinds)))
    assert (np.diff(chunks.owner) >= 0).all()


def _compare_object(
    file: Any,
    descriptor: int,
    address: int,
    i: int,
    read: Any,
    chunks: Any,
    alike: dict[Any, Any],
    counts: Any,
    sound: bool,
) -> None:
    if not read.understood[i]:
        counts["object: not understood"] += 1
        assert not chunks.understood[i]
        return
    try:
        thing = open_object(file, address)
    except _FAILURES:
        counts["object: h5py refuses"] += 1
        return
    if isinstance(thing, h5py.h5g.GroupID):
        assert read.layout[i] == templates.GROUP, "what it is"
        counts["object: the same (group)"] += 1
    else:
        assert isinstance(thing, h5py.h5d.DatasetID), "what it is"
        _compare_dataset(thing, descriptor, i, read, chunks, alike, counts, sound)
    for name, values in read.attributes.items():
        _compare_attribute(thing, name, i, values, descriptor, alike, counts, sound)


def _compare_dataset(
    dataset: Any, descriptor: int, i: int, read: Any, chunks: Any, alike: dict[Any, Any], counts: Any, sound: bool
) -> None:
    try:
        space, creation, stored = dataset.get_space(), dataset.get_create_plist(), dataset.get_type()
        layout, offset, nbytes = creation.get_layout(), dataset.get_offset(), dataset.get_storage_size()
    except _FAILURES:
        counts["object: h5py refuses"] += 1
        return
    empty = space.get_simple_extent_type() == h5py.h5s.NULL
    shape = () if empty else space.get_simple_extent_dims()
    rank = -1 if empty else len(shape)
    assert read.rank[i] == rank, "rank"
    assert tuple(read.dims[i, : max(rank, 0)]) == shape, "dims"
    assert not read.dims[i, max(rank, 0) :].any(), "dims beyond the rank"
    assert read.layout[i] == LAYOUTS[layout], "layout"
    kind = int(read.kind[i])
    # What has a pointer in memory has another size there; so has a damaged compound whose members do not fit.
    if sound and is_fixed(stored):
        assert read.kinds[kind].element_nbytes == stored.get_size(), "bytes of an element"
    assert read.kinds[kind].filters == creation.get_nfilters(), "filters"
    _compare_kind(stored, creation, (rank, layout), alike.setdefault((None, kind), []))
    if layout == h5py.h5d.CHUNKED:
        assert tuple(read.chunk[i, :rank]) == creation.get_chunk(), "shape of chunks"
        _compare_chunks(dataset, shape, creation.get_chunk(), i, read, chunks, counts)
    elif layout == h5py.h5d.CONTIGUOUS:
        # libhdf5 adds the user block also to the address that stands for none.
        none = offset is None or offset == h5py.h5i.get_file_id(dataset).get_create_plist().get_userblock() - 1
        assert read.address[i] == (templates.NOWHERE if none else offset), "address"
        assert read.nbytes[i] == nbytes, "stored bytes"
    else:
        assert read.nbytes[i] == nbytes, "stored bytes"
        _compare_bytes(dataset, shape, stored, descriptor, read.address[i], nbytes, sound)
    counts[f"object: the same ({'group' if layout is None else ['compact', 'contiguous', 'chunked'][layout]})"] += 1


def _compare_kind(stored: Any, creation: Any, more: Any, known: list[Any]) -> None:
    """Compare what objects of one kind are said to have in common."""
    try:
        pipeline = [creation.get_filter(k) for k in range(creation.get_nfilters())] if creation is not None else []
        fill = creation.fill_value_defined() if creation is not None else None
        facts = (more, stored.encode(), pipeline, fill)
    except _FAILURES:
        return
    known.append(facts)
    assert facts == known[0], "one kind"


def _compare_bytes(
    thing: Any, shape: Any, stored: Any, descriptor: int, address: int, nbytes: int, sound: bool
) -> None:
    """Compare bytes of the file with the stored bytes that h5py reads."""
    if not is_fixed(stored) or not nbytes:
        return
    values = np.zeros(shape, dtype=f"V{stored.get_size()}")
    if values.nbytes != nbytes and not sound:
        return  # a damaged compound, of which libhdf5 makes one of another size
    try:
        if isinstance(thing, h5py.h5a.AttrID):
            thing.read(values, mtype=stored)
        else:
            thing.read(h5py.h5s.ALL, h5py.h5s.ALL, values, mtype=stored)
    except _FAILURES:
        return
    assert os.pread(descriptor, nbytes, address) == values.tobytes(), "bytes"


def is_fixed(stored: Any) -> bool:
    """Tell whether values of a type are all bytes of their own."""
    return not (stored.detect_class(h5py.h5t.VLEN) or stored.detect_class(h5py.h5t.REFERENCE)) and not (
        stored.detect_class(h5py.h5t.STRING) and _has_text(stored)
    )


def _has_text(stored: Any) -> bool:
    if isinstance(stored, h5py.h5t.TypeStringID):
        return stored.is_variable_str()
    if isinstance(stored, h5py.h5t.TypeCompoundID):
        return any(_has_text(stored.get_member_type(k)) for k in range(stored.get_nmembers()))
    return _has_text(stored.get_super()) if isinstance(stored, h5py.h5t.TypeArrayID) else False


def _compare_chunks(dataset: Any, shape: Any, chunk: Any, i: int, read: Any, chunks: Any, counts: Any) -> None:
    ask = libhdf5().H5Dget_chunk_index_type
    ask.argtypes = [ctypes.c_int64, ctypes.POINTER(ctypes.c_int)]
    index = ctypes.c_int()
    assert ask(dataset.id, ctypes.byref(index)) >= 0
    assert read.kinds[read.kind[i]].index == index.value, "kind of index"
    if not chunks.understood[i]:
        counts[f"chunks: not understood ({index.value})"] += 1
        assert i not in chunks.owner
        return
    try:
        count = dataset.get_num_chunks()
        found = [dataset.get_chunk_info(k) for k in range(min(count, 300))]
    except _FAILURES:
        counts["chunks: h5py refuses"] += 1
        return
    if 0 in shape:  # nothing can be read of it, whatever its index lists
        counts["chunks: of no elements"] += 1
        return
    mine = np.flatnonzero(chunks.owner == i)
    assert len(mine) == count, "number of chunks"
    grid = tuple(-(-n // c) for n, c in zip(shape, chunk, strict=True))
    for k, info in zip(mine, found, strict=False):
        place = tuple(start // c for start, c in zip(info.chunk_offset, chunk, strict=True))
        assert chunks.number[k] == np.ravel_multi_index(place, grid), "chunk number"
        assert chunks.offset[k] == info.byte_offset, "chunk address"
        assert chunks.nbytes[k] == info.size, "chunk bytes"
        assert chunks.filter_mask[k] == info.filter_mask, "filter mask"
        assert _finds_chunk(dataset, info.chunk_offset), "a chunk that libhdf5 lists and does not find"
    counts[f"chunks: the same ({index.value})"] += 1


def _finds_chunk(dataset: Any, start: tuple[int, ...]) -> bool:
    """Tell whether libhdf5 looks a chunk up and finds it; an error is no answer."""
    try:
        dataset.read_direct_chunk(start, out=bytearray(0))
    except (RuntimeError, OSError) as error:
        return not any(text in str(error) for text in ("not allocated", "isn't defined"))
    except ValueError:  # it is larger than nothing
        pass
    return True


def _lists(thing: Any, name: bytes) -> bool:
    names: list[bytes] = []
    try:
        h5py.h5a.iterate(thing, names.append)
    except _FAILURES:
        return not h5py.h5a.exists(thing, name)
    return name in names


def _compare_attribute(
    thing: Any, name: str, i: int, values: Any, descriptor: int, alike: dict[Any, Any], counts: Any, sound: bool
) -> None:
    address = int(values.address[i])
    encoded = name.encode(errors="surrogateescape")
    if address == ours.ASK:
        counts["attribute: must be asked for"] += 1
        return
    try:
        there = h5py.h5a.exists(thing, encoded)
        attribute = h5py.h5a.open(thing, encoded) if there else None
    except _FAILURES:
        counts["attribute: h5py refuses"] += 1
        return
    if there != (address != ours.ABSENT) and _lists(thing, encoded) != there:
        counts["attribute: h5py contradicts itself"] += 1  # a damaged tree lists a name that it does not lead to
        return
    assert there == (address != ours.ABSENT), "whether there is an attribute"
    if attribute is None:
        assert values.kind[i] == -1
        return
    stored, space = attribute.get_type(), attribute.get_space()
    if values.nbytes[i]:  # h5py takes 0 for an error
        assert attribute.get_storage_size() == values.nbytes[i], "bytes of an attribute"
    else:
        assert not space.get_simple_extent_npoints(), "bytes of an attribute"
    shape = () if space.get_simple_extent_type() == h5py.h5s.NULL else space.get_simple_extent_dims()
    _compare_kind(stored, None, shape, alike.setdefault((name, int(values.kind[i])), []))
    _compare_bytes(attribute, shape, stored, descriptor, address, int(values.nbytes[i]), sound)
    counts["attribute: the same"] += 1
