"""Whose fault it is: which batches a failed task spoils, and whether a file changed under the readers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from h5stream.engine.carry import Carrier, FileTask
from h5stream.engine.emit import Sink
from h5stream.engine.kept import KeptTask
from h5stream.engine.plan import Task
from h5stream.errors import CorruptChunkError, H5StreamError, SourceError
from h5stream.storage.source import FileIdentity


def first_failure(
    carrier: Carrier,
    task: FileTask | KeptTask,
    sink: Sink,
    error: H5StreamError,
    drop: Callable[[Task, CorruptChunkError], None] | None = None,
) -> tuple[int, H5StreamError] | None:
    """Find the earliest batch that a failed task spoils, and fill what it can of the others.

    A task holds many chunks, and a corrupt one must not take along the batches that never needed it.

    Parameters
    ----------
    carrier, task, sink
        What was carried out, and where it goes. Rows are written to the places they were meant for, so doing
        it twice changes nothing.
    error : H5StreamError
        What the whole task raised.
    drop : callable, optional
        Takes the tasks of single chunks that are corrupt; those spoil no batch then.

    Returns
    -------
    batch : int
        Counted from the window's first.
    error : H5StreamError
        Why that batch cannot be had. None in place of both if all that failed was dropped.
    """
    if isinstance(task, KeptTask):
        return task.first_batch, error
    failures: list[tuple[int, H5StreamError]] = []
    dropped = False
    for one in task.split():
        try:
            carrier.carry(one, sink)
        except H5StreamError as found:
            if drop is not None and isinstance(found, CorruptChunkError) and isinstance(one, Task):
                drop(one, found)
                dropped = True
            else:
                failures.append((one.first_batch, found))
    if dropped and not failures:
        return None
    # Nothing fails the second time where the trouble was passing; the bytes are right then, but say so anyway.
    return min(failures, key=lambda failure: failure[0], default=(task.first_batch, error))


def changed_file(files: Sequence[FileIdentity], numbers: Iterable[int]) -> SourceError | None:
    """Look whether one of these files changed since it was opened; what was read of it cannot be trusted then."""
    try:
        for number in numbers:
            files[number].check_unchanged()
    except SourceError as error:
        return error
    return None
