"""`h5stream monitor`, as it is typed."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from support.commands import invoke
from support.fake_nvml import GIB, Card, FakeNvml

from h5stream.cli import monitor as command
from h5stream.errors import MissingExtraError, OptionError
from h5stream.monitor import SystemMonitor, nvml
from h5stream.monitor.export import read_log, sample_from_json

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def fake(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    made = FakeNvml(Card("GPU-1", memory=(6 * GIB, 24 * GIB)), Card("GPU-2", utilization=3))
    monkeypatch.setattr(nvml, "installed_nvml", lambda: made)
    return made


def run(*arguments):
    return invoke("monitor", *arguments)


def test_once_prints_a_line_for_each_gpu_or_all_of_them_as_json():
    result = run("--once")
    lines = result.stdout.splitlines()
    assert result.exit_code == 0
    assert [line[:36] for line in lines] == [
        "GPU: 85% | VRAM:6.0/24.0GB(25.0%) | ",
        "GPU: 3% | VRAM:12.0/24.0GB(50.0%) | ",
    ]
    (line,) = run("--once", "--json").stdout.splitlines()
    assert json.loads(line)["gpus"][0]["utilization_ratio"] == 0.85
    assert sample_from_json(line).gpus[1].uuid == "GPU-2"


def test_without_a_driver_it_succeeds_and_says_why_on_stderr(fake):
    fake.init_error = fake.NVML_ERROR_LIBRARY_NOT_FOUND
    result = run("--once")
    assert result.exit_code == 0
    assert result.stdout.startswith("GPU: n/a | VRAM:n/a | CPU: ")
    assert result.stderr == "GPU: no NVIDIA driver: error 12\n"


def test_a_duration_ends_it_and_log_and_plot_are_written(tmp_path):
    log, plot = tmp_path / "log.jsonl", tmp_path / "plot.png"
    result = run("--interval", "0.1", "--duration", "0.5", "--log", str(log), "--plot", str(plot))
    assert result.exit_code == 0
    assert 1 <= len(read_log(log)) >= result.stdout.count("GPU: 85%") >= 1
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert result.stderr == f"plot: {plot}\n"


def test_the_end_of_the_watched_process_ends_it():
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as child:

        class Closing(command.Arrivals):
            def write(self, sample):
                super().write(sample)
                if not child.stdin.closed:
                    child.stdin.close()
                    child.wait()

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(command, "Arrivals", Closing)
            result = run("--pid", str(child.pid), "--interval", "0.1")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.count("GPU: 85%") == 1


def test_a_sampling_that_fails_is_an_error(monkeypatch):
    def broken():
        raise ZeroDivisionError("boo")

    monkeypatch.setattr("h5stream.monitor.system.host_samples", broken)
    result = run()
    assert (result.exit_code, result.stderr) == (2, "monitor: ZeroDivisionError: boo\n")


def test_ctrl_c_is_the_ordinary_end_and_the_plot_is_still_drawn(monkeypatch, tmp_path):
    def interrupted(self, once, duration_s):
        yield self.get()
        raise KeyboardInterrupt

    monkeypatch.setattr(command.Arrivals, "until", interrupted)
    result = run("--plot", str(tmp_path / "x.png"))
    assert result.exit_code == 0
    assert (tmp_path / "x.png").exists()


def test_a_duration_ends_also_where_samples_come_faster_than_a_screen_is_drawn(monkeypatch):
    arrivals, sample, now = command.Arrivals(), SystemMonitor().sample(), [0.0]
    assert sample.process is not None
    monkeypatch.setattr(command.time, "monotonic", lambda: now[0])
    arrivals.write(sample)
    shown = 0
    for _ in arrivals.until(False, 1.0):
        arrivals.write(sample)
        shown, now[0] = shown + 1, now[0] + 0.3
        assert shown < 9
    assert shown == 4


BAD = [
    (["--duration", "0"], "more than 0 seconds"),
    (["--duration", "nan"], "more than 0 seconds"),
    (["--log", "x.txt"], "must end in one of"),
    (["--plot", "x.foo"], "must end in one of"),
]


def test_bad_options_are_refused_before_anything_is_sampled(fake, monkeypatch):
    for arguments, message in BAD:
        with pytest.raises(OptionError, match=message):
            run(*arguments)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtraError, match=r"pip install matplotlib, or"):
        run("--plot", "x.png")
    assert not fake.calls


def test_on_a_terminal_the_screen_is_drawn_and_a_summary_stays():
    script = (
        "import sys\n"
        f"sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / 'tests')!r}]\n"
        "from support.fake_nvml import Card, FakeNvml\n"
        "from h5stream.monitor import nvml\n"
        "nvml.installed_nvml = lambda: FakeNvml(Card('GPU-1'))\n"
        "from h5stream.cli.app import main\n"
        "sys.argv = ['h5stream', 'monitor', '--interval', '0.1', '--duration', '1']\n"
        "main()\n"
    )
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "110", "LINES": "40"}
    with subprocess.Popen([sys.executable, "-c", script], stdout=theirs, stderr=theirs, env=environment) as child:
        os.close(theirs)
        text = read_all(ours)
    assert child.returncode == 0, text
    assert "h5stream monitor" in text
    assert "Utilisation" in text
    assert "of one processor" in text.rsplit("\x1b[?1049l", 1)[1], "the summary comes after the screen is left"


def read_all(terminal):
    text = b""
    while True:
        try:
            more = os.read(terminal, 65536)
        except OSError:  # Linux's way to say that the other side is closed
            more = b""
        if not more:
            os.close(terminal)
            return text.decode()
        text += more
