"""JAX takes batches where they are, and may keep them; the page of the documentation runs."""

import re
from pathlib import Path

import numpy as np
import pytest
from support.making import write_datasets

from h5stream import H5StreamLoader

jax = pytest.importorskip("jax", reason="needs JAX: pip install jax")
PAGE = Path(__file__).resolve().parents[2] / "docs" / "jax.md"


def test_arrays_that_are_kept_are_the_batches_memory_and_do_not_change(tmp_path):
    rows = np.arange(40_000, dtype="f4").reshape(10_000, 4)
    path = write_datasets(tmp_path / "a.h5", x=rows)
    with H5StreamLoader(path, 250, shuffle=True, seed=3, fields="x", window="all", keep="never") as loader:
        kept = []
        for x in loader:
            kept.append(jax.numpy.from_dlpack(x))
            assert kept[-1].unsafe_buffer_pointer() == x.data_ptr()
        del x
        for _ in loader:  # would be written into the same memory
            pass
        got = np.concatenate([np.asarray(one) for one in kept])
    assert np.array_equal(got[np.argsort(got[:, 0])], rows)
    assert not np.array_equal(got, rows)


def test_the_code_of_the_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    for code in re.findall(r"^```python.*?\n(.*?)^```$", PAGE.read_text(), flags=re.S | re.M):
        exec(compile(code, PAGE.name, "exec"), names)
    assert np.isfinite(names["weights"]).all()
    assert np.asarray(names["weights"]).any()
