"""``on_error="skip"``: rows of corrupt chunks are left out, counted and named; nothing else changes."""

import logging
import re

import numpy as np
import pytest
import torch
from support.inner import run_of, stream_all
from support.making import corrupt_chunk, write_datasets
from support.sample_files import eventually, one_epoch_at_a_time, reader_threads, write_sample

from h5stream import H5StreamLoader
from h5stream.errors import CorruptChunkError


def corrupt(path, *starts, name="x"):
    """Damage the chunks that begin at these rows."""
    for row in starts:
        corrupt_chunk(path, (row, 0), name)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("shuffle", [False, True])
def test_all_rows_but_those_of_corrupt_chunks_come_once_with_their_own_bytes(
    tmp_path, either_way, caplog, shuffle, num_workers, monkeypatch
):
    one_epoch_at_a_time(monkeypatch)  # the next one warns when it is read
    sample = write_sample(tmp_path)
    corrupt(sample.path, 64, 320, 992)
    bad = {*range(64, 96), *range(320, 352), *range(992, 1000)}
    loader = H5StreamLoader(sample.path, 50, shuffle, num_workers=num_workers, window=200, on_error="skip")
    for _ in range(2):
        caplog.clear()
        rows = []
        for number, batch in enumerate(loader):
            assert sample.matches(batch["x"], batch["y"])
            assert shuffle or batch["y"].tolist() == [r for r in range(50 * number, 50 * number + 50) if r not in bad]
            rows += batch["y"].tolist()
        assert sorted(rows) == [row for row in range(1000) if row not in bad]
        statistics = loader.stats()
        assert statistics.skipped_rows == len(bad)
        assert sorted(statistics.skipped_chunks) == sorted(
            f"{sample.path}:x chunk {start}" for start in ((64, 0), (320, 0), (992, 0))
        )
        assert statistics.rows == 1000 - len(bad)
        assert "72 rows skipped: 3 corrupt chunks" in str(statistics)
        (record,) = [r for r in caplog.records if r.levelno == logging.WARNING]
        assert re.search(r"on_error='skip'.*dataset 'x': chunk \(\d+, 0\) at byte \d+", record.getMessage())
    assert reader_threads() == []


@pytest.mark.parametrize("num_workers", [1, 3])
def test_readers_go_on_when_all_that_filled_their_room_is_passed_over(sample, num_workers):
    corrupt(sample.path, *range(0, 960, 32))
    loader = H5StreamLoader(sample.path, 32, num_workers=num_workers, on_error="skip", window=32, timeout=30)
    iterator = iter(loader)
    run = run_of(iterator)
    eventually(lambda: run.ready >= loader.window_size.max_open_batches)
    # They wait for room; nothing of what they hold will be handed over.
    assert [batch["y"].tolist() for batch in iterator] == [list(range(960, 992)), list(range(992, 1000))]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_one_of_several_ranks_fails_rather_than_leave_out_a_batch_that_the_others_wait_for(
    tmp_path, monkeypatch, num_workers
):
    one_epoch_at_a_time(monkeypatch)
    stream_all(monkeypatch)
    sample = write_sample(tmp_path, rows=1024)
    corrupt(sample.path, 576)
    ranks = [
        H5StreamLoader(sample.path, 32, on_error="skip", window=64, rank=rank, world_size=2, num_workers=num_workers)
        for rank in range(2)
    ]
    assert len(list(ranks[0])) == len(ranks[0]) == len(ranks[1]) == 16
    got = []
    with pytest.raises(
        CorruptChunkError, match=r"nothing is left of batch 2, and one of 2 ranks.*chunk \(576, 0\)"
    ) as e:
        got.extend(ranks[1])
    assert (e.value.file, e.value.field, e.value.chunk) == (sample.path, "x", (576, 0))
    assert isinstance(e.value.__cause__, CorruptChunkError)
    assert reader_threads() == []
    loader = H5StreamLoader(sample.path, 64, on_error="skip", rank=1, world_size=2, num_workers=num_workers)
    assert [len(batch["y"]) for batch in loader] == [64, 32, *[64] * 6]  # where anything is left, nothing is wrong


@pytest.mark.parametrize("listed", [False, True])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_state_counts_the_batches_that_were_left_out(sample, listed, num_workers):
    corrupt(sample.path, 0, 96, 128, 992)
    left = [row for row in range(0, 1000, 32) if row not in (0, 96, 128, 992)]

    def loader():
        options = {"sampler": range(1000)} if listed else {"window": 64}
        return H5StreamLoader(sample.path, 32, num_workers=num_workers, on_error="skip", **options)

    for taken in (0, 1, 2, 3, 4, len(left) // 2, len(left) - 1, len(left)):  # around what is left out, and within
        first = loader()
        iterator = iter(first)
        assert [next(iterator)["y"][0].item() for _ in range(taken)] == left[:taken]
        second = loader()
        second.load_state_dict(first.state_dict())
        assert [batch["y"][0].item() for batch in second] == left[taken:]
        assert taken or second.stats().batches == len(left) == len(second) - 4


def test_a_row_that_two_fields_lack_is_counted_once(tmp_path, either_way):
    numbers = {"data": np.arange(300.0).reshape(100, 3), "chunks": (10, 3), "compression": "gzip"}
    text = {"data": [f"row {k}" for k in range(100)], "chunks": (10,)}
    path = write_datasets(tmp_path / "a.h5", a=numbers, b=numbers, text=text)
    corrupt(path, 20, name="a")
    corrupt(path, 20, 30, name="b")
    loader = H5StreamLoader(path, 15, on_error="skip", fields=["a", "b", "text"])
    batches = list(loader)
    left = [*range(20), *range(40, 100)]
    assert torch.cat([a for a, _, _ in batches])[:, 0].tolist() == [3 * row for row in left]
    assert [one for _, _, text in batches for one in text] == [f"row {row}".encode() for row in left]
    assert loader.stats().skipped_rows == 20
