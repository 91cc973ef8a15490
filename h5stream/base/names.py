"""Names: how a user writes the names of objects, and the names of many objects as bytes.

A name that is in the file is taken as it is. Otherwise ``*``, ``?``, ``[...]``, ``:``, ``@`` and ``{}`` mean something,
and a backslash takes the character after it as it is. A million names take 30 MB as bytes, and as texts 200 and more.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


# --- one name as a user writes it -------------------------------------------------------------------------------------


class Within(str):
    """A name as a user writes it, behind the path of a group or an object, which is taken as it is."""

    __slots__ = ("literal",)

    def __new__(cls, literal: str, written: str) -> Within:
        """Put a name behind a path."""
        name = super().__new__(cls, literal + written)
        name.literal = literal
        return name

    literal: str

    def __reduce__(self) -> tuple[type[Within], tuple[str, str]]:
        return Within, (self.literal, self[len(self.literal) :])


def parted(name: str) -> tuple[str, str]:
    """Return the part of a name that is taken as it is, and the part that a user wrote."""
    literal = name.literal if isinstance(name, Within) else ""
    return literal, name[len(literal) :]


def unquoted(text: str) -> str:
    """Return a text in which backslashes take the characters after them as they are."""
    return re.sub(r"\\(.)", r"\1", text, flags=re.DOTALL)


def quoted(text: str, marks: str = "*?[") -> str:
    """Return a text with a backslash before each of some characters, and before each backslash."""
    return re.sub(rf"[{re.escape(marks)}\\]", r"\\\g<0>", text)


def tokens_of(text: str, marks: str) -> list[str]:
    """Split a text at some marks, which are tokens themselves unless a backslash is before them."""
    return re.findall(rf"(?:{marks})|(?:\\.|(?!{marks}).)+", text, re.DOTALL)


class Reading(NamedTuple):
    """One meaning of a field's name: an object, or with a mark a member (``:``) or an attribute (``@``) of it."""

    path: str
    mark: str = ""
    rest: tuple[str, ...] = ()  # the texts between the colons of a member's name; the attribute's name
    is_quoted: bool = False  # whether backslashes were taken for quotes


def readings(name: str) -> Iterator[Reading]:
    """Yield what a field's name may mean, that which takes most of it as it is first."""
    literal, written = parted(name)
    yield Reading((literal + written).strip("/"))
    for is_quoted in (False, True) if "\\" in written else (False,):
        tokens = tokens_of(written, "[:@]") if is_quoted else re.split("([:@])", written)
        marks = [k for k, token in enumerate(tokens) if token in (":", "@")]
        for k in marks if is_quoted else reversed(marks):
            before, mark, texts = "".join(tokens[:k]), tokens[k], [""]
            for token in tokens[k + 1 :]:
                if token == mark == ":":
                    texts.append("")
                else:
                    texts[-1] += token
            if is_quoted:
                before, texts = unquoted(before), [unquoted(text) for text in texts]
            if any(texts):
                yield Reading((literal + before).strip("/"), mark, tuple(texts), is_quoted)
        if is_quoted:
            yield Reading((literal + unquoted(written)).strip("/"), is_quoted=True)


def member_in(dtype: np.dtype[Any], reading: Reading) -> tuple[str, ...] | None:
    """Return the member path that a name means in a compound, as its texts are or joined by colons; None for none."""

    def among(inner: np.dtype[Any], texts: tuple[str, ...]) -> tuple[str, ...] | None:
        cuts = range(1, len(texts) + 1)
        for cut in cuts if reading.is_quoted else reversed(cuts):
            one = ":".join(texts[:cut])
            if inner.fields is None or one not in inner.fields:
                continue
            below = among(inner.fields[one][0], texts[cut:]) if texts[cut:] else ()
            if below is not None:
                return one, *below
        return None

    return among(dtype, reading.rest)


def quoted_member(path: str, member: Sequence[str]) -> str:
    """Write a member as a field's name with a backslash before its last part, so that nothing else is read first."""
    *above, last = (quoted(text, ":@") for text in (path, *member))
    return ":".join((*above, last if last.startswith("\\") else f"\\{last}"))


class Template(NamedTuple):
    """A name with ``{}`` in it: what is before and behind that, and the member after, as a user writes it."""

    before: str
    behind: str
    rest: str

    def put(self, name: str) -> Within:
        """Return the name with an object's name in place of the braces."""
        return Within(f"{self.before}{name}{self.behind}".strip("/"), self.rest)


def templates(name: str) -> Iterator[Template]:
    """Yield what a name with ``{}`` in it may mean: each of these, and each colon after it that may begin a member."""
    literal, written = parted(name)
    for is_quoted in (False, True) if "\\" in written else (False,):
        tokens = tokens_of(written, r"\{\}|:") if is_quoted else re.split(r"(\{\}|:)", written)
        for k in (k for k, token in enumerate(tokens) if token == "{}"):
            ends = [n for n in range(k + 1, len(tokens)) if tokens[n] == ":"]
            for end in (*ends, len(tokens)) if is_quoted else (len(tokens), *reversed(ends)):
                before, behind = "".join(tokens[:k]), "".join(tokens[k + 1 : end])
                if is_quoted:
                    before, behind = unquoted(before), unquoted(behind)
                yield Template(literal + before, behind, "".join(tokens[end:]))


def braces_in(name: str) -> int:
    """Return how many ``{}`` of a name a user may have meant."""
    return tokens_of(parted(name)[1], r"\{\}").count("{}")


def as_pattern(written: str) -> str:
    """Return a pattern as `fnmatch` and `glob` take it, from one in which backslashes are quotes."""
    return re.sub(r"\\(.)", lambda one: f"[{one[1]}]" if one[1] in "*?[" else one[1], written, flags=re.DOTALL)


# --- many names -------------------------------------------------------------------------------------------------------


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
