"""All peers, and which of them are here."""

from __future__ import annotations

import importlib.metadata
import importlib.util

from bench.peers.in_memory import Memmap, Ram, TorchIndex
from bench.peers.on_converted import HuggingFace, Lance, LitData, Mosaic, WebDataset, ZarrWithZarrs
from bench.peers.on_hdf5 import H5pyBlocks, H5torch, Hidefix, Naive, Ours, Pyfive, ScDataset, Tuned
from bench.peers.protocol import Peer

PEERS: tuple[Peer, ...] = (
    Ours(),
    Ours(keep="never"),
    Ours("all", keep="never"),
    Naive(0),
    Naive(2),
    Naive(8),
    Tuned(),
    H5pyBlocks(),
    H5torch(),
    ScDataset(),
    Pyfive(),
    Hidefix(),
    ZarrWithZarrs(),
    Lance(),
    HuggingFace(),
    WebDataset(),
    LitData(),
    Mosaic(),
    Memmap(by_batch=False),
    Memmap(by_batch=True),
    Ram(by_batch=False),
    Ram(by_batch=True),
    TorchIndex(),
)

# Module -> what to install for it, where the name differs.
PACKAGES = {"streaming": "mosaicml-streaming", "scdataset": "scDataset", "lance": "pylance"}

# What stood in the way where a peer is absent; shown with the results.
REASONS = {
    "streaming": "its dependencies pin numpy<2.2 and transformers<5 and want torchvision; it runs installed with "
    "--no-deps beside transformers, catalogue, zstd, Brotli and python-snappy",
    "litdata": "it requires torchvision, which would bring another torch; it runs installed with --no-deps beside "
    "lightning-utilities",
}


def by_name(name: str) -> Peer:
    """Give the peer of that name."""
    return next(peer for peer in PEERS if peer.name == name)


def missing(peer: Peer) -> str:
    """Say why a peer cannot run here; empty if it can."""
    absent = [module for module in peer.needs if importlib.util.find_spec(module) is None]
    if not absent:
        return ""
    hints = [REASONS[module] for module in absent if module in REASONS]
    return "; ".join([f"{', '.join(PACKAGES.get(m, m) for m in absent)} is not installed", *hints])


def versions() -> dict[str, str]:
    """Give the versions of the peers' packages that are here."""
    found = {}
    for module in dict.fromkeys(module for peer in PEERS for module in peer.needs):
        package = PACKAGES.get(module, module)
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
