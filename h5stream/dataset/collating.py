"""The samples of a batch as a stock DataLoader asks for them, and the batch that they came from."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

from h5stream.structure import as_numpy, samples_of


class Samples(list[Any]):
    """The samples of one batch, as tensors or NumPy arrays that view `batch`, the batch of tensors."""

    def __init__(self, batch: Any, count: int, numpy: bool = False) -> None:
        samples = samples_of(batch, count)
        super().__init__(as_numpy(samples) if numpy else samples)
        self.batch, self._numpy = batch, numpy
        self._read = [*map(_parts_of, self)]

    def __reduce__(self) -> tuple[Callable[..., list[Any]], tuple[object, ...]]:
        return (Samples, (self.batch, len(self), self._numpy)) if self.is_as_read else (list, ([*self],))

    @property
    def is_as_read(self) -> bool:
        """Whether no sample was replaced, left out or moved since reading; changes in place do not count."""
        now = itertools.chain.from_iterable(map(_parts_of, self))
        return len(self) == len(self._read) and all(map(operator.is_, now, itertools.chain.from_iterable(self._read)))


def _parts_of(sample: object) -> Sequence[object]:
    return [*sample.values()] if isinstance(sample, dict) else [sample]


def collate(samples: list[Any]) -> Any:
    """Return the batch that samples of an `H5Dataset` came from; stack others, and changed ones, as torch would.

    Pass it as ``collate_fn`` of a stock DataLoader over an `H5Dataset`: stacking 8,192 samples takes longer than
    reading them.

    Parameters
    ----------
    samples : list
        The result of the dataset's ``__getitems__``, or samples of any other kind.

    Returns
    -------
    Tensor, list or dict
        The batch; for samples that are tuples it is a list, as from torch's own collate function.

    Examples
    --------
    >>> collate([torch.tensor(1), torch.tensor(2)])
    tensor([1, 2])
    """
    if isinstance(samples, Samples) and samples.is_as_read:
        return list(samples.batch) if type(samples.batch) is tuple else samples.batch  # a ragged one is a NamedTuple
    return torch.utils.data.default_collate(samples)
