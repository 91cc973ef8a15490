"""Whether things that hold the same, such as groups or files, are a sample each. Pure: by names and shapes.

`h5stream.advice` proposes what follows, and opening a dataset warns if rows of such things are read.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

Shape = tuple[int, ...]

LEAST_ALIKE = 8  # like datasets in one group, from which each is a sample; fewer are columns as often as not
LEAST_GROUPS, MANY_GROUPS = 3, 20  # like groups, from which each is a recording: if they are numbered, and anyway
LONG_NBYTES = 16 << 20  # bytes of one of what is alike, from which it has many samples and is not one
LONG_COUNT = 256  # values along an axis, from which they may be a recording's in time
MOST = 0.8  # share of names that count as numbered if they have a digit; of like groups that should hold a dataset

STEPS = re.compile(
    r"(^|/)(next_)?(act|actions?|obs|observations?|rewards?|dones?|terminals?|terminations?|terminated|truncations?|"
    r"truncated|qpos|qvel|states?)($|/)",
    re.I,
)
# Names of what a sample is asked for, where shapes and numbers leave it open.
LABEL = re.compile(
    r"label|class|target|categ|arrival|text|caption|transcript|speaker|cell_?type|cluster|age$|^y$", re.I
)
ITEM = re.compile(r"(^|_)(idx|items?|epochs?|trials?|samples?|frames?|events?|examples?|records?)[_-]?\d+$", re.I)
PART = re.compile(r"(batch|bucket|shard|chunk|part|block)(es|s)?[_-]?\d+$", re.I)


def unlike_axes(shapes: Sequence[Shape]) -> list[int]:
    """Return the axes along which shapes of as many axes differ in length."""
    return [axis for axis in range(len(shapes[0])) if len({shape[axis] for shape in shapes}) > 1]


def are_samples(shapes: Mapping[str, Sequence[Shape]], rows: Collection[str], *, nbytes: float, labelled: bool) -> bool:
    """Tell whether things that hold the same arrays are a sample each, and not rows of which each is one.

    `shapes` has those of each array in all of the things, by name, and `rows` the names of those that are as long as
    most of the data. `nbytes` is the size of the largest thing, and `labelled` whether each has an attribute that looks
    like a label.
    """
    some = {name: each for name, each in shapes.items() if each[0] != ()}
    unlike = [name for name in some if unlike_axes(some[name])]
    count = len(next(iter(shapes.values())))
    if any(any(unlike_axes(some[name])) for name in unlike):
        # Where all agree in all axes a place of one is that of the others, as of an image and its mask.
        return all(len({some[name][k] for name in rows}) == 1 for k in range(count))
    if not unlike:
        # A single number beside each row is its label.
        has_label = len(rows) > 1 and any(math.prod(some[name][0][1:]) == 1 for name in rows)
        is_many = count >= LEAST_ALIKE and nbytes <= LONG_NBYTES
        return labelled or (is_many and not (has_label and some[next(iter(rows))][0][0] > LEAST_ALIKE))
    differing = {tuple(shape[0] for shape in each) for each in some.values()}
    is_one = len(unlike) == 1 and (labelled or len(shapes) > 1)
    # A number beside a few rows is what they have together, as an energy of atoms.
    longest = max(shape[0] for name in rows for shape in some[name])
    beside = [each for name, each in shapes.items() if name not in rows]
    is_few = longest < LONG_COUNT and any({*each} in ({()}, {(1,)}) for each in beside)
    return sum(len(set(counts)) > 1 for counts in differing) > 1 or is_one or is_few


def datasets_are_samples(names: Collection[str], shapes: Sequence[Shape], *, is_image: bool = False) -> bool:
    """Tell whether datasets of one type, in one group, are a sample each by their names and shapes."""
    is_numbered, lengths = numbered(names), {shape[0] if shape else 0 for shape in shapes}
    # Equally long datasets of single numbers are columns, until there are more of them than rows.
    if len(lengths) == 1 and all(len(one) == 1 for one in shapes) and not is_image and len(names) <= max(lengths):
        return False
    are_pictures = is_numbered and len(shapes[0]) == 4 and len({shape[1:] for shape in shapes}) > 1
    are_items = len(shapes[0]) > 1 and all(map(ITEM.search, names))
    if are_pictures or are_items or all(map(PART.search, names)):
        return len(names) >= LEAST_GROUPS
    # And those of most equal lengths and of unlike widths are fields.
    lengths_of = Counter(shape[:1] for shape in shapes)
    (usual, count), *_ = lengths_of.most_common(1)
    widths = {shape[1:] for shape in shapes if shape[:1] == usual}
    if count >= MOST * len(shapes) and len(widths) > 1 and usual and usual[0] > count and not is_image:
        return False
    return len(names) >= (LEAST_ALIKE if is_numbered or is_image else 5 * LEAST_ALIKE)


def numbered(names: Iterable[str]) -> bool:
    """Tell whether nearly all names have a digit in them."""
    digits = [bool(re.search(r"\d", name)) for name in names]
    return sum(digits) >= MOST * max(1, len(digits))


def pattern_of(parent: str, *levels: tuple[Iterable[str], Iterable[str]]) -> str:
    """Return a pattern that these of a group's things match, and no others besides; empty if there is none.

    Of each level, names and all that there are.
    """
    found = parent
    for names, siblings in levels:
        wanted, every = set(names), set(siblings)
        pairs = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(min(wanted), max(wanted), strict=False))
        start = re.sub(r"\d+$", "", "".join(one for one, _ in pairs))
        if every == wanted and (len(start) == 1 or re.search(r"\d", start) or found.split("/")[-1] == "*"):
            start = ""  # what these few share is no name
        found += f"/{start}*" if found else f"{start}*"
        fits = {name for name in every if name.startswith(start)} == wanted
        if not fits or re.search(r"[*?[]", f"{parent}{start}"):
            return ""
    return found
