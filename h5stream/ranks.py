"""Which part of each epoch is ours, as it was given or as `torch.distributed` knows it, and which seed ranks share."""

from __future__ import annotations

import torch
import torch.distributed

from h5stream.errors import OptionError
from h5stream.order.users import Ranks
from h5stream.units import checked_number


class DrawnSeed(int):
    """A seed of chance: a state's goes before it, and several ranks, each of which would draw its own, take 0."""


def drawn_seed(generator: torch.Generator | None = None) -> DrawnSeed:
    """Return a seed from a generator, by default torch's own, as `DataLoader` draws one."""
    return DrawnSeed(torch.empty((), dtype=torch.int64, device="cpu").random_(generator=generator).item())


def current_ranks() -> Ranks:
    """Return the rank in the default process group; one rank alone where there is none.

    The environment that `torchrun` sets is not read: a group that was never made cannot train together.
    """
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return Ranks()
    return Ranks(rank=torch.distributed.get_rank(), world_size=torch.distributed.get_world_size())


def checked_ranks(rank: int | None, world_size: int | None, *, listed: bool) -> Ranks | None:
    """Give rank and world size as they were given; None leaves them to `torch.distributed`.

    `listed` tells that a sampler decides the order, which nothing here cuts.
    """
    rank = None if rank is None else checked_number("rank=", rank, 0, "an integer of at least 0")
    if world_size is not None:
        world_size = checked_number("world_size=", world_size, 1, "an integer of at least 1")
    if listed and (world_size or 1) > 1:
        raise OptionError(
            f"a sampler decides each rank's rows: world_size={world_size} must be left out; shard in the sampler"
        )
    if rank is None or world_size is None:
        if rank is None and world_size is None:
            return None
        raise OptionError(
            f"rank= and world_size= belong together, not rank={rank} with world_size={world_size}; give both or neither"
        )
    if rank >= world_size:
        raise OptionError(f"rank must be below world_size={world_size}, not {rank}")
    return Ranks(rank=rank, world_size=world_size)
