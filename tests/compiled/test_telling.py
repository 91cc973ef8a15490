"""That kernels are compiled is said where it takes long, and only there."""

import os
import subprocess
import sys

SCRIPT = """
import sys
from h5stream.compiled import jit
jit.TOLD_AFTER_S = float(sys.argv[1])
from h5stream.engine.kernels import warm_up
warm_up()
"""


def ran(folder, told_after_s):
    command = [sys.executable, "-c", SCRIPT, str(told_after_s)]
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(folder)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True)


def test_it_is_said_once_where_nothing_is_kept_yet_and_not_again(tmp_path):
    cold = ran(tmp_path, 0.0)
    assert cold.stderr.startswith("h5stream: compiling kernels, once per machine (some 10 s; kept in ")
    assert cold.stderr.count("\n") == 1
    assert str(tmp_path) in cold.stderr
    assert cold.stdout == ""
    warm = ran(tmp_path, 0.0)
    assert (warm.stdout, warm.stderr) == ("", "")
