"""Inspection of files for training: their datasets, the cost of a batch, and possible improvements.

Results are values; `h5stream.cli.inspect` prints them, and `Inspection.to_dict` returns them as plain containers.

Small detectors, one per layout, recognize contents other than rows of equally long datasets, from names, shapes and the
clues of the listing alone. A proposal is tried on a few samples; only if it works, its datasets are hidden from the
detectors that follow.
"""

from __future__ import annotations

import functools
import math
import operator
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import Executor
from dataclasses import asdict, dataclass, replace
from typing import Any

from h5stream.advice import batch_rows, similar
from h5stream.advice.cost import Advice, SampleCost, almost_as_long, cost_sample, repack_command
from h5stream.advice.listing import INDEX, MOST_DATASETS, REFUSED, DatasetEntry, Listing, list_file, root_fields
from h5stream.advice.program import (
    MOST_FIELDS,
    Lines,
    Proposal,
    StreamRecipe,
    family_of,
    fields_from_text,
    form_of,
    keyed,
    last_name,
    loader_lines,
    named,
    quoted,
    short_keys,
    tried,
    turned_to_rows,
    with_options,
)
from h5stream.base import limits
from h5stream.base.executors import check_executor, run_jobs
from h5stream.base.texts import counted, names_in, names_text, shape_text
from h5stream.dataset.dataset import H5Dataset
from h5stream.engine.footprint import check_budget, default_budget
from h5stream.errors import H5StreamError, OptionError
from h5stream.loader.settings import cast_for_layers
from h5stream.samples.whole import LABEL, LEAST_GROUPS, LONG_COUNT, MIN_SIMILAR
from h5stream.storage.source.local import identity_of
from h5stream.storage.source.stores import StoreUsage, store_usage

_MOST_CHOSEN = 64  # the most fields of a sample if none are named
_NOT_ROWS = "its samples are not rows of its datasets, as said above"
_NO_ROWS = "no dataset here has rows that can be streamed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """A file as seen by a training loop."""

    file: str
    file_nbytes: int
    asked: StoreUsage  # requests to a store to list it and to open its sample
    entries: tuple[DatasetEntry, ...]  # the datasets, in file order
    # the datasets by number of rows, those of the sample first, then by bytes; None if they have no rows
    groups: dict[int | None, list[DatasetEntry]]
    left_out: int  # datasets that were not inspected
    sample: SampleCost | None  # the cost of a batch
    no_sample: str  # why there is no sample, or empty
    kinds: tuple[Proposal, ...]  # contents other than rows of datasets, and how to stream them
    lines: Lines  # code that streams the sample; empty if there is none
    advice: tuple[Advice, ...]  # improvements; empty if nothing is wrong
    repack_command: str  # command that writes a better layout, or empty

    def to_dict(self) -> dict[str, object]:
        """Return everything as plain containers for JSON, with the derived figures of datasets."""
        plain = asdict(replace(self, kinds=(), entries=(), groups={}, sample=None))
        del plain["entries"]
        plain["sample"] = None if self.sample is None else self.sample.to_dict()
        groups = [
            {"rows": rows, "datasets": [entry.to_dict() for entry in datasets]}
            for rows, datasets in self.groups.items()
        ]
        kinds = [kind.to_dict() for kind in self.kinds]
        return plain | {"asked": self.asked._asdict(), "groups": groups, "kinds": kinds}


def inspect_file(
    path: str,
    *,
    fields: Sequence[str] | None = None,
    batch_size: int | None = None,
    memory_budget: int | None = None,
    threads: int | None = None,
    allow_external: bool = False,
    listing: Listing | None = None,
) -> Inspection:
    """Inspect a file, or a listing of it made by another process, and compute the cost of shuffled batches."""
    if batch_size is not None and batch_size < 1:
        raise OptionError(f"a batch has at least one row, not {batch_size}")
    if listing is None:
        listing = list_file(path, most=MOST_DATASETS, allow_external=allow_external)
    before = StoreUsage(*map(operator.sub, store_usage(), listing.asked))  # another process may have made the listing
    entries, by_path = tuple(listing.entries), listing.by_path
    kinds = proposals_of(path, listing, allow_external=allow_external)
    # Datasets that only links lead to are not listed, but are fields too.
    root = [] if fields else root_fields(path, allow_external=allow_external)
    chosen_by, names = _choose_fields(by_path, fields, kinds, root)
    forms = {name: form_of(by_path[name]) if name in by_path and not fields else quoted(name) for name in names}
    budget = default_budget(limits.memory_total_bytes()) if memory_budget is None else check_budget(memory_budget)
    apart = any(kind.lines and not kind.rows and kind.key != "single_values" for kind in kinds)
    sample, advice, lines, no_sample = None, tuple[Advice, ...](), Lines(), _NOT_ROWS if apart else _NO_ROWS
    asked = store_usage(before)
    try:
        if names:
            dataset = H5Dataset(path, [*map(fields_from_text, forms.values())], allow_external=allow_external)
            asked = store_usage(before)
            if not fields:
                to_cast = {field.name for field, _ in cast_for_layers(dataset.layout)}
                forms |= {name: with_options(forms[name], dtype='"float32"') for name in to_cast & forms.keys()}
            size = batch_size or batch_rows(len(dataset), dataset.layout.row_nbytes)
            sample, advice = cost_sample(dataset, entries, names, chosen_by, size, budget, threads)
    except H5StreamError as error:
        if fields:
            raise
        no_sample = str(error)
    # For fields that the user did not name, print only a program that works.
    if sample and (fields or not tried(loader_lines(path, forms, 1, allow_external=allow_external))[0]):
        small = memory_budget is not None or any(one.key == "budget_too_small" for one in advice)
        options = [f"memory_budget={sample.resources.memory_budget}"] * small
        lines = loader_lines(path, forms, sample.batch.rows, options=options, allow_external=allow_external)
    sample_paths = {d.path for d in sample.datasets} if sample else set()
    advice += () if fields or kinds else tuple(almost_as_long(entries, sample_paths))
    return Inspection(
        file=path,
        file_nbytes=identity_of(path).size,
        asked=asked,
        entries=entries,
        groups=_by_rows(entries, sample_paths),
        left_out=listing.left_out,
        sample=sample,
        no_sample="" if sample else no_sample,
        kinds=kinds,
        lines=lines,
        advice=advice,
        repack_command=repack_command(path, advice, sample_paths, entries),
    )


def inspect_files(paths: Sequence[str], *, executor: Executor | None = None, **asked: Any) -> tuple[Inspection, ...]:
    """Inspect several files, and compute the cost of their shuffled batches: in turn, or by an executor, one call each.

    Parameters
    ----------
    paths : sequence of str
        The files, or addresses.
    executor : concurrent.futures.Executor, optional
        Runs the inspections: a ``ProcessPoolExecutor``, or one of dask or mpi4py, whose machines see the same folders.
    **asked
        ``fields`` (list of names; by default all that can be read together), ``batch_size`` (samples; by default as the
        loader's, less for short files), ``memory_budget`` (bytes; by default the loader's), ``threads`` (by default one
        for each processor) and ``allow_external`` (default False), as of `H5StreamLoader`.

    Returns
    -------
    tuple of Inspection
        The inspections in the order of `paths`: `sample` (the cost of a batch, or None, and `no_sample` why),
        `advice`, `kinds`, `lines` (Python code that streams it), and ``to_dict()`` with all that ``h5stream inspect
        --json`` prints.

    Raises
    ------
    SourceError, FieldError
        If a file cannot be opened, or lacks a field; the message names it.
    IsolatedProcessError
        If a process of the executor ended: libhdf5 crashes on some damaged files.

    Examples
    --------
    >>> import h5py, os, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "a.h5")
    >>> with h5py.File(path, "w") as f:
    ...     f["x"] = range(1000)
    >>> [one.sample.rows for one in inspect_files([path])]
    [1000]
    """
    check_executor(executor)
    look = functools.partial(inspect_file, **asked)
    return tuple(run_jobs([(path, look, (path,)) for path in paths], executor))


def _choose_fields(
    entries: Mapping[str, DatasetEntry], wanted: Sequence[str] | None, kinds: Sequence[Proposal], root: list[str]
) -> tuple[str, tuple[str, ...]]:
    if wanted:
        return "named", names_in("fields=", wanted)
    # Datasets whose rows are no samples: parts of sparse matrices, whole samples, all groups but one.
    kinds = [kind for kind in kinds if not (kind.is_refused and kind.key == "ragged")]  # its rows can be streamed
    apart = {entry.path for kind in kinds for entry in kind.about if entry not in kind.rows}
    usable = {name: e for name, e in entries.items() if e.access != REFUSED and not e.clues.role and e.rows}

    def written(names: Iterable[str]) -> float:
        return sum(usable[name].written_nbytes for name in names if name in usable)

    at_root = [name for name in root if name in usable or name not in entries]
    mostly = max((written(kind.datasets) for kind in kinds if not kind.rows), default=0.0)
    as_long = {usable[name].rows for name in at_root if name in usable}
    inside = [name for name, e in usable.items() if e.rows in as_long and name not in apart and name not in at_root]
    groups = _by_rows(entry for name, entry in usable.items() if name not in apart)
    best = max(
        groups.values(), key=lambda members: (sum(d.written_nbytes for d in members), members[0].rows or 0), default=[]
    )
    # A row or two at the root describe the groups.
    is_aside = as_long <= {0, 1} and bool(best) and (best[0].rows or 0) > 1
    if at_root and not is_aside and written(at_root) >= mostly and not apart.intersection(at_root) and not inside:
        return "root", tuple(at_root)
    if not best or written(d.path for d in best) < mostly:
        return "rows", ()  # the remaining datasets describe the samples
    keep = sorted(best, key=lambda d: -d.written_nbytes)[:_MOST_CHOSEN]
    return "rows", tuple(d.path for d in best if d in keep)


def _by_rows(entries: Iterable[DatasetEntry], first: Set[str] = frozenset()) -> dict[int | None, list[DatasetEntry]]:
    """Group datasets by length: first groups with one of `first`, then by bytes."""
    groups = defaultdict[int | None, list[DatasetEntry]](list)
    for entry in entries:
        groups[entry.rows].append(entry)

    def place(group: tuple[int | None, list[DatasetEntry]]) -> tuple[bool, bool, float]:
        rows, members = group
        return first.isdisjoint(d.path for d in members), not rows, -sum(d.written_nbytes for d in members)

    return dict(sorted(groups.items(), key=place))


# --- detectors -------------------------------------------------------------------------------------------

LONG_ROW = 1 << 15  # values along the last axis of a row from which it is a signal to be cut
MOST_DENSE = 100_000  # columns of a sparse matrix up to which dense rows are proposed

_SPARSE = ("data", "indices", "indptr")

# Names that decide if shapes and numbers leave it open.
_FLAG = re.compile(r"(^|/)(terminals?|timeouts?|dones?|terminated|truncated|is_last|is_terminal|episode_ends?)$", re.I)
_EPISODE = r"(traj(ectory|ectories)?|episodes?|ep|demos?|sequences?|seq|rollouts?)s?"
_EPISODE_ID = re.compile(rf"(^|/){_EPISODE}_?(ids?|idx|index|nums?|number)?$", re.I)
_EPISODE_EDGE = re.compile(rf"(^|/){_EPISODE}_?(lens?|lengths?|ends?|starts?|begins?|bounds?|boundaries)$", re.I)
_OFFSET = re.compile(r"off|idx|index|ptr|bound|end|start|begin|first|cum|row_splits", re.I)
_LENGTH = re.compile(r"len|count|num|size|mult|(^|[/_])n($|_)", re.I)
_VOLUME = re.compile(r"raw|label|seg|mask|volume", re.I)
_SPLIT = re.compile(r"(^|[/_])(train|valid|val|test|dev|eval)", re.I)
_PLACES = re.compile(r"(^|[/_])(pos|neg|positions?|coords?|coordinates|loc|locations?|centers?|places?|patches)", re.I)
_LAST = {"first": "last", "start": "end", "begin": "end", "from": "to"}


def proposals_of(
    source: str | Sequence[str], listing: Listing, files: Sequence[str] = (), *, allow_external: bool = False
) -> tuple[Proposal, ...]:
    """Return proposals for the special contents of a file; programs name `source`, and are tried on `files`."""
    path = source if isinstance(source, str) else source[0]
    accepted, refused, taken = list[Proposal](), dict[tuple[str, ...], Proposal](), set[str]()
    for detect in DETECTORS:
        for proposal in detect(replace(listing.without(taken), path=path)):
            if not taken.isdisjoint(proposal.datasets):
                continue  # these datasets have a proposal already
            outcome = proposal.tried(source, files, allow_external=allow_external)
            if outcome.is_refused:
                refused.setdefault(outcome.datasets, outcome)
            else:
                accepted.append(outcome)
                taken.update(outcome.datasets)
    accepted += (one for one in refused.values() if taken.isdisjoint(one.datasets))
    return (*accepted, *_asides(path, listing))


def proposals_of_files(
    families: Mapping[str, Sequence[str]], listings: Mapping[str, Listing], *, allow_external: bool = False
) -> Proposal | None:
    """Return a proposal for similar files, by the contents of the first, or with each as a sample, a recording or rows.

    Several families of files become fields of one sample. The name of a single family is a pattern, or no name if the
    program lists its files.
    """
    (name, paths), *others = families.items()
    listed = [path for family in families.values() for path in family]
    files, source = [path for path in listed if path in listings], name if name and not others else listed
    if matrices := _sparse_files([listings[path].without() for path in files], source):
        outcome = matrices.tried(source, allow_external=allow_external)
        way_out = "Their columns differ: with columns=[NAMES], which all have, a list of these files is one dataset"
        return replace(outcome, way_out=way_out) if outcome.is_refused else outcome
    if others:
        candidates, files = [*similar.joined_files(families, listings)], [*paths] if len(paths) > 1 else []
    elif candidates := similar.like_files(name, listings, len(paths)):
        kinds = proposals_of(source, listings[files[0]], files, allow_external=allow_external)
        inside = printed_of([kind for kind in kinds if kind.key != "flat"], has_rows=False)
        if inside and inside.recipes and not inside.before:
            who = "The pattern" if name else "The list"
            return replace(inside, what=f"{who} holds {len(paths):,} like files. Of the first: {inside.what}")
    tries = (one.tried(source, files, allow_external=allow_external) for one in candidates)
    return next((one for one in tries if not one.is_refused), None)


def printed_of(kinds: Sequence[Proposal], has_rows: bool) -> Proposal | None:
    """Choose the proposal whose lines are printed: the one with most data; of streamed rows only, if `has_rows`."""
    with_lines = [kind for kind in kinds if kind.lines and (not has_rows or kind.rows)]
    return max(with_lines, key=lambda kind: kind.nbytes, default=None)


# --- sparse matrices --------------------------------------------------------------------------------------


def _sparse(seen: Listing) -> Iterator[Proposal]:
    matrices = {}
    for group, members in seen.by_group.items():
        parts = [members[name] for name in _SPARSE if name in members and members[name].axes == 1]
        if len(parts) == len(_SPARSE) and parts[0].rows == parts[1].rows != 0 and (parts[2].rows or 0) > 1:
            matrices[group] = parts
    if not matrices:
        return
    main = max(matrices, key=lambda group: (group == "X", matrices[group][0].rows or 0))
    rows, about = (matrices[main][2].rows or 1) - 1, [e for parts in matrices.values() for e in parts]
    entry = seen.groups[main]
    which = f"{named([*matrices])} {'is a sparse matrix' if len(matrices) == 1 else 'are sparse matrices'}"
    if entry.sparse != "rows":
        what, _, then = entry.sparse.partition(": ")
        obs = max((e.rows or 0 for e in seen.entries if e.group == "obs"), default=0)
        label = _annotations(seen, obs, taken=set(matrices)) if obs else {}
        turned = turned_to_rows(seen.path, main, label) if "(CSC)" in entry.sparse else ()
        key, way_out = "sparse_columns" if turned else "sparse", then[:1].upper() + then[1:] or entry.sparse
        yield Proposal(key, what if then else which, about, way_out, lines=turned)
        return
    form = "packed" if entry.width > MOST_DENSE else "dense"
    fields = {"x": f'Field({quoted(main)}, ragged="{form}")', **_annotations(seen, rows, taken=set(matrices))}
    what = f"{which}; {main} has {counted(rows, 'sample')}" + f" of {entry.width:,} columns" * bool(entry.width)
    way_out = (
        "ragged='dense' gives rows of it, with columns= some of their columns; ragged='packed' gives the values that "
        "are stored, and their columns"
    )
    recipes = [StreamRecipe(fields if len(fields) > 1 else {main: fields["x"]})]
    lined_up = f'Field({quoted(main)}, columns="by name", ragged="{form}")'  # for files with other column orders
    recipes.append(
        StreamRecipe({name: lined_up if text == fields["x"] else text for name, text in recipes[0].fields.items()})
    )
    yield Proposal("sparse", what, about, way_out, recipes)


def _sparse_files(files: Sequence[Listing], source: str | Sequence[str]) -> Proposal | None:
    """Propose the rows of several files' matrices as one dataset, or nothing if a file lacks one."""
    parts = [part for seen in files for part in [*_sparse(seen)][:1]]
    if len(parts) < len(files) or len(parts) < 2:
        return None
    names = [seen.path for seen in files] if not isinstance(source, str) else [f"The files of {source}"]
    what = f"{named(names)} each hold a sparse matrix"
    if turned := [seen.path for seen, part in zip(files, parts, strict=True) if not part.recipes]:
        way_out = f"By columns (CSC): {', '.join(turned)}. The program for such a file writes its rows to another"
        return Proposal("sparse_files", what, parts[0].about, way_out)
    if len({next(iter(part.recipes[-1].fields.values())) for part in parts}) > 1:
        return None
    recipes = [*parts[0].recipes[::-1]]
    recipes += [StreamRecipe(dict([*recipe.fields.items()][:1])) for recipe in recipes]  # not all have the label
    way_out = 'columns="by name" gives the columns that all files have'
    return Proposal("sparse_files", f"{what}, whose rows are one dataset", parts[0].about, way_out, recipes)


def _annotations(seen: Listing, rows: int, taken: Iterable[str] = ()) -> dict[str, str]:
    """Return one field that describes the `rows` of a matrix: a label, or else the first annotation."""
    columns: dict[str, str] = {}
    for entry in seen.entries:
        group, _, name = entry.path.rpartition("/")
        if entry.rows != rows or group in taken or entry.axes != 1:
            continue
        if name == "codes" and "categories" in seen.by_group[group]:
            columns[group] = quoted(group)
        elif "obs" in group.split("/") and not entry.members:
            columns[entry.path] = quoted(entry.path)
        for member in entry.members if entry.path == "obs" else ():
            columns[member["name"]] = quoted(member["name"])
    labels = [name for name in columns if LABEL.search(last_name(name))] or [*columns]
    return {last_name(name): columns[name] for name in labels[:1]}


def _anndata(seen: Listing) -> Iterator[Proposal]:
    matrix = seen.by_path.get("X")
    if matrix is None or matrix.axes != 2 or not matrix.rows:
        return
    beside = _annotations(seen, matrix.rows)
    if beside and any(name.startswith(("obs", "var")) for name in seen.by_path):
        what = f"It looks like AnnData's: X has {counted(matrix.rows, 'sample')}, and obs says what each is"
        way_out = "Categories of obs come as codes, and loader.dataset.categories says what these are"
        yield Proposal("anndata", what, [matrix], way_out, [StreamRecipe({"x": quoted("X"), **beside})], rows=[matrix])


def _loom(seen: Listing) -> Iterator[Proposal]:
    matrix = seen.by_path.get("matrix")
    if matrix is None or matrix.shape is None or len(matrix.shape) != 2 or "col_attrs" not in seen.by_group:
        return
    cells = [e for e in seen.by_group["col_attrs"].values() if e.rows == matrix.shape[1] and e.axes == 1]
    numbers = [e for e in cells if re.match(r"u?int|float|bool", e.dtype)]
    labels = [e for e in numbers if LABEL.search(e.name)] or numbers
    what = f"It looks like loom's: {counted(matrix.shape[1], 'cell')} are the columns of matrix, its rows are genes"
    way_out = (
        "Rows(axis=-1) takes each column as a sample; texts of col_attrs go into split and draw as arrays of codes"
    )
    recipe = StreamRecipe({"x": quoted("matrix"), **keyed(labels[:1])}, "Rows(axis=-1)")
    yield Proposal("loom", what, [matrix, *cells], way_out, [recipe])


# --- concatenated rows: episodes, and samples of different lengths ---------------------------------------------


def _episodes(seen: Listing) -> Iterator[Proposal]:
    for rows, beside in seen.by_rows.items():
        edges, spec = _episode_edges(seen, rows, beside)
        fields = [e for e in beside if e not in edges and not re.search(r"(^|/)next_", e.path)][:MOST_FIELDS]
        if edges and fields and rows >= MIN_SIMILAR:
            what = f"{_say(edges)} where episodes end in {counted(rows, 'row')} that lie one behind the other"
            does = "takes rows that follow one another and stay inside an episode"
            recipe = StreamRecipe(keyed(fields), f'Sequences({similar.WINDOW}, of={spec}, pad="edge")', does)
            yield Proposal("episodes", what, beside, recipes=[recipe], rows=beside)
            return


def _say(entries: Sequence[DatasetEntry]) -> str:
    return f"{named([entry.path for entry in entries])} {'says' if len(entries) == 1 else 'say'}"


def _episode_edges(seen: Listing, rows: int, beside: list[DatasetEntry]) -> tuple[list[DatasetEntry], str]:
    """Return the datasets that define where episodes end, and the code for `Sequences`."""
    flat = [entry for entry in beside if entry.axes == 1]

    def is_flag(entry: DatasetEntry) -> bool:
        if (counts := entry.clues.counts) is None:
            return entry.dtype.startswith("float")
        return counts.total < 0 or (counts.least >= 0 and counts.most <= 1 and 0 < counts.total < rows / 2)

    if flags := [entry for entry in flat if _FLAG.search(entry.path) and is_flag(entry)]:
        return flags, f"Ends({', '.join(quoted(entry.path) for entry in flags)})"
    for entry in flat:
        counts = entry.clues.counts
        if counts and _EPISODE_ID.search(entry.path) and 0 < counts.changes < rows / 2:
            return [entry], f"Ids({quoted(entry.path)})"
    for entry in seen.entries:
        if _EPISODE_EDGE.search(entry.path) and entry.rows != rows and (how := _edge_kind(entry, rows)):
            holds = ', holds="ends"' * (
                how == "Bounds" and entry.clues.counts is not None and entry.clues.counts.first == 1
            )
            return [entry], f"{how}({quoted(entry.path)}{holds})"
    return [], ""


def _edge_kind(entry: DatasetEntry, rows: int) -> str:
    """Return whether numbers are "Bounds" or "Lengths" of segments of `rows` rows; empty if neither."""
    counts, name = entry.clues.counts, entry.path.rsplit("/", 1)[-1]
    if counts is None or (entry.rows or 0) < 2 or entry.rows == rows + 1 or counts.least < 0:
        return ""
    is_bound = counts.is_rising and counts.last == rows and (counts.first == 0 or _OFFSET.search(name))
    if is_bound and (counts.changes > 0 or _OFFSET.search(name)):
        return "Bounds"
    return "Lengths" if counts.total == rows and _LENGTH.search(name) and counts.most != rows else ""


def _ragged(seen: Listing) -> Iterator[Proposal]:
    """Find ragged samples whose rows are defined by other datasets."""
    by_count: dict[int, list[tuple[str, list[DatasetEntry], list[DatasetEntry]]]] = defaultdict(list)
    for how, sources, rows, count in (one for entry in seen.entries for one in _row_ranges(seen, entry)):
        flat = [entry for entry in seen.by_rows.get(rows, []) if entry not in sources]
        if flat and sum(entry.raw_nbytes for entry in flat) > sources[0].raw_nbytes / 16:
            by_count[count].append((how, sources, flat))
    if not by_count:
        return
    count = max(by_count, key=lambda n: sum(e.written_nbytes for _, _, flat in by_count[n] for e in flat))
    fields, about, edges = dict[str, str](), list[DatasetEntry](), list[DatasetEntry]()
    for how, sources, flat in sorted(by_count[count], key=lambda one: one[0]):  # bounds before lengths of the same
        groups = ([*group.values()] for group in Listing(seen.path, flat).by_group.values())
        largest = max(groups, key=lambda group: sum(entry.written_nbytes for entry in group))
        if chosen := [e for e in largest if e.path not in fields][:MOST_FIELDS]:
            edges += sources
            about += [*sources, *chosen]
            fields |= {e.path: with_options(_matrix_of(e), lookup=how) for e in chosen}
    source_paths = {e.path for _, sources, _ in by_count[count] for e in sources}
    beside = [e for e in seen.by_rows[count] if e.path not in source_paths and not e.members][:MOST_FIELDS]
    every = {e.path: e for e in edges}.values()
    read = [f"    {_variable_of(e)} = f[{quoted(e.path)}][:]" for e in every if e.clues.columns]
    yield Proposal(
        "ragged",
        f"{_say(edges)} which rows of {names_text([*fields])} each of {counted(count, 'sample')} has",
        [*about, *beside],
        'lookup= takes these. Fields come as values and offsets, or with ragged="pad", "nested" or "list" '
        "otherwise; ragged=Ragged(crop=Crop(...)) takes a part of each",
        [StreamRecipe(short_keys(fields | {e.path: form_of(e) for e in beside}))],
        before=(f"with h5py.File({quoted(seen.path)}) as f:", *read) if read else (),
    )


def _matrix_of(entry: DatasetEntry) -> str:
    """Return the code of a dataset's field; of a compound, the numbers of most elements as rows of a matrix."""
    by_type = defaultdict[str, list[str]](list)
    for one in entry.members:
        if re.fullmatch(r"u?int\d+|float\d+", one["dtype"]):
            by_type[one["dtype"]].append(quoted(one["name"].partition(":")[2]))
    most = max(by_type.values(), key=len, default=[])
    return with_options(quoted(entry.path), columns=f"[{', '.join(most)}]" * bool(most))


def _variable_of(entry: DatasetEntry) -> str:
    """Return the variable for a dataset in the lines before the loader."""
    return f"said_{re.sub(r'[^a-z0-9]', '_', last_name(entry.path).lower())}"


def _row_ranges(seen: Listing, entry: DatasetEntry) -> Iterator[tuple[str, list[DatasetEntry], int, int]]:
    """Yield the code of ``lookup=`` if a dataset defines row ranges: the code, its datasets, rows and samples."""
    counts, count = entry.clues.counts, entry.rows or 0
    for k, column in enumerate(entry.clues.columns if _LENGTH.search(last_name(entry.path)) else ()):
        yield f"Lengths({_variable_of(entry)}[:, {k}])", [entry], column.total, count
    if len(edges := entry.clues.columns) == 2 and edges[0].first == 0 and edges[0].is_rising:
        for rows, inclusive in ((edges[1].most, ""), (edges[1].most + 1, ", inclusive=True")):
            # Ranges do not overlap, unlike other pairs: of nodes, or of an event and a hit.
            if edges[1].total - edges[0].total + count * bool(inclusive) > rows:
                continue
            yield f"Between({_variable_of(entry)}[:, 0], {_variable_of(entry)}[:, 1]{inclusive})", [entry], rows, count
    if counts is None:
        return
    is_alone = len(seen.by_rows.get(count, ())) == 1  # no other field defines the number of samples
    for rows in {counts.last, counts.total} - {count, 0, -1}:
        if how := _edge_kind(entry, rows):
            are_ends = how == "Bounds" and counts.first != 0
            holds = ', holds="ends"' * (are_ends and (counts.first == 1 or is_alone))
            yield f"{how}({quoted(entry.path)}{holds})", [entry], rows, count - (how == "Bounds" and not are_ends)
    group, _, name = entry.path.rpartition("/")
    # Begins without the last end: assume that the last sample is about as long as the others.
    has_many = counts.changes < 0 or 2 * counts.changes > count  # for large datasets only the ends are known
    is_index = _OFFSET.search(name) and counts.is_rising and counts.first == 0 and has_many
    for rows in seen.by_rows if is_index else ():
        if counts.last < rows < counts.last + 8 * counts.last / max(1, count - 1) and abs(rows - count) > 1:
            holds = ', holds="starts"' * is_alone
            yield f"Bounds({quoted(entry.path)}{holds})", [entry], rows, count
    for first, last in _LAST.items():
        other = seen.by_group[group].get(name.replace(first, last)) if first in name else None
        if other and other.clues.counts and other.rows == count and counts.least in (-1, 0):
            most = other.clues.counts.most
            for rows, inclusive in ((most, ""), (most + 1, ", inclusive=True")):
                yield f"Between({quoted(entry.path)}, {quoted(other.path)}{inclusive})", [entry, other], rows, count


def _named_objects(seen: Listing) -> Iterator[Proposal]:
    """Find texts, one per row, that are the names of datasets in a group."""
    texts = {entry.path: {family_of(word) for word in entry.clues.words} for entry in seen.entries if entry.clues.words}
    for group, members in seen.by_group.items():
        by_family = {family_of(name): entry for name, entry in members.items() if entry.shape or entry.clues.image}
        for path, words in texts.items():
            if len(members) < LEAST_GROUPS or path.rpartition("/")[0] == group or not words <= set(by_family):
                continue
            count, first = seen.by_path[path].rows or 0, by_family[min(words)]
            same = [e for e in members.values() if e.dtype == first.dtype and e.axes == len(first.shape or ())]
            differing = similar.differing_axes(same)
            if any(differing) and not first.clues.image:
                continue
            form = form_of(first, f"{group}/{{}}".lstrip("/"), ragged="pad" if differing else "")
            key = re.sub(r"_?(ids?|names?)$", "", last_name(path)) or "x"
            beside = [e for e in seen.entries if e.rows == count and e.path != path and not e.members][:MOST_FIELDS]
            yield Proposal(
                "named",
                f"{path} names, for each of {counted(count, 'sample')}, a dataset of {group or 'the root'}",
                [seen.by_path[path], *same, *beside],
                "lookup= looks it up; each is read once a window, however many samples name it",
                [StreamRecipe({key: with_options(form, lookup=quoted(path)), **keyed(beside)})],
            )
            return


def _lookups(seen: Listing) -> Iterator[Proposal]:
    """Find rows that several samples share: by an index, or because there are a multiple of samples."""

    def proposal(
        rows: int, shared: Sequence[DatasetEntry], how: str, index_path: str = "", before: Lines = ()
    ) -> Proposal:
        beside = [e for e in seen.by_rows[rows] if e.path != index_path]
        fields = {last_name(e.path): with_options(form_of(e), lookup=how) for e in shared[:MOST_FIELDS]}
        what = f"Several of {counted(rows, 'sample')} share a row of {named([e.path for e in shared])}"
        recipes = [StreamRecipe(keyed(beside[:MOST_FIELDS]) | fields)]
        return Proposal("lookup", what, [*seen.by_rows[rows], *shared], recipes=recipes, before=before)

    for index in seen.entries:
        counts, rows = index.clues.counts, index.rows or 0
        shared = seen.by_rows.get(counts.most + 1, []) if counts and similar.INDEX_NAME.search(index.path) else []
        if counts and counts.least >= 0 and counts.most + 1 != rows and any(e.axes > 1 for e in shared):
            yield proposal(rows, shared, quoted(index.path), index.path)
    lead = max(seen.entries, key=lambda e: e.raw_nbytes, default=None)
    if lead is None or lead.axes < 2:
        return
    for other in seen.entries:
        times, rest = divmod(lead.rows or 0, max(2, other.rows or 0))
        is_similar = not rest and times > 1 and (lead.inner, lead.dtype) == (other.inner, other.dtype)
        if is_similar and (other.rows or 0) > 1 and _shares(lead.path, other.path):
            yield proposal(lead.rows or 0, [other], "rows", before=(f"rows = np.arange({lead.rows}) // {times}",))


def _shares(one: str, other: str) -> bool:
    """Return whether two names have the same end, and neither names a split."""
    ends = [re.split(r"[_/]", name)[-1].lower() for name in (one, other)]
    return ends[0] == ends[1] and not any(_SPLIT.search(name) for name in (one, other))


def _volumes(seen: Listing) -> Iterator[Proposal]:
    """Find volumes such as images with labels, at any resolution, whose chunks are cut along all axes."""
    cut = [e for e in seen.entries if e.axes == len(e.chunk_shape or ()) == 3 and all(e.shape or ())]
    for lead in sorted(cut, key=lambda e: -math.prod(e.shape or ())):
        shape, chunk = lead.shape or (), min(e.chunk_shape or () for e in cut if e.shape == lead.shape)
        scales = {e.path: [n / m for n, m in zip(e.shape or (), shape, strict=True)] for e in cut}
        entries = [e for e in cut if all((1 / scale).is_integer() for scale in scales[e.path])]
        is_cut = all(1 < inner < outer for inner, outer in zip(chunk, shape, strict=True))
        # h5py's automatic chunks halve the axes.
        halved = [{math.ceil(length / (1 << k)) for k in range(40)} for length in shape]
        chosen = any(one not in guessed for one, guessed in zip(chunk, halved, strict=True))
        if len(entries) < 2 or not is_cut or not chosen or not any(_VOLUME.search(entry.path) for entry in entries):
            continue
        forms = {}
        for e in entries[:MOST_FIELDS]:
            take = f"Take(scale=({', '.join(f'{scale:g}' for scale in scales[e.path])}))" * (e.shape != shape)
            forms[e.path] = with_options(form_of(e), take=take)
        fields, volumes = short_keys(forms), f"are volumes of {shape_text(shape)}, in chunks of {shape_text(chunk)}"
        recipes = [
            StreamRecipe(fields, f'Boxes({chunk}, at="grid")', "takes boxes that lie side by side, or of another size"),
            StreamRecipe(fields, f'Boxes({chunk}, at="random", per_epoch=1000)', "anywhere"),
            StreamRecipe(keyed(entries[:MOST_FIELDS]), "", "takes each slice along axis 0"),
        ]
        rows = [e for e in entries if e.shape == shape]
        yield Proposal("volume", f"{named([e.path for e in entries])} {volumes}", entries, recipes=recipes, rows=rows)
        return


def _places(seen: Listing) -> Iterator[Proposal]:
    """Find tables of box positions in large images."""
    tables = [e for e in seen.entries if e.clues.columns and _PLACES.search(e.path)]
    for axes in (2, 3):
        positions = [e for e in tables if len(e.clues.columns) == axes]
        most = [max(e.clues.columns[k].most for e in positions) for k in range(axes)] if positions else []
        large = [
            e for e in seen.entries if e.axes >= axes and min((e.shape or ())[-axes:]) >= 64 and e not in positions
        ]
        if not large or not positions or any(e.rows == one.rows for e in large for one in positions):
            continue
        room = min(n - m for e in large for n, m in zip((e.shape or ())[-axes:], most, strict=True))
        if room < 4:
            continue
        size, read = (
            (min(64, 1 << (room.bit_length() - 1)),) * axes,
            ", ".join(f"f[{quoted(e.path)}][:]" for e in positions),
        )
        does = "takes a box from each of these places on; its size is yours"
        yield Proposal(
            "places",
            f"{_say(positions)} where boxes of {named([e.path for e in large])} begin",
            [*large, *positions],
            recipes=[StreamRecipe(keyed(large), f"Boxes({size}, at=places)", does)],
            before=(f"with h5py.File({quoted(seen.path)}) as f:", f"    places = np.concatenate([{read}])"),
        )
        return


def _recordings(seen: Listing) -> Iterator[Proposal]:
    """Find rows that are recordings: simulations and films of many time steps, long signals."""
    for rows, beside in seen.by_rows.items():
        axis = _time_axis(max(beside, key=lambda e: e.raw_nbytes).shape or ())
        films = [e for e in beside if _time_axis(e.shape or ()) == axis]
        others = [e for e in beside if e not in films]
        counts = {(e.shape or ())[axis] for e in films if axis}
        if len(counts) != 1 or any(e.axes > 1 or not e.clues.words for e in others):
            continue
        length = similar.stretch_length(min(counts), sum(e.raw_nbytes for e in films) / rows / min(counts))
        samples = f'Sequences({length}, stride={length}, of="rows", axis={axis})'
        recipes = [
            StreamRecipe(keyed(films), samples, f"cuts them into samples of {length:,}, or of a length of your own"),
            StreamRecipe(keyed([*films, *others]), "", "takes each row whole"),
        ]
        what = f"Each row of {named([e.path for e in films])} seems to be a recording of {min(counts):,} times"
        yield Proposal("recordings", what, films, recipes=recipes, rows=films)
        return


def _time_axis(shape: Sequence[int]) -> int:
    """Return the axis along which rows are as long as recordings; 0 if there is none."""
    if len(shape) >= 5 and shape[1] >= MIN_SIMILAR:
        return 1
    is_film = len(shape) == 4 and shape[1] == shape[2] and shape[3] > similar.WINDOW
    return -1 if is_film or (len(shape) in (2, 3) and shape[-1] >= LONG_ROW) else 0


def _flat(seen: Listing) -> Iterator[Proposal]:
    """Find a single long sequence of numbers, such as tokens or a signal."""
    every = [entry for entry in seen.entries if (entry.rows or 0) > 1]
    if len(every) != 1 or len(every[0].shape or ()) != 1 or LABEL.search(last_name(every[0].path)):
        return
    entry, rows = every[0], every[0].rows or 0
    if rows < 4 * LONG_COUNT or not re.match(r"u?int|float", entry.dtype):
        return
    what, samples = f"{entry.path} is one sequence of {rows:,} numbers", "Sequences(128, stride=128)"
    does = "cuts it into samples of 128, or of a length of your own. Without samples=, each number is a sample"
    yield Proposal(
        "flat", what, every, recipes=[StreamRecipe({entry.path: quoted(entry.path)}, samples, does)], rows=every
    )


# --- NWB, MATLAB, PyTables, single values -----------------------------------------------------------------


def _nwb(seen: Listing) -> Iterator[Proposal]:
    series = {
        group: members
        for group, members in seen.by_group.items()
        if "data" in members and (members["data"].rows or 0) > 1 and members.keys() & {"timestamps", "starting_time"}
    }
    if "nwb_version" not in seen.groups[""].attributes or not series:
        return
    group = max(series, key=lambda name: series[name]["data"].written_nbytes)
    rows = series[group]["data"].rows or 1
    beside = [one for name, one in series[group].items() if name in ("data", "timestamps") and one.rows == rows]
    length, what = max(1, min(100, rows // 2)), f"{group} is a recording of {counted(rows, 'row')}"
    does = f"takes {length:,} rows that follow one another; without samples= each row is one"
    recipe = StreamRecipe(short_keys({one.path: quoted(one.path) for one in beside}), f"Sequences({length})", does)
    yield Proposal("nwb", f"It is Neurodata Without Borders (NWB); {what}", beside, recipes=[recipe], rows=beside)


def _matlab(seen: Listing) -> Iterator[Proposal]:
    arrays = [e for e in seen.entries if e.clues.matlab_class and e.shape and len(e.shape) > 1 and max(e.shape) > 1]
    if not arrays:
        return
    largest = max(arrays, key=lambda e: e.raw_nbytes)
    shape = largest.shape or ()
    what = (
        "MATLAB wrote this file (-v7.3), and its axes are the other way round here: "
        f"{largest.path} is {shape_text(shape[::-1])} in MATLAB and {shape_text(shape)} in HDF5"
    )
    # If arrays agree in their last axis and not in their first, samples are columns.
    ends: tuple[dict[int, list[DatasetEntry]], ...] = (defaultdict(list), defaultdict(list))
    for entry in arrays:
        for end, by_length in zip((0, -1), ends, strict=True):
            by_length[(entry.shape or ())[end]].append(entry)
    first, turned = (max((g for n, g in by_length.items() if n > 1), key=len, default=[]) for by_length in ends)
    if len(turned) <= max(1, len(first)):
        last = ", ".join([":"] * (len(shape) - 1))
        way_out = f"A row here is {largest.path}({last}, i) in MATLAB. samples=Rows(axis=-1) takes MATLAB's own rows"
        yield Proposal("matlab", what, arrays, way_out, rows=arrays)
        return
    samples, names = counted((turned[0].shape or (0,))[-1], "sample"), named([e.path for e in turned])
    what += f". The {samples} of {names} lie along the last axis here, not the first"
    recipes = [
        StreamRecipe(
            {e.path: quoted(e.path) for e in turned[:MOST_FIELDS]}, "Rows(axis=-1)", "takes them along that axis"
        )
    ]
    yield Proposal("matlab_turned", what, turned, recipes=recipes)


def _linked(path: str, links: Mapping[str, tuple[str, str]]) -> Proposal:
    """Describe links to other files, and how to read their targets."""
    name, (file, inside) = next(iter(links.items()))
    which = f"{counted(len(links), 'link')} {'leads' if len(links) == 1 else 'lead'} to other files"
    what = f"{which}, such as {name!r} to {inside!r} in {file!r}"
    files = [os.path.join(os.path.dirname(path), one) for one, _ in links.values()]
    source = (
        quoted(files[0]) if len(files) == 1 else f"[{', '.join(map(quoted, files[:2]))}{', ...' * (len(files) > 2)}]"
    )
    way_out = f"H5StreamLoader({source}, fields={quoted(inside)}) reads them"
    if len({inside for _, inside in links.values()}) > 1:
        way_out = "Give the files themselves, each with the names in it"
    way_out += f"; H5Dataset(..., {quoted(name)}, allow_external=True) follows a link. None is followed here"
    return Proposal("links", what, (), way_out)


def _asides(path: str, listing: Listing) -> Iterator[Proposal]:
    """Describe datasets that are not data: indexes of PyTables, broken links, single values alone."""
    if index := [entry for entry in listing.entries if entry.clues.role == INDEX]:
        which = f"{counted(len(index), 'dataset')} with _i_ in the path {'are' if len(index) > 1 else 'is'}"
        yield Proposal("pytables", f"{which} what PyTables keeps to find rows of its tables, and no data", index)
    if links := {
        (f"{path}/{name}".lstrip("/")): leads
        for path, group in listing.groups.items()
        for name, leads in group.external.items()
    }:
        yield _linked(path, links)
    if dead := [f"{path}/{name}".lstrip("/") for path, group in listing.groups.items() for name in group.dead]:
        what = f"{counted(len(dead), 'link')} {'lead' if len(dead) > 1 else 'leads'} nowhere, such as {dead[0]!r}"
        way_out = "What they were to lead to is no sample: a pattern leaves them out, with a warning"
        yield Proposal("dead_links", what, (), way_out)
    entries = listing.entries
    if entries and all(not entry.shape and not entry.clues.image for entry in entries):
        what = f"It holds single values only ({counted(len(entries), 'dataset')}), and no dataset with rows"
        reads = f"with h5py.File({quoted(path)}) as f:", f"    print(f[{quoted(entries[0].path)}][()])"
        way_out = "There is nothing to stream. Read them with h5py"
        yield Proposal("single_values", what, entries, way_out, lines=("import h5py", "", *reads))


# In the order of detection: formats known by name, similar objects, rows of datasets.
_KNOWN, _OF_MANY = (_sparse, _anndata, _loom, _nwb), (_named_objects, similar.like_datasets, similar.like_groups)
_OF_ROWS = (_episodes, _ragged, _matlab, _volumes, _places, _recordings, _lookups, _flat)
DETECTORS: tuple[Callable[[Listing], Iterator[Proposal]], ...] = (*_KNOWN, *_OF_MANY, *_OF_ROWS)
