"""Ray Train: each worker makes its own loader, which takes its rank from the process group that Ray made."""

import json
from pathlib import Path

import pytest
from support.forking import python_path
from support.recorded import HELD_OUT, ROWS, write_files

ray = pytest.importorskip("ray", reason="needs ray[train]: pip install 'ray[train]'")
pytest.importorskip("ray.train.torch", reason="needs ray[train]: pip install 'ray[train]'")

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # starts a cluster of its own

HERE = Path(__file__).resolve().parent


def train_on_a_worker(config):
    """Run in Ray's processes, two epochs."""
    import ray.train
    import ray.train.torch
    import torch
    from support.recorded import Noted, loaders_of
    from support.sample_files import Sample

    model = ray.train.torch.prepare_model(Noted())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    train, held_out = loaders_of(*(Sample(path, None, None) for path in config["paths"]))
    for _ in range(2):
        model.train()
        for x, y in train:
            model(x, y)["loss"].backward()
            optimizer.step()
            optimizer.zero_grad()
        model.eval()
        for x, y in held_out:
            model(x, y)
    noted, stats = model.module, train.stats()
    rank = ray.train.get_context().get_world_rank()
    assert (train.rank, train.world_size) == (rank, 2)
    with open(f"{config['folder']}/{rank}.json", "w") as file:
        json.dump([noted.train_rows, noted.held_out_rows, stats.rows], file)


def test_two_workers_part_the_rows_among_them(tmp_path):
    files = write_files(tmp_path)
    paths = python_path(HERE.parent.parent, HERE.parent)
    variables = {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    ray.init(
        address="local", num_cpus=3, include_dashboard=False, log_to_driver=False, runtime_env={"env_vars": variables}
    )
    try:
        ray.train.torch.TorchTrainer(
            train_on_a_worker,
            train_loop_config={"paths": [file.path for file in files], "folder": str(tmp_path)},
            scaling_config=ray.train.ScalingConfig(num_workers=2, use_gpu=False),
            torch_config=ray.train.torch.TorchConfig(backend="gloo"),
            run_config=ray.train.RunConfig(storage_path=str(tmp_path / "ray"), name="test"),
        ).fit()
    finally:
        ray.shutdown()
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1)]
    for kind, rows in ((0, ROWS), (1, HELD_OUT)):
        first, second = (rank[kind] for rank in ranks)
        assert len(first) == len(second)
        for epoch in (slice(None, len(first) // 2), slice(len(first) // 2, None)):
            assert sorted(row for rank in (first, second) for batch in rank[epoch] for row in batch) == list(
                range(rows)
            )
    assert [rank[2] for rank in ranks] == [ROWS // 2] * 2
