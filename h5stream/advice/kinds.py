"""What a file holds that is not rows of equally long datasets, and the lines that stream it: pure, from the listing.

`LOOKS` is the table: what is looked for, and what finds it. Each finder goes by names, shapes and the clues of the
listing alone, and gives what it found with lines of Python that run as they are.
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import PurePath

from h5stream.advice.cost_in_words import counted, shape_text
from h5stream.advice.lines import Lines, fields_text, loader_lines, quoted
from h5stream.storage.clues import GroupEntry
from h5stream.storage.listing import INDEX, DatasetEntry, Listing

LEAST_ALIKE = 8
"""Like datasets in one group, from which each is taken for a sample; fewer are columns as often as not."""

LEAST_GROUPS, MANY_GROUPS = 3, 20
"""Like groups, from which each is taken for a recording or an episode: if they are numbered, and anyway."""

LEAST_FILES = 3
"""Like files, from which each is taken for a sample or a recording."""

LONG_NBYTES = 16 << 20
"""Bytes of a dataset, from which its rows make many samples and not one."""

BATCH_NBYTES = 256 << 20
"""Bytes of a batch that the lines ask for, at most."""

MOST_FIELDS = 16
"""Fields that the lines name, at most."""

_NUMBERED = 0.8
"""Share of names with a digit in them, from which they count as numbered."""

_IN_MOST = 0.8
"""Share of like groups that hold a dataset, from which it counts as one that they all should have."""

_SPARSE = ("data", "indices", "indptr")

# What names say, where shapes and numbers leave it open.
_LABEL = re.compile(
    r"label|class|target|categ|arrival|text|caption|transcript|speaker|cell_?type|cluster|age$|^y$", re.I
)
_ROBOT = re.compile(r"(^|/)(next_)?(actions?|obs|observations?|rewards?|dones?|qpos|states?)($|/)", re.I)
_FLAG = re.compile(r"(^|/)(terminals?|timeouts?|dones?|terminated|truncated|is_last|is_terminal|episode_ends?)$", re.I)
_EPISODE = r"(traj(ectory|ectories)?|episodes?|ep|demos?|sequences?|seq|rollouts?)s?"
_EPISODE_ID = re.compile(rf"(^|/){_EPISODE}_?(ids?|idx|index|nums?|number)?$", re.I)
_EPISODE_EDGE = re.compile(rf"(^|/){_EPISODE}_?(lens?|lengths?|ends?|starts?|begins?|bounds?|boundaries)$", re.I)
_OFFSET = re.compile(r"off|idx|index|ptr|bound|end|start|begin|first|cum|row_splits", re.I)
_LENGTH = re.compile(r"len|count|num|size|mult|(^|[/_])n($|_)", re.I)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """Something in a file that is not rows of datasets."""

    key: str
    """A stable name, as in `LOOKS`."""
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
    nbytes: float = 0.0
    """Bytes that were ever written of what it is about."""
    example: tuple[str, ...] = ()
    """Those of the datasets that stand for all of them, where they are alike; else empty."""
    samples_text: str = ""
    fields_text: str = ""
    """What the lines give for ``samples=`` and ``fields=``, from which `h5stream inspect` counts what a batch costs."""


@dataclass(frozen=True, kw_only=True)
class _Seen:
    """What is known of a file, and how its loader is written."""

    path: str
    entries: Sequence[DatasetEntry]
    groups: Mapping[str, GroupEntry] = field(default_factory=dict)

    @cached_property
    def by_path(self) -> dict[str, DatasetEntry]:
        return {entry.path: entry for entry in self.entries}

    @cached_property
    def by_group(self) -> dict[str, dict[str, DatasetEntry]]:
        found: dict[str, dict[str, DatasetEntry]] = defaultdict(dict)
        for entry in self.entries:
            group, _, name = entry.path.rpartition("/")
            found[group][name] = entry
        return found

    def attributes(self, group: str) -> tuple[str, ...]:
        """Give the attributes of a group that can be fields."""
        return self.groups[group].attributes if group in self.groups else ()

    def count(self, group: str, seen: int) -> int:
        """Give how many of a group's links there are, of which some that are alike were seen."""
        entry = self.groups.get(group)
        return seen if entry is None else seen + entry.links - entry.looked_at

    def kind(
        self,
        key: str,
        entries: Iterable[DatasetEntry],
        what: str,
        way_out: str,
        fields: Mapping[str, str],
        *,
        samples: str = "",
        samples_count: int = 1 << 30,
        sample_nbytes: float = 0,
        rows: Iterable[DatasetEntry] = (),
        before: Lines = (),
        of_rows: bool = False,
        example: Iterable[DatasetEntry] = (),
    ) -> Kind:
        """Make a kind whose lines are a loader's."""
        about = [*entries]
        batch = max(1, min(256 if of_rows else 64, samples_count, int(BATCH_NBYTES // max(1, sample_nbytes))))
        return Kind(
            key=key,
            datasets=tuple(entry.path for entry in about),
            what=what,
            way_out=way_out,
            lines=loader_lines(self.path, fields, batch_size=batch, samples=samples, before=before),
            samples=tuple(entry.path for entry in rows),
            nbytes=sum(entry.written_nbytes for entry in about),
            example=tuple(entry.path for entry in example),
            samples_text=samples,
            fields_text="" if before else fields_text(fields, as_dict=True),
        )


def kinds_of(path: str, listing: Listing) -> tuple[Kind, ...]:
    """Find what is special about a file's datasets; the lines of Python name the file as `path` does."""
    data = [entry for entry in listing.entries if not entry.role]
    found: list[Kind] = []
    for look in LOOKS.values():
        taken = {name for kind in found for name in kind.datasets}
        rest = [entry for entry in data if entry.path not in taken]
        found += look(_Seen(path=path, entries=rest, groups=listing.groups))
    everything = _Seen(path=path, entries=listing.entries)
    return (*found, *_pytables(everything), *_single_values(everything), *_dead_links(listing))


def printed_of(kinds: Sequence[Kind], has_rows: bool) -> Kind | None:
    """Choose whose lines are printed: of what has most data, and beside rows that are streamed of these alone."""
    with_lines = [kind for kind in kinds if kind.lines and (not has_rows or kind.samples)]
    return max(with_lines, key=lambda kind: kind.nbytes, default=None)


def form_of(entry: DatasetEntry, name: str = "", *, ragged: str = "") -> str:
    """Write the field that a dataset is, as Python, under its path or another name."""
    text = quoted(name or entry.path)
    if entry.clues.image:
        return f'Field({text}, decode="{entry.clues.image}")'
    if ragged or entry.is_numbers_of_any_length:
        return f'Field({text}, ragged="{ragged or "packed"}")'
    return text


# --- sparse matrices --------------------------------------------------------------------------------------


def _sparse(seen: _Seen) -> Iterator[Kind]:
    found = {}
    for group, members in seen.by_group.items():
        parts = [members[name] for name in _SPARSE if name in members]
        if len(parts) == len(_SPARSE) and all(e.shape is not None and len(e.shape) == 1 for e in parts):
            data, indices, indptr = parts
            if data.rows and data.rows == indices.rows and (indptr.rows or 0) > 1:
                found[group] = parts
    if not found:
        return
    main = max(found, key=lambda group: (group == "X", found[group][0].rows or 0))
    rows = (found[main][2].rows or 1) - 1
    entry = seen.groups.get(main, GroupEntry(links=3, looked_at=3, sparse="rows"))
    about = [e for parts in found.values() for e in parts]
    which = f"{_named(list(found))} {'is a sparse matrix' if len(found) == 1 else 'are sparse matrices'}"
    if entry.sparse != "rows":
        yield Kind(
            key="sparse_columns" if "(CSC)" in entry.sparse else "sparse",
            datasets=tuple(e.path for e in about),
            what=which,
            way_out=entry.sparse,
            lines=_turned_to_rows(seen.path, main) if "(CSC)" in entry.sparse else (),
            nbytes=sum(e.written_nbytes for e in about),
        )
        return
    form = "packed" if entry.width > MOST_DENSE else "dense"
    fields = {"x": f'Field({quoted(main)}, ragged="{form}")', **_annotations(seen, rows, taken=set(found))}
    yield seen.kind(
        "sparse",
        about,
        f"{which}; {main} has {counted(rows, 'sample')}" + (f" of {entry.width:,} columns" if entry.width else ""),
        "ragged='dense' gives rows of it, with columns= some of their columns; ragged='packed' gives the values that "
        "are stored, and their columns",
        fields if len(fields) > 1 else {main: fields["x"]},
        samples_count=rows,
        sample_nbytes=4.0 * entry.width * (form == "dense"),
        of_rows=True,
    )


MOST_DENSE = 100_000
"""Columns of a sparse matrix, up to which its rows are asked for as dense ones."""


def _annotations(seen: _Seen, rows: int, taken: Iterable[str] = ()) -> dict[str, str]:
    """Give what is known of each of so many rows beside a matrix: a label, or else whatever comes first."""
    found: dict[str, str] = {}
    for entry in seen.entries:
        group, _, name = entry.path.rpartition("/")
        if entry.rows != rows or group in taken or len(entry.shape or ()) != 1:
            continue
        if name == "codes" and "categories" in seen.by_group[group]:
            found[group] = quoted(group)
        elif "obs" in group.split("/") and not entry.members:
            found[entry.path] = quoted(entry.path)
        for member in entry.members if entry.path == "obs" else ():
            found[member.name] = quoted(member.name)
    labels = [name for name in found if _LABEL.search(re.split(r"[/:]", name)[-1])] or [*found]
    return {re.split(r"[/:]", name)[-1]: found[name] for name in labels[:1]}


def _turned_to_rows(path: str, group: str) -> Lines:
    """Give the lines that write a matrix row by row."""
    target = _target(path)
    return (
        "import h5py",
        "import numpy as np",
        "from h5stream import Field, H5StreamLoader",
        "",
        *_from_to(path, target),
        f"    matrix = f[{quoted(group)}]",
        '    data, indices, indptr = (matrix[name][:] for name in ("data", "indices", "indptr"))',
        "    columns = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))",
        '    order = np.argsort(indices, kind="stable")',
        "    counts = np.bincount(indices)",
        '    out["x/data"], out["x/indices"] = data[order], columns[order]',
        '    out["x/indptr"] = np.append(0, counts.cumsum())',
        '    out["x"].attrs["shape"] = [len(counts), len(indptr) - 1]',
        "",
        *loader_lines(target, {"x": 'Field("x", ragged="dense")'}, batch_size=256)[2:],
    )


def _anndata(seen: _Seen) -> Iterator[Kind]:
    matrix = seen.by_path.get("X")
    if matrix is None or len(matrix.shape or ()) != 2 or not matrix.rows:
        return
    beside = _annotations(seen, matrix.rows)
    if beside and any(name.startswith(("obs", "var")) for name in seen.by_path):
        yield seen.kind(
            "anndata",
            [matrix],
            f"It looks like AnnData's: X has {counted(matrix.rows, 'sample')}, and obs says what each is",
            "Columns of obs that are categories come as their codes, and loader.dataset.categories says what these are",
            {"x": quoted("X"), **beside},
            samples_count=matrix.rows,
            sample_nbytes=matrix.row_nbytes,
            rows=[matrix],
            of_rows=True,
        )


# --- one behind the other: episodes, and samples of unlike lengths --------------------------------------------


def _episodes(seen: _Seen) -> Iterator[Kind]:
    by_rows: dict[int, list[DatasetEntry]] = defaultdict(list)
    for entry in seen.entries:
        if entry.rows:
            by_rows[entry.rows].append(entry)
    for rows, beside in sorted(by_rows.items(), key=lambda item: -sum(e.raw_nbytes for e in item[1])):
        said, of = _episodes_said(seen, rows, beside)
        fields = [entry for entry in beside if entry not in said and not re.search(r"(^|/)next_", entry.path)]
        if not said or not fields or rows < LEAST_ALIKE:
            continue
        yield seen.kind(
            "episodes",
            beside,
            f"{_named([entry.path for entry in said])} {'says' if len(said) == 1 else 'say'} where episodes end in "
            f"{counted(rows, 'row')} that lie one behind the other",
            f"samples=Sequences(16, of={of}) takes rows that follow one another and stay inside an episode",
            _keyed(fields[:MOST_FIELDS]),
            samples=f'Sequences(16, of={of}, pad="edge")',
            samples_count=rows,
            sample_nbytes=16.0 * sum(entry.row_nbytes for entry in fields[:MOST_FIELDS]),
            rows=beside,
        )
        return


def _episodes_said(seen: _Seen, rows: int, beside: list[DatasetEntry]) -> tuple[list[DatasetEntry], str]:
    """Give the datasets that say where episodes of so many rows end, and how `Sequences` is told."""
    flat = [entry for entry in beside if len(entry.shape or ()) == 1]
    flags = [entry for entry in flat if _FLAG.search(entry.path) and _is_flag(entry)]
    if flags:
        return flags, f"Ends({', '.join(quoted(entry.path) for entry in flags)})"
    for entry in flat:
        counts = entry.clues.counts
        if counts and _EPISODE_ID.search(entry.path) and 0 < counts.changes < rows / 2:
            return [entry], f"Ids({quoted(entry.path)})"
    for entry in seen.entries:
        if _EPISODE_EDGE.search(entry.path) and entry.rows != rows and (how := _says_rows(entry, rows)):
            return [entry], f"{how}({quoted(entry.path)})"
    return [], ""


def _is_flag(entry: DatasetEntry) -> bool:
    counts = entry.clues.counts
    if counts is None:
        return entry.dtype.startswith("float")
    return counts.total < 0 or (counts.least >= 0 and counts.most <= 1 and 0 < counts.total < (entry.rows or 0) / 2)


def _says_rows(entry: DatasetEntry, rows: int) -> str:
    """Tell whether numbers are bounds or lengths of stretches of so many rows; empty if they are neither."""
    counts, name = entry.clues.counts, entry.path.rsplit("/", 1)[-1]
    if counts is None or (entry.rows or 0) < 2 or entry.rows == rows + 1 or counts.least < 0:
        return ""
    is_bound = counts.is_rising and counts.last == rows and (counts.first == 0 or _OFFSET.search(name))
    if is_bound and (counts.changes > 0 or _OFFSET.search(name)):
        return "Bounds"
    return "Lengths" if counts.total == rows and _LENGTH.search(name) and counts.most != rows else ""


def _ragged(seen: _Seen) -> Iterator[Kind]:
    """Find samples of any number of rows, of which offsets or counts say how many each has."""
    found: dict[int, list[tuple[DatasetEntry, str, list[DatasetEntry]]]] = defaultdict(list)
    by_rows: dict[int | None, list[DatasetEntry]] = defaultdict(list)
    for entry in seen.entries:
        by_rows[entry.rows].append(entry)
    for entry in seen.entries:
        counts = entry.clues.counts
        for rows in {counts.last, counts.total} - {entry.rows, 0, -1, None} if counts else ():
            how, flat = _says_rows(entry, rows), by_rows.get(rows, [])
            if how and flat and sum(e.raw_nbytes for e in flat) > entry.raw_nbytes / 16:
                has_first = how == "Bounds" and counts is not None and counts.first == 0
                found[(entry.rows or 0) - has_first].append((entry, how, flat))
    if not found:
        return
    count = max(found, key=lambda n: sum(e.written_nbytes for _, _, flat in found[n] for e in flat))
    fields, about, told = dict[str, str](), list[DatasetEntry](), dict[str, list[str]]()
    for entry, how, flat in sorted(found[count], key=lambda one: one[1]):  # bounds before lengths of the same
        chosen = [e for e in _of_largest_group(flat) if e.path not in fields][:MOST_FIELDS]
        if chosen:
            told[entry.path] = [e.path for e in chosen]
            about += [entry, *chosen]
            fields |= {e.path: f"Field({quoted(e.path)}, rows={how}({quoted(entry.path)}))" for e in chosen}
    beside = [e for e in by_rows.get(count, []) if e.path not in told and not e.members][:MOST_FIELDS]
    fields |= {e.path: form_of(e) for e in beside}
    which = [name for names in told.values() for name in names]
    yield seen.kind(
        "ragged",
        [*about, *beside],
        f"{_named([*told])} {'says' if len(told) == 1 else 'say'} which rows of {_named(which[:3])}"
        f"{' and others' if len(which) > 3 else ''} each of {counted(count, 'sample')} has",
        'rows= takes that. Fields come as values and offsets, or with ragged="pad", "nested" or "list" otherwise; '
        "max_length= and crop=Crop(...) take a part of each",
        _short_keys(fields),
        samples_count=count,
        of_rows=True,
    )


def _of_largest_group(entries: Sequence[DatasetEntry]) -> list[DatasetEntry]:
    """Give those that lie in one group, in the one that has most bytes of them."""
    groups: dict[str, list[DatasetEntry]] = defaultdict(list)
    for entry in entries:
        groups[entry.path.rpartition("/")[0]].append(entry)
    return max(groups.values(), key=lambda group: sum(entry.written_nbytes for entry in group))


def _named_objects(seen: _Seen) -> Iterator[Kind]:
    """Find texts, one a row, that are the names of datasets of a group."""
    texts = {entry.path: {_family(word) for word in entry.clues.words} for entry in seen.entries if entry.clues.words}
    for group, members in seen.by_group.items():
        there = {_family(name): entry for name, entry in members.items() if entry.shape or entry.clues.image}
        for path, words in texts.items():
            if len(members) < LEAST_GROUPS or path.rpartition("/")[0] == group or not words <= set(there):
                continue
            count, first = seen.by_path[path].rows or 0, there[min(words)]
            alike = [
                e for e in members.values() if e.dtype == first.dtype and len(e.shape or ()) == len(first.shape or ())
            ]
            unlike = _unlike_axes(alike)
            if any(unlike) and not first.clues.image:
                continue
            name = f"{group}/{{}}".lstrip("/")
            form = form_of(first, name, ragged="pad" if unlike else "")[: -1 if first.clues.image or unlike else None]
            opened = form if first.clues.image or unlike else f"Field({form}"
            beside = [e for e in seen.entries if e.rows == count and e.path != path and not e.members][:MOST_FIELDS]
            yield seen.kind(
                "named",
                [seen.by_path[path], *alike, *beside],
                f"{path} names, for each of {counted(count, 'sample')}, a dataset of {group or 'the root'}",
                "names= looks it up; each is read once a window, however many samples name it",
                {
                    re.sub(r"_?(ids?|names?)$", "", path.rpartition("/")[2]) or "x": f"{opened}, names={quoted(path)})",
                    **_keyed(beside),
                },
                samples_count=count,
                sample_nbytes=max(e.raw_nbytes for e in alike),
            )
            return


def _family(name: str) -> str:
    """Give what names have in common that differ in their numbers."""
    return re.sub(r"\d+", "0", name)


# --- a dataset a sample -----------------------------------------------------------------------------------


def _dataset_a_sample(seen: _Seen) -> Iterator[Kind]:
    for group, members in seen.by_group.items():
        families: dict[tuple[str, int, str], dict[str, DatasetEntry]] = defaultdict(dict)
        for name, entry in members.items():
            is_image = bool(entry.clues.image) and not (entry.shape or ())[1:] and not entry.variable_length
            if is_image or (entry.shape and entry.rows and not entry.variable_length and not entry.members):
                dtype = "image" if is_image else entry.dtype
                families[dtype, len(entry.shape or ()), entry.clues.image if is_image else ""][name] = entry
        for alike in families.values():
            if _are_samples(alike):
                yield _samples(seen, group, alike, members)


def _are_samples(alike: dict[str, DatasetEntry]) -> bool:
    entries = [*alike.values()]
    if len(alike) < LEAST_ALIKE:
        return False
    if entries[0].clues.image:
        return True
    if _numbered(alike) < _NUMBERED and len(alike) < 5 * LEAST_ALIKE:
        return False
    lengths = {entry.rows or 0 for entry in entries}
    columns = len(lengths) == 1 and all(len(entry.shape or ()) == 1 for entry in entries)
    # Equally long datasets of single numbers are columns, until there are more of them than rows.
    return not columns or len(alike) > max(lengths)


def _samples(seen: _Seen, group: str, alike: dict[str, DatasetEntry], members: Iterable[str]) -> Kind:
    entries = sorted(alike.values(), key=lambda entry: entry.raw_nbytes)
    least, largest, count = entries[0], entries[-1], seen.count(group, len(alike))
    image, unlike = largest.clues.image, _unlike_axes(entries)
    pattern = _pattern(group, alike, members)
    of = quoted(pattern) if pattern else "names"
    shared = set.intersection(*(set(entry.clues.attributes) for entry in entries))
    attributes = _labels([name for name in largest.clues.attributes if name in shared])
    samples, form, nbytes = f"Objects({of})", quoted("."), largest.raw_nbytes
    way_out = f'samples={samples} takes each whole, as the field "."'
    if image:
        form, nbytes = form_of(largest, "."), 1 << 19
        way_out += ", and decode= makes an image of its bytes"
    elif len(unlike) > 1:
        form = form_of(largest, ".", ragged="arrays")
        way_out += ', and ragged="arrays" gives each in its own shape'
    elif nbytes > LONG_NBYTES or any(unlike):
        axis, shape = (unlike or [0])[0], least.shape or (1,)
        room = max(1, (1 << 20) * (largest.shape or (1,))[axis] // max(1, nbytes))
        length = min(shape[axis], room) if nbytes > LONG_NBYTES else shape[axis]
        stride = f", stride={length}" if nbytes > LONG_NBYTES else ""
        samples = f"Sequences({length}{stride}, of={of}{f', axis={axis}' if axis else ''})"
        way_out = f"samples={samples} takes {length:,} that follow one another along axis {axis} of one of them"
        nbytes = least.raw_nbytes // shape[axis] * length
    elif unlike:
        form = form_of(largest, ".", ragged="pad")
        way_out += ', which ragged="pad" fills up to the longest of the batch; max_length= and crop= take a part'
    if attributes:
        way_out += '; "@name" is an attribute of it'
    shapes = shape_text(least.shape or ()) + (f" to {shape_text(largest.shape or ())}" if unlike else "")
    form_text = f"{image} images" if image else f"{shapes} {largest.dtype}"
    fields = {"x": form, **{name: quoted(f"@{name}") for name in attributes}}
    return seen.kind(
        "dataset_a_sample",
        entries,
        f"{group or 'The root'} holds {count:,} like datasets ({form_text}, such as {max(alike)!r}): each is a sample, "
        "or a recording, of its own",
        way_out,
        fields if len(fields) > 1 else {".": form},
        samples=samples,
        samples_count=count,
        sample_nbytes=nbytes,
        before=() if pattern else _names_of_alike(seen.path, group, largest),
        example=[largest],
    )


def _names_of_alike(path: str, group: str, first: DatasetEntry) -> Lines:
    """Give the lines that name the datasets where no pattern does."""
    above = f"{group}/" if group else ""
    return (
        f"with h5py.File({quoted(path)}) as f:",
        f"    group = f[{quoted('/' + group)}]",
        "    alike = [n for n in group if isinstance(group[n], h5py.Dataset)]",
        f"    alike = [n for n in alike if group[n].ndim == {len(first.shape or ())}]",
        f"    alike = [n for n in alike if group[n].dtype == group[{quoted(first.path.rpartition('/')[2])}].dtype]",
        f"    names = [{quoted(above)} + n for n in alike]" if above else "    names = alike",
    )


# --- a group, or a file, a sample or a recording --------------------------------------------------------------


def _groups(seen: _Seen) -> Iterator[Kind]:
    by_parent: dict[str, dict[str, dict[str, DatasetEntry]]] = defaultdict(lambda: defaultdict(dict))
    for entry in seen.entries:
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
            yield _like_things(seen, parent, alike, by_parent[parent])


def _like_groups(groups: Mapping[str, dict[str, DatasetEntry]]) -> dict[str, dict[str, DatasetEntry]]:
    """Give the groups that hold all datasets which most of them hold, and of each those."""
    held: dict[tuple[str, str, int], list[str]] = defaultdict(list)
    for name, inside in groups.items():
        for relative, entry in inside.items():
            if entry.shape is not None and 0 not in entry.shape:
                held[relative, entry.dtype, len(entry.shape)].append(name)
    most = max(map(len, held.values()), default=0)
    common = {key: names for key, names in held.items() if len(names) >= _IN_MOST * most}
    relatives = list(dict.fromkeys(relative for relative, _, _ in common))
    # Of two types under one name, the one that more groups have.
    named = {name: max((k for k in common if k[0] == name), key=lambda k: len(common[k])) for name in relatives}
    members = [name for name in groups if all(name in common[key] for key in named.values())]
    if members and not any(groups[members[0]][relative].shape for relative in relatives):
        return {}  # single values alone
    found = {name: {relative: groups[name][relative] for relative in relatives} for name in members}
    return _of_one_shape(found)


def _of_one_shape(groups: dict[str, dict[str, DatasetEntry]]) -> dict[str, dict[str, DatasetEntry]]:
    """Leave out the groups whose rows are of another shape than those of most."""
    by_shape: dict[tuple[tuple[int, ...], ...], list[str]] = defaultdict(list)
    for name, inside in groups.items():
        by_shape[tuple((entry.shape or ())[1:] for entry in inside.values())].append(name)
    most = max(by_shape.values(), key=len, default=[])
    # Where no shape is that of most, each may have its own.
    return {name: groups[name] for name in most} if len(most) >= _IN_MOST * len(groups) else groups


@dataclass(frozen=True, slots=True, kw_only=True)
class _Alike:
    """Groups or files that hold the same: what of it are rows, what is there once, and what is as long in all."""

    what: str
    """``"groups"`` or ``"files"``."""
    said: str
    """What they are, as a sentence that is not closed."""
    count: int
    of: str
    """How `Objects`, `Rows` and `Sequences` are told which they are, as Python."""
    before: Lines
    every: Sequence[dict[str, DatasetEntry]]
    rows: list[str]
    once: list[str]
    fixed: set[str]
    attributes: list[str]
    longer: list[str]

    def form(self, name: str) -> str:
        """Write a field whose rows, or which as a whole, differs along other axes than the first; else empty."""
        unlike = _unlike_axes([group[name] for group in self.every])
        return form_of(self.every[0][name], name, ragged="arrays") if any(unlike) else ""


def _like_things(
    seen: _Seen, parent: str, groups: dict[str, dict[str, DatasetEntry]], siblings: Iterable[str], files: bool = False
) -> Kind:
    """Tell what groups that are alike are: a sample each, episodes, or rows of one table."""
    first, every = next(iter(groups)), [*groups.values()]
    rows, once = _rows_and_once(every)
    pattern = "files" if files else _pattern(parent, groups, siblings)
    shared = _shared_attributes(seen, parent, groups)
    what, count = "files" if files else "groups", seen.count(parent, len(groups))
    where, example = ("The pattern", PurePath(first).name) if files else (parent or "The root", repr(first))
    with_what = f"{', '.join(rows[:3])}{' ...' if len(rows) > 3 else ''}"
    alike = _Alike(
        what=what,
        said=f"{where} holds {count:,} like {what} (such as {example}, with {with_what}",
        count=count,
        of=quoted(pattern) if pattern else "groups",
        before=() if pattern else _alike_lines(seen.path, parent, first, [*rows, *once]),
        every=every,
        rows=rows,
        once=once,
        fixed={name for name in every[0] if len({group[name].shape for group in every}) == 1},
        attributes=_labels(shared),
        longer=_with_a_row_more(every, rows),
    )
    if _is_a_sample(alike, is_labelled=any(map(_LABEL.search, shared))):
        return _as_samples(seen, alike)
    return _as_recordings(seen, alike, () if files else max(every, key=_written_nbytes).values())


def _as_samples(seen: _Seen, alike: _Alike) -> Kind:
    chosen, every = _most_of(alike.every[0]), alike.every
    form = {n: alike.form(n) or form_of(every[0][n], n, ragged="" if n in alike.fixed else "pad") for n in chosen}
    padded = any('ragged="pad"' in one for one in form.values())
    return seen.kind(
        "group_a_sample",
        [entry for group in every for entry in group.values()],
        f"{alike.said}): each is a sample of its own",
        f"samples=Objects({alike.of}) takes each whole"
        + ('; ragged="pad" fills up to the longest of the batch' if padded else "")
        + ('; ragged="arrays" gives each in its own shape' if any(map(alike.form, chosen)) else "")
        + ('; "@name" is an attribute of it' if alike.attributes else ""),
        {**form, **{name: quoted(f"@{name}") for name in alike.attributes}},
        samples=f"Objects({alike.of})",
        samples_count=alike.count,
        sample_nbytes=max(sum(group[name].raw_nbytes for name in chosen) for group in every),
        before=alike.before,
        example=every[0].values(),
    )


def _as_recordings(seen: _Seen, alike: _Alike, streamed: Collection[DatasetEntry]) -> Kind:
    every, of, first = alike.every, alike.of, alike.every[0]
    lengths = [group[alike.rows[0]].rows or 0 for group in every]
    count = f"{min(lengths):,}" if min(lengths) == max(lengths) else f"{min(lengths):,} to {max(lengths):,}"
    is_robot = len([name for name in (*alike.rows, *alike.longer) if _ROBOT.search(name)]) > 1
    every_row = [*alike.rows, *(alike.longer if is_robot else ())]
    every_row = [name for name in every_row if not (is_robot and alike.form(name))] or every_row
    now = [name for name in every_row if not re.search(r"(^|/)next_", name)] or every_row
    chosen = _most_of({name: first[name] for name in now})
    shortest = ', lengths="shortest"' if is_robot and alike.longer else ""
    fields = {name: alike.form(name) or form_of(first[name], name) for name in chosen}
    fields |= {n: f"Field({quoted(n)}, repeat=True)" for n in alike.once if n in alike.fixed}
    unlike = any(map(alike.form, chosen))
    # Rows of files follow one another anyway.
    rows_of = "" if alike.what == "files" and not unlike else f"Rows(of={of})"
    return seen.kind(
        "group_a_recording",
        [entry for group in every for entry in group.values()],
        f"{alike.said} of {count} rows): each is a recording (an episode, a sensor) of its own",
        f"{f'samples={rows_of}' if rows_of else 'The loader'} makes the rows of all one dataset, "
        f"samples=Sequences(16, of={of}) takes sequences of "
        f"rows that stay inside a {alike.what[:-1]}"
        + ("" if alike.before else f', and samples=Objects({of}) takes each whole, with Field(..., ragged="pad")'),
        fields,
        samples=f'Sequences(16, of={of}, pad="edge"{shortest})' if is_robot else rows_of,
        samples_count=sum(lengths) * alike.count // len(every),
        sample_nbytes=(16 if is_robot else 1) * sum(first[name].row_nbytes for name in chosen),
        rows=streamed,
        before=alike.before,
        of_rows=True,
        example=streamed or first.values(),
    )


def _unlike_axes(entries: Sequence[DatasetEntry]) -> list[int]:
    shapes = [entry.shape or () for entry in entries]
    return [axis for axis in range(len(shapes[0])) if len({shape[axis] for shape in shapes}) > 1]


def _is_a_sample(alike: _Alike, *, is_labelled: bool) -> bool:
    """Tell whether a group is one sample, and not rows of which each is one."""
    first, fixed = alike.every[0], alike.fixed
    if any(_ROBOT.search(name) or first[name].members for name in alike.rows):
        return False
    if any(alike.form(name) for name in first):
        # Where all agree in all axes a place of one is that of the others, as of an image and its mask.
        return all(len({group[name].shape for name in alike.rows}) == 1 for group in alike.every)
    if len(fixed) == len(first):
        # A label beside each row makes them rows.
        is_flat = any(len(first[name].shape or ()) == 1 for name in alike.rows)
        is_long = is_flat and len(alike.rows) > 1 and (first[alike.rows[0]].rows or 0) > LEAST_ALIKE
        return is_labelled or (len(first) > 1 and not is_long)
    varying = [tuple(group[name].rows for group in alike.every) for name in first if name not in fixed]
    return len(set(varying)) > 1 or (len(varying) == 1 and (is_labelled or len(first) > 1))


def _most_of(members: Mapping[str, DatasetEntry]) -> list[str]:
    """Give the names that the lines have: all, or where these are many those with the most bytes."""
    most = sorted(members, key=lambda name: -members[name].raw_nbytes)[:MOST_FIELDS]
    return [name for name in members if name in most]


def _shared_attributes(seen: _Seen, parent: str, names: Iterable[str]) -> list[str]:
    above = f"{parent}/" if parent else ""
    every = [seen.attributes(above + name) for name in names]
    return [name for name in every[0] if all(name in others for others in every)]


def _labels(attributes: Sequence[str], most: int = 2) -> list[str]:
    """Give the attributes that look like what a sample is asked for; else the first."""
    return ([name for name in attributes if _LABEL.search(name)] or [*attributes[:1]])[:most]


def _rows_and_once(groups: Sequence[dict[str, DatasetEntry]]) -> tuple[list[str], list[str]]:
    """Tell what has as many rows in each group as most of the data has from what each group has once."""
    by_counts = defaultdict(list)
    for name in groups[0]:
        if groups[0][name].shape:
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
    if set(siblings) == set(wanted) and re.search(r"\d", start):
        start = ""  # what these few share is no name
    found = f"{parent}/{start}*" if parent else f"{start}*"
    fits = {name for name in siblings if name.startswith(start)} == set(wanted)
    return found if fits and not re.search(r"[*?[]", found[:-1]) else ""


def _alike_lines(path: str, parent: str, first: str, names: Sequence[str]) -> Lines:
    """Give the lines that find the groups where no pattern does."""
    return (
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
    )


def _with_a_row_more(groups: Sequence[dict[str, DatasetEntry]], rows: Sequence[str]) -> list[str]:
    """Give what has a row more in each group than what is given, or a row less."""
    found = []
    for name in groups[0]:
        more = {(group[name].rows or 0) - (group[rows[0]].rows or 0) for group in groups if group[name].shape}
        found += [name] if more in ({1}, {-1}) else []
    return found


def _written_nbytes(group: dict[str, DatasetEntry]) -> float:
    return sum(entry.written_nbytes for entry in group.values())


def kinds_of_files(pattern: str, listings: Mapping[str, Listing], count: int) -> tuple[Kind, ...]:
    """Find what files are that hold the same: a sample or a recording each; `pattern` names all of them."""
    inside = {
        path: {entry.path: entry for entry in listing.entries if not entry.role} for path, listing in listings.items()
    }
    alike = _like_groups(inside)
    if len(alike) < max(LEAST_FILES, _IN_MOST * len(listings)):
        return ()
    seen = _Seen(
        path=pattern,
        entries=[entry for group in alike.values() for entry in group.values()],
        groups={
            "": GroupEntry(links=count, looked_at=len(alike)),
            **{path: listing.groups[""] for path, listing in listings.items() if "" in listing.groups},
        },
    )
    return (_like_things(seen, "", alike, alike, files=True),)


# --- NWB, MATLAB, PyTables, single values -----------------------------------------------------------------


def _nwb(seen: _Seen) -> Iterator[Kind]:
    if "nwb_version" not in seen.attributes(""):
        return
    series = {
        group: members
        for group, members in seen.by_group.items()
        if "data" in members
        and (members["data"].rows or 0) > 1
        and ("timestamps" in members or "starting_time" in members)
    }
    if not series:
        return
    group = max(series, key=lambda name: series[name]["data"].written_nbytes)
    data = series[group]["data"]
    beside = [one for name, one in series[group].items() if name in ("data", "timestamps") and one.rows == data.rows]
    length = max(1, min(100, (data.rows or 1) // 2))
    yield seen.kind(
        "nwb",
        beside,
        f"It is Neurodata Without Borders (NWB); {group} is a recording of {counted(data.rows or 0, 'row')}",
        f"samples=Sequences({length}) takes {length:,} rows that follow one another; without samples= each row is one",
        _short_keys({one.path: quoted(one.path) for one in beside}),
        samples=f"Sequences({length})",
        samples_count=data.rows or 1,
        sample_nbytes=length * data.row_nbytes,
        rows=beside,
        of_rows=True,
    )


def _matlab(seen: _Seen) -> Iterator[Kind]:
    arrays = [e for e in seen.entries if e.matlab_class and e.shape and len(e.shape) > 1 and max(e.shape) > 1]
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
            way_out=f"A row here is {largest.path}({last}, i) in MATLAB. samples=Rows(axis=-1) takes what "
            "lies along the last axis here, which is MATLAB's first",
            samples=tuple(e.path for e in arrays),
        )
        return
    rows = (turned[0].shape or (0,))[-1]
    yield seen.kind(
        "matlab_turned",
        turned,
        f"{what}. The {counted(rows, 'sample')} of {_named([e.path for e in turned])} lie along the last axis here, "
        "not the first",
        "samples=Rows(axis=-1) takes them along that axis",
        {e.path: quoted(e.path) for e in turned[:MOST_FIELDS]},
        samples="Rows(axis=-1)",
        samples_count=rows,
        of_rows=True,
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


def _pytables(seen: _Seen) -> Iterator[Kind]:
    index = [entry.path for entry in seen.entries if entry.role == INDEX]
    if index:
        yield Kind(
            key="pytables",
            datasets=tuple(index),
            what=f"{counted(len(index), 'dataset')} with _i_ in the path {'are' if len(index) > 1 else 'is'} what "
            "PyTables keeps to find rows of its tables, and no data",
            way_out="",
        )


def _dead_links(listing: Listing) -> Iterator[Kind]:
    dead = [f"{path}/{name}".lstrip("/") for path, group in listing.groups.items() for name in group.dead]
    if dead:
        yield Kind(
            key="dead_links",
            datasets=(),
            what=f"{counted(len(dead), 'link')} {'lead' if len(dead) > 1 else 'leads'} nowhere, such as {dead[0]!r}",
            way_out="What they were to lead to is no sample: a pattern leaves them out, with a warning",
        )


def _single_values(seen: _Seen) -> Iterator[Kind]:
    if seen.entries and all(not entry.shape and not entry.clues.image for entry in seen.entries):
        first = seen.entries[0].path
        yield Kind(
            key="single_values",
            datasets=tuple(entry.path for entry in seen.entries),
            what=f"It holds single values only ({counted(len(seen.entries), 'dataset')}), and no dataset with rows",
            way_out="There is nothing to stream. Read them with h5py",
            lines=(
                "import h5py",
                "",
                f"with h5py.File({quoted(seen.path)}) as f:",
                f"    print(f[{quoted(first)}][()])",
            ),
        )


LOOKS: dict[str, Callable[[_Seen], Iterator[Kind]]] = {
    "sparse": _sparse,  # also "sparse_columns"
    "anndata": _anndata,
    "nwb": _nwb,
    "named": _named_objects,
    "dataset_a_sample": _dataset_a_sample,
    "group_a_sample": _groups,  # also "group_a_recording"
    "episodes": _episodes,
    "ragged": _ragged,
    "matlab": _matlab,  # also "matlab_turned"
}
"""What is looked for, in this order: what one finds, the next does not see."""


# --- words ------------------------------------------------------------------------------------------------


def _keyed(entries: Iterable[DatasetEntry]) -> dict[str, str]:
    """Give fields by short names."""
    return _short_keys({entry.path: form_of(entry) for entry in entries})


def _short_keys(fields: Mapping[str, str]) -> dict[str, str]:
    """Give fields by the ends of their paths, where these differ."""
    short = [re.split(r"[/:]", name)[-1] for name in fields]
    differ = len(set(short)) == len(short)
    return dict(zip(short if differ else fields, fields.values(), strict=True))


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
