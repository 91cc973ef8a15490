"""`repack`: a file rewritten for streaming, verified row by row, which appears in one step.

# Guarantees:
# - Until it is verified, the copy has a name that nothing takes for a complete file, in the target's folder; its
#   writer holds a flock on it. It is deleted after an error or Ctrl-C; after a kill -9 the next call for the same
#   target deletes it, since it is not locked.
# - The file gets the target's name by `link`, which fails if the name exists, or by `replace` with `overwrite`.
# - The engine's threads decode, a pool compresses, and the caller's thread writes and verifies. When `rewrite` returns
#   or raises, all other threads have ended.
"""

from __future__ import annotations

import collections
import contextlib
import fcntl
import functools
import glob
import math
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, TypedDict, Unpack, overload

import numpy as np
from numpy.typing import NDArray

from h5stream.base import limits
from h5stream.base.executors import check_executor, run_jobs
from h5stream.base.filesystem import check_fits, explained, flush_folder, give_name, unfinished, usable_bytes
from h5stream.base.names import is_address, restored
from h5stream.engine.reader import RowReader
from h5stream.engine.run import Engine
from h5stream.engine.slots import Slot, SlotFormat, SlotRing
from h5stream.errors import OptionError, StagingError
from h5stream.order.users import ListedOrder
from h5stream.repacking import Recipe, survey
from h5stream.storage.file.external import needed_elsewhere
from h5stream.storage.layout.sources import checked_path, several
from h5stream.storage.source.identity import SourceIdentity
from h5stream.storage.source.local import absolute, identities_of, identity_of
from h5stream.storage.source.remote import fetched_ahead, opened_again, opened_with

PathLike = str | os.PathLike[str]

Compression = Literal["none", "lz4", "zstd", "gzip"]

TOGETHER_NBYTES = 16 << 20  # minimum decoded bytes that are read together: enough for all threads
MOST_TOGETHER_NBYTES = 128 << 20  # maximum, if old and new chunks are not aligned
# A shuffle may use this fraction (1 / 4) of the available memory; the source is read again for the rest.
MEMORY_SHARE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class RepackProgress:
    """The progress of one `repack`."""

    step: str
    """``"writing"`` or ``"verifying"``."""
    bytes_done: int
    """Decoded bytes written and verified so far."""
    bytes_total: int
    """Decoded bytes to be written and verified."""
    dataset: str
    """The dataset that is being written or verified."""


RepackProgressCallback = Callable[[RepackProgress], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RepackResult:
    """The result of one `repack`."""

    source: Path | str
    """The file that was rewritten."""
    target: Path
    """The new file."""
    bytes_before: int
    """Size of the source."""
    bytes_after: int
    """Size of the new file."""
    rewritten: tuple[str, ...]
    """Datasets that have new chunks."""
    copied: tuple[tuple[str, str], ...]
    """Datasets that were copied unchanged, with the reason."""
    shuffled: tuple[str, ...]
    """Datasets whose rows were permuted."""
    samples: tuple[str, ...]
    """The rewritten dataset with the most bytes, and all of the same length: a loader's likely fields."""
    notices: tuple[str, ...]
    """Losses, and other facts to know."""
    seconds: float = field(compare=False)
    """The duration, including verification."""


class _Options(TypedDict, total=False):
    fields: str | Sequence[str] | None
    chunk_nbytes: int
    compress: Compression
    contiguous: bool
    shuffle_rows: int | None
    overwrite: bool
    progress: RepackProgressCallback | None
    executor: Executor | None
    storage_options: object


@overload
def repack(source: PathLike, target: PathLike, **options: Unpack[_Options]) -> RepackResult: ...
@overload
def repack(
    source: list[PathLike] | tuple[PathLike, ...], target: PathLike, **options: Unpack[_Options]
) -> tuple[RepackResult, ...]: ...
def repack(
    source: PathLike | list[PathLike] | tuple[PathLike, ...],
    target: PathLike,
    *,
    fields: str | Sequence[str] | None = None,
    chunk_nbytes: int = 1024 * 1024,
    compress: Compression = "none",
    contiguous: bool = False,
    shuffle_rows: int | None = None,
    overwrite: bool = False,
    progress: RepackProgressCallback | None = None,
    executor: Executor | None = None,
    storage_options: object = None,
) -> RepackResult | tuple[RepackResult, ...]:
    """Rewrite a file's chunks for streaming; everything else in it is kept.

    Datasets whose elements have a fixed size (numbers, compounds, strings of fixed length) are decoded by h5stream's
    own engine and written in chunks of whole rows. Datasets that only libhdf5 can read, virtual datasets, values of
    variable length, references and single values are copied as they are. Groups, links, attributes, dimension scales,
    fill values and the user block are copied too, and references are translated. Before the file gets its name, every
    dataset is compared with the source through h5py.

    Parameters
    ----------
    source, target : path
        The file to read, which may be the address of an object in a store, and the file to write. Or a list of files,
        and a folder in which each of them keeps its name.
    fields : str or sequence of str, optional
        The datasets to rewrite, by path; by default all that can be rewritten. The others are copied as they are,
        but `shuffle_rows` also shuffles those of the same length.
    chunk_nbytes : int
        Decoded bytes of a chunk, as nearly as whole rows allow. Default 1 MiB.
    compress : {"none", "lz4", "zstd", "gzip"}
        The compression; a byte shuffle comes first for numbers of 2, 4 or 8 bytes. By default nothing is compressed,
        even if the source is: such rows are read fastest. The command says beforehand how large the file will be.
    contiguous : bool
        Whether to store datasets without chunks; they can then neither grow nor be compressed.
    shuffle_rows : int, optional
        Seed of one offline shuffle, for files whose neighbouring rows resemble each other. The order depends on the
        number of rows and the seed alone, and is that of *every* dataset whose first axis is as long as that of
        `fields`, or of the default fields without them: `RepackResult.shuffled` lists them. Datasets of another length
        keep their rows, so what looks as if it points to the shuffled rows (bounds, lengths, region references) is
        refused.
    overwrite : bool
        Replace a target that exists.
    progress : callable, optional
        Called with a `RepackProgress` after every chunk, in the caller's thread; what it raises ends the call.
    executor : concurrent.futures.Executor, optional
        Rewrites the files of a list, one per call: a ``ProcessPoolExecutor``, or the executor of dask or mpi4py, whose
        machines must see the same folders. By default this process rewrites them in turn.
    storage_options : dict or store, optional
        Options and credentials of object stores; see `H5Dataset`. They stay in this process.

    Returns
    -------
    RepackResult or tuple of RepackResult
        Bytes before and after, what was rewritten, and what could not be kept; one result per file of a list.

    Raises
    ------
    OptionError
        If options contradict each other, the target is the source, or a dataset points to rows that would be shuffled.
    SourceError, FieldError
        If the source cannot be opened, changes meanwhile, or has no such field.
    NotEnoughSpaceError
        If the file would not fit, or the disk fills up.
    StagingError
        If the target exists, or cannot be written.
    StagedFileDamagedError
        If the rows written are not those of the source.

    Examples
    --------
    >>> import h5py, tempfile, numpy as np
    >>> folder = Path(tempfile.mkdtemp())
    >>> with h5py.File(folder / "a.h5", "w") as file:
    ...     _ = file.create_dataset("x", data=np.arange(4096).reshape(1024, 4), chunks=(1, 4), compression="gzip")
    >>> result = repack(folder / "a.h5", folder / "b.h5", chunk_nbytes=8192)
    >>> with h5py.File(folder / "b.h5") as file:
    ...     result.rewritten, file["x"].chunks, int(file["x"][1023, 3])
    (('x',), (256, 4), 4095)
    """
    recipe = Recipe.of(
        fields=fields, chunk_nbytes=chunk_nbytes, compress=compress, contiguous=contiguous, shuffle_rows=shuffle_rows
    )
    check_executor(executor)
    if executor is not None and progress is not None:
        raise OptionError("progress= hears of chunks in this process, and executor= works in others; leave one out")
    sources = several(source, "repack")
    many = not (len(sources) == 1 and sources[0] is source)
    pairs = _targets(sources, target, overwrite) if many else [(sources[0], target)]
    with opened_with(storage_options):
        # The threads and processes of an executor get the identity of an object with the job.
        identities = _identities(old for old, _ in pairs)
        jobs = [
            (str(old), _repacked, (old, new, recipe, overwrite, progress, identities.get(old))) for old, new in pairs
        ]
        results = tuple(run_jobs(jobs, executor))
    return results if many else results[0]


def _targets(sources: Sequence[PathLike], folder: PathLike, overwrite: bool) -> list[tuple[PathLike, PathLike]]:
    """Return pairs of source and target for several files; raise for targets that may not be written."""
    if not _absolute(folder).is_dir():
        raise StagingError(f"several files are rewritten into a folder, and there is no folder {folder}; make it first")
    target_sources: dict[Path, PathLike] = {}
    for source in sources:
        old = absolute(checked_path(source))
        target = _absolute(folder) / Path(old).name
        if target in target_sources:
            raise OptionError(f"{target_sources[target]} and {source} would both be {target}; use a folder for each")
        target_sources[target] = source
        check_target(old, target, overwrite=overwrite)
    return [(source, target) for target, source in target_sources.items()]


def _identities(sources: Iterable[PathLike]) -> dict[PathLike, SourceIdentity]:
    """Return the identities of the sources that are in stores, with concurrent requests."""
    far = [source for source in sources if is_address(os.fspath(source))]
    return dict(zip(far, identities_of([os.fspath(source) for source in far]), strict=True))


def _repacked(
    source: PathLike,
    target: PathLike,
    recipe: Recipe,
    overwrite: bool,
    progress: RepackProgressCallback | None,
    identity: SourceIdentity | None,
) -> RepackResult:
    with opened_again(identity):
        return carry_out(plan_repack(source, target, recipe, overwrite=overwrite), target, overwrite, progress)


def plan_repack(source: PathLike, target: PathLike, recipe: Recipe, *, overwrite: bool) -> survey.RewritePlan:
    """Decide how each dataset is copied; raise for a target that may not be written, or does not fit."""
    old, new = absolute(checked_path(source)), _absolute(target)
    check_target(old, new, overwrite=overwrite)
    plan = survey.plan_rewrite(old, recipe)
    check_fits(new.parent, [(plan.source, plan.estimated_nbytes)])
    return plan


def carry_out(
    plan: survey.RewritePlan, target: PathLike, overwrite: bool, progress: RepackProgressCallback | None
) -> RepackResult:
    """Write and verify the new file beside the target, and give it its name."""
    new = _absolute(target)
    explaining = explained(new.parent, "rewritten", plan.source, plan.estimated_nbytes)
    with explaining, _part_of(new) as part, unfinished(part.unlink):
        _keep_mode(plan.source, part, 0o600)
        result = rewrite(plan, part, progress)
        _keep_mode(plan.source, part)
        notices = result.notices
        if needs := needed_elsewhere(Path(plan.source), part):
            problem = (
                f"{plan.source} needs other files, whose names lead elsewhere or nowhere from {new.parent}: {needs}"
            )
            notices += (f"{problem}. Put them there as well, or write the new file beside its source",)
        part.replace(new) if overwrite else give_name(part, new)
        flush_folder(new.parent)
    return replace(result, target=new, notices=notices)


def _keep_mode(source: str, part: Path, at_least: int = 0) -> None:
    """Give a file the permissions of its source; objects in stores, and some file systems, have none."""
    if not is_address(source):
        with contextlib.suppress(PermissionError):
            part.chmod(os.stat(source).st_mode & 0o777 | at_least)


def _absolute(path: PathLike) -> Path:
    if is_address(address := restored(path)):
        message = f"repack writes local files only, and {address} is in a store: name one, and copy it there"
        raise StagingError(message)
    return Path(os.path.abspath(os.path.expanduser(path)))


def check_target(source: str, target: Path, *, overwrite: bool) -> None:
    """Raise if a target is the source, is not a file, exists, or has no folder."""
    if os.path.exists(target) and os.path.exists(source) and os.path.samefile(source, target):
        raise OptionError(f"{target} is the source itself; repack writes a new file, so give it another name")
    if target.exists() and not target.is_file():
        kind = "folder" if target.is_dir() else "pipe or a device, which is not replaced"
        raise StagingError(f"{target} is a {kind}; name the file to write", file=str(target))
    if os.path.lexists(target) and not overwrite:
        raise StagingError(
            f"{target} exists; nothing was written. Name another file, or pass overwrite=True (--overwrite)",
            file=str(target),
        )
    if not target.parent.is_dir():
        raise StagingError(f"there is no folder {target.parent}; make it first", folder=str(target.parent))


@contextlib.contextmanager
def _part_of(target: Path) -> Iterator[Path]:
    """Yield the unfinished file, locked while it is written and deleted afterwards; delete those of dead processes."""
    prefix = f".{target.name[:200]}."
    for path in target.parent.glob(f"{glob.escape(prefix)}????????.part"):
        with contextlib.suppress(OSError), path.open("rb+") as leftover:
            fcntl.flock(leftover, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path.with_suffix(".object"), ignore_errors=True)
            path.unlink()
    while True:
        part = target.with_name(f"{prefix}{uuid.uuid4().hex[:8]}.part")
        with part.open("x") as made:
            fcntl.flock(made, fcntl.LOCK_EX)  # a concurrent cleanup of the same target may lock and delete it
            if os.fstat(made.fileno()).st_nlink:
                try:
                    yield part
                finally:
                    part.unlink(missing_ok=True)
                return


# --- Rewriting and verifying one file.


_Order = NDArray[np.int64] | None
_Encoded = tuple[NDArray[np.uint8], int] | None
_NewChunk = tuple[int, NDArray[np.uint8], int, _Encoded]


def rewrite(plan: survey.RewritePlan, target: Path, progress: RepackProgressCallback | None = None) -> RepackResult:
    """Write the new file over `target`, which exists, and verify it against the source, which must not change."""
    with contextlib.ExitStack() as meanwhile:
        # An object is read twice, dataset by dataset: fetch it beside the new file if there is room.
        if is_address(plan.source) and 3 * identity_of(plan.source).size < usable_bytes(target.parent)[0]:
            meanwhile.enter_context(fetched_ahead(plan.source, str(target.with_suffix(".object"))))
            plan = survey.plan_rewrite(plan.source, plan.recipe)
        return _rewrite(plan, target, progress)


def _rewrite(plan: survey.RewritePlan, target: Path, progress: RepackProgressCallback | None) -> RepackResult:
    begin, identity, order, bytes_done = time.monotonic(), identity_of(plan.source), plan.order(), 0
    total = sum(dataset_plan.nbytes for dataset_plan in (*plan.rewritten, *plan.datasets))

    def tell(step: str, dataset: survey.RawDataset, nbytes: int) -> None:
        nonlocal bytes_done
        bytes_done += nbytes
        if progress is not None:
            progress(RepackProgress(step=step, bytes_done=bytes_done, bytes_total=total, dataset=dataset.path))

    with survey.rebuilding(plan, str(target)) as new:
        for dataset in plan.datasets:
            moved = order if dataset.shuffled else None
            if dataset.rewritten:
                for nbytes in _written(new, dataset, moved, plan):
                    tell("writing", dataset, nbytes)
            elif moved is not None:
                new.permute_rows(dataset, moved)
    uncompared = survey.verify(plan, target, new.places, order, functools.partial(tell, "verifying"))
    identity.check_unchanged()
    rows = max(plan.rewritten, key=lambda dataset_plan: dataset_plan.nbytes).rows if plan.rewritten else 0
    return RepackResult(
        source=plan.source if is_address(plan.source) else Path(plan.source),
        target=target,
        bytes_before=identity.size,
        bytes_after=target.stat().st_size,
        rewritten=tuple(dataset_plan.path for dataset_plan in plan.rewritten),
        copied=tuple(
            (dataset_plan.path, dataset_plan.reason or "not among fields=")
            for dataset_plan in plan.datasets
            if not dataset_plan.rewritten
        ),
        shuffled=tuple(dataset_plan.path for dataset_plan in plan.datasets if dataset_plan.shuffled),
        samples=tuple(dataset_plan.path for dataset_plan in plan.rewritten if dataset_plan.rows == rows),
        notices=(*plan.notices, *new.notices, *uncompared),
        seconds=time.monotonic() - begin,
    )


def _written(new: survey.NewFile, dataset: survey.RawDataset, order: _Order, plan: survey.RewritePlan) -> Iterator[int]:
    """Decode a dataset's rows in their new order, compress them chunk by chunk, and store them; yield their bytes."""
    chunk_rows, filters = plan.chunk_rows(dataset), survey.filters_for(plan.recipe.compress, dataset.element_nbytes)
    target = new.opened(dataset)
    nothing = np.tile(dataset.fill, chunk_rows * dataset.row_nbytes // len(dataset.fill))

    def encoded(chunk: NDArray[np.uint8], rows: int) -> _Encoded:
        used = rows * dataset.row_nbytes
        if dataset.is_sparse and np.array_equal(chunk[:used], nothing[:used]):
            return None  # not written in the source either
        chunk[used:] = nothing[used:]
        return survey.encode(filters, chunk)

    if (whole := dataset.rows_at_once()) is None:
        chunks = _decoded(dataset, chunk_rows, order, encoded)
    else:
        chunks = _cut(whole if order is None else whole[order], chunk_rows, encoded)
    for number, memory, rows, chunk in chunks:
        if plan.recipe.contiguous:
            survey.write_rows(target, dataset, number * chunk_rows, memory[: rows * dataset.row_nbytes])
        elif chunk is not None:
            target.write_direct_chunk((number * chunk_rows,) + (0,) * (len(dataset.shape) - 1), *chunk)
        yield rows * dataset.row_nbytes


def _cut(
    rows: NDArray[np.uint8], chunk_rows: int, encoded: Callable[[NDArray[np.uint8], int], _Encoded]
) -> Iterator[_NewChunk]:
    """Yield the new chunks of rows that are in memory, in the format of `_decoded`."""
    memory = np.empty(chunk_rows * rows.shape[1], dtype=np.uint8)
    for number, start in enumerate(range(0, len(rows), chunk_rows)):
        own = rows[start : start + chunk_rows]
        memory[: own.size] = own.reshape(-1)
        yield number, memory, len(own), encoded(memory, len(own))


def _decoded(
    dataset: survey.RawDataset, chunk_rows: int, order: _Order, encoded: Callable[[NDArray[np.uint8], int], _Encoded]
) -> Iterator[_NewChunk]:
    """Yield the new chunks in order: number, memory of the rows, number of rows, and the bytes to store."""
    assert dataset.layout is not None
    threads, together = limits.cpus(), _chunks_together(dataset, chunk_rows, order)
    slot_format, nbytes = SlotFormat.for_rows(dataset.layout.fields, chunk_rows), chunk_rows * dataset.row_nbytes
    slots = functools.partial(SlotRing, slot_format.nbytes)
    spans = [(start, min(start + chunk_rows, dataset.rows)) for start in range(0, dataset.rows, chunk_rows)]
    waiting: collections.deque[tuple[int, int, Slot, Future[_Encoded]]] = collections.deque()
    with (
        ThreadPoolExecutor(threads, thread_name_prefix="h5stream-encode") as pool,
        # Which ends the pass, also one that Ctrl-C cuts short as it begins.
        contextlib.closing(Engine(RowReader(dataset.layout), slot_format, slots, threads=threads)) as engine,
    ):
        run = engine.begin(
            ListedOrder(
                listed=(np.arange(*span, dtype=np.int64) if order is None else order[slice(*span)] for span in spans),
                together=together,
                total_rows=dataset.rows,
                batches=len(spans),
            ),
            0,
            # A shuffle fills its memory with one window; otherwise the next one is decoded while this one is written.
            max_open_batches=together if order is not None else 2 * together,
        )
        try:
            while (batch := run.next_batch()) is not None or waiting:
                if batch is not None:
                    future = pool.submit(encoded, batch.slot.memory[:nbytes], batch.rows)
                    waiting.append((batch.number, batch.rows, batch.slot, future))
                if batch is None or len(waiting) > 2 * threads:
                    number, rows, slot, future = waiting.popleft()
                    yield number, slot.memory, rows, future.result()
                    slot.give_back()
        finally:
            run.stop()
            pool.shutdown(cancel_futures=True)


def _chunks_together(dataset: survey.RawDataset, chunk_rows: int, order: _Order) -> int:
    """Return how many new chunks to decode as one window, so that old chunks are rarely decoded twice."""
    if order is not None:
        return max(1, limits.memory_available_bytes() // MEMORY_SHARE // (chunk_rows * dataset.row_nbytes))
    old_rows, at_least = dataset.part.chunk_rows, -(-TOGETHER_NBYTES // dataset.row_nbytes)
    aligned = math.lcm(old_rows, chunk_rows)
    if aligned * dataset.row_nbytes <= MOST_TOGETHER_NBYTES:
        rows = -(-at_least // aligned) * aligned
    else:  # at most one old chunk in four is decoded twice
        rows = max(at_least, min(4 * old_rows, MOST_TOGETHER_NBYTES // dataset.row_nbytes))
    return max(1, -(-rows // chunk_rows))
