"""Every screen fits the terminal that it is printed to, and no number in it is cut."""

import io
import itertools
import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from importlib.metadata import version

import h5py
import numpy as np
import pytest
from rich.console import Console
from support.forking import Forked
from support.inner import rivals_are_forks
from support.making import make_file, write_datasets

from h5stream._version import __version__
from h5stream.advice.tune import TuningRun
from h5stream.baseline import Measurement
from h5stream.cli.advice import attempts_table
from h5stream.cli.app import fail
from h5stream.cli.bench import Report, print_end, print_row
from h5stream.monitor.progress import Bar

COMMANDS = ["inspect", "doctor", "statistics", "bench", "diagnose", "tune", "suggest", "stage", "repack", "monitor"]
SCREENS = {
    "start": [],
    "help": ["-h"],
    "inspect": ["inspect", "big.h5"],
    "inspect of several": ["inspect", "a1.h5", "a2.h5"],
    "doctor": ["doctor", "a1.h5"],
    "statistics": ["statistics", "a1.h5", "a2.h5"],
    "statistics --axis": ["statistics", "a1.h5", "--axis", "-1"],
    "bench": ["bench", "a*.h5", "--seconds", "1", "--batch-size", "200", "--workers", "0"],
    "diagnose": ["diagnose", "a1.h5", "--step-ms", "1", "--seconds", "0.1", "--batch-size", "200"],
    "tune": ["tune", "a?.h5", "--seconds", "0.05", "--batch-size", "200"],
    "suggest": [
        *("suggest", "a1.h5", "--gpu", "RTX 4090", "--batch-size", "8192", "--parameters", "110000000"),
        *("--activation-bytes", "256KiB", "--target-batch", "20000", "--lr", "0.0004", "--lr-batch", "1024"),
    ],
    "stage": ["stage", "a*.h5", "--to", "ram"],
    "stage --list": ["stage", "--list", "copies"],
    "stage --verify": ["stage", "--verify", "copies"],
    "stage --remove": ["stage", "--remove", "copies"],
    "repack": ["repack", "a1.h5", "b.h5", "--chunk-bytes", "64k"],
    "monitor": ["monitor", "--once"],
    **{f"{name} -h": [name, "-h"] for name in COMMANDS},
}


@pytest.fixture
def screens(here, h5stream, monkeypatch):
    """Files with numbers of many digits, and copies."""
    rivals_are_forks(monkeypatch)
    with h5py.File("big.h5", "w") as file:
        file.create_dataset("images", (123_456_789, 3, 32, 32), "u1", chunks=(1234, 3, 32, 32), compression="gzip")
        file.create_dataset("measurements", (123_456_789, 1000), "f8", chunks=True)
        file.create_dataset("labels", data=np.arange(1000))
    h5stream("stage", "a1.h5", "a2.h5", "--to", "copies")
    return h5stream


def test_statistics_of_thousands_are_not_rounded_to_powers_of_ten(screens):
    write_datasets("thousands.h5", number=np.arange(20_000), far=np.array([-54321.25, 1e7 + 0.5, 0.001234567]))
    number = screens("statistics", "thousands.h5", "--fields", "number").out.splitlines()[-1]
    assert number.split() == ["number", "9999.5", "5773.5", "0", "19999", "0", "0"]
    far = screens("statistics", "thousands.h5", "--fields", "far").out.splitlines()[2]
    assert far.split()[3:5] == ["-54321.2", "1e+07"]


def test_counts_are_broken_between_values(screens):
    write_datasets("classes.h5", y=np.arange(2000) % 12)
    lines = screens("statistics", "classes.h5", width=60).out.splitlines()[3:]
    assert [line[:4].isspace() for line in lines] == [False, *[True] * (len(lines) - 1)]
    assert len(lines) > 1
    assert all(line.endswith("%),") for line in lines[:-1])


# What takes a second or two: the narrower screen is the harder one.
MEASURING = {"bench", "tune", "repack"}

# A path, a checksum or a command is one word or is copied as it is: it is not broken, however long.
MAY_BE_LONG = re.compile(r"^  /|^Remove with: |^h5stream repack |\t|^GPU: ")


def screens_and_widths():
    for name, width in itertools.product(SCREENS, (80, 60)):
        if width == 80 or not (name in {"start", "help"} or name.endswith("-h")):  # those are laid out for 80 columns
            yield pytest.param(name, width, marks=pytest.mark.slow if name in MEASURING and width == 80 else ())


@pytest.mark.parametrize(("name", "width"), list(screens_and_widths()))
def test_a_screen_fits_and_no_number_is_cut(name, width, screens):
    ended = screens(*SCREENS[name], width=width)
    assert ended.status in ({0, 1} if name == "doctor" else {0}), ended.text
    assert ended.out
    assert "…" not in ended.out
    long = [line for line in ended.out.splitlines() if len(line.rstrip()) > width and not MAY_BE_LONG.search(line)]
    assert long == []


@pytest.mark.skipif(version("typer").startswith(("0.27.", "0.28.")), reason="these say <str> beside an argument's name")
@pytest.mark.parametrize("words", [[], *([name] for name in COMMANDS)], ids=str)
def test_help_names_what_is_typed_and_no_type_of_python(words, h5stream):
    assert (
        re.findall(
            r"<.*>|\b(?:TEXT|INTEGER|FLOAT|BOOLEAN|PATH)\b(?! +What a sample)", h5stream(*words, "-h", width=100).out
        )
        == []
    )


def test_the_start_screen_fits_a_small_terminal(h5stream):
    lines = h5stream().out.splitlines()
    assert len(lines) <= 23
    for command in COMMANDS:
        assert any(re.search(rf"^\w*\s+{command}\b", line) for line in lines), command


@pytest.mark.parametrize(
    ("width", "window", "rate"), [(80, 123_456_789, 98_765_432.1), (60, 12_345_678, 9_876_543.2), (40, 12_345_678, 9e6)]
)
def test_tunes_bars_give_way_to_numbers_of_many_digits(width, window, rate):
    slow, fast = (
        TuningRun(knob="default", threads=128, window_rows=window, blocks=12_345, rows_per_s=one, first_batch_s=12.345)
        for one in (rate / 8, rate)
    )
    console = Console(file=io.StringIO(), width=width)
    console.print(attempts_table((slow, fast), fast, width))
    text = console.file.getvalue()
    assert "…" not in text
    for number in (f"{window:,}", "12,345", f"{rate:,.0f}", f"{rate / 8:,.0f}", "12345 ms") if width > 40 else ():
        assert number in text
    assert max(map(len, text.splitlines())) <= width


# That of `bench` is read below.
JSON = {name: SCREENS[name] for name in SCREENS if name not in {"start", "help", "bench"} and not name.endswith("-h")}


@pytest.mark.parametrize("name", JSON)
def test_every_command_that_prints_results_prints_them_as_json(name, screens):
    ended = screens(*JSON[name], "--json")
    assert ended.status in ({0, 1} if name == "doctor" else {0}), ended.text
    assert json.loads(ended.out)


def test_several_files_and_patterns_are_taken_alike(screens):
    report = json.loads(screens(*SCREENS["bench"], "--json").out)
    assert report["rows"] == 8000
    assert [os.path.basename(path) for path in report["file"]] == ["a1.h5", "a2.h5"]
    assert report["checked_rows"] == 8000
    assert [one["file"] for one in json.loads(screens("inspect", "a?.h5", "--json").out)] == ["a1.h5", "a2.h5"]
    checks = json.loads(screens("doctor", "a?.h5", "--json").out)["checks"]
    assert [check["name"] for check in checks].count("structure") == 2


def test_a_short_file_has_the_same_small_batch_in_all_commands(screens):
    usual = json.loads(screens("bench", "a?.h5", "--seconds", "0.1", "--no-check", "--json").out)["batch_size"]
    assert 1 < usual < 4096
    assert json.loads(screens("suggest", "a?.h5", "--json").out)["dataloader_memory"]["batch_bytes"] == usual * 72
    assert f"batch {usual}, " in screens("diagnose", "a?.h5", "--step-ms", "1", "--seconds", "0.1").out
    tuned = json.loads(screens("tune", "a?.h5", "--seconds", "0.02", "--json").out)
    assert tuned["profile"]["loader"]["batch_size"] == usual
    (found,) = json.loads(screens("inspect", "a1.h5", "--json").out)
    alone = json.loads(screens("bench", "a1.h5", "--seconds", "0.1", "--no-check", "--json").out)["batch_size"]
    assert found["sample"]["batch_size"] == alone


def test_sizes_are_taken_as_texts(screens):
    (found,) = json.loads(screens("inspect", "a1.h5", "--memory-budget", "64 MiB", "--json").out)
    assert found["sample"]["memory_budget"] == 64 << 20
    found = json.loads(screens("suggest", "--row-bytes", "1k", "--gpu-memory", "24GB", "--json").out)
    assert found["preset"]["memory_gib"] == 24
    assert found["dataloader_memory"]["batch_bytes"] == 1024 * found["preset"]["setting"]["batch_size"]


def test_what_is_piped_says_now_and_then_how_far_it_is(monkeypatch):
    """A log of a long command must not look like one that hangs."""
    moments = itertools.count(0.0, 2.0)
    monkeypatch.setattr("time.monotonic", lambda: next(moments))
    log = Console(file=io.StringIO(), width=80)
    with Bar(log, "writing", unit="rows") as bar:
        for done in range(1, 13):
            bar.show(done * 1000, 12_000)
    assert log.file.getvalue().splitlines() == [
        f"writing: {3 * k},000 of 12,000 rows, 500/s, {24 - 6 * k} s left" for k in range(1, 5)
    ]


@pytest.mark.parametrize("note", ["(stops after 10 s)", "verifying a/group/with/a_long_name/and/a/dataset/in/it"])
def test_what_is_piped_is_no_wider_than_80_columns(note, monkeypatch):
    moments = itertools.count(0.0, 200.0)
    monkeypatch.setattr("time.monotonic", lambda: next(moments))
    for unit in ("rows", "bytes", "s"):
        log = Console(file=io.StringIO(), width=80)
        with Bar(log, "h5stream, first epoch", unit=unit) as bar:
            bar.show(123_456_789, 1_234_567_890, note)
        text = log.file.getvalue()
        assert max(map(len, text.splitlines())) <= 80
        assert " ".join(text.split()).endswith(note)


@pytest.mark.parametrize("terminal", [True, False])
def test_a_long_error_breaks_between_words_on_a_terminal_and_not_at_all_elsewhere(terminal, monkeypatch, capsys):
    message = "the fields have unlike numbers of rows " * 5 + "in '/" + "long/" * 20 + "train.h5'"
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(Console, "is_terminal", terminal)
    with pytest.raises(SystemExit):
        fail(message)
    lines = re.sub(r"\x1b\[[\d;]*m", "", capsys.readouterr().err).splitlines()
    assert " ".join(lines).split() == f"error: {message}".split()
    assert len(lines) == (4 if terminal else 1)


def test_version_and_module_are_two_more_doors():
    for words in (["-V"], ["--version"]):
        done = subprocess.run([sys.executable, "-m", "h5stream", *words], capture_output=True, text=True, check=True)
        assert done.stdout == f"h5stream {__version__}\n"


HEAVY = [
    ("h5stream", {"torch", "h5py", "numpy"}),
    ("h5stream.cli.app", {"torch", "h5py", "xxhash", "psutil"}),
    ("h5stream.monitor", {"torch", "pynvml"}),
]


@pytest.mark.parametrize(("door", "heavy"), HEAVY)
def test_the_package_the_commands_and_the_monitor_begin_without_what_takes_long_to_import(door, heavy):
    program = f"import sys, {door}; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_the_shell_can_complete_commands():
    ask = os.environ | {"_H5STREAM_COMPLETE": "complete_bash", "COMP_WORDS": "h5stream in", "COMP_CWORD": "1"}
    done = subprocess.run([sys.executable, "-m", "h5stream"], capture_output=True, text=True, check=False, env=ask)
    assert done.stdout.split() == ["inspect"]


def test_a_rival_without_a_batch_is_no_bare_ratio_and_nothing_measured_is_said(capsys):
    ours = Measurement(
        name="h5stream, first epoch", rows=50_000, batches=10, nbytes=1, seconds=1.0, first_batch_s=0.1, peak_nbytes=1
    )
    naive = replace(ours, name="naive", rows=620, batches=0, seconds=10.0, first_batch_s=None)
    report = Report(results=[ours, naive])
    print_row(Console(width=80), naive, header=True)
    print_end(Console(width=80), report)
    text = " ".join(capsys.readouterr().out.split())
    assert " 62 none " in text
    assert "finished no batch in 10 s" in text
    assert "x naive, at least: h5stream, first epoch 806." in text
    print_end(Console(width=80), Report(results=[ours, naive], seconds=0.3))
    print_end(Console(width=80), Report(results=[replace(naive, rows=0)], seconds=0.3))
    text = " ".join(capsys.readouterr().out.split())
    assert "It finished no batch in 0.3 s; " in text
    assert "The naive loader read not one row in 0.3 s; give more --seconds." in text
    print_end(Console(width=80), Report(interrupted=True))
    assert "nothing was measured yet" in capsys.readouterr().out


def test_ctrl_c_prints_what_was_measured_until_then(here):
    # Each row has a part in each of 256 chunks: minutes, row by row.
    make_file("slow.h5", data=np.zeros((20_000, 256), "u1"), chunks=(20_000, 1), compression="gzip")
    with Forked("from h5stream.cli.app import main; main()", "bench", "slow.h5", "--seconds", "200") as child:
        said = []
        for line in child.stdout:
            said.append(line)
            if line.startswith("kept "):  # Ours is done; the naive loader is at work for minutes.
                child.send_signal(signal.SIGINT)
        assert child.wait() == 130
        assert "Traceback" not in child.stderr.read()
    assert "first epoch" in "".join(said)
    assert "Interrupted" in "".join(said)
