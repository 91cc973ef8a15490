"""How a slot's rows are laid into a window: as they are, or out of byte planes by a transpose. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from h5stream.engine.slots import PlanarRegions


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Consecutive rows of one field in a slot, which are laid out by one launch.

    Attributes
    ----------
    first_row, rows : int
        Which rows of the slot.
    chunks : int
        Regions of byte planes that the rows consist of, all of one size; 1 where they lie as they are.
    element_nbytes : int
        Bytes of an element whose planes lie there; 1 where rows lie as they are.
    """

    first_row: int
    rows: int
    chunks: int = 1
    element_nbytes: int = 1


def pieces_of(planar: PlanarRegions, field: int, rows: int) -> Iterator[Piece]:
    """Cut the rows of a slot into pieces: planar regions of one size that go on where the last ended are one.

    Parameters
    ----------
    planar : PlanarRegions
        What lies in byte planes.
    field, rows : int
        The field's number; rows of the slot.

    Examples
    --------
    >>> planar = {(0, 20): (10, 4), (0, 10): (10, 4), (1, 0): (5, 2)}
    >>> for piece in pieces_of(planar, 0, 35):
    ...     print(piece.first_row, piece.rows, piece.chunks, piece.element_nbytes)
    0 10 1 1
    10 20 2 4
    30 5 1 1
    """
    end = 0
    grown: Piece | None = None
    for first_row, (count, width) in sorted((at, what) for (number, at), what in planar.items() if number == field):
        alike = grown is not None and (grown.rows // grown.chunks, grown.element_nbytes) == (count, width)
        if grown is not None and alike and first_row == end:
            grown = Piece(
                first_row=grown.first_row, rows=grown.rows + count, chunks=grown.chunks + 1, element_nbytes=width
            )
        else:
            if grown is not None:
                yield grown
            if first_row > end:
                yield Piece(first_row=end, rows=first_row - end)
            grown = Piece(first_row=first_row, rows=count, element_nbytes=width)
        end = first_row + count
    if grown is not None:
        yield grown
    if end < rows:
        yield Piece(first_row=end, rows=rows - end)


def shaped(out: torch.Tensor, raw: torch.Tensor, piece: Piece) -> tuple[torch.Tensor, torch.Tensor]:
    """View a piece's bytes in the window and in the slot such that copying one to the other lays its rows out.

    Both are uint8 vectors of one length. All chunks of a piece are one batched transpose, which torch runs as
    one kernel.

    Examples
    --------
    >>> raw = torch.tensor([1, 2, 10, 20, 3, 4, 30, 40], dtype=torch.uint8)  # two chunks, two elements of two bytes
    >>> to, of = shaped(torch.zeros_like(raw), raw, Piece(first_row=0, rows=4, chunks=2, element_nbytes=2))
    >>> to.copy_(of).flatten().tolist()
    [1, 10, 2, 20, 3, 30, 4, 40]
    """
    if piece.element_nbytes == 1:
        return out, raw
    chunks, width = piece.chunks, piece.element_nbytes
    return out.view(chunks, -1, width), raw.view(chunks, width, -1).transpose(1, 2)
