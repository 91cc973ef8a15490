"""What `bench` compares with h5py: each kind of field, or it says which it does not."""

import functools
import re
from dataclasses import replace

import h5py
import numpy as np
import pytest
import torch
from support.commands import printed
from support.inner import rivals_are_forks, stream_all
from support.layouts import IMAGES, cells, jpegs, write
from support.making import make_file, vlen

from h5stream import Bounds, Crop, Field, H5StreamLoader, Lengths, Ragged, SampleNumber, Values
from h5stream.baseline.measure import check_epoch, measure_epoch, rows_alone

TABLE, ENCODED = [("a", "f4"), ("b", "f4"), ("name", "S4")], [np.frombuffer(one, "u1") for one in IMAGES]
TEXTS = {"data": [[f"{k}", "é" * k] for k in range(12)], "dtype": h5py.string_dtype()}
HELD = {"x": np.random.default_rng(0).random((12, 5), "f4"), "y": np.arange(12.0).astype(">f8"), "x@scale": 2.5}
HELD |= {"table": np.ones(12, TABLE), "texts": TEXTS, "v": vlen("i4", map(np.arange, range(12)))}
HELD |= {"i": vlen("u1", ENCODED), "filled": jpegs(12), "lengths": [*map(len, IMAGES)], "on": np.arange(12) > 5}
HELD |= {"long": np.arange(36) / 7, "offsets": np.arange(0, 37, 3), "pick": np.arange(12)[::-1], "once": np.arange(4)}
HELD |= cells(12, 9) | {f"frame_{k}": np.full((2, 2), k) for k in range(12)}

LISTS = [[*range(k, 0, -2)] for k in range(12)]
FORMS, BOUNDS, KIND = ("packed", "nested", "pad", "list"), Bounds("offsets"), "obs/cell_type"
COMPARED = [
    *("x", "y", "table", "table:name", KIND, "v", "texts", "on", Field("table", columns=["a", "b"])),
    *(Field("x", columns=some, dtype=torch.bfloat16) for some in ([3, 1], slice(0, 2), np.arange(5) > 2)),
    *(Field("X", **how) for how in ({"ragged": "packed"}, {"ragged": "dense"}, {"ragged": "dense", "columns": [7, 2]})),
    *(Field("i", decode="jpeg"), Field("i", decode="auto", ragged="list"), Field("filled", decode=("jpeg", "lengths"))),
    *(Field("v", ragged=form) for form in (*FORMS, Ragged("pad", crop=Crop(2, at="start")))),
    *(Field("long", lookup=BOUNDS, ragged=form) for form in FORMS),
    *(Field("x", lookup=LISTS, ragged=form) for form in FORMS),
    *(Field("x", lookup=[[k, 0, k] for k in range(12)]), Field("texts", lookup=LISTS, ragged="list")),
    *(Field("v", lookup=some, ragged="list") for some in (LISTS, Lengths(np.ones(12, int)))),
    *(Field("long", lookup="pick"), Field("i", lookup=np.arange(12)[::-1], decode="auto")),
]
NAMED = ["x@scale", Field("once", take="all"), Values(range(12)), SampleNumber(), Field("frame_{}")]
NAMED += [Field("x", normalize={"mean": 1.0}), Field("x", lookup=lambda samples, epoch, seed: samples)]
NAMED += [Field("long", lookup=BOUNDS, ragged=Ragged("list", crop=Crop(2)))]


@pytest.mark.parametrize("k", range(len(COMPARED) + len(NAMED)))
def test_each_kind_of_field_is_compared_with_h5py_or_named(k, tmp_path):
    write(tmp_path, {"a.h5": HELD})
    fields = {"field": [*COMPARED, *NAMED][k], "kind": KIND}
    with H5StreamLoader(tmp_path / "a.h5", 5, shuffle=True, fields=fields) as loader:
        rows, problem, left_out = check_epoch(loader)
    assert (rows, problem, len(left_out)) == (12, "", int(k >= len(COMPARED)))


def bench(path, *words):
    return " ".join(printed("bench", path, "--workers", "0", *words, width=300).split())


def test_bench_measures_a_loader_as_it_comes_and_says_why_a_line_is_missing(tmp_path, monkeypatch):
    passes = []

    def measured(name, loader, *, stopping=(), **how):
        passes.append((name, loader._settings.reading.keep))
        return replace(measure_epoch(name, loader, **how), stopped=name in stopping)

    monkeypatch.setattr("h5stream.baseline.measure.measure_epoch", measured)
    words = ["--batch-size", "4", "--samples", "Sequences(3)", "--seconds", "60", "--busy-ms", "0"]
    path = make_file(tmp_path / "a.h5", data=np.ones((40, 4)), chunks=(8, 4), compression="gzip")
    assert "no line 'h5stream': so little data stay in memory with keep='never' as well" in bench(path, *words)
    stream_all(monkeypatch)
    assert "no line" not in bench(path, *words)
    usual, decoding = [("h5stream, first epoch", "auto"), ("kept", "auto")], ("h5stream, warming up", "never")
    assert passes == [*usual, *usual, decoding, ("h5stream", "never")]
    for name, missing in ((usual[0][0], ["kept", "h5stream"]), (decoding[0], ["h5stream"])):
        stopped = functools.partial(measured, stopping=[name])
        monkeypatch.setattr("h5stream.baseline.measure.measure_epoch", stopped)
        text = bench(path, *words)
        assert (
            re.findall(r"no line '(\w+)': \w+ first epoch took longer than 60 s; give more --seconds", text) == missing
        )


def test_bench_says_that_rows_which_do_not_stay_in_memory_are_read_again(tmp_path, monkeypatch):
    stream_all(monkeypatch)
    path = make_file(tmp_path / "a.h5", data=np.ones((16_000, 64)), chunks=(80, 64), compression="gzip")
    words = "--samples Sequences(2) --seconds 60 --busy-ms 0 --batch-size 64 --memory-budget 4MiB"
    text = bench(path, *words.split())
    assert "no line 'kept': not all rows stay in memory; the second epoch, which read again, is 'h5stream'" in text
    assert "h5stream: decodes every row in every epoch" in text


def test_bench_counts_one_row_as_one(tmp_path, monkeypatch):
    rivals_are_forks(monkeypatch)
    text = bench(make_file(tmp_path / "one.h5", data=np.ones((1, 4))), "--seconds", "60")
    assert "1 row of 32 B in a batch" in text
    assert re.findall(r"\b1 (?:rows|samples|worker processes)\b", text) == []
    assert "Checked: the 1 row came once, with h5py's bytes." in text


@pytest.mark.parametrize("field", ["texts", "table", "table:name", "x,texts"])
def test_bench_does_not_start_the_naive_loader_on_values_without_tensors(tmp_path, monkeypatch, field):
    write(tmp_path, {"a.h5": HELD})
    monkeypatch.setattr("h5stream.baseline.measure_naive", None)
    done = bench(tmp_path / "a.h5", "--seconds", "0.1", "--fields", field)
    assert "naive not measured: field" in done
    assert "torch has no tensors of such values" in done
    assert "The naive loader read" not in done


@pytest.mark.parametrize("field", ["v", "on", "y", "table:a"])
def test_values_with_tensors_are_read_row_by_row(tmp_path, field):
    write(tmp_path, {"a.h5": HELD})
    with H5StreamLoader(tmp_path / "a.h5", 5, fields=field) as loader:
        assert rows_alone(loader.dataset.layout) == ([field], "")
