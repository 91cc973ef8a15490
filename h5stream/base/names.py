"""Object names: their syntax as users write them, and compact arrays of many names.

A name that exists in the file is taken literally. Otherwise ``*``, ``?``, ``[...]``, ``:``, ``@`` and ``{}`` are
special, and a backslash escapes the next character. A million names take 30 MB as bytes, and 200 MB or more as str.
"""

from __future__ import annotations

import functools
import itertools
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, SupportsIndex, overload

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


# --- one name, as users write it --------------------------------------------------------------------------------------


class Within(str):
    """A name with a literal prefix, the path of a group or an object; the rest is as a user wrote it."""

    __slots__ = ("literal",)

    def __new__(cls, literal: str, written: str) -> Within:
        """Join a literal path and a written name."""
        name = super().__new__(cls, literal + written)
        name.literal = literal
        return name

    literal: str

    def __reduce__(self) -> tuple[type[Within], tuple[str, str]]:
        return Within, (self.literal, self[len(self.literal) :])


def parted(name: str) -> tuple[str, str]:
    """Return the literal prefix of a name, and the part that a user wrote."""
    literal = name.literal if isinstance(name, Within) else ""
    return literal, name[len(literal) :]


def unquoted(text: str) -> str:
    """Remove the backslashes that escape characters."""
    return re.sub(r"\\(.)", r"\1", text, flags=re.DOTALL)


def quoted(text: str, marks: str = "*?[") -> str:
    """Put a backslash before each of the characters `marks`, and before each backslash."""
    return re.sub(rf"[{re.escape(marks)}\\]", r"\\\g<0>", text)


def tokens_of(text: str, marks: str) -> list[str]:
    """Split a text into tokens: each mark that no backslash escapes, and the texts between."""
    return re.findall(rf"(?:{marks})|(?:\\.|(?!{marks}).)+", text, re.DOTALL)


class Reading(NamedTuple):
    """One meaning of a field's name: an object, or with a mark a member (``:``) or an attribute (``@``) of it."""

    path: str
    mark: str = ""
    rest: tuple[str, ...] = ()  # the texts between the colons of a member's name; the attribute's name
    is_quoted: bool = False  # whether backslashes were read as escapes


def readings(name: str) -> Iterator[Reading]:
    """Yield the possible readings of a field's name, the most literal first."""
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


def member_in(dtype: np.dtype, reading: Reading) -> tuple[str, ...] | None:
    """Return the member path that a reading names in a compound, whose names may have colons; None if missing."""

    def among(inner: np.dtype, texts: tuple[str, ...]) -> tuple[str, ...] | None:
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
    """Return a field's name for a member, escaped so that no other reading comes first."""
    *above, last = (quoted(text, ":@") for text in (path, *member))
    return ":".join((*above, last if last.startswith("\\") else f"\\{last}"))


class NameTemplate(NamedTuple):
    """A name with ``{}``: the literal text before and after it, and the member, as a user wrote it."""

    before: str
    behind: str
    rest: str

    def put(self, name: str) -> Within:
        """Return the name, with an object's name in place of the braces."""
        return Within(f"{self.before}{name}{self.behind}".strip("/"), self.rest)


def templates(name: str) -> Iterator[NameTemplate]:
    """Yield the templates that a name may mean: any ``{}`` may be the braces, any later colon the member's."""
    literal, written = parted(name)
    for is_quoted in (False, True) if "\\" in written else (False,):
        tokens = tokens_of(written, r"\{\}|:") if is_quoted else re.split(r"(\{\}|:)", written)
        for k in (k for k, token in enumerate(tokens) if token == "{}"):
            ends = [n for n in range(k + 1, len(tokens)) if tokens[n] == ":"]
            for end in (*ends, len(tokens)) if is_quoted else (len(tokens), *reversed(ends)):
                before, behind = "".join(tokens[:k]), "".join(tokens[k + 1 : end])
                if is_quoted:
                    before, behind = unquoted(before), unquoted(behind)
                yield NameTemplate(literal + before, behind, "".join(tokens[end:]))


def braces_in(name: str) -> int:
    """Return how many ``{}`` of a name are not escaped."""
    return tokens_of(parted(name)[1], r"\{\}").count("{}")


def as_pattern(written: str) -> str:
    """Return a pattern for `fnmatch` and `glob`, from one that escapes characters with backslashes."""
    return re.sub(r"\\(.)", lambda match: f"[{match[1]}]" if match[1] in "*?[" else match[1], written, flags=re.DOTALL)


# --- many names -------------------------------------------------------------------------------------------------------


class Names(Sequence[str]):
    """A sequence of object paths, stored as bytes; a str is made on access."""

    def __init__(
        self, text: NDArray[np.uint8], edges: Ints, addresses: Ints | None = None, *, order: Ints | None = None
    ) -> None:
        self.text, self.edges, self.addresses, self.order = text, edges, addresses, order

    @property
    def nbytes(self) -> int:
        """Bytes of its arrays."""
        return sum(array.nbytes for array in (self.text, self.edges, self.addresses, self.order) if array is not None)

    @classmethod
    def of(cls, paths: Iterable[str], addresses: Ints | None = None) -> Names:
        """Encode paths."""
        encoded = [path.encode("utf-8", "surrogateescape") for path in paths]
        text = np.frombuffer(bytearray(b"".join(encoded)), dtype=np.uint8)
        return cls(text, np.cumsum([0, *map(len, encoded)], dtype=np.int64), addresses)

    @classmethod
    def joined(cls, pieces: Iterable[Names]) -> Names:
        """Concatenate names; addresses are kept if all pieces have them."""
        parts = [*pieces] or [cls.of((), np.zeros(0, np.int64))]
        if len(parts) == 1:
            return parts[0]
        addresses = [piece.addresses for piece in parts if piece.addresses is not None]
        starts = np.cumsum([0, *(piece.edges[-1] for piece in parts)])
        edges = [piece.edges[:-1] + start for piece, start in zip(parts, starts, strict=False)]
        return cls(
            np.concatenate([piece.text for piece in parts]),
            np.concatenate([*edges, starts[-1:]]),
            np.concatenate(addresses) if len(addresses) == len(parts) else None,
        )

    def taken(self, order: Ints) -> Names:
        """Return the names in another order, over the same bytes."""
        return Names(self.text, self.edges, order=order)

    def only(self, which: Ints) -> Names:
        """Return a subset of the names, by ascending indices."""
        chosen, lengths = np.zeros(len(self), dtype=np.bool_), np.diff(self.edges)
        chosen[which] = True
        text, edges = self.text[np.repeat(chosen, lengths)], np.append(0, np.cumsum(lengths[which]))
        return Names(text, edges, None if self.addresses is None else self.addresses[which])

    def inside(self, above: str) -> Names:
        """Return the names with a path before each."""
        head = np.frombuffer(above.encode("utf-8", "surrogateescape"), dtype=np.uint8)
        edges = self.edges + len(head) * np.arange(len(self.edges))
        is_head, text = np.zeros(edges[-1], dtype=np.bool_), np.empty(edges[-1], dtype=np.uint8)
        for k in range(len(head)):
            is_head[edges[:-1] + k] = True
        text[is_head], text[~is_head] = np.tile(head, len(self)), self.text
        return Names(text, edges, self.addresses)

    def encoded(self) -> Iterator[bytes]:
        """Yield the names as bytes, in stored order."""
        text = self.text.tobytes()
        return (text[start:end] for start, end in itertools.pairwise(self.edges.tolist()))

    def __len__(self) -> int:
        return len(self.edges) - 1

    @overload
    def __getitem__(self, which: SupportsIndex) -> str: ...

    @overload
    def __getitem__(self, which: slice) -> Names: ...

    def __getitem__(self, which: SupportsIndex | slice) -> str | Names:
        if isinstance(which, slice):
            return Names.of(self[k] for k in range(*which.indices(len(self))))
        k = range(len(self))[which]
        k = k if self.order is None else int(self.order[k])
        return self.text[self.edges[k] : self.edges[k + 1]].tobytes().decode("utf-8", "surrogateescape")

    def __iter__(self) -> Iterator[str]:
        return (self[k] for k in range(len(self)))

    def __reduce__(self) -> tuple[functools.partial[Names], tuple[NDArray[np.uint8], Ints]]:
        return functools.partial(Names, order=self.order), (self.text, self.edges)


# --- addresses of objects in stores, in place of paths

SCHEMES = "(?:s3a?|gs|gcs|az|azure|abfss?|adl|https?|hf|memory)"
"""A regular expression of the schemes of addresses."""
_IS_ADDRESS = re.compile(rf"{SCHEMES}://", re.DOTALL).match


def is_address(path: str) -> bool:
    """Return whether a path is an address in a store, such as ``s3://bucket/a.h5``."""
    return _IS_ADDRESS(path) is not None


def restored(path: str | os.PathLike[str]) -> str:
    """Return the address that a `Path` was made of, which has lost a slash; other paths as text."""
    return re.sub(rf"^({SCHEMES}):/(?!/)", r"\1://", os.fspath(path))
