"""Listings of files: datasets and groups, how each dataset is stored and read, and clues of its purpose.

If very many objects have similar names, only some are inspected, but all are counted.
"""

from __future__ import annotations

import contextlib
import functools
import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeVar

import h5py
import numpy as np
from numpy.typing import NDArray

from h5stream.base.limits import cached_property
from h5stream.errors import FieldLengthError, H5StreamError
from h5stream.storage.decode.elements import dtype_of, plain_dtype
from h5stream.storage.decode.images import format_of
from h5stream.storage.decode.pipeline import check_stored, pipeline_of
from h5stream.storage.decode.small_floats import name_of
from h5stream.storage.file import discovery
from h5stream.storage.file.external import Guard
from h5stream.storage.file.meanings import packed_by
from h5stream.storage.file.stored import open_hdf5
from h5stream.storage.layout.fields import Field
from h5stream.storage.open.opening import open_layout
from h5stream.storage.source.local import identity_of
from h5stream.storage.source.stores import NOTHING, StoreUsage, store_usage

REFUSED = (
    "refused"  # h5stream cannot read it, as `reason` explains; an access besides `DIRECT`, `DECODED` and `VIA_H5PY`
)
DAMAGED = "damaged"  # the layout of objects that cannot be opened: a dataset, or a group with its contents

# Roles of datasets that are no samples: PyTables' indexes of its tables, dimensions of netCDF without values, and the
# targets of MATLAB's cells.
INDEX, DIMENSION, CELL = "index", "dimension", "cell"

MOST_DATASETS = 2000  # datasets inspected unless all are requested: about two seconds
MOST_COUNTED = 100_000  # objects of a file that are counted exactly, in a second or two; more are estimated
COUNTED_NBYTES = 1 << 23  # bytes of a dataset of integers that is read whole; of larger ones only the ends are read
_WORDS = 8  # texts that are read

_LAYOUTS = {
    h5py.h5d.COMPACT: "compact",
    h5py.h5d.CONTIGUOUS: "contiguous",
    h5py.h5d.CHUNKED: "chunked",
    h5py.h5d.VIRTUAL: "virtual",
}

# Errors of h5py for objects that it cannot read, for whatever reason.
_UNREADABLE = (OSError, RuntimeError, ValueError, TypeError, KeyError, NotImplementedError, MemoryError, H5StreamError)

# Attributes that describe the file format, not a sample.
_BOOKKEEPING = re.compile(
    r"_|[A-Z_0-9]+$|MATLAB_|encoding|FIELD_\d|pandas_|(units|long_name|standard_name|missing_value|nrows|data_columns|"
    r"index_cols|info|levels|metadata|non_index_axes|table_type|values_cols|errors|nblocks|axis\d_variety)$"
)

# Values of the attribute CLASS by which PyTables marks parts of an index, and of NAME for a dimension of netCDF.
_INDEX_CLASSES = (b"INDEXARRAY", b"CACHEARRAY", b"LASTROWARRAY")
_NO_VALUES = b"This is a netCDF dimension but not a netCDF variable"

ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Properties of the numbers in a dataset of integers; of a large one, only its first and last number."""

    first: int
    last: int
    total: int = -1
    least: int = 0
    most: int = 0
    changes: int = -1  # how many differ from their predecessor
    is_rising: bool = True  # whether none is smaller than its predecessor


@dataclass(frozen=True, slots=True, kw_only=True)
class Clues:
    """Hints at the purpose of a dataset."""

    role: str = ""  # INDEX, DIMENSION or CELL if it is not data
    matlab_class: str = ""  # its class in MATLAB
    attributes: tuple[str, ...] = ()  # those that can be fields
    # attributes that define missing numbers, and how others are packed; empty if numbers are plain
    packed: tuple[str, ...] = ()
    image: str = ""  # "jpeg", "png" or "webp" if its first values are such images, "auto" if they differ
    counts: Counts | None = None  # of a dataset of integers with one axis
    columns: tuple[Counts, ...] = ()  # of each column of one with two or three
    words: tuple[str, ...] = ()  # the first texts of a dataset of texts with one axis


@dataclass(frozen=True, slots=True)
class ChunkCache:
    """The limits of h5py's own cache of a dataset's chunks."""

    nbytes: int = 0
    chunks: int = 0


# Figures of a `DatasetEntry` that follow from its fields.
_FIGURES = ("rows", "row_nbytes", "raw_nbytes", "chunk_rows", "chunk_nbytes", "chunks", "chunks_across", "ratio")


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetEntry:
    """A dataset of a file; the defaults describe one that cannot be opened."""

    path: str  # without the leading slash
    shape: tuple[int, ...] | None = None  # None for a null dataspace
    dtype: str = "unknown"  # the type of an element as people write it
    element_nbytes: int = 0
    variable_length: bool = False  # whether elements are in the file's heap
    layout: str = DAMAGED  # or "compact", "contiguous", "chunked", "virtual"
    chunk_shape: tuple[int, ...] | None = None
    filters: str = ""  # as people write them: "shuffle + gzip-4"
    stored_nbytes: int = 0  # without the index and the heap
    stored_chunks: int | None = None  # chunks ever written, if known
    cache: ChunkCache = ChunkCache()
    access: str = REFUSED  # or DIRECT, DECODED, HEAP, VIA_H5PY
    reason: str
    # For a compound, the name and the type of each member, with nested compounds flattened. The names can be used as
    # fields: "obs:bulk_labels", "obs:at:x".
    members: tuple[dict[str, str], ...] = ()
    clues: Clues = Clues()

    def to_dict(self) -> dict[str, object]:
        """Return it as plain containers for JSON, with the figures that follow from others."""
        plain = asdict(self)
        plain |= {f"cache_{name}": value for name, value in plain.pop("cache").items()}
        plain |= {name: plain["clues"].pop(name) for name in ("role", "matlab_class")}
        return plain | {name: getattr(self, name) for name in _FIGURES}

    @property
    def rows(self) -> int | None:
        """Elements along axis 0; None if it has no axes."""
        return self.shape[0] if self.shape else None

    @property
    def row_nbytes(self) -> int:
        """Bytes of one row, without filters."""
        return math.prod(self.inner) * self.element_nbytes if self.shape else 0

    @property
    def raw_nbytes(self) -> int:
        """Bytes of all elements, without filters."""
        return 0 if self.shape is None else math.prod(self.shape) * self.element_nbytes

    @property
    def chunk_rows(self) -> int | None:
        """Rows of a chunk; None if it is not chunked."""
        return self.chunk_shape[0] if self.chunk_shape else None

    @property
    def chunk_nbytes(self) -> int:
        """Bytes of a decoded chunk; 0 if it is not chunked."""
        return math.prod(self.chunk_shape) * self.element_nbytes if self.chunk_shape else 0

    @property
    def chunks(self) -> int:
        """The number of all chunks, stored or not; 0 if it is not chunked."""
        return -(-self.shape[0] // self.chunk_shape[0]) * self.chunks_across if self.chunk_shape and self.shape else 0

    @property
    def chunks_across(self) -> int:
        """The number of chunks that contain one row."""
        return math.prod(-(-n // c) for n, c in zip(self.inner, (self.chunk_shape or ())[1:], strict=False))

    @property
    def ratio(self) -> float | None:
        """The compression ratio of the written data; None if nothing is stored."""
        return (self.stored_nbytes and self.written_nbytes / self.stored_nbytes) or None

    @property
    def inner(self) -> tuple[int, ...]:
        """The shape of a row."""
        return self.shape[1:] if self.shape else ()

    @property
    def axes(self) -> int:
        """The number of axes."""
        return len(self.shape or ())

    @property
    def group(self) -> str:
        """The path of its group, empty for the root."""
        return self.path.rpartition("/")[0]

    @property
    def name(self) -> str:
        """Its name in the group."""
        return self.path.rpartition("/")[2]

    @property
    def is_numbers_of_any_length(self) -> bool:
        """Whether each value is a sequence of numbers, which ``ragged=`` takes."""
        return self.variable_length and re.match(r"sequence of (bool|float|u?int)\d*$", self.dtype) is not None

    @property
    def written_nbytes(self) -> float:
        """Decoded bytes of all elements ever written; the others are the fill value."""
        if self.stored_chunks is None or not self.chunks:
            return float(self.raw_nbytes if self.stored_nbytes else 0)
        return self.raw_nbytes * self.stored_chunks / self.chunks


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupEntry:
    """A group, and how many of its links were inspected; for unknown groups, only those."""

    links: int = 0
    looked_at: int = 0
    dead: tuple[str, ...] = ()  # broken links
    external: dict[str, tuple[str, str]] = field(default_factory=dict)  # links to other files: the file, the path there
    attributes: tuple[str, ...] = ()  # those that can be fields
    sparse: str = ""  # "rows" for a sparse matrix stored by rows; for others the reason why they cannot be streamed
    width: int = 0  # columns of this matrix


@dataclass(frozen=True)
class Listing:
    """The contents of a file, or a part of them; also by path, group and number of rows."""

    path: str
    entries: Sequence[DatasetEntry] = ()  # in the file's order
    groups: dict[str, GroupEntry] = field(
        default_factory=functools.partial(defaultdict, GroupEntry)
    )  # the root's is ""
    left_out: int = 0  # datasets that were not inspected
    asked: StoreUsage = NOTHING  # requests to a store to list it

    def without(self, taken: Collection[str] = ()) -> Listing:
        """Return a copy without datasets that are no data, and without the taken ones."""
        return replace(self, entries=[e for e in self.entries if not e.clues.role and e.path not in taken])

    @cached_property
    def by_path(self) -> dict[str, DatasetEntry]:
        """The datasets by path."""
        return {entry.path: entry for entry in self.entries}

    @cached_property
    def by_group(self) -> dict[str, dict[str, DatasetEntry]]:
        """The datasets of each group by name."""
        groups = defaultdict[str, dict[str, DatasetEntry]](dict)
        for entry in self.entries:
            groups[entry.group][entry.name] = entry
        return groups

    @cached_property
    def by_rows(self) -> dict[int, list[DatasetEntry]]:
        """The datasets of each length, those with most bytes first."""
        by_length = defaultdict[int, list[DatasetEntry]](list)
        for entry in self.entries:
            by_length[entry.rows or 0].append(entry)
        return defaultdict(list, sorted(by_length.items(), key=lambda item: -sum(e.raw_nbytes for e in item[1])))

    @cached_property
    def below(self) -> dict[str, list[str]]:
        """The groups inside each group, at any depth."""
        inner = defaultdict[str, list[str]](list)
        for path in self.groups:
            for depth in range(path.count("/")):
                inner[path.rsplit("/", depth + 1)[0]].append(path)
        return inner

    def count(self, group: str, seen: int) -> int:
        """Return the number of links in a group, of which `seen` similar ones were inspected."""
        return seen + self.groups[group].links - self.groups[group].looked_at


def list_file(
    path: str,
    *,
    most: int | None = None,
    allow_external: bool = False,
    some: Callable[[Sequence[str]], list[str]] = discovery.some_of,
) -> Listing:
    """List the datasets and groups that hard links lead to: all, or at most `most`, and `some` of each group."""
    before = store_usage()
    identity_of(path)
    groups, damaged = defaultdict[str, GroupEntry](GroupEntry), dict[str, str]()

    def chosen(where: str, group: h5py.Group, names: list[str]) -> list[str]:
        wanted = names if most is None else some(names)
        groups[where] = _group_entry(where, group, len(names), wanted)
        return wanted

    # While the file is open, opening it again for each dataset reuses libhdf5's own copy.
    with open_hdf5(path) as file:
        # Only names: each open dataset makes every closing of the file slower.
        names = list(discovery.datasets_of(file, damaged, chosen))
        entries = [_entry(path, name, file[name], allow_external) for name in names[:most]]
        left_out = max(0, _count(file, names, groups) - len(entries))
    why = "it is there, but libhdf5 cannot open it: "
    entries += [DatasetEntry(path=name, reason=f"{why}{message}") for name, message in damaged.items()]
    return Listing(path, entries, groups, left_out, store_usage(before))


def list_files(paths: Sequence[str], *, allow_external: bool = False) -> dict[str, Listing]:
    """List some of several files, evenly spread over them."""
    chosen, most = discovery.spread(paths, discovery.SOME_ALIKE), MOST_DATASETS // discovery.SOME_ALIKE
    return {path: list_file(path, most=most, allow_external=allow_external) for path in chosen}


def describe_dataset(path: str, name: str, *, allow_external: bool = False) -> DatasetEntry:
    """Describe one dataset, possibly behind a soft link."""
    with open_hdf5(path) as file:
        return _entry(path, name, file[name], allow_external)


def root_fields(path: str, *, allow_external: bool = False) -> list[str]:
    """Return the names of the root's datasets, including links, if their lengths agree; else nothing."""
    with open_hdf5(path) as file, contextlib.suppress(FieldLengthError, *_UNREADABLE):
        return discovery.default_fields(file, path, Guard.for_paths((path,), allow_external=allow_external))
    return []


def _count(file: h5py.File, names: Sequence[str], groups: dict[str, GroupEntry]) -> int:
    """Count the datasets of a file; for very many, extrapolate from those found."""
    if all(group.links == group.looked_at for group in groups.values()):
        return len(names)
    seen = Counter[int]()

    def see(name: bytes, info: h5py.h5o.ObjInfo) -> bool | None:
        seen[info.type] += 1
        return True if seen.total() > MOST_COUNTED else None

    with contextlib.suppress(*_UNREADABLE):
        if h5py.h5o.visit(file.id, see, info=True) is None:
            return seen[h5py.h5o.TYPE_DATASET]
    times = {where: group.links / max(1, group.looked_at) for where, group in groups.items()}
    above = (["", *(path[:k] for k, one in enumerate(path) if one == "/")] for path in names)
    return round(sum(math.prod(times.get(group, 1.0) for group in groups_above) for groups_above in above))


# --- groups, attributes -----------------------------------------------------------------------------------


def _or(default: ResultT, function: Callable[..., ResultT], *args: object) -> ResultT:
    """Return the result of a call, or a default if h5py cannot read the object."""
    with contextlib.suppress(*_UNREADABLE):
        return function(*args)
    return default


def _group_entry(path: str, group: h5py.Group, links: int, names: Sequence[str]) -> GroupEntry:
    def is_dead(name: str) -> bool:
        return group.id.links.get_info(name.encode()).type == h5py.h5l.TYPE_SOFT and group.get(name) is None

    def leads_to(name: str) -> tuple[str, str] | None:
        if group.id.links.get_info(name.encode()).type != h5py.h5l.TYPE_EXTERNAL:
            return None
        link = group.get(name, getlink=True)
        return str(link.filename), str(link.path).strip("/")

    sparse, width = "", 0
    if len(names) == links and _or(False, discovery.is_matrix, group):
        try:
            sparse, (_, width) = "rows", discovery.shape_of(group, path, "")
        except H5StreamError as error:
            sparse = str(error).removeprefix("'': ")
        except _UNREADABLE:
            sparse = ""
    return GroupEntry(
        links=links,
        looked_at=len(names),
        external={name: leads for name in names if (leads := _or(None, leads_to, name)) is not None},
        dead=tuple(name for name in names if _or(False, is_dead, name)),
        attributes=_attributes(group),
        sparse=sparse,
        width=width,
    )


def _attributes(item: h5py.Group | h5py.Dataset) -> tuple[str, ...]:
    """Return the names of attributes that can be fields: small, of numbers or text."""

    def can_be_field(name: str) -> bool:
        attribute = item.attrs.get_id(name)
        small = attribute.shape is not None and math.prod(attribute.shape) <= 64
        return small and (attribute.dtype.kind in "iufbS" or h5py.check_string_dtype(attribute.dtype) is not None)

    names: list[str] = _or([], lambda: [name for name in item.attrs if not _BOOKKEEPING.match(name)])
    return tuple(name for name in names[:64] if _or(False, can_be_field, name))


def _attribute(dataset: h5py.Dataset, name: str) -> bytes:
    """Return a text attribute as bytes; empty if there is none, or it is not a text."""
    value: object = _or(b"", dataset.attrs.get, name, b"")
    return value.encode() if isinstance(value, str) else bytes(value) if isinstance(value, bytes) else b""


# --- datasets ---------------------------------------------------------------------------------------------


def _entry(path: str, name: str, dataset: h5py.Dataset, allow_external: bool) -> DatasetEntry:
    counts: tuple[Counts, ...] = _or((), _counts, dataset)
    image = _or("", _image, dataset)
    access, reason, stored_chunks = _access(path, name, allow_external, image)
    creation = dataset.id.get_create_plist()
    cache_chunks, cache_nbytes, _ = dataset.id.get_access_plist().get_chunk_cache()
    dtype: np.dtype | None = _or(None, lambda: plain_dtype(dtype_of(dataset)))
    return DatasetEntry(
        path=name,
        shape=dataset.shape,
        dtype="a type that h5py cannot read" if dtype is None else dtype_text(dtype),
        element_nbytes=int(dataset.id.get_type().get_size()),
        variable_length=dtype is not None and dtype.kind == "O" and h5py.check_ref_dtype(dtype) is None,
        layout=_LAYOUTS.get(creation.get_layout(), "unknown"),
        chunk_shape=dataset.chunks,
        filters=pipeline_of(creation).describe(),
        stored_nbytes=int(_or(0, dataset.id.get_storage_size)),
        stored_chunks=stored_chunks,
        cache=ChunkCache(int(cache_nbytes), int(cache_chunks)),
        access=access,
        reason=reason,
        members=() if dtype is None else tuple(_members(dataset, name, dtype)),
        clues=Clues(
            role=_role(dataset, name),
            matlab_class=_attribute(dataset, "MATLAB_class").decode("ascii", "replace"),
            attributes=_attributes(dataset),
            packed=_or((), packed_by, dataset),
            image=image,
            counts=counts[0] if len(counts) == 1 else None,
            columns=counts[1:] and counts,
            words=_or((), _words, dataset),
        ),
    )


def _members(dataset: h5py.Dataset, name: str, dtype: np.dtype) -> Iterator[dict[str, str]]:
    plain = (one for one, _ in discovery.members_of(name, dtype))
    rivals = [one for one in plain if discovery.is_there(dataset.file, one, dataset.file.filename)]
    for one, inner in discovery.members_of(name, dtype, rivals):
        if not inner.names:
            yield {"name": one, "dtype": dtype_text(inner)}


def _role(dataset: h5py.Dataset, name: str) -> str:
    if discovery.is_bookkeeping(name) or _attribute(dataset, "CLASS") in _INDEX_CLASSES:
        return INDEX
    is_dimension = _attribute(dataset, "NAME").startswith(_NO_VALUES)
    return CELL if name.startswith("#refs#/") else DIMENSION if is_dimension else ""


def _access(path: str, name: str, allow_external: bool, image: Any) -> tuple[str, str, int | None]:
    """Determine the access by opening the dataset as a loader would."""
    refusal = ""
    for wanted in (name, Field(name, decode=image)) if image else (name,):  # opaque values can only be read as images
        try:
            part = open_layout(path, wanted, allow_external=allow_external).datasets[0][0]
        except H5StreamError as error:
            # Without the names of the file and the dataset, which are in the listing.
            prefix = f"({re.escape(repr(path))})?:?,? ?(field )?(dataset )?({re.escape(repr(name))})?:? ?"
            refusal = refusal or re.sub(f"^{prefix}", "", str(error))
        except _UNREADABLE as error:
            refusal = refusal or f"h5py cannot read it: {error}"
        else:
            return part.access, part.reason, None if part.index is None else len(part.index.numbers)
    return REFUSED, refusal, None


def dtype_text(dtype: np.dtype) -> str:
    """Return the name of a type for users."""
    if dtype.names:
        return "{" + ", ".join(f"{name}: {dtype_text(dtype[name])}" for name in dtype.names) + "}"
    if dtype.subdtype is not None:
        return f"{dtype_text(dtype.subdtype[0])}[{','.join(map(str, dtype.subdtype[1]))}]"
    if h5py.check_ref_dtype(dtype) is not None:
        return "reference"
    if dtype.kind == "O":
        inside = h5py.check_vlen_dtype(dtype)
        return f"sequence of {dtype_text(inside)}" if isinstance(inside, np.dtype) else "string of any length"
    if dtype.kind in "SV":
        return f"S{dtype.itemsize}" if dtype.kind == "S" else f"opaque of {dtype.itemsize} bytes"
    text = name_of(dtype) or (dtype.name if h5py.check_enum_dtype(dtype) is None else f"enum of {dtype.name}")
    swapped = dtype.newbyteorder("=") != dtype
    return f"{text} big-endian" if swapped and dtype.byteorder == ">" else text


# --- clues from values ------------------------------------------------------------------------------------


def _image(dataset: h5py.Dataset) -> str:
    dtype, shape = dataset.dtype, dataset.shape
    is_whole = not shape or (len(shape) == 1 and dtype == np.uint8)
    is_rows = len(shape or ()) == 1 and (dtype.kind in "VS" or h5py.check_vlen_dtype(dtype) == np.uint8)
    is_padded = len(shape or ()) == 2 and dtype == np.uint8
    if shape is None or dtype.names or not (is_rows or is_padded or (is_whole and dtype.kind in "VSu")):
        return ""
    if 0 in shape or dtype.itemsize * math.prod(dataset.chunks or (1,)) > 1 << 26:
        return ""
    rows = sorted({0, shape[0] // 2, shape[0] - 1}) if shape else []
    for row in [0] if is_whole else rows:
        check_stored(dataset, (row,)[: len(shape)], (min(16, shape[0]) if is_whole else 1,) if shape else ())
    indices = [()] if not shape else [slice(16)] if is_whole else [(k, slice(16))[: len(shape)] for k in rows]
    heads = (np.asarray(dataset[one]) for one in indices)
    formats = {format_of(head.tobytes()[:16]) for head in heads if head.size}
    return formats.pop() if len(formats) == 1 else "auto" if formats and "" not in formats else ""


def _counts(dataset: h5py.Dataset) -> tuple[Counts, ...]:
    """Return properties of the numbers in a dataset of integers, or of each of its few columns."""
    is_few = dataset.shape is not None and (dataset.ndim == 1 or (dataset.ndim == 2 and dataset.shape[1] in (2, 3)))
    if not is_few or dataset.dtype.kind not in "iub" or not dataset.size:
        return ()
    if dataset.size * dataset.dtype.itemsize > COUNTED_NBYTES:
        for row in (0, len(dataset) - 1) if dataset.ndim == 1 else ():
            check_stored(dataset, (row,), (1,))
        return (Counts(first=int(dataset[0]), last=int(dataset[-1])),) if dataset.ndim == 1 else ()
    check_stored(dataset)
    return tuple(map(_counts_of, dataset[:].astype(np.int64).reshape(len(dataset), -1).T))


def _counts_of(values: NDArray[np.int64]) -> Counts:
    steps = np.diff(values)
    return Counts(
        first=int(values[0]),
        last=int(values[-1]),
        total=int(values.sum()),
        least=int(values.min()),
        most=int(values.max()),
        changes=int((steps != 0).sum()),
        is_rising=bool((steps >= 0).all()),
    )


def _words(dataset: h5py.Dataset) -> tuple[str, ...]:
    is_text = dataset.dtype.kind == "S" or h5py.check_string_dtype(dataset.dtype) is not None
    if len(dataset.shape or ()) != 1 or not is_text:
        return ()
    check_stored(dataset, (0,), (min(_WORDS, len(dataset)),))
    return tuple(one.decode() for one in dataset[:_WORDS].tolist())
