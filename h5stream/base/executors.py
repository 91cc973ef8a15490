"""Jobs over many files, each a call that pickles: in this process, or by an executor of the user's."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, wait
from typing import Any

from h5stream.errors import IsolatedProcessError, OptionError

TICK_S = 0.1
"""How long a wait lasts at most before `tick` is called."""


Job = tuple[str, Callable[..., Any], tuple[Any, ...]]
"""The file that an error is to name, a function, and what it is called with."""


def check_executor(executor: object) -> None:
    """Raise `OptionError` if `executor` is no `concurrent.futures.Executor`."""
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
        for file, work, arguments in jobs:
            with _naming(file):
                result = work(*arguments)
            yield result
        return
    futures: list[Future[Any]] = []
    try:
        for file, work, arguments in jobs:
            with _naming(file):
                futures.append(executor.submit(work, *arguments))
        for (file, _, _), future in zip(jobs, futures, strict=True):
            while tick is not None and not wait([future], TICK_S).done:
                tick()
            with _naming(file):
                result = future.result()
            yield result
    finally:
        for future in futures:
            future.cancel()


@contextlib.contextmanager
def _naming(file: str) -> Iterator[None]:
    try:
        yield
    except BrokenExecutor as error:
        raise IsolatedProcessError(f"{file}: a process of executor= is gone ({error})") from error
    except Exception as error:
        if file not in str(error):
            error.add_note(f"while working on {file}")
        raise
