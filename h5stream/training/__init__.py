"""Advice about training, with any loader: batch size, GPU memory, learning rate, accumulation, precision.

`track` shows the progress of a training loop. All other functions return a `Suggestion` and change nothing. Most of
them compute; those in `measured` run measurements that the user starts on purpose. Advice about the loader is in
`h5stream.advice`.

This module has presets for GPUs: a table of four cards for small rows and models, and a rule for all others. Large
models have batches of tens of rows, because activations fill the card. Such observations are kept beside the presets,
each with its workload: batches of 96 and of 7168 on similar cards differ by the model and not by the card.
"""

from __future__ import annotations

import difflib
import importlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from h5stream.advice import Suggestion, above_zero, at_least
from h5stream.errors import OptionError

if TYPE_CHECKING:
    from h5stream.advice.track import track
    from h5stream.training.measured import ActivationMemory, BatchSearch, find_batch_size, measure_activations

__all__ = [
    "ActivationMemory",
    "BatchSearch",
    "GpuPreset",
    "find_batch_size",
    "measure_activations",
    "preset_for",
    "track",
]


if not TYPE_CHECKING:  # so that a type checker reports missing names

    def __getattr__(name: str) -> object:
        for home in ("training.measured", "advice.track") if name in __all__ else ():  # these need torch
            if hasattr(module := importlib.import_module(f"h5stream.{home}"), name):
                return getattr(module, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@dataclass(frozen=True, slots=True)
class Setting:
    """Arguments for the loader of a training script."""

    batch_size: int  # rows
    workers: int  # loader processes (`DataLoader`) or reader threads (h5stream)
    prefetch_factor: int  # batches ahead, for each worker

    def __str__(self) -> str:
        return f"batch_size={self.batch_size}, num_workers={self.workers}"


# Card -> the memory in GiB for which the setting is meant.
_DOCUMENTED = {
    "RTX 5090": (24.0, Setting(8192, 8, 16)),
    "RTX 5090 Laptop": (24.0, Setting(8192, 8, 16)),
    "RTX 4090": (24.0, Setting(7168, 8, 16)),
    "RTX 3090": (24.0, Setting(6144, 8, 12)),
    "RTX 4080": (16.0, Setting(5120, 6, 12)),
}
_UNDERUSED = {
    name: Setting(10240, 12, 16) for name in ("RTX 5090", "RTX 5090 Laptop")
}  # settings for cards that stay underused

# Settings for larger models, with the workload.
_OBSERVED = {
    "RTX 3090": "batch_size=12, num_workers=8: fine-tuning a 1B language model, bf16, checkpointing, 18-20 of 24 GiB",
    "RTX 3070": "batch_size=96, num_workers=2: text classifier, fp16, 8-bit AdamW, 7.7 of 8 GiB; validation batch 192",
    "RTX 4060": "batch_size=128, num_workers=12: image-text model, accumulation 2",
    "P100": "batch_size=8, num_workers=12: segmentation at 384 pixels, 15 of 16 GiB; 12 if the card is still underused",
}

# Rows per GiB of the RTX 3090's preset, the lowest of the four documented ones (4090: 299, 4080: 320,
# 5090: 341): it fits as a start, and can be raised by measurement.
_ROWS_PER_GIB = 6144 / 24
_ROUND_ROWS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuPreset(Suggestion):
    """A starting point for a GPU.

    Attributes
    ----------
    gpu, memory_gib : str, float
        The card's name, empty if only a memory was given, and the memory for which the setting is meant, in GiB.
    setting, underused : Setting
        The setting to start with, and the one to try if the GPU stays underused; None if the table has none.
    documented : bool
        True for a setting from the table of cards, False for one scaled from memory.
    observations : tuple of str
        Settings for larger models, each with its workload.
    """

    gpu: str
    memory_gib: float
    setting: Setting
    underused: Setting | None
    documented: bool
    observations: tuple[str, ...]


def preset_for(gpu: str | None = None, *, memory_gib: float | None = None, cpus: int | None = None) -> GpuPreset:
    """Look up a setting to start from on a GPU.

    Four cards have settings of their own. Every other one, the data-centre cards among them, gets the RTX
    3090's rows per GiB, which is the most careful of the four, for its own memory.

    Parameters
    ----------
    gpu : str, optional
        Its name, as written by the driver, a shop or a person.
    memory_gib : float, optional
        Its memory in GiB, if the name lacks it or there is no name. With a memory, an unknown name is no error.
    cpus : int, optional
        Processors that may be used; a caveat mentions too few for the setting.

    Returns
    -------
    GpuPreset
        Batch size and reader threads, with their derivation and caveats.

    Raises
    ------
    OptionError
        Neither name nor memory, or an unknown name; the message gives the nearest names.

    Examples
    --------
    >>> print(preset_for("NVIDIA GeForce RTX 4090").answer)
    batch_size=7168, num_workers=8
    >>> preset_for("A100", memory_gib=80).setting.batch_size
    20480
    """
    at_least(1, cpus=cpus)
    above_zero(memory_gib=memory_gib)
    if not gpu and memory_gib is None:
        raise OptionError("preset_for() needs the name of a GPU or its memory in GiB; neither was given")
    name = find_card(gpu, or_none=memory_gib is not None) if gpu else None
    memory, origin = memory_of(name, gpu or "", memory_gib)
    documented_gib, setting = _DOCUMENTED.get(name or "", (0.0, None))
    underused = _UNDERUSED.get(name or "") if memory == documented_gib else None
    if setting is not None and memory == documented_gib:
        per_gib = setting.batch_size / memory
        lines = [
            f"the table's row of the {name} with {memory:g} GiB: {setting}",
            *([f"if it stays underused: {underused}"] if underused else []),
            f"{setting.batch_size} rows / {memory:g} GiB = {per_gib:.0f} rows/GiB: {1024 / per_gib:.1f} MiB a row",
        ]
    else:
        # The RTX 3090's preset, scaled; below 24 GiB the loader's settings are the 16 GiB card's.
        fit = int(memory * _ROWS_PER_GIB)
        rows = max(fit // _ROUND_ROWS * _ROUND_ROWS, min(fit, _ROUND_ROWS), 1)
        setting, per_gib_text = Setting(rows, 8 if memory >= 24 else 6, 12), f"{_ROWS_PER_GIB:g} rows/GiB (4 MiB a row)"
        scaled = f"{memory:g} GiB x {per_gib_text} = {memory * _ROWS_PER_GIB:,.0f}, in steps of {_ROUND_ROWS}: {rows}"
        lines = [f"{memory:g} GiB: {origin}", scaled]
    observations = (_OBSERVED[name],) if name in _OBSERVED else ()
    caveats = [f"a larger model takes a smaller batch on this card: {seen}" for seen in observations]
    if name == "RTX 5090":
        caveats.append("this is for 24 GiB (the laptop card); the desktop card has 32 GiB")
    if cpus is not None and setting.workers > cpus:
        caveats.append(
            f"{setting.workers} reader threads want as many processors; this process may use {cpus}: take {cpus} here, "
            "as H5StreamLoader does by itself"
        )
    name = name or gpu or ""
    return GpuPreset(
        title=f"Where to start on {name or 'a GPU'} ({memory:g} GiB)",
        answer=str(setting),
        arithmetic=tuple(lines),
        caveats=(*caveats, "a start for small rows and a small model: find_batch_size() measures yours"),
        sources=("a place to start, no measurement: docs/gpu.md, How large a batch",),
        gpu=name,
        memory_gib=memory,
        setting=setting,
        underused=underused,
        documented=memory == documented_gib,
        observations=observations,
    )


def validation_batch(batch_size: int, *, rule: str = "half") -> Suggestion:
    """Return a validation batch: half the batch if host memory is the limit, twice the batch if GPU memory is."""
    sizes = {"half": max(1, batch_size // 2), "twice": batch_size * 2}
    half = f"{batch_size} / 2 = {sizes['half']}{', rounded down' * (batch_size % 2)}"
    origin = f"{rule} the training batch"
    if batch_size == 1:
        half = "1, since a batch has at least 1 row"
        origin = origin if rule == "twice" else "as the training batch, whose 1 row has no half"
    return Suggestion(
        title="Validation batch",
        answer=f"{sizes[rule]} ({origin})",
        arithmetic=(
            f"half:  {half}, where the second loader's slots in host memory are the limit",
            f"twice: {batch_size} x 2 = {sizes['twice']}, where GPU memory is: no gradients, no kept activations",
        ),
        caveats=("a mean of batch means weighs a smaller last batch too much: sum over rows, then divide",),
        sources=("PyTorch's documentation of torch.no_grad: nothing is kept for a backward pass",),
        figures={"training_batch_size": batch_size, **sizes, "rule": rule, "batch_size": sizes[rule]},
    )


# --- GPU names, as written by drivers, shops and people, matched to the cards of a table.


# Memories in GiB (the makers' "GB"), the usual one first, and the cards sold with them, from the makers' data sheets.
# The notes on the RTX 5090 are for 24 GB, which is the laptop card; the desktop card has 32, as its preset mentions.
_SOLD: dict[tuple[float, ...], str] = {
    (8,): "RTX 4070 Laptop, RTX 4060, RTX 3070, RTX 3070 Ti",
    (8, 16): "RTX 4060 Ti",
    (12, 8): "RTX 3060",
    (10, 12): "RTX 3080",
    (11,): "RTX 2080 Ti, GTX 1080 Ti",
    (12,): "RTX 5070, RTX 4080 Laptop, RTX 4070, RTX 4070 Ti, RTX 3080 Ti",
    (16, 12): "P100",
    (16,): (
        "RTX 5080, RTX 5070 Ti, RTX 4090 Laptop, RTX 4080, RTX 4080 SUPER, RTX 4070 Ti SUPER, RTX A4000, T4, A2, A16"
    ),
    (16, 32): "V100",
    (20,): "RTX 4000 Ada",
    (24,): "RTX 5090 Laptop, RTX 4090, RTX 3090, RTX 3090 Ti, RTX A5000, P40, A10, A10G, A30, L4",
    (24, 32): "RTX 5090",
    (32,): "RTX 5000 Ada",
    (40, 80): "A100",
    (48,): "RTX A6000, RTX 6000 Ada, A40, L40, L40S",
    (80, 94, 96): "H100",
    (96,): "RTX PRO 6000",
    (96, 144): "GH200",
    (141,): "H200",
    (180, 192): "B200",
    (192,): "B100",
    (288,): "B300",
}
CARDS = {name: memory for memory, names in _SOLD.items() for name in names.split(", ")}

# Words for the maker or the connector, which do not identify the model.
_NOISE = re.compile(
    r"\b(nvidia|geforce|tesla|quadro|gpu|graphics|card|generation|edition|workstation|server|founders"
    r"|pci-?e|pcie?|sxm\d?|hbm\d?e?|nvl|mig|gddr\dx?|max-?q|blackwell)\b"
)
_MEMORY = re.compile(r"(\d+(?:\.\d+)?)\s*gi?b\b")


def _key(name: str) -> str:
    """Reduce a name to the part that identifies a card: ``NVIDIA GeForce RTX 4090`` to ``rtx4090``."""
    text = _MEMORY.sub(" ", re.sub(r"[_/()-]+", " ", name.lower().replace("pci-e", "pcie")))
    return re.sub(r"[^a-z0-9]", "", _NOISE.sub(" ", text))


_BY_KEY = {_key(card): card for card in CARDS}
# Users often type "4090" alone; a number that two cards share would be ambiguous.
_BY_NUMBER = {key.lstrip("rgtx"): card for key, card in _BY_KEY.items() if key.startswith(("rtx", "gtx"))}


def find_card(name: str, *, or_none: bool = False) -> str | None:
    """Return the card with the letters and digits of a name; the error suggests similar names."""
    key = _key(name)
    card = _BY_KEY.get(key) or _BY_NUMBER.get(key)
    if card is None and not or_none:
        near = ", ".join(_BY_KEY[one] for one in difflib.get_close_matches(key, _BY_KEY, cutoff=0.3)) or "none"
        raise OptionError(
            f"no GPU is known as {name!r}; nearest: {near}. For another card give its memory instead "
            "(--gpu-memory, in GiB)"
        )
    return card


def memory_of(card: str | None, name: str, memory_gib: float | None = None) -> tuple[float, str]:
    """Return the memory of the card in GiB, and the origin of this value."""
    if memory_gib is not None or card is None:
        return float(memory_gib or 0), "as given"
    named, sold = _MEMORY.search(name.lower()), CARDS[card]
    if named and float(named[1]) in sold:
        return float(named[1]), "as its name says"
    if len(sold) == 1:
        return float(sold[0]), "by its data sheet"
    several = " or ".join(f"{size:g}" for size in sold)
    return float(sold[0]), f"the card is sold with {several} GiB; give --gpu-memory to choose"
