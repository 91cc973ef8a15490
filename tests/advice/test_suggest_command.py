"""`h5stream suggest` from the outside."""

import json
import re

import numpy as np
from support.commands import printed
from support.inner import processors
from support.making import write_datasets

EVERYTHING = [
    *("--gpu", "NVIDIA GeForce RTX 4090", "--row-bytes", "1024", "--batch-size", "8192"),
    *("--rows", "524288", "--parameters", "110000000", "--activation-bytes", "262144"),
    *("--target-batch", "20000", "--lr", "0.0004", "--lr-batch", "1024"),
]


def suggest(*options, **how):
    return printed("suggest", *options, **how)


def test_the_issues_command_prints_preset_queue_and_order():
    text = suggest("--gpu", "RTX 4090", "--row-bytes", "1024")
    assert "batch_size=7168, num_workers=8" in text
    assert "8 workers x 16 batches = 128 batches x 7.00 MiB = 896 MiB" in text
    assert "1. batch_size" in text
    assert "docs/gpu.md, How large a batch" in text
    assert "printed and never applied" in text


def test_the_users_batch_is_what_all_arithmetic_uses_and_stays():
    text = suggest(*EVERYTHING)
    assert "Your batch size stays 8192." in text
    assert "8 workers x 16 batches = 128 batches x 8.00 MiB = 1.00 GiB" in text
    found = json.loads(suggest(*EVERYTHING, "--json"))
    assert found["preset"]["setting"]["batch_size"] == 7168
    assert found["validation_batch"]["training_batch_size"] == 8192
    assert found["dataloader_memory"]["queued_bytes"] == 1 << 30
    assert found["accumulation"]["batch_size"] == 8192
    assert found["learning_rate"]["new_batch_size"] == 20000


def test_no_word_of_the_advice_is_lost_to_the_layout():
    text = " ".join(suggest(*EVERYTHING, width="80").split())
    for suggestion in json.loads(suggest(*EVERYTHING, "--json")).values():
        for line in (suggestion["answer"], *suggestion["arithmetic"], *suggestion["caveats"]):
            # What can be taken of this machine's memory changes from call to call.
            if "can be taken here now" not in line:
                assert all(word in text for word in line.split()), line


def test_a_memory_serves_instead_of_a_name_and_without_either_it_says_what_more_numbers_would_give():
    assert "batch_size=12288, num_workers=8" in suggest("--gpu-memory", "48")
    text = suggest("--batch-size", "512")
    assert "--gpu (a preset)" in text
    assert "half the training batch" in text


def test_a_file_gives_its_own_chunks_and_blocks(tmp_path):
    x = {"shape": (2000, 3, 8, 8), "dtype": "u1", "chunks": (500, 1, 4, 4), "compression": "gzip"}
    path = write_datasets(tmp_path / "a.h5", x=x, y=np.arange(2000))
    assert "block: 500 rows, those of a chunk (7.81 KiB)" in suggest(path)
    assert "block: 64.0 KiB chunk / 200 B = 327 rows" in suggest(path, "--chunk-bytes", "64KiB")


def test_of_one_row_the_arithmetic_says_one(tmp_path):
    path = write_datasets(tmp_path / "one.h5", x=np.zeros((1, 8)), y=np.zeros(1))
    text = suggest(path, "--validation", "half", width=300)
    assert re.findall(r"\b1 (?:rows|workers|batches|threads|processes|processors)\b|1 / 2 = 1", text) == []
    for words in ("half:  1, since", "block: 1 row, that of a chunk", "window of 1 row", "the 1 row of the data"):
        assert words in text
    assert "1. batch_size: 1 -> leave it: it holds the 1 row of the data" in text


def test_a_presets_workers_are_no_more_than_there_are_processors(monkeypatch):
    processors(monkeypatch, 2)
    text = " ".join(suggest("--gpu", "RTX 4090", "--row-bytes", "1024", width="200").split())
    assert "this process may use 2: take 2 here" in text
    assert "2. num_workers: 2 -> leave it: 2 processors allowed" in text
    assert "scratch: 2 threads" in text
    assert "num_workers: 8 -> 2 (no more processors" in suggest("--workers", "8")
