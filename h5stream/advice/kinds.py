"""What a file holds that is not rows of equally long datasets, and what to do about it: pure, from the listing alone.

h5stream streams rows of datasets. Sparse matrices, a dataset or a group for each sample, and MATLAB's turned axes are
told apart by names and shapes; for each there are lines of Python that stream it, or write a file that can be streamed.
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from h5stream.advice.cost_in_words import counted, shape_text
from h5stream.advice.lines import Lines, loader_lines, quoted
from h5stream.storage.listing import INDEX, DatasetEntry

CHUNK_NBYTES = 1 << 20
"""Bytes of the chunks that the lines write: what `h5stream repack` writes too."""

LEAST_ALIKE = 8
"""Like datasets in one group, from which each is taken for a sample; fewer are columns as often as not."""

LEAST_GROUPS, MANY_GROUPS = 3, 20
"""Like groups, from which each is taken for a recording or an episode: if they are numbered, and anyway."""

_NUMBERED = 0.8
"""Share of names with a digit in them, from which they count as numbered."""

_IN_MOST = 0.8
"""Share of like groups that hold a dataset, from which it counts as one that they all should have."""

_SPARSE = ("data", "indices", "indptr")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """Something in a file that is not rows of datasets."""

    key: str
    """A stable name: ``"sparse"``, ``"dataset_a_sample"``, ``"group_a_recording"``, ``"matlab"``, ``"matlab_turned"``,
    ``"pytables"`` or ``"single_values"``."""
    datasets: tuple[str, ...]
    """What it is about."""
    what: str
    """What it is."""
    way_out: str
    """What h5stream makes of it today, and what to do instead; empty where nothing is to be done."""
    lines: Lines = ()
    """Python that streams it, or writes a file which can be streamed and streams that; empty where there is none."""
    samples: tuple[str, ...] = ()
    """Those of the datasets whose rows can be streamed as they are."""


def kinds_of(path: str, entries: Sequence[DatasetEntry]) -> tuple[Kind, ...]:
    """Find what is special about a file's datasets; the lines of Python name the file as `path` does."""
    data = [entry for entry in entries if not entry.role]
    found: list[Kind] = []
    for look in (_sparse, _dataset_a_sample, _group_a_recording, _matlab):
        seen = {name for kind in found for name in kind.datasets}
        found += look(path, [entry for entry in data if entry.path not in seen])
    return (*found, *_pytables(entries), *_single_values(path, entries))


# --- sparse matrices --------------------------------------------------------------------------------------


def _sparse(path: str, entries: Sequence[DatasetEntry]) -> Iterator[Kind]:
    found = {}
    for group, members in _by_group(entries).items():
        parts = [members[name] for name in _SPARSE if name in members]
        if len(parts) == len(_SPARSE) and all(e.shape is not None and len(e.shape) == 1 for e in parts):
            data, indices, indptr = parts
            if data.rows and data.rows == indices.rows and (indptr.rows or 0) > 1:
                found[group] = parts
    if not found:
        return
    largest = max(found, key=lambda group: found[group][0].rows or 0)
    _, _, indptr = found[largest]
    rows = (indptr.rows or 1) - 1
    yield Kind(
        key="sparse",
        datasets=tuple(e.path for parts in found.values() for e in parts),
        what=f"{_named(list(found))} {'is a sparse matrix' if len(found) == 1 else 'are sparse matrices'}; {largest} "
        f"has {counted(rows, 'sample')}",
        way_out="ragged='dense' gives rows of it, with columns= some of their columns; ragged='packed' gives the "
        "values that are stored, and their columns. One that lies column by column (CSC) has to be written anew",
        lines=_rows_of(path, largest),
    )


def _rows_of(path: str, group: str) -> Lines:
    """Give the lines for one matrix."""
    return (
        "from h5stream import Field, H5StreamLoader",
        "",
        f"loader = H5StreamLoader({quoted(path)}, 256, shuffle=True,",
        f'    fields=Field({quoted(group)}, ragged="dense"))',
        "batch = next(iter(loader))",
    )


# --- a dataset a sample, a group a recording --------------------------------------------------------------


def _dataset_a_sample(path: str, entries: Sequence[DatasetEntry]) -> Iterator[Kind]:
    for group, members in _by_group(entries).items():
        families: dict[tuple[str, int, tuple[int, ...]], dict[str, DatasetEntry]] = defaultdict(dict)
        for name, entry in members.items():
            if entry.shape and entry.rows:
                families[entry.dtype, len(entry.shape), entry.shape[1:]][name] = entry
        for alike in families.values():
            if _are_samples(alike):
                yield _samples(path, group, alike, members)


def _are_samples(alike: dict[str, DatasetEntry]) -> bool:
    if len(alike) < LEAST_ALIKE or _numbered(alike) < _NUMBERED:
        return False
    lengths = {entry.rows or 0 for entry in alike.values()}
    columns = len(lengths) == 1 and all(len(entry.shape or ()) == 1 for entry in alike.values())
    # Equally long datasets of single numbers are columns, until there are more of them than rows.
    return not columns or len(alike) > max(lengths)


def _samples(path: str, group: str, alike: dict[str, DatasetEntry], members: Iterable[str]) -> Kind:
    first = next(iter(alike.values()))
    lengths = sorted({entry.rows or 0 for entry in alike.values()})
    inner = first.shape[1:] if first.shape else ()
    shape = (
        shape_text((lengths[0], *inner))
        if len(lengths) == 1
        else f"{lengths[0]:,} to {shape_text((lengths[-1], *inner))}"
    )
    example = max(alike)
    pattern = _pattern(group, alike, members)
    return Kind(
        key="dataset_a_sample",
        datasets=tuple(entry.path for entry in alike.values()),
        what=f"{group or 'The root'} holds {len(alike):,} like datasets ({shape} {first.dtype}, such as {example!r}): "
        "each is a sample, or a recording, of its own",
        way_out=f'samples=Sequences({lengths[0]}, of={quoted(pattern)}) with the field "." takes '
        + ("each of them whole" if len(lengths) == 1 else f"{lengths[0]:,} rows that stay inside one of them")
        + '; "@name" is an attribute of it'
        if pattern
        else "written into one, once, they are rows of it"
        + ("" if len(lengths) == 1 else ", padded to the longest")
        + "; labels that are attributes of the datasets need a dataset of their own",
        lines=(
            "from h5stream import H5StreamLoader, Sequences",
            "",
            "loader = H5StreamLoader(",
            f"    {quoted(path)},",
            f"    batch_size={min(64, len(alike))},",
            "    shuffle=True,",
            f"    samples=Sequences({lengths[0]}, of={quoted(pattern)}),",
            '    fields=".",',
            ")",
            "for batch in loader:",
            "    ...  # your training step",
        )
        if pattern
        else _stacked(path, group, first, lengths, len(alike)),
    )


def _stacked(path: str, group: str, first: DatasetEntry, lengths: list[int], count: int) -> Lines:
    target, inner = _target(path), first.shape[1:] if first.shape else ()
    shape = (lengths[-1], *inner)
    nbytes = first.element_nbytes
    for n in shape:
        nbytes *= n
    chunk = max(1, min(count, CHUNK_NBYTES // max(1, nbytes)))
    same = f"group[n].shape[1:] == {inner!r}" if inner else "group[n].ndim == 1"
    unlike = len(lengths) > 1
    return (
        "import h5py",
        "from h5stream import H5StreamLoader",
        "",
        *_from_to(path, target),
        f"    group = f[{quoted('/' + group)}]",
        "    names = [n for n in group if isinstance(group[n], h5py.Dataset)]",
        f"    names = [n for n in names if {same}]",
        f"    shape = (len(names), {', '.join(map(str, shape))})",
        f"    chunks = (min({chunk}, len(names)), *shape[1:])",
        '    x = out.create_dataset("x", shape, group[names[0]].dtype, chunks=chunks)',
        *(('    out["length"] = [len(group[n]) for n in names]',) if unlike else ()),
        "    for i, name in enumerate(names):",
        f"        x[{'i, : len(group[name])' if unlike else 'i'}] = group[name][:]",
        "",
        *loader_lines(target, ["x", "length"] if unlike else ["x"], batch_size=min(64, count))[2:],
    )


def _group_a_recording(path: str, entries: Sequence[DatasetEntry]) -> Iterator[Kind]:
    by_parent: dict[str, dict[str, dict[str, DatasetEntry]]] = defaultdict(lambda: defaultdict(dict))
    for entry in entries:
        parts = entry.path.split("/")
        for depth in range(len(parts) - 1):
            parent, child = "/".join(parts[:depth]), parts[depth]
            by_parent[parent][child]["/".join(parts[depth + 1 :])] = entry
    taken: set[str] = set()
    for parent in sorted(by_parent, key=lambda p: p.count("/") + bool(p)):
        alike = _like_groups(by_parent[parent])
        paths = [e.path for inside in alike.values() for e in inside.values()]
        like_samples = _numbered(alike) >= _NUMBERED or len(alike) >= MANY_GROUPS
        if len(alike) >= LEAST_GROUPS and like_samples and not taken & set(paths):
            taken.update(paths)
            yield _recordings(path, parent, alike, by_parent[parent])


def _like_groups(groups: dict[str, dict[str, DatasetEntry]]) -> dict[str, dict[str, DatasetEntry]]:
    """Give the groups that hold all datasets which most of them hold, and of each those."""
    held: dict[tuple[str, str, tuple[int, ...]], list[str]] = defaultdict(list)
    for name, inside in groups.items():
        for relative, entry in inside.items():
            if entry.shape and entry.rows:
                held[relative, entry.dtype, entry.shape[1:]].append(name)
    most = max(map(len, held.values()), default=0)
    common = {key: names for key, names in held.items() if len(names) >= _IN_MOST * most}
    relatives = list(dict.fromkeys(relative for relative, _, _ in common))
    # Of two types under one name, the one that more groups have.
    named = {name: max((k for k in common if k[0] == name), key=lambda k: len(common[k])) for name in relatives}
    members = [name for name in groups if all(name in common[key] for key in named.values())]
    return {name: {relative: groups[name][relative] for relative in relatives} for name in members}


def _recordings(
    path: str,
    parent: str,
    alike: dict[str, dict[str, DatasetEntry]],
    siblings: Iterable[str],
) -> Kind:
    first, *_ = alike
    rows, once = _rows_and_once(list(alike.values()))
    counts = sorted({group[rows[0]].rows or 0 for group in alike.values()})
    count = f"{counts[0]:,}" if len(counts) == 1 else f"{counts[0]:,} to {counts[-1]:,}"
    pattern = _pattern(parent, alike, siblings)
    of = quoted(pattern) if pattern else "groups"
    return Kind(
        key="group_a_recording",
        datasets=tuple(entry.path for group in alike.values() for entry in group.values()),
        what=f"{parent or 'The root'} holds {len(alike):,} like groups (such as {first!r}, with "
        f"{', '.join(rows[:3])}{' ...' if len(rows) > 3 else ''} of {count} rows): each is a recording "
        "(an episode, a sensor) of its own",
        way_out=f"samples=Rows(of={of}) makes the rows of all one dataset, and samples=Sequences(16, of={of}) "
        "sequences of rows that stay inside a group",
        lines=(
            *(() if pattern else _alike_lines(path, parent, first, [*rows, *once])),
            *loader_lines(path, rows, batch_size=256, rows_of=of, repeated=once)[0 if pattern else 2 :],
        ),
        samples=tuple(entry.path for entry in max(alike.values(), key=_written_nbytes).values()),
    )


def _rows_and_once(groups: Sequence[dict[str, DatasetEntry]]) -> tuple[list[str], list[str]]:
    """Tell what has as many rows in each group as most of the data has from what each group has once."""
    by_counts = defaultdict(list)
    for name in groups[0]:
        by_counts[tuple(group[name].rows for group in groups)].append(name)
    rows = max(by_counts.values(), key=lambda names: sum(group[n].raw_nbytes for group in groups for n in names))
    once = [names for counts, names in by_counts.items() if names is not rows and len(set(counts)) == 1]
    return rows, [name for names in once for name in names]


def _pattern(parent: str, names: Iterable[str], siblings: Iterable[str]) -> str:
    """Give a pattern that these of a group's groups match, and no others; empty where there is none.

    It begins as all of them do: groups without datasets may lie beside them, and are not known here.
    """
    wanted = sorted(names)
    shared = [
        one
        for one, other in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(wanted[0], wanted[-1], strict=False))
    ]
    start = re.sub(r"\d+$", "", "".join(shared))
    found = f"{parent}/{start}*" if parent else f"{start}*"
    fits = {name for name in siblings if name.startswith(start)} == set(wanted)
    return found if fits and not re.search(r"[*?[]", found[:-1]) else ""


def _alike_lines(path: str, parent: str, first: str, names: Sequence[str]) -> Lines:
    """Give the lines that find the groups where no pattern does."""
    return (
        "import h5py",
        "from h5stream import Field, H5StreamLoader, Rows",
        "",
        "names = [",
        *(f"    {quoted(name)}," for name in names),
        "]",
        "",
        "def is_alike(group):",
        "    return isinstance(group, h5py.Group) and all(",
        "        name in group",
        "        and group[name].dtype == first[name].dtype",
        "        and group[name].shape[1:] == first[name].shape[1:]",
        "        for name in names",
        "    )",
        "",
        f"with h5py.File({quoted(path)}) as f:",
        f"    first = f[{quoted(f'{parent}/{first}')}]",
        f"    groups = [g.name for g in f[{quoted('/' + parent)}].values() if is_alike(g)]",
        "",
    )


def _written_nbytes(group: dict[str, DatasetEntry]) -> float:
    return sum(entry.written_nbytes for entry in group.values())


# --- MATLAB, PyTables, single values ----------------------------------------------------------------------


def _matlab(path: str, entries: Sequence[DatasetEntry]) -> Iterator[Kind]:
    arrays = [e for e in entries if e.matlab_class and e.shape and len(e.shape) > 1 and max(e.shape) > 1]
    if not arrays:
        return
    largest = max(arrays, key=lambda e: e.raw_nbytes)
    shape = largest.shape or ()
    what = (
        "MATLAB wrote this file (-v7.3), and its axes are the other way round here: "
        f"{largest.path} is {shape_text(shape[::-1])} in MATLAB and {shape_text(shape)} in HDF5"
    )
    turned = _turned(arrays)
    if not turned:
        last = ", ".join([":"] * (len(shape) - 1))
        yield Kind(
            key="matlab",
            datasets=tuple(e.path for e in arrays),
            what=what,
            way_out=f"A row here is {largest.path}({last}, i) in MATLAB. If your samples lie along another axis, turn "
            "it once: out[name] = f[name][:].T",
            samples=tuple(e.path for e in arrays),
        )
        return
    rows = (turned[0].shape or (0,))[-1]
    target, names = _target(path), [e.path for e in turned]
    yield Kind(
        key="matlab_turned",
        datasets=tuple(names),
        what=f"{what}. The {counted(rows, 'sample')} of {_named(names)} lie along the last axis here, not the first",
        way_out="h5stream streams rows of the first axis only. Turn the axes back, once",
        lines=(
            "import h5py",
            "from h5stream import H5StreamLoader",
            "",
            *_from_to(path, target),
            f"    for name in [{', '.join(map(quoted, names))}]:",
            "        out[name] = f[name][:].T",
            "",
            *loader_lines(target, names, batch_size=min(256, rows))[2:],
        ),
    )


def _turned(arrays: Sequence[DatasetEntry]) -> list[DatasetEntry]:
    """Give the arrays that agree in their last axis and not in their first: samples are columns here."""
    by_first, by_last = defaultdict(list), defaultdict(list)
    for entry in arrays:
        if entry.shape:
            by_first[entry.shape[0]].append(entry)
            by_last[entry.shape[-1]].append(entry)
    most = max((group for length, group in by_last.items() if length > 1), key=len, default=[])
    agree_first = max((len(group) for length, group in by_first.items() if length > 1), default=0)
    return most if len(most) > max(1, agree_first) else []


def _pytables(entries: Sequence[DatasetEntry]) -> Iterator[Kind]:
    index = [entry.path for entry in entries if entry.role == INDEX]
    if index:
        yield Kind(
            key="pytables",
            datasets=tuple(index),
            what=f"{counted(len(index), 'dataset')} with _i_ in the path {'are' if len(index) > 1 else 'is'} what "
            "PyTables keeps to find rows of its tables, and no data",
            way_out="",
        )


def _single_values(path: str, entries: Sequence[DatasetEntry]) -> Iterator[Kind]:
    if entries and all(not entry.shape for entry in entries):
        first = entries[0].path
        yield Kind(
            key="single_values",
            datasets=tuple(entry.path for entry in entries),
            what=f"It holds single values only ({counted(len(entries), 'dataset')}), and no dataset with rows",
            way_out="There is nothing to stream. Read them with h5py",
            lines=("import h5py", "", f"with h5py.File({quoted(path)}) as f:", f"    print(f[{quoted(first)}][()])"),
        )


# --- words ------------------------------------------------------------------------------------------------


def _by_group(entries: Iterable[DatasetEntry]) -> dict[str, dict[str, DatasetEntry]]:
    groups: dict[str, dict[str, DatasetEntry]] = defaultdict(dict)
    for entry in entries:
        group, _, name = entry.path.rpartition("/")
        groups[group][name] = entry
    return groups


def _numbered(names: Iterable[str]) -> float:
    every = list(names)
    return sum(bool(re.search(r"\d", name)) for name in every) / max(1, len(every))


def _target(path: str) -> str:
    """Name the file that the lines write: beside where they run, whatever folder the source lies in."""
    return f"{PurePath(path).stem}.rows.h5"


def _from_to(path: str, target: str) -> Lines:
    return (
        f"source = {quoted(path)}",
        f"target = {quoted(target)}",
        'with h5py.File(source) as f, h5py.File(target, "w") as out:',
    )


def _named(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
