"""Hugging Face Accelerate: `prepare` leaves the loader alone, and shards a stock DataLoader itself."""

import itertools

import pytest
import torch
from support.recorded import BATCH, ROWS, Noted, assert_each_row_once_an_epoch, assert_two_epochs, loaders_of
from torch.utils.data import DataLoader

from h5stream import ChunkBatchSampler, H5Dataset, collate

accelerate = pytest.importorskip("accelerate", reason="needs accelerate: pip install '.[trainers]'")

pytestmark = pytest.mark.filterwarnings("ignore")  # theirs


def prepared(*loaders):
    accelerator = accelerate.Accelerator(cpu=True)
    model = Noted()
    return accelerator, *accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1e-9), *loaders)


def fit(accelerator, model, optimizer, batches):
    model.train()
    for x, y in batches:
        accelerator.backward(model(x, y)["loss"])
        optimizer.step()
        optimizer.zero_grad()


def test_two_epochs_with_validation(files):
    given = loaders_of(*files)
    accelerator, model, optimizer, train, held_out = prepared(*given)
    assert (train, held_out) == given  # as they were
    for _ in range(2):
        fit(accelerator, model, optimizer, train)
        model.eval()
        for x, y in held_out:
            model(x, y)
    assert_two_epochs(model, train, held_out)


def test_a_registered_loaders_place_is_saved_with_the_rest(files, tmp_path):
    accelerator, model, optimizer, train, _ = prepared(*loaders_of(*files))
    accelerator.register_for_checkpointing(train)
    fit(accelerator, model, optimizer, itertools.islice(iter(train), 5))
    accelerator.save_state(tmp_path / "state")
    accelerator, later, optimizer, train, _ = prepared(*loaders_of(*files))
    accelerator.register_for_checkpointing(train)
    accelerator.load_state(tmp_path / "state")
    fit(accelerator, later, optimizer, train)
    assert_each_row_once_an_epoch(model.train_rows + later.train_rows, ROWS, 1)


def test_accelerates_own_sharding_of_our_sampler_gives_each_batch_to_one_process(files):
    dataset = H5Dataset(files[0].path, "y")
    from accelerate.data_loader import prepare_data_loader

    rows = []
    for rank in (0, 1):
        stock = DataLoader(dataset, batch_sampler=ChunkBatchSampler(dataset, BATCH, seed=0), collate_fn=collate)
        shard = prepare_data_loader(
            stock, num_processes=2, process_index=rank, put_on_device=False, even_batches=False, rng_types=[]
        )
        rows += [row for y in shard for row in y.tolist()]
    assert sorted(rows) == list(range(ROWS))
