"""Splits: grouping of samples that stay together, and assignment of samples to parts.

Results depend only on the seed and the samples, not on the machine: permutations are `h5stream.order.places`'s,
sizes are integers and ratios of integers, and floats are summed in a fixed order.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from h5stream.base.hints import warn
from h5stream.base.texts import check_ordered, counted, did_you_mean
from h5stream.compiled._native import deal_groups
from h5stream.dataset.leaks import in_order, share_rows
from h5stream.errors import LeakWarning, OptionError
from h5stream.order.blocks import Blocks
from h5stream.order.places import SPLITS, permutation
from h5stream.samples.segments import Ids, Ints, Segmentation, as_array
from h5stream.samples.space import Grid
from h5stream.storage.layout.fields import Field
from h5stream.storage.layout.layout import FieldLayout, SampleLayout
from h5stream.storage.source.local import FilesIdentity
from h5stream.structure import numbers_in

if TYPE_CHECKING:
    from h5stream.dataset.dataset import H5Dataset

_VALUES_NBYTES, _VALUES_ROWS = 64 * 1024 * 1024, 1 << 20

BY = ("segment", "file", "block")
"""Ways to group samples, besides values."""

LARGE_SHARE = 10
"""A group is large if it has more than 1 / LARGE_SHARE of the smallest part's samples; these are assigned first."""

_ARGUMENTS = ("seed", "by", "stratify")
_OTHERS = {
    "test_size": "write split(0.8, 0.2), the share of each part, for test_size=0.2",
    "train_size": "write split(0.8, 0.2), the share of each part, for train_size=0.8",
    "lengths": "write the share, or the number of samples, of each part: split(0.8, 0.2)",
    "random_state": "write seed=",
    "generator": "write seed=",
    "groups": "write by=, the samples that stay together",
    "shuffle": "parts are always drawn at random; for the first samples and the rest, write n = int(0.8 * "
    "len(dataset)); dataset.subset(slice(0, n)), dataset.subset(slice(n, None))",
}
"""Arguments of other libraries' splits, and what to write instead."""


def check_no_others(others: Mapping[str, object]) -> None:
    """Raise `OptionError` for arguments that a split does not have."""
    for name in others:
        way_out = _OTHERS.get(name, f"it takes shares, seed=, by= and stratify=.{did_you_mean(name, _ARGUMENTS)}")
        raise OptionError(f"split has no argument {name}=: {way_out}")


def part_sizes(shares: Sequence[float], total: int) -> list[int]:
    """Return the number of samples of each part; fractions are rounded at their cumulative sum."""
    for share in shares:
        check_ordered("split", share)
    kinds = {np.asarray(share).dtype.kind if np.ndim(share) == 0 else "O" for share in shares}
    if not (kinds == {"f"} or kinds in ({"i"}, {"u"}, {"i", "u"})) or not all(0 <= share < np.inf for share in shares):
        raise OptionError(
            "split takes fractions, such as 0.8, 0.1, 0.1, or numbers of samples, such as 900, 100, of 0 or more, not "
            f"{shares!r}"
        )
    are_parts = kinds == {"f"}
    wanted = [Fraction(repr(float(share))) if are_parts else Fraction(int(share)) for share in shares]
    every = Fraction(1 if are_parts else total)
    if len(wanted) == 1:
        wanted.append(every - wanted[0])
    if min(wanted) < 0 or abs(sum(wanted) - every) > (Fraction(1, 1_000_000) if are_parts else 0):
        total_share = sum(wanted[: len(shares)])
        is_more = total_share > every
        way = "Make them smaller" if is_more else "Name what is left as a part too, or take subset() first"
        raise OptionError(
            f"split({', '.join(map(str, shares))}): the parts add up to {float(total_share):g}, and must add up to "
            f"{float(every):g}. {way}"
        )
    ends = [int(sum(wanted[: k + 1]) / every * total + Fraction(1, 2)) for k in range(len(wanted))]
    sizes = [stop - first for first, stop in itertools.pairwise([0, *ends[:-1], total])]
    if min(sizes) < 1:
        part = sizes.index(min(sizes))
        raise OptionError(
            f"split: part {part + 1} has no sample: its share is {float(wanted[part]):g} of {total:,}; leave it out"
        )
    return sizes


def split_plainly(sizes: Sequence[int], seed: int) -> list[Ints]:
    """Assign samples to parts at random."""
    chances = permutation(sum(sizes), seed, SPLITS)
    ends = np.cumsum([0, *sizes])
    return [np.sort(chances[first:stop]).astype(np.int64) for first, stop in itertools.pairwise(ends)]


def split_by_strata(sizes: Sequence[int], strata: Ints, seed: int) -> list[Ints]:
    """Assign the samples of each stratum at random; every part gets its share of each stratum to within a sample.

    Remainders go to the parts that still lack most, one sample each. Source: Gale (1957) and Ryser (1957).
    """
    total, counts = len(strata), np.bincount(strata)
    assigned = counts[:, None] * np.array(sizes, dtype=object) // total
    lacking = np.array(sizes, dtype=object) - assigned.sum(axis=0)
    for stratum, remainder in enumerate((counts - assigned.sum(axis=1)).tolist()):
        most = np.argsort(-lacking, kind="stable")[:remainder]
        assigned[stratum, most] += 1
        lacking[most] -= 1
    chances = permutation(total, seed, SPLITS)
    by_stratum = chances[np.argsort(strata[chances], kind="stable")]  # stratum by stratum, each in random order
    part = np.repeat(np.tile(np.arange(len(sizes)), len(counts)), assigned.reshape(-1).astype(np.int64))
    return [np.sort(by_stratum[part == number]).astype(np.int64) for number in range(len(sizes))]


def split_by_groups(
    sizes: Sequence[int], groups: Ints, strata: Ints | None, seed: int, recipe: Callable[[], str] | None = None
) -> list[Ints]:
    """Assign whole groups, large ones first, the rest in random order: each to the part that lacks most of its samples.

    An empty part gets one of the last groups. Lacking samples are weighted by the inverse size of their stratum. For an
    error, `recipe` returns how to take one part after the other, if that is possible.
    """
    count, parts = int(groups.max()) + 1, len(sizes)
    if count < parts:
        in_file = "" if recipe is None else recipe()
        raise OptionError(
            f"split: {counted(count, 'group')} for {parts} parts, and groups are not divided; pass a by= of more values"
            f"{', or take parts in the order of the file: ' if in_file else ''}{in_file}"
        )
    strata = np.zeros(len(groups), dtype=np.int64) if strata is None else strata
    pairs, samples = np.unique(groups * (int(strata.max()) + 1) + strata, return_counts=True)
    group_of, stratum_of = np.divmod(pairs, int(strata.max()) + 1)
    totals = np.bincount(strata)
    edges, of_group = np.searchsorted(group_of, np.arange(count + 1)), np.bincount(groups)
    chances = permutation(count, seed, SPLITS)
    large = np.where(of_group[chances] * LARGE_SHARE > min(sizes), -of_group[chances], 0)
    # Lacking samples of each part and stratum, times all samples: integers, which sum to the same on any machine, and
    # fit into 64 bits for up to three thousand million samples.
    lacks = totals[:, None] * np.array(sizes, dtype=np.int64)
    weights = np.divide(len(groups), totals, out=np.zeros(len(totals)), where=totals > 0)
    order = chances[np.argsort(large, kind="stable")].astype(np.int64)
    by_size: Ints = np.argsort(sizes, kind="stable")
    homes: Ints = np.empty(count, dtype=np.int64)
    deal_groups(order, edges, stratum_of, samples, weights, by_size, len(groups), lacks, homes)
    return [np.flatnonzero(homes[groups] == part) for part in range(parts)]


def parts_of(
    shares: Sequence[float],
    total: int,
    *,
    seed: int,
    groups: Ints | None,
    strata: Ints | None,
    recipe: Callable[[], str] | None = None,
) -> list[Ints]:
    """Return the samples of each part, ascending; see `H5Dataset.split`."""
    sizes = part_sizes(shares, total)
    if strata is not None and (most := int(strata.max()) + 1) > max(2, total // 2):
        raise OptionError(
            f"stratify= takes a field of few values, and {total:,} samples have {most:,}; make classes (numpy.digitize)"
        )
    if groups is not None:
        return split_by_groups(sizes, groups, strata, seed, recipe)
    return split_plainly(sizes, seed) if strata is None else split_by_strata(sizes, strata, seed)


def group_numbers(layout: SampleLayout, rows: Ints | None, by: str, blocks: Blocks, *, are_objects: bool) -> Ints:
    """Return for each sample the number of its segment (its own if samples are objects), file or block."""
    if by == "block":
        block = np.repeat(np.arange(blocks.count), np.diff(blocks.edges))
        if blocks.rows is None:
            return block
        numbers = np.arange(len(block)) if rows is None else rows
        blocks_of_rows = np.empty_like(block)
        blocks_of_rows[np.argsort(numbers, kind="stable")] = block[np.argsort(blocks.rows, kind="stable")]
        return blocks_of_rows
    numbers = np.arange(layout.samples) if rows is None else rows
    return numbers if are_objects and by == "segment" else _places(layout, numbers, by)


def _places(layout: SampleLayout, numbers: Ints, by: str) -> Ints:
    """Return for each sample the number of its segment or file."""
    if by == "segment":
        if (space := layout.segments) is not None and space.edges is not None:
            return np.searchsorted(space.edges, space.anchors_of(numbers), side="right")
        if layout.space is not None and isinstance(layout.space.starts, Grid):
            return np.searchsorted(layout.space.starts.segments[0], numbers, side="right")
    part = layout.anchors_of(numbers)
    if not layout.has_boxes:
        part = np.searchsorted(np.array(layout.file_starts[1:]), part, side="right")
    if by == "segment":
        return part
    file = np.array([one.file for one in layout.leading])[part]
    several = np.array([isinstance(layout.files[one.file], FilesIdentity) for one in layout.leading])[part]
    # In a set of files each sample is a file, in order.
    place: Ints = np.where(several, numbers - np.array(layout.file_starts)[part], 0)
    place += file * layout.samples
    return place


def values_of(
    dataset: H5Dataset, name: str | Field, what: str, *, of_first_step: bool = False
) -> tuple[FieldLayout, Iterator[tuple[int, Any]]]:
    """Return a field, or another dataset of the files, and an iterator over first sample numbers and values."""
    number = dataset.layout.field_named(name) if isinstance(name, str) else None
    layout = dataset.layout if number is not None else dataset._with_field(name)
    last = layout.entries[-1] if number is None else number
    if not isinstance(last, int):
        raise OptionError(f"{what} takes a field of one value a sample, and {name!r} has several members")
    layout = layout.only([last])
    alone, field = dataset._replace(layout=layout, numpy=False), layout.fields[0]
    is_stepped = of_first_step and dataset.layout.segments is not None and field.take.steps is not None
    step = max(1, min(_VALUES_ROWS, _VALUES_NBYTES // max(1, layout.row_nbytes)))

    def pieces() -> Iterator[tuple[int, Any]]:
        for first in range(0, len(alone), step):
            piece = alone.read(np.arange(first, min(first + step, len(alone))))[layout.shape.keys[0]]
            if isinstance(piece, torch.Tensor) and not piece.is_nested:
                values = numbers_in(piece[:, 0] if is_stepped else piece).reshape(len(piece), -1)
                if values.shape[1] == 0 or (values[:, 1:] != values[:, :1]).any():
                    raise OptionError(
                        f"{what} takes one value for each of {len(dataset):,} samples, and this field has "
                        f"{values.shape[1]} that differ; pass an array with one value a sample"
                    )
                piece = values[:, 0]
            else:
                piece = one_of_each([one[0] for one in piece] if is_stepped else piece, field, first, what)
            yield first, piece

    return field, pieces()


def one_of_each(values: list[Any], field: FieldLayout, first: int, what: str) -> list[Any]:
    """Return values that are not a tensor, one per sample; raise if samples have several, or lists of one each."""
    several = (torch.Tensor, np.ndarray, list, tuple)
    is_list = isinstance(values, list)
    sample = next((k for k, one in enumerate(values) if isinstance(one, several)), None) if is_list else 0
    if sample is None:
        return values
    has = (
        f"sample {first + sample:,} has {len(values[sample]):,} of {field.name!r}" if is_list else f"{field.name!r} has"
    )
    has += "" if is_list else " another number of them in each"
    raise OptionError(
        f"{what} takes a field of one value a sample, and {has}; pass an array with one value a sample, such as the "
        "first or the mean of each"
    )


def codes_of(values: object, total: int, what: str) -> Ints:
    """Return the rank of each value among the distinct values, one per sample."""
    if isinstance(values, Segmentation):
        name = values.names[0] if isinstance(values, Ids) else "segment" if what == "by=" else None
        way_out = f"; write {what}{name!r}" if isinstance(name, str) else ""
        raise OptionError(
            f"split: {what} takes a name, or one value for each of {total:,} samples, not {values!r}{way_out}"
        )
    array = as_array(values)
    if array.dtype.kind == "O":
        lists = [k for k, value in enumerate(array.reshape(-1).tolist()) if np.ndim(value)]
        if lists:
            raise OptionError(f"split: {what} takes one value a sample, and sample {lists[0]:,} has several")
        array = np.array([str(value) if isinstance(value, str) else value for value in array.tolist()], dtype=object)
    if array.shape != (total,):
        raise OptionError(
            f"split: {what} takes one value for each of {total:,} samples, not an array of shape {array.shape}"
        )
    try:
        return np.unique(array, return_inverse=True)[1].reshape(-1)
    except TypeError:
        raise OptionError(f"split: {what} has values of several types, which cannot be compared") from None


def repeated(numbers: Ints | None) -> Ints | None:
    """Return groups of repeated samples, as a `Subset` may list them; None if no sample is repeated."""
    if numbers is None:
        return None
    distinct, groups = np.unique(numbers, return_inverse=True)
    return groups.reshape(-1) if len(distinct) < len(numbers) else None


def warn_of_leaks(layout: SampleLayout, rows: Ints | None, parts: Sequence[Ints], *, are_whole: bool) -> None:
    """Warn if samples of several parts share rows; with `are_whole` segments or files are in one part each."""
    if are_whole or layout.draws is not None or not share_rows(layout, rows, parts):
        return
    total = sum(map(len, parts))
    if _has_groups(layout, rows, "segment", total, len(parts)):
        files = ", by='file' files" if _has_groups(layout, rows, "file", total, len(parts)) else ""
        way_out = f"split(..., by='segment') keeps segments whole{files}"
    elif recipe := in_order(layout, rows, total):
        way_out = f"Take one part after the other and leave out what overlaps: {recipe}"
    else:
        way_out = (
            "split(..., by=values), an array with one value for each sample, keeps those of equal value together: give "
            "one to samples that overlap; or take samples that do not, further apart"
        )
    warn(
        "samples of this data overlap, and samples of several parts share rows, so a score on one part says little of "
        f"data that were not trained on. {way_out}",
        LeakWarning,
    )


def _has_groups(layout: SampleLayout, rows: Ints | None, by: str, total: int, least: int) -> bool:
    """Return whether samples are of at least so many segments or files."""
    space, groups = layout.space, set[int]()
    most = len(layout.files)
    if by == "segment" and space is not None:
        most = space.starts.segments[0].size if isinstance(space.starts, Grid) else len(space.volumes)
    for first in range(0, total if most >= least else 0, _VALUES_ROWS):
        numbers = np.arange(first, min(total, first + _VALUES_ROWS))
        groups.update(np.unique(_places(layout, numbers if rows is None else rows[numbers], by)).tolist())
        if len(groups) >= least:
            return True
    return False
