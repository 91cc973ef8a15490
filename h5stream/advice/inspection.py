"""What a file looks like to a training loop: its datasets, what a batch of them costs, and what would help.

Everything is a value; `h5stream.cli.inspect` prints it, and `Inspection.to_dict` returns it as plain containers.
"""

from __future__ import annotations

import functools
import operator
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from concurrent.futures import Executor
from dataclasses import asdict, dataclass, replace
from typing import Any

from h5stream.advice import batch_rows
from h5stream.advice.cost import Advice, SampleCost, cost_sample, repack_command
from h5stream.advice.detectors import proposals_of
from h5stream.advice.listing import MOST_DATASETS, REFUSED, DatasetEntry, Listing, list_file, root_fields
from h5stream.advice.program import Lines, Proposal, fields_from_text, form_of, loader_lines, quoted, tried
from h5stream.base import limits
from h5stream.base.executors import carried_out, check_executor
from h5stream.base.texts import names_in
from h5stream.dataset.dataset import H5Dataset
from h5stream.engine.footprint import check_budget, default_budget
from h5stream.errors import H5StreamError, OptionError
from h5stream.storage.source.local import identity_of
from h5stream.storage.source.stores import Asked, asked_of_stores

MOST_FIELDS = 64  # fields that are taken for a sample where none are named
_NOT_ROWS = "its samples are not rows of its datasets, as said above"
_NO_ROWS = "no dataset here has rows that can be streamed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """A file as a training loop sees it."""

    file: str
    file_nbytes: int
    asked: Asked  # of a store, to look at it and to open its sample
    entries: tuple[DatasetEntry, ...]  # its datasets, in the file's order
    # these by number of rows, those of the sample first, then most bytes first; None for what has no rows
    groups: dict[int | None, list[DatasetEntry]]
    left_out: int  # datasets that were not looked at
    sample: SampleCost | None  # what a batch costs
    no_sample: str  # why there is no sample; else empty
    kinds: tuple[Proposal, ...]  # what it holds that is not rows of datasets, and what to do about it
    lines: Lines  # Python that streams the sample; empty where there is none
    advice: tuple[Advice, ...]  # what would help; empty where nothing is wrong
    repack_command: str  # what writes a better layout, where that would help; else empty

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain containers for JSON, with the derived figures of datasets."""
        plain = asdict(replace(self, kinds=(), entries=(), groups={}))
        del plain["entries"]
        groups = [{"rows": rows, "datasets": [entry.to_dict() for entry in held]} for rows, held in self.groups.items()]
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
    """Look at a file, or at what another process listed of it, and say what its shuffled batches cost."""
    if batch_size is not None and batch_size < 1:
        raise OptionError(f"a batch has at least one row, not {batch_size}")
    if listing is None:
        listing = list_file(path, most=MOST_DATASETS, allow_external=allow_external)
    before = Asked(*map(operator.sub, asked_of_stores(), listing.asked))  # another process may have listed it
    entries, by_path = tuple(listing.entries), listing.by_path
    kinds = proposals_of(path, listing, allow_external=allow_external)
    # What only links lead to is not listed, and a field all the same.
    root = [] if fields else root_fields(path, allow_external=allow_external)
    chosen_by, names = _choose_fields(by_path, fields, kinds, root)
    forms = {name: form_of(by_path[name]) if name in by_path and not fields else quoted(name) for name in names}
    budget = default_budget(limits.memory_total_bytes()) if memory_budget is None else check_budget(memory_budget)
    apart = any(kind.lines and not kind.rows and kind.key != "single_values" for kind in kinds)
    sample, advice, lines, no_sample = None, tuple[Advice, ...](), Lines(), _NOT_ROWS if apart else _NO_ROWS
    asked = asked_of_stores(before)
    try:
        if names:
            dataset = H5Dataset(path, [*map(fields_from_text, forms.values())], allow_external=allow_external)
            asked = asked_of_stores(before)
            size = batch_size or batch_rows(len(dataset), dataset.layout.row_nbytes)
            sample, advice = cost_sample(dataset, entries, names, chosen_by, size, budget, threads)
    except H5StreamError as error:
        if fields:
            raise
        no_sample = str(error)
    # Of fields that nobody named, only a program that was tried and is right.
    if sample and (fields or not tried(loader_lines(path, forms, 1, allow_external=allow_external))[0]):
        small = memory_budget is not None or any(one.key == "budget_too_small" for one in advice)
        options = [f"memory_budget={sample.memory_budget}"] * small
        lines = loader_lines(path, forms, sample.batch_rows, options=options, allow_external=allow_external)
    ours = {d.path for d in sample.datasets} if sample else set()
    return Inspection(
        file=path,
        file_nbytes=identity_of(path).size,
        asked=asked,
        entries=entries,
        groups=_by_rows(entries, ours),
        left_out=listing.left_out,
        sample=sample,
        no_sample="" if sample else no_sample,
        kinds=kinds,
        lines=lines,
        advice=advice,
        repack_command=repack_command(path, advice, ours, entries),
    )


def inspect_files(paths: Sequence[str], *, executor: Executor | None = None, **asked: Any) -> tuple[Inspection, ...]:
    """Look at several files, and say what their shuffled batches cost: here in turn, or by an executor, each in a call.

    Parameters
    ----------
    paths : sequence of str
        The files, or addresses.
    executor : concurrent.futures.Executor, optional
        What looks at them: a ``ProcessPoolExecutor``, or that of dask or mpi4py, whose machines see the same folders.
    **asked
        ``fields`` (list of names; by default all that can be read together), ``batch_size`` (samples; by default as the
        loader's, less for short files), ``memory_budget`` (bytes; by default the loader's), ``threads`` (by default one
        for each processor) and ``allow_external`` (default False), as of `H5StreamLoader`.

    Returns
    -------
    tuple of Inspection
        What each is, in the order of `paths`: `sample` (what a batch costs, or None, and `no_sample` why), `advice`,
        `kinds`, `lines` (Python that streams it), and ``to_dict()`` with all that ``h5stream inspect --json`` prints.

    Raises
    ------
    SourceError, FieldError
        If one cannot be opened, or lacks a field; it is named.
    IsolatedProcessError
        If a process of the executor is gone: libhdf5 crashes at some damaged files.

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
    return tuple(carried_out([(path, look, (path,)) for path in paths], executor))


def _choose_fields(
    entries: Mapping[str, DatasetEntry], named: Sequence[str] | None, kinds: Sequence[Proposal], root: list[str]
) -> tuple[str, tuple[str, ...]]:
    if named:
        return "named", names_in("fields=", named)
    # What is no sample row by row: parts of sparse matrices, datasets that are a sample each, all groups but one.
    apart = {entry.path for kind in kinds for entry in kind.about if entry not in kind.rows}
    usable = {name: e for name, e in entries.items() if e.access != REFUSED and not e.role and e.rows}

    def written(names: Iterable[str]) -> float:
        return sum(usable[name].written_nbytes for name in names if name in usable)

    at_root = [name for name in root if name in usable or name not in entries]
    mostly = max((written(kind.datasets) for kind in kinds if not kind.rows), default=0.0)
    as_long = {usable[name].rows for name in at_root if name in usable}
    inside = [name for name, e in usable.items() if e.rows in as_long and name not in apart and name not in at_root]
    if at_root and written(at_root) >= mostly and not apart.intersection(at_root) and not inside:
        return "root", tuple(at_root)
    groups = _by_rows(entry for name, entry in usable.items() if name not in apart)
    best = max(groups.values(), key=lambda held: (sum(d.written_nbytes for d in held), held[0].rows or 0), default=[])
    if not best or written(d.path for d in best) < mostly:
        return "rows", ()  # what is left describes the samples
    keep = sorted(best, key=lambda d: -d.written_nbytes)[:MOST_FIELDS]
    return "rows", tuple(d.path for d in best if d in keep)


def _by_rows(entries: Iterable[DatasetEntry], first: Set[str] = frozenset()) -> dict[int | None, list[DatasetEntry]]:
    """Return equally long datasets by their length: those that hold one of `first`, then those with most bytes."""
    groups = defaultdict[int | None, list[DatasetEntry]](list)
    for entry in entries:
        groups[entry.rows].append(entry)

    def place(group: tuple[int | None, list[DatasetEntry]]) -> tuple[bool, bool, float]:
        rows, held = group
        return first.isdisjoint(d.path for d in held), not rows, -sum(d.written_nbytes for d in held)

    return dict(sorted(groups.items(), key=place))
