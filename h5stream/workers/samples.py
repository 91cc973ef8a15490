"""Python for each sample: what is done to a filled batch, here or in a process that takes such batches from its parent.

A batch is taken apart into samples, the user's function gets each, and what it gives is collated: into memory that both
processes map, where another process does it. Before each sample the generators of random numbers are seeded by what
`h5stream.order.drawn.SeedsColumn` has for it, so that which process does it, and when, makes no difference.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data._utils import collate as torch_collate
from torch.utils.data._utils import worker as torch_worker

from h5stream.engine.assemble import Assembler
from h5stream.engine.batches import ReadyBatch
from h5stream.engine.slots import Slot, SlotFormat
from h5stream.errors import OptionError
from h5stream.order.permutation import words_of
from h5stream.structure import samples_of
from h5stream.workers.child import PARENT_LOOK_S, Parent
from h5stream.workers.failures import Failure
from h5stream.workers.memory import BorrowedMemory, Loan, SharedMemory
from h5stream.workers.packing import Packed, pack, unpack

SEED_NBYTES = 16
"""Bytes of a sample's number and seed, the last field of a slot."""

Function = Callable[[Any], Any]


class CalledOffError(Exception):
    """What is done is of no use to the parent any more; never seen outside."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleFunctions:
    """The user's functions, in the order in which a batch goes through them.

    Attributes
    ----------
    assembler, slot_format : Assembler, SlotFormat
        How a slot becomes a batch.
    sample_transform : callable or None
        Gets each sample.
    collate_fn : callable or None
        Gets the list of what came of them; by default torch's ``default_collate``, where there is a `sample_transform`.
    transform : callable or None
        Gets the batch.
    gives_samples : bool
        Whether each sample comes singly.
    repeats : bool
        Whether a sample may come twice in an epoch; its place then has a part in its seed.
    """

    assembler: Assembler
    slot_format: SlotFormat
    sample_transform: Function | None
    collate_fn: Function | None
    transform: Function | None
    gives_samples: bool
    repeats: bool

    def here(self, batch: ReadyBatch) -> Any:
        """Make the user's batch in this process, whose own random numbers stay as they are."""
        states = random.getstate(), np.random.get_state(), torch.get_rng_state()
        try:
            return self.made(batch, torch_collate.default_collate, lambda: False)
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])
            torch.set_rng_state(states[2])

    def made(self, batch: ReadyBatch, collate: Function, is_called_off: Callable[[], bool]) -> Any:
        """Make the user's batch.

        Parameters
        ----------
        batch : ReadyBatch
            A filled slot, and what does not live in one.
        collate : callable
            What collates unless the user says otherwise.
        is_called_off : callable
            Asked before each sample.

        Raises
        ------
        CalledOffError
            If it says so.
        Exception
            What the user's functions raise.
        """
        packed = batch.slot.lease()
        numbers, seeds = self._seeds(packed, batch)
        value = self.assembler.batch(packed, self.slot_format, batch.rows, batch.objects)
        if self.sample_transform is None and self.collate_fn is None and not self.gives_samples:
            _seed_all(seeds[0])
            return value if self.transform is None else self.transform(value)
        value = samples_of(value, batch.rows)
        if self.sample_transform is not None:
            value = [*self._transformed(value, numbers, seeds, is_called_off)]
        if self.gives_samples:
            convert: Function = _as_it_is if self.sample_transform is None else torch_collate.default_convert
            value = convert(value[0])
        _seed_all(seeds[0] ^ 1)  # for the whole batch
        if self.collate_fn is not None:
            value = self.collate_fn(value)
        elif self.sample_transform is not None and not self.gives_samples:
            try:
                value = collate(value)
            except Exception as error:
                error.add_note(
                    "while what sample_transform= gave was collated as by torch's default_collate: it is to be alike "
                    "for all samples, in kind and size; collate_fn= puts together what is not"
                )
                raise
        return value if self.transform is None else self.transform(value)

    def _seeds(self, packed: torch.Tensor, batch: ReadyBatch) -> tuple[list[int], list[int]]:
        """Give the number and the seed of each sample."""
        begin = self.slot_format.offsets[-1]
        pairs = packed.numpy()[begin : begin + SEED_NBYTES * batch.rows].view(np.int64).reshape(-1, 2)
        seeds: NDArray[np.uint64] = pairs[:, 1].view(np.uint64)
        if self.repeats:
            places: NDArray[np.uint64] = np.arange(batch.rows, dtype=np.uint64)
            seeds = words_of(np.add(seeds, places, dtype=np.uint64), batch.number)
        return pairs[:, 0].tolist(), seeds.tolist()

    def _transformed(
        self, samples: list[Any], numbers: list[int], seeds: list[int], is_called_off: Callable[[], bool]
    ) -> Iterator[Any]:
        assert self.sample_transform is not None
        for number, seed, sample in zip(numbers, seeds, samples, strict=True):
            if is_called_off():
                raise CalledOffError
            _seed_all(seed)
            try:
                yield self.sample_transform(sample)
            except Exception as error:
                error.add_note(f"in sample_transform= of sample {number}")
                raise


def _as_it_is(value: Any) -> Any:
    return value


def _seed_all(seed: int) -> None:
    """Seed what functions draw from. Not by `torch.manual_seed`, which takes 300 us to tell devices as well."""
    random.seed(seed)
    np.random.seed(seed >> 32)
    torch.default_generator.manual_seed(seed)


class Job(NamedTuple):
    """A batch for a worker: of which pass, which batch, how many samples, and its slot and objects."""

    run: int
    number: int
    rows: int
    filled: Packed


class Done(NamedTuple):
    """What came of a batch: it, or an error, or neither where it was called off; and which loans ended there."""

    run: int
    number: int
    rows: int
    made: Packed | None
    failure: Failure | None
    returned: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What a worker is told at its start.

    Attributes
    ----------
    number, count, seed : int
        Which it is, of how many, and its own seed: what ``torch.utils.data.get_worker_info()`` gives there.
    called_off : Loan
        Where the parent notes the passes that are over; see `noted`.
    on_start : callable or None
        The user's ``worker_init_fn``.
    whose : str
        For errors: whose process it is.
    """

    number: int
    count: int
    seed: int
    called_off: Loan
    on_start: Callable[[int], None] | None
    whose: str


def noted(board: NDArray[np.int64], run: int) -> NDArray[np.int64]:
    """Give the place where a pass is noted that is over; its number stands there. All are, if the first is not 0."""
    return board[1 + run % (len(board) - 1) :][:1]


class SampleWork:
    """Applies the user's functions to batches, one after the other; see `h5stream.workers.child.Work`.

    Parameters
    ----------
    functions : SampleFunctions
        What is done.
    told : Told
        What the process is told.
    parent : Parent
        Who asks. Its only file is the memory that batches come in.
    """

    def __init__(self, functions: SampleFunctions, told: Told, parent: Parent) -> None:
        self._functions, self._whose, self._parent = functions, told.whose, parent
        self._incoming = BorrowedMemory(parent.files[0])
        self._board = np.frombuffer(self._incoming.borrow(told.called_off), dtype=np.int64)
        threading.Thread(target=_end_with, args=(os.getppid(),), name="h5stream-watch", daemon=True).start()
        torch.set_num_threads(1)  # as many processes as processors
        seed = (told.seed + told.number) % 2**64
        info: Any = torch_worker.WorkerInfo
        torch_worker._worker_info = info(id=told.number, num_workers=told.count, seed=seed, dataset=None)
        _seed_all(seed)
        if told.on_start is not None:
            told.on_start(told.number)

    def handle(self, message: Job) -> None:
        """Do what is done to a batch, and send what came of it."""
        made = failure = None
        try:
            made = self._made(message)
        except CalledOffError:
            pass
        except Exception as error:
            failure = Failure.of(error)
        # Behind the user's functions, so that what they did not keep is told of.
        returned = self._incoming.returned()
        self._parent.send(Done(message.run, message.number, message.rows, made, failure, returned))

    def _made(self, job: Job) -> Packed:
        over = noted(self._board, job.run)
        memory, objects = unpack(job.filled, self._incoming)
        batch = ReadyBatch(job.number, job.rows, Slot(memory), objects, missing=0)
        collate = Collating(self._parent.memory)
        run, every = job.run, self._board.item
        value = self._functions.made(batch, collate, lambda: over.item() == run or every(0) != 0)
        try:
            return pack(value, self._parent.memory)
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise OptionError(
                f"what was made of batch {job.number} cannot leave the process of {self._whose}, because it cannot be "
                f"pickled: {error}"
            ) from error

    def close(self) -> None:
        """Do nothing: nothing is under way between two messages."""


def _end_with(parent: int) -> None:
    """End this process once its parent is gone, whatever the user's function is doing."""
    while os.getppid() == parent:
        threading.Event().wait(PARENT_LOOK_S)
    os._exit(0)


@dataclass(frozen=True, slots=True)
class Collating:
    """Collates as torch's ``default_collate``, tensors straight into memory that leaves the process without a copy."""

    memory: SharedMemory

    def __call__(self, samples: list[Any]) -> Any:
        """Collate."""
        kinds = torch_collate.default_collate_fn_map | {torch.Tensor: self._stacked}
        return torch_collate.collate(samples, collate_fn_map=kinds)

    def _stacked(self, tensors: Sequence[torch.Tensor], **_: Any) -> torch.Tensor:
        first = tensors[0]
        plain = (
            all(isinstance(t, torch.Tensor) for t in tensors)
            and first.device.type == "cpu"
            and first.layout == torch.strided
            and not first.is_nested
        )
        nbytes = len(tensors) * first.numel() * first.element_size()
        kind = first.dtype, first.shape, False
        if not plain or not nbytes or any((t.dtype, t.shape, t.requires_grad) != kind for t in tensors):
            with _no_worker_info():  # else it would take shared memory of torch's
                return torch_collate.collate_tensor_fn(tensors)  # type: ignore[no-any-return]
        out = self.memory.take(nbytes).view(first.dtype).view(len(tensors), *first.shape)
        return torch.stack(tuple(tensors), 0, out=out)


@contextlib.contextmanager
def _no_worker_info() -> Iterator[None]:
    info, torch_worker._worker_info = torch_worker._worker_info, None
    try:
        yield
    finally:
        torch_worker._worker_info = info
