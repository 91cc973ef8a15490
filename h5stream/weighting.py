"""How often an epoch takes each sample, from what a user asks for: ``weights=``, ``balance=``, samplers of torch."""

from __future__ import annotations

import reprlib
import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DistributedSampler, RandomSampler, SubsetRandomSampler, WeightedRandomSampler

from h5stream.dataset import H5Dataset
from h5stream.errors import OptionError, SlowSamplerWarning
from h5stream.order.blocks import Blocks
from h5stream.order.weights import (
    ClassDraws,
    DistinctDraws,
    EpochDraws,
    SourceDraws,
    SourceShares,
    WeightedDraws,
    shared_out,
)
from h5stream.ranks import drawn_seed
from h5stream.sampler import places_of
from h5stream.settings import Settings
from h5stream.storage.fields import Field, SampleShape
from h5stream.storage.layout import DECODED, SampleLayout

_READ_ROWS = 1 << 20
_MOST_CLASSES = 1 << 16
_CERTAINLY_CLASSES = 16

NAMES = ("weights", "balance", "samples_per_epoch", "replacement")


def epoch_draws(asked: Settings, settings: Settings, dataset: H5Dataset, blocks: Blocks) -> EpochDraws | None:
    """Give what draws the samples of an epoch; None where it takes each once.

    Parameters
    ----------
    asked, settings : Settings
        As they were given, and with the dataset open.
    dataset : H5Dataset
        The samples.
    blocks : Blocks
        Theirs.

    Raises
    ------
    OptionError
        If weights, classes or numbers do not fit the data, or contradict each other.
    """
    given = [name for name in NAMES if getattr(settings, name) is not None]
    shares = dataset.shares
    if not given and shares is None:
        return None
    _check_alone(settings, given, dataset)
    if shares is not None:
        return _of_sources(shares, blocks, settings)
    samples = places_of(blocks, dataset)
    at = None if samples is None else np.argsort(samples)
    if settings.balance is not None:
        return _balanced(_Values(asked, settings, dataset, "balance"), settings, at)
    total, may_repeat, count = len(dataset), settings.replacement, settings.samples_per_epoch
    weights = np.ones(total)
    if settings.weights is not None:
        may_repeat = may_repeat is not False
        weights = _checked_weights(_Values(asked, settings, dataset, "weights").of(settings.weights), total)
        if count is None and not may_repeat:
            raise OptionError(
                "weights= with replacement=False takes no sample twice, so samples_per_epoch= must say how many it "
                f"takes of the {np.count_nonzero(weights):,} that have a weight above 0"
            )
    count = total if count is None else count
    if may_repeat:
        return WeightedDraws(weights, count, at)
    if may_repeat is None:
        return SourceDraws(replace(blocks, strata=np.zeros(blocks.count, dtype=np.int64)), [count])
    there = np.count_nonzero(weights)
    if count > there:
        said = "" if there == total else f" that have a weight above 0 (of {total:,})"
        raise OptionError(
            f"samples_per_epoch={count:,}: replacement=False takes no sample twice, and there are {there:,}{said}; "
            "ask for fewer, or pass replacement=True"
        )
    if settings.weights is None:
        return ClassDraws(np.zeros(total, dtype=np.int64), [count], at)
    return DistinctDraws(weights, count, at)


def _of_sources(shares: SourceShares, blocks: Blocks, settings: Settings) -> SourceDraws:
    """Draw the share of each source of a mixture."""
    if not settings.shuffle or blocks.strata is None:
        raise OptionError(
            "a Mixture mixes its sources by the shuffle: pass shuffle=True, not False; a list of H5Dataset or a "
            "ConcatDataset gives one source behind the other"
        )
    sizes = np.bincount(blocks.strata, weights=np.diff(blocks.edges), minlength=len(shares.names)).astype(np.int64)
    for name, share, size in zip(shares.names, shares.shares, sizes, strict=True):
        if share and not size:
            raise OptionError(f"Mixture: source {name!r} has a share of {share:.3g} and no samples that were chosen")
    return SourceDraws(blocks, shares.counts(sizes, settings.samples_per_epoch))


def _check_alone(settings: Settings, given: list[str], dataset: H5Dataset) -> None:
    """Refuse what decides twice which samples an epoch takes."""
    name = f"{given[0]}=" if given else "a Mixture"
    others = [n for n in ("sampler", "batch_sampler", "order") if getattr(settings, n) is not None]
    if others:
        raise OptionError(f"{name} says how often each sample comes, so {others[0]}= must be left out")
    if dataset.layout.draws is not None:
        raise OptionError(
            f"samples= has starts='random', which draws its samples anew for each epoch, so {name} must be left out; "
            "per_epoch= says how many, and draw= how"
        )
    if dataset.shares is not None and set(given) - {"samples_per_epoch"}:
        raise OptionError(f"a Mixture says by its own weights= how often samples come, so {name} must be left out")
    if settings.weights is not None and settings.balance is not None:
        raise OptionError("weights= and balance= both say how often each sample comes; leave out one of them")
    if not isinstance(settings.replacement, bool | None):
        raise OptionError(f"replacement= takes True or False, not {settings.replacement!r}")


# --- weights ------------------------------------------------------------------------------------------------


def _checked_weights(values: Any, total: int) -> NDArray[np.float64]:
    try:
        weights = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        said = reprlib.repr(values.tolist() if isinstance(values, np.ndarray) else values)
        raise OptionError(f"weights= takes numbers, one a sample, or a field of them, not {said}") from None
    if weights.shape != (total,):
        raise OptionError(f"weights= takes one number a sample: {total:,} samples, weights of shape {weights.shape}")
    wrong = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
    if len(wrong):
        raise OptionError(
            f"weights= are numbers of 0 or more: sample {wrong[0]:,} has {weights[wrong[0]]}, and of all "
            f"{total:,} samples {len(wrong):,} have none that will do; 0 leaves a sample out"
        )
    if not weights.any():
        raise OptionError(f"weights= are 0 for all {total:,} samples, so that none could be drawn")
    return weights


# --- classes ------------------------------------------------------------------------------------------------


def _balanced(read: _Values, settings: Settings, at: NDArray[np.int64] | None) -> ClassDraws:
    """Draw as many of each class, or as the ratio says."""
    asked, ratio = settings.balance, None
    if isinstance(asked, Mapping):
        asked, ratio = next(iter(asked.items()), (None, None))
        if len(settings.balance) != 1 or not isinstance(ratio, Mapping):
            raise OptionError(
                "balance= takes the name of a field, one value a sample, or the shares of a field's values, such as "
                f"{{'label': {{0: 0.5, 1: 0.5}}}}, not {settings.balance!r:.80}"
            )
    name = repr(asked) if isinstance(asked, str) else "(an array)"
    classes, numbers = _classes(read.of(asked), name, len(read.dataset))
    sizes = np.bincount(numbers, minlength=len(classes))
    shares = np.ones(len(classes)) if ratio is None else _shares(ratio, classes, sizes, name)
    shares /= shares.sum()
    counts = _class_counts(classes, sizes, shares, settings)
    return ClassDraws(numbers, counts, at)


def _classes(values: Any, name: str, total: int) -> tuple[list[Any], NDArray[np.int64]]:
    """Give the distinct values of a field, and the number of each sample's."""
    found = np.asarray(values)
    if found.shape != (total,) or found.dtype.kind == "O":
        raise OptionError(
            f"balance= takes the name of a field, or one number or text a sample: {total:,} samples, values of shape "
            f"{found.shape} and type {found.dtype}"
        )
    if found.dtype.kind == "f" and np.isnan(found).any():
        raise OptionError(f"balance={name}: sample {np.flatnonzero(np.isnan(found))[0]:,} is NaN, which is no class")
    distinct, numbers = np.unique(found, return_inverse=True)
    if len(distinct) > min(_MOST_CLASSES, max(_CERTAINLY_CLASSES, len(found) // 2)):
        raise OptionError(
            f"balance={name} has {len(distinct):,} values in {len(found):,} samples, which are no classes; name a "
            "field of few values, or pass weights= with a number for each sample"
        )
    return distinct.tolist(), numbers.reshape(-1)


def _shares(ratio: Mapping[Any, Any], classes: list[Any], sizes: NDArray[np.int64], name: str) -> NDArray[np.float64]:
    """Give the share of each class as a user says it."""
    numbered, shares = {value: number for number, value in enumerate(classes)}, np.full(len(classes), np.nan)
    for given, share in ratio.items():
        value = given.encode() if isinstance(given, str) and given not in numbered else given  # as HDF5 has texts
        if value not in numbered:
            raise OptionError(
                f"balance= gives {given!r} of {name} a share, but no sample has it; those that there are: "
                f"{', '.join(map(repr, classes[:10]))}"
            )
        good = isinstance(share, int | float) and not isinstance(share, bool) and 0 <= share < float("inf")
        if not good:
            raise OptionError(f"balance=: the share of {value!r} is a number of 0 or more, not {share!r}")
        shares[numbered[value]] = share
    left = np.flatnonzero(np.isnan(shares))
    if len(left):
        raise OptionError(
            f"balance= gives {classes[left[0]]!r} of {name} no share, and {sizes[left[0]]:,} samples have it; 0 leaves "
            "them out"
        )
    if not shares.any():
        raise OptionError("balance= gives all classes a share of 0, so that no sample could be drawn")
    return shares


def _class_counts(
    classes: list[Any], sizes: NDArray[np.int64], shares: NDArray[np.float64], settings: Settings
) -> list[int]:
    """Give how many samples of each class an epoch has."""
    may_repeat, asked = settings.replacement is not False, settings.samples_per_epoch
    most = int((sizes[shares > 0] / shares[shares > 0]).min() + 1e-6)
    while (np.array(shared_out(most, shares)) > sizes).any():
        most -= 1
    total = asked if asked is not None else int(sizes.sum()) if may_repeat else most
    counts = shared_out(total, shares)
    over = np.flatnonzero(np.array(counts) > sizes)
    if len(over) and not may_repeat:
        worst = over[np.argmin(sizes[over] / shares[over])]
        raise OptionError(
            f"samples_per_epoch={total:,}: {counts[worst]:,} of them are of class {classes[worst]!r}, which has "
            f"{sizes[worst]:,} samples, and replacement=False takes none twice; {most:,} is the most that goes, or "
            "pass replacement=True"
        )
    return counts


# --- values of a field --------------------------------------------------------------------------------------


class _Values:
    """Reads one value a sample: as it was given, or of a field."""

    def __init__(self, asked: Settings, settings: Settings, dataset: H5Dataset, option: str) -> None:
        self._asked, self.dataset, self._option = asked, dataset, option

    def of(self, given: Any) -> Any:
        """Give the values of all samples."""
        if not isinstance(given, str):
            return given.detach().cpu().numpy() if isinstance(given, torch.Tensor) else np.asarray(given)
        dataset, number = self.dataset, self.dataset.layout.field_named(given)
        if number is None:
            dataset, number = self._reopened(given)
        alone = dataset.over(_field_alone(dataset.layout, number))
        every = [alone.read(np.arange(k, min(k + _READ_ROWS, len(alone)))) for k in range(0, len(alone), _READ_ROWS)]
        if isinstance(every[0], list):
            return [value for some in every for value in some]
        if not isinstance(every[0], torch.Tensor):
            raise OptionError(f"{self._option}={given!r} takes a field with one value a sample")
        values = torch.cat(every).numpy().reshape(len(alone), -1)
        if values.shape[1] == 0 or (values.shape[1] > 1 and (values != values[:, :1]).any()):
            raise OptionError(
                f"{self._option}={given!r} takes a field with one value a sample, and this has "
                f"{values.shape[1]} that differ; pass an array with one for each of {len(alone):,} samples"
            )
        return values[:, 0]

    def _reopened(self, name: str) -> tuple[H5Dataset, int]:
        """Open a field that is none of the batch's."""
        if isinstance(self._asked.dataset, torch.utils.data.Dataset | list | tuple):
            layout = self.dataset.with_field(Field(name))
            number = layout.entries[-1]
            if not isinstance(number, int):
                raise OptionError(f"{self._option}={name!r} takes a field with one value a sample, and not its members")
            return self.dataset.over(layout), number
        found = replace(self._asked, fields=Field(name)).opened().dataset
        if len(found) != len(self.dataset):
            raise OptionError(
                f"{self._option}={name!r} has {len(found):,} values, and there are {len(self.dataset):,} samples"
            )
        return found, 0


def _field_alone(layout: SampleLayout, number: int) -> SampleLayout:
    """Give a layout of the same samples, of one field."""
    own = [
        tuple(
            replace(part, targets=tuple(replace(t, field=0) for t in part.targets if t.field == number))
            for part in parts
        )
        for parts in layout.datasets
    ]
    # Of the others' rows it stays known how many there are.
    aligned = [parts if parts[0].targets else tuple(replace(part, pieces=()) for part in parts) for parts in own]
    kept, datasets = [], aligned[: len(layout.aligned)]
    for one in layout.lookups:
        if own[one.dataset][0].targets:
            kept.append(replace(one, dataset=len(datasets)))
            datasets.append(own[one.dataset])
    field = layout.fields[number]
    return replace(
        layout,
        fields=(field,),
        datasets=tuple(datasets),
        lookups=tuple(kept),
        shape=SampleShape(kind="one", keys=(field.name,), fields=()),
        entries=(0,),
        columns=tuple((0, column) for of, column in layout.columns if of == number),
    )


# --- samplers of torch ----------------------------------------------------------------------------------------


_OF_TORCH = (WeightedRandomSampler, SubsetRandomSampler, RandomSampler, DistributedSampler)


def recognised(settings: Settings) -> tuple[Settings, Any]:
    """Give settings of which a random sampler of torch's own became what it means, and the one whose epoch is followed.

    The same samples come as often, by the same chances, in the loader's own order: theirs too with ``window="all"``.
    """
    sampler: Any = settings.sampler
    dataset: H5Dataset = settings.dataset
    if dataset.shares is not None or dataset.layout.draws is not None:
        return settings, None  # which refuse a sampler
    found = _meaning(sampler, dataset) if type(sampler) in _OF_TORCH else None
    if found is None:
        _warn_of_slow(settings, sampler if settings.batch_sampler is None else settings.batch_sampler)
        return settings, None
    given = [name for name in NAMES if getattr(settings, name) is not None]
    if given and type(sampler) in (WeightedRandomSampler, RandomSampler):
        raise OptionError(
            f"{given[0]}= and sampler={type(sampler).__name__}(...) both say how often each sample comes; leave out "
            "one of them"
        )
    # Each rank has a sampler of its own, which gives it all samples, but for the one that is for ranks.
    found = {"sampler": None, "shuffle": True, "rank": 0, "world_size": 1} | found
    if settings.seed is not None:
        found["seed"] = settings.seed
    elif "seed" not in found:
        found["seed"] = drawn_seed(sampler.generator)
    return replace(settings, **found), sampler if type(sampler) is DistributedSampler else None


def _meaning(sampler: Any, dataset: H5Dataset) -> dict[str, Any] | None:
    """Give the arguments that say what a sampler does; None where it is for other data."""
    total = len(dataset)
    if type(sampler) is WeightedRandomSampler:
        weights = np.asarray(sampler.weights, dtype=np.float64)
        if len(weights) > total:
            return None
        weights = np.append(weights, np.zeros(total - len(weights)))
        return {"weights": weights, "samples_per_epoch": sampler.num_samples, "replacement": sampler.replacement}
    if type(sampler) is SubsetRandomSampler:
        return {"dataset": dataset.listed(sampler.indices)} if len(sampler.indices) else None
    if type(sampler) is RandomSampler:
        if len(sampler.data_source) != total:
            return None
        if not sampler.replacement and sampler.num_samples == total:
            return {}
        # Without replacement it goes through all of them again, as often as they are needed.
        even = None if sampler.replacement else np.zeros(total, dtype=np.int64)
        return {"samples_per_epoch": sampler.num_samples, "replacement": True, "balance": even}
    if len(sampler.dataset) != total:
        return None
    ranks = {"rank": sampler.rank, "world_size": sampler.num_replicas}
    return {"shuffle": sampler.shuffle, "seed": sampler.seed, **ranks}


def _warn_of_slow(settings: Settings, given: Any) -> None:
    """Say what it costs that a kind of torch's random samplers was changed, so that it is followed row by row."""
    inner = getattr(given, "sampler", given)
    layout = settings.dataset.layout
    if not isinstance(inner, _OF_TORCH) or all(part.access != DECODED for parts in layout.datasets for part in parts):
        return
    rows = max(part.chunk_rows for part in layout.leading)
    warnings.warn(
        f"{type(inner).__name__} names rows that lie apart, so that nearly every one costs the decoding of a chunk of "
        f"{rows:,} rows. The loader's own order decodes each chunk once a window: write weights=, balance= or "
        "samples_per_epoch= instead of a sampler, or shuffle=True of an H5Dataset(...).subset(indices); torch's own "
        "WeightedRandomSampler, SubsetRandomSampler, RandomSampler and DistributedSampler are read as that",
        SlowSamplerWarning,
        stacklevel=4,
    )
