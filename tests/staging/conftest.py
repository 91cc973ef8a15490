"""Folders in memory, sources, and real child processes that stop where a test wants them to."""

import json
import os
import select
import shutil
import signal
import subprocess
import textwrap
import uuid
from pathlib import Path

import pytest
from support.forking import PATIENCE_S, Forked

# Runs before a child's own lines: `pause_after(pieces)` makes the copying thread stop in mid-copy, say so,
# and wait for a line from the parent or for the end of the copy; `saying_who_is_waited_for()` is a progress function.
PRELUDE = """
import json, os, select, sys, threading
from h5stream.staging import *
from h5stream.staging import copying

def say(word, **facts):
    print(json.dumps({"word": word, **facts}), flush=True)

def hear():
    while not select.select([sys.stdin], [], [], 0.05)[0]:
        pass  # a signal that comes just before a read does not end it
    return sys.stdin.readline().strip()

def saying_who_is_waited_for():
    told = []
    def show(now):
        if now.waiting_for and not told:
            told.append(now)
            say("waiting", pids=now.waiting_for, total=now.bytes_total)
    return show

def pause_after(pieces):
    gate, left, lock, write = threading.Event(), [pieces], threading.Lock(), copying._write
    def paused(block, piece, at):
        write(block, piece, at)
        with lock:
            left[0] -= 1
            reached = left[0] == 0
        if reached:
            say("half")
            threading.Thread(target=lambda: (hear(), gate.set()), daemon=True).start()
            while not gate.wait(0.01) and not copying.stop_asked.get()():
                pass
    copying._write = paused
"""


class Child:
    """A Python process that talks in lines of JSON."""

    def __init__(self, script, *arguments):
        self.process = Forked(PRELUDE + textwrap.dedent(script), *arguments)
        self.heard = b""

    @property
    def pid(self):
        return self.process.pid

    def hear(self, word=None):
        """Give the facts of the next line, which must begin with that word; without one, with its word among them."""
        while b"\n" not in self.heard:
            ready, _, _ = select.select([self.process.stdout], [], [], PATIENCE_S)
            piece = os.read(self.process.stdout.fileno(), 65536) if ready else b""
            if not piece:
                self.process.kill()
                pytest.fail(f"no {word!r} from the child: {self.process.communicate()[1]}")
            self.heard += piece
        line, _, self.heard = self.heard.partition(b"\n")
        facts = json.loads(line)
        assert word is None or facts.pop("word") == word, (line, word)
        return facts

    def tell(self, line="go"):
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def kill(self, number=signal.SIGKILL):
        self.process.send_signal(number)

    def end(self):
        """Wait for the end and give the exit status."""
        self.process.communicate()
        return self.process.returncode


@pytest.fixture
def child():
    started = []

    def start(script, *arguments):
        started.append(Child(script, *arguments))
        return started[-1]

    yield start
    for each in started:
        if each.process.poll() is None:
            each.process.kill()
        each.process.communicate()


@pytest.fixture
def ram():
    """A fresh folder on a tmpfs."""
    from h5stream.base.filesystem import mount_of

    if not os.access("/dev/shm", os.W_OK) or mount_of(Path("/dev/shm")).kind != "tmpfs":
        pytest.skip("/dev/shm is no tmpfs that may be written to")
    folder = Path("/dev/shm") / f"h5stream-test-{uuid.uuid4().hex[:8]}"
    folder.mkdir()
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def small_tmpfs(tmp_path):
    """A function that mounts a tmpfs of some size."""
    mounted = []

    def mount(size, *options):
        folder = tmp_path / f"tmpfs{len(mounted)}"
        folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", ",".join([f"size={size}", *options]), "tmpfs", str(folder)]
        try:
            result = subprocess.run(command, capture_output=True, text=True, check=False)
        except FileNotFoundError:
            pytest.skip("there is no mount command")
        if result.returncode:
            pytest.skip(f"a tmpfs may not be mounted here: {result.stderr.strip()}")
        mounted.append(folder)
        return folder

    yield mount
    for folder in mounted:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.fixture
def write(tmp_path):
    """A function that writes a source of random bytes."""

    def make(name, size, folder="data"):
        path = tmp_path / folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(size))
        return path

    return make


@pytest.fixture
def left():
    """A function that gives all that lies under a folder, as sorted relative names."""

    def look(folder):
        folder = Path(folder)
        return sorted(str(p.relative_to(folder)) for p in folder.rglob("*")) if folder.exists() else []

    return look
