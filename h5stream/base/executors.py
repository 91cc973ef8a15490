"""Run picklable jobs over many files, in this process or in an executor of the user."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, wait
from typing import Any

from h5stream.errors import IsolatedProcessError, OptionError

TICK_S = 0.1
"""The longest wait between calls of `tick`."""


Job = tuple[str, Callable[..., Any], tuple[Any, ...]]
"""The file to name in errors, a function, and its arguments."""


def check_executor(executor: object) -> None:
    """Raise `OptionError` if `executor` is no `concurrent.futures.Executor`."""
    if executor is not None and not isinstance(executor, Executor):
        raise OptionError(
            "executor= takes an executor of concurrent.futures, mpi4py.futures or dask (client.get_executor()), not "
            f"{type(executor).__name__}"
        )


def run_jobs(jobs: Sequence[Job], executor: Executor | None, tick: Callable[[], None] | None = None) -> Generator[Any]:
    """Run jobs, and yield their results in order.

    # Guarantees: jobs that have not begun are cancelled after an error or Ctrl-C, and when the generator is closed.
    """
    if executor is None:
        for file, work, arguments in jobs:
            with _errors_naming(file):
                result = work(*arguments)
            yield result
        return
    futures: list[Future[Any]] = []
    try:
        for file, work, arguments in jobs:
            with _errors_naming(file):
                futures.append(executor.submit(work, *arguments))
        for (file, _, _), future in zip(jobs, futures, strict=True):
            while tick is not None and not wait([future], TICK_S).done:
                tick()
            with _errors_naming(file):
                result = future.result()
            yield result
    finally:
        for future in futures:
            future.cancel()


@contextlib.contextmanager
def _errors_naming(file: str) -> Iterator[None]:
    try:
        yield
    except BrokenExecutor as error:
        raise IsolatedProcessError(f"{file}: a process of executor= is gone ({error})") from error
    except Exception as error:
        if file not in str(error):
            error.add_note(f"while working on {file}")
        raise
