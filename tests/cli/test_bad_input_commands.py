"""What a user can get wrong ends in one line and a status that is not 0, in every command alike."""

from __future__ import annotations

import contextlib
import io
import os
import sys

import pytest

READING = {
    "inspect": ["inspect", "{}"],
    "doctor": ["doctor", "{}"],
    "bench": ["bench", "{}"],
    "diagnose": ["diagnose", "{}", "--step-ms", "1"],
    "tune": ["tune", "{}"],
    "suggest": ["suggest", "{}"],
    "repack": ["repack", "{}", "out.h5"],
    "stage": ["stage", "{}", "--to", "staged", "--repack"],
}


def assert_is_one_clear_line(ended, *words):
    assert ended.status == 2, ended.text
    assert ended.out == ""
    assert ended.err.startswith("error: ")
    assert ended.err.count("\n") == 1
    assert "Traceback" not in ended.err
    for word in words:
        assert word in ended.err


@pytest.mark.timeout(60)
@pytest.mark.parametrize("command", READING)
def test_a_file_that_cannot_be_read_is_named(command, bad_file, h5stream):
    path, words = bad_file
    ended = h5stream(*(word.format(path) for word in READING[command]))
    if command == "doctor" and ended.status == 1:  # A checklist is its answer, also to bad news.
        assert "fail" in ended.out
        assert "1 fail" in ended.out
    else:
        assert_is_one_clear_line(ended, words)


WRITING = {
    "tune --out": ["tune", "a1.h5", "--out", "{}"],
    "tune --plot": ["tune", "a1.h5", "--plot", "{}"],
    "monitor --log": ["monitor", "--once", "--log", "{}"],
    "monitor --plot": ["monitor", "--once", "--plot", "{}"],
    "repack": ["repack", "a1.h5", "{}"],
    "stage --to": ["stage", "a1.h5", "--to", "{}"],
}
ENDINGS = {"tune --out": ".toml", "monitor --log": ".csv", "repack": ".h5", "stage --to": ""}


def _place(kind, ending):
    if kind == "no folder":
        return f"gone/out{ending}"
    if kind == "a folder":
        os.mkdir(f"taken{ending}")
        return f"taken{ending}"
    if kind == "below a file":
        return f"a2.h5/out{ending}"
    return f"/proc/out{ending}"  # Where not even root can make a file.


@pytest.mark.parametrize("kind", ["no folder", "a folder", "below a file", "no permission"])
@pytest.mark.parametrize("command", WRITING)
def test_a_place_that_cannot_be_written_is_refused_before_anything_is_measured(
    command, kind, here, h5stream, monkeypatch
):
    if command == "stage --to" and kind in {"no folder", "a folder"}:
        pytest.skip("a folder is what it takes, and makes")
    monkeypatch.setattr("h5stream.loader.H5StreamLoader.__init__", lambda *_, **__: pytest.fail("it began to measure"))
    place = _place(kind, ENDINGS.get(command, ".png"))
    ended = h5stream(*(word.format(place) for word in WRITING[command]))
    assert_is_one_clear_line(ended, place)


def test_checking_a_place_leaves_what_is_there(here):
    from h5stream.cli.options import check_writable

    path = here / "old.toml"
    path.write_text("mine")
    check_writable(path, "--out")
    check_writable(here / "new.toml", "--out")
    check_writable(None, "--out")
    assert path.read_text() == "mine"
    assert not (here / "new.toml").exists()


@pytest.mark.parametrize("option", ["--list", "--verify", "--remove"])
def test_stage_has_no_good_news_of_a_folder_that_is_not_there(option, here, h5stream):
    assert_is_one_clear_line(h5stream("stage", option, "typo"), "'typo' does not exist")
    assert_is_one_clear_line(h5stream("stage", option, "a1.h5"), "'a1.h5' is no folder")


def test_stage_verify_of_a_folder_without_copies_fails(here, h5stream):
    assert_is_one_clear_line(h5stream("stage", "--verify", "."), "nothing is staged there")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["bench", "a1.h5", "--nothing"], "No such option: --nothing"),
        (["inspect", "a1.h5", "--memory-budget", "much"], "takes bytes, as a number or with a unit"),
        (["inspect", "a1.h5", "--memory-budget", "0"], "at least 1 byte"),
        (["inspect", "a1.h5", "--batch-size", "0"], "--batch-size"),
        (["inspect", "a1.h5", "--fields", ","], "--fields takes names"),
        (["diagnose", "a1.h5"], "--step-ms"),
        (["repack", "a*.h5", "b.h5"], "stage FILES --to DIR --repack"),
        (["suggest", "--fields", "x"], "name a file as well"),
        (["suggest", "--gpu-memory", "big"], "--gpu-memory"),
        (["nothing"], "No such command"),
        (["bench", "a1.h5", "--window", "wide"], "window"),
        (["inspect"], "FILE"),
    ],
)
def test_a_wrong_word_is_named(words, said, here, h5stream):
    assert_is_one_clear_line(h5stream(*words), said)


TALKING = {
    "start": [],
    "help": ["-h"],
    "inspect": ["inspect", "a1.h5", "{}"],
    "doctor": ["doctor", "a1.h5"],
    "suggest": ["suggest", "a1.h5", "--gpu", "RTX 3090"],
    "monitor": ["monitor", "--once"],
    "tune": ["tune", "a1.h5", "--seconds", "0.05", "--batch-size", "100"],
    "repack": ["repack", "a1.h5", "répacked.h5", "--no-measure"],
    "stage": ["stage", "a1.h5", "--to", "stäged"],
}


def _run_into(stream, monkeypatch, words):
    from h5stream.cli.app import main

    monkeypatch.setattr(sys, "argv", ["h5stream", *words])
    monkeypatch.setattr(sys, "stdout", stream)
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


@pytest.mark.parametrize("command", TALKING)
def test_a_terminal_that_knows_ascii_only_gets_every_screen(command, here, monkeypatch):
    os.symlink("a1.h5", "ä→1.h5")
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii", errors="strict")
    status = _run_into(stream, monkeypatch, [word.format("ä→1.h5") for word in TALKING[command]])
    stream.flush()
    assert status in ({0, 1} if command == "doctor" else {0})
    assert raw.getvalue().decode("ascii")


@pytest.mark.parametrize("command", TALKING)
def test_a_reader_that_has_read_enough_is_no_error(command, here, monkeypatch, capsys):
    reading, writing = os.pipe()
    os.close(reading)
    with contextlib.suppress(BrokenPipeError), os.fdopen(writing, "w") as stream:
        assert _run_into(stream, monkeypatch, [word.format("a2.h5") for word in TALKING[command]]) == 1
    assert "Traceback" not in capsys.readouterr().err
