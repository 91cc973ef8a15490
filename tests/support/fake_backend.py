"""A device that does everything as late, as early and as badly ordered as the protocol allows.

It keeps to the letter of `h5stream.device.cuda.CudaBackend` and to nothing more:

* a stream is a queue; its work runs in order, whenever a seeded scheduler likes, each stream at its own
  speed (one of them may not move at all until somebody waits for it);
* streams are ordered among themselves by event waits alone;
* a copy reads the host slot, and a kernel reads device memory, at the moment it runs, so that whatever was
  written there meanwhile is what it finds;
* queued work holds no memory: device memory that is dropped is filled with `POISON` when all work queued
  before on its own stream (and on the streams named with `hold`) has run; host memory that is dropped is
  filled at once; fresh memory is full of it.

A feed that gives right bytes for all seeds has all the waits it needs. ``skip`` leaves waits out, to show
that a test would notice: names of `wait`, `synchronize`, `done` and `hold`.

Limits: what a feed does outside `copy_async` and `launch` on the tensors themselves happens at once.
"""

import random
import threading
import weakref
from collections import Counter, deque

import numpy as np
import torch

POISON = 0xA5

# How likely a stream moves at a tick. 0: not until somebody waits; 1: at once.
_SPEEDS = (0.0, 0.15, 0.6, 1.0)
# An event that is asked for this often gets done: polling comes to an end.
_PATIENCE = 20


class FakeStream:
    def __init__(self, name, speed):
        self.name = name
        self.speed = speed
        self.queue = deque()

    def __repr__(self):
        return f"<{self.name}: {len(self.queue)} queued>"


class FakeEvent:
    def __init__(self, stream):
        self.stream = stream
        self.is_done = False
        self.asked = 0
        self.at = None


class _Work:
    """One entry of a queue: it may start when `after` are done, and then calls `run`."""

    def __init__(self, run, after=()):
        self.run = run
        self.after = after


class _Block:
    """Memory of the fake. `stream` is None for host memory; `held_by` are the streams named with `hold`."""

    def __init__(self, nbytes, stream=None):
        self.bytes = np.full(max(nbytes, 1), POISON, dtype=np.uint8)
        self.nbytes = nbytes
        self.stream = stream
        self.held_by = []

    @property
    def address(self):
        return self.bytes.ctypes.data


class FakeBackend:
    """See the module. `counts` tells how often each method was called, for "one copy a batch", and bytes that crossed.

    One that is not late does all that it can at the next call.
    """

    # Guarantees:
    # - `_lock` covers queues, events and blocks; work runs under it, in whatever thread moved the scheduler.
    # - Finalizers, which run anywhere, only append to `_dropped`; the next call under the lock reads it.

    def __init__(self, seed=0, *, skip=(), is_late=True):
        unknown = set(skip) - {"wait", "synchronize", "done", "hold"}
        assert not unknown, f"no such wait: {unknown}"
        self._random = random.Random(seed)
        self._skip = frozenset(skip)
        self._speeds = _SPEEDS if is_late else (1.0,)
        self._lock = threading.RLock()
        self._blocks = {}
        self._dropped = deque()
        self._streams = []
        self._moved = 0
        self._consumer = self.new_stream("consumer")
        self._side = self.new_stream("side")
        self.counts = Counter()

    # What the protocol asks for.

    @property
    def device(self):
        return torch.device("cpu")

    def allocate_pinned(self, nbytes):
        self._tick("allocate_pinned")
        return self._allocate(_Block(nbytes))

    def allocate_device(self, nbytes, stream):
        self._tick("allocate_device")
        return self._allocate(_Block(nbytes, stream))

    def current_stream(self):
        return self._consumer

    def side_stream(self):
        return self._side

    def copy_async(self, destination, source, stream):
        assert destination.dtype == source.dtype == torch.uint8, "a copy moves bytes"
        assert destination.shape == source.shape, "both ends have one length"
        self._tick("copy_async")
        self.counts["nbytes"] += source.numel()
        self._enqueue(stream, lambda to, of: to.copy_(of), destination, source)

    def launch(self, stream, kernel, *tensors):
        self._tick("launch")
        self._enqueue(stream, kernel, *tensors)

    def call(self, stream, function, argument):
        # A user's function runs at once, so all that it may look at must have run: that is the stream's order.
        self._tick("call")
        self._force(self.record_event(stream))
        return function(argument)

    def record_event(self, stream, *, timed=False):
        self._tick("record_event")
        event = FakeEvent(stream)

        def finish():
            event.is_done = True
            event.at = self._moved if timed else None

        with self._lock:
            stream.queue.append(_Work(finish))
        return event

    def elapsed_ns(self, began, ended):
        """A nanosecond for each piece of work that any stream did between the two, the end of the first included."""
        self._tick("elapsed_ns")
        if not (began.is_done and ended.is_done):
            assert self._skip & {"synchronize", "done"}, "only what is done has a time"
            return 0
        return ended.at - began.at

    def wait(self, stream, event):
        self._tick("wait")
        if "wait" not in self._skip:
            with self._lock:
                stream.queue.append(_Work(lambda: None, after=(event,)))

    def done(self, event):
        self._tick("done")
        if "done" in self._skip:
            return True
        with self._lock:
            event.asked += 1
            if event.asked > _PATIENCE:
                self._force(event)
            return event.is_done

    def synchronize(self, event):
        self._tick("synchronize")
        if "synchronize" not in self._skip:
            with self._lock:
                self._force(event)

    def hold(self, tensor, stream):
        self._tick("hold")
        if "hold" not in self._skip:
            with self._lock:
                block = self._block_of(tensor)
                if block is not None:  # what a user's function made is not the fake's memory
                    block.held_by.append(stream)

    # What tests ask for.

    def new_stream(self, name):
        stream = FakeStream(name, self._random.choice(self._speeds))
        self._streams.append(stream)
        return stream

    def finish(self):
        """Run all that is queued, in a random order that the waits allow."""
        with self._lock:
            self._take_dropped()
            while any(stream.queue for stream in self._streams):
                ready = [stream for stream in self._streams if self._can_move(stream)]
                assert ready, f"the streams wait for one another: {self._streams}"
                self._move(self._random.choice(ready))

    # The scheduler.

    def _tick(self, name):
        """Count a call, then let streams move, some of them and some way."""
        with self._lock:
            self.counts[name] += 1
            self._take_dropped()
            order = self._random.sample(self._streams, len(self._streams))
            for stream in order:
                while self._can_move(stream) and self._random.random() < stream.speed:
                    self._move(stream)

    def _can_move(self, stream):
        return bool(stream.queue) and all(event.is_done for event in stream.queue[0].after)

    def _move(self, stream):
        self._moved += 1
        stream.queue.popleft().run()

    def _force(self, event):
        """Run what must run before the event is done, and nothing else."""
        while not event.is_done:
            for needed in event.stream.queue[0].after:
                self._force(needed)
            self._move(event.stream)

    # Memory.

    def _allocate(self, block):
        # The tensor keeps `handle` alive, and nothing else does: it ends with the last view of the tensor.
        handle = block.bytes[: block.nbytes]
        tensor = torch.from_numpy(handle)
        with self._lock:
            self._blocks[block.address] = block
        weakref.finalize(handle, self._dropped.append, block).atexit = False
        return tensor

    def _block_of(self, tensor):
        pointer = tensor.data_ptr()
        for block in self._blocks.values():
            if block.address <= pointer < block.address + max(block.nbytes, 1):
                return block
        return None

    def _enqueue(self, stream, kernel, *tensors):
        """Queue a kernel with views that do not hold the memory they look at."""
        with self._lock:
            views = [self._view(tensor) for tensor in tensors]
            stream.queue.append(_Work(lambda: kernel(*views)))

    def _view(self, tensor):
        block = self._block_of(tensor)
        if block is None:
            return tensor
        raw = torch.from_numpy(block.bytes)
        offset = tensor.data_ptr() - block.address
        assert offset % tensor.element_size() == 0, "fields are packed at aligned offsets"
        return torch.empty(0, dtype=tensor.dtype).set_(
            raw.untyped_storage(), offset // tensor.element_size(), tensor.shape, tensor.stride()
        )

    def _take_dropped(self):
        while self._dropped:
            block = self._dropped.popleft()
            self._blocks.pop(block.address, None)
            if block.stream is None:
                block.bytes.fill(POISON)
                continue
            after = []
            for stream in block.held_by:
                # An event of its own, so that a skipped `wait` does not reach it.
                event = FakeEvent(stream)
                stream.queue.append(_Work(lambda event=event: setattr(event, "is_done", True)))
                after.append(event)
            block.stream.queue.append(_Work(lambda block=block: block.bytes.fill(POISON), after=tuple(after)))
