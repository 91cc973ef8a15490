"""Rewriting of files so that they stream well. The `Recipe` is validated once, and stored as a line in manifests."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TypedDict, Unpack

from h5stream.base.texts import names_in
from h5stream.errors import OptionError

_COMPRESSIONS = ("none", "lz4", "zstd", "gzip")
_LEAST_CHUNK, _MOST_CHUNK = 4096, 1 << 30


class _RecipeOptions(TypedDict, total=False):
    chunk_nbytes: int
    compress: str
    contiguous: bool
    shuffle_rows: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The options of one `repack`."""

    fields: tuple[str, ...] | None = None  # datasets to rewrite; None for all that can be rewritten
    chunk_nbytes: int = 1024 * 1024  # decoded bytes of a chunk
    compress: str = "none"  # a byte shuffle comes first for numbers of 2, 4 or 8 bytes
    contiguous: bool = False  # whether to store without chunks
    shuffle_rows: int | None = None  # seed of the offline shuffle

    def __post_init__(self) -> None:
        if self.compress not in _COMPRESSIONS:
            raise OptionError(f"compress= takes one of {', '.join(_COMPRESSIONS)}, not {self.compress!r}")
        if self.contiguous and self.compress != "none":
            raise OptionError(
                f"contiguous=True cannot be compressed: HDF5 compresses chunks. Leave out compress={self.compress!r} "
                "or contiguous="
            )
        if type(self.chunk_nbytes) is not int or not _LEAST_CHUNK <= self.chunk_nbytes <= _MOST_CHUNK:
            raise OptionError(f"chunk_nbytes= takes 4 KiB to 1 GiB in bytes, not {self.chunk_nbytes!r}")
        if self.shuffle_rows is not None and (type(self.shuffle_rows) is not int or self.shuffle_rows < 0):
            raise OptionError(f"shuffle_rows= takes a non-negative seed, not {self.shuffle_rows!r}")
        if self.fields is not None and not self.fields:
            raise OptionError("fields= is empty; name datasets to rewrite, or leave it out for all")

    @classmethod
    def of(cls, *, fields: str | Sequence[str] | None = None, **options: Unpack[_RecipeOptions]) -> Recipe:
        """Return a recipe for one field or several."""
        return cls(
            fields=(fields,)
            if isinstance(fields, str)
            else None
            if fields is None
            else names_in("repack: fields=", fields),
            **options,
        )

    def to_text(self) -> str:
        """Return a line that is equal for equal recipes."""
        return json.dumps(asdict(self), sort_keys=True)
