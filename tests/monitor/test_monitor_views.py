"""The plot and the screen: looked at by a program, so that what is unknown stays visible as unknown."""

import math

import matplotlib.figure
import pytest
from rich.console import Console

from h5stream.errors import OptionError
from h5stream.monitor import GpuSample, HostSample, ProcessSample, SystemSample
from h5stream.monitor.export import render_screen, save_plot

GIB = 1 << 30


def sample_at(second, *gpus, **facts):
    host = HostSample(cpu_ratio=0.5, ram_used_bytes=GIB, ram_total_bytes=4 * GIB, disk_read_bytes_per_s=2e9)
    process = ProcessSample(pid=1, processes=3, cpu_cores=1.0, cpus_allowed=2, memory_bytes=GIB)
    defaults = {"host": host, "process": process}
    return SystemSample(
        time_s=second, elapsed_s=second, interval_s=1.0, cost_cpu_s=0.001, gpus=gpus, **defaults | facts
    )


def card(ratio, **facts):
    return GpuSample(uuid="GPU-1", name="Fake H100", utilization_ratio=ratio, **facts)


@pytest.fixture
def figures(monkeypatch):
    """The figures that are saved, instead of the files."""
    saved = []
    monkeypatch.setattr(matplotlib.figure.Figure, "savefig", lambda self, path: saved.append(self))
    return saved


def labels(figure):
    return [[text.get_text() for text in axis.get_legend().get_texts()] for axis in figure.axes]


class TestPlot:
    def test_every_figure_has_its_curve_and_the_unknown_says_so(self, figures):
        first = sample_at(1, card(0.5, memory_used_bytes=1, memory_total_bytes=4))
        save_plot([first, sample_at(2, card(None))], "x.png")
        shares, *others = labels(figures[0])
        assert shares == ["GPU", "SM: n/a", "CPU (machine)", "CPU (process)"]
        assert others == [["VRAM", "RAM"], ["data wait: n/a"], ["PCIe in: n/a", "disk"]]
        gpu = figures[0].axes[0].lines[0].get_ydata()
        assert gpu[0] == 50.0
        assert math.isnan(gpu[1])
        assert figures[0].axes[2].texts[0].get_text() == "n/a"

    def test_two_gpus_have_a_curve_each_and_share_a_title(self, figures):
        save_plot([sample_at(1, card(0.1), card(0.2), data_wait_ratio=0.3)], "x.png")
        assert labels(figures[0])[0][:2] == ["GPU 0", "GPU 1"]
        assert figures[0].get_suptitle() == "2 x Fake H100\n1 sample in 1 s"
        assert figures[0].axes[2].lines[0].get_ydata() == [30.0]

    def test_no_gpu_and_an_ended_process_are_ordinary(self, figures):
        save_plot([sample_at(1, gpu_reason="no driver", process=None)], "x.png")
        assert labels(figures[0])[0] == ["GPU: n/a", "SM: n/a", "CPU (machine)", "CPU (process): n/a"]
        assert figures[0].get_suptitle().startswith("no GPU (no driver)")

    def test_no_samples_are_refused(self):
        with pytest.raises(OptionError, match="no samples to plot"):
            save_plot([], "x.png")


def screen_text(samples, width=120, **options):
    console = Console(width=width, record=True, file=open("/dev/null", "w"), color_system=None)  # noqa: SIM115
    with console.file:
        console.print(render_screen(samples, width, title="title", **options))
    return console.export_text()


def row(text, label):
    return " ".join(next(line for line in text.splitlines() if f" {label}" in line).strip("│ ").split())


class TestScreen:
    def test_it_shows_now_course_mean_and_most(self):
        text = screen_text([sample_at(1, card(0.0)), sample_at(2, card(1.0))])
        assert row(text, "Utilisation") == "Utilisation 100.0% ▁█ ø 50.0% ↑ 100.0%"
        assert row(text, "SM activity") == "SM activity n/a"
        assert row(text, "RAM") == "RAM 1.0/4.0GB(25.0%) ▃▃ ø 25.0% ↑ 25.0%"
        assert row(text, "Data wait") == "Data wait n/a"
        assert "2 children   2 CPUs allowed" in text
        assert "the monitor takes 0.10% of one processor" in text

    def test_it_tells_what_holds_the_clocks_back(self):
        hot = card(0.5, temperature_c=84.6, sm_clock_hz=1.2e9, throttle_reasons=("gpu_idle", "hw_slowdown"))
        assert "85 °C   SM clock 1200 MHz   held back by: hw_slowdown" in screen_text([sample_at(1, hot)])
        assert "n/a   SM clock n/a   held back by: n/a" in screen_text([sample_at(1, card(0.5))])
        free = card(0.5, throttle_reasons=("gpu_idle",))
        assert "held back by: nothing" in screen_text([sample_at(1, free)])

    def test_an_ended_process_says_so_and_one_child_is_no_children(self):
        assert "Process   has ended" in screen_text([sample_at(1, process=None)])
        assert "1 child " in screen_text([sample_at(1, process=ProcessSample(pid=1, processes=2))])

    @pytest.mark.parametrize("width", [80, 100, 200])
    def test_no_line_is_wider_than_the_terminal(self, width):
        samples = [sample_at(i, card(0.5, memory_used_bytes=GIB, memory_total_bytes=80 * GIB)) for i in range(300)]
        assert {len(line) for line in screen_text(samples, width).splitlines()} == {width}
