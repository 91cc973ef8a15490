"""Several processes, and processes that die: real children, stopped in mid-copy where the test wants them."""

import signal

import pytest

from h5stream.errors import StagedFileInUseError, StagingError
from h5stream.staging import StagedState, list_staged, remove_staged, stage, verify_staged

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
    "before the name": "run.give_name = lambda *_: die()",
    "after the name": "run.give_name = lambda *names: (give(*names), die())",
}


@pytest.mark.parametrize("moment", KILLS)
def test_a_kill_at_any_other_moment_leaves_nothing_for_good(child, source, ram, left, moment):
    script = f"""
    import signal
    from h5stream.staging import run
    from h5stream.staging.folder import StagingFolder
    give, die = run.give_name, lambda: os.kill(os.getpid(), signal.SIGKILL)
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


def test_force_removes_what_is_in_use(child, source, ram, left):
    user = child(STAGE, source, ram)
    user.hear("done")
    assert remove_staged(ram, "a.h5", force=True).removed == (ram / "a.h5",)
    assert left(ram) == []
    user.tell()
    assert user.end() == 0


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
