"""Mutated copies of small files, as hypothesis draws and shrinks them: which bytes, and what becomes of them.

What a failure prints can be pasted: ``Mutant(seed='zstd', changes=(Flip(offset=2054, bit=3),))``.
"""

from dataclasses import dataclass

import numpy as np
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from support.seeds import Seed

HEAD_NBYTES = 48
"""The first bytes of a chunk, where codecs keep their lengths."""

SIZES = (0, 1, 0x7FFFFFFF, 0xFFFFFFFF, 0x10000000, 0x00FFFFFF)
"""Lengths and counts that are huge, negative or off, as a word of four bytes; also twice in eight."""


@dataclass(frozen=True)
class Flip:
    """One bit the other way."""

    offset: int
    bit: int

    def apply(self, data: bytearray) -> None:
        data[self.offset] ^= 1 << self.bit


@dataclass(frozen=True)
class Put:
    """Other bytes in place of those that are there."""

    offset: int
    new: bytes

    def apply(self, data: bytearray) -> None:
        data[self.offset : self.offset + len(self.new)] = self.new[: len(data) - self.offset]


@dataclass(frozen=True)
class Cut:
    """Nothing from here on."""

    size: int

    def apply(self, data: bytearray) -> None:
        del data[self.size :]


Change = Flip | Put | Cut


@dataclass(frozen=True)
class Mutant:
    """A seed file, by its name, and what is changed in it."""

    seed: str
    changes: tuple[Change, ...]

    def of(self, original: bytes) -> bytes:
        data = bytearray(original)
        for change in self.changes:
            change.apply(data)
        return bytes(data)


def changes_at(offset: int) -> st.SearchStrategy[Change]:
    """Give changes at a byte: a bit, a byte, or a length of four or eight bytes in either order."""
    words = [size.to_bytes(4, "little") for size in SIZES]
    numbers = [*words, *(word[::-1] for word in words), *(word + word for word in words)]
    numbers += [word + bytes(4) for word in words] + [bytes(4) + word[::-1] for word in words]
    byte = st.sampled_from([b"\0", b"\1", b"\x7f", b"\x80", b"\xff"]) | st.binary(min_size=1, max_size=1)
    flip = st.builds(Flip, offset=st.just(offset), bit=st.integers(0, 7))
    return flip | st.builds(Put, offset=st.just(offset), new=byte | st.sampled_from(numbers))


def _few(seed: Seed, offsets: st.SearchStrategy[int]) -> st.SearchStrategy[Mutant]:
    """Give mutants of mostly one change, sometimes of two or three."""
    one = offsets.flatmap(changes_at)
    changes = st.tuples(one) | st.tuples(one) | st.tuples(one, one) | st.tuples(one, one, one)
    return st.builds(Mutant, seed=st.just(seed.name), changes=changes)


def in_chunks(seed: Seed) -> st.SearchStrategy[Mutant]:
    """Give mutants of the field's chunks: in their first bytes, or anywhere."""
    chunk = st.sampled_from(seed.field_chunks)
    heads = chunk.flatmap(lambda c: st.integers(c[0], min(c[0] + HEAD_NBYTES, c[1]) - 1))
    return _few(seed, heads | chunk.flatmap(lambda c: st.integers(c[0], c[1] - 1)))


def in_structure(seed: Seed) -> st.SearchStrategy[Mutant]:
    """Give mutants of everything but chunks: the superblock, headers, indexes of chunks; zeros among them too."""
    parts = [part for part in seed.structures.values() if len(part)]
    return _few(seed, st.sampled_from(parts).flatmap(lambda part: st.sampled_from(part.tolist())))


def in_filter_parameters(seed: Seed) -> st.SearchStrategy[Mutant]:
    """Give mutants of the message that names the filters and their parameters."""
    return _few(seed, st.sampled_from(seed.filter_message.tolist()))


def cuts(seed: Seed) -> st.SearchStrategy[Mutant]:
    """Give truncations: where a structure begins or ends, or anywhere."""
    return (st.sampled_from(seed.edges) | st.integers(0, seed.size - 1)).map(
        lambda size: Mutant(seed.name, (Cut(size),))
    )


def fuzz(holds, mutants: st.SearchStrategy[Mutant], amount: int, *, fixed: bool) -> None:
    """Call `holds` with so many mutants, the same each time if they are fixed; shrink the first that does not."""

    @settings(
        max_examples=amount,
        derandomize=fixed,
        database=None,
        deadline=None,
        suppress_health_check=(),
        phases=(Phase.generate, Phase.shrink),
    )
    @given(mutant=mutants)
    def mutant_holds(mutant):
        holds(mutant)

    mutant_holds()


def all_cuts(seed: Seed) -> list[Mutant]:
    """Give every truncation at an edge of a structure."""
    return [Mutant(seed.name, (Cut(int(size)),)) for size in np.unique(seed.edges)]
