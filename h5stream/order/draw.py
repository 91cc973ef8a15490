"""What ``draw=`` of a loader takes: which samples an epoch takes, how often, and how batches of them are cut."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from h5stream.errors import OptionError
from h5stream.units import checked_number


@dataclass(frozen=True, slots=True, eq=False)
class Weighted:
    """Epochs whose samples are drawn at random, each with a probability in proportion to its weight.

    Parameters
    ----------
    weights : array-like or str, optional
        The weight of each sample, 0 or more, in any unit: an array, or the name of a field. With None, the default, all
        weights are the same.
    count : int, optional
        Samples of an epoch, of all ranks together. By default as many as there are.
    replacement : bool
        Whether an epoch may have a sample more than once. False draws from the samples that are left, and with
        `weights` needs `count`.

    Raises
    ------
    OptionError
        If an argument breaks a rule.

    Examples
    --------
    >>> import h5py, tempfile, os, numpy as np
    >>> from h5stream import H5StreamLoader, Weighted
    >>> path = os.path.join(tempfile.mkdtemp(), "a.h5")
    >>> with h5py.File(path, "w") as f:
    ...     f["x"], f["w"] = np.arange(4), [0.0, 1.0, 0.0, 3.0]
    >>> [sorted(x.tolist()) for x in H5StreamLoader(path, 8, fields="x", seed=0, draw=Weighted("w", count=8))]
    [[1, 1, 1, 1, 3, 3, 3, 3]]
    """

    weights: Any = None
    count: int | None = None
    replacement: bool = True

    def __post_init__(self) -> None:
        _check_drawn(self)


@dataclass(frozen=True, slots=True, eq=False)
class Balanced:
    """Epochs with the same number of samples of each class; in a class, counts of samples differ by at most one.

    Parameters
    ----------
    by : str or array-like
        The classes: the name of a field of few values, numbers or texts, or an array with one value per sample.
    shares : mapping, optional
        The share of each class in an epoch, relative to the sum of shares; 0 leaves its samples out. Keys are the
        values of `by`, or the names of AnnData's categories. By default all shares are the same.
    count : int, optional
        Samples of an epoch, of all ranks together. By default as many as there are.
    replacement : bool
        Whether an epoch may have a sample more than once. With False and no `count`, each class comes as often as the
        rarest class has samples.

    Raises
    ------
    OptionError
        If an argument breaks a rule.

    Examples
    --------
    >>> import h5py, tempfile, os, numpy as np
    >>> from h5stream import Balanced, H5StreamLoader
    >>> path = os.path.join(tempfile.mkdtemp(), "a.h5")
    >>> with h5py.File(path, "w") as f:
    ...     f["x"], f["y"] = np.arange(6), [0, 0, 0, 0, 0, 1]
    >>> [sorted(y.tolist()) for y in H5StreamLoader(path, 6, fields="y", draw=Balanced("y"))]
    [[0, 0, 0, 1, 1, 1]]
    >>> [sorted(y.tolist()) for y in H5StreamLoader(path, 6, fields="y", draw=Balanced("y", shares={0: 2, 1: 1}))]
    [[0, 0, 0, 0, 1, 1]]
    """

    by: Any
    shares: Any = None
    count: int | None = None
    replacement: bool = True

    def __post_init__(self) -> None:
        _check_drawn(self)


@dataclass(frozen=True, slots=True, eq=False)
class Sized:
    """Batches with a limited number of rows of a ragged field, such as tokens, instead of a number of samples.

    Each sample still comes once per epoch, or as often as `draw` says. The number of batches differs between epochs.

    Parameters
    ----------
    rows : int, optional
        The most rows of a batch: it takes as many samples as fit, but no more than `batch_size` of the loader. If the
        field is padded, each sample counts as long as the longest of its batch. None sets no limit.
    field : str, optional
        The ragged field; by default the one with the most rows.
    bucket : bool
        Whether to make batches of samples of similar lengths, so that little is padded; needs ``shuffle=True``.
    draw : Weighted, Balanced or int, optional
        Which samples an epoch takes, as for `draw` of the loader. By default each once.

    Raises
    ------
    OptionError
        If an argument breaks a rule.

    Examples
    --------
    >>> import h5py, tempfile, os, numpy as np
    >>> from h5stream import Bounds, Field, H5StreamLoader, Sized
    >>> path = os.path.join(tempfile.mkdtemp(), "a.h5")
    >>> with h5py.File(path, "w") as f:
    ...     f["token"], f["bounds"] = np.arange(9), [0, 3, 4, 6, 9]
    >>> field = Field("token", lookup=Bounds("bounds"), ragged="list")
    >>> [[len(tokens) for tokens in batch] for batch in H5StreamLoader(path, fields=field, draw=Sized(5))]
    [[3, 1], [2, 3]]
    """

    rows: int | None = None
    field: str | None = None
    bucket: bool = False
    draw: Weighted | Balanced | int | None = None

    def __post_init__(self) -> None:
        if self.rows is not None:
            object.__setattr__(self, "rows", checked_number("Sized: rows=", self.rows, 1, "a positive number of rows"))
        if self.field is not None and (not isinstance(self.field, str) or not self.field):
            raise OptionError(f"Sized: field= takes the name of a ragged field, not {self.field!r}")
        if not isinstance(self.bucket, bool):
            raise OptionError(f"Sized: bucket= takes True or False, not {self.bucket!r}; field= names the field")
        if self.rows is None and not self.bucket:
            raise OptionError("Sized takes rows= (the most that a batch may have), bucket=True or both")
        object.__setattr__(self, "draw", checked_drawn(self.draw, "Sized: draw="))


def checked_drawn(
    draw: Any, what: str, kinds: str = "Weighted(...), Balanced(...)"
) -> Weighted | Balanced | int | None:
    """Return what says which samples an epoch takes, a count as a plain number; refuse all else."""
    if draw is None or isinstance(draw, Weighted | Balanced):
        return draw
    return checked_number(what, draw, 1, f"{kinds} or a positive number of samples")


def _check_drawn(draw: Weighted | Balanced) -> None:
    name = type(draw).__name__
    if draw.count is not None:
        object.__setattr__(
            draw, "count", checked_number(f"{name}: count=", draw.count, 1, "a positive number of samples")
        )
    if not isinstance(draw.replacement, bool):
        raise OptionError(f"{name}: replacement= takes True or False, not {draw.replacement!r}")
