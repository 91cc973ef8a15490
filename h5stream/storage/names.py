"""Names of many objects, as bytes one behind the other: a million take 30 MB, and as texts of Python's 200 and more."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


class Names(Sequence[str]):
    """Paths of objects, in an order; a text is made when it is asked for."""

    def __init__(
        self, text: NDArray[np.uint8], edges: Ints, addresses: Ints | None = None, *, order: Ints | None = None
    ) -> None:
        self.text, self.edges, self.addresses, self.order = text, edges, addresses, order

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return sum(each.nbytes for each in (self.text, self.edges, self.addresses, self.order) if each is not None)

    @classmethod
    def of(cls, paths: Iterable[str], addresses: Ints | None = None) -> Names:
        """Make names of texts."""
        encoded = [path.encode("utf-8", "surrogateescape") for path in paths]
        text = np.frombuffer(bytearray(b"".join(encoded)), dtype=np.uint8)
        return cls(text, np.cumsum([0, *map(len, encoded)], dtype=np.int64), addresses)

    @classmethod
    def joined(cls, pieces: Iterable[Names]) -> Names:
        """Put names behind one another; addresses stay where all pieces have them."""
        every = [*pieces] or [cls.of((), np.zeros(0, np.int64))]
        if len(every) == 1:
            return every[0]
        known = [piece.addresses for piece in every if piece.addresses is not None]
        starts = np.cumsum([0, *(piece.edges[-1] for piece in every)])
        edges = [piece.edges[:-1] + start for piece, start in zip(every, starts, strict=False)]
        return cls(
            np.concatenate([piece.text for piece in every]),
            np.concatenate([*edges, starts[-1:]]),
            np.concatenate(known) if len(known) == len(every) else None,
        )

    def taken(self, order: Ints) -> Names:
        """Return the names in another order, over the same bytes."""
        return Names(self.text, self.edges, order=order)

    def only(self, which: Ints) -> Names:
        """Return some of the names, by ascending numbers."""
        chosen, lengths = np.zeros(len(self), dtype=np.bool_), np.diff(self.edges)
        chosen[which] = True
        text, edges = self.text[np.repeat(chosen, lengths)], np.append(0, np.cumsum(lengths[which]))
        return Names(text, edges, None if self.addresses is None else self.addresses[which])

    def inside(self, above: str) -> Names:
        """Return the same with a path before each."""
        head = np.frombuffer(above.encode("utf-8", "surrogateescape"), dtype=np.uint8)
        edges = self.edges + len(head) * np.arange(len(self.edges))
        is_head, text = np.zeros(edges[-1], dtype=np.bool_), np.empty(edges[-1], dtype=np.uint8)
        for k in range(len(head)):
            is_head[edges[:-1] + k] = True
        text[is_head], text[~is_head] = np.tile(head, len(self)), self.text
        return Names(text, edges, self.addresses)

    def encoded(self) -> Iterator[bytes]:
        """Yield the names as they lie there."""
        text = self.text.tobytes()
        return (text[start:end] for start, end in itertools.pairwise(self.edges.tolist()))

    def __len__(self) -> int:
        return len(self.edges) - 1

    def __getitem__(self, which: Any) -> Any:
        if isinstance(which, slice):
            return Names.of(self[k] for k in range(*which.indices(len(self))))
        k = range(len(self))[which]
        k = k if self.order is None else int(self.order[k])
        return self.text[self.edges[k] : self.edges[k + 1]].tobytes().decode("utf-8", "surrogateescape")

    def __iter__(self) -> Iterator[str]:
        return (self[k] for k in range(len(self)))

    def __reduce__(self) -> tuple[Any, ...]:
        return functools.partial(Names, order=self.order), (self.text, self.edges)
