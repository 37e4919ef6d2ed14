"""The guard, with real processes and real signals: whatever happens, nothing of a sandbox is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from agentix_runner import LocalProvider, SandboxConfig
from agentix_runner.errors import SandboxDied, SandboxError
from agentix_runner.remote.sandbox import guard
from agentix_runner.remote.sandbox.remove_tree import remove_tree

from ..support import wire_functions as remote
from ..support.background import in_background

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root may look into the guard")
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="macOS has no subreaper: what left the group stays")

HOST = """
import sys
from agentix_runner import LocalProvider, SandboxConfig
from tests.support import wire_functions
from tests.support.background import in_background
with LocalProvider(root=sys.argv[1]).session(SandboxConfig(image="")) as sandbox:
    BEFORE
    call = in_background(sandbox.remote, getattr(wire_functions, sys.argv[2]), *sys.argv[3:])
    print("started", flush=True)
    call.result()
"""

STATES = {
    "running, with a daemon": (remote.note_all, 3),
    "stopped": (remote.stop_me, 1),
    "holding the lock": (remote.hold_the_lock, 1),
    "left a fork chain": (remote.fork_chain, 1),
    "left a swarm of fork chains": (remote.fork_swarm, 1),
}


def is_alive(pid: int) -> bool:
    """Whether the process runs: a zombie doesn't."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes() if sys.platform == "linux" else b") S"
        os.kill(pid, 0)
    except (OSError, ProcessLookupError):
        return False
    return stat.rpartition(b")")[2].split()[0] not in (b"Z", b"X")


def marked(name: str) -> list[int]:
    """The processes that carry a sandbox's marker, or are its guard or forks of it."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            said = b""
            for what in ("cmdline", "environ"):
                # Guard and worker show their environment to root alone.
                with suppress(OSError):
                    said += (entry / what).read_bytes()
            if name.encode() in said and is_alive(int(entry.name)):
                found.append(int(entry.name))
    return found


def eventually(condition: Callable[[], object], what: str) -> None:
    """Wait for `condition`. The limit is only there so that a failure ends."""
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.005)


@contextmanager
def host(
    root: Path, function: Callable[..., object], *arguments: str, before: str = "pass"
) -> Iterator[subprocess.Popen[str]]:
    """Another process that has a sandbox under `root` and runs `function` in it, after the statement `before`."""
    script = HOST.replace("BEFORE", before.replace("\n", "\n    "))
    command = [sys.executable, "-c", script, str(root), function.__name__, *arguments]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=Path(__file__).parents[2]
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "started\n"
            yield process
        finally:
            process.kill()


@linux_only
@pytest.mark.parametrize("state", STATES)
def test_nothing_is_left_when_the_host_is_killed(state: str, tmp_path: Path) -> None:
    """kill -9 of the host in the middle of a call: every process is gone, and so is the directory."""
    function, lines = STATES[state]
    notes, root = str(tmp_path / "notes"), tmp_path / "root"
    with host(root, function, notes) as process:
        remote.wait_for(notes, lines)
        (directory,) = root.iterdir()
        assert marked(directory.name)
        process.kill()
        process.wait(30)
        eventually(lambda: not any(root.iterdir()), "the directory is left")
        eventually(lambda: not marked(directory.name), "a process is left")
        pids = [int(pid) for pid in Path(notes).read_text().split()]
        eventually(lambda: not any(map(is_alive, pids)), "a process is left")


@linux_only
@pytest.mark.parametrize("state", STATES)
def test_nothing_is_left_after_the_session(state: str, tmp_path: Path) -> None:
    """The end of the session ends every process and removes the directory, before it returns."""
    function, lines = STATES[state]
    notes = str(tmp_path / "notes")
    with LocalProvider(root=tmp_path / "root").session(SandboxConfig(image="")) as sandbox:
        (directory,) = (tmp_path / "root").iterdir()
        in_background(sandbox.remote, function, notes)
        remote.wait_for(notes, lines)
    assert marked(directory.name) == []
    assert not directory.exists()


@linux_only
def test_nothing_is_left_after_kill(tmp_path: Path) -> None:
    """kill() alone ends every process, also a daemon, while the session is still open."""
    notes = str(tmp_path / "notes")
    with LocalProvider(root=tmp_path / "root").session(SandboxConfig(image="")) as sandbox:
        call = in_background(sandbox.remote, remote.note_all, notes)
        remote.wait_for(notes, 3)
        (directory,) = (tmp_path / "root").iterdir()
        sandbox.kill()
        assert isinstance(call.exception(30), SandboxDied)
        eventually(lambda: not marked(directory.name), "a process is left")


@linux_only
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_nothing_is_left_when_the_guard_is_attacked(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sandbox that kills or stops its guard is swept by the host, its daemons too, and its end is not confirmed."""
    monkeypatch.setattr("agentix_runner.remote.host.connection.RELEASE_LIMIT_S", 0.5)
    notes = str(tmp_path / "notes")
    # A guard that is stopped may still be seen to its end.
    end = pytest.raises(SandboxError, match="did not end") if number == signal.SIGKILL else suppress(SandboxError)
    with end, LocalProvider(root=tmp_path / "root").session(SandboxConfig(image="")) as sandbox:
        (directory,) = (tmp_path / "root").iterdir()
        sandbox.remote(remote.daemonize, notes)
        in_background(sandbox.remote, remote.kill_guard, int(number))
        if number == signal.SIGKILL:
            with pytest.raises(SandboxDied):
                sandbox.remote(remote.sleep, 60)
    assert marked(directory.name) == []
    assert not directory.exists()


@linux_only
def test_a_fork_of_the_host_does_not_hold_a_sandbox_open(tmp_path: Path) -> None:
    """A killed host's sandboxes end although a process that it forked lives on."""
    notes, root = str(tmp_path / "notes"), tmp_path / "root"
    with host(root, remote.note_all, notes, before="import os, time\nif os.fork() == 0: time.sleep(60)") as process:
        remote.wait_for(notes, 3)
        (directory,) = root.iterdir()
        process.kill()
        process.wait(30)
        try:
            eventually(lambda: not directory.exists(), "the directory is left")
        finally:
            for pid in marked(str(root)):
                os.kill(pid, signal.SIGKILL)


@linux_only
def test_a_killed_guard_takes_its_worker_along(tmp_path: Path) -> None:
    """A worker does not outlive its guard, even where nobody else looks after it."""
    notes = str(tmp_path / "notes")
    with host(tmp_path / "root", remote.note_all, notes) as process:
        remote.wait_for(notes, 3)
        _, worker, guardian = map(int, Path(notes).read_text().split())
        os.kill(guardian, signal.SIGKILL)
        eventually(lambda: not is_alive(worker), "the worker is left")
        process.wait(30)


@linux_only
def test_the_terminals_interrupt_does_not_reach_the_sandbox(tmp_path: Path) -> None:
    """Guard and worker are in sessions of their own; what is typed at the terminal is the host's."""
    with LocalProvider(root=tmp_path).session(SandboxConfig(image="")) as sandbox:
        assert sandbox.remote(os.getsid, 0) == sandbox.remote(os.getpid)
        assert os.getsid(sandbox.remote(os.getppid)) == sandbox.remote(os.getppid)


@linux_only
def test_guard_and_worker_cant_be_read_by_others(tmp_path: Path) -> None:
    """Both are undumpable: their descriptors and memory belong to root, for everyone else to leave alone."""
    with LocalProvider(root=tmp_path).session(SandboxConfig(image="")) as sandbox:
        assert sandbox.remote(dumpable) == 0
        for name in ("getpid", "getppid"):
            assert os.stat(f"/proc/{sandbox.remote(getattr(os, name))}/fd").st_uid == 0


def dumpable() -> int:
    """What prctl(PR_GET_DUMPABLE) says."""
    import ctypes

    return int(ctypes.CDLL(None).prctl(3))


@linux_only
@root_only
def test_the_guard_holds_no_way_into_the_frames() -> None:
    """The guard's own stdout and stderr lead nowhere; its stdin is there only to hear the host hang up."""
    with LocalProvider().session(SandboxConfig(image="")) as sandbox:
        folder = f"/proc/{sandbox.remote(os.getppid)}/fd"
        assert [os.readlink(f"{folder}/{number}") for number in (1, 2)] == [os.devnull] * 2
        kinds = sorted(os.readlink(f"{folder}/{name}").partition(":")[0] for name in os.listdir(folder))
        assert kinds.count("socket") == 1


@linux_only
def test_a_term_signal_ends_the_sandbox(tmp_path: Path) -> None:
    """SIGTERM to the guard (as `docker stop` sends it) ends the sandbox tidily."""
    with LocalProvider(root=tmp_path).session(SandboxConfig(image="")) as sandbox:
        (directory,) = tmp_path.iterdir()
        guardian = sandbox.remote(os.getppid)
        os.kill(guardian, signal.SIGTERM)
        eventually(lambda: not directory.exists(), "the directory is left")
        eventually(lambda: not is_alive(guardian), "the guard is left")


def test_orphans_are_reaped() -> None:
    """No zombie piles up in a sandbox whose processes lose their parents."""
    with LocalProvider().session(SandboxConfig(image="")) as sandbox:
        assert sandbox.remote(os.system, "(true & true &) ; (true &)") == 0
        guardian = sandbox.remote(os.getppid)
        if sys.platform == "linux":
            children = Path(f"/proc/{guardian}/task/{guardian}/children")
            eventually(lambda: len(children.read_text().split()) == 1, "a zombie is left")


@pytest.mark.parametrize("status", [0, 1, 77, 255])
def test_the_guard_exits_as_the_worker_did(status: int) -> None:
    """The exit status is the worker's own, for engines that know no more than that."""
    with LocalProvider().session(SandboxConfig(image="")) as sandbox:
        with pytest.raises(SandboxDied) as caught:
            sandbox.remote(remote.exit_hard, status)
        assert caught.value.exit_code == status
        assert sandbox._transport._process.wait(30) == status  # type: ignore[attr-defined]


def test_the_guard_tells_a_signal_by_status_too() -> None:
    """Killed by signal n is status 128 + n, as shells and container engines have it."""
    with LocalProvider().session(SandboxConfig(image="")) as sandbox:
        with pytest.raises(SandboxDied):
            sandbox.remote(remote.kill_me, signal.SIGKILL)
        assert sandbox._transport._process.wait(30) == 137  # type: ignore[attr-defined]


@linux_only
def test_children_are_found_without_the_kernels_list(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where /proc has no list of children, they are found by their parent."""
    child = subprocess.Popen(["sleep", "60"])
    try:
        with_list = guard._children()
        monkeypatch.setattr("builtins.open", _without_children_file(open))
        assert child.pid in with_list
        assert sorted(guard._children()) == sorted(with_list)
    finally:
        child.kill()
        child.wait(10)


def _without_children_file(original: Callable[..., object]) -> Callable[..., object]:
    def opening(path: object, *args: object, **kwargs: object) -> object:
        if str(path).endswith("/children"):
            raise FileNotFoundError(path)
        return original(path, *args, **kwargs)

    return opening


def test_memory_running_out_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The count of kernel kills for memory is read from the container's own file, else from the machine's."""
    assert guard._oom_kills() >= 0
    fake = tmp_path / "events"
    fake.write_text("low 0\noom 4\noom_kill 3\noom_group_kill 0\n")
    original = open
    monkeypatch.setattr("builtins.open", lambda path, *a: original(fake if "memory.events" in path else path, *a))
    assert guard._oom_kills() == 3


# --- trees ---


def test_a_tree_is_removed_whatever_its_modes(tmp_path: Path) -> None:
    """Read-only and unreadable directories, links and names of ours are no hindrance, and links are not followed."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    tree = tmp_path / "tree"
    for name in ("a/b/c", "a/.1/.2", ".1/x", ".2"):
        (tree / name).mkdir(parents=True)
        (tree / name / "file").touch()
    (tree / ".3").symlink_to("nowhere")
    (tree / "a" / "link").symlink_to(outside)
    (tree / "link").symlink_to(outside, target_is_directory=True)
    os.mkfifo(tree / "a" / "fifo")
    for name in ("a/b/c", "a/b", "a", ""):
        os.chmod(tree / name, 0o000)
    remove_tree(str(tree))
    assert not tree.exists()
    assert (outside / "kept").exists()


def test_a_tree_deeper_than_any_path_is_removed(tmp_path: Path) -> None:
    """Three thousand levels, more than a path may have characters, take no recursion and few descriptors."""
    here = os.getcwd()
    (tmp_path / "tree").mkdir()
    os.chdir(tmp_path / "tree")
    try:
        remote.make_deep_directories(3000)
    finally:
        os.chdir(here)
    remove_tree(str(tmp_path / "tree"))
    assert list(tmp_path.iterdir()) == []


@root_only
def test_modes_are_no_hindrance_to_those_whom_they_bind() -> None:
    """What root may do anyway, an ordinary user's guard does too: read-only and unreadable directories are removed."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        child = os.fork()
        if child == 0:
            # Nothing is imported from here on: the user may not read where it is installed.
            status = 1
            try:
                os.setresuid(65534, 65534, 65534)
                tree = os.path.join(folder, "tree")
                os.makedirs(os.path.join(tree, "a", "b", "c"))
                for name in ("a/b/c", "a/b", "a", ""):
                    os.close(os.open(os.path.join(tree, name, "file"), os.O_CREAT, 0o400))
                    os.chmod(os.path.join(tree, name), 0o500 if name == "a/b" else 0o000)
                remove_tree(tree)
                status = 2 if os.path.lexists(tree) else 0
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_removing_what_isnt_there_is_no_error(tmp_path: Path) -> None:
    """Whoever comes second has nothing to do."""
    remove_tree(str(tmp_path / "none"))
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        remove_tree(str(tmp_path / "file"))


def test_what_cant_be_removed_is_told_and_the_rest_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One file that stays keeps only its own directory."""
    for name in ("a", "b"):
        (tmp_path / "tree" / name).mkdir(parents=True)
        (tmp_path / "tree" / name / f"{name}1").touch()
        (tmp_path / "tree" / name / f"{name}2").touch()
    original = os.unlink

    def unlink(path: str, **where: int) -> None:
        if path == "a1":
            raise PermissionError(1, "immutable", path)
        original(path, **where)

    monkeypatch.setattr(os, "unlink", unlink)
    with pytest.raises(PermissionError, match="immutable"):
        remove_tree(str(tmp_path / "tree"))
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")] == ["tree", "tree/a", "tree/a/a1"]
