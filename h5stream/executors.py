"""Jobs over many files, each a call that pickles: in this process, or by an executor of the user's."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, wait
from typing import Any, NamedTuple

from h5stream.errors import IsolatedProcessError, OptionError

TICK_S = 0.1
"""How long a wait lasts at most before `tick` is called."""


class Job(NamedTuple):
    """One call, and the file that an error in it is to name."""

    file: str
    work: Callable[..., Any]
    arguments: tuple[Any, ...]


def check_executor(executor: Any) -> None:
    """Refuse what is no executor."""
    if executor is not None and not isinstance(executor, Executor):
        raise OptionError(
            "executor= takes an executor of concurrent.futures, mpi4py.futures or dask (client.get_executor()), not "
            f"{type(executor).__name__}"
        )


def carried_out(
    jobs: Sequence[Job], executor: Executor | None, tick: Callable[[], None] | None = None
) -> Generator[Any]:
    """Yield what jobs return, in their order.

    # Guarantees: at an error, at Ctrl-C, and when it is closed, jobs that have not begun are cancelled.
    """
    if executor is None:
        for job in jobs:
            with _naming(job):
                result = job.work(*job.arguments)
            yield result
        return
    given: list[Future[Any]] = []
    try:
        for job in jobs:
            with _naming(job):
                given.append(executor.submit(job.work, *job.arguments))
        for job, future in zip(jobs, given, strict=True):
            while tick is not None and not wait([future], TICK_S).done:
                tick()
            with _naming(job):
                result = future.result()
            yield result
    finally:
        for future in given:
            future.cancel()


@contextlib.contextmanager
def _naming(job: Job) -> Iterator[None]:
    try:
        yield
    except BrokenExecutor as error:
        raise IsolatedProcessError(f"{job.file}: a process of executor= is gone ({error})") from error
    except Exception as error:
        if job.file not in str(error):
            error.add_note(f"while working on {job.file}")
        raise
