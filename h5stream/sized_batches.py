"""How batches are cut by the lengths of samples, from what a user asks for: ``draw=Sized(...)``."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from h5stream.dataset import H5Dataset
from h5stream.errors import OptionError
from h5stream.order.blocks import Blocks
from h5stream.order.draw import Sized
from h5stream.order.line import BatchLimit
from h5stream.order.permutation import permutation
from h5stream.order.sized import cut_by_rows, most_samples
from h5stream.storage.layout import SampleLayout
from h5stream.storage.sparse import SparseEntry


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SizedBatches:
    """Batches that are cut by the rows of a ragged field."""

    field: int  # its number
    limit: BatchLimit  # what a batch may hold
    lengths: NDArray[np.int64]  # the rows of each sample that there is
    chosen: NDArray[np.int64] | None  # the samples that an epoch may take, if not all
    is_drawn: bool  # whether an epoch may take one several times

    def measured(self, blocks: Blocks) -> Blocks:
        """Give blocks with the lengths of their samples."""
        return replace(blocks, lengths=self.lengths if blocks.rows is None else self.lengths[blocks.rows])

    def samples(self, batch_size: int, *, is_drawn: bool) -> tuple[int, int]:
        """Return how many samples most batches have, about, and how many one may have."""
        lengths = self.lengths if self.chosen is None else self.lengths[self.chosen]
        in_turn = np.sort(lengths) if self.limit.bucketed else lengths[permutation(len(lengths))]
        usual = -(-len(lengths) // (len(cut_by_rows(in_turn, batch_size, self.limit)) - 1))
        return usual, batch_size if self.is_drawn or is_drawn else most_samples(lengths, batch_size, self.limit)

    @property
    def fingerprint(self) -> dict[str, int | str]:
        """What an order depends on, for a state."""
        digest = hashlib.blake2b(self.lengths.tobytes(), digest_size=8).hexdigest()
        limit = self.limit
        return {"batch_limit": f"{limit.rows}, padded={limit.padded}, bucket={limit.bucketed}", "lengths": digest}


def sized_batches(dataset: H5Dataset, asked: Sized | None) -> SizedBatches | None:
    """Read what a loader is asked for; None where it is nothing."""
    if asked is None:
        return None
    layout = dataset.layout
    field = _field(layout, asked.field)
    counts, ragged = layout.ragged[field].counts, layout.fields[field].ragged
    assert counts is not None
    padded = ragged is not None and ragged.form == "pad"
    sized = SizedBatches(
        field=field,
        limit=BatchLimit(rows=asked.rows, padded=padded, bucketed=asked.bucket),
        lengths=counts,
        chosen=dataset.chosen,
        is_drawn=layout.draws is not None,
    )
    if asked.rows is not None:
        _check_fits(sized, layout.fields[field].name, asked.rows)
    return sized


def _field(layout: SampleLayout, name: str | None) -> int:
    ragged = layout.ragged
    if not ragged:
        raise OptionError(
            "draw=Sized(...) goes by the rows that samples have of a ragged field, and there is none: "
            "Field(name, rows=Bounds(...)) makes one, or Lengths, or Between"
        )
    if name is None:
        # The first of those that have most.
        return max(ragged, key=lambda number: int(np.asarray(ragged[number].counts).sum()))
    entries = [entry.values if isinstance(entry, SparseEntry) else entry for entry in layout.entries]
    pairs = zip(layout.shape.keys, entries, strict=True)
    known = {key: entry for key, entry in pairs if isinstance(entry, int) and entry in ragged}
    number = known.get(name, layout.field_named(name))
    if number is None or number not in ragged:
        names = ", ".join(map(repr, known))
        raise OptionError(f"Sized: field= names {name!r}, which is no ragged field; those are {names}")
    return number


def _check_fits(sized: SizedBatches, name: str, rows: int) -> None:
    lengths = sized.lengths if sized.chosen is None else sized.lengths[sized.chosen]
    over = np.flatnonzero(lengths > rows)
    if len(over):
        longest = int(np.argmax(lengths))
        sample = longest if sized.chosen is None else int(sized.chosen[longest])
        raise OptionError(
            f"Sized: rows={rows:,}: sample {sample:,} alone has {lengths[longest]:,} rows of {name!r}, and "
            f"{len(over):,} of {len(lengths):,} samples have more than fit. Pass rows={lengths[longest]} or "
            "more, Field(..., max_length=) or crop= for a part of each, or leave the long ones out: "
            "H5Dataset(..., rows=)"
        )
