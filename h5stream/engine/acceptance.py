"""Boxes that a function of the user's rejects, and those that take their places: worked out before a window is read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from h5stream.engine.assemble import Assembler
from h5stream.engine.batches import objects_for
from h5stream.engine.plan import Placement
from h5stream.engine.slots import SlotFormat
from h5stream.engine.tasks import Destination, Task
from h5stream.errors import CorruptChunkError, OptionError
from h5stream.samples.space import Space
from h5stream.storage.layout import SampleLayout
from h5stream.structure import sample_of

TRIED_NBYTES = 16 * 1024 * 1024
"""Bytes of boxes that are tried at a time."""

Carry = Callable[[Iterator[Task], Destination], None]
Plan = Callable[[Placement, tuple[int, ...]], Iterator[Task]]


class Acceptance:
    """Finds boxes that are accepted.

    # Guarantees: immutable; any thread may ask. The user's function is called by that thread, and must allow it.
    """

    def __init__(self, layout: SampleLayout, space: Space, plan: Plan, carry_out: Carry) -> None:
        assert space.accept is not None
        self._layout, self._space, self._rule = layout, space, space.accept
        self._on, wanted = _asked(layout, space.accept.on)
        self._plan, self._carry_out, self._assembler = plan, carry_out, Assembler(layout)
        fields = [{target.field for target in parts[0].targets} for parts in layout.aligned]
        self._datasets = tuple(number for number, filled in enumerate(fields) if filled & wanted)
        wanted = set().union(*(fields[number] for number in self._datasets))
        self._nbytes = sum(layout.fields[field].row_nbytes for field in wanted)

    def numbers(self, numbers: NDArray[np.int64], stopped: Callable[[], bool]) -> NDArray[np.int64]:
        """Return for each box its own number where it is accepted, else that of one which is."""
        found, pending = numbers.copy(), np.arange(len(numbers))
        at_once = max(1, TRIED_NBYTES // max(1, self._nbytes))
        for trial in range(self._rule.tries):
            refused = []
            for first in range(0, len(pending), at_once):
                if stopped():
                    return found
                some = pending[first : first + at_once]
                refused.append(some[~self._accepts(found[some])])
            pending = np.concatenate(refused) if refused else pending[:0]
            if not len(pending):
                return found
            found[pending] = self._space.drawn_again(numbers[pending], trial)
        raise OptionError(
            f"Boxes: accept= refused {self._rule.tries:,} boxes in turn for {len(pending):,} of {len(numbers):,} "
            "samples; let it accept more, or allow more tries="
        )

    def _accepts(self, numbers: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Ask the function about some boxes; one that cannot be read is taken, so that its batch tells why."""
        try:
            return self._answers(numbers)
        except CorruptChunkError:
            if len(numbers) == 1:
                return np.ones(1, dtype=bool)
            return np.concatenate([self._accepts(numbers[k : k + 1]) for k in range(len(numbers))])

    def _answers(self, numbers: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Ask the function about some boxes, each read once."""
        distinct, which = np.unique(numbers, return_inverse=True)
        count = len(distinct)
        slot_format = SlotFormat.for_rows(self._layout.fields, count)
        memory = np.empty(slot_format.nbytes, dtype=np.uint8)  # of fields that are not asked about nothing is touched
        objects = objects_for(self._layout.fields, count)
        destination = Destination.of_batch(memory, slot_format, self._layout.fields, [objects])
        placement = Placement(rows=distinct, batch=np.zeros(count, dtype=np.int64), within=np.arange(count))
        self._carry_out(self._plan(placement, self._datasets), destination)
        batch = self._assembler.batch(torch.from_numpy(memory), slot_format, count, objects)
        asked = batch if self._on is None else batch[self._on]
        accepted = np.array([_answer(self._rule.function(sample_of(asked, k))) for k in range(count)], dtype=bool)
        answers: NDArray[np.bool_] = accepted[which]
        return answers


def _asked(layout: SampleLayout, on: str | int | None) -> tuple[Any, set[int]]:
    """Return where the entry that a function looks at is in a batch, None for all of it, and the fields in there."""
    keys, is_tuple = list(layout.shape.keys), layout.shape.kind == "tuple"
    if on is None:
        return None, set(range(len(layout.fields)))
    places: dict[Any, int] = {} if layout.shape.kind == "one" else {key: number for number, key in enumerate(keys)}
    if is_tuple:
        places.update(zip(range(len(keys)), range(len(keys)), strict=True))
    if on not in places:
        raise OptionError(
            f"Boxes: accept_on={on!r} is no field of a sample; "
            + (f"it has {', '.join(map(repr, places))}" if places else "a sample is one tensor, so leave it out")
        )
    return places[on] if is_tuple else on, _fields_in(layout.entries[places[on]])


def _answer(given: Any) -> bool:
    """Return what the function said of a box."""
    try:
        if given is None:
            raise TypeError("it returned None")
        return bool(given)
    except (TypeError, ValueError, RuntimeError) as error:
        raise OptionError(f"Boxes: accept= answers True or False for a box: {error}") from error


def _fields_in(entry: Any) -> set[int]:
    if isinstance(entry, dict):
        return set().union(*map(_fields_in, entry.values()))
    return {entry}
