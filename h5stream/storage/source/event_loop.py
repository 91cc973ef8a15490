"""Requests to stores: an event loop of its own thread runs many at once, and stops those that nobody waits for."""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import gc
import os
import threading
import time
from collections.abc import Awaitable, Coroutine, Iterable, Mapping
from typing import Any, TypeVar

from h5py._objects import phil

from h5stream.base.cancel import raise_if_stopped
from h5stream.storage.source.stores import RETRIES, count_requests, import_obstore, permanent_reason, stores, tried

T = TypeVar("T")

CONCURRENCY = 64
"""Concurrent requests of a process."""

_STOP_S = 0.1
"""How often a thread that waits for a request checks whether to stop."""

_TRIED_S = 0.5
"""Seconds without an answer after which a request without retries is sent, to learn the reason."""
_ONCE = {**RETRIES, "max_retries": 0}


async def answered(word: str, path: str, asking: Awaitable[T], is_opening: bool = True) -> T:
    """Wait for a store's answer; raise at once if retries cannot help, as with an invalid certificate."""
    loop, request = asyncio.get_running_loop(), asyncio.ensure_future(asking)
    probe: asyncio.Task[None] | None = None

    def learn() -> None:
        nonlocal probe
        probe = loop.create_task(_probe(word, path, is_opening))
        probe.add_done_callback(lambda task: task.cancelled() or task.exception() is None or request.cancel())

    timer = None if word in tried else loop.call_later(_TRIED_S, learn)
    try:
        return await request
    except asyncio.CancelledError:
        if probe is not None and probe.done() and not probe.cancelled() and (error := probe.exception()):
            raise error from None
        raise
    finally:
        if timer is not None:
            timer.cancel()
        if probe is not None:
            probe.cancel()


async def _probe(word: str, path: str, is_opening: bool) -> None:
    """Send one request without retries; raise its error if repeating it cannot help."""
    try:
        places, options = stores[word].__getnewargs_ex__()
        once = type(stores[word])(*places, **{**options, "retry_config": _ONCE})
    except Exception:  # a store without retries, or of a class of the user's
        tried.add(word)
        return
    try:
        count_requests()
        await import_obstore().head_async(once, path)
    except Exception as error:
        if permanent_reason(error, is_opening) is not None:
            raise
    tried.add(word)


class _CalledLoop(asyncio.SelectorEventLoop):
    """An event loop that tracks threads inside `call_soon_threadsafe`, so that shutdown can wait for them."""

    def __init__(self) -> None:
        super().__init__()
        self.callers = set[int]()

    def call_soon_threadsafe(self, *args: Any, **options: Any) -> asyncio.Handle:  # type: ignore[override]
        """Schedule a callback, recording the calling thread."""
        thread = threading.get_ident()
        self.callers.add(thread)
        try:
            return super().call_soon_threadsafe(*args, **options)
        finally:
            self.callers.discard(thread)


class _Loop:
    """A thread with an asyncio event loop that runs many requests.

    # Guarantees: any thread may call `run`, also with h5py's lock; see `_collect_without_waiting`. A waiting thread
    checks regularly whether to stop; its requests are then cancelled, as they are if an exception (Ctrl-C) ends the
    wait.
    """

    def __init__(self) -> None:
        self.pid, self._loop = os.getpid(), _CalledLoop()
        self.room = asyncio.Semaphore(CONCURRENCY)
        self._loop.set_default_executor(concurrent.futures.ThreadPoolExecutor(CONCURRENCY // 2, "h5stream-waiting"))
        if _collect_without_waiting not in gc.callbacks:
            gc.callbacks.append(_collect_without_waiting)
        self._thread = threading.Thread(target=self._loop.run_forever, name="h5stream-requests", daemon=True)
        self._thread.start()

    def run(self, work: Iterable[Coroutine[object, object, T]]) -> list[T]:
        """Run coroutines concurrently, and return their results."""

        async def together() -> list[T] | BaseException:
            try:
                async with asyncio.TaskGroup() as group:
                    tasks = [group.create_task(one) for one in work]
            except BaseExceptionGroup as errors:  # asyncio would print it if nobody waits any more
                return errors.exceptions[0]
            return [task.result() for task in tasks]

        result = self.wait(self.begin(together()))
        if isinstance(result, BaseException):
            raise result from None
        return result

    def end(self) -> None:
        """Cancel all requests before Python exits: a later call by a thread of obstore would abort the process."""

        async def cancel() -> None:
            under_way = asyncio.all_tasks() - {asyncio.current_task()}
            for task in under_way:
                task.cancel()
            if under_way:
                await asyncio.wait(under_way, timeout=_STOP_S)
                await asyncio.sleep(_STOP_S)  # obstore notices
            self._loop.stop()

        if self.pid == os.getpid():
            asyncio.run_coroutine_threadsafe(cancel(), self._loop)
            until = time.monotonic() + 10 * _STOP_S
            self._thread.join(10 * _STOP_S)
            while self._loop.callers and time.monotonic() < until:
                time.sleep(0.001)

    def begin(self, work: Coroutine[object, object, T]) -> concurrent.futures.Future[T]:
        """Start a coroutine."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def wait(self, future: concurrent.futures.Future[T]) -> T:
        """Wait for a result, checking regularly whether to stop."""
        try:
            while not concurrent.futures.wait([future], _STOP_S).done:
                raise_if_stopped()
            return future.result()
        finally:
            future.cancel()


_skips = _holds = False


def _collect_without_waiting(phase: str, _: Mapping[str, int]) -> None:
    """Skip a garbage collection that would wait for h5py's lock; a callback of `gc`.

    h5py reads a file in a store with its lock held, and waits for bytes that other threads fetch. If one of these frees
    an h5py object, it waits for that lock: a deadlock. Any thread may run the collector, so only the main thread, for
    which nobody waits, collects while another has the lock. Frozen objects are not examined; garbage among them is
    collected later.
    """
    global _skips, _holds
    if phase == "start" and threading.get_ident() != threading.main_thread().ident:
        _holds = phil.acquire(False)
        if _skips := not _holds:
            gc.freeze()
    elif phase == "stop":
        if _skips:
            gc.unfreeze()
        if _holds:
            phil.release()
        _skips = _holds = False


_starting = threading.Lock()
_started: list[_Loop] = []


@atexit.register
def _end_all() -> None:
    """Stop the loops after the readers, which start requests: `h5stream.engine.run`, imported later, stops those."""
    for loop in _started:
        loop.end()


def requests() -> _Loop:
    """Return the event loop of this process."""
    with _starting:
        if not _started or _started[0].pid != os.getpid():
            _started[:] = [_Loop()]
        return _started[0]
