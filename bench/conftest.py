"""The files that the benchmarks stream: written once a session, kept in the page cache."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from bench import cases


@pytest.fixture(scope="session")
def bench_folder(tmp_path_factory):
    """A folder for the files; set H5STREAM_BENCH_FOLDER to keep them from run to run."""
    kept = os.environ.get("H5STREAM_BENCH_FOLDER")
    folder = Path(kept) if kept else tmp_path_factory.mktemp("bench")
    folder.mkdir(parents=True, exist_ok=True)
    yield folder
    if not kept:
        shutil.rmtree(folder)


@pytest.fixture(scope="session")
def bench_file(bench_folder):
    """Give the file of a kind, warm in the page cache."""

    def file_of(kind: str) -> str:
        path = bench_folder / f"{kind}.h5"
        if not path.exists():
            partial = path.with_suffix(".partial")
            cases.FILES[kind].write(partial)
            partial.rename(path)
        with path.open("rb") as stream:
            while stream.read(1 << 24):
                pass
        return str(path)

    return file_of
