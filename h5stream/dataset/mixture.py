"""`Mixture`: several datasets with the same fields in stated shares, read as one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from h5stream.dataset.dataset import H5Dataset, joined, opened
from h5stream.errors import OptionError
from h5stream.order.weights import SourceShares
from h5stream.storage.layout.request import Fields
from h5stream.storage.open.extents import SampleKind


class Mixture(H5Dataset):
    """Several sources in stated shares, as one dataset for an `H5StreamLoader`.

    Each window of the shuffle has its share of each source, and so has each batch, up to chance. A source is read in
    passes, each with every sample once, and an epoch continues where the last one stopped.

    Parameters
    ----------
    sources : mapping of str to path, H5Dataset, Subset or H5StreamLoader
        The sources by name. Their samples must have the same structure, shapes and types. Of a loader, its dataset is
        used.
    weights : mapping of str to float, or sequence of float
        The share of each source in an epoch, relative to the sum of weights.
    stop : str
        When an epoch ends: ``"first"``, when the first source has given as many samples as it has, or ``"all"``, when
        each has; the other sources then continue with their next pass. ``draw=NUMBER`` of the loader takes precedence.
    fields, samples, allow_external : optional
        As for `H5Dataset`, for sources that are paths. `SourceNumber` as a field says which source a sample is from.

    Raises
    ------
    OptionError
        If weights are not such numbers, or samples differ in structure.
    FieldLengthError
        If a field differs in shape or type.

    Examples
    --------
    >>> import h5py, tempfile, os
    >>> from h5stream import H5StreamLoader, SourceNumber
    >>> folder = tempfile.mkdtemp()
    >>> for name, rows in (("real.h5", 30), ("simulated.h5", 100)):
    ...     with h5py.File(os.path.join(folder, name), "w") as f:
    ...         f["x"] = np.zeros((rows, 2))
    >>> mixture = Mixture(
    ...     {name: os.path.join(folder, f"{name}.h5") for name in ("real", "simulated")},
    ...     weights={"real": 0.75, "simulated": 0.25},
    ...     fields={"x": "x", "source": SourceNumber()},
    ... )
    >>> batches = list(H5StreamLoader(mixture, 20))
    >>> len(batches), sum(int((batch["source"] == 0).sum()) for batch in batches)
    (2, 30)
    """

    shares: SourceShares

    def __init__(
        self,
        sources: Mapping[str, object],
        weights: Mapping[str, float] | Sequence[float],
        *,
        stop: Literal["first", "all"] = "first",
        fields: Fields = None,
        samples: SampleKind | None = None,
        allow_external: bool = False,
    ) -> None:
        if not isinstance(sources, Mapping) or not sources:
            raise OptionError(
                f"Mixture takes its sources by names, such as {{'a': 'a.h5', 'b': 'b.h5'}}, not {sources!r}"
            )
        if stop not in ("first", "all"):
            raise OptionError(f"Mixture: stop= takes 'first' or 'all', not {stop!r}")
        names, shares = tuple(sources), _shares(tuple(sources), weights)
        datasets = [_opened(name, source, fields, samples, allow_external) for name, source in sources.items()]
        whole = joined(datasets)
        starts = tuple(np.cumsum([0] + [one.layout.samples for one in datasets[:-1]]).tolist())
        columns = tuple(
            (number, replace(column, starts=starts) if column.starts and not column.by_rows else column)
            for number, column in whole.layout.columns
        )
        shared = SourceShares(names=names, starts=starts, shares=shares, stop=stop)
        layout = replace(whole.layout, columns=columns)
        self._become(whole, layout=layout, shares=shared)

    def __repr__(self) -> str:
        shares = ", ".join(
            f"{name}: {share:.3g}" for name, share in zip(self.shares.names, self.shares.shares, strict=True)
        )
        return f"Mixture({shares}; {super().__repr__()})"


def _opened(name: str, source: Any, fields: Fields, samples: SampleKind | None, allow_external: bool) -> H5Dataset:
    """Return the dataset of a source."""
    dataset = getattr(source, "dataset", None)
    if isinstance(dataset, H5Dataset) and hasattr(source, "window_size"):
        if source.is_drawn and dataset.shares is None:
            raise OptionError(
                f"Mixture: source {name!r} is a loader whose draw= says what weights= do; give its dataset"
            )
        source = dataset
    opened_source = opened(source, None)
    if opened_source is None:
        opened_source = H5Dataset(source, fields, samples=samples, allow_external=allow_external)
    elif fields is not None or samples is not None:
        raise OptionError(f"Mixture: source {name!r} is a dataset, which says its own fields= and samples=")
    if opened_source.shares is not None:
        raise OptionError(f"Mixture: source {name!r} is a Mixture; name the sources of both in one, with shares of all")
    if opened_source.layout.draws is not None:
        raise OptionError(f"Mixture: source {name!r} has samples= with random starts, which draws its own samples")
    return opened_source


def _shares(names: tuple[str, ...], weights: Mapping[str, float] | Sequence[float]) -> tuple[float, ...]:
    """Validate the weights of sources and scale them to a sum of 1."""
    if isinstance(weights, Mapping):
        unmatched = sorted(set(names) ^ set(weights))
        if unmatched:
            raise OptionError(
                f"Mixture: weights= and sources have the same names; {unmatched[0]!r} is in one of them only"
            )
        weights = [weights[name] for name in names]
    try:
        is_complex = np.iscomplexobj(weights)  # whose imaginary parts NumPy would drop
        numbers: NDArray[np.float64] = np.zeros(0) if is_complex else np.asarray(weights, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        numbers = np.zeros(0)
    if numbers.shape != (len(names),) or not (np.isfinite(numbers) & (numbers >= 0)).all() or not numbers.any():
        raise OptionError(
            f"Mixture: weights= takes a number of 0 or more for each of {len(names)} sources, not all 0, such as "
            f"{{{names[0]!r}: 0.7, ...}}, not {weights!r:.80}"
        )
    with np.errstate(over="ignore"):
        is_finite = np.isfinite(numbers.sum())
    scaled = numbers if is_finite else numbers / numbers.max()
    shares = scaled / scaled.sum()
    lost = np.flatnonzero((numbers > 0) & (shares == 0))
    if len(lost):
        raise OptionError(
            f"Mixture: weights= gives {names[lost[0]]!r} {numbers[lost[0]]:.3g}, and {names[int(numbers.argmax())]!r} "
            f"{numbers.max():.3g}, beside which its share rounds to 0; pass 0 to leave it out, or a larger weight"
        )
    return tuple(shares.tolist())
