"""Find datasets in open files; error messages name the alternatives that the file has."""

from __future__ import annotations

import contextlib
import logging
import math
import posixpath
import re
import shlex
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import h5py
import hdf5plugin  # noqa: F401  registers its filters with libhdf5
import numpy as np
from h5py import h5l
from numpy.typing import NDArray

from h5stream.base.names import Reading, member_in, parted, quoted_member, readings
from h5stream.base.texts import counted, did_you_mean, nearest_names
from h5stream.errors import (
    ExternalDataError,
    FieldLengthError,
    FieldNotFoundError,
    H5StreamError,
    SourceError,
    UnsupportedFieldError,
)
from h5stream.samples.whole import pattern_of
from h5stream.storage.decode import elements
from h5stream.storage.decode.elements import dtype_of, holds_reference, may_be_sorted
from h5stream.storage.decode.pipeline import check_stored
from h5stream.storage.decode.values import (
    attribute_of,
    in_stored_byte_order,
    safe_to_read,
    values_of,
)
from h5stream.storage.file.external import Guard
from h5stream.storage.source.handles import DAMAGE

_log = logging.getLogger("h5stream")

_SPARSE = ("data", "indices", "indptr")
_CODED = ("codes", "categories")
PARTS = (*_SPARSE, *_CODED)
"""Names of the datasets in a group that is one field: a sparse matrix, or a categorical column."""

_ENCODED = ("encoding-type", "h5sparse_format")

_LISTED = 12

_FEW_LENGTHS = 3
"""Up to this many lengths, a message lists `_LISTED` names of each; otherwise only this many."""

_BROKEN_LINK = "component not found|doesn't exist|message type not found|can't open file|external file|too many links"
"""libhdf5's messages for a link to a missing object or file."""

_LINKS = (h5l.TYPE_HARD, h5l.TYPE_SOFT, h5l.TYPE_EXTERNAL)

_DEEPEST = 1000
"""The deepest nesting of groups that is searched: libhdf5 itself recurses, and no real file nests as deep."""


Node: TypeAlias = "h5py.Group | h5py.Dataset | h5py.Datatype"
"""An object in a file."""

_Typed: TypeAlias = "h5py.Dataset | h5py.h5d.DatasetID | h5py.h5a.AttrID"

Chosen = Callable[[str, h5py.Group, list[str]], list[str]]
"""A function that selects names to examine, from a group's path, the group and its names."""

MANY_ALIKE, SOME_ALIKE = 200, 32
"""If more than the first number of names in a group differ only in digits, the second number is examined."""


def refusal(
    path: str, name: str, why: str, kind: Callable[..., H5StreamError] = UnsupportedFieldError, **facts: object
) -> H5StreamError:
    """Return the error for a field that cannot be read."""
    return kind(f"{path!r}{why}", field=name, file=path, **facts)


def datasets_of(
    file: h5py.File, damaged: dict[str, str] | None = None, chosen: Chosen | None = None
) -> dict[str, h5py.Dataset]:
    """Return all datasets behind hard links of an open file, by path, without names that are not UTF-8."""
    damaged = {} if damaged is None else damaged
    datasets: dict[str, h5py.Dataset] = {}
    # `visititems` looks every object up from the root, which takes minutes in deep trees.
    seen, open_groups = {_address(file)}, [_hard_linked(file, "", damaged, chosen)]
    while open_groups:
        path, entry = next(open_groups[-1], ("", None))
        if entry is None:
            open_groups.pop()
        elif (address := _address(entry)) not in seen:  # hard links may lead back up
            seen.add(address)
            if isinstance(entry, h5py.Dataset):
                datasets[path] = entry
            elif isinstance(entry, h5py.Group) and len(open_groups) <= _DEEPEST:
                open_groups.append(_hard_linked(entry, f"{path}/", damaged, chosen))
    return datasets


def some_of(names: Sequence[str]) -> list[str]:
    """Return the names of a group to examine: all, but only a few of those that differ only in digits."""
    families: dict[str, list[str]] = defaultdict(list)
    for name in names:
        families[re.sub(r"\d+", "0", name)].append(name)
    if len(families) > MANY_ALIKE:  # names without any similarity, such as keys
        families = {"": list(names)}
    few = (family if len(family) <= MANY_ALIKE else spread(family, SOME_ALIKE) for family in families.values())
    return sorted(name for names in few for name in names)


def spread(items: Sequence[str], wanted: int) -> list[str]:
    """Return `wanted` evenly spaced items, including the first and the last; all if there are fewer."""
    count = len(items)
    return list(items) if count <= wanted else [items[k * (count - 1) // (wanted - 1)] for k in range(wanted)]


def _address(entry: Node) -> tuple[int, int]:
    info = h5py.h5o.get_info(entry.id)
    return int(info.fileno), int(info.addr)


def _hard_linked(
    group: h5py.Group, above: str, damaged: dict[str, str], chosen: Chosen | None
) -> Iterator[tuple[str, Node]]:
    """Yield the objects behind a group's hard links, with paths; unreadable ones are added to `damaged`."""
    names: list[str] = []
    try:
        names += sorted(name for name in group if isinstance(name, str))
    except DAMAGE as error:
        damaged[above.rstrip("/") or "/"] = libhdf5_message(error)
    for name in names if chosen is None else chosen(above.rstrip("/"), group, names):
        try:
            if not is_hard_link(group, name):
                continue
            entry = group[name]
        except DAMAGE as error:
            damaged[above + name] = libhdf5_message(error)
        else:
            yield above + name, entry


def libhdf5_message(error: BaseException) -> str:
    """Return the message of an error of h5py, without the quotes of a KeyError."""
    return str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)


def _link_type(group: h5py.Group, name: str | bytes) -> int:
    # h5py's low-level interface supports user-defined links, and names that are not UTF-8 as bytes.
    return int(group.id.links.get_info(name if isinstance(name, bytes) else name.encode()).type)


def default_fields(file: h5py.File, path: str, guard: Guard) -> list[str]:
    """Return the names of a group's datasets; raise if they differ in length.

    Datasets behind soft and external links are included, but each only once, under its hard link if it has one.
    """
    at_root, refused = _datasets_in(file, path, guard)
    if refused and not at_root:
        raise refused[0]
    if odd := next((name for name in at_root if not isinstance(name, str)), None):
        why = f" has a dataset named {odd!r} at its root, which is not UTF-8 text, so it cannot be a field; "
        raise refusal(path, repr(odd), f"{why}name the others: fields=[...]")
    lengths = {dataset.shape[0] if dataset.shape else None for dataset in at_root.values()}
    if len(lengths) == 1 and None not in lengths:
        return list(at_root)
    where = "at its root" if file.name == "/" else f"in {file.name.strip('/')!r}"
    groups: dict[int, list[str]] = defaultdict(list)
    for name, dataset in datasets_of(file, chosen=lambda _path, _group, names: some_of(names)).items():
        if dataset.shape and not is_bookkeeping(name):
            groups[dataset.shape[0]].append(name)
    # Many different lengths are those of objects, of which a few examples suffice.
    most = _LISTED if len(groups) <= _FEW_LENGTHS else _FEW_LENGTHS
    every = sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))
    if not every:
        raise FieldLengthError(f"{path!r} has no dataset with rows {where}, nor in a group; name others", file=path)
    what, ways = f"datasets of unlike length {where}", "fields=[...]"
    if len(lengths - {None}) == 1:
        what = f"single values beside datasets with rows {where}"
    if not at_root:
        what, ways = f"no datasets {where}", f"{ways}{_group_options(file)}"
    single = _shortened([name for name, dataset in at_root.items() if not dataset.shape])
    singles = f" Without rows, single values: {single}." if single else ""
    lines = [f"{counted(rows, 'row')}: {_shortened(names, most)}" for rows, names in every]
    listing = "; ".join(lines if len(lines) <= _LISTED else [*lines[:_FEW_LENGTHS], "and others"])
    problem = f"{path!r} has {what}, so name the fields: {ways}. It has, by length: {listing}.{singles}"
    raise FieldLengthError(f"{problem} `h5stream inspect {shlex.quote(path)}` prints what to write", file=path)


def _group_options(group: h5py.Group) -> str:
    """Return options that read the groups in a group without datasets: a sparse matrix, or groups of rows."""
    names = [name for name in some_of([*group]) if is_hard_link(group, name)]
    groups = [name for name in names if isinstance(group[name], h5py.Group)]
    if matrix := next((name for name in groups if is_matrix(group[name])), None):
        return f"; Field({matrix!r}, ragged='dense') is the rows of the sparse matrix there"
    where, above = group, ""
    if len(groups) == 1:  # such as data/demo_0, data/demo_1
        where, above = group[groups[0]], groups[0]
        groups = [name for name in some_of([*where]) if where.get(name, getclass=True) is h5py.Group]
    contents = [frozenset(where[name]) for name in groups]
    pattern = pattern_of(above, (groups, some_of([*where]))) if len(groups) > 1 and len({*contents}) == 1 else ""
    return f"; samples=Rows(of={pattern!r}) takes the rows of groups that are alike" * bool(pattern)


def _datasets_in(group: h5py.Group, path: str, guard: Guard) -> tuple[dict[str, h5py.Dataset], list[ExternalDataError]]:
    """Return the datasets of a group by name, in its order, and the errors of links that were refused."""
    names, datasets, seen = list(group), dict[str, h5py.Dataset](), set[object]()
    hard, refused = {name for name in names if is_hard_link(group, name)}, list[ExternalDataError]()
    for name in sorted((name for name in names if name in hard or isinstance(name, str)), key=lambda n: n not in hard):
        try:
            if name not in hard:
                guard.check_links(group.file, posixpath.join(group.name, name), path)
        except ExternalDataError as error:
            refused.append(error)
            _log.warning("%s It is left out of the fields; name those that you want to be sure: fields=[...]", error)
            continue
        target, address = behind(group, name, path), None
        if target is None and name not in hard:
            level = logging.WARNING if _link_type(group, name) == h5l.TYPE_EXTERNAL else logging.INFO
            _log.log(level, "%r: the link %r leads nowhere and is left out of the fields", path, name)
        if isinstance(target, h5py.Dataset):
            if len(hard) < len(names):  # libhdf5 may crash at the address of a damaged object
                with contextlib.suppress(RuntimeError):
                    address = _address(target)
            if name in hard or address is None or address not in seen:
                seen.add(address)
                datasets[name] = target
    return {name: datasets[name] for name in names if name in datasets}, refused


def is_hard_link(group: h5py.Group, name: str | bytes) -> bool:
    """Return whether a name in a group is a hard link."""
    return bool(_link_type(group, name) == h5l.TYPE_HARD)


def behind(
    group: h5py.Group, name: str | bytes, path: str, way_out: str = "name other fields: fields=[...]"
) -> Node | None:
    """Return the object behind a link of a group; None if it is missing, or the link is user-defined."""
    kind = _link_type(group, name)
    if kind not in _LINKS:
        return None
    try:
        return group[name]
    except DAMAGE as error:
        message = libhdf5_message(error)
        if kind != h5l.TYPE_HARD and re.search(_BROKEN_LINK, message):
            return None
        shown = posixpath.join(group.name, name).strip("/") if isinstance(name, str) else f"{name!r} of {group.name}"
        why = f"{shown!r} is there, but libhdf5 cannot open it: {message}. It is damaged: copy the file again from its"
        raise SourceError(f"{path!r}: {why} source, or {way_out}", file=path) from error


def is_there(file: h5py.File, name: str, path: str) -> bool:
    """Return whether a name leads to an object."""
    with contextlib.suppress(*DAMAGE):
        if h5py.h5o.exists_by_name(file.id, name.encode("utf-8", "surrogateescape")):
            return True
    why_not_opened(file, name, path)
    return False


def object_at(file: h5py.File, name: str, path: str) -> Node | None:
    """Return the object with a name; None if it is missing."""
    try:
        return file[name]
    except DAMAGE:
        why_not_opened(file, name, path)
        return None


def dataset_at(file: h5py.File, name: str, path: str, what: str = "dataset") -> h5py.h5d.DatasetID | h5py.h5g.GroupID:
    """Open a dataset or group as a low-level h5py ID, in a third of the time of an `h5py.Dataset`."""
    try:
        opened = (h5py.h5d if what == "dataset" else h5py.h5g).open(file.id, name.encode("utf-8", "surrogateescape"))
    except DAMAGE as error:
        why = why_not_opened(file, name.strip("/"), path) or libhdf5_message(error)
        above = file.get(name.rpartition("/")[0] or "/")
        hint = did_you_mean(name.rpartition("/")[2], above) if isinstance(above, h5py.Group) else ""
        why = f": there is no {what} {name!r}: {why}.{hint} Objects(..., missing='skip') leaves out objects that lack "
        raise refusal(path, name, f"{why}a field", FieldNotFoundError) from None
    if what == "dataset":
        check_has_numpy_type(opened, name, path)
    return opened


def _shortened(names: Sequence[str], most: int = _LISTED) -> str:
    """Return the first names in one text."""
    return ", ".join(names[:most]) + " ..." * (len(names) > most)


class FieldSource(NamedTuple):
    """A field's dataset, its path in the file, and the member path in its elements."""

    dataset: h5py.Dataset
    path: str
    member: tuple[str, ...]


def find_dataset(file: h5py.File, name: str, path: str, guard: Guard) -> FieldSource:
    """Return the dataset or the member with a field's name."""
    lacking: Reading | None = None
    for reading in readings(name):  # a dataset with a colon in its name takes precedence
        if reading.mark == "@" or not reading.path:
            continue
        guard.check_links(file, reading.path, path)
        dataset = None
        with contextlib.suppress(*DAMAGE):
            dataset = file.get(reading.path)
        if isinstance(dataset, h5py.Dataset):
            dtype = _type_of(dataset, name, path)
            member = member_in(dtype, reading) if reading.mark else ()
            if member is not None:
                return FieldSource(dataset, reading.path, member)
            lacking = lacking or reading
    if lacking is None:
        raise _not_found(file, name, path)
    current = _type_of(file[lacking.path], name, path)
    for part in lacking.rest:
        names = current.names or ()
        if part not in names:
            break
        current = current[part]
    hint = did_you_mean(name, _with_members(datasets_of(file)))
    what = f"Its members are: {', '.join(names)}." if names else f"It is not a compound but {current}."
    raise refusal(path, name, f": field {name!r} has no member {part!r}.{hint} {what}", FieldNotFoundError)


def means(file: h5py.File, name: str, path: str, guard: Guard) -> Reading | None:
    """Return the reading of a name under which a file has an object, member or attribute; None if it has none."""
    for reading in readings(name):
        guard.check_links(file, reading.path, path)
        if not reading.mark:
            if is_there(file, reading.path, path):
                return reading
            continue
        owner = object_at(file, reading.path or "/", path)
        if reading.mark == "@" and owner is not None and reading.rest[0] in owner.attrs:
            return reading
        if reading.mark == ":" and isinstance(owner, h5py.Dataset):
            dtype = elements.type_if_any(owner.id.get_type())
            if dtype is not None and (member := member_in(dtype, reading)) is not None:
                return reading._replace(rest=member)
    return None


def _not_found(file: h5py.File, name: str, path: str) -> H5StreamError:
    clean = "/".join(part for part in name.split("/") if part not in ("", "."))  # as HDF5 reads it
    if why := why_not_opened(file, clean, path):
        return refusal(path, name, f": {name!r} cannot be reached: {why}", FieldNotFoundError)
    every = datasets_of(file)
    datasets = {n: dataset for n, dataset in every.items() if not is_bookkeeping(n)} or every
    inside: dict[str, h5py.Dataset] = {}
    with contextlib.suppress(*DAMAGE):  # a broken link
        if isinstance(file.get(clean or "/"), h5py.Group):
            above = f"{clean}/" * bool(clean)
            inside = {n: dataset for n, dataset in datasets.items() if n.startswith(above)}
            if not inside:
                why = f": {name!r} is a group with no dataset in it, not a dataset."
                return refusal(path, name, why, FieldNotFoundError)
    # Categorical columns first, so that a shortened list includes them.
    columns = [n[: -len("/codes")] for n in datasets if n.endswith("/codes") and f"{n[:-5]}categories" in datasets]
    candidates, (within, written) = [*columns, *_with_members(datasets)], parted(name)
    own = [one.removeprefix(within) for one in candidates if one.startswith(within)] if within else []
    hint = " That is a group; name a dataset in it."
    if not inside:
        hint = _hint_for(written if own else name, own or candidates)
    above, _, leaf = clean.rpartition("/")
    with contextlib.suppress(*DAMAGE):
        if not inside and leaf in getattr(file.get(above or "/"), "attrs", ()):
            hint = f" {leaf!r} is an attribute of {above or '/'!r}; attributes are named with an @, such as '@{leaf}'."
    if own:  # in a group of samples=, names are relative to it
        problem = f" has no dataset {written!r} in {within.strip('/')!r}.{hint} It has: {_shortened(own)}."
        return refusal(path, name, problem, FieldNotFoundError)
    listing = f" It has: {_shortened(list(inside or datasets))}." if datasets else " It has no datasets."
    return refusal(path, name, f" has no dataset {name!r}.{hint}{listing}", FieldNotFoundError)


def _hint_for(name: str, candidates: Sequence[str]) -> str:
    """Return a suggestion for an unknown name: a list of names, datasets of many groups, or similar names."""
    clean, listed = name.strip("/"), [one.strip() for one in name.split(",")]
    if len(listed) > 1 and {*listed} <= {*candidates}:
        return f" Several fields are a list: fields={listed!r}."
    by_leaf = defaultdict[str, list[str]](list)
    for one in candidates:
        by_leaf[posixpath.basename(one)].append(one)
    matching = [one for one in candidates if one.endswith(f"/{clean}")]
    near = [] if "/" in clean or clean in by_leaf else [n for n in nearest_names(clean, by_leaf) if len(by_leaf[n]) > 3]
    if len(matching) <= 3 and not near:
        return did_you_mean(name, candidates)
    meant = f" Did you mean {near[0]!r}?" if near else ""
    matching = by_leaf[near[0]] if near else matching
    what = f" {len(matching):,} groups hold one, such as {matching[0]!r}: samples= says whether each is a sample "
    return f"{meant}{what}(Objects) or its rows are (Rows, Sequences)."


def why_not_opened(file: h5py.File, name: str, path: str) -> str:
    """Return why an existing name leads to no dataset; empty if it is missing, or leads to another object."""
    group, way = file, ""
    for part in name.split("/"):
        if part in ("", "."):
            continue
        # A colon may begin a member, or belong to the name.
        stems = [part[:end] for end in range(len(part), 0, -1) if end == len(part) or part[end] == ":"]
        try:
            stem = next((stem for stem in stems if group.id.links.exists(stem.encode())), None)
        except DAMAGE as error:
            message = libhdf5_message(error)
            raise SourceError(f"{path!r}: the links of {group.name!r} cannot be read: {message}", file=path) from error
        if stem is None:
            return ""
        kind = _link_type(group, stem)
        if kind not in _LINKS:
            message = f"{way + stem!r} is a user-defined link (class {kind}), which only the program that made it can"
            return f"{message} follow; copy what it leads to into the file"
        group = behind(group, stem, path)
        if not isinstance(group, h5py.Group):
            return ""
        way += f"{stem}/"
    return ""


def _with_members(datasets: dict[str, h5py.Dataset]) -> Iterator[str]:
    """Yield the names of all possible fields: datasets, and members of compounds."""
    rivals = [name for name in datasets if ":" in name]
    for name, dataset in datasets.items():
        yield name
        with contextlib.suppress(*elements.CANNOT_READ):
            yield from (text for text, _ in members_of(name, dtype_of(dataset), rivals))


def members_of(name: str, dtype: np.dtype, rivals: Sequence[str] = ()) -> Iterator[tuple[str, np.dtype]]:
    """Yield the members of a compound by field name, nested ones included, with their types.

    A name that could also mean one of the datasets `rivals`, or another member, contains a backslash.
    """
    rivals = [rival for rival in rivals if rival.startswith(f"{name}:")]

    def inside(inner: np.dtype, above: tuple[str, ...]) -> Iterator[tuple[str, np.dtype]]:
        for member in inner.names or ():
            every = *above, member
            plain = ":".join((name, *every))
            is_rival = any(plain == rival or plain.startswith(f"{rival}:") for rival in rivals)
            read = member_in(dtype, Reading(name, ":", tuple(":".join(every).split(":"))))
            below = inner[member]
            yield quoted_member(name, every) if is_rival or read != every else plain, below
            yield from inside(below, every)

    return inside(dtype, ())


def is_bookkeeping(name: str) -> bool:
    """Return whether a dataset belongs to an index of PyTables, which never contains samples."""
    return any(part.startswith("_i_") for part in name.split("/")[:-1])


def once_of(file: h5py.File, name: str, path: str, guard: Guard) -> Any:
    """Read a value of a file or group: an attribute (``"@name"``, ``"path@name"``), or a whole dataset.

    Small floats are returned as bits.
    """
    if "@" in parted(name)[1]:
        meaning = means(file, name, path, guard)
        if meaning is None or meaning.mark == "@":
            return _attribute_of(file, name, meaning, path)
    dataset, _, member = find_dataset(file, name, path, guard)
    start, shape = (0,) * dataset.ndim, dataset.shape or ()

    def read() -> Any:
        own = elements.type_if_any(dataset.id.get_type())
        if own is not None and may_be_sorted(own) and not elements.has_small_floats(own):
            check_stored(dataset)
            with safe_to_read(dataset) as opened:
                return opened.astype(dtype_of(dataset))[()]
        return values_of(dataset, start, shape)

    values = _read(read, dataset, name, path, member)
    for part in member:
        values = values[part]
    return values


def _attribute_of(file: h5py.File, name: str, meaning: Reading | None, path: str) -> object:
    """Read an attribute; raise if there is none with the name."""
    if meaning is not None:
        owner, attribute = file[meaning.path or "/"], meaning.rest[0]
        return _read(lambda: attribute_of(owner.attrs, attribute), owner.attrs.get_id(attribute), name, path)
    reading = next((one for one in readings(name) if one.mark == "@"), None)
    if reading is None:
        raise _not_found(file, name, path)
    where, attribute = reading.path, reading.rest[0]
    owner = object_at(file, where, path) if where else file
    what = f"{'the file' if not where else repr(where)} has no attribute {attribute!r}."
    hint = did_you_mean(attribute, [] if owner is None else list(owner.attrs))
    raise refusal(path, name, f": {what}{hint}", FieldNotFoundError)


def type_once(file: h5py.File, name: str, path: str, guard: Guard) -> np.dtype:
    """Return the dtype of the value that `once_of` reads."""
    if "@" in parted(name)[1] and (meaning := means(file, name, path, guard)) is not None and meaning.mark == "@":
        return elements.type_of(file[meaning.path or "/"].attrs.get_id(meaning.rest[0]).get_type())
    dataset, _, member = find_dataset(file, name, path, guard)
    dtype = dtype_of(dataset)
    for part in member:
        dtype = dtype[part]
    return dtype


def region_rows(regions: FieldSource, of: h5py.Dataset | None, name: str, path: str) -> NDArray[np.int64]:
    """Return the first and the end row of each region in a dataset of region references."""
    check_stored(regions.dataset)
    references = regions.dataset[()]
    for part in regions.member:
        references = references[part]
    ranges, why = list[tuple[int, int]](), "is not of consecutive whole rows of that dataset"
    for reference in references.reshape(-1):
        one = None
        try:
            one = _rows_of(reference, of)
        except DAMAGE as error:
            why = f"cannot be read: {libhdf5_message(error)}"
        if one is None:
            what = f"{regions.path!r} of lookup=Bounds(...) refers to regions, and that of sample {len(ranges):,} {why}"
            raise refusal(path, name, f": field {name!r}: {what}")
        ranges.append(one)
    return np.array(ranges, dtype=np.int64).reshape(-1, 2).T


def _rows_of(reference: h5py.RegionReference, of: h5py.Dataset | None) -> tuple[int, int] | None:
    """Return the first and the end row of a region; None if it is not consecutive whole rows of `of`."""
    if not reference:
        return 0, 0
    if of is None or h5py.h5r.dereference(reference, of.id) != of.id:
        return None
    space = h5py.h5r.get_region(reference, of.id)
    if not space.get_select_npoints():
        return 0, 0
    low, high = space.get_select_bounds()
    count = (high[0] + 1 - low[0]) * math.prod(of.shape[1:])
    is_whole = space.get_select_type() != h5py.h5s.SEL_POINTS and space.get_select_npoints() == count
    return (low[0], high[0] + 1) if is_whole else None


def is_attribute(file: h5py.File, name: str, path: str, guard: Guard) -> bool:
    """Return whether a field's name means an attribute, and not a dataset or member with a "@" in its name."""
    if "@" not in parted(name)[1]:
        return False
    meaning = means(file, name, path, guard)
    return meaning.mark == "@" if meaning else any(reading.mark == "@" for reading in readings(name))


def _read(read: Callable[[], Any], opened: _Typed, name: str, path: str, member: tuple[str, ...] = ()) -> Any:
    """Read a value; raise if h5py cannot read it, or if a batch cannot hold it."""
    whole = dtype = _type_of(opened, name, path)
    for part in member:
        dtype = dtype[part]
    stored = (opened.id if isinstance(opened, h5py.Dataset) else opened).get_type()
    why = "references point into the file and mean nothing in a batch" if holds_reference(stored) else ""
    if dtype.kind in "fc" or elements.readable_of(dtype) is not dtype:
        why = elements.refusal(dtype) or why
    elif not isinstance(opened, h5py.Dataset) and not elements.is_readable(stored):
        why = why or elements.no_type("it widens members of a compound, which then overlap")
    if why:
        raise refusal(path, name, f": field {name!r} is {dtype}: {why}")
    try:
        return in_stored_byte_order(read(), whole)
    except (TypeError, ValueError, NotImplementedError) as error:
        raise refusal(path, name, f": h5py cannot read {name!r}: {error}") from error
    except (OSError, RuntimeError, KeyError) as error:
        message = f"{path!r}: {name!r} is there, but libhdf5 cannot read it: {libhdf5_message(error)}"
        raise SourceError(message, file=path) from error


def check_has_numpy_type(opened: _Typed, name: str, path: str) -> None:
    """Raise if h5py cannot read the type of a dataset or an attribute."""
    _type_of(opened, name, path)


def _type_of(opened: _Typed, name: str, path: str) -> np.dtype:
    """Return the dtype of a dataset or an attribute; raise if h5py cannot read it."""
    try:
        return dtype_of(opened) if isinstance(opened, h5py.Dataset) else elements.type_of(opened.get_type())
    except elements.CANNOT_READ as error:
        raise refusal(path, name, f": field {name!r} has {elements.no_type(str(error))}") from error


# --- sparse matrices: groups of three datasets with the values of each row, and their columns.
# AnnData and h5sparse describe the layout in an attribute, 10x has the shape as a dataset. Source:
# https://anndata.readthedocs.io/en/latest/fileformat-prose.html#sparse-arrays


def is_matrix(node: object) -> bool:
    """Return whether an h5py object is a sparse matrix."""
    return isinstance(node, h5py.Group) and all(isinstance(node.get(name), h5py.Dataset) for name in _SPARSE)


def shape_of(group: h5py.Group, name: str, path: str) -> tuple[int, int]:
    """Return the rows and columns of a sparse matrix; raise if it is stored by column."""
    encoding = next((group.attrs[key] for key in _ENCODED if key in group.attrs), "")
    encoding = encoding.decode() if isinstance(encoding, bytes) else str(encoding)
    samples = len(group["indptr"]) - 1
    stored = group.attrs.get("shape", group.attrs.get("h5sparse_shape"))
    if stored is None and isinstance(group.get("shape"), h5py.Dataset):
        check_stored(group["shape"])
        stored = group["shape"][()]
    sizes = [] if stored is None else [int(n) for n in np.asarray(stored).reshape(-1)]
    if encoding.startswith("csc") or (encoding and sizes and sizes[0] != samples):
        nbytes = sum(group[part].id.get_storage_size() for part in _SPARSE)
        why = f": {name!r} is a sparse matrix that lies column by column (CSC): a row is spread over all, so each "
        why += f"batch would read all {nbytes:,} bytes. Write it row by row once: adata.X = adata.X.tocsr()"
        raise refusal(path, name, why)
    others = [n for k, n in enumerate(sizes) if k != (sizes.index(samples) if samples in sizes else -1)]
    if len(sizes) != 2 or len(others) != 1:
        why = f": {name!r} looks like a sparse matrix of {samples:,} rows, and its shape is said to be "
        raise refusal(path, name, f"{why}{sizes or 'nothing'}: an attribute 'shape' of it has rows and columns")
    return samples, others[0]


def categories_of(node: object) -> tuple[str, ...] | None:
    """Return the categories of a categorical column of AnnData, a group with codes; None for anything else."""
    if not isinstance(node, h5py.Group) or not all(name in node for name in _CODED):
        return None
    check_stored(node["categories"])
    listed = node["categories"][()]
    return tuple(one.decode() if isinstance(one, bytes) else str(one) for one in listed.tolist())
