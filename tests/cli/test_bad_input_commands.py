"""What a user can get wrong ends in one line and a status that is not 0, in every command alike."""

import contextlib
import importlib
import io
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support import forking
from support.amounts import crossed
from support.inner import fail_in_call, rivals_are_forks, stream_all
from support.making import make_file, write_datasets

READING = {name: [name, "{}"] for name in ("inspect", "doctor", "bench", "tune", "suggest")}
READING |= {"diagnose": ["diagnose", "{}", "--step-ms", "1"], "repack": ["repack", "{}", "out.h5"]}
READING |= {"stage": ["stage", "{}", "--to", "staged", "--repack"]}


def assert_is_one_clear_line(ended, *words):
    assert ended.status == 2, ended.text
    assert ended.out == ""
    assert ended.err.startswith("error: ")
    assert ended.err.count("\n") == 1
    assert "Traceback" not in ended.err
    for word in words:
        assert word in ended.err


def truncate(path):
    Path("a1.h5").rename(path)
    os.truncate(path, os.path.getsize(path) // 2)


# By its name what makes it, and which words of the error say what is wrong with it.
BAD_FILES = {
    "missing.h5": (lambda path: None, "missing.h5"),
    "nothing*.h5": (lambda path: None, "no file matches"),
    "folder.h5": (os.mkdir, "folder"),
    "text.h5": (lambda path: Path(path).write_text("a,b\n1,2\n" * 1000), "text.h5"),
    "empty.h5": (lambda path: Path(path).touch(), "empty.h5"),
    "truncated.h5": (truncate, "truncated"),
    "dangling.h5": (lambda path: os.symlink("gone.h5", path), "dangling.h5"),
    "pipe.h5": (os.mkfifo, "pipe.h5"),
    "/dev/null": (lambda path: None, "/dev/null"),
    "/proc/self/mem": (lambda path: None, "/proc/self/mem"),
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("command", "path"), crossed(tuple(READING), tuple(BAD_FILES)))
def test_a_file_that_cannot_be_read_is_named(command, path, here, h5stream):
    make, words = BAD_FILES[path]
    make(path)
    ended = h5stream(*(word.format(path) for word in READING[command]))
    if command == "doctor" and ended.status == 1:  # A checklist is its answer, also to bad news.
        assert "fail" in ended.out
        assert "1 fail" in ended.out
    else:
        assert_is_one_clear_line(ended, words)


def test_a_typing_error_in_a_path_is_told_before_torch_is_imported(here):
    commands = [[word.format("gone*.h5") for word in words] for words in READING.values()]
    commands += [["statistics", "gone.h5"], ["inspect", "gone.h5", "--samples", "Rows()"]]
    program = f"""
import sys
from h5stream.cli.app import main
for words in {commands!r}:
    sys.argv = ["h5stream", *words]
    try:
        main()
    except SystemExit as ended:
        assert ended.code == 2, words
    assert "torch" not in sys.modules, words
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("error: no ") == len(commands)


@pytest.mark.parametrize("command", READING)
def test_a_file_that_may_not_be_read_is_one_line(command, here, h5stream, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: path != "a1.h5")
    ended = h5stream(*(word.format("a1.h5") for word in READING[command]))
    assert_is_one_clear_line(ended, "no permission to read 'a1.h5': ")


def test_the_loader_says_without_libhdf5s_words_that_a_file_may_not_be_read(here):
    here.chmod(0o755)
    os.chmod("a1.h5", 0)
    program = """
import os, sys
from h5stream import H5StreamLoader
if os.geteuid() == 0:
    os.setuid(65534)
try:
    H5StreamLoader("a1.h5")
except OSError as error:
    print(error)
"""
    ended = forking.run(program)
    assert re.fullmatch("no permission to read 'a1.h5': .*\n", ended.stdout), ended.stderr
    assert "errno" not in ended.stdout


@pytest.mark.parametrize("name", ["SIGHUP", "SIGTERM"])
def test_a_command_that_is_ended_by_a_signal_leaves_no_temporary_file(name, here):
    program = f"""
import os, signal, weakref
from h5stream.baseline import measure
from h5stream.cli.app import main
signal.signal(signal.{name}, signal.SIG_DFL)  # nohup has it ignored, which is inherited
class Thing: pass
def write(path, rows, progress):
    path.write_bytes(b"some")
    print(path, flush=True)
    thing = Thing()
    end = lambda _: (os.kill(os.getpid(), signal.{name}), None)  # where an exception is lost
    watched = weakref.ref(thing, end)
    del thing
    return path
measure.write_sample_file = write
main()
"""
    ended = forking.run(program, "bench", environment={"TMPDIR": str(here)})
    assert ended.returncode == -getattr(signal, name)
    assert ended.stdout.startswith(f"{here}/h5stream-bench-")
    assert sorted(os.listdir(here)) == ["a1.h5", "a2.h5"]


@pytest.mark.parametrize("name", ["SIGHUP", "SIGTERM"])
@pytest.mark.parametrize("line", ["repack a1.h5 out.h5", "stage a1.h5 --to to", "stage a1.h5 --to to --repack"])
def test_a_command_that_writes_and_is_ended_by_a_signal_leaves_no_part(name, line, here, h5stream):
    program = f"""
import os, pathlib, signal
from h5stream.cli import stage as command
from h5stream.cli.app import main
signal.signal(signal.{name}, signal.SIG_DFL)  # nohup has it ignored, which is inherited
def show(self, *_):
    print(*pathlib.Path().rglob("*.part"), flush=True)
    os.kill(os.getpid(), signal.{name})
command.Bar.show = show
main()
"""
    ended = forking.run(program, *line.split())
    assert ended.returncode == -getattr(signal, name), ended.stderr
    assert ".part" in ended.stdout
    assert not [*here.rglob("*.part"), *here.rglob("*.session"), *here.rglob("out.h5")]
    assert h5stream(*line.split()).status == 0


TUNE = ["tune", "a1.h5", "--seconds", "0.05", "--batch-size", "100"]
DIAGNOSE = ["diagnose", "a1.h5", "--step-ms", "1", "--seconds", "0.1", "--batch-size", "100"]


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize(
    ("words", "where", "call", "said"),
    [
        (TUNE, "h5stream.advice.tune", 0, "nothing was measured"),
        (TUNE, "h5stream.advice.tune", 4, "these are the 3 runs until then"),
        (DIAGNOSE, "h5stream.advice.diagnose", 0, "nothing was measured"),
        (DIAGNOSE, "h5stream.advice.diagnose", 1, "step alone: "),
    ],
)
def test_ctrl_c_prints_what_was_measured(words, where, call, said, as_json, here, h5stream, monkeypatch):
    fail_in_call(monkeypatch, importlib.import_module(where), "time_loop", call, KeyboardInterrupt)
    ended = h5stream(*words, *["--json"] * as_json)
    assert ended.status == 130
    if as_json:
        found = json.loads(ended.out)
        assert found["interrupted"] is True
        assert bool(found.get("measured") or found.get("attempts")) == (call > 0)
        rates = [one["rows_per_s"] for one in found.get("attempts", ())]
        assert rates == sorted(rates, reverse=True)
    else:
        assert ended.out[0] != "\n"
        assert "Interrupted" in ended.out
        assert said in " ".join(ended.out.split())


def test_samples_that_are_no_rows_are_measured_too(here, h5stream):
    words = ["--batch-size", "16", "--seconds", "0.1", "--samples", "Sequences(4)"]
    found = json.loads(h5stream("bench", "a1.h5", *words, "--json").out)
    assert found["rows"] == 4000 - 3
    assert found["results"][0]["rows"] > 0
    assert "    samples=Sequences(4)," in found["lines"]
    found = json.loads(h5stream("tune", "a1.h5", *words, "--json").out)
    assert found["best"]["rows_per_s"] > 0
    said = h5stream("diagnose", "a1.h5", "--step-ms", "1", *words, width=200).out
    assert (f"{4 * (64 + 8)} bytes a sample" in said, "one batch" in said) == (True, False)


def test_tune_says_what_its_profile_does_not_hold(here, h5stream):
    words = ["--samples", "Sequences(4)", "--fields", "Field('x'), 'y'", "--out", "t.toml"]
    said = h5stream("tune", "a?.h5", *TUNE[2:], *words).err
    (made,) = re.findall("loader = (H5StreamLoader.from_profile.*[)])  #", said)
    assert "['a?.h5'], samples=Sequences(4), fields=(Field('x'), 'y')" in made
    names = {
        name: getattr(importlib.import_module("h5stream"), name) for name in ("H5StreamLoader", "Sequences", "Field")
    }
    with eval(made, names) as loader:
        assert [*next(iter(loader))[0].shape[1:]] == [4, 16]


def test_bench_names_what_it_measures(here, h5stream, monkeypatch):
    rivals_are_forks(monkeypatch)
    stream_all(monkeypatch)
    make_file(here / "x.h5", "x", None, data=np.zeros((4000, 16)), chunks=(100, 16), compression="gzip")
    out = h5stream("bench", "x.h5", "--seconds", "60", "--workers", "0").out
    names = ["h5stream, first epoch", "kept", "busy loop", "h5stream", "naive"]
    assert re.findall(rf"^({'|'.join(names)})  ", out, flags=re.M) == names
    assert re.findall(rf"^({'|'.join(names)}): ", out, flags=re.M) == names
    assert re.search(
        r"^x naive: h5stream, first epoch [\d,.e+]+, kept [\d,.e+]+, h5stream [\d,.e+]+\.", out, flags=re.M
    )
    assert re.search(r"^busy loop: as it comes, with a loop that runs Python for 5 ms a batch: \d+%", out, flags=re.M)
    assert "busy loop" not in h5stream("bench", "x.h5", "--seconds", "60", "--workers", "0", "--busy-ms", "0").out


def test_bench_prints_python_that_runs(here, h5stream, monkeypatch):
    rivals_are_forks(monkeypatch)
    found = json.loads(h5stream("bench", "a?.h5", "--seconds", "0.1", "--workers", "0", "--json").out)
    assert '    fields=["x", "y"],' in found["lines"]
    exec("\n".join(found["lines"]), {})


WRITING = {f"tune {option}": ["tune", "a1.h5", option, "{}"] for option in ("--out", "--plot")}
WRITING |= {f"monitor {option}": ["monitor", "--once", option, "{}"] for option in ("--log", "--plot")}
WRITING |= {"repack": ["repack", "a1.h5", "{}"], "stage --to": ["stage", "a1.h5", "--to", "{}"]}
ENDINGS = {"tune --out": ".toml", "monitor --log": ".csv", "repack": ".h5", "stage --to": ""}


# In no folder, in the place of a folder, below a file, and where not even root can make a file.
PLACES = ["gone/out", "taken", "a2.h5/out", "/proc/out"]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("command", WRITING)
def test_a_place_that_cannot_be_written_is_refused_before_anything_is_measured(
    command, place, here, h5stream, monkeypatch
):
    if command == "stage --to" and place in PLACES[:2]:
        pytest.skip("a folder is what it takes, and makes")
    monkeypatch.setattr(
        "h5stream.loader.loader.H5StreamLoader.__init__", lambda *_, **__: pytest.fail("it began to measure")
    )
    place += ENDINGS.get(command, ".png")
    if place.startswith("taken"):
        os.mkdir(place)
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


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["bench", "a1.h5", "--nothing"], "No such option: --nothing"),
        (["inspect", "a1.h5", "--memory-budget", "much"], "takes bytes, as a number or with a unit"),
        (["inspect", "a1.h5", "--memory-budget", "0"], "at least 1 byte"),
        (["inspect", "a1.h5", "--batch-size", "0"], "--batch-size"),
        (["inspect", "a1.h5", "--fields", ","], "--fields takes names"),
        (["diagnose", "a1.h5"], "--step-ms"),
        (["diagnose", "a1.h5", "--step-ms", "0"], "must be more than 0 milliseconds"),
        (["repack", "a*.h5", "b.h5"], "stage FILES --to DIR --repack"),
        (["repack", "a1.h5", "b.h5", "--fields", "Field('x')"], "--fields takes names separated by commas"),
        *(([one, "pair.h5"], "name the fields: --fields a,b. It has") for one in ("bench", "tune", "statistics")),
        (["bench", "groups.h5"], "--fields a,b; --samples \"Rows(of='data/*')\" takes the rows of groups"),
        (["repack", "pair.h5", "b.h5", "--shuffle-rows", "1"], "--fields a,b. It has"),
        (["suggest", "--fields", "x"], "name a file as well"),
        (["suggest", "--gpu-memory", "big"], "--gpu-memory"),
        (["suggest"], "nothing to go by; give some of these: --gpu (a preset), FILE"),
        (["suggest", "--lr", "0.1"], "--lr needs --lr-batch"),
        (["suggest", "--parameters", "100"], "--parameters needs --gpu"),
        (["stage"], "exactly one of"),
        (["stage", "--list", "x", "--verify", "x"], "given: --list, --verify"),
        (["stage", "--to", "x"], "needs FILES"),
        (["stage", "--verify", "."], "nothing is staged there"),
        (["stage", "--list", "x"], "--list 'x' does not exist, so nothing is staged there. Check the path"),
        (["stage", "a1.h5", "--list", "x"], "takes no FILES"),
        (["stage", "--list", "x", "--follow"], "belongs to --to"),
        (["stage", "a1.h5", "--to", "x", "--force"], "belongs to --remove"),
        (["nothing"], "No such command"),
        (["bench", "a1.h5", "--fields", "x", "--fields=y"], "--fields is given twice; give it once: --fields a,b"),
        (["bench", "a1.h5", "--window", "wide"], "window"),
        (["stage", "a1.h5", "--to", ""], "--to is followed by an empty text"),
        (["stage", "--remove=", "--force"], "--remove is followed by an empty text"),
        (["repack", "a1.h5", "b.h5", "--fields", ""], "--fields is followed by an empty text"),
        (["diagnose", "a1.h5", "--step-ms", "1e14"], "at most an hour"),
        (["monitor", "--interval", "inf"], "at most 92"),
        (["inspect"], "FILE"),
        (["inspect", "a1.h5", "--samples", "Nothing(3)"], "Nothing is none of Sequences"),
        (["inspect", "a1.h5", "--samples", "Sequences("], "--samples takes what samples= does, such as"),
        (["inspect", "a1.h5", "--samples", "Sequences(16, of=open('x'))"], "open is none of"),
        (["inspect", "a1.h5", "--samples", "3"], "takes one of Sequences"),
        (["inspect", "a1.h5", "--fields", "Field('x', lookup=open('x'))"], "open is none of Field"),
        (["inspect", "a1.h5", "--fields", "[x for x in 'ab']"], "malformed node"),
        (["inspect", "a1.h5", "--fields", "{**{}}"], "** is not read here"),
        (["inspect", "a1.h5", "--fields", "Field('x', dtype=torch.load)"], "torch.load is no dtype"),
        (["inspect", "a1.h5", "--fields", "Field('x', ragged='pad').__class__"], "is not that"),
        (["inspect", "a1.h5", "--fields", "Field" + "(" * 9000], "is not that"),
    ],
)
def test_a_wrong_word_is_named(words, said, here, h5stream):
    write_datasets(here / "pair.h5", x=np.arange(10), y=np.arange(11))
    write_datasets(here / "groups.h5", data__a__x=np.arange(10), data__b__x=np.arange(11))
    assert_is_one_clear_line(h5stream(*words), said)


TALKING = ["", "-h", "inspect a1.h5 {}", "doctor a1.h5", "suggest a1.h5 --gpu-memory 24", "monitor --once"]
TALKING += ["tune a1.h5 --seconds 0.05 --batch-size 100", "repack a1.h5 répacked.h5 --no-measure"]
TALKING += ["stage a1.h5 --to stäged"]


def _run_into(stream, monkeypatch, words):
    from h5stream.cli.app import main

    monkeypatch.setattr(sys, "argv", ["h5stream", *words])
    monkeypatch.setattr(sys, "stdout", stream)
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


@pytest.mark.parametrize("line", TALKING)
def test_a_terminal_that_knows_ascii_only_gets_every_screen(line, here, monkeypatch):
    os.symlink("a1.h5", "ä→1.h5")
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii", errors="strict")
    status = _run_into(stream, monkeypatch, line.format("ä→1.h5").split())
    stream.flush()
    assert status in ({0, 1} if line.startswith("doctor") else {0})
    assert raw.getvalue().decode("ascii")


@pytest.mark.parametrize("line", TALKING)
def test_a_reader_that_has_read_enough_is_no_error(line, here, monkeypatch, capsys):
    reading, writing = os.pipe()
    os.close(reading)
    with contextlib.suppress(BrokenPipeError), os.fdopen(writing, "w") as stream:
        assert _run_into(stream, monkeypatch, line.format("a2.h5").split()) == 1
    assert "Traceback" not in capsys.readouterr().err
