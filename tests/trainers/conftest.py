"""The files that the tests of trainers stream."""

import pytest
from support.inner import stream_all
from support.recorded import write_files


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Files for training and validation."""
    stream_all(monkeypatch)
    return write_files(tmp_path)
