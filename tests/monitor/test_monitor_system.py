"""The background thread: what it delivers, and that nothing can make it hang or linger."""

import gc
import logging
import math
import subprocess
import textwrap
import threading

import pytest
from support import forking
from support.fake_nvml import Card, FakeNvml

from h5stream.errors import OptionError
from h5stream.monitor import SystemMonitor, system


class Recorder:
    """A sink that lets tests wait for samples."""

    def __init__(self):
        self.samples, self.closed = [], threading.Event()
        self._arrived = threading.Semaphore(0)

    def write(self, sample):
        self.samples.append(sample)
        self._arrived.release()

    def close(self):
        self.closed.set()

    def wait_for(self, count):
        for _ in range(count):
            assert self._arrived.acquire(timeout=60)


def sampler_threads():
    return [thread for thread in threading.enumerate() if thread.name == "h5stream-monitor"]


@pytest.fixture(autouse=True)
def _no_thread_is_left():
    yield
    assert sampler_threads() == []


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(SystemMonitor, "_patience_s", 0.0)


def no_driver():
    return FakeNvml(init_error=FakeNvml.NVML_ERROR_LIBRARY_NOT_FOUND)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        *(({"interval_s": seconds}, "interval_s=.*at least 0.1 s") for seconds in (0.05, 0, -1, math.nan)),
        ({"history": 0}, "history=0"),
        ({"pid": 999_999_999}, "pid=999999999: there is no such process"),
    ],
)
def test_what_cannot_be_watched_is_refused(wrong, said):
    with pytest.raises(OptionError, match=said):
        SystemMonitor(**wrong)


def test_making_a_monitor_touches_nothing_and_a_sample_can_be_taken_without_a_background_thread():
    fake = FakeNvml(Card("GPU-1"))
    monitor = SystemMonitor(nvml=fake)
    assert not fake.calls
    assert not monitor.running
    assert monitor.line() == "GPU: n/a | VRAM:n/a | CPU: n/a | RAM:n/a"
    assert monitor.history == ()
    assert monitor.summary().samples == 0
    sample = monitor.sample()
    assert sample.gpus[0].sm_activity_ratio == 0.42
    assert sample.host.cpu_ratio is not None
    assert monitor.history == (sample,)
    assert fake.initialised == 0


def test_samples_keep_coming_and_sinks_get_each_of_them_from_one_thread_and_the_history_is_bounded():
    fake = FakeNvml(Card("GPU-1"))
    sink = Recorder()
    with SystemMonitor(interval_s=0.1, history=2, nvml=fake, sinks=[sink]) as monitor:
        sink.wait_for(4)
        assert monitor.running
    assert sink.closed.is_set()
    assert len(fake.threads) == 1
    assert threading.get_ident() not in fake.threads
    assert (fake.initialised, fake.open_samples) == (0, 0)
    assert list(monitor.history) == sink.samples[-2:]
    first, second = sink.samples[:2]
    assert 0 < first.elapsed_s < second.elapsed_s
    assert second.interval_s == pytest.approx(second.elapsed_s - first.elapsed_s)
    assert 0 <= first.host.cpu_ratio <= 1, "the first sample has rates already"
    assert first.process.cpu_cores is not None
    with pytest.raises(OptionError, match="make a new SystemMonitor"):  # its sinks are closed
        monitor.start()


def test_stop_and_start_may_be_repeated_and_the_history_goes_on():
    monitor = SystemMonitor(interval_s=3600, nvml=no_driver())
    monitor.stop()
    for count in (1, 2):
        monitor.start()
        assert monitor.start() is monitor
        assert len(sampler_threads()) == 1
        while len(monitor.history) < count:
            threading.Event().wait(0.01)
        monitor.stop()
        monitor.stop()
    assert len(monitor.history) == 2


def test_a_driver_that_disappears_ends_the_gpus_sampling_with_a_reason(caplog):
    fake = FakeNvml(Card("GPU-1"))
    sink = Recorder()
    caplog.set_level(logging.WARNING, "h5stream.monitor")
    with SystemMonitor(interval_s=0.1, nvml=fake, sinks=[sink]) as monitor:
        sink.wait_for(1)
        fake.vanish()
        sink.wait_for(3)
        assert monitor.line().startswith("GPU: n/a | VRAM:n/a | CPU: ")
    last = sink.samples[-1]
    assert last.gpu_reason == last.gpus[0].unavailable == "the NVIDIA driver went away: error 9"
    assert last.gpus[0].uuid == "GPU-1"
    assert last.host.cpu_ratio is not None
    assert [record.message for record in caplog.records] == ["GPU sampling ended: the NVIDIA driver went away: error 9"]
    assert monitor.failure is None


class TestADriverThatHangs:
    @pytest.fixture
    def hung(self):
        fake = FakeNvml(Card("GPU-1"))
        fake.gate = threading.Event()
        yield fake
        fake.gate.set()
        for thread in sampler_threads():
            thread.join(60)

    def test_hangs_neither_the_line_nor_the_sample_nor_the_stop(self, hung, impatient, caplog):
        monitor = SystemMonitor(nvml=hung).start()
        assert hung.reached.wait(60)
        assert monitor.line() == "GPU: n/a | VRAM:n/a | CPU: n/a | RAM:n/a"
        assert monitor.sample().gpu_reason == "no sample yet"
        assert monitor.history == ()
        monitor.stop(timeout_s=0.01)
        assert not monitor.running
        assert "did not end in 0.01 s" in caplog.text

    def test_does_not_show_old_values_as_new(self, hung, impatient):
        gate, hung.gate = hung.gate, None
        sink = Recorder()
        monitor = SystemMonitor(interval_s=0.1, nvml=hung, sinks=[sink]).start()
        sink.wait_for(1)
        hung.gate = gate
        assert hung.reached.wait(60)
        assert monitor.line().startswith("GPU: n/a")
        assert "no new sample for" in monitor.sample().gpu_reason
        assert len(monitor.history) >= 1
        monitor.stop(timeout_s=0.0)

    def test_hangs_no_sample_without_background_thread(self, hung, impatient):
        assert "no answer within" in SystemMonitor(nvml=hung).sample().gpu_reason


def test_an_error_in_data_wait_ends_the_sampling_and_is_told(caplog):
    def broken():
        raise ZeroDivisionError("no batches")

    sink = Recorder()
    with SystemMonitor(nvml=no_driver(), data_wait=broken, sinks=[sink]) as monitor:
        assert sink.closed.wait(60)
        assert monitor.sample().gpu_reason == "ZeroDivisionError: no batches"
    assert monitor.failure == "ZeroDivisionError: no batches"
    assert "sampling ended: ZeroDivisionError" in caplog.text


def test_a_sink_that_fails_is_dropped_and_the_others_go_on(caplog):
    class Full(Recorder):
        def write(self, sample):
            raise OSError("disk full")

    full, fine = Full(), Recorder()
    with SystemMonitor(interval_s=0.1, nvml=no_driver(), sinks=[full, fine]) as monitor:
        fine.wait_for(2)
        assert monitor.failure is None
    assert caplog.text.count("Full gets no more samples: OSError: disk full") == 1


def test_a_forgotten_monitor_stops_by_itself():
    monitor = SystemMonitor(interval_s=3600, nvml=no_driver()).start()
    monitor.sample()
    (thread,) = sampler_threads()
    del monitor
    gc.collect()
    thread.join(60)
    assert not thread.is_alive()


def test_only_the_devices_that_are_asked_for_are_watched():
    def fake():
        return FakeNvml(Card("GPU-aa"), Card("GPU-bb"), Card("GPU-cc"))

    def uuids(*devices):
        return [gpu.uuid for gpu in SystemMonitor(nvml=fake(), devices=devices).sample().gpus]

    assert uuids(1) == ["GPU-bb"]
    assert uuids("GPU-c", 0) == ["GPU-cc", "GPU-aa"]
    assert uuids(1, "GPU-b", -1) == ["GPU-bb"]
    reason = SystemMonitor(nvml=fake(), devices=[7]).sample().gpu_reason
    assert reason == "the driver lists 3 devices, and devices=[7] names none of them"


def test_two_gpus_are_followed_in_cudas_order_once_cuda_has_started(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    cuda = []
    monkeypatch.setattr(system, "started_cuda_uuids", lambda: tuple(cuda))
    fake = FakeNvml(Card("GPU-slow", name="A10"), Card("GPU-fast", name="H100"))
    sink = Recorder()
    with SystemMonitor(interval_s=0.1, nvml=fake, sinks=[sink]) as monitor:
        sink.wait_for(1)
        assert [gpu.uuid for gpu in sink.samples[0].gpus] == ["GPU-slow", "GPU-fast"]
        assert "known only after CUDA has started" in monitor.note
        cuda.extend(["fast", "slow"])
        sink.wait_for(3)
    assert [gpu.uuid for gpu in sink.samples[-1].gpus] == ["GPU-fast", "GPU-slow"]
    assert monitor.note is None


def test_visible_devices_of_the_watched_process_count(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-2")
    sample = SystemMonitor(nvml=FakeNvml(Card("GPU-1"), Card("GPU-2"))).sample()
    assert [gpu.uuid for gpu in sample.gpus] == ["GPU-2"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(["sh", "-c", "echo; cat"], **pipes, env={"CUDA_VISIBLE_DEVICES": "0"}) as child:
        child.stdout.readline()  # the kernel has set its environment up
        sample = SystemMonitor(nvml=FakeNvml(Card("GPU-1"), Card("GPU-2")), pid=child.pid).sample()
        child.stdin.close()
    assert [gpu.uuid for gpu in sample.gpus] == ["GPU-1"]
    assert sample.process.pid == child.pid


def test_stopping_from_within_the_thread_does_not_wait_for_itself():
    stopped = threading.Event()

    class Stopper(Recorder):
        def write(self, sample):
            monitor.stop()
            stopped.set()

    monitor = SystemMonitor(nvml=no_driver(), sinks=[Stopper()]).start()
    assert stopped.wait(60)
    for thread in sampler_threads():
        thread.join(60)


SCRIPTS = {
    "a process that forgets to stop ends, also where the driver hangs": """
        monitor = SystemMonitor(interval_s=0.1).start()
        monitor.sample()
        fake = FakeNvml(Card("GPU-1"))
        fake.gate = threading.Event()
        other = SystemMonitor(nvml=fake).start()
        fake.reached.wait()
    """,
    "a forked child has the history and no thread": """
        monitor = SystemMonitor(interval_s=0.1, nvml=FakeNvml(Card("GPU-1"))).start()
        before = monitor.sample()
        held, forked = threading.Event(), threading.Event()

        def hold():  # as the monitor's own thread may at that moment
            with monitor._lock:
                held.set()
                forked.wait()

        threading.Thread(target=hold).start()
        held.wait()
        pid = os.fork()
        forked.set()
        if pid == 0:
            assert not monitor.running
            assert monitor.history[0] == before
            assert monitor.line().startswith("GPU: 85%")
            monitor.stop()
            own = monitor.sample()
            assert own.process.pid == os.getpid(), own
            with monitor:
                assert monitor.running
                monitor.sample()
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        assert monitor.running
        monitor.stop()
    """,
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_in_a_process_of_its_own(name):
    names = "import os, threading\nfrom support.fake_nvml import Card, FakeNvml\n"
    names += "from h5stream.monitor import SystemMonitor\n"
    done = forking.run(names + textwrap.dedent(SCRIPTS[name]), whole_end=True)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
