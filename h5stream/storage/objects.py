"""Objects that are alike, read as rows of one dataset: of each, where its chunks lie, and what it has besides.

The first object is opened like any dataset, with every check. Of the others only what may differ is looked at: type,
shape, chunks, filters, and the addresses of their bytes. Together they are one dataset with an axis more, whose chunks
are theirs.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import h5py
import numpy as np
from numpy.typing import NDArray

from h5stream.errors import FieldLengthError, FieldNotFoundError
from h5stream.samples.objects import Objects
from h5stream.storage import whereabouts
from h5stream.storage.agreement import FileParts
from h5stream.storage.catalogue import Catalogue
from h5stream.storage.discovery import dataset_at, is_attribute, is_there, once_of, thing_at
from h5stream.storage.elements import is_stored_as
from h5stream.storage.extents import Extents
from h5stream.storage.external import Guard
from h5stream.storage.field_reader import FieldReader
from h5stream.storage.fields import Field, SampleShape
from h5stream.storage.headers import Headers, chunks_of
from h5stream.storage.index import INDEX_UNREADABLE, ChunkIndex, beyond_end, fill_of, found_chunks, offset_of
from h5stream.storage.layout import DECODED, DIRECT, DatasetPart, Target
from h5stream.storage.lookups import LookedUp
from h5stream.storage.names import Names
from h5stream.storage.object_rows import object_rows, part_of_bytes
from h5stream.storage.places import OpenFile
from h5stream.storage.rowbox import column_pieces
from h5stream.storage.templates import COMPACT, CONTIGUOUS, NOWHERE
from h5stream.storage.values import as_samples_have_it, kind_of, same
from h5stream.storage.whereabouts import RawFile

Ints = NDArray[np.int64]
Columns4 = tuple[Ints, Ints, Ints, Ints]
"""Of chunks: number, offset, bytes, filter mask."""

_NONE = np.zeros(0, dtype=np.int64)
NO_CHUNKS: Columns4 = (_NONE, _NONE, _NONE, _NONE)


def are_mergeable(first: FileParts, group: str) -> bool:
    """Tell whether objects may be read as rows of one dataset, by the first of them."""
    return all(
        not part.pieces
        or (part.heap is not None and bool(part.objects))
        or ((part.access in (DIRECT, DECODED) and part.index is not None) and _is_inside(part.path, group))
        for part in first.parts
    )


def _is_inside(path: str, group: str) -> bool:
    return path == group or path.startswith(f"{group}/") or not group


def merged(
    raw: RawFile,
    first: FileParts,
    names: Sequence[str],
    row_start: int,
    addresses: dict[str, Ints],
    describe: Callable[[str], FileParts],
) -> FileParts:
    """Return the parts of objects of one file that are like the first of them."""
    parts, paths = [], Names(names.text, names.edges) if isinstance(names, Names) else Names.of(names)
    for number, part in enumerate(first.parts):
        if not part.pieces:  # nothing is read of it
            parts.append(replace(part, rows=len(names), row_start=row_start, objects=paths))
            continue
        suffix = part.path[len(names[0]) :]
        if part.heap is not None:
            every = [f"{name}{suffix}" for name in names] if suffix else names
            parts.append(part_of_bytes(raw, part.file, row_start, every, [*part.targets], addresses[suffix]))
            continue
        index = _index_of(raw, part, names, suffix, addresses[suffix])
        targets = _targets(raw, part, number, index, names, addresses[suffix], describe)
        asked = int(raw.catalogue.arrays[f"{suffix} asked"][0])
        one = replace(part, path=f"{names[0]}{suffix}", row_start=row_start, objects=paths, asked=asked)
        parts.append(as_rows(one, index, targets))
    if len(names) >= whereabouts.MANY and not raw.catalogue.is_kept:
        raw.catalogue.put_texts("names", paths)
    return _by_address(replace(first, rows=len(names), parts=tuple(parts)))


def _targets(
    raw: RawFile,
    part: DatasetPart,
    number: int,
    index: ChunkIndex,
    names: Sequence[str],
    addresses: Ints,
    describe: Callable[[str], FileParts],
) -> tuple[Target, ...]:
    """Return what a part fills, with the value that stands for what was never written.

    Libhdf5 is asked for it, of an object of which something was not; of one that is not there its kind has to do.
    """
    lacking = np.bincount(index.numbers // index.columns, minlength=len(names)) < index.columns
    if len(addresses):
        if (some := np.flatnonzero(lacking & (addresses == NOWHERE))).size == lacking.sum():
            return with_fill(raw.file[part.path], part.targets) if len(some) else part.targets
        lacking &= addresses != NOWHERE
    if not lacking.any():
        return part.targets
    return targets_like(part, describe(names[int(np.flatnonzero(lacking)[0])]).parts[number])


def targets_like(part: DatasetPart, lacking: DatasetPart) -> tuple[Target, ...]:
    """Return what a part fills, from a dataset with something never written; refuse one that h5py has to read."""
    if lacking.access != part.access:
        raise UnlikeError(lacking.path)
    return lacking.targets


def with_fill(dataset: Any, targets: tuple[Target, ...]) -> tuple[Target, ...]:
    """Let targets be filled with a dataset's fill value."""
    element = np.frombuffer(fill_of(dataset.id)[2], np.uint8)
    return tuple(
        target if target.leaf is None or not len(element) else replace(target, fill=element[target.leaf.places])
        for target in targets
    )


def _by_address(found: FileParts) -> FileParts:
    """Let rows follow one another as their objects lie in the file, so that neighbours are read together."""
    lead = max(found.parts, key=lambda part: part.stored_row_nbytes)
    index = lead.index
    if not lead.pieces or index is None or not len(index.numbers):
        return found
    chunks = np.arange(found.rows) * index.columns
    stored = np.minimum(np.searchsorted(index.numbers, chunks), len(index.numbers) - 1)
    order = np.argsort(index.offset[stored], kind="stable")
    if (np.diff(order) > 0).all():
        return found
    row = np.empty_like(order)
    row[order] = np.arange(found.rows)
    names = cast(Names, lead.objects).taken(order)
    parts = [_with_rows(part, row, order, names) for part in found.parts]
    return replace(found, parts=tuple(parts), anchors=row)


def _with_rows(part: DatasetPart, row: Ints, by_row: Ints, names: Names) -> DatasetPart:
    """Give each object of a part another row; `by_row` are the objects in turn."""
    if not part.pieces or part.index is None:
        return replace(part, objects=names)
    index, suffix = part.index, part.path[len(part.objects[0]) :]
    of, inner = np.divmod(index.numbers, index.columns)
    numbers = row[of] * index.columns + inner
    is_plain = index.columns == 1 and len(numbers) == len(row)
    order = by_row if is_plain else np.argsort(numbers, kind="stable")
    columns = {name: getattr(index, name)[order] for name in ("offset", "nbytes", "filter_mask")}
    return replace(
        part, path=f"{names[0]}{suffix}", objects=names, index=replace(index, numbers=numbers[order], **columns)
    )


def as_rows(part: DatasetPart, index: ChunkIndex, targets: tuple[Target, ...]) -> DatasetPart:
    """Return the part whose rows are datasets like that of the first object, of which the same is wanted of each."""
    wanted = tuple(list(along.offsets) for along in part.along)
    columns = None if wanted == tuple(list(range(count)) for count in part.shape) else wanted
    pieces, rows = column_pieces(part.shape, index.chunk_shape[1:], columns), index.shape[0]
    part = replace(part, rows=rows, chunk_rows=1, index=index, columns=columns, pieces=pieces, targets=targets)
    return replace(part, shape=index.shape, along=())


def _index_of(raw: RawFile, part: DatasetPart, names: Sequence[str], suffix: str, addresses: Ints) -> ChunkIndex:
    """Collect the chunks of one dataset of each object."""
    first = part.index
    assert first is not None
    like, parts = Like(raw.file[part.path], part), list[Columns4]()
    alike, kept = np.zeros(len(names), dtype=bool), kept_chunks(raw.catalogue, part, suffix, like, len(names))
    if kept is not None:
        alike[:], parts = True, [kept]
    elif len(names) >= whereabouts.MANY:
        headers = raw.headers(addresses)
        alike = like.are_alike(headers)
        parts = [like.stored(headers, alike) if like.chunks is None else chunked(raw.given, headers, alike)]
    # What is not understood, or unlike the first, is asked of libhdf5, and some of what is not, to be sure of it.
    asked = np.flatnonzero(~alike & (addresses != NOWHERE)) if len(addresses) else np.flatnonzero(~alike)
    parts += [like.asked(raw, k, names[k] + suffix) for k in asked.tolist()]
    for k in whereabouts.checked(len(names), is_kept=kept is not None):
        if alike[k]:
            like.compare(raw, k, names[k] + suffix, parts[0])
    found = like.index(len(names), in_order(parts))
    beyond = beyond_end(found.offset, found.nbytes, raw.superblock.file_nbytes)
    if len(beyond):
        name = names[int(found.numbers[beyond[0]]) // first.chunks]
        raise FieldLengthError(
            f"{raw.file.filename!r}: the bytes of {name + suffix!r} are said to lie beyond the file's end", field=name
        )
    arrays = raw.catalogue.arrays
    if kept is None:
        arrays |= {f"{suffix} {name}": getattr(found, name) for name in KEPT}
        arrays[f"{suffix} asked"] = np.array([len(asked) if len(names) >= whereabouts.MANY else 0])
    return found


def in_order(several: list[Columns4]) -> Columns4:
    """Put chunks together, by their numbers."""
    columns = [np.concatenate(each) for each in zip(*several, strict=True)]
    order = np.argsort(columns[0], kind="stable")
    numbers, offset, nbytes, mask = (column[order] for column in columns)
    return numbers, offset, nbytes, mask


KEPT = ("numbers", "offset", "nbytes", "filter_mask")


def kept_chunks(catalogue: Catalogue, part: DatasetPart, suffix: str, like: Like, count: int) -> Columns4 | None:
    """Return the chunks that the catalogue has, if they may be those of so many objects; None where it has none."""
    if not catalogue.is_kept:
        return None
    numbers, offset, nbytes, mask = (catalogue.arrays[f"{suffix} {name}"].astype(np.int64) for name in KEPT)
    sound = len(numbers) == len(offset) == len(nbytes) == len(mask) and (np.diff(numbers) > 0).all()
    if not sound or (len(numbers) and not 0 <= numbers[0] <= numbers[-1] < count * like.across):
        raise ValueError(suffix)
    whole = part.chunk_nbytes if like.chunks is not None else like.sizes[numbers % like.across]
    if part.access == DIRECT and (nbytes != whole).any():
        raise ValueError(suffix)
    return numbers, offset, nbytes, mask


def chunked(givens: Ints, headers: Headers, alike: NDArray[np.bool_]) -> Columns4:
    """Return the chunks of objects whose index is understood; the others are alike no more."""
    which = np.flatnonzero(alike)
    if not len(which):
        return NO_CHUNKS
    chunks = chunks_of(givens, headers, which)
    alike[which[~chunks.understood]] = False
    grid = -(-headers.dims[0, : headers.rank[0]] // np.array(headers.kinds[headers.kind[0]].chunk_shape))
    numbers = chunks.owner * int(np.prod(grid)) + chunks.number
    return numbers, chunks.offset, chunks.nbytes, chunks.filter_mask.astype(np.int64)


class Like:
    """What a dataset of every object has in common with the first's."""

    def __init__(self, whole: Any, part: DatasetPart) -> None:
        assert part.index is not None
        self.first, self.across, self._index = whole.name, part.index.chunks, part.index
        cuts = np.arange(self.across, dtype=np.int64)
        row_nbytes = part.stored_element_nbytes * int(np.prod(part.index.shape[1:], dtype=object))
        self.cuts, self.cut_nbytes = cuts, cuts * (part.index.chunk_shape[0] * row_nbytes)
        cut_rows = np.minimum(part.index.chunk_shape[0], part.index.shape[0] - cuts * part.index.chunk_shape[0])
        self.sizes = cut_rows * row_nbytes
        self.type, self.shape, self.fill = whole.id.get_type(), whole.shape, fill_of(whole.id)
        creation = whole.id.get_create_plist()
        self.layout, self.chunks, self.filters = _stored_as(creation)
        if self.layout == h5py.h5d.COMPACT:  # libhdf5 does not tell where these lie
            raise UnlikeError(self.first)

    def index(self, count: int, chunks: Columns4) -> ChunkIndex:
        """Return the index of the chunks of so many."""
        first, (numbers, offset, nbytes, mask) = self._index, chunks
        return ChunkIndex(
            shape=(count, *first.shape),
            chunk_shape=(1, *first.chunk_shape),
            grid=(count, *first.grid),
            numbers=numbers,
            offset=offset,
            nbytes=nbytes,
            filter_mask=mask.astype(np.uint32),
        )

    def check(self, opened: Any, name: str, first: str, path: str) -> None:
        """Refuse a dataset that is unlike the first."""
        if opened.shape != self.shape or not opened.get_type().equal(self.type):
            raise FieldLengthError(
                f"{path!r}: {name!r} holds {opened.dtype} {opened.shape}, and {first.strip('/')!r} {self.type.dtype} "
                f"{self.shape}, and objects are to be alike. Field(..., ragged='pad') takes unlike lengths; "
                "leave out what is otherwise unlike: Objects([...]) takes names",
                field=name,
                file=path,
            )
        if _stored_as(opened.get_create_plist()) != (self.layout, self.chunks, self.filters):
            raise UnlikeError(name)

    def are_alike(self, headers: Headers) -> NDArray[np.bool_]:
        """Tell which objects are stored like the first, which libhdf5 has opened, of those that are understood."""
        kind = headers.kind[0]
        alike = (headers.kind == kind) & (headers.kind >= 0) & (headers.dims == headers.dims[0]).all(axis=1)
        if kind < 0 or headers.kinds[kind].element_nbytes != self.type.get_size():
            alike[:] = False
        if self.chunks is None:
            alike &= (headers.address == NOWHERE) | (headers.nbytes == self.sizes.sum())
        return np.asarray(alike)

    def stored(self, headers: Headers, alike: NDArray[np.bool_]) -> Columns4:
        """Return where contiguous objects lie, cut as the first is."""
        which = np.flatnonzero(alike & (headers.address != NOWHERE))
        return self._cut(which, headers.address[which])

    def _cut(self, which: Ints, address: Ints) -> Columns4:
        numbers = which[:, None] * self.across + self.cuts
        nbytes = np.broadcast_to(self.sizes, numbers.shape)
        found = numbers, address[:, None] + self.cut_nbytes, nbytes, np.zeros_like(numbers)
        return tuple(each.reshape(-1) for each in found)  # type: ignore[return-value]

    def asked(self, raw: RawFile, k: int, name: str) -> Columns4:
        """Return the chunks of one object, as libhdf5 has them."""
        return self.of(dataset_at(raw.file, name, raw.file.filename), k, name, raw.file.filename)

    def of(self, opened: Any, k: int, name: str, path: str) -> Columns4:
        """Return the chunks of an opened object, as libhdf5 has them."""
        self.check(opened, name, self.first, path)
        if self.chunks is None:
            where = offset_of(opened)
            self._check_fill(opened, name, is_whole=where is not None)
            there = np.array([[k, where or 0]], dtype=np.int64)[: where is not None]
            return self._cut(there[:, 0], there[:, 1])
        try:
            some = found_chunks(opened)
        except INDEX_UNREADABLE:
            raise UnlikeError(name) from None
        self._check_fill(opened, name, is_whole=len(some) == self.across)
        return some[:, 0] + k * self.across, some[:, 1], some[:, 2], some[:, 3]

    def _check_fill(self, opened: Any, name: str, *, is_whole: bool) -> None:
        """Refuse an object of which something was never written, and stands for another value than in the first."""
        if not is_whole and fill_of(opened) != self.fill:
            raise UnlikeError(name)

    def compare(self, raw: RawFile, k: int, name: str, found: Columns4) -> None:
        """Refuse what was found from the file's bytes if libhdf5 sees it otherwise."""
        if not self.agree(k, found, self.asked(raw, k, name)):
            raise UnlikeError(name)

    def agree(self, k: int, found: Columns4, said: Columns4) -> bool:
        """Tell whether libhdf5 says of one object's chunks what was found."""
        ours = slice(*np.searchsorted(found[0], [k * self.across, (k + 1) * self.across]).tolist())
        return all(np.array_equal(a[ours], b) for a, b in zip(found, said, strict=True))


class UnlikeError(Exception):
    """Objects that are stored in another way than the first: they are read one by one."""


def _stored_as(creation: Any) -> tuple[int, Any, tuple[Any, ...]]:
    layout = creation.get_layout()
    if layout not in (h5py.h5d.CONTIGUOUS, h5py.h5d.CHUNKED) or creation.get_external_count():
        return layout, "elsewhere", ()
    chunks = creation.get_chunk() if layout == h5py.h5d.CHUNKED else None
    return layout, chunks, tuple(creation.get_filter(k) for k in range(creation.get_nfilters()))


def attributes_of(shape: SampleShape) -> tuple[str, ...]:
    """Return the attributes of the objects themselves that are fields."""
    named = (f.name.rpartition("@") for f in shape.fields if isinstance(f, Field))
    return tuple(attribute for inner, at, attribute in named if at and not inner.strip("/."))


def objects_of(
    opened: OpenFile,
    raw: RawFile,
    shape: SampleShape,
    names: Sequence[str],
    samples: Objects,
    row_start: int,
    looked_up: dict[int, LookedUp],
) -> FileParts | None:
    """Return the objects of a file as rows; None where they have to be looked at one by one."""
    try:
        return _objects_of(opened, raw, shape, names, samples, row_start, looked_up)
    except FieldNotFoundError:
        if samples.missing != "skip":
            raise
        names = [name for name in names if _has_attributes(opened.file, shape, name)]
    return _objects_of(opened, raw, shape, names, samples, row_start, looked_up)


def _objects_of(
    opened: OpenFile,
    raw: RawFile,
    shape: SampleShape,
    names: Sequence[str],
    samples: Objects,
    row_start: int,
    looked_up: dict[int, LookedUp],
) -> FileParts | None:
    place: Ints | None = None
    if samples.missing != "error" and not raw.catalogue.is_kept:
        names, place = _with_all_fields(opened.file, shape, names, fill=samples.missing == "fill")
    if not names or any(isinstance(f, Field) and f.is_looked_up for f in shape.fields):
        return None
    own: dict[int, LookedUp] = {}

    def describe(name: str) -> FileParts:
        own.clear()
        return FieldReader(opened, row_start, samples, Extents.of(samples), own).read(shape.inside(name), name)

    first = describe(names[0])
    ragged = {place: known.parts[0].path[len(names[0]) :] for place, known in own.items()}
    suffixes = [part.path[len(names[0]) :] for part in first.parts if part.pieces]
    if not are_mergeable(first, names[0]) or not all(_is_inside(k.parts[0].path, names[0]) for k in own.values()):
        return None
    listed = names.addresses if isinstance(names, Names) else None
    read = {*suffixes, *ragged.values()}
    addresses = dict.fromkeys(["", *read], np.zeros(0, dtype=np.int64))
    if not raw.catalogue.is_kept:
        addresses[""] = raw.addresses(names) if listed is None else listed
        addresses |= {suffix: raw.inside(names, suffix) for suffix in read if suffix}
    must_be = [""] if samples.missing == "fill" else [*addresses]
    if any((addresses[suffix] == NOWHERE).any() for suffix in must_be):
        return None
    try:
        together = merged(raw, first, names, row_start, addresses, describe)
    except UnlikeError:
        return None
    pairs = zip(first.entries, shape.fields, strict=True)
    by_number = {entry: field for entry, field in pairs if isinstance(entry, int)}
    once = tuple(
        (number, _values_kept(raw, names, by_number[number], addresses, value)) for number, value in first.once
    )
    for key, suffix in ragged.items():
        known = looked_up.setdefault(key, LookedUp(name=own[key].name, crop=own[key].crop))
        known.entry, known.is_given = own[key].entry, True
        described = functools.partial(_one_field, opened, samples, row_start, shape.fields[key])
        found = _rows_of(raw, known, described, names, suffix, addresses[suffix])
        known.add_rows(*(each if place is None else each[place] for each in found))
    together = replace(together, once=once, are_objects=True)
    return together if place is None else _in_their_order(together, place)


def _one_field(opened: OpenFile, samples: Objects, row_start: int, field: Any, name: str) -> LookedUp:
    """Describe a ragged field of one object: of many that are unlike, the other fields' need not be read again."""
    found: dict[int, LookedUp] = {}
    alone = SampleShape(kind="dict", keys=(field.name,), fields=(field,)).inside(name)
    FieldReader(opened, row_start, samples, Extents.of(samples), found).read(alone, name)
    return found[0]


def _rows_of(
    raw: RawFile,
    known: LookedUp,
    read: Callable[[str], LookedUp],
    names: Sequence[str],
    suffix: str,
    addresses: Ints,
) -> tuple[Ints, Ints]:
    """Find the rows that objects have of a ragged field: the first of each, and how many."""

    def described(path: str) -> DatasetPart:
        one = read(path.removesuffix(suffix))
        known.check_alike(one.layouts, f"{raw.file.filename}:{path}")
        return one.parts[0].with_fields({one.entry: known.entry})

    paths = [f"{name}{suffix}" for name in names] if suffix else names
    return known.add_objects(object_rows(raw, paths, addresses, suffix, described))


def _has_attributes(file: Any, shape: SampleShape, name: str) -> bool:
    """Tell whether an object has all attributes that are fields."""
    named = (one.inside(name).name.rpartition("@") for one in shape.fields if isinstance(one, Field))
    owners = ((thing_at(file, path.strip("/") or "/", file.filename), attribute) for path, at, attribute in named if at)
    return all(owner is not None and attribute in owner.attrs for owner, attribute in owners)


def _with_all_fields(
    file: Any, shape: SampleShape, names: Sequence[str], *, fill: bool
) -> tuple[Sequence[str], Ints | None]:
    """Leave out objects that lack a field; or let one that has all come first, and give the place of each."""
    wanted = [f.name for f in shape.fields if isinstance(f, Field) and "@" not in f.name and not f.is_itself]

    def has_all(name: str) -> bool:
        return all(is_there(file, f"{name}/{suffix}", file.filename) for suffix in wanted)

    if not fill:
        return [name for name in names if has_all(name)], None
    first = next((k for k, name in enumerate(names) if has_all(name)), 0)
    if first == 0:
        return names, None
    order = np.concatenate([[first], np.delete(np.arange(len(names)), first)])
    return [names[k] for k in order.tolist()], np.argsort(order)


def _in_their_order(found: FileParts, place: Ints) -> FileParts:
    """Give objects the numbers that they were asked for by; `place` says where each is."""
    rows = np.arange(found.rows) if found.anchors is None else found.anchors
    once = tuple(
        (number, values[place] if isinstance(values, np.ndarray) else [values[k] for k in place])
        for number, values in found.once
    )
    return replace(found, anchors=rows[place], once=once)


def _values_kept(raw: RawFile, names: Sequence[str], given: Any, known: dict[str, Ints], value: Any) -> Any:
    """Return what each object has once, kept in the catalogue or not; some are compared with what libhdf5 gives."""
    catalogue, key = raw.catalogue, f"value {given.name}"
    if not catalogue.is_kept:
        values = _values(raw, names, given, known, value)
        catalogue.put(key, values)
        return values
    kept = catalogue.values(key, len(names), np.shape(value))
    some = [*whereabouts.checked(len(names))]
    said = _values(raw, [names[k] for k in some], given, {}, value)
    if not same(kept[:: whereabouts.CHECKED_EVERY], said):
        raise ValueError(key)
    return kept


def _values(raw: RawFile, names: Sequence[str], given: Any, known: dict[str, Ints], value: Any) -> Any:
    """Return what each object has once, an attribute or a dataset that is a value: an array, or a list."""
    file = raw.file
    is_named = is_attribute(file, given.inside(names[0]).name, file.filename)
    inner, _, attribute = given.name.rpartition("@") if is_named else (given.name, "", "")
    inner = inner.strip("/.")

    def value_at(k: int) -> Any:
        name = given.inside(names[k]).name
        return check_like_first(value_of(file, name, raw.guard, is_attribute=is_named), value, name, file.filename)

    if not isinstance(value, np.ndarray):
        return [value_at(k) for k in range(len(names))]
    values, left = np.empty((len(names), *value.shape), value.dtype), np.arange(len(names))
    if len(names) >= whereabouts.MANY:
        place = f"/{inner}" if inner else ""
        addresses = known[place] if place in known else raw.inside(names, inner)
        headers = raw.headers(addresses, (attribute,) if attribute else ())
        stored = stored_type(file, given.inside(names[0]).name, is_attribute=is_named)
        if stored is not None:
            address, there = values_in(headers, attribute, stored, value)
            some = np.flatnonzero(there)
            read = raw.read_each(address[some], stored.base.itemsize * value.size).view(stored.base)
            values[some], left = read.reshape(len(some), *value.shape), np.flatnonzero(~there)
    for k in left.tolist():
        values[k] = value_at(k)
    return values


def check_like_first(one: Any, value: Any, name: str, path: str) -> Any:
    """Return a value; refuse one of another type or shape than that of the first object."""
    is_array = isinstance(value, np.ndarray)
    if kind_of(one) == kind_of(value) and not (is_array and (one.shape, one.dtype) != (value.shape, value.dtype)):
        return one
    said = (f"{each.dtype} {each.shape}" if isinstance(each, np.ndarray) else kind_of(each) for each in (one, value))
    raise FieldLengthError(
        f"{path!r}: {name!r} is {next(said)}, and that of the first object {next(said)}, and objects are to be alike",
        field=name,
        file=path,
    )


def values_in(headers: Headers, attribute: str, stored: np.dtype[Any], value: Any) -> tuple[Ints, NDArray[np.bool_]]:
    """Return where values lie that are like the first one's, an attribute's or a dataset's, and which are."""
    found = headers.attributes[attribute] if attribute else headers
    there = (found.kind == found.kind[0]) & (found.kind >= 0) & (found.address >= 0)
    if not attribute:
        there &= (headers.layout == CONTIGUOUS) | (headers.layout == COMPACT)
        there &= (headers.rank == headers.rank[0]) & (headers.dims == headers.dims[0]).all(axis=1)
    return found.address, there & there[0] & (found.nbytes[0] == stored.base.itemsize * value.size)


def stored_type(file: Any, name: str, *, is_attribute: bool) -> np.dtype[Any] | None:
    """Return the type that numbers are stored with; None where only libhdf5 makes NumPy's out of their bytes."""
    owner, _, attribute = name.rpartition("@")
    opened = file[owner.strip("/") or "/"].attrs.get_id(attribute) if is_attribute else file[name].id
    dtype = np.dtype(opened.dtype)
    return dtype if is_stored_as(opened.get_type(), dtype) else None


def value_of(file: Any, name: str, guard: Guard | None, *, is_attribute: bool) -> Any:
    """Return an attribute, or a dataset that is a value, as samples have it; see `once_of`."""
    owner, _, attribute = name.rpartition("@")
    if guard is not None:
        guard.check_links(file, owner if is_attribute else name, file.filename)
    with contextlib.suppress(KeyError, OSError, RuntimeError, ValueError, TypeError, NotImplementedError):
        if is_attribute:
            opened = h5py.h5a.open(h5py.h5o.open(file.id, owner.strip("/").encode() or b"."), attribute.encode())
        else:
            opened = h5py.h5d.open(file.id, name.encode())
        if opened.dtype.kind in "biufc" and opened.dtype.itemsize <= 16 and opened.shape is not None:
            numbers = np.empty(opened.shape, opened.dtype)
            if is_attribute:
                opened.read(numbers)
            else:
                opened.read(h5py.h5s.ALL, h5py.h5s.ALL, numbers)
            return as_samples_have_it(numbers)
    return as_samples_have_it(once_of(file, name, file.filename, guard or Guard(opened=frozenset())))
