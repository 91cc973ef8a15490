"""The seam between who fills slots and how their batches reach the user, and what every way does to a batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from h5stream.engine.running import Running
from h5stream.engine.slots import SlotFormat, Slots
from h5stream.structure import samples_of
from h5stream.workers.samples import SampleFunctions

Function = Callable[[Any], Any]

END = object()
"""What a stream gives after the last batch."""


class Stream(Protocol):
    """Gives finished batches of one epoch, in order. Used by one thread."""

    def next_batch(self, timeout_s: float) -> Any:
        """Wait for the next; `END` after the last."""

    def close(self) -> None:
        """Let go of what is under way; the run is stopped by what started it."""


class Route(Protocol):
    """How a loader's batches reach the user: one kind a loader, made once; a value that never changes."""

    @property
    def slot_format(self) -> SlotFormat:
        """How a slot is packed."""
        ...

    @property
    def functions(self) -> SampleFunctions | None:
        """What workers are to make of filled slots, if there are any, before they come here."""
        ...

    def new_slots(self) -> Slots:
        """Return the slots that batches are read into, for an engine whose threads are this process's."""

    def stream(self, run: Running, first_batch: int) -> Stream:
        """Return the stream of an epoch, from a batch on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Handover:
    """What is done to a batch once its tensors are there."""

    takes_apart: bool = False  # make a list of samples of it, for `collate_fn` or because samples were asked for
    gives_samples: bool = False  # give the one sample of a batch of one
    collate_fn: Function | None = None  # collate_fn, transform: the user's functions
    transform: Function | None = None

    def __call__(self, value: Any, rows: int) -> Any:
        """Do it."""
        if self.takes_apart:
            value = samples_of(value, rows)
            value = value[0] if self.gives_samples else value
        if self.collate_fn is not None:
            value = self.collate_fn(value)
        return value if self.transform is None else self.transform(value)

    def split(self) -> tuple[Function | None, Handover]:
        """Return the transform, if nothing is done before it and it can be done elsewhere, and what is left to do."""
        if self.takes_apart or self.collate_fn is not None:
            return None, self
        return self.transform, replace(self, transform=None)
