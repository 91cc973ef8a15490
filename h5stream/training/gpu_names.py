"""GPU names as drivers, shops and people write them -> one card of a table, or the nearest names."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass

from h5stream.advice.suggestion import above_zero
from h5stream.errors import OptionError


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One GPU model."""

    name: str
    """As the presets call it."""
    memory_gib: tuple[float, ...]
    """The memories it is sold with in GiB (the maker's "GB"), the usual one first."""


# Memories are the makers' data sheets'. The notes know the RTX 5090 with 24 GB, which is the laptop card;
# the desktop card has 32, and its preset says so.
_CARDS = (
    ("RTX 5090", 24, 32),
    ("RTX 5090 Laptop", 24),
    ("RTX 5080", 16),
    ("RTX 5070 Ti", 16),
    ("RTX 5070", 12),
    ("RTX 4090", 24),
    ("RTX 4090 Laptop", 16),
    ("RTX 4080", 16),
    ("RTX 4080 SUPER", 16),
    ("RTX 4080 Laptop", 12),
    ("RTX 4070", 12),
    ("RTX 4070 Ti", 12),
    ("RTX 4070 Ti SUPER", 16),
    ("RTX 4070 Laptop", 8),
    ("RTX 4060", 8),
    ("RTX 4060 Ti", 8, 16),
    ("RTX 3090", 24),
    ("RTX 3090 Ti", 24),
    ("RTX 3080", 10, 12),
    ("RTX 3080 Ti", 12),
    ("RTX 3070", 8),
    ("RTX 3070 Ti", 8),
    ("RTX 3060", 12, 8),
    ("RTX 2080 Ti", 11),
    ("GTX 1080 Ti", 11),
    ("RTX A4000", 16),
    ("RTX A5000", 24),
    ("RTX A6000", 48),
    ("RTX 4000 Ada", 20),
    ("RTX 5000 Ada", 32),
    ("RTX 6000 Ada", 48),
    ("RTX PRO 6000", 96),
    ("P100", 16, 12),
    ("P40", 24),
    ("V100", 16, 32),
    ("T4", 16),
    ("A2", 16),
    ("A10", 24),
    ("A10G", 24),
    ("A16", 16),
    ("A30", 24),
    ("A40", 48),
    ("A100", 40, 80),
    ("L4", 24),
    ("L40", 48),
    ("L40S", 48),
    ("H100", 80, 94, 96),
    ("H200", 141),
    ("GH200", 96, 144),
    ("B100", 192),
    ("B200", 180, 192),
    ("B300", 288),
)
CARDS = tuple(Card(name=str(name), memory_gib=tuple(map(float, memory))) for name, *memory in _CARDS)

# Words that say who made it or how it plugs in, and nothing about the model.
_NOISE = re.compile(
    r"\b(nvidia|geforce|tesla|quadro|gpu|graphics|card|generation|edition|workstation|server|founders"
    r"|pci-?e|pcie?|sxm\d?|hbm\d?e?|nvl|mig|gddr\dx?|max-?q|blackwell)\b"
)
_MEMORY = re.compile(r"(\d+(?:\.\d+)?)\s*gi?b\b")


def _key(name: str) -> str:
    """Reduce a name to what tells cards apart: ``NVIDIA GeForce RTX 4090`` to ``rtx4090``."""
    text = _MEMORY.sub(" ", re.sub(r"[_/()-]+", " ", name.lower().replace("pci-e", "pcie")))
    return re.sub(r"[^a-z0-9]", "", _NOISE.sub(" ", text))


_BY_KEY = {_key(card.name): card for card in CARDS}
# "4090" alone is what people type; a bare number that two cards share would not be in here.
_BY_NUMBER = {key.lstrip("rgtx"): card for key, card in _BY_KEY.items() if key.startswith(("rtx", "gtx"))}


def nearest_names(name: str, count: int = 3) -> tuple[str, ...]:
    """Return the known names that look most like the one asked for, best first.

    Examples
    --------
    >>> nearest_names("RTX 4O90", count=1)
    ('RTX 4090',)
    """
    keys = difflib.get_close_matches(_key(name), _BY_KEY, n=count, cutoff=0.3)
    return tuple(_BY_KEY[key].name for key in keys)


def find_card(name: str) -> Card:
    """Return the card that a name means, whether a driver, a shop or a person wrote it.

    Makers' words, form factors, case, spaces and memory sizes do not matter; the model's letters and
    digits do, since a guess between ``4080`` and ``4090`` is worse than a question. The error gives the nearest names.

    Examples
    --------
    >>> find_card("NVIDIA GeForce RTX 4090").name
    'RTX 4090'
    >>> find_card("NVIDIA A100-SXM4-80GB").name
    'A100'
    >>> find_card("RTX 490")
    Traceback (most recent call last):
        ...
    h5stream.errors.OptionError: no GPU is known as 'RTX 490'; nearest: RTX 4090, ...
    """
    key = _key(name)
    card = _BY_KEY.get(key) or _BY_NUMBER.get(key)
    if card is None:
        near = ", ".join(nearest_names(name)) or "none"
        raise OptionError(
            f"no GPU is known as {name!r}; nearest: {near}. For another card give its memory instead "
            "(--gpu-memory, in GiB)"
        )
    return card


def memory_of(card: Card, name: str, memory_gib: float | None = None) -> tuple[float, str]:
    """Return the memory of the card that a name means, in GiB, and a phrase that says how that is known.

    A size given by hand counts first, then one in the name if the card is sold with it (the 480 in
    ``GH200 480GB`` is the processor's memory, not the GPU's), then the usual one.

    Examples
    --------
    >>> memory_of(find_card("A100"), "NVIDIA A100 80GB PCIe")
    (80.0, 'as its name says')
    >>> memory_of(find_card("GH200"), "NVIDIA GH200 480GB")[0]
    96.0
    """
    above_zero(memory_gib=memory_gib)
    if memory_gib is not None:
        return float(memory_gib), "as given"
    named = _MEMORY.search(name.lower())
    if named and float(named[1]) in card.memory_gib:
        return float(named[1]), "as its name says"
    if len(card.memory_gib) == 1:
        return card.memory_gib[0], "by its data sheet"
    sold = " or ".join(f"{size:g}" for size in card.memory_gib)
    return card.memory_gib[0], f"the card is sold with {sold} GiB; give --gpu-memory to choose"
