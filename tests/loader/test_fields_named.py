"""A loader without ``fields=`` says once how batches become lists, and one of the default size that it has but one."""

import numpy as np
import pytest
from support import forking
from support.making import write_datasets

SCRIPT = """
import sys
from h5stream import H5Dataset, H5StreamLoader

path = sys.argv[1]
for _ in range(2):
    for batch in {loader}:
        pass
"""
SAID = """without fields= a batch is a dict by name; to unpack it, as in `for x, y in loader`: fields=["x", "y"]\n"""
ONE = """an epoch is one batch, since it has no more samples than batch_size=8192, the default; a smaller one gives \
more batches
"""


@pytest.fixture
def path(tmp_path):
    return write_datasets(tmp_path / "a.h5", x=np.zeros((10, 2), "f4"), y=np.arange(10))


@pytest.mark.parametrize(
    ("loader", "said"),
    [
        ("H5StreamLoader(path)", SAID + ONE),
        ("H5StreamLoader([path], 5)", SAID),
        ("H5StreamLoader(path, fields='x')", ONE),
        ("H5StreamLoader(path, 5, fields=['x', 'y'])", ""),
        ("H5StreamLoader(H5Dataset(path), batch_sampler=[[1]])", ""),
        ("H5StreamLoader(H5Dataset(path), draw=9000)", ""),
        ("[H5StreamLoader(path)]", ""),
    ],
)
def test_it_is_said_once_at_the_first_batch(path, loader, said):
    done = forking.run(SCRIPT.format(loader=loader), path)
    assert (done.returncode, done.stderr) == (0, said)


def test_the_command_line_does_not_say_it_and_counts_threads_as_statistics_do(path):
    code = "from h5stream.cli.app import main; main()"
    done = forking.run(code, "diagnose", path, "--step-ms", "1", "--seconds", "0.1", "--threads", "2")
    assert done.returncode == 0, done.stderr
    assert "without fields=" not in done.stdout + done.stderr
    # As statistics count them: so few data need none of two.
    assert ": 1 thread, window" in " ".join(done.stdout.split())
