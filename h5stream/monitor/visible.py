"""Which devices CUDA would show to a process, and in which order: pure, from names and environment alone.

NVML counts the cards in PCI order and knows nothing of ``CUDA_VISIBLE_DEVICES``; CUDA's device 0 is another
card as soon as that variable or the default order (fastest first) says so. Matching by index watches the
wrong card, so everything here ends in UUIDs.

Source: "CUDA Environment Variables" of the CUDA C++ programming guide; "Device Enumeration" of the MIG user
guide.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceName:
    """What NVML says of a card, or of a MIG instance, before anything is measured."""

    uuid: str  # ``GPU-...`` or ``MIG-...``
    name: str  # of the product
    parent_uuid: str | None = None  # the card of a MIG instance; None for a card
    gpu_instance_id: int | None = None  # NVML's numbers of a MIG instance
    compute_instance_id: int | None = None
    pci_bus_id: str | None = None  # as in ``/sys/bus/pci/devices``; a MIG instance has its card's


class Visible(NamedTuple):
    """The devices that a process sees."""

    uuids: tuple[str, ...]  # in CUDA's order
    note: str | None = None  # what is uncertain about the order, or why nothing is visible


_UNSURE = (
    "unlike GPUs and CUDA_DEVICE_ORDER is not PCI_BUS_ID: which card an index names is known only after "
    "CUDA has started in this process; shown in PCI order until then"
)


def visible_devices(
    devices: Sequence[DeviceName], environment: Mapping[str, str], cuda_uuids: Sequence[str] = ()
) -> Visible:
    """Return the devices that a process sees, in CUDA's order, of those in NVML's; CUDA's own word wins."""
    cards = [device for device in devices if device.parent_uuid is None]
    instances = {card.uuid: [one.uuid for one in devices if one.parent_uuid == card.uuid] for card in cards}
    # A card in MIG mode shows its first instance.
    shown = {one.uuid: (instances.get(one.uuid) or [one.uuid])[0] for one in devices}
    listed = environment.get("CUDA_VISIBLE_DEVICES")
    tokens = None if listed is None else [token.strip() for token in listed.split(",")]
    if cuda_uuids and not (tokens and tokens[0].startswith("MIG-")):
        bare = {_bare(uuid): first for uuid, first in shown.items()}
        if all(_bare(uuid) in bare for uuid in cuda_uuids):
            return Visible(tuple(bare[_bare(uuid)] for uuid in cuda_uuids))
    if tokens is None:
        uuids = tuple(uuid for card in cards for uuid in (instances[card.uuid] or [card.uuid]))
    else:
        uuids = _follow([_named(token, devices, cards, shown) for token in tokens])
        if not uuids:
            return Visible((), f"CUDA_VISIBLE_DEVICES={','.join(tokens)!r} shows none of the {len(cards)} GPUs")
    by_index = tokens is None or any(token.isdecimal() for token in tokens)
    unlike = len({card.name for card in cards}) > 1
    unsure = by_index and unlike and environment.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID"
    return Visible(uuids, _UNSURE if unsure else None)


def _bare(uuid: str) -> str:
    return uuid.removeprefix("GPU-").removeprefix("MIG-")


def _follow(named: Sequence[str | None]) -> tuple[str, ...]:
    """Read the list as CUDA does: up to the first entry that names nothing; twice the same makes it void."""
    found: list[str] = []
    for uuid in named:
        if uuid is None:
            break
        if uuid in found:
            return ()
        found.append(uuid)
        if uuid.startswith("MIG-"):
            break  # CUDA shows a process one MIG instance, whatever follows.
    return tuple(found)


def _named(
    token: str, devices: Sequence[DeviceName], cards: Sequence[DeviceName], shown: Mapping[str, str]
) -> str | None:
    """Return the device that an entry names: a beginning of a UUID, an index, or a name of drivers before 470."""
    if token.startswith("MIG-GPU-"):  # ``MIG-GPU-<uuid>/<GPU instance>/<compute instance>``
        names = {f"MIG-{one.parent_uuid}/{one.gpu_instance_id}/{one.compute_instance_id}": one for one in devices}
        return names[token].uuid if token in names else None
    if token.startswith(("GPU-", "MIG-")):
        found = [one for one in devices if one.uuid.lower().startswith(token.lower())]
    else:
        found = list(cards[int(token) :][:1]) if token.isdecimal() else []
    return shown[found[0].uuid] if len(found) == 1 else None
