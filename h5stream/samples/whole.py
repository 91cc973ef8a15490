"""Recognition of groups, datasets or files that are one sample each, from names and shapes. Pure.

`h5stream.advice` bases its proposals on it, and opening a dataset warns if rows of such objects are read.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

Shape = tuple[int, ...]

MIN_SIMILAR = 8  # similar datasets in one group that count as samples; fewer are often columns
LEAST_GROUPS, MANY_GROUPS = 3, 20  # similar groups that count as recordings: if they are numbered, and in any case
LONG_NBYTES = 16 << 20  # bytes from which an object has many samples and is not one
LONG_COUNT = 256  # values along an axis from which it may be the time of a recording
MOST = 0.8  # share of names with a digit to count as numbered, and of similar groups that hold a dataset

STEPS = re.compile(
    r"(^|/)(next_)?(act|actions?|obs|observations?|rewards?|dones?|terminals?|terminations?|terminated|truncations?|"
    r"truncated|qpos|qvel|states?)($|/)",
    re.I,
)
# Names of labels and of samples, used if shapes and counts leave it open.
LABEL = re.compile(
    r"label|class|target|categ|arrival|text|caption|transcript|speaker|cell_?type|cluster|age$|^y$", re.I
)
ITEM = re.compile(r"(^|_)(idx|items?|epochs?|trials?|samples?|frames?|events?|examples?|records?)[_-]?\d+$", re.I)
PART = re.compile(r"(batch|bucket|shard|chunk|part|block)(es|s)?[_-]?\d+$", re.I)


def differing_axes(shapes: Sequence[Shape]) -> list[int]:
    """Return the axes along which shapes with the same number of axes differ."""
    return [axis for axis in range(len(shapes[0])) if len({shape[axis] for shape in shapes}) > 1]


def are_samples(shapes: Mapping[str, Sequence[Shape]], rows: Collection[str], *, nbytes: float, labelled: bool) -> bool:
    """Return whether objects with the same arrays are one sample each, and not rows each.

    `shapes` has the shapes of each array in all objects, by name, and `rows` the names of the arrays that are as long
    as most of the data. `nbytes` is the size of the largest object, and `labelled` whether each has an attribute that
    looks like a label.
    """
    arrays = {name: array_shapes for name, array_shapes in shapes.items() if array_shapes[0] != ()}
    varying = [name for name in arrays if differing_axes(arrays[name])]
    count = len(next(iter(shapes.values())))
    if any(any(differing_axes(arrays[name])) for name in varying):
        # If all agree in all axes, their places correspond, as in an image and its mask.
        return all(len({arrays[name][k] for name in rows}) == 1 for k in range(count))
    if not varying:
        # A single number beside each row is its label.
        has_label = len(rows) > 1 and any(math.prod(arrays[name][0][1:]) == 1 for name in rows)
        is_many = count >= MIN_SIMILAR and nbytes <= LONG_NBYTES
        return labelled or (is_many and not (has_label and arrays[next(iter(rows))][0][0] > MIN_SIMILAR))
    differing = {tuple(shape[0] for shape in array_shapes) for array_shapes in arrays.values()}
    is_one = len(varying) == 1 and (labelled or len(shapes) > 1)
    # A number beside a few rows belongs to all of them, such as the energy of atoms.
    longest = max(shape[0] for name in rows for shape in arrays[name])
    others = [array_shapes for name, array_shapes in shapes.items() if name not in rows]
    is_few = longest < LONG_COUNT and any({*array_shapes} in ({()}, {(1,)}) for array_shapes in others)
    return sum(len(set(counts)) > 1 for counts in differing) > 1 or is_one or is_few


def datasets_are_samples(names: Collection[str], shapes: Sequence[Shape], *, is_image: bool = False) -> bool:
    """Return whether datasets of one type in one group are one sample each, from their names and shapes."""
    is_numbered, lengths = numbered(names), {shape[0] if shape else 0 for shape in shapes}
    # Equally long datasets of single numbers are columns, until there are more of them than rows.
    if len(lengths) == 1 and all(len(one) == 1 for one in shapes) and not is_image and len(names) <= max(lengths):
        return False
    are_pictures = is_numbered and len(shapes[0]) == 4 and len({shape[1:] for shape in shapes}) > 1
    are_items = len(shapes[0]) > 1 and all(map(ITEM.search, names))
    if are_pictures or are_items or all(map(PART.search, names)):
        return len(names) >= LEAST_GROUPS
    # Datasets of mostly equal lengths and different widths are fields.
    lengths_of = Counter(shape[:1] for shape in shapes)
    (usual, count), *_ = lengths_of.most_common(1)
    widths = {shape[1:] for shape in shapes if shape[:1] == usual}
    if count >= MOST * len(shapes) and len(widths) > 1 and usual and usual[0] > count and not is_image:
        return False
    return len(names) >= (MIN_SIMILAR if is_numbered or is_image else 5 * MIN_SIMILAR)


def numbered(names: Iterable[str]) -> bool:
    """Return whether nearly all names contain a digit."""
    digits = [bool(re.search(r"\d", name)) for name in names]
    return sum(digits) >= MOST * max(1, len(digits))


def pattern_of(parent: str, *levels: tuple[Iterable[str], Iterable[str]]) -> str:
    """Return a pattern that matches the given names of a group and no others; empty if there is none.

    Each level is a pair: the names to match, and all names that exist.
    """
    pattern = parent
    for names, siblings in levels:
        wanted, every = set(names), set(siblings)
        pairs = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(min(wanted), max(wanted), strict=False))
        start = re.sub(r"\d+$", "", "".join(one for one, _ in pairs))
        if every == wanted and (len(start) == 1 or re.search(r"\d", start) or pattern.split("/")[-1] == "*"):
            start = ""  # the common prefix of these few is no name
        pattern += f"/{start}*" if pattern else f"{start}*"
        fits = {name for name in every if name.startswith(start)} == wanted
        if not fits or re.search(r"[*?[]", f"{parent}{start}"):
            return ""
    return pattern
