"""The program that reads files which may harm is started once for all who ask it."""

import pytest
from guarded import SECONDS, MutantReader


@pytest.fixture(scope="session")
def started_reader(tmp_path_factory):
    reader = MutantReader(tmp_path_factory.mktemp("mutants"))
    yield reader
    reader.close()


@pytest.fixture
def reader(started_reader):
    started_reader.seconds = SECONDS
    return started_reader
