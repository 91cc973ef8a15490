"""Python for each sample: what is done to a filled batch, here or in a process that takes such batches from its parent.

A batch is taken apart into samples, the user's function gets each, and what it gives is collated: into memory that both
processes map, where another process does it. Before each sample the generators of random numbers are seeded by what
`h5stream.order.weights.SeedsColumn` has for it, so that which process does it, and when, makes no difference.
"""

from __future__ import annotations

import contextlib
import operator
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

from h5stream.compiled._native import copy_past_cache
from h5stream.engine.assemble import Assembler
from h5stream.engine.batches import ReadyBatch
from h5stream.engine.slots import Slot, SlotFormat
from h5stream.errors import OptionError
from h5stream.order.permutation import words_of
from h5stream.structure import samples_of
from h5stream.workers.child import PARENT_LOOK_S, Parent
from h5stream.workers.connection import Failure
from h5stream.workers.memory import BorrowedMemory, Loan, Packed, pack, unpack

SEED_NBYTES = 16
"""Bytes of a sample's number and seed, the last field of a slot."""

Function = Callable[[Any], Any]


class CalledOffError(Exception):
    """What is done is of no use to the parent any more; never seen outside."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleFunctions:
    """The user's functions, in the order in which a batch goes through them."""

    assembler: Assembler  # assembler, slot_format: how a slot becomes a batch
    slot_format: SlotFormat
    sample_transform: Function | None  # gets each sample
    # gets the list of what came of them; by default torch's `default_collate`, where there is a `sample_transform`
    collate_fn: Function | None
    transform: Function | None  # gets the batch
    gives_samples: bool  # whether each sample comes singly
    repeats: bool  # whether a sample may come twice in an epoch; its place then has a part in its seed

    def here(self, batch: ReadyBatch) -> Any:
        """Make the user's batch in this process, whose own random numbers stay as they are."""
        states = random.getstate(), np.random.get_state(), torch.get_rng_state()
        try:
            return self.made(batch, Collating(batch.rows, _of_torch), lambda: False)
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])
            torch.set_rng_state(states[2])

    def made(self, batch: ReadyBatch, collating: Collating, is_called_off: Callable[[], bool]) -> Any:
        """Make the user's batch."""
        packed = batch.slot.lease()
        numbers, seeds = self._seeds(packed, batch)
        value = self.assembler.batch(packed, self.slot_format, batch.rows, batch.objects)
        if self.sample_transform is None and self.collate_fn is None and not self.gives_samples:
            _seed_all(seeds[0])
            return value if self.transform is None else self.transform(value)
        value = samples_of(value, batch.rows)
        if self.sample_transform is not None:
            results = self._transformed(value, numbers, seeds, is_called_off)
            is_kept = self.collate_fn is None and not self.gives_samples
            value = [*map(collating.kept, results)] if is_kept else [*results]
        if self.gives_samples:
            convert: Function = _as_it_is if self.sample_transform is None else torch_collate.default_convert
            value = convert(value[0])
        _seed_all(seeds[0] ^ 1)  # for the whole batch
        if self.collate_fn is not None:
            value = self.collate_fn(value)
        elif self.sample_transform is not None and not self.gives_samples:
            try:
                value = collating(value)
            except Exception as error:
                error.add_note(
                    "while what sample_transform= gave was collated as by torch's default_collate: it is to be alike "
                    "for all samples, in kind and size; collate_fn= puts together what is not"
                )
                raise
        return value if self.transform is None else self.transform(value)

    def _seeds(self, packed: torch.Tensor, batch: ReadyBatch) -> tuple[list[int], list[int]]:
        """Return the number and the seed of each sample."""
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
            except StopIteration as error:
                raise RuntimeError(f"sample_transform= raised StopIteration, at sample {number}") from error
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
    """What a worker is told at its start."""

    # number, count, seed: which it is, of how many, and its own seed: what `torch.utils.data.get_worker_info()` gives
    # there
    number: int
    count: int
    seed: int
    called_off: Loan  # where the parent notes the passes that are over; see `noted`
    on_start: Callable[[int], None] | None  # the user's `worker_init_fn`
    whose: str  # for errors: whose process it is


def noted(board: NDArray[np.int64], run: int) -> NDArray[np.int64]:
    """Return the place where a pass is noted that is over; its number stands there. All are, if the first is not 0."""
    return board[1 + run % (len(board) - 1) :][:1]


class SampleWork:
    """Applies the user's functions to batches, one after the other; see `h5stream.workers.child.Work`."""

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
        over, every = noted(self._board, job.run).data, self._board.data
        memory, objects = unpack(job.filled, self._incoming)
        batch = ReadyBatch(job.number, job.rows, Slot(memory), objects, missing=0)
        collating = Collating(job.rows, self._parent.memory.take)
        run = job.run
        value = self._functions.made(batch, collating, lambda: bool(over[0] == run or every[0]))
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


KEPT_NBYTES = 4096
"""Bytes from which a tensor of a result is copied to its place in the batch at once."""


class _Places:
    """Where each sample's tensor goes, all like the first one; what is asked for each is looked up once."""

    def __init__(self, whole: torch.Tensor, first: torch.Tensor) -> None:
        self.whole, self.each = whole, whole.unbind(0)
        self.dtype, self.shape, self.nbytes = first.dtype, first.shape, first.nbytes
        self.address = whole.data_ptr()


class Collating:
    """Collates a batch as torch's ``default_collate``, tensors straight into memory of the batch.

    Large ones are copied there as soon as a sample has come: they are in the processor's cache then, and the next
    sample's can have their memory. Past the cache, where they lie as they are to: it keeps what the function works on.
    """

    def __init__(self, count: int, take: Callable[[int], torch.Tensor]) -> None:
        self._count, self._take = count, take
        self._places: list[_Places] = []  # of each large tensor of a sample
        self._come = -1
        self._next = 0

    def kept(self, result: Any) -> Any:
        """Return the next sample's result with its large tensors at their places in the batch."""
        self._come += 1
        self._next = 0
        return self._moved(result)

    def _moved(self, value: Any) -> Any:
        kind = type(value)
        if kind is torch.Tensor:
            return self._placed(value) if value.numel() * value.element_size() >= KEPT_NBYTES else value
        if kind is tuple or kind is list:
            return kind(map(self._moved, value))
        if kind is dict:
            return {key: self._moved(inner) for key, inner in value.items()}
        if kind is np.ndarray and value.nbytes >= KEPT_NBYTES and value.dtype.kind in "biufc":
            return self._placed(torch.as_tensor(value))
        return value

    def _placed(self, tensor: torch.Tensor) -> torch.Tensor:
        """Copy a tensor to its place, and give that; or the tensor, where it is not as the first sample's."""
        if not _is_plain(tensor):
            return tensor
        number, self._next = self._next, self._next + 1
        if number == len(self._places) and self._come == 0:
            self._places.append(_Places(self._new(tensor), tensor))
        if number >= len(self._places):
            return tensor
        places = self._places[number]
        if tensor.dtype is not places.dtype or tensor.shape != places.shape:
            return tensor
        place = places.each[self._come]
        if tensor.is_contiguous():
            copy_past_cache(places.address + self._come * places.nbytes, tensor.data_ptr(), places.nbytes)
            return place
        return place.copy_(tensor)

    def _new(self, like: torch.Tensor) -> torch.Tensor:
        memory = self._take(self._count * like.numel() * like.element_size())
        return memory.view(like.dtype).view(self._count, *like.shape)

    def __call__(self, samples: list[Any]) -> Any:
        """Collate."""
        kinds = torch_collate.default_collate_fn_map | {torch.Tensor: self._stacked}
        return torch_collate.collate(samples, collate_fn_map=kinds)

    def _stacked(self, tensors: Sequence[torch.Tensor], **_: Any) -> torch.Tensor:
        first = tensors[0]
        for places in self._places:
            each = places.each
            if first is each[0] and len(tensors) == len(each) and all(map(operator.is_, tensors, each)):
                return places.whole
        kind = first.dtype, first.shape
        is_alike = all(_is_plain(t) and (t.dtype, t.shape) == kind for t in tensors)
        if len(tensors) != self._count or not first.numel() or not is_alike:
            with _no_worker_info():  # else it would take shared memory of torch's
                return torch_collate.collate_tensor_fn(tensors)  # type: ignore[no-any-return]
        return torch.stack(tuple(tensors), 0, out=self._new(first))


def _is_plain(tensor: Any) -> bool:
    return (
        isinstance(tensor, torch.Tensor)
        and tensor.is_cpu
        and tensor.layout is torch.strided
        and not tensor.is_nested
        and not tensor.requires_grad
        and not tensor.is_quantized
    )


def _of_torch(nbytes: int) -> torch.Tensor:
    return torch.empty(nbytes, dtype=torch.uint8)


@contextlib.contextmanager
def _no_worker_info() -> Iterator[None]:
    info, torch_worker._worker_info = torch_worker._worker_info, None
    try:
        yield
    finally:
        torch_worker._worker_info = info
