from __future__ import annotations

import importlib
import logging
import os
import pickle
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import attrs
import psutil
import pytest

from agentix_runner import LocalProvider, SandboxConfig, run_rollouts
from agentix_runner.cli.adapters import load_provider
from agentix_runner.errors import BadArgument, SandboxStartError
from agentix_runner.protocols import SandboxProvider
from agentix_runner.providers import directories, known_providers
from agentix_runner.providers.owners import Owner, process_start

from ..support import wire_functions as remote
from ..support.background import in_background
from ..support.fakes import PlainAgent, PlainDataset

EMPTY = SandboxConfig(image="")
ROOT = Path(__file__).parents[2]


def descriptors() -> list[str]:
    """This process's open files."""
    folder = "/proc/self/fd" if sys.platform == "linux" else "/dev/fd"
    return sorted(os.listdir(folder))


@pytest.fixture
def nothing_left(tmp_path: Path):  # type: ignore[no-untyped-def]
    """The test leaves no descriptor, thread, child process or directory behind."""
    with LocalProvider(root=tmp_path / "root").session(EMPTY) as sandbox:
        # What is loaded late is loaded now.
        sandbox.remote(remote.make_report)
    before, children = descriptors(), psutil.Process().children()
    yield
    assert descriptors() == before
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("agentix")] == []
    assert list((tmp_path / "root").iterdir()) == []
    assert [child for child in psutil.Process().children() if child not in children] == []


# --- directory, image, environment ---


def test_the_working_directory_is_fresh_and_gone_afterwards(tmp_path: Path) -> None:
    """Each sandbox has an empty directory of its own under `root`, and nothing of it is left."""
    provider = LocalProvider(root=tmp_path)
    with provider.session(EMPTY) as one, provider.session(EMPTY) as other:
        first, second = Path(one.remote(os.getcwd)), Path(other.remote(os.getcwd))
        assert first != second
        assert first.parent.parent == second.parent.parent == tmp_path.resolve()
        assert one.remote(remote.listing) == []
        assert (first.parent.stat().st_mode & 0o777) == 0o700
    assert list(tmp_path.iterdir()) == []


def test_the_image_is_copied_in(tmp_path: Path) -> None:
    """Files, modes, links and empty directories are there; what is done to them doesn't reach the original."""
    image = tmp_path / "image"
    (image / "sub" / "empty").mkdir(parents=True)
    (image / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (image / "run.sh").chmod(0o755)
    (image / "link").symlink_to("run.sh")
    (image / "dangling").symlink_to("/nowhere/at/all")
    os.mkfifo(image / "fifo")
    (image / "sub" / "locked").mkdir(mode=0o555)
    with LocalProvider(root=tmp_path / "root").session(SandboxConfig(image=str(image))) as sandbox:
        assert sandbox.remote(remote.listing) == ["dangling", "link", "run.sh", "sub"]
        assert sandbox.remote(subprocess.getoutput, "./link") == "ran"
        assert sandbox.remote(os.readlink, "dangling") == "/nowhere/at/all"
        assert sandbox.remote(os.listdir, "sub/empty") == []
        sandbox.remote(os.unlink, "run.sh")
    assert (image / "run.sh").exists()


def test_an_image_that_holds_the_root_is_not_copied_into_itself(tmp_path: Path) -> None:
    """The sandboxes' own directories are left out where the image contains them."""
    (tmp_path / "file").touch()
    provider = LocalProvider(root=tmp_path / "root")
    config = SandboxConfig(image=str(tmp_path))
    with provider.session(config) as one, provider.session(config) as other:
        for sandbox in (one, other):
            assert sandbox.remote(remote.listing) == ["file", "root"]
            assert sandbox.remote(os.listdir, "root") == []


@pytest.mark.parametrize("kind", ["missing", "file"])
def test_an_image_that_is_no_directory_is_a_clear_error(kind: str, tmp_path: Path, nothing_left: None) -> None:
    """The error names it, and another try would not help."""
    image = tmp_path / "image"
    if kind == "file":
        image.touch()
    provider = LocalProvider(root=tmp_path / "root")
    with pytest.raises(SandboxStartError, match="is not a directory: give the path of one") as caught:
        provider.session(SandboxConfig(image=str(image))).__enter__()
    assert str(image) in str(caught.value)
    assert caught.value.transient is False


def test_locked_and_deep_directories_are_removed_too(tmp_path: Path) -> None:
    """Whatever modes and depth the sandbox leaves, its directory is gone after the session."""
    with LocalProvider(root=tmp_path).session(EMPTY) as sandbox:
        sandbox.remote(remote.make_locked_directories)
        sandbox.remote(remote.make_deep_directories, 500)
    assert list(tmp_path.iterdir()) == []


def test_variables_come_from_the_provider_and_then_the_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few are inherited, the provider's come next, the configuration's last; HOME and TMPDIR are in the sandbox."""
    monkeypatch.setenv("LANG", "C.UTF-8")
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    monkeypatch.setenv("MY_TOKEN", "secret")
    provider = LocalProvider(root=tmp_path, env={"A": "provider", "B": "provider", "LANG": "C"})
    with provider.session(SandboxConfig(image="", env={"A": "config"})) as sandbox:
        env = sandbox.remote(remote.environment)
        base = Path(sandbox.remote(os.getcwd)).parent
        assert (env["A"], env["B"], env["LANG"], env["PATH"]) == ("config", "provider", "C", os.environ["PATH"])
        assert (env["HOME"], env["TMPDIR"]) == (str(base / "home"), str(base / "tmp"))
        assert env.keys() & {"PYTHONPATH", "MY_TOKEN"} == set()
        assert sandbox.remote(os.path.expanduser, "~") == str(base / "home")


@pytest.mark.parametrize("env", [{"A=B": "1"}, {"A": "x\0y"}, {"A": 5}])
def test_variables_that_cant_be_are_a_start_error(env: dict[str, str], tmp_path: Path, nothing_left: None) -> None:
    """A bad name or value is an error before anything runs."""
    with pytest.raises(SandboxStartError, match="could not be started") as caught:
        LocalProvider(root=tmp_path / "root", env=env).session(EMPTY).__enter__()
    assert caught.value.transient is False


def test_a_root_that_cant_be_made_is_a_start_error(tmp_path: Path) -> None:
    """The error names the directory and the reason."""
    (tmp_path / "file").touch()
    with pytest.raises(SandboxStartError, match=r"no directory for a sandbox can be made in .*/file/root: .*directory"):
        LocalProvider(root=tmp_path / "file" / "root").session(EMPTY).__enter__()


# --- what can be imported ---


def test_modules_of_the_working_directory_go_by_name(tmp_path: Path) -> None:
    """What this process can import, from its working directory too, the sandbox imports; without cloudpickle."""
    (tmp_path / "mine.py").write_text("import os\ndef here(): return __name__, os.getcwd()\n")
    (tmp_path / "main.py").write_text(
        "import sys\n"
        "sys.modules['cloudpickle'] = None\n"
        "sys.path.insert(0, '')\n"
        "import mine\n"
        "from agentix_runner import LocalProvider, SandboxConfig\n"
        "with LocalProvider().session(SandboxConfig(image='')) as sandbox:\n"
        "    print(sandbox.remote(mine.here)[0])\n"
    )
    assert run(tmp_path, "main.py") == "mine\n"


def test_modules_of_calls_that_overlap_are_loaded_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two first calls at once don't import at once: modules that know each other would be seen half made."""
    for name in ("one_slow_module", "another_slow_module"):
        (tmp_path / f"{name}.py").write_text(
            "import time\nbegan = time.monotonic()\ntime.sleep(0.2)\nended = time.monotonic()\n"
            "def when(): return began, ended\n"
        )
    monkeypatch.syspath_prepend(str(tmp_path))
    functions = [importlib.import_module(name).when for name in ("one_slow_module", "another_slow_module")]
    with LocalProvider().session(EMPTY) as sandbox:
        calls = [in_background(sandbox.remote, function) for function in functions]
        first, second = sorted(call.result(60) for call in calls)
    assert first[1] <= second[0]


def test_functions_of_the_main_script_go_by_value(tmp_path: Path) -> None:
    """A script's own functions and classes work, with what they use of the script."""
    (tmp_path / "main.py").write_text(
        "import dataclasses\n"
        "from agentix_runner import LocalProvider, SandboxConfig\n"
        "@dataclasses.dataclass\n"
        "class Pair:\n"
        "    a: int\n"
        "    b: str = 'b'\n"
        "def helper(x): return x + 1\n"
        "def make(pair: Pair) -> Pair: return Pair(helper(pair.a))\n"
        "if __name__ == '__main__':\n"
        "    with LocalProvider().session(SandboxConfig(image='')) as sandbox:\n"
        "        print(sandbox.remote(make, Pair(41)) == Pair(42))\n"
    )
    assert run(tmp_path, "main.py") == "True\n"


def run(folder: Path, script: str) -> str:
    command = [sys.executable, script]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=True).stdout


# --- the start ---


@pytest.mark.parametrize(
    ("script", "text"),
    [
        (
            "echo 'no such thing' >&2; exit 3",
            r"ended before it was ready \(exit code 3\); it wrote: no such thing\. Check",
        ),
        ("exit 0", r"ended before it was ready \(exit code 0\); it wrote nothing\. Check"),
        ("kill -9 $$", r"ended before it was ready \(exit code -9\)"),
        ("echo hello from a wrapper", r"104 is no kind of frame"),
        ("sleep 60", r"gave no answer in 0\.3 s"),
        ("echo waiting >&2; sleep 60", r"gave no answer in 0\.3 s; it wrote: waiting"),
    ],
)
def test_an_interpreter_that_does_not_run_is_a_start_error(
    script: str, text: str, tmp_path: Path, nothing_left: None
) -> None:
    """What it wrote and how it ended are in the error, and nothing is left."""
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    provider = LocalProvider(root=tmp_path / "root", python=str(python), start_timeout=0.3 if "sleep" in script else 30)
    with pytest.raises(SandboxStartError, match=text):
        provider.session(EMPTY).__enter__()


def test_an_interpreter_that_isnt_there_is_a_start_error(tmp_path: Path, nothing_left: None) -> None:
    """The error names it; another try would not help."""
    provider = LocalProvider(root=tmp_path / "root", python="/no/such/python")
    with pytest.raises(SandboxStartError, match="/no/such/python could not be started") as caught:
        provider.session(EMPTY).__enter__()
    assert caught.value.transient is False


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"start_timeout": 0}, r"LocalProvider\.start_timeout is 0: give a number above 0"),
        ({"start_timeout": float("nan")}, r"LocalProvider\.start_timeout is nan: give a number above 0"),
        ({"max_log": -1}, r"LocalProvider\.max_log is -1: give a whole number, 0 or more"),
        ({"max_result": "1g"}, r"LocalProvider\.max_result is '1g': give a whole number"),
    ],
)
def test_a_wrong_argument_is_found_at_once(settings: dict[str, Any], text: str) -> None:
    """No provider is made with it, and no rollout has to fail for it."""
    with pytest.raises(BadArgument, match=text):
        LocalProvider(**settings)


@pytest.mark.parametrize(
    ("settings", "run", "text"),
    [
        ({"python": "/bin/false"}, {}, r"LocalProvider\.python is '/bin/false': give a Python 3\.\d+, as this one is"),
        ({"python": "/no/such"}, {}, r"LocalProvider\.python is '/no/such', which does not run: .*No such file"),
        ({"root": "/no/such"}, {}, r"LocalProvider\.root is '/no/such': there is no directory to make it in"),
        ({}, {"bundle": "eval:1"}, "the local provider runs this machine's Python: leave the bundle 'eval:1' out"),
        ({}, {"platform": "linux/arm64"}, "runs on this machine only: leave the platform 'linux/arm64' out"),
    ],
)
def test_what_can_not_work_is_told_before_the_first_rollout(
    settings: dict[str, Any], run: dict[str, Any], text: str
) -> None:
    """A run with it is refused as a whole."""
    with pytest.raises(BadArgument, match=text):
        run_rollouts(dataset=PlainDataset(), agent=PlainAgent(), provider=LocalProvider(**settings), **run)


def test_what_works_is_not_refused(tmp_path: Path) -> None:
    """Another interpreter of this version, and a root that is to be made, are fine."""
    provider = LocalProvider(root=tmp_path / "root", python=sys.executable)
    assert provider.check_run(bundle=None, platform=None) is None


def test_too_few_descriptors_are_a_start_error(tmp_path: Path, nothing_left: None) -> None:
    """Where descriptors run out the error says what to raise."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = max(map(int, descriptors()))
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(used + 3 - len(descriptors()))]
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 3, hard))
    try:
        # The sandbox's directory can't be removed the usual way either, and is gone all the same.
        with pytest.raises(SandboxStartError, match=r"Too many open files: raise `ulimit -n`"):
            LocalProvider(root=tmp_path / "root").session(EMPTY).__enter__()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for number in held:
            os.close(number)


# --- the end ---


def test_a_session_leaves_nothing(tmp_path: Path, nothing_left: None) -> None:
    """Calls, errors, long results and kill() leave no descriptor, thread, child process or directory."""
    with LocalProvider(root=tmp_path / "root").session(SandboxConfig(image="", on_log=lambda data: None)) as sandbox:
        assert len(sandbox.remote(remote.zeros, 4_000_000)) == 4_000_000
        sandbox.remote(remote.say_much, 3_000_000)
        in_background(sandbox.remote, remote.sleep, 60)
    session = LocalProvider(root=tmp_path / "root").session(EMPTY)
    sandbox = session.__enter__()
    in_background(sandbox.remote, remote.sleep, 60)
    sandbox.kill()
    assert session.__exit__(RuntimeError, RuntimeError("of the body"), None) is False


def test_many_sessions_at_once_hold_nothing_of_each_other(tmp_path: Path, nothing_left: None) -> None:
    """Sandboxes started from many threads end one by one: none inherits what would hold another one open."""

    def one(number: int) -> int:
        with LocalProvider(root=tmp_path / "root").session(EMPTY) as sandbox:
            value: int = sandbox.remote(remote.add, number)
            return value

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(one, range(40))) == list(range(40))


def test_a_session_takes_no_more_descriptors_than_it_says(tmp_path: Path) -> None:
    """`fds_per_session` is what a session takes at most."""
    before = len(descriptors())
    with LocalProvider(root=tmp_path).session(EMPTY) as sandbox:
        sandbox.remote(remote.zeros, 3_000_000)
        assert len(descriptors()) - before == 2 <= LocalProvider.fds_per_session


def test_a_directory_that_cant_be_removed_is_only_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The session's own outcome stays what it is."""

    def refuse(path: str) -> None:
        raise PermissionError(1, "immutable", path)

    monkeypatch.setattr(directories, "remove_tree", refuse)
    with LocalProvider(root=tmp_path).session(EMPTY) as sandbox:
        assert sandbox.remote(remote.add, 1) == 1
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert "could not be removed: [Errno 1] immutable" in record.getMessage()


def test_a_fork_of_this_process_ends_no_sandbox(tmp_path: Path) -> None:
    """A child process that leaves the session, or that goes on, neither ends the sandbox nor holds it open."""
    with LocalProvider(root=tmp_path).session(EMPTY) as sandbox:
        leaving = subprocess.run(
            [sys.executable, "-c", FORKING, str(tmp_path)], cwd=ROOT, capture_output=True, text=True
        )
        assert (leaving.stdout, leaving.returncode) == ("child left\nparent: 3\nended\n", 0), leaving.stderr
        assert sandbox.remote(remote.add, 1) == 1


FORKING = """
import os, sys, time
from agentix_runner import LocalProvider, SandboxConfig
from tests.support import wire_functions
staying = 0
with LocalProvider(root=sys.argv[1]).session(SandboxConfig(image="")) as sandbox:
    pid = os.fork()
    if pid == 0:
        try:
            with LocalProvider(root=sys.argv[1]).session(SandboxConfig(image="")):
                pass
        finally:
            os.write(1, b"child left\\n")
    else:
        assert os.waitpid(pid, 0)[1] == 0
        os.write(1, b"parent: %d\\n" % sandbox.remote(wire_functions.add, 1, 2))
        staying = os.fork()
        if staying == 0:
            time.sleep(60)
            os._exit(0)
if pid:
    os.write(1, b"ended\\n")
    os.kill(staying, 9)
    os.waitpid(staying, 0)
"""


# --- sweeping what dead owners left ---


def left_by(owner: str, home: Path) -> Path:
    path = home / f"agentix-local-{owner}-abc123"
    (path / "work" / "locked").mkdir(parents=True)
    (path / "work" / "locked").chmod(0o500)
    return path


def test_the_first_session_sweeps_what_dead_owners_left(tmp_path: Path) -> None:
    """Directories of dead processes go; those of living ones, of other machines, and of other things stay."""
    child = subprocess.Popen(["true"])
    child.wait(10)
    me = Owner.current()
    ended, earlier = attrs.evolve(me, pid=str(child.pid)).name, attrs.evolve(me, start="9fcb.1").name
    dead = [left_by(ended, tmp_path), left_by(earlier, tmp_path)]
    alive = [
        left_by(me.name, tmp_path),
        left_by(f"00000000-{child.pid}-9fcb.1", tmp_path),
        tmp_path / "agentix-local-mine",
        tmp_path / "agentix-local-a-b-c-d",
    ]
    for path in alive[2:]:
        path.mkdir()
    with LocalProvider(root=tmp_path).session(EMPTY):
        assert [path.exists() for path in dead] == [False] * 2
        assert [path.exists() for path in alive] == [True] * 4
    late = left_by(ended, tmp_path)
    with LocalProvider(root=tmp_path).session(EMPTY):
        assert late.exists()


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_sweeping_kills_what_still_runs_there(tmp_path: Path) -> None:
    """A process that carries a dead owner's marker ends with its directory."""
    path = left_by(attrs.evolve(Owner.current(), start="9fcb.1").name, tmp_path)
    orphan = subprocess.Popen(["sleep", "300"], env={"AGENTIX_SANDBOX": path.name})
    other = subprocess.Popen(["sleep", "300"], env={"AGENTIX_SANDBOX": path.name + "4"})
    try:
        directories.sweep(str(tmp_path))
        assert orphan.wait(10) == -9
        assert not path.exists()
        assert other.poll() is None
    finally:
        for process in (orphan, other):
            process.kill()
            process.wait(10)


def test_an_owner_is_told_from_another_process_of_its_number() -> None:
    """Start times differ between processes, are stable for one, and empty for none."""
    me = process_start(os.getpid())
    assert me
    assert me == process_start(os.getpid())
    child = subprocess.Popen(["true"])
    child.wait(10)
    assert process_start(child.pid) == ""


# --- the provider itself ---


def test_a_provider_survives_pickling() -> None:
    """It is plain configuration, equal after the journey."""
    provider = LocalProvider(root="/x", env={"A": "1"}, max_log=5)
    assert pickle.loads(pickle.dumps(provider)) == provider
    assert isinstance(provider, SandboxProvider)


def test_importing_the_provider_stays_light() -> None:
    """Neither docker nor click, asyncio, cattrs or cloudpickle are loaded for it, nor for a first call."""
    code = (
        "import os, sys\n"
        "from agentix_runner import LocalProvider, SandboxConfig\n"
        "with LocalProvider().session(SandboxConfig(image='')) as sandbox:\n"
        "    sandbox.remote(os.getpid)\n"
        "heavy = {'docker', 'click', 'asyncio', 'cattrs', 'cloudpickle', 'importlib.metadata'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"


def test_local_is_known_and_loaded_with_text_for_arguments() -> None:
    """Text is converted as the constructor's annotations say."""
    assert "local" in known_providers()
    assert load_provider("local", {}) == LocalProvider()
    args = {"root": "none", "max_log": "1000", "start_timeout": "2.5", "python": "python3"}
    assert load_provider("local", args) == LocalProvider(max_log=1000, start_timeout=2.5, python="python3")


@pytest.mark.parametrize(
    ("name", "args", "text"),
    [
        ("locall", {}, "unknown provider 'locall': there are local, .*did you mean 'local'"),
        ("k8s", {}, "unknown provider 'k8s': there are .*local"),
        (
            "local",
            {"rot": "/x"},
            "--provider-arg rot: provider 'local' does not take 'rot'; it takes root, env, python, start_timeout,",
        ),
        ("local", {"max_log": "many"}, "--provider-arg max_log: give a whole number, not 'many'"),
        ("local", {"start_timeout": "x"}, "--provider-arg start_timeout: give a number, not 'x'"),
        ("local", {"env": "A=1"}, "--provider-arg env: give none, or give a JSON object, .* not 'A=1'"),
    ],
)
def test_what_no_provider_can_be_made_of_is_a_clear_error(name: str, args: dict[str, str], text: str) -> None:
    """The error names the culprit and what there is instead."""
    with pytest.raises(BadArgument, match=text.replace("there are local, .*did", "there are .*did")):
        load_provider(name, args)


def test_a_provider_that_does_not_load_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """The import error is in the message."""
    monkeypatch.setattr(
        "agentix_runner.providers.by_name._entry_points", lambda: {"far": "no.such.module:X", "odd": "os:Nothing"}
    )
    with pytest.raises(BadArgument, match=r"provider 'far' \(no.such.module:X\) can't be loaded: No module named 'no'"):
        load_provider("far", {})
    with pytest.raises(BadArgument, match="module 'os' has no attribute 'Nothing'"):
        load_provider("odd", {})
