"""Several processes, and processes that die: real children, stopped in mid-copy where the test wants them."""

import fcntl
import os
import signal
import subprocess
from pathlib import Path

import pytest

from h5stream.errors import StagedFileInUseError, StagingError
from h5stream.staging import StagedState, list_staged, remove_staged, stage, staged, verify_staged

MIB = 1 << 20

STAGE = """
result = stage(sys.argv[1], to=sys.argv[2], threads=1)
say("done", copied=len(result.copied), path=str(result.paths[0]))
hear()
"""

PAUSED = "pause_after(3)\n" + STAGE

WAITING = """
try:
    result = stage(sys.argv[1], to=sys.argv[2], progress=saying_who_is_waited_for())
except KeyboardInterrupt:
    say("interrupted")
else:
    say("done", copied=len(result.copied), path=str(result.paths[0]))
    hear()
"""


@pytest.fixture
def source(write):
    return write("a.h5", 4 * MIB)


@pytest.fixture
def copier(child, source, ram):
    """A process that stopped in mid-copy."""
    copier = child(PAUSED, source, ram)
    copier.hear("half")
    return copier


def killed(process):
    process.kill(signal.SIGKILL)
    assert process.end() == -signal.SIGKILL


def test_eight_processes_at_once_copy_once(child, copier, source, ram, left):
    others = [child(WAITING, source, ram) for _ in range(7)]
    for other in others:
        assert other.hear("waiting") == {"pids": [copier.pid], "total": 4 * MIB}
    assert left(ram / "a.h5") == []
    copier.tell()
    assert copier.hear("done")["copied"] == 1
    for other in others:
        assert other.hear("done") == {"copied": 0, "path": str(ram / "a.h5")}
    assert (ram / "a.h5").read_bytes() == source.read_bytes()
    every = [copier, *others]
    assert [file.used_by for file in list_staged(ram)] == [tuple(sorted(each.pid for each in every))]
    for each in every:
        each.tell()
        assert each.end() == 0
    assert [file.used_by for file in list_staged(ram)] == [()]


def test_two_processes_that_want_each_others_files_do_not_block(child, write, ram):
    one, two = write("one.h5", 4 * MIB), write("two.h5", 4 * MIB)
    script = """
    pause_after(3)
    result = stage(sys.argv[2:], to=sys.argv[1], threads=1)
    say("done", copied=[path.name for path in result.copied])
    """
    left_child = child(script, ram, one)
    left_child.hear("half")
    right_child = child(script, ram, two, one)
    right_child.hear("half")
    right_child.tell()
    left_child.tell()
    assert left_child.hear("done") == {"copied": ["one.h5"]}
    assert right_child.hear("done") == {"copied": ["two.h5"]}


@pytest.mark.parametrize("cleaner", ["stage", "remove"])
def test_after_a_kill_in_mid_copy_nothing_looks_whole_and_the_next_call_cleans_up(copier, source, ram, left, cleaner):
    killed(copier)
    assert not (ram / "a.h5").exists()
    assert [file.state for file in list_staged(ram)] == [StagedState.UNFINISHED]
    assert verify_staged(ram) == ()
    if cleaner == "stage":
        assert stage(source, to=ram, lease=False).copied == (ram / "a.h5",)
        assert left(ram) == [".h5stream", ".h5stream/lock", ".h5stream/manifest.json", "a.h5"]
    remove_staged(ram)
    assert left(ram) == []


KILLS = {
    "before the manifest speaks of the copy": "StagingFolder.save = lambda *_: die()",
    "before the name": "run.filesystem.give_name = lambda *_: die()",
    "after the name": "run.filesystem.give_name = lambda *names: (give(*names), die())",
}


@pytest.mark.parametrize("moment", KILLS)
def test_a_kill_at_any_other_moment_leaves_nothing_for_good(child, source, ram, left, moment):
    script = f"""
    import signal
    from h5stream.staging import run
    from h5stream.staging.folder import StagingFolder
    give, die = run.filesystem.give_name, lambda: os.kill(os.getpid(), signal.SIGKILL)
    {KILLS[moment]}
    stage(sys.argv[1], to=sys.argv[2])
    """
    assert child(script, source, ram).end() == -signal.SIGKILL
    assert (ram / "a.h5").exists() == (moment == "after the name")
    # Besides the lock, the session and the copy; what has its name already is no copy in the making.
    assert len(left(ram / ".h5stream")) == 4 - (moment != "before the name")
    remove_staged(ram)
    assert left(ram) == []


def test_a_waiting_process_takes_over_from_a_killed_one(child, copier, source, ram):
    second = child(WAITING, source, ram)
    second.hear("waiting")
    copier.kill(signal.SIGKILL)
    assert second.hear("done")["copied"] == 1
    assert (ram / "a.h5").read_bytes() == source.read_bytes()


def test_a_waiting_process_can_be_interrupted(child, copier, source, ram):
    second = child(WAITING, source, ram)
    second.hear("waiting")
    second.kill(signal.SIGINT)
    second.hear("interrupted")
    assert second.end() == 0
    copier.tell()
    assert copier.hear("done")["copied"] == 1


def test_ctrl_c_in_mid_copy_leaves_nothing(child, write, ram, left):
    script = """
    pause_after(3)
    try:
        stage(sys.argv[1], to=sys.argv[2], threads=2)
    except KeyboardInterrupt:
        say("interrupted", threads=[t.name for t in threading.enumerate()])
    """
    victim = child(script, write("a.h5", 40 * MIB), ram)
    victim.hear("half")
    victim.kill(signal.SIGINT)
    assert not [name for name in victim.hear("interrupted")["threads"] if name.startswith("h5stream")]
    assert victim.end() == 0
    assert left(ram) == []


def test_a_live_lease_protects_and_a_dead_one_does_not(child, source, ram, left):
    user = child(STAGE, source, ram)
    user.hear("done")
    with pytest.raises(StagedFileInUseError, match=rf"a\.h5 \(process {user.pid}\).*--force") as caught:
        remove_staged(ram)
    assert caught.value.pids == (user.pid,)
    assert (ram / "a.h5").exists()
    killed(user)
    assert remove_staged(ram).bytes_freed == 4 * MIB
    assert left(ram) == []


def test_a_copy_in_the_making_is_in_use_and_force_ends_it(child, write, ram, left):
    script = """
    from h5stream.errors import StagingError
    pause_after(3)
    try:
        stage(sys.argv[1], to=sys.argv[2], threads=1)
    except StagingError as error:
        say("failed", message=str(error))
    """
    copier = child(script, write("a.h5", 20 * MIB), ram)
    copier.hear("half")
    with pytest.raises(StagedFileInUseError):
        remove_staged(ram)
    remove_staged(ram, force=True)
    copier.tell()
    assert "removed" in copier.hear("failed")["message"]
    assert copier.end() == 0
    assert left(ram) == []


def test_a_staged_block_of_one_process_leaves_what_another_uses(child, source, ram, left):
    script = """
    with staged(sys.argv[1], to=sys.argv[2]) as paths:
        say("inside")
        hear()
    say("outside", there=os.path.exists(paths[0]))
    """
    both = [child(script, source, ram) for _ in range(2)]
    for each in both:
        each.hear("inside")
    for each, there in zip(both, (True, False), strict=True):
        each.tell()
        assert each.hear("outside") == {"there": there}
    assert left(ram) == []


def test_space_that_others_are_filling_is_not_promised_twice(child, write, small_tmpfs):
    folder = small_tmpfs("8m")
    copier = child(PAUSED, write("a.h5", 5 * MIB), folder)
    copier.hear("half")
    with pytest.raises(StagingError, match="promised to copies under way"):
        stage(write("b.h5", 5 * MIB), to=folder)
    copier.tell()
    assert copier.hear("done")["copied"] == 1


# --- a session is alive as long as its process: forked children, other users, other containers -------------------


NOBODY = 65534

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")


def users(folder):
    return {file.path.name: file.used_by for file in list_staged(folder)}


def test_a_killed_user_is_gone_even_if_nothing_waits_for_it(child, write, ram, left):
    script = """
    import signal
    if os.fork() == 0:
        stage(sys.argv[1], to=sys.argv[2], threads=1)
        say("using", pid=os.getpid())
        signal.pause()
    hear()  # the process that could wait for it does not
    """
    user = child(script, write("a.h5", 1000), ram).hear("using")["pid"]
    os.kill(user, signal.SIGKILL)
    state = Path(f"/proc/{user}/stat")
    # It ends when the kernel comes to it, and a thread that was joined may hold its files a little longer.
    while (fields := state.read_text().rpartition(")")[2].split())[0] != "Z" or fields[17] != "1":  # num_threads
        os.sched_yield()
    assert users(ram) == {"a.h5": ()}
    assert remove_staged(ram).bytes_freed == 1000
    assert left(ram) == []


def test_a_forked_child_keeps_no_lease_of_its_killed_parent(child, write, ram):
    script = """
    result = stage(sys.argv[1], to=sys.argv[2])
    if os.fork() == 0:
        result.release()  # not its own to give back
        say("forked", pid=os.getpid())
        hear()
        os._exit(0)
    os.wait()
    """
    parent = child(script, write("a.h5", 1000), ram)
    grandchild = parent.hear("forked")["pid"]
    assert users(ram) == {"a.h5": (parent.pid,)}
    parent.kill(signal.SIGKILL)
    parent.process.wait()
    assert users(ram) == {"a.h5": ()}
    os.kill(grandchild, signal.SIGKILL)


def test_a_lease_on_many_files_takes_one_descriptor(child, write, ram):
    script = """
    import resource
    resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))
    before = len(os.listdir("/proc/self/fd"))
    result = stage(sys.argv[1:-1], to=sys.argv[-1], threads=1)
    say("using", more=len(os.listdir("/proc/self/fd")) - before)
    hear()
    """
    user = child(script, *(write(f"{n}.h5", 10) for n in range(100)), ram)
    assert user.hear("using") == {"more": 1}
    assert set(users(ram).values()) == {(user.pid,)}


def test_the_lease_on_a_copy_that_was_removed_is_none_on_the_one_that_was_made_anew(child, write, ram):
    source = write("a.h5", 10)
    with staged(source, to=ram) as (path,):
        remove_staged(ram, force=True)
        user = child(STAGE, source, ram)
        assert user.hear("done")["copied"] == 1
        assert users(ram) == {"a.h5": (user.pid,)}
    assert path.exists(), "the copy of another process is not ours to delete"
    user.tell()
    user.end()


def test_who_waits_for_a_copy_uses_it_in_the_end_whatever_was_swept_meanwhile(child, write, ram):
    source = write("a.h5", 4 * MIB)
    copier = child(PAUSED, source, ram)
    copier.hear("half")
    waiting = child(WAITING, source, ram)
    waiting.hear("waiting")
    stage(write("b.h5", 10), to=ram, lease=False)  # sweeps: the manifest does not name who only waits
    copier.tell()
    copier.hear("done")
    waiting.hear("done")
    assert users(ram)["a.h5"] == tuple(sorted([copier.pid, waiting.pid]))


def test_a_user_in_another_namespace_is_seen_and_seen_to_die(child, write, ram):
    script = """
    import ctypes
    CLONE_NEWPID = 0x20000000
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWPID):
        say("refused")
        sys.exit()
    pid = os.fork()
    if pid == 0:
        result = stage(sys.argv[1], to=sys.argv[2])
        say("using", pid=os.getpid())
        hear()
        os._exit(0)
    say("outside", pid=pid)
    os.wait()
    """
    user = child(script, write("a.h5", 10), ram)
    told = {}
    for _ in range(2):
        line = user.hear()
        told[line.pop("word")] = line
        if "refused" in told:
            pytest.skip("namespaces may not be made here")
    assert told["using"] == {"pid": 1}
    with pytest.raises(StagedFileInUseError, match=r"process 1\)"):
        remove_staged(ram)
    os.kill(told["outside"]["pid"], signal.SIGKILL)
    user.end()
    assert remove_staged(ram).bytes_freed == 10


@as_root
def test_another_user_can_neither_hold_nor_end_a_session(child, write, ram):
    script = f"""
    import glob
    import h5stream.storage.file.external  # while it may still be read
    from h5stream.errors import StagingError
    os.setuid({NOBODY})
    for path in (*glob.glob(sys.argv[1] + "/.h5stream/*.session"), sys.argv[1] + "/.h5stream/lock"):
        for action in (lambda: os.open(path, os.O_RDONLY), lambda: os.unlink(path)):
            try:
                action()
            except PermissionError:
                say("refused")
    try:
        stage("/etc/passwd", to=sys.argv[1])
    except StagingError as error:
        say("not ours", message=str(error))
    """
    ram.chmod(0o755)
    held = stage(write("a.h5", 10), to=ram)
    stranger = child(script, ram)
    for _ in range(4):
        stranger.hear("refused")
    assert "Permission denied" in stranger.hear("not ours")["message"]
    assert users(ram) == {"a.h5": (os.getpid(),)}
    held.release()


@as_root
def test_another_users_lock_on_a_copy_keeps_nothing_waiting(child, write, ram, left):
    script = f"""
    import fcntl
    os.setuid({NOBODY})
    fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_EX)
    say("locked")
    hear()
    """
    source = write("a.h5", 10)
    ram.chmod(0o755)
    (copy,) = stage(source, to=ram, lease=False).paths
    copy.chmod(0o644)
    stranger = child(script, copy)
    stranger.hear("locked")
    assert stage(source, to=ram, lease=False).reused == (copy,)
    assert users(ram) == {"a.h5": ()}
    assert remove_staged(ram).bytes_freed == 10
    assert left(ram) == []


def test_a_reader_that_locks_a_copy_as_libhdf5_does_is_not_disturbed(write, ram):
    """libhdf5 takes a lock of this kind with every file that it opens, and fails where it meets another."""
    (copy,) = stage(write("a.h5", 10), to=ram).paths
    with copy.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # not held by the lease
        list_staged(ram)
        with pytest.raises(StagedFileInUseError):
            remove_staged(ram)


def test_a_folder_that_is_gone_ends_its_session(write, tmp_path):
    folder = tmp_path / "fast"
    result = stage(write("a.h5", 10), to=folder)
    subprocess.run(["rm", "-r", folder], check=True)
    result.release()
    assert not folder.exists()
    with pytest.raises(StagingError):
        remove_staged(folder, "a.h5")
