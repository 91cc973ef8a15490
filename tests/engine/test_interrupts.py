"""Ctrl-C at any moment of an epoch ends the loop: it is neither lost nor leaves a thread behind that hangs."""

import signal

import pytest
from support import forking
from support.sample_files import write_sample

from h5stream.storage.source.identity import Descriptor

LOOP = """
import signal, sys, threading
from h5stream import H5StreamLoader
from h5stream.storage.source.identity import Descriptor

def interrupt(number, frame):
    raise KeyboardInterrupt

lost, tries = [], int(sys.argv[2])
sys.unraisablehook = lambda one: lost.append(f"{one.exc_value!r} in {one.object!r}")
signal.signal(signal.SIGALRM, interrupt)
options = {"fields": ["x", "y"], "window": 256, "num_workers": 2, "keep": "never"}
loader = H5StreamLoader(sys.argv[1], 16, True, **options)  # h5py, which opens files, has such callbacks of its own
for batch in loader:
    pass
for k in range(tries):
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.0005 + 0.0000413 * (k % 250), 0.05)
        while not lost:
            for batch in loader:
                pass
    except KeyboardInterrupt:
        signal.setitimer(signal.ITIMER_REAL, 0)
    assert not lost, (k, lost)
assert sum(len(y) for x, y in loader) == 1000
loader.close()
assert not [one for one in threading.enumerate() if one.name.startswith("h5stream")]
print("all came")
"""


@pytest.mark.parametrize("tries", [40, pytest.param(4000, marks=pytest.mark.slow)])
def test_no_interrupt_is_lost(tmp_path, tries):
    done = forking.run(LOOP, write_sample(tmp_path, rows=1000, columns=16, chunk_rows=8).path, tries)
    assert (done.stdout, done.returncode) == ("all came\n", 0), done.stderr


SCRIPT = """
import signal, sys
from h5stream import H5StreamLoader

loader = H5StreamLoader(sys.argv[1], 16, True, fields=["x", "y"], window=256, num_workers=2, keep="never")
signal.signal(signal.SIGALRM, signal.default_int_handler)
signal.setitimer(signal.ITIMER_REAL, float(sys.argv[2]))
while True:
    for x, y in loader:
        pass
"""


@pytest.mark.parametrize(
    "delay_s",
    [0.02, *(pytest.param(delay_s, marks=pytest.mark.slow) for delay_s in (0.001, *(0.003 * k for k in range(1, 30))))],
)
def test_a_script_that_is_interrupted_ends_by_the_signal(tmp_path, delay_s):
    path = write_sample(tmp_path, rows=1000, columns=16, chunk_rows=8).path
    done = forking.run(SCRIPT, path, delay_s, whole_end=True)
    assert done.returncode == -signal.SIGINT, done.stderr
    assert done.stderr.rstrip().endswith("KeyboardInterrupt")
    assert "ignored" not in done.stderr


def test_what_ctrl_c_left_unmade_is_dropped_without_a_word():
    Descriptor.__new__(Descriptor).__del__()  # an error here would be "Exception ignored in ..." on stderr
