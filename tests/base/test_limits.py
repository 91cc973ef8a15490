"""What a process may use, and properties that no fork waits for."""

import subprocess
import sys

SLOW = """
import os, threading
from h5stream.base.limits import cached_property

reached, go = threading.Event(), threading.Event()

class Slow:
    @cached_property
    def value(self):
        reached.set()
        go.wait()
        return 7

one, other = Slow(), Slow()
thread = threading.Thread(target=lambda: one.value)
thread.start()
reached.wait()
if not (child := os.fork()):
    go.set()
    os._exit(other.value)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
go.set()
thread.join()
assert (status, one.value, vars(one)) == (7, 7, {"value": 7}), status
"""


def test_a_forked_process_does_not_wait_for_a_property_that_a_thread_computed():
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", SLOW], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
