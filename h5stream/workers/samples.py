"""Transforms of samples and batches by the user's functions, in this process or in workers.

A batch is taken apart into samples, the user's function gets each, and the results are collated. Before each sample the
random generators are seeded from `h5stream.samples.columns.SampleColumn`, so the result does not depend on the process.
Generators that the functions own are not seeded: each worker has a copy of them.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import itertools
import operator
import random
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data._utils import collate as torch_collate
from torch.utils.data._utils import worker as torch_worker

from h5stream.base.hints import warn
from h5stream.compiled._native import copy_past_cache
from h5stream.engine.assemble import Assembler
from h5stream.engine.batches import ReadyBatch
from h5stream.engine.slots import Memory, SlotFormat
from h5stream.errors import OptionError, OwnGeneratorWarning
from h5stream.order.draws import words_of
from h5stream.structure import samples_of

SEED_NBYTES = 16
"""Bytes of a sample's number and seed, the last field of a slot."""

Function = Callable[[Any], Any]
Made = TypeVar("Made")


def not_none(batch: Made) -> Made:
    """Return what a user's function made of a batch; raise if that is nothing, as where `return` was forgotten."""
    if batch is None:
        raise OptionError(
            "batch_transform= or collate_fn= returned None in place of a batch: its last line is to return it"
        )
    return batch


class WorkCancelledError(Exception):
    """The parent cancelled this work; internal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleFunctions:
    """The user's functions for samples and batches, in the order in which they are applied."""

    assembler: Assembler  # assembler, slot_format: how a slot becomes a batch
    slot_format: SlotFormat
    sample_transform: Function | None  # gets each sample
    # gets the list of results; by default torch's `default_collate`, if there is a `sample_transform`
    collate_fn: Function | None
    transform: Function | None  # gets the batch
    gives_samples: bool  # whether each sample comes singly
    repeats: bool  # whether a sample may come twice in an epoch; its seed then depends on its place too

    def apply_here(self, batch: ReadyBatch) -> Any:
        """Make the user's batch in this process, and restore its random state afterwards."""
        states = random.getstate(), np.random.get_state(), torch.get_rng_state()
        try:
            take = functools.partial(torch.empty, dtype=torch.uint8)
            return self.apply(batch, Collator(batch.rows, take), lambda: False)
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])
            torch.set_rng_state(states[2])

    def apply(self, batch: ReadyBatch, collate: Collator, is_cancelled: Callable[[], bool]) -> Any:
        """Make the user's batch."""
        memory = batch.slot.lease()
        numbers, seeds = self._seeds(memory, batch)
        value = self.assembler.batch(memory, self.slot_format, batch.rows, batch.objects)
        if self.sample_transform is None and self.collate_fn is None and not self.gives_samples:
            seed_all(seeds[0])
            return value if self.transform is None else not_none(self.transform(value))
        value = samples_of(value, batch.rows)
        if self.sample_transform is not None:
            results = self._transformed(self.sample_transform, value, numbers, seeds, is_cancelled)
            is_kept = self.collate_fn is None and not self.gives_samples
            value = [*map(collate.keep, results)] if is_kept else [*results]
        if self.gives_samples:
            convert: Function = torch_collate.default_convert
            value = value[0] if self.sample_transform is None else convert(value[0])
        seed_all(seeds[0] ^ 1)  # for the whole batch
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
        return value if self.transform is None else not_none(self.transform(value))

    def _seeds(self, memory: Memory, batch: ReadyBatch) -> tuple[list[int], list[int]]:
        """Return the number and the seed of each sample."""
        begin = self.slot_format.offsets[-1]
        pairs = memory[begin : begin + SEED_NBYTES * batch.rows].view(np.int64).reshape(-1, 2)
        seeds: NDArray[np.uint64] = pairs[:, 1].view(np.uint64)
        if self.repeats:
            places: NDArray[np.uint64] = np.arange(batch.rows, dtype=np.uint64)
            seeds = words_of(np.add(seeds, places, dtype=np.uint64), batch.number)
        return pairs[:, 0].tolist(), seeds.tolist()

    def _transformed(
        self,
        transform: Function,
        samples: list[Any],
        numbers: list[int],
        seeds: list[int],
        is_cancelled: Callable[[], bool],
    ) -> Iterator[Any]:
        for number, seed, sample in zip(numbers, seeds, samples, strict=True):
            if is_cancelled():
                raise WorkCancelledError
            seed_all(seed)
            try:
                yield transform(sample)
            except StopIteration as error:
                raise RuntimeError(f"sample_transform= raised StopIteration, at sample {number}") from error
            except Exception as error:
                error.add_note(f"in sample_transform= of sample {number}")
                raise


def seed_all(seed: int) -> None:
    """Seed the global generators. Not by `torch.manual_seed`, which takes 300 us since it also seeds devices."""
    random.seed(seed)
    np.random.seed(seed >> 32)
    torch.default_generator.manual_seed(seed)


KEPT_NBYTES = 4096
"""Tensors of results from this size on are copied to their place in the batch immediately."""


class _Places:
    """The places of each sample's tensor in the batch, with the properties to compare looked up once."""

    def __init__(self, whole: torch.Tensor, first: torch.Tensor) -> None:
        self.whole, self.rows = whole, whole.unbind(0)
        self.dtype, self.shape, self.nbytes = first.dtype, first.shape, first.nbytes
        self.address = whole.data_ptr()


class Collator:
    """Collates a batch as torch's ``default_collate``, with tensors copied straight into memory of the batch.

    Large tensors are copied as soon as a sample is done: they are still in the processor's cache, and the next sample
    can reuse their memory. Contiguous ones bypass the cache, which keeps the working set of the function.
    """

    def __init__(self, count: int, take: Callable[[int], torch.Tensor]) -> None:
        self._count, self._take = count, take
        self._places: list[_Places] = []  # of each large tensor of a sample
        self._come = -1
        self._next = 0

    def keep(self, result: object) -> object:
        """Return the next sample's result with its large tensors at their places in the batch."""
        self._come += 1
        self._next = 0
        return self._moved(result)

    def _moved(self, value: Any) -> object:
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
        """Copy a tensor to its place and return that; return the tensor unchanged if it differs from the first one."""
        if not is_plain(tensor):
            return tensor
        number, self._next = self._next, self._next + 1
        if number == len(self._places) and self._come == 0:
            self._places.append(_Places(self._new(tensor), tensor))
        if number >= len(self._places):
            return tensor
        places = self._places[number]
        if tensor.dtype is not places.dtype or tensor.shape != places.shape:
            return tensor
        place = places.rows[self._come]
        if tensor.is_contiguous():
            copy_past_cache(places.address + self._come * places.nbytes, tensor.data_ptr(), places.nbytes)
            return place
        return place.copy_(tensor)

    def _new(self, like: torch.Tensor) -> torch.Tensor:
        memory = self._take(self._count * like.numel() * like.element_size())
        return memory.view(like.dtype).view(self._count, *like.shape)

    def __call__(self, samples: list[object]) -> Any:
        """Collate the results of all samples."""
        kinds = torch_collate.default_collate_fn_map | {torch.Tensor: self._stacked}
        return torch_collate.collate(samples, collate_fn_map=kinds)

    def _stacked(self, tensors: Sequence[torch.Tensor], **_: object) -> torch.Tensor:
        first = tensors[0]
        for places in self._places:
            rows = places.rows
            if first is rows[0] and len(tensors) == len(rows) and all(map(operator.is_, tensors, rows)):
                return places.whole
        kind = first.dtype, first.shape
        is_alike = all(is_plain(t) and (t.dtype, t.shape) == kind for t in tensors)
        if len(tensors) != self._count or not first.numel() or not is_alike:
            with _no_worker_info():  # otherwise it would use shared memory of torch's own
                return torch_collate.collate_tensor_fn(tensors)  # type: ignore[no-any-return]
        return torch.stack(tuple(tensors), 0, out=self._new(first))


def is_plain(tensor: object) -> bool:
    """Return whether a tensor is fully described by its memory, dtype, shape and strides."""
    return (
        isinstance(tensor, torch.Tensor)
        and tensor.is_cpu
        and tensor.layout is torch.strided
        and not (tensor.is_nested or tensor.requires_grad or tensor.is_quantized or tensor.is_conj() or tensor.is_neg())
    )


@contextlib.contextmanager
def _no_worker_info() -> Iterator[None]:
    info, torch_worker._worker_info = torch_worker._worker_info, None
    try:
        yield
    finally:
        torch_worker._worker_info = info


# --- generators of their own ---------------------------------------------------------------------------------

_KINDS = (random.Random, np.random.Generator, np.random.RandomState, torch.Generator)
_SEEDED = (random._inst, np.random.mtrand._rand, torch.default_generator)
_SEEDING = frozenset({"seed", "manual_seed", "set_random_seed", "bit_generator", "setstate", "set_state"})
_DEPTH = 4
_MOST_LOOKED_AT = 1000


def warn_of_own_generators(
    functions: Mapping[str, Callable[..., object] | None], on_start: object, option: str
) -> None:
    """Warn if functions reach generators of their own, except for those that a worker's start reaches as well."""
    started = _own(on_start)
    for name, function in functions.items():
        if reached := [where for key, where in _own(function).items() if key not in started]:
            warn(
                f"{name}= reaches {reached[0]!r}, a generator of random numbers of its own, of which each process of "
                f"{option} has a copy: they may draw the same numbers, and batches depend on how many there are. The "
                "generators of the modules random, numpy.random and torch are seeded for each sample: draw from "
                "these, or seed your own by them inside of the function, as by "
                "np.random.default_rng(np.random.randint(2**32)), or in albumentations "
                "pipeline.set_random_seed(np.random.randint(2**32))",
                OwnGeneratorWarning,
            )


def _own(function: object) -> dict[int, str]:
    """Return the generators that a function reaches, from `id` to name; empty if its code seeds some."""
    generators: dict[int, str] = {}
    seen: set[int] = set()
    queue = [("", function, 0)]
    while queue and len(seen) < _MOST_LOOKED_AT:
        name, value, depth = queue.pop(0)
        if id(value) in seen or any(value is one for one in _SEEDED):
            continue
        seen.add(id(value))
        if isinstance(value, _KINDS):
            generators[id(value)] = name or type(value).__name__
        elif depth < _DEPTH:
            codes = (code for one in _functions(value, depth) for code in _codes(one.__code__))
            if any(not _SEEDING.isdisjoint(code.co_names) for code in codes):
                return {}
            queue += [(".".join(filter(None, (name, key))), one, depth + 1) for key, one in _inside(value)]
    return generators


_TURNED = frozenset({"permute", "transpose", "moveaxis", "movedim", "swapaxes", "swapdims", "rearrange", "mT", "T"})
_TURNING = frozenset({"Lambda", "ToImage", "ToTensor", "PILToTensor", "ToPILImage"})


def parts_of_library(function: object, library: str) -> list[object]:
    """Return the objects of a library that a function reaches; none if something before them may move axes."""
    objects, seen, queue = list[object](), set[int](), [(function, 0)]
    while queue and len(seen) < _MOST_LOOKED_AT:
        value, depth = queue.pop(0)
        if id(value) in seen:
            continue
        seen.add(id(value))
        if type(value).__name__ in _TURNING:
            return []
        codes = (code for one in _functions(value, depth) for code in _codes(one.__code__))
        if isinstance(value, types.FunctionType) and any(not _TURNED.isdisjoint(code.co_names) for code in codes):
            return []
        if type(value).__module__.startswith(library):
            parts = getattr(value, "transforms", None)
            queue[:0] = [(one, depth) for one in parts] if isinstance(parts, list | tuple) else []
            objects += [] if parts else [value]
        elif depth < _DEPTH:
            queue += [(one, depth + 1) for _, one in _inside(value)]
    return objects


def _functions(value: object, depth: int) -> Iterator[types.FunctionType]:
    """Yield a function, or the methods of a callable object."""
    if isinstance(value, types.FunctionType):
        yield value
    elif depth == 0:
        yield from (one for one in vars(type(value)).values() if isinstance(one, types.FunctionType))


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield a code object and all code objects nested in it."""
    yield code
    for one in code.co_consts:
        if isinstance(one, types.CodeType):
            yield from _codes(one)


def _inside(value: object) -> Iterator[tuple[str, object]]:
    """Yield the values that a value refers to, with their names: for a function its globals, defaults and closure."""
    if isinstance(value, functools.partial):
        yield from (("", one) for one in (value.func, *value.args, *value.keywords.values()))
    elif isinstance(value, types.FunctionType):
        code = value.__code__
        steps = itertools.chain.from_iterable(map(dis.get_instructions, _codes(code)))
        names = (step.argval for step in steps if step.opname in ("LOAD_GLOBAL", "STORE_GLOBAL"))
        yield from ((name, value.__globals__.get(name)) for name in names)
        defaults = value.__defaults__ or ()
        yield from zip(code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount], defaults, strict=True)
        yield from (value.__kwdefaults__ or {}).items()
        for name, cell in zip(code.co_freevars, value.__closure__ or (), strict=True):
            if cell != types.CellType():  # it may still be empty
                yield name, cell.cell_contents
    elif isinstance(value, (types.MethodType, types.BuiltinMethodType)):
        yield from (("", getattr(value, one, None)) for one in ("__self__", "__func__"))
    elif not isinstance(value, (type, types.ModuleType)):
        yield from getattr(value, "__dict__", {}).items()
