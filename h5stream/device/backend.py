"""What the feed needs of a device: memory, a copy that runs by itself, and events that order it.

The protocol in five lines, for one batch::

    backend.copy_async(device_memory, host_slot, side)      # starts when what side did before is done
    copied = backend.record_event(side)
    backend.wait(consumer_stream, copied)                   # the consumer's stream, not its thread
    backend.synchronize(copied)                             # before the host slot is written again
    backend.wait(side, consumed)                            # before the device memory is written again

Each of these waits is needed, and the tests take each of them out to show it (``tests/device``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

import torch

from h5stream.device.cpu import CpuBackend, CpuEvent, CpuStream
from h5stream.device.cuda import CudaBackend, release_cached_memory
from h5stream.device.pinning import HostBuffer, PinningWarning
from h5stream.errors import OptionError

__all__ = [
    "CpuBackend",
    "CudaBackend",
    "DeviceBackend",
    "HostBuffer",
    "PinningWarning",
    "backend_for",
    "release_cached_memory",
]

StreamT = TypeVar("StreamT")
EventT = TypeVar("EventT")


@runtime_checkable
class DeviceBackend(Protocol[StreamT, EventT]):
    """One device and the host's memory beside it.

    A *stream* is a queue of work that the device does in order; two streams are not ordered unless one
    waits for an event of the other. An *event* marks a place in a stream and is used once.

    Guarantees
    ----------
    Threads: every method may be called from any thread, and none relies on the calling thread's current
    device. `current_stream` is the calling thread's own. Calls on one stream from several threads take
    effect in the order in which they are made; if that order matters, the caller's lock makes it.

    Ownership: buffers and tensors belong to whoever holds them, and go back when the last view is dropped.
    The backend holds none. Work that is queued does **not** hold the memory that it will touch:

    * a host buffer stays in its holder's hands until the event after its copy is done;
    * device memory may be dropped before that only if the streams that still use it were named with `hold`.

    Blocking: only `synchronize` waits, and only for work that ends by itself.

    Devices: a backend of one device allocates, copies and waits on that one; no other is touched.
    """

    @property
    def device(self) -> torch.device:
        """The device, with its index where there are several."""

    def allocate_pinned(self, nbytes: int) -> HostBuffer:
        """Return a host buffer, pinned where the system allows it.

        Where it does not (locked-memory limits, containers), pageable memory is given, with one
        `PinningWarning` for each backend that names the limit. Copies from it are slower, and as correct.
        Contents are undefined. Not a cheap call: about 1.7 GiB/s when pinning.
        """

    def allocate_device(self, nbytes: int, stream: StreamT) -> torch.Tensor:
        """Give device memory, a uint8 vector with undefined contents, for work on `stream`.

        It can be used on `stream` at once. Another stream must first wait for an event of `stream`, and be
        named with `hold` if the memory may be dropped while that stream still uses it.
        """

    def current_stream(self) -> StreamT:
        """Return the stream on which the calling thread's own work goes: the consumer's."""

    def side_stream(self) -> StreamT:
        """Return the backend's own stream beside the consumer's; the same at every call."""

    def copy_async(self, destination: torch.Tensor, source: torch.Tensor, stream: StreamT) -> None:
        """Queue a copy of all bytes on `stream` and return; both are uint8 vectors of one length.

        The source is read at any time until an event recorded afterwards is done.
        """

    def launch(self, stream: StreamT, kernel: Callable[..., Any], *tensors: torch.Tensor) -> None:
        """Queue ``kernel(*tensors)`` on `stream` and return; what it gives is dropped.

        The kernel works on the tensors that it gets and writes in place (``out.copy_(raw)``): it may run
        later, on other views of the same memory.
        """

    def call(self, stream: StreamT, function: Callable[[Any], Any], argument: Any) -> Any:
        """Call ``function(argument)`` now, with what it launches queued on `stream`, and give what it gives.

        For a user's function, which makes tensors of its own.
        """

    def total_nbytes(self) -> int:
        """Return the bytes of memory that the device has, whatever is free of them."""

    def free_nbytes(self) -> int:
        """Return the bytes of it that nobody uses now; those that torch's allocator only holds ready are among them."""

    def record_event(self, stream: StreamT, *, timed: bool = False) -> EventT:
        """Mark the place in `stream` after all that is queued there now; `timed` for `elapsed_ns`."""

    def elapsed_ns(self, began: EventT, ended: EventT) -> int:
        """Return the nanoseconds between two timed events of one stream, both of which are done, without waiting."""

    def wait(self, stream: StreamT, event: EventT) -> None:
        """Let what is queued on `stream` from now on start only after `event`; the thread does not wait."""

    def done(self, event: EventT) -> bool:
        """Tell whether all before the event has run, without waiting."""

    def synchronize(self, event: EventT) -> None:
        """Let the calling thread wait until all before the event has run. Other threads keep running."""

    def hold(self, tensor: torch.Tensor, stream: StreamT) -> None:
        """Keep the memory of a device tensor from reuse, once it is dropped, for the work of another stream.

        It is called at any time before the drop. The memory is reused only when all that is queued on
        `stream` at the drop has run, and not just what is queued on the stream it was allocated for.
        """


def backend_for(device: str | torch.device) -> CpuBackend | CudaBackend:
    """Return the backend of a device.

    Examples
    --------
    >>> backend_for("cpu").device
    device(type='cpu')
    >>> backend_for("mps")
    Traceback (most recent call last):
        ...
    h5stream.errors.OptionError: device='mps' cannot be fed: h5stream knows 'cpu', 'cuda' and 'cuda:N'
    """
    try:
        wanted = torch.device(device)
    except RuntimeError:
        wanted = None
    if wanted is not None and wanted.type == "cpu":
        return CpuBackend()
    if wanted is not None and wanted.type == "cuda":
        return CudaBackend(wanted)
    raise OptionError(f"device={str(device)!r} cannot be fed: h5stream knows 'cpu', 'cuda' and 'cuda:N'")


if TYPE_CHECKING:
    # The type checker holds both implementations to the protocol.
    _cpu: DeviceBackend[CpuStream, CpuEvent] = CpuBackend()
    _cuda: DeviceBackend[torch.cuda.Stream, torch.cuda.Event] = CudaBackend()
