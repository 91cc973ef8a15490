"""The samples of an epoch and their batches, from a user's `draw=` or samplers of torch."""

from __future__ import annotations

import collections
import reprlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, SubsetRandomSampler, WeightedRandomSampler

from h5stream.base.hints import warn
from h5stream.base.texts import check_ordered
from h5stream.dataset.dataset import H5Dataset
from h5stream.dataset.splits import values_of
from h5stream.errors import OptionError, SlowSamplerWarning
from h5stream.loader.arguments import drawn_seed
from h5stream.loader.settings import SamplingArguments, Settings
from h5stream.order.blocks import Blocks
from h5stream.order.epoch import BatchLimit
from h5stream.order.places import Places, new_array, permutation, place_dtype, place_nbytes
from h5stream.order.shares import cut_by_rows, most_samples
from h5stream.order.users import Balanced, SamplerOrder, Sized, Weighted
from h5stream.order.weights import (
    EpochDraws,
    PlannedDraws,
    SourceShares,
    class_draws,
    digest,
    distinct_draws,
    shared_out,
    source_draws,
    weighted_draws,
)
from h5stream.samples.kinds import check_drawn
from h5stream.samples.segments import Ints, as_array
from h5stream.storage.layout.access import DECODED
from h5stream.storage.layout.fields import Field
from h5stream.storage.layout.layout import FieldLayout, SampleLayout, numbers_of

_READ_ROWS = 1 << 20
_MOST_CLASSES = 1 << 16
_CERTAINLY_CLASSES = 16


def epoch_draws(settings: Settings, dataset: H5Dataset, blocks: Blocks) -> PlannedDraws:
    """Plan the draws of an epoch's samples, for settings that are `drawn`.

    Nothing that grows with the samples is allocated yet, so that a budget without room for it is refused first.
    """
    draw, shares = settings.sampling.drawn, dataset.shares
    _check_alone(settings.sampling, draw, dataset)
    number = draw.count if isinstance(draw, Weighted | Balanced) else draw
    check_drawn("draw=" if isinstance(draw, int) else f"{type(draw).__name__}: count=", number or 0)
    if not isinstance(draw, Weighted | Balanced):
        if shares is not None:
            counts = _source_counts(shares, blocks, settings.shuffle, draw)
        else:
            blocks = replace(blocks, strata=np.zeros(blocks.count, dtype=np.int64))
            counts = [len(dataset) if draw is None else draw]
        return PlannedDraws(count=sum(counts), nbytes=64 * blocks.count, make=lambda: source_draws(blocks, counts))
    planned = _weighted(draw, dataset) if isinstance(draw, Weighted) else _balanced(draw, dataset)
    if blocks.rows is dataset.rows or dataset.layout.draws is not None:
        return planned

    def made() -> EpochDraws:
        samples = places_of(blocks, dataset)
        at: Places | None = None if samples is None else np.argsort(samples).astype(place_dtype(len(samples)))
        return replace(planned.make(), at=at)

    added = (24 + place_nbytes(len(dataset))) * len(dataset)  # the result, and three numbers while it is computed
    return replace(planned, nbytes=planned.nbytes + added, make=made)


def _weighted(draw: Weighted, dataset: H5Dataset) -> PlannedDraws:
    """Plan draws by weights, or with equal weights."""
    total = len(dataset)
    if draw.count is None and not draw.replacement and draw.weights is not None:
        usable = np.count_nonzero(_checked_weights(dataset, draw.weights, total))
        raise OptionError(
            f"Weighted with replacement=False: count= must say how many of the {usable:,} samples with a weight above 0"
        )
    count = total if draw.count is None else draw.count
    if draw.weights is None and not draw.replacement:
        _check_distinct(count, total, total)
        return _of_classes(lambda: np.zeros(total, dtype=np.uint16), [count], total)

    def made() -> EpochDraws:
        weights = np.ones(total) if draw.weights is None else _checked_weights(dataset, draw.weights, total)
        if draw.replacement:
            return weighted_draws(weights, count)
        _check_distinct(count, int(np.count_nonzero(weights)), total)
        return distinct_draws(weights, count)

    # Cumulative weights, and while drawing 64 bits for each (and 4 bytes, as before, so that windows keep their size);
    # or weights, and while drawing keys and places.
    nbytes = total * (8 + place_nbytes(total)) + 8 * max(total, count) if draw.replacement else 25 * total
    return PlannedDraws(count=count, nbytes=nbytes, make=made)


def _of_classes(classes: Callable[[], NDArray[np.uint16]], counts: list[int], total: int) -> PlannedDraws:
    nbytes = total * (3 + place_nbytes(total))  # classes, and while drawing a permutation and a flag
    return PlannedDraws(count=sum(counts), nbytes=nbytes, make=lambda: class_draws(classes(), counts))


def _check_distinct(count: int, usable: int, total: int) -> None:
    if count > usable:
        condition = "" if usable == total else f" that have a weight above 0 (of {total:,})"
        raise OptionError(
            f"Weighted: replacement=False takes no sample twice, so count={count:,} is too many: there are {usable:,}"
            f"{condition}; ask for fewer, or pass replacement=True"
        )


def _source_counts(shares: SourceShares, blocks: Blocks, shuffle: bool, total: int | None) -> list[int]:
    """Return the number of samples in an epoch from each source of a mixture."""
    if not shuffle or blocks.strata is None:
        raise OptionError(
            "a Mixture mixes its sources by the shuffle: pass shuffle=True, not False; or a list, not a Mixture"
        )
    sizes = np.bincount(blocks.strata, weights=np.diff(blocks.edges), minlength=len(shares.names)).astype(np.int64)
    for name, share, size in zip(shares.names, shares.shares, sizes, strict=True):
        if share and not size:
            raise OptionError(f"Mixture: source {name!r} has a share of {share:.3g} and no samples that were chosen")
    return shares.counts(sizes, total)


def _check_alone(sampling: SamplingArguments, draw: Weighted | Balanced | int | None, dataset: H5Dataset) -> None:
    """Raise if two arguments decide which samples an epoch takes."""
    name = "a Mixture" if draw is None else draw_name(draw)
    others = [f"{name}=" for name in ("sampler", "batch_sampler") if getattr(sampling, name) is not None]
    others += ["a function as draw="] if sampling.factory is not None else []
    if others:
        raise OptionError(f"{name} says how often each sample comes, so {others[0]} must be left out")
    if dataset.layout.draws is not None:
        raise OptionError(
            f"samples= with starts='random' draws its samples itself, per_epoch= of them: {name} must be left out"
        )
    if dataset.shares is not None and isinstance(draw, Weighted | Balanced):
        raise OptionError(
            f"a Mixture says by its own weights= how often samples come: {name} must be left out, but for a number"
        )


def draw_name(draw: Weighted | Balanced | int) -> str:
    """Return the ``draw=`` argument as messages show it."""
    return f"draw={draw}" if isinstance(draw, int) else f"draw={type(draw).__name__}(...)"


# --- weights ------------------------------------------------------------------------------------------------


def _checked_weights(dataset: H5Dataset, weights_or_name: object, total: int) -> NDArray[np.float64]:
    if isinstance(weights_or_name, str):
        weights: NDArray[np.float64] = new_array(total, np.float64)
        for first, values in _field_and_values(dataset, "Weighted", weights_or_name)[1]:
            weights[first : first + len(values)] = _as_floats(values)
    else:
        weights = _as_floats(as_array(weights_or_name))
    if weights.shape != (total,):
        raise OptionError(
            f"Weighted: weights= takes one number a sample: {total:,} samples, weights of shape {weights.shape}"
        )
    if not (weights.min(initial=0) >= 0 and weights.max(initial=0) < np.inf):
        wrong = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
        raise OptionError(
            f"Weighted: weights= are numbers of 0 or more: sample {wrong[0]:,} has {weights[wrong[0]]}, and of all "
            f"{total:,} samples {len(wrong):,} have none that will do; 0 leaves a sample out"
        )
    if not weights.any():
        raise OptionError(f"Weighted: weights= are 0 for all {total:,} samples, so that none could be drawn")
    return weights


def _as_floats(values: Any) -> NDArray[np.float64]:
    try:
        if np.iscomplexobj(values):  # NumPy would drop the imaginary parts
            raise TypeError
        with np.errstate(invalid="ignore"):  # a signalling NaN
            return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        shown = reprlib.repr(values.tolist() if isinstance(values, np.ndarray) else values)
        raise OptionError(
            f"Weighted: weights= takes numbers, one a sample, or a field of them, real ones, not {shown}"
        ) from None


# --- classes ------------------------------------------------------------------------------------------------


def _balanced(draw: Balanced, dataset: H5Dataset) -> PlannedDraws:
    """Plan draws with the same number of samples of each class, or as the shares say."""
    if draw.shares is not None and not isinstance(draw.shares, Mapping):
        raise OptionError(
            f"Balanced: shares= takes the share of each of a field's values, such as {{0: 2}}, not {draw.shares!r:.80}"
        )
    name, total = repr(draw.by) if isinstance(draw.by, str) else "an array", len(dataset)
    # Fields are read twice, first for the class sizes, which determine the number of samples in an epoch.
    distinct, sizes = _classes(_class_values(dataset, draw.by, name), name, total)
    classes = distinct.tolist()
    shares = np.ones(len(classes))
    field = _field_and_values(dataset, "Balanced", draw.by)[0] if isinstance(draw.by, str) else None
    names = () if field is None else field.labels.categories or ()
    if names and classes[0] == -1 and draw.shares is None:
        why = f"{sizes[0]:,} of {total:,} samples have the code -1, that of no category"
        raise OptionError(
            f"Balanced({name}): {why}; dataset.subset(codes >= 0) leaves them out, or shares= of each class, with -1: 0"
        )
    if draw.shares is not None:
        codes = {text: code for code, text in enumerate(names)}
        ratio = {codes.get(one, one): share for one, share in draw.shares.items()}
        shares = _shares(ratio, classes, sizes, name, names)

    def numbers() -> NDArray[np.uint16]:
        codes_of_samples = new_array(total, np.uint16)
        for first, values in _class_values(dataset, draw.by, name):
            codes_of_samples[first : first + len(values)] = np.searchsorted(distinct, values)
        return codes_of_samples

    return _of_classes(numbers, _class_counts(classes, sizes, shares / shares.sum(), draw), total)


def _class_values(dataset: H5Dataset, values_or_name: object, name: str) -> Iterator[tuple[int, np.ndarray]]:
    """Yield the class values of some samples at a time, with the number of the first sample."""
    if isinstance(values_or_name, str):
        for first, piece in _field_and_values(dataset, "Balanced", values_or_name)[1]:
            values = np.asarray(piece)
            _check_classes(values, len(piece), name, first)
            yield first, values
    else:
        every = as_array(values_or_name)
        _check_classes(every, len(dataset), name, 0)
        yield from ((first, every[first : first + _READ_ROWS]) for first in range(0, len(every), _READ_ROWS))


def _check_classes(values: np.ndarray, samples: int, name: str, first: int) -> None:
    if values.shape != (samples,) or values.dtype.kind not in "biufmMSU":
        raise OptionError(
            f"Balanced: by= takes the name of a field, or one number or text a sample: {samples:,} samples, values "
            f"of shape {values.shape} and type {values.dtype}"
        )
    if values.dtype.kind in "fmM" and (not_equal := values != values).any():
        wrong, missing = first + np.flatnonzero(not_equal)[0], "NaN" if values.dtype.kind == "f" else "NaT"
        raise OptionError(f"Balanced({name}): sample {wrong:,} is {missing}, which is no class")


def _classes(every: Iterator[tuple[int, np.ndarray]], name: str, total: int) -> tuple[np.ndarray, Ints]:
    """Return the distinct values of a field, ascending, and how many samples have each."""
    most = min(_MOST_CLASSES, max(_CERTAINLY_CLASSES, total // 2))
    counted, kinds = collections.Counter[Any](), set[np.dtype]()
    for first, values in every:
        kinds.add(values.dtype)
        distinct, counts = np.unique(values, return_counts=True)
        counted.update(dict(zip(distinct.tolist(), counts.tolist(), strict=True)))
        if len(counted) > most:
            raise OptionError(
                f"Balanced({name}) has {len(counted):,} values in {first + len(values):,} samples, which are no "
                "classes; name a field of few values, or draw=Weighted(...) with a number for each sample"
            )
    classes = sorted(counted)
    # In their own type: NumPy would convert integers around 2**63 to floats, in which distinct ones are equal.
    return np.array(classes, np.result_type(*kinds)), np.array([counted[one] for one in classes])


def _shares(
    ratio: Mapping[Any, Any], classes: list[object], sizes: Ints, name: str, names: tuple[str, ...]
) -> NDArray[np.float64]:
    """Return the user's share of each class; `names` are the names that class codes stand for."""

    def shown(value: Any) -> str:
        return repr(names[value] if names and value in range(len(names)) else value)

    numbered, shares = {value: number for number, value in enumerate(classes)}, np.full(len(classes), np.nan)
    for key, share in ratio.items():
        value = key.encode() if isinstance(key, str) and key not in numbered else key  # HDF5 stores texts as bytes
        if value not in numbered:
            raise OptionError(
                f"Balanced: shares= gives {shown(key)} of {name} a share, but no sample has it; those that there "
                f"are: {', '.join(map(shown, classes[:10]))}"
            )
        good = (
            isinstance(share, int | float | np.integer | np.floating)
            and not isinstance(share, bool)
            and 0 <= share < float("inf")
            and abs(int(share)) <= sys.float_info.max
        )
        if not good:
            raise OptionError(f"Balanced: the share of {shown(value)} is a number of 0 or more, not {share!r}")
        shares[numbered[value]] = share
    unset = np.flatnonzero(np.isnan(shares))
    if len(unset):
        raise OptionError(
            f"Balanced: shares= gives {shown(classes[unset[0]])} of {name} no share, and {sizes[unset[0]]:,} samples "
            "have it; 0 leaves them out"
        )
    shares /= shares.max() if shares.max() > 1e300 else 1  # so that their sum is finite
    if not shares.any():
        raise OptionError("Balanced: shares= gives all classes a share of 0, so that no sample could be drawn")
    return shares


def _class_counts(classes: list[object], sizes: Ints, shares: NDArray[np.float64], draw: Balanced) -> list[int]:
    """Return the number of samples of each class in an epoch."""
    with np.errstate(over="ignore"):  # of a tiny share
        most = int((sizes[shares > 0] / shares[shares > 0]).min() + 1e-6)
    while (np.array(shared_out(most, shares)) > sizes).any():
        most -= 1
    total = draw.count if draw.count is not None else int(sizes.sum()) if draw.replacement else most
    counts = shared_out(total, shares)
    over = np.flatnonzero(np.array(counts) > sizes)
    if len(over) and not draw.replacement:
        worst = over[np.argmin(sizes[over] / shares[over])]
        raise OptionError(
            f"Balanced: count={total:,}: {counts[worst]:,} of them are of class {classes[worst]!r}, which has "
            f"{sizes[worst]:,} samples, and replacement=False takes none twice; pass count={most} or less, or "
            "replacement=True"
        )
    return counts


# --- values of a field --------------------------------------------------------------------------------------


def _field_and_values(dataset: H5Dataset, kind: str, name: str) -> tuple[FieldLayout, Iterable[tuple[int, Any]]]:
    is_delivered = dataset.layout.field_named(name) is not None
    return values_of(dataset, name if is_delivered else Field(name), f"{kind}({name!r})")


# --- samplers of torch ----------------------------------------------------------------------------------------


_OF_TORCH = (WeightedRandomSampler, SubsetRandomSampler, RandomSampler, DistributedSampler)


class Followed:
    """A DistributedSampler whose epoch the loader follows, and the epoch that it had when the loader last looked."""

    def __init__(self, sampler: DistributedSampler[object]) -> None:
        self.sampler, self.epoch = sampler, sampler.epoch

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of both."""
        self.sampler.set_epoch(epoch)
        self.epoch = epoch


def recognised(dataset: H5Dataset, sampling: SamplingArguments) -> tuple[H5Dataset, SamplingArguments, Followed | None]:
    """Replace a random sampler of torch by equivalent arguments; also return the sampler whose epoch is to be followed.

    Samples have the same probabilities, in the loader's own order, which with ``window="all"`` is the sampler's too.
    """
    sampler: Any = sampling.sampler
    if dataset.shares is not None or dataset.layout.draws is not None:
        return dataset, sampling, None  # these refuse a sampler
    changes = _meaning(sampler, dataset) if type(sampler) in _OF_TORCH else None
    if changes is None:
        _warn_of_slow(dataset.layout, sampler if sampling.batch_sampler is None else sampling.batch_sampler)
        return dataset, sampling, None
    if sampling.drawn is not None and type(sampler) in (WeightedRandomSampler, RandomSampler):
        raise OptionError(
            f"{draw_name(sampling.drawn)} and sampler={type(sampler).__name__}(...) both say how often samples come"
        )
    # Each rank has its own sampler over all samples, except with `DistributedSampler`.
    changes = {"sampler": None, "shuffle": True, "rank": 0, "world_size": 1} | changes
    dataset = changes.pop("dataset", dataset)
    if sampling.seed is not None:
        changes["seed"] = sampling.seed
    elif "seed" not in changes:
        changes["seed"] = drawn_seed(sampler.generator)
    return dataset, replace(sampling, **changes), Followed(sampler) if type(sampler) is DistributedSampler else None


def _meaning(sampler: Any, dataset: H5Dataset) -> dict[str, Any] | None:
    """Return the arguments equivalent to a sampler; None if it is for other data."""
    total = len(dataset)
    if type(sampler) is WeightedRandomSampler:
        weights: Any = sampler.weights
        if len(weights) > total:
            return None
        if len(weights) < total:
            weights = np.append(as_array(weights), np.zeros(total - len(weights)))
        return {"draw": Weighted(weights, sampler.num_samples, sampler.replacement)}
    if type(sampler) is SubsetRandomSampler:
        return {"dataset": dataset.listed(sampler.indices)} if len(sampler.indices) else None
    if type(sampler) is RandomSampler:
        if len(sampler.data_source) != total:
            return None
        if not sampler.replacement and sampler.num_samples == total:
            return {}
        # Without replacement it repeats the whole data as often as needed.
        even = Balanced(np.zeros(total, dtype=np.uint8), count=sampler.num_samples)
        return {"draw": Weighted(count=sampler.num_samples) if sampler.replacement else even}
    if len(sampler.dataset) != total:
        return None
    ranks = {"rank": sampler.rank, "world_size": sampler.num_replicas}
    return {"shuffle": sampler.shuffle, "seed": sampler.seed, **ranks}


def _warn_of_slow(layout: SampleLayout, sampler: object) -> None:
    """Warn of the cost of a modified random sampler of torch, which is followed row by row."""
    inner = getattr(sampler, "sampler", sampler)
    if not isinstance(inner, _OF_TORCH) or all(part.access != DECODED for parts in layout.datasets for part in parts):
        return
    rows = max(part.chunk_rows for part in layout.leading)
    warn(
        f"{type(inner).__name__} names rows that lie apart, so that nearly every one costs the decoding of a chunk of "
        f"{rows:,} rows. The loader's own order decodes each chunk once a window: write draw= instead of "
        "a sampler, or shuffle=True of an H5Dataset(...).subset(indices); torch's own "
        "WeightedRandomSampler, SubsetRandomSampler, RandomSampler and DistributedSampler are read as that",
        SlowSamplerWarning,
    )


def sampler_order(settings: Settings, dataset: H5Dataset) -> SamplerOrder:
    """Return the order that a user's sampler decides, in places of the dataset."""
    if dataset.layout.draws is not None:
        raise OptionError(
            "samples= has starts='random' and draws its samples anew for each epoch: leave out the sampler"
        )
    sampling = settings.sampling
    source: Any = sampling.sampler if sampling.batch_sampler is None else sampling.batch_sampler
    check_ordered("sampler= or batch_sampler=", source)
    batched = source
    if sampling.batch_rows is not None:
        batched = BatchSampler(source, sampling.batch_rows, bool(sampling.drop_last))
    is_single = sampling.batch_rows is None and sampling.batch_sampler is None
    return SamplerOrder(source=source, batched=batched, is_single=is_single, rows=dataset.rows)


def places_of(blocks: Blocks, dataset: H5Dataset) -> NDArray[np.int64] | None:
    """Return the place in the dataset of each sample of `blocks`; None if they are in the dataset's order."""
    own, rows = dataset.rows, blocks.rows
    if rows is own or rows is None or dataset.layout.draws is not None:
        return None
    order = np.arange(len(dataset)) if own is None else np.argsort(own, kind="stable")
    places = np.empty_like(order)
    places[np.argsort(rows, kind="stable")] = order
    return places


# --- batches that are cut by the lengths of samples ----------------------------------------------------


class SizedBatches:
    """Batches that are cut by the rows of a ragged field."""

    def __init__(self, dataset: H5Dataset, sized: Sized) -> None:
        layout, self._chosen = dataset.layout, dataset.chosen
        self.field, self.lengths = _field_and_lengths(layout, sized.field)  # lengths of all samples, chosen or not
        self._is_drawn, ragged = layout.draws is not None, layout.fields[self.field].ragged
        padded = ragged is not None and ragged.form == "pad"
        self.limit = BatchLimit(rows=sized.rows, padded=padded, bucketed=sized.bucket)
        lengths, rows = self._chosen_lengths, sized.rows
        if rows is not None and len(over := np.flatnonzero(lengths > rows)):
            longest = int(np.argmax(lengths))
            sample = longest if self._chosen is None else int(self._chosen[longest])
            raise OptionError(
                f"Sized: rows={rows:,}: sample {sample:,} alone has {lengths[longest]:,} rows of "
                f"{_key_of(layout, self.field)!r}, and {len(over):,} of {len(lengths):,} samples have more than "
                f"fit. Pass rows={lengths[longest]} or more, Field(..., ragged=Ragged(crop=)) for a part of each, or "
                "leave the long ones out: H5Dataset(...).subset(indices)"
            )

    @property
    def _chosen_lengths(self) -> Ints:
        return self.lengths if self._chosen is None else self.lengths[self._chosen]

    def measured(self, blocks: Blocks) -> Blocks:
        """Return blocks with the lengths of their samples."""
        return replace(blocks, lengths=self.lengths if blocks.rows is None else self.lengths[blocks.rows])

    def samples(self, batch_size: int, *, is_drawn: bool) -> tuple[int, int]:
        """Return the typical number of samples in a batch, and the maximum."""
        lengths = self._chosen_lengths
        in_turn = np.sort(lengths) if self.limit.bucketed else lengths[permutation(len(lengths))]
        usual = -(-len(lengths) // (len(cut_by_rows(in_turn, batch_size, self.limit)) - 1))
        return usual, batch_size if self._is_drawn or is_drawn else most_samples(lengths, batch_size, self.limit)

    @property
    def fingerprint(self) -> dict[str, int | str]:
        """The inputs of the order, for a state."""
        limit = f"{self.limit.rows}, padded={self.limit.padded}, bucket={self.limit.bucketed}"
        return {"batch_limit": limit, "lengths": digest(self.lengths.tobytes())}


def _key_of(layout: SampleLayout, number: int) -> str:
    """Return the key of a field in batches."""
    keys = (key for key, leaf in layout.leaves if number in numbers_of(leaf))
    return next(keys, layout.fields[number].name)


def _field_and_lengths(layout: SampleLayout, name: str | None) -> tuple[int, Ints]:
    """Return the number of the named ragged field, by default of the one with the most rows, and its lengths."""
    lengths = {n: one.counts for n, one in layout.ragged.items() if one.draw is None and one.counts is not None}
    if not lengths:
        raise OptionError(
            "draw=Sized(...) goes by a ragged field, and there is none: Field(name, lookup=Bounds(...)) makes one"
        )
    if name is None:
        return max(lengths.items(), key=lambda pair: int(pair[1].sum()))  # the first of those with the most
    pairs = ((key, numbers_of(leaf)[0]) for key, leaf in layout.leaves)
    number_of = {key: number for key, number in pairs if number in lengths}
    number = number_of.get(name, layout.field_named(name))
    if number is None or number not in lengths:
        names = ", ".join(map(repr, number_of))
        raise OptionError(f"Sized: field= names {name!r}, which is no ragged field; those are {names}")
    return number, lengths[number]
