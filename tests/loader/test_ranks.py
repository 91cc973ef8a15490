"""Many ranks: real processes with gloo and DistributedDataParallel, and where ranks come from."""

import contextlib
import functools
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from support.forking import OPTIMIZERS, Forked, python_path
from support.inner import in_group
from support.sample_files import write_sample
from torch.utils.data import SequentialSampler

from h5stream import ChunkBatchSampler, H5Dataset, H5StreamLoader

REPOSITORY = Path(__file__).resolve().parents[2]
EXAMPLE = REPOSITORY / "examples" / "ddp.py"
ROWS, CHUNK = 3001, 32


@pytest.fixture
def sample(tmp_path):
    # Labels are kept; 64 KiB chunks of x would be too, so rows are wide enough to be streamed.
    return write_sample(tmp_path, rows=ROWS, columns=1536, chunk_rows=CHUNK)  # too large to be kept


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


LOOPBACK = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "TORCH_CPP_LOG_LEVEL": "ERROR"}
LOOPBACK["CUDA_VISIBLE_DEVICES"] = ""  # there are more ranks than GPUs, and NCCL waits for ever for one without


def by_torchrun(processes, *arguments, nodes=1):
    """Start a `torchrun` for each node; they meet on 127.0.0.1."""
    rendezvous = ("--master-addr", "127.0.0.1", "--master-port", free_port())
    parts = ("--nnodes", nodes, "--nproc-per-node", processes // nodes)
    command = [sys.executable, "-m", "torch.distributed.run", *rendezvous, *parts]
    environment = {**os.environ, **LOOPBACK, "PYTHONPATH": python_path(REPOSITORY)}
    said = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    each = [[*map(str, (*command, "--node-rank", node, EXAMPLE, *arguments))] for node in range(nodes)]
    return [subprocess.Popen(one, env=environment, **said) for one in each]


by_two_nodes = functools.partial(by_torchrun, nodes=2)


RUN = """
import runpy, sys, torch
torch.set_num_threads(1)
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def by_forks(processes, *arguments):
    """Do what `torchrun` does on one node, but for importing torch in each process."""
    world = {**LOOPBACK, "WORLD_SIZE": str(processes), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    ranks = [{**world, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(processes)]
    return [Forked(RUN, *arguments, path=EXAMPLE, environment=rank, imports=OPTIMIZERS) for rank in ranks]


def finish(*jobs):
    with contextlib.ExitStack() as stack:
        for job in jobs:
            stack.callback(lambda j=job: (j.kill(), j.wait()))
        outputs = ["".join(filter(None, job.communicate(timeout=120))) for job in jobs]
        assert [job.returncode for job in jobs] == [0] * len(jobs), "\n".join(outputs)


def assert_parted(ranks, epoch):
    """Each row once in an epoch, as many batches on every rank, and the same weights."""
    assert {rank["world"] for rank in ranks} == {len(ranks)}
    batches = [[batch for e, batch in rank["batches"] if e == epoch] for rank in ranks]
    assert len({len(given) for given in batches}) == 1
    assert sorted(row for given in batches for batch in given for row in batch) == list(range(ROWS))
    assert all(rank["weights"] == ranks[0]["weights"] for rank in ranks)


@pytest.mark.parametrize(
    "start", [by_forks, *(pytest.param(start, marks=pytest.mark.slow) for start in (by_torchrun, by_two_nodes))]
)
def test_four_processes_part_each_epoch_and_two_go_on_where_they_were_stopped(sample, tmp_path, start):
    steps = -(-ROWS // 4 // 64) + 3  # into the second epoch
    ranks = {}
    for processes, limit in ((4, ["--steps", steps]), (2, ["--epochs", 3])):
        folder = tmp_path / str(processes)
        folder.mkdir()
        options = ["--record", folder, "--checkpoint", tmp_path / "checkpoint.pt", *limit]
        finish(*start(processes, sample.path, *options))
        ranks[processes] = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
        assert len(ranks[processes]) == processes
    assert_parted(ranks[4], 0)
    second = [rank["batches"] for rank in ranks[4] + ranks[2]]
    rows = [row for batches in second for epoch, batch in batches if epoch == 1 for row in batch]
    assert sorted(rows) == list(range(ROWS))
    assert_parted(ranks[2], 2)
    # Of the last epoch; the ranks' runs may meet inside a chunk, and some stayed decoded from the epoch before.
    assert 0 < sum(rank["chunks"] for rank in ranks[2]) <= -(-ROWS // CHUNK) + 1


def test_without_a_process_group_there_is_one_rank(sample, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    loader = H5StreamLoader(sample.path, 100)
    assert (loader.rank, loader.world_size, len(loader)) == (0, 1, 31)


def test_a_group_that_is_made_after_the_loader_counts_from_the_next_epoch_on(sample, monkeypatch):
    loader = H5StreamLoader(sample.path, 100, shuffle=True, fields="y", persistent_workers=True)
    assert len(list(loader)) == 31
    in_group(monkeypatch, 1, 4)
    assert (loader.rank, loader.world_size, len(loader)) == (1, 4, 8)
    assert sum(len(y) for y in loader) == 750
    loader.close()


def test_arguments_go_before_the_process_group(sample, monkeypatch):
    in_group(monkeypatch, 3, 4)
    loader = H5StreamLoader(sample.path, 100, rank=0, world_size=1)
    assert (loader.rank, loader.world_size, len(loader)) == (0, 1, 31)


def test_a_sampler_decides_what_each_rank_gets(sample, monkeypatch):
    in_group(monkeypatch, 1, 2)
    loader = H5StreamLoader(sample.path, 100, sampler=SequentialSampler(range(ROWS)), fields="y")
    assert sum(len(y) for y in loader) == ROWS


def test_the_sampler_for_a_stock_dataloader_leaves_sharding_to_the_framework(sample, monkeypatch):
    in_group(monkeypatch, 1, 2)
    assert len(ChunkBatchSampler(H5Dataset(sample.path), 100)) == 31
