"""Whether staging gains anything: files that memory holds already, and folders that are no faster."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from h5stream.filesystem import Mount, existing_parent, mount_of, rotates
from h5stream.units import text_of_bytes

# From here on nearly every read is served from memory; the rest comes in with the first epoch.
RESIDENT_SHARE = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What matters about where a file lies."""

    device: int
    """Number of the device, as ``st_dev``."""
    mount: Mount
    """The file system."""
    rotates: bool | None
    """Whether it lies on a rotating disk; None where that is not known."""


def place_of(path: Path) -> Place:
    """Give where a file or folder lies; for what does not exist yet, where it would."""
    found = existing_parent(path)
    device = found.stat().st_dev
    return Place(device=device, mount=mount_of(found), rotates=rotates(device))


def little_gain(name: str, size_bytes: int, resident: int | None, source: Place, target: Place) -> str:
    """Give why staging a file gains little, for people; an empty string where it may gain.

    Of the file the page cache holds `resident` bytes; None where that is not known.
    """
    if source.mount.in_memory:
        return f"staging {name} gains nothing: it lies in memory already ({source.mount.kind})"
    if source.device == target.device:
        return f"staging {name} gains little: the folder is on the same file system and no faster"
    if target.mount.on_network:
        return f"staging {name} may gain nothing: the folder is on the network ({target.mount.kind})"
    if target.rotates and source.rotates is False:
        return f"staging {name} may gain nothing: the folder is on a rotating disk"
    if resident is not None and size_bytes and resident >= RESIDENT_SHARE * size_bytes:
        return (
            f"staging {name} gains little as long as memory is plenty: {text_of_bytes(resident)} of its "
            f"{text_of_bytes(size_bytes)} are in the page cache already"
        )
    return ""
