"""A CUDA device and its pinned host memory: allocation, asynchronous copies, and the events that order them.

The protocol in five lines, for one batch::

    cuda.copy_async(device_memory, host_slot, side)      # starts when what side did before is done
    copied = cuda.record_event(side)
    cuda.wait(consumer_stream, copied)                   # the consumer's stream, not its thread
    cuda.synchronize(copied)                             # before the host slot is written again
    cuda.wait(side, consumed)                            # before the device memory is written again

Each of these waits is needed, and the tests take each of them out to show it, on a device that does everything as late
as it may (``tests/device``).
"""

from __future__ import annotations

import contextlib
import resource
import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

import torch
from torch import cuda
from torch.utils.data._utils.pin_memory import pin_memory

from h5stream.base.hints import warn
from h5stream.base.texts import counted
from h5stream.engine.slots import Slot, SlotRing
from h5stream.errors import OptionError

BatchT = TypeVar("BatchT")
ArgumentT = TypeVar("ArgumentT")
ResultT = TypeVar("ResultT")


class PinningWarning(UserWarning):
    """Host memory could not be pinned; copies to the device are slower, but correct."""


def is_cuda_available() -> bool:
    """Return whether there is a CUDA device that torch can use; starts no context."""
    return bool(cuda.is_available())


def release_cached_memory() -> None:
    """Release the GPU memory that torch caches for reuse to the driver; does nothing if CUDA is unused."""
    if cuda.is_available() and cuda.is_initialized():  # type: ignore[no-untyped-call]
        cuda.empty_cache()


def pinned_copy(batch: BatchT) -> BatchT:
    """Return a copy of a batch in torch's own pinned memory, as a stock DataLoader does."""
    pinned: BatchT = pin_memory(batch)  # type: ignore[no-untyped-call]
    return pinned


class CudaBackend:
    """A single CUDA device: every call that could create a context runs with this device current.

    (``cudaHostAlloc`` is such a call: pinning makes a context on the current device,
    https://github.com/pytorch/pytorch/issues/58626.) A *stream* is a queue of work that the device does in order; two
    streams are not ordered unless one waits for an event of the other.

    # Guarantees: any thread may call; `current_stream` is the calling thread's own. `_lock` makes the side stream once,
    and one warning of memory that cannot be pinned. Only `synchronize` waits, for work that ends by itself. Queued work
    does not hold the memory that it touches: a host buffer stays in its holder's hands until the event behind its copy
    is done; device memory may be dropped before that only if `hold` named the streams that still use it.
    """

    __slots__ = ("_lock", "_pinning_fails", "_side", "device")

    def __init__(self, device: torch.device | str = "cuda") -> None:
        self.device = _checked(torch.device(device))  # with its index
        self._lock = threading.Lock()
        self._pinning_fails = False
        self._side: cuda.Stream | None = None

    @contextlib.contextmanager
    def _on(self, stream: cuda.Stream) -> Iterator[None]:
        # The device first: leaving `cuda.stream` alone goes back to the former device with cudaSetDevice,
        # which makes a context there; leaving `cuda.device` does so only where there is a context already.
        with cuda.device(self.device), cuda.stream(stream):
            yield

    def allocate_pinned(self, nbytes: int) -> torch.Tensor:
        """Return host memory, a uint8 vector: pinned, or pageable from the first failure on, with one warning."""
        if not nbytes or self._pinning_fails:
            return torch.empty(nbytes, dtype=torch.uint8)
        try:
            with cuda.device(self.device):
                return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
        except (RuntimeError, MemoryError) as error:
            # The host's own memory may be what ran out; then the pageable buffer raises, and rightly so.
            memory = torch.empty(nbytes, dtype=torch.uint8)
            with self._lock:
                first, self._pinning_fails = not self._pinning_fails, True
            if first:
                _warn_not_pinned(nbytes, error)
            return memory

    def allocate_device(self, nbytes: int, stream: cuda.Stream) -> torch.Tensor:
        """Return memory of torch's caching allocator, a uint8 vector, for work on a stream."""
        with self._on(stream):
            return torch.empty(nbytes, dtype=torch.uint8, device=self.device)

    def current_stream(self) -> cuda.Stream:
        """Return the current stream of the calling thread, the consumer's."""
        return cuda.current_stream(self.device)

    def side_stream(self) -> cuda.Stream:
        """Return the stream beside the consumer's; always the same one."""
        with self._lock:
            if self._side is None:
                self._side = cuda.Stream(device=self.device)  # type: ignore[no-untyped-call]
            return self._side

    def copy_async(self, destination: torch.Tensor, source: torch.Tensor, stream: cuda.Stream) -> None:
        """Queue a copy of bytes; from pageable memory the driver may block the thread."""
        with self._on(stream):
            destination.copy_(source, non_blocking=True)

    def launch(self, stream: cuda.Stream, kernel: Callable[..., object], *tensors: torch.Tensor) -> None:
        """Queue a kernel that writes into the given tensors in place; its result is dropped."""
        with self._on(stream):
            kernel(*tensors)

    def call(self, stream: cuda.Stream, function: Callable[[ArgumentT], ResultT], argument: ArgumentT) -> ResultT:
        """Call a user's function now, queueing on the stream all that it launches; return its result."""
        with self._on(stream):
            return function(argument)

    def record_event(self, stream: cuda.Stream, *, timed: bool = False) -> cuda.Event:
        """Record an event after all queued work; a thread that waits for it sleeps instead of spinning."""
        with cuda.device(self.device):
            event = cuda.Event(enable_timing=timed, blocking=True)  # type: ignore[no-untyped-call]
            event.record(stream)
        return event

    def elapsed_ns(self, began: cuda.Event, ended: cuda.Event) -> int:
        """Return the time between two completed timed events; CUDA's resolution is half a microsecond."""
        with cuda.device(self.device):
            return round(1e6 * float(began.elapsed_time(ended)))

    def wait(self, stream: cuda.Stream, event: cuda.Event) -> None:
        """Make later work of a stream wait for an event; the thread does not wait."""
        stream.wait_event(event)

    def done(self, event: cuda.Event) -> bool:
        """Return whether all work before an event has completed, without waiting."""
        return bool(event.query())  # type: ignore[no-untyped-call]

    def synchronize(self, event: cuda.Event) -> None:
        """Wait in the calling thread for an event, with the GIL released."""
        event.synchronize()

    def hold(self, tensor: torch.Tensor, stream: cuda.Stream) -> None:
        """Keep device memory from reuse after it is dropped until the work queued on another stream by then is done."""
        tensor.record_stream(stream)


def backend_for(device: str | torch.device) -> CudaBackend | None:
    """Return the backend of a device for batches; None for the host."""
    with contextlib.suppress(RuntimeError):
        wanted = torch.device(device)
        if wanted.type in ("cpu", "cuda"):
            return None if wanted.type == "cpu" else CudaBackend(wanted)
    raise OptionError(f"device={str(device)!r} cannot be fed: h5stream knows 'cpu', 'cuda' and 'cuda:N'")


def _checked(device: torch.device) -> torch.device:
    if not cuda.is_available():
        built = "torch is built without CUDA" if torch.version.cuda is None else "no usable GPU or driver"
        raise OptionError(f"device={str(device)!r} needs CUDA, and there is none here: {built}")
    index = cuda.current_device() if device.index is None else device.index
    count = cuda.device_count()
    if index >= count:
        raise OptionError(f"device={str(device)!r} does not exist: this process sees {counted(count, 'CUDA device')}")
    return torch.device("cuda", index)


def _warn_not_pinned(nbytes: int, reason: BaseException) -> None:
    """Warn that pinning failed, with the reason and the remedy."""
    soft, hard = (
        "unlimited" if limit == resource.RLIM_INFINITY else f"{limit} bytes"
        for limit in resource.getrlimit(resource.RLIMIT_MEMLOCK)
    )
    first_line = str(reason).split("\n", 1)[0] or type(reason).__name__
    warn(
        f"{nbytes} bytes of host memory could not be pinned ({first_line}); pageable memory is used from "
        "here on, from which copies are slower and hold up the thread that starts them. "
        f"RLIMIT_MEMLOCK is {soft} (soft), {hard} (hard): where that is the reason, raise it (ulimit -l unlimited; in "
        "a container --ulimit memlock=-1)",
        PinningWarning,
    )


class PinnedSlots(SlotRing):
    """Pinned slots for batches that the user copies to a GPU himself (``pin_memory=True`` without ``device``).

    The user's copy may still be running when the batch is dropped, which only torch's own allocator knows: it records
    every non_blocking copy from its memory and reuses the memory once they are done. So each slot is a tensor of that
    allocator, and is dropped instead of kept. The allocator rounds each slot up to a power of two.

    # Guarantees: any thread may call; the allocator has its own lock.
    """

    def __init__(self, backend: CudaBackend, slot_nbytes: int) -> None:
        super().__init__(slot_nbytes)
        self._backend = backend

    def take(self) -> Slot:
        """Take memory from the allocator, which keeps dropped memory for reuse."""
        tensor = self._backend.allocate_pinned(self.slot_nbytes)
        return Slot(tensor.numpy(), tensor=tensor)
