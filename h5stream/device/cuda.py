"""The CUDA backend: ``torch.cuda``'s streams, events and allocators behind the protocol of `backend`."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import cuda

from h5stream.device.pinning import HostBuffer, check_size, held_by_pinning, pageable, warn_not_pinned
from h5stream.errors import OptionError


def is_cuda_available() -> bool:
    """Tell whether there is a CUDA device that torch can use; starts no context."""
    return bool(cuda.is_available())


def release_cached_memory() -> None:
    """Return the GPU memory that torch keeps for reuse back to the driver; nothing where CUDA is unused."""
    if cuda.is_available() and cuda.is_initialized():  # type: ignore[no-untyped-call]
        cuda.empty_cache()


class CudaBackend:
    """One CUDA device. `h5stream.device.backend.DeviceBackend` says what each method promises.

    Every call that could create a context or change the current device runs with this device made current,
    and puts the former one back: ``cuda:1`` leaves no context on GPU 0. (``cudaHostAlloc`` is such a call:
    pinning makes a context on the current device, https://github.com/pytorch/pytorch/issues/58626.)
    """

    # Guarantees:
    # - `_side` is made once, under `_lock`, by the thread that asks first; streams are then used by any.
    # - `_pinning_fails` goes from False to True once, under `_lock`; one thread alone makes the warning.
    # - Nothing else is written after the constructor.
    __slots__ = ("_device", "_lock", "_pinning_fails", "_side")

    def __init__(self, device: torch.device | str = "cuda") -> None:
        self._device = _checked(torch.device(device))
        self._lock = threading.Lock()
        self._pinning_fails = False
        self._side: cuda.Stream | None = None

    @property
    def device(self) -> torch.device:
        """The device, with its index."""
        return self._device

    @contextlib.contextmanager
    def _on(self, stream: cuda.Stream) -> Iterator[None]:
        # The device first: leaving `cuda.stream` alone goes back to the former device with cudaSetDevice,
        # which makes a context there; leaving `cuda.device` does so only where there is a context already.
        with cuda.device(self._device), cuda.stream(stream):
            yield

    def allocate_pinned(self, nbytes: int) -> HostBuffer:
        """Give pinned memory, or pageable memory from the first failure on, with one warning."""
        check_size(nbytes)
        if nbytes == 0 or self._pinning_fails:
            return pageable(nbytes)
        try:
            with cuda.device(self._device):
                tensor = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
        except (RuntimeError, MemoryError) as error:
            # The host's own memory may be what ran out; then the pageable buffer raises, and rightly so.
            buffer = pageable(nbytes)
            self._note_failure(nbytes, error)
            return buffer
        return HostBuffer(tensor=tensor, pinned=True, held_bytes=held_by_pinning(nbytes))

    def _note_failure(self, nbytes: int, error: BaseException) -> None:
        with self._lock:
            first, self._pinning_fails = not self._pinning_fails, True
        if first:
            warn_not_pinned(nbytes, error, stacklevel=4)

    def allocate_device(self, nbytes: int, stream: cuda.Stream) -> torch.Tensor:
        """Give memory of torch's caching allocator, tied to the stream."""
        check_size(nbytes)
        with self._on(stream):
            return torch.empty(nbytes, dtype=torch.uint8, device=self._device)

    def current_stream(self) -> cuda.Stream:
        """Return the calling thread's current stream on this device."""
        return cuda.current_stream(self._device)

    def side_stream(self) -> cuda.Stream:
        """Return the stream of this backend, made at the first call."""
        with self._lock:
            if self._side is None:
                self._side = cuda.Stream(device=self._device)  # type: ignore[no-untyped-call]
            return self._side

    def copy_async(self, destination: torch.Tensor, source: torch.Tensor, stream: cuda.Stream) -> None:
        """Queue one ``cudaMemcpyAsync``; from pageable memory the driver may hold the thread up."""
        with self._on(stream):
            destination.copy_(source, non_blocking=True)

    def launch(self, stream: cuda.Stream, kernel: Callable[..., Any], *tensors: torch.Tensor) -> None:
        """Run the kernel's Python now; what it launches is queued on the stream."""
        with self._on(stream):
            kernel(*tensors)

    def call(self, stream: cuda.Stream, function: Callable[[Any], Any], argument: Any) -> Any:
        """Call it with the stream made current."""
        with self._on(stream):
            return function(argument)

    def total_nbytes(self) -> int:
        """Ask the driver."""
        return int(cuda.mem_get_info(self._device)[1])

    def free_nbytes(self) -> int:
        """Ask the driver, and torch's allocator for what it holds ready."""
        ready = cuda.memory_reserved(self._device) - cuda.memory_allocated(self._device)
        return int(cuda.mem_get_info(self._device)[0]) + int(ready)

    def record_event(self, stream: cuda.Stream, *, timed: bool = False) -> cuda.Event:
        """Record an event that a waiting thread sleeps on, rather than spins."""
        with cuda.device(self._device):
            event = cuda.Event(enable_timing=timed, blocking=True)  # type: ignore[no-untyped-call]
            event.record(stream)
        return event

    def elapsed_ns(self, began: cuda.Event, ended: cuda.Event) -> int:
        """Ask ``cudaEventElapsedTime``, which knows half microseconds."""
        with cuda.device(self._device):
            return round(1e6 * float(began.elapsed_time(ended)))

    def wait(self, stream: cuda.Stream, event: cuda.Event) -> None:
        """Queue a ``cudaStreamWaitEvent``."""
        stream.wait_event(event)

    def done(self, event: cuda.Event) -> bool:
        """Query the event."""
        return bool(event.query())  # type: ignore[no-untyped-call]

    def synchronize(self, event: cuda.Event) -> None:
        """Wait for the event with the GIL released."""
        event.synchronize()

    def hold(self, tensor: torch.Tensor, stream: cuda.Stream) -> None:
        """Tell torch's allocator that the stream uses the memory."""
        tensor.record_stream(stream)


def _checked(device: torch.device) -> torch.device:
    if not cuda.is_available():
        built = "torch is built without CUDA" if torch.version.cuda is None else "no usable GPU or driver"
        raise OptionError(f"device={str(device)!r} needs CUDA, and there is none here: {built}")
    index = cuda.current_device() if device.index is None else device.index
    count = cuda.device_count()
    if index >= count:
        raise OptionError(f"device={str(device)!r} does not exist: this process sees {count} CUDA device(s)")
    return torch.device("cuda", index)
