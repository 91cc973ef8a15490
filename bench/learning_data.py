"""Data to learn from, and the file orders that make window shuffling hard or easy."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

CORPUS = Path(os.environ.get("H5STREAM_CORPUS", Path(__file__).resolve().parents[2] / "shared" / "corpus"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """Rows to train on and rows to test on.

    Attributes
    ----------
    x, y, session : ndarray
        Features (standardised), classes, and the session that each row was recorded in.
    test_x, test_y : ndarray
        A part of the rows, drawn at random: a fifth where there are few.
    batch_rows, epochs : int
        How it is trained.
    row_nbytes : int
        Bytes that a row is taken to have in its file, which an automatic window goes by.
    small_block, large_block : int
        Rows of a block where chunks are small (many blocks) and where they are large (few).
    """

    x: Any
    y: Any
    session: Any
    test_x: Any
    test_y: Any
    batch_rows: int
    epochs: int
    small_block: int
    large_block: int
    row_nbytes: int

    def sorted_by(self, order: str) -> tuple[Any, Any]:
        """Give the training rows as a file would hold them: by ``label``, by ``session``, or ``random``."""
        key = {"label": self.y, "session": self.session, "random": np.zeros(len(self.y))}[order]
        # Random among equals: what the source's order was must not matter.
        places = np.lexsort((np.random.default_rng(1).random(len(key)), key))
        return self.x[places], self.y[places]


def digits() -> Data:
    """8 x 8 images of handwritten digits (UCI, as scikit-learn ships them); sessions by how bright an image is."""
    from sklearn.datasets import load_digits

    found = load_digits()
    return _split(found.data, found.target, _sessions_by_main_axis(found.data), 32, 12, small_block=4, large_block=96)


def pbmc68k() -> Data:
    """Expression of 765 genes in 700 blood cells, ten cell types; sessions along the main axis of variation."""
    with h5py.File(CORPUS / "real" / "pbmc68k_reduced.h5ad", "r") as file:
        x, y = file["X"][:], file["obs"]["bulk_labels"][:]
    y = np.unique(y, return_inverse=True)[1]
    return _split(x, y, _sessions_by_main_axis(x), 32, 15, small_block=2, large_block=44)


def synthetic() -> Data:
    """65,536 rows of ten overlapping classes, in 32 sessions that each shift the features and have few classes.

    Large enough that an automatic window of 1,024 small blocks is an eighth of it.
    """
    rng = np.random.default_rng(7)
    rows, width, classes, sessions = 81_920, 24, 10, 32
    session = rng.integers(0, sessions, rows)
    mixes = rng.dirichlet(np.full(classes, 0.3), sessions)
    y = np.array([rng.choice(classes, p=mixes[s]) for s in session])
    centres = rng.normal(0, 1.0, (classes, width))
    bends = rng.normal(0, 1.0, (classes, width))
    x = centres[y] + rng.normal(0, 1.6, (rows, width)) + rng.normal(0, 0.5, (sessions, width))[session]
    x += np.abs(rng.normal(0, 1.0, (rows, 1))) * bends[y]  # a class is bent, so that an MLP has something to find
    return _split(x, y, session, 256, 2, small_block=8, large_block=1024)


def many_blocks() -> Data:
    """Over a million rows of twenty overlapping classes in 256 sessions: 8,192 or 32,768 blocks.

    1,024 blocks are a thirty-second or an eighth of it. Its rows are taken to have 1 KiB in their file, as if the model
    looked at a few of many features: an automatic window is then a quarter of it.
    """
    rng = np.random.default_rng(11)
    rows, width, classes, sessions = 1_081_344, 16, 20, 256
    session = rng.integers(0, sessions, rows)
    likely = rng.dirichlet(np.full(classes, 0.15), sessions).cumsum(axis=1)
    y = np.minimum((rng.random(rows)[:, None] > likely[session]).sum(axis=1), classes - 1)
    centres, bends = rng.normal(0, 1.0, (classes, width)), rng.normal(0, 1.0, (classes, width))
    x = centres[y] + rng.normal(0, 1.4, (rows, width)) + rng.normal(0, 0.6, (sessions, width))[session]
    x += np.abs(rng.normal(0, 1.0, (rows, 1))) * bends[y]
    return _split(x, y, session, 1024, 1, small_block=32, large_block=128, test_share=0.03, row_nbytes=1024)


SOURCES: dict[str, Callable[[], Data]] = {
    "digits": digits,
    "pbmc68k": pbmc68k,
    "synthetic": synthetic,
    "many blocks": many_blocks,
}


def _sessions_by_main_axis(x: Any) -> Any:
    centred = x - x.mean(axis=0)
    axis = np.linalg.svd(centred, full_matrices=False)[2][0]
    return np.argsort(np.argsort(centred @ axis)) * 16 // len(x)


def _split(
    x: Any,
    y: Any,
    session: Any,
    batch_rows: int,
    epochs: int,
    *,
    small_block: int,
    large_block: int,
    test_share: float = 0.2,
    row_nbytes: int | None = None,
) -> Data:
    test = np.random.default_rng(0).random(len(y)) < test_share
    mean, spread = x[~test].mean(axis=0), x[~test].std(axis=0)
    # A pixel that is never on in training must not become a million where it is on in a test.
    x = ((x - mean) / np.where(spread < 0.05 * spread.mean(), spread.mean(), spread)).astype(np.float32)
    y = y.astype(np.int64)
    return Data(
        x=x[~test], y=y[~test], session=session[~test], test_x=x[test], test_y=y[test],
        batch_rows=batch_rows, epochs=epochs, small_block=small_block, large_block=large_block,
        row_nbytes=x[0].nbytes if row_nbytes is None else row_nbytes,
    )  # fmt: skip
