"""Settings of a loader in a TOML file: `h5stream tune` writes it, `H5StreamLoader.from_profile` reads it.

::

    [data]
    dataset = "/data/train.h5"
    fields = ["x", "y"]

    [loader]
    shuffle = true
    batch_size = 8192
    num_workers = 8
    window = 1048576
    memory_budget = 2147483648

    [measured]
    rows_per_s = 2280000.0
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from h5stream.errors import OptionError

LOADER_KEYS = ("shuffle", "batch_size", "num_workers", "window", "memory_budget", "prefetch_factor")
"""What a profile may set: the tuned arguments, and ``shuffle``. Seed and ranks belong to the training."""

_TYPES: dict[str, tuple[type, ...]] = {"shuffle": (bool,), "window": (int, str)}
_TYPE_NAMES: dict[tuple[type, ...], str] = {(str,): "text", (bool,): "true or false"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Tuned settings."""

    dataset: str  # the file that was tuned for, absolute
    fields: str | tuple[str, ...] | None  # of a sample; None for the default ones
    loader: Mapping[str, bool | int | str]  # arguments of `H5StreamLoader`, of `LOADER_KEYS`
    measured: Mapping[str, int | float | str] = field(default_factory=dict)  # with these settings, for information

    def __post_init__(self) -> None:
        for key, value in self.loader.items():
            if key not in LOADER_KEYS:
                raise OptionError(f"[loader] has {', '.join(LOADER_KEYS)}; not {key!r}")
            kinds = _TYPES.get(key, (int,))
            if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
                raise OptionError(f"[loader] {key} must be {_TYPE_NAMES.get(kinds, 'a number')}, not {value!r}")


def write_profile(profile: Profile, path: str | Path) -> None:
    """Write a profile as TOML, replacing an existing file."""
    data = {"dataset": profile.dataset} | ({} if profile.fields is None else {"fields": profile.fields})
    lines = ["# Written by `h5stream tune`; H5StreamLoader.from_profile(path) reads it."]
    for name, table in (("data", data), ("loader", profile.loader), ("measured", profile.measured)):
        values = [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in table.items()]
        lines += ["", f"[{name}]", *values] if values else ()
    # Strings, lists and numbers of JSON are valid TOML, except for DEL, which TOML wants escaped.
    Path(path).write_text("\n".join(lines).replace("\x7f", "\\u007f") + "\n", encoding="utf-8")


def read_profile(path: str | Path) -> Profile:
    """Read a profile; a missing file, a file that is not TOML, or an unknown setting is an `OptionError`."""
    try:
        tables = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise OptionError(f"profile {str(path)!r}: {error.strerror}; `h5stream tune FILE --out` writes one") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise OptionError(f"profile {str(path)!r} is not TOML: {error}") from None
    data, loader = tables.get("data", {}), tables.get("loader", {})
    if not isinstance(data, dict) or not isinstance(loader, dict):
        raise OptionError(f"profile {str(path)!r}: [data] and [loader] must be tables")
    fields = data.get("fields")
    try:
        return Profile(
            dataset=str(data.get("dataset", "")),
            fields=tuple(fields) if isinstance(fields, list) else fields,
            loader=loader,
            measured=tables.get("measured", {}),
        )
    except OptionError as error:
        raise OptionError(f"profile {str(path)!r}: {error}") from None


def arguments_from(path: str | Path, dataset: object, arguments: Mapping[str, object]) -> dict[str, Any]:
    """Return loader arguments: those of a profile and its dataset, replaced by those that are given."""
    profile = read_profile(path)
    if dataset is None and not profile.dataset:
        raise OptionError(f"profile {str(path)!r} names no dataset; pass one")
    chosen: dict[str, object] = {"dataset": profile.dataset if dataset is None else dataset}
    # A dataset object has its fields already, and refuses others.
    if profile.fields is not None and (dataset is None or isinstance(dataset, (str, Path))):
        chosen["fields"] = profile.fields if isinstance(profile.fields, str) else list(profile.fields)
    settings = {"shuffle": True} | dict(profile.loader)  # a profile is tuned on shuffled epochs
    if arguments.get("sampler") is not None or arguments.get("batch_sampler") is not None:
        del settings["shuffle"]
    if arguments.get("batch_sampler") is not None:
        settings.pop("batch_size", None)
    return chosen | settings | dict(arguments)
