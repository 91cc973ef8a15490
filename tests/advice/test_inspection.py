"""What `inspect` says, against what reading really takes."""

import functools
import io

import h5py
import hdf5plugin
import numpy as np
import pytest
from support.inner import order_of, stream_all
from support.making import write_datasets
from support.recording import record_decoded, record_reads

from h5stream import H5StreamLoader
from h5stream.advice import cost
from h5stream.advice.inspection import inspect_file

MIB = 1 << 20
LZF = {"compression": "lzf"}


def write(path, **datasets):
    """Write datasets given as (array, options of create_dataset)."""
    return write_datasets(path, **{name: {"data": array, **options} for name, (array, options) in datasets.items()})


@pytest.fixture
def made(tmp_path):
    """A function that writes a file of some datasets."""
    return functools.partial(write, tmp_path / "a.h5")


def noise(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype("f4")


def keys(found):
    return {advice.key for advice in found.advice}


# --- listing, choosing ------------------------------------------------------------------------------------


GROUPED = {"g/x": (noise(500, 8), {"chunks": (50, 8), "compression": "gzip"}), "g/y": (np.arange(500), {})}


def test_datasets_are_grouped_by_rows_and_the_sample_is_of_the_root_or_of_the_most_rows(made):
    found = inspect_file(made(few=(np.arange(10), {}), **GROUPED, single=(np.float64(1), {})))
    assert [*found.groups] == [500, 10, None]
    assert (found.sample.chosen_by, found.sample.fields) == ("rows", ("g/x", "g/y"))
    (single,) = found.groups[None]
    assert (single.access, single.rows, single.row_nbytes) == ("refused", None, 0)
    found = inspect_file(made(x=(noise(100, 2), {}), y=(np.arange(100), {}), **GROUPED))
    assert (found.sample.chosen_by, found.sample.fields) == ("root", ("x", "y"))


def test_what_was_never_written_does_not_make_a_group_large_and_a_soft_link_may_be_named(made):
    path = made(**{"g/x": (noise(1000, 4), {"chunks": (100, 4)})})
    with h5py.File(path, "a") as file:
        file.create_dataset("g/empty", (10_000_000,), "f8", chunks=(1000,))
        file["deep/alias"] = h5py.SoftLink("/g/x")
    assert inspect_file(path).sample.fields == ("g/x",)
    assert inspect_file(path, fields=["deep/alias"]).sample.rows == 1000


def test_a_compound_member_costs_what_its_dataset_costs_and_rows_without_elements_cost_nothing(made):
    table = np.zeros(1000, dtype=[("a", "f8"), ("b", "i4")])
    sample = inspect_file(
        made(t=(table, {"chunks": (100,), "compression": "gzip"})), fields=["t:a"], batch_size=1000
    ).sample
    assert (sample.row_nbytes, sample.needed.decoded_nbytes) == (8, 1000 * 12)
    assert "holds all, so each is fetched once a worker" in sample.naive_words[0]
    assert inspect_file(made(x=(np.zeros((40, 0)), {})), fields=["x"], batch_size=10).sample.row_nbytes == 0


# --- the arithmetic, by hand and by measurement -----------------------------------------------------------


def test_contiguous_rows_and_values_of_variable_length_take_their_own_bytes_of_every_reader(made):
    naive = inspect_file(made(x=(noise(5000, 4), {})), batch_size=1000).sample.naive
    assert (naive.read_nbytes, naive.read_amplification, naive.decode_amplification) == (1000 * 16, 1, None)
    sample = inspect_file(made(s=(["a" * 100, "b" * 300] * 50, {"dtype": h5py.string_dtype()})), batch_size=100).sample
    assert sample.needed.read_nbytes == 100 * (16 + 200)  # in the dataset 16 bytes say where each lies
    assert (sample.naive.read_amplification, sample.ours.read_amplification) == (1, 1)


class RecordingFile(io.FileIO):
    """Counts the bytes that libhdf5 reads."""

    count = 0

    def readinto(self, target):
        done = super().readinto(target)
        self.count += done
        return done


def test_the_naive_estimate_is_what_libhdf5_reads(made):
    path = made(x=(noise(40_000, 128), {"chunks": (100, 128), "compression": "lzf"}))
    sample = inspect_file(path, batch_size=1000).sample
    rows = np.random.default_rng(1).integers(0, 40_000, 5000)
    with RecordingFile(path) as raw, h5py.File(raw, "r") as file:
        dataset = file["x"]
        for row in rows[:2500]:  # until the cache holds what it will hold
            dataset[row]
        raw.count = 0
        for row in rows[2500:]:
            dataset[row]
        measured = raw.count / 2500 * 1000
    assert 0.3 < 1 - sample.naive.chunks / 1000 < 0.6  # the cache matters here, and does not hold everything
    assert sample.naive.read_nbytes == pytest.approx(measured, rel=0.1)


LAYOUTS = {
    "alike": ({"chunks": (500, 16), "compression": "gzip"}, {"chunks": (500,), "compression": "gzip"}),
    "unlike": ({"chunks": (500, 16), "compression": "gzip"}, {"chunks": (777,), "compression": "gzip"}),
    "split": ({"chunks": (900, 5), "compression": "lzf"}, {"chunks": (100,)}),
    "unfiltered": ({"chunks": (333, 16)}, {}),
    "contiguous": ({}, {"chunks": (4096,), "compression": "gzip", "shuffle": True}),
}


@pytest.fixture(scope="module", params=LAYOUTS)
def laid_out(request, tmp_path_factory):
    of_x, of_y = LAYOUTS[request.param]
    path = tmp_path_factory.mktemp("layouts") / "a.h5"
    return write(path, x=(noise(150_007, 16), of_x), y=(np.arange(150_007), of_y))


@pytest.mark.parametrize("budget_mib", [8, 256])
def test_our_plan_is_what_an_epoch_reads_and_decodes(laid_out, monkeypatch, budget_mib):
    path, budget = laid_out, budget_mib * MIB
    sample = inspect_file(path, batch_size=1000, memory_budget=budget, threads=1).sample
    assert any(cost.kept for cost in sample.datasets) == (budget_mib == 256)

    loader = H5StreamLoader(path, batch_size=1000, shuffle=True, seed=0, num_workers=0, memory_budget=budget)
    read, decoded = record_reads(monkeypatch), record_decoded(monkeypatch)
    assert sum(len(batch["y"]) for batch in loader) == 150_007

    assert sum(cost.decoded_nbytes for cost in sample.datasets) == sum(decoded)
    # Small windows are cut into smaller tasks, which read fewer of the bytes between chunks.
    assert sum(cost.read_nbytes for cost in sample.datasets) == pytest.approx(sum(read), rel=0.02)
    assert sample.ours.decoded_nbytes * 150_007 / 1000 == pytest.approx(sum(decoded))
    assert loader.window_size.needed_nbytes == pytest.approx(sample.resources.memory_nbytes, rel=0.01)


def test_windows_blocks_and_memory_are_the_loaders(made):
    path = made(x=(noise(100_000, 16), {"chunks": (500, 16), "compression": "gzip"}))
    sample = inspect_file(path, batch_size=1000, memory_budget=8 * MIB, threads=1).sample
    loader = H5StreamLoader(path, batch_size=1000, shuffle=True, num_workers=1, memory_budget=8 * MIB)
    order = order_of(loader, 0)
    windows = [order.outputs(k)[0] for k in range(len(order.window_edges) - 1)]
    assert sample.shuffle.windows == len(windows)
    assert sample.shuffle.window_rows == max(map(len, windows))
    assert sample.shuffle.blocks_per_window == max(len(np.unique(rows // 500)) for rows in windows)
    assert sample.shuffle.blocks == 200
    assert sample.resources.memory_nbytes <= 8 * MIB


# --- advice -----------------------------------------------------------------------------------------------


def test_nothing_is_said_where_nothing_is_wrong(made):
    path = made(x=(noise(40_000, 128), {"chunks": (2048, 128), **LZF}), y=(np.arange(40_000), {"chunks": (8192,)}))
    found = inspect_file(path, memory_budget=1 << 30)
    assert (found.advice, found.repack_command) == ((), "")


ILL = {
    "row_per_chunk": (lambda: noise(3000, 1024), {"chunks": (1, 1024), "compression": "lzf"}),
    "tiny_chunks": (lambda: noise(30_000, 100), {"chunks": (20, 100), "compression": "lzf"}),
    "huge_chunks": (lambda: np.zeros((120_000, 64), "f4"), {"chunks": (80_000, 64), "compression": "lzf"}),
    "split_rows": (lambda: noise(24_000, 128), {"chunks": (8192, 8), "compression": "lzf"}),
    "slow_filter": (lambda: noise(2500, 256), {"chunks": (1024, 256), **hdf5plugin.BZip2()}),
    "through_h5py": (lambda: noise(12_000, 256), {"chunks": (1024, 256), "scaleoffset": 3}),
}


@pytest.mark.parametrize("key", ILL)
def test_each_poor_layout_is_named_with_its_command(tmp_path, key, monkeypatch):
    stream_all(monkeypatch)  # as a file is that does not fit into memory
    values, options = ILL[key]
    path = write(tmp_path / "an ill.h5", x=(values(), options))
    found = inspect_file(path, memory_budget=1 << 30)
    advice = next(advice for advice in found.advice if advice.key == key)
    assert advice.fields == ("x",)
    assert advice.costs == "every epoch"
    assert any(character.isdigit() for character in advice.problem) or key == "through_h5py"
    folder = path.removesuffix("/an ill.h5")
    assert found.repack_command == (
        f"h5stream repack '{folder}/an ill.h5' '{folder}/an ill.repacked.h5' --chunk-bytes 1MiB --compress lz4"
    )


def test_unlike_chunks_that_straddle_blocks_are_counted(made):
    y = np.arange(200_000), {"chunks": (100_000,), **LZF}
    path = made(x=(noise(200_000, 16), {"chunks": (500, 16), **LZF}), y=y)
    found = inspect_file(path, batch_size=1000, memory_budget=8 * MIB, threads=1)
    advice = next(advice for advice in found.advice if advice.key == "straddling_chunks")
    y = next(cost for cost in found.sample.datasets if cost.path == "y")
    assert advice.fields == ("y",)
    # Every window but the tiniest needs both of its chunks.
    assert y.times_read > found.sample.shuffle.windows - 2
    assert f"{y.times_read:.2f} times" in advice.problem


def test_unfiltered_tiny_chunks_are_repacked_without_a_filter(made):
    found = inspect_file(made(x=(noise(30_000, 100), {"chunks": (20, 100)})))
    assert keys(found) == {"tiny_chunks"}
    assert found.repack_command.endswith("--compress none")


def test_small_fields_cost_the_first_batch_only_and_strings_of_any_length_are_not_repacked(made):
    (advice,) = inspect_file(made(x=(noise(3000, 16), {"chunks": (1, 16), "compression": "gzip"}))).advice
    assert (advice.key, advice.costs) == ("row_per_chunk", "first batch")
    (advice,) = inspect_file(made(s=(["a", "bb"] * 50, {"dtype": h5py.string_dtype()}))).advice
    assert (advice.key, advice.repack) == ("variable_length", False)
    assert "fixed length" not in advice.way_out  # they come in lists as well


def test_datasets_that_almost_pair_are_said_not_to(made):
    (advice,) = inspect_file(made(x=(noise(1000, 4), {}), y=(noise(999), {}), few=(noise(9), {}))).advice
    assert (advice.key, advice.fields) == ("unlike_lengths", ("y",))
    assert advice.problem == "it has 999 rows, and x 1,000, so they do not pair"
    assert inspect_file(made(x=(noise(1000, 4), {}), y=(noise(1000), {}))).advice == ()


def test_the_program_casts_what_no_model_takes(made):
    lines = inspect_file(made(x=(noise(1000, 4).astype("f8"), {}), y=(np.arange(1000), {}))).lines
    assert '    fields=[Field("x", dtype="float32"), "y"],' in lines


def test_few_blocks_in_a_window_are_named(made):
    path = made(x=(noise(100_000, 16), {"chunks": (4000, 16), "compression": "lzf"}))
    found = inspect_file(path, batch_size=1000, memory_budget=8 * MIB, threads=1)
    advice = next(advice for advice in found.advice if advice.key == "few_blocks")
    assert f"{found.sample.shuffle.blocks_per_window} of 25 blocks" in advice.problem
    assert "few_blocks" not in keys(inspect_file(path, memory_budget=1 << 30))


def test_a_budget_too_small_is_advice_with_the_number_that_would_do(made):
    path = made(x=(noise(10_000, 16), {"chunks": (500, 16), "compression": "lzf"}))
    advice = inspect_file(path, memory_budget=1000).advice[0]
    assert advice.key == "budget_too_small"
    needed = int(advice.way_out.split("memory_budget=")[1].split()[0])
    assert "budget_too_small" not in keys(inspect_file(path, memory_budget=needed))


@pytest.mark.parametrize(("rate", "slow"), [(100e6, True), (1e9, False), (None, False)])
def test_a_filter_is_slow_by_its_measured_rate_and_not_by_its_name(made, rate, slow, monkeypatch):
    monkeypatch.setattr(cost, "decode_rate", lambda *part, seconds: rate)
    path = made(x=(noise(2000, 256), {"chunks": (500, 256), "compression": "gzip", "compression_opts": 9}))
    assert keys(inspect_file(path, memory_budget=1 << 30)) == ({"slow_filter"} if slow else set())


@pytest.mark.parametrize(
    ("rate", "threads", "hands", "fields"), [(1e9, 8, 1, ["few"]), (1e9, 2, 2, ["x"]), (1e8, 1, 1, ["x"])]
)
def test_the_first_batchs_time_follows_from_threads_and_the_rate(made, monkeypatch, rate, threads, hands, fields):
    monkeypatch.setattr(cost, "decode_rate", lambda *part, seconds: rate)
    options, few = {"chunks": (512, 256), "compression": "gzip"}, fields == ["few"]
    path = made(**{fields[0]: (np.zeros((2000 if few else 40_000, 256), "f4"), options)})
    first = inspect_file(
        path, fields=fields, batch_size=100, threads=threads, memory_budget=32 << 20
    ).sample.first_batch
    assert (first.decoded_nbytes == pytest.approx(2000 * 1024, rel=0.05)) == few  # in whole, and by one thread
    assert first.seconds == pytest.approx((first.decoded_nbytes / rate + first.read_nbytes / 1e9) / hands)


def test_inspect_names_the_first_window_that_the_loader_reads(made):
    path = made(x=(np.zeros((200_000, 256), "f4"), {"chunks": (512, 256), "compression": "gzip"}))
    found = inspect_file(path, batch_size=1000, memory_budget=1 << 30, threads=2).sample.first_batch
    loader = H5StreamLoader(path, 1000, shuffle=True, memory_budget=1 << 30)
    window = next(order_of(loader, 0).windows())
    assert found.window_rows == len(window.rows) < 200_000
    assert found.decoded_nbytes == pytest.approx(len(window.rows) * 1024, rel=0.02)
    assert found.seconds > 0
