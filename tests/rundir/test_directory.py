"""The run directory, with real files, processes and full disks."""

from __future__ import annotations

import itertools
import json
import logging
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agentix_runner.errors import BadOutcome, JournalError, RunDirError
from agentix_runner.records import NOT_RUN, Failure, Rollout
from agentix_runner.rundir import directory
from agentix_runner.rundir import files as files_module
from agentix_runner.rundir.directory import RunDir, read_rollouts
from agentix_runner.rundir.journal import encode
from agentix_runner.rundir.names import safe_name

HANG_S = 60
"""How long a child may take before a test calls it hung."""


def _open(path: Path, **more: Any) -> RunDir:
    return RunDir(path, **{"identity": {"model": "m"}, **more})


def _good(instance_id: str, attempt: int = 0, **more: Any) -> Rollout:
    return Rollout(
        instance_id, **{"attempt": attempt, "patch": "diff\n", "score": {"resolved": True}, "model": "m", **more}
    )


def _bad(instance_id: str, **more: Any) -> Rollout:
    return Rollout(instance_id, error="Boom: x", failure=Failure("agent", "Boom", "x"), **more)


def _files(path: Path) -> set[str]:
    return {str(found.relative_to(path)) for found in path.rglob("*") if found.is_file()}


def _python(code: str, *args: object, **more: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", code, *map(str, args)], stdout=subprocess.PIPE, **more)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "one"


def test_what_is_in_it(path: Path) -> None:
    """A run leaves run.json, the journal, predictions, a summary, and a folder with patch, log and files for each."""
    with _open(path, details={"command": "x"}) as run:
        log = run.log("Some/id", 0)
        log(b"hello ")
        log(b"there\xff\n")
        run.save("Some/id", 0, {"traj.json": "{}", "raw": b"\xff"})
        run.record([_good("Some/id", patch="a\r\nb")])

    folder = path / "Some%2fid~1"
    assert _files(path) == {
        "run.json",
        "run.lock",
        "rollouts.jsonl",
        "preds.json",
        "summary.json",
        *(f"{folder.name}/{name}" for name in ("patch.diff", "sandbox.log", "traj.json", "raw")),
    }
    assert (folder / "patch.diff").read_bytes() == b"a\r\nb"
    assert (folder / "sandbox.log").read_bytes() == b"hello there\xff\n"
    assert (folder / "raw").read_bytes() == b"\xff"
    assert json.loads((path / "summary.json").read_text())["resolved"] == 1
    made = json.loads((path / "run.json").read_text())
    assert made["identity"] == {"model": "m"}
    assert made["details"] == {"command": "x"}
    assert made["run_id"] == run.run_id


def test_details_are_of_the_last_time(path: Path) -> None:
    """Opened again, run.json says what the run is now to do; all else in it stays."""
    _open(path, details={"rollouts": 2}).close()
    before = json.loads((path / "run.json").read_text())
    _open(path, details={"rollouts": 5}).close()
    assert json.loads((path / "run.json").read_text()) == {**before, "details": {"rollouts": 5}}


def test_resumes(path: Path) -> None:
    """Opened again, it has the same run id, and tells what is finished: all of it, equal to what was recorded."""
    rollouts = [
        _good("a"),
        _good("a", 1, patch="\udcff\ud800\x00\r\n"),
        _bad("b"),
        Rollout("c", skipped="setup_failed"),
    ]
    with _open(path) as run:
        assert run.finished == {}
        run.record(rollouts[:1])
        run.record(rollouts[1:])
        run_id = run.run_id

    with _open(path) as run:
        assert run.run_id == run_id
        assert run.finished == {(rollout.instance_id, rollout.attempt): rollout for rollout in rollouts}
        assert list(run.finished) == [("a", 0), ("a", 1), ("b", 0), ("c", 0)]


def test_retry_errors(path: Path) -> None:
    """With retry_errors what has an error is not finished; its old line stays, and the last one counts."""
    with _open(path) as run:
        run.record([_good("a"), _bad("b"), Rollout("c", skipped="setup_failed")])
    with _open(path, retry_errors=True) as run:
        assert list(run.finished) == [("a", 0), ("c", 0)]
        run.record([_good("b")])

    assert len((path / "rollouts.jsonl").read_bytes().splitlines()) == 4
    assert [rollout.instance_id for rollout in read_rollouts(path)] == ["a", "c", "b"]
    assert list(read_rollouts(path))[-1] == _good("b")
    assert json.loads((path / "summary.json").read_text())["error"] == 0
    with _open(path) as run:
        assert run.finished["b", 0] == _good("b")


def test_what_did_not_run_is_not_recorded(path: Path) -> None:
    """A rollout that a stop kept from running is left out, so that resuming runs it."""
    with _open(path) as run:
        run.record([Rollout("a", error=NOT_RUN + "stopped"), _good("b")])
        run.record([Rollout("c", error=NOT_RUN + "stopped")])

    assert [rollout.instance_id for rollout in read_rollouts(path)] == ["b"]


def test_nothing_unrecordable_gets_in(path: Path) -> None:
    """When one of several rollouts can't be recorded, none is, and the directory stays usable."""
    with _open(path) as run:
        with pytest.raises(BadOutcome):
            run.record([_good("a"), _good("b", score={"x": object()})])
        run.record([_good("c")])

    assert [rollout.instance_id for rollout in read_rollouts(path)] == ["c"]


def test_predictions(path: Path) -> None:
    """preds.json has what the SWE-bench harness reads: finished attempts with their patch, empty ones included."""
    with _open(path) as run:
        run.record(
            [
                _good("b"),
                _good("b", 2, patch="third"),
                _good("a", model=None, patch="x\r\n\udcff"),
                Rollout("empty", skipped="empty_patch", model="m"),
                _bad("failed after its patch", patch="kept", model="m"),
                _bad("failed before"),
                Rollout("no setup", skipped="setup_failed"),
            ]
        )

    preds = json.loads((path / "preds.json").read_text())
    assert preds == {
        "a": {"instance_id": "a", "model_name_or_path": "none", "model_patch": "x\r\n\udcff"},
        "b": {"instance_id": "b", "model_name_or_path": "m", "model_patch": "diff\n"},
        "empty": {"instance_id": "empty", "model_name_or_path": "m", "model_patch": ""},
        "failed after its patch": {
            "instance_id": "failed after its patch",
            "model_name_or_path": "m",
            "model_patch": "kept",
        },
    }
    assert list(preds) == sorted(preds)
    assert not (path / "preds.1.json").exists()
    assert list(json.loads((path / "preds.2.json").read_text())) == ["b"]


def test_an_empty_run_has_empty_results(path: Path) -> None:
    """A run without a single rollout leaves files that can be read."""
    _open(path).close()

    assert json.loads((path / "preds.json").read_text()) == {}
    assert json.loads((path / "summary.json").read_text())["rollouts"] == 0
    assert list(read_rollouts(path)) == []


def test_refresh_while_it_runs(path: Path) -> None:
    """What is derived can be brought up to date at any time, and read by others meanwhile."""
    with _open(path) as run:
        run.record([_good("a")])
        run.refresh()
        assert list(json.loads((path / "preds.json").read_text())) == ["a"]
        assert list(read_rollouts(path)) == [_good("a")]
        run.record([_good("b")])
        assert list(read_rollouts(path)) == [_good("a"), _good("b")]
        run.refresh()
        assert list(json.loads((path / "preds.json").read_text())) == ["a", "b"]


def test_order_does_not_matter_for_the_results(path: Path, tmp_path: Path) -> None:
    """Predictions and summary are the same bytes in whatever order the rollouts finished, over however many runs."""
    rollouts = [_good(f"i{n}", attempt, duration_s=n / 7) for n in range(5) for attempt in range(2)]
    with _open(path) as run:
        run.record(rollouts)
    other = tmp_path / "other"
    for rollout in reversed(rollouts):
        with _open(other) as run:
            run.record([rollout])

    for name in ("preds.json", "preds.1.json", "summary.json"):
        assert (path / name).read_bytes() == (other / name).read_bytes()


def test_a_patch_that_is_gone_or_stale_is_restored(path: Path) -> None:
    """A crash between the journal and the patches is made up for when the directory is used again."""
    with _open(path) as run:
        run.record([_good("a"), _good("b"), _good("c")])
    (path / "a" / "patch.diff").unlink()
    (path / "b" / "patch.diff").write_bytes(b"xxxx\n")
    untouched = (path / "c" / "patch.diff").stat().st_ino

    _open(path).close()

    assert (path / "a" / "patch.diff").read_bytes() == b"diff\n"
    assert (path / "b" / "patch.diff").read_bytes() == b"diff\n"
    assert (path / "c" / "patch.diff").stat().st_ino == untouched


def test_a_rollout_that_runs_again_leaves_nothing_stale(path: Path) -> None:
    """The log starts afresh, and a patch that there no longer is goes away."""
    with _open(path) as run:
        run.log("a", 0)(b"old log")
        run.record([_bad("a", patch="old")])
    with _open(path, retry_errors=True) as run:
        run.log("a", 0)
        run.record([_bad("a")])
        assert _files(path / "a") == set()
        run.log("a", 0)(b"new")

    assert (path / "a" / "sandbox.log").read_bytes() == b"new"


def test_long_ids_are_kept_in_a_file(path: Path) -> None:
    """Where a folder's name is too short for the id, a file in it has the id."""
    long = "x/" * 200
    with _open(path) as run:
        run.log(long, 0)(b"log")
        run.record([_good(long, 3)])

    for attempt in (0, 3):
        content = json.loads((path / safe_name(long, attempt) / "instance.json").read_text())
        assert content == {"instance_id": long, "attempt": attempt}


def test_ids_that_differ_by_case_have_folders_that_differ_by_more(path: Path) -> None:
    """On a file system that ignores case, no rollout gets another one's files."""
    with _open(path) as run:
        run.record([_good("abc", patch="1"), _good("ABC", patch="2"), _good("Abc", patch="3")])

    folders = [found.name.lower() for found in path.iterdir() if found.is_dir()]
    assert len(folders) == len(set(folders)) == 3


# Directories that can't be used


def test_a_different_run_is_refused(path: Path) -> None:
    """The directory of another run is an error that names each difference with both values, and changes nothing."""
    with _open(path, identity={"model": "a", "agent": {"n": 1}, "score": True}) as run:
        run.record([_good("a")])
    before = {name: (path / name).read_bytes() for name in _files(path)}

    with pytest.raises(RunDirError) as caught:
        _open(path, identity={"model": "b", "agent": {"n": 2}, "score": True})

    assert str(caught.value) == (
        f'{path} holds a different run: agent.n was 1 and is 2 now; model was "a" and is "b" now. '
        "Give another directory, or the arguments of that run"
    )
    assert caught.value.path == str(path)
    del before["run.lock"]
    assert {name: (path / name).read_bytes() for name in before} == before


def test_secrets_are_not_written(path: Path) -> None:
    """Neither the identity nor the details put a secret on disk, and another key is not another run."""
    _open(path, identity={"model": "m", "api_key": "k1"}, details={"token": "k2", "args": ["sk-abcdefgh1234"]}).close()

    text = (path / "run.json").read_text()
    assert not {"k1", "k2", "sk-abcdefgh1234"} & set(text.replace('"', " ").split())
    _open(path, identity={"model": "m", "api_key": "k3"}).close()


def test_something_else_is_refused(tmp_path: Path) -> None:
    """A directory that holds something else is an error, and nothing is written into it."""
    (tmp_path / "thesis.tex").touch()

    with pytest.raises(RunDirError, match=r"is no run directory: it has no run\.json, but 'thesis\.tex'"):
        _open(tmp_path)

    assert _files(tmp_path) == {"thesis.tex"}
    with pytest.raises(RunDirError, match=r"is no run directory: it has no run\.json"):
        read_rollouts(tmp_path)


def test_an_empty_directory_will_do(tmp_path: Path) -> None:
    """An empty directory can be used, also one that a run was killed in before it had written anything."""
    (tmp_path / "run.lock").write_text("process 1 on x\n")
    (tmp_path / ".run.json.tmp").write_text("{")
    (tmp_path / ".gitkeep").touch()

    with _open(tmp_path) as run:
        run.record([_good("a")])

    assert list(read_rollouts(tmp_path)) == [_good("a")]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "run.json can't be read"),
        ("[]", "run.json can't be read"),
        ('{"identity": {}}', "run.json can't be read"),
        ('{"format": 99, "run_id": "x", "identity": {}}', r"made by another version of agentix-runner \(format 99\)"),
    ],
)
def test_odd_run_files_are_refused(path: Path, content: str, message: str) -> None:
    """A run.json that can't be understood is an error and stays as it is."""
    path.mkdir(parents=True)
    (path / "run.json").write_text(content)

    with pytest.raises(RunDirError, match=message):
        _open(path)
    assert (path / "run.json").read_text() == content


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("file", "is not a directory"),
        ("file/below", "Not a directory"),
        ("x" * 300, "File name too long"),
        ("a\0b", "null"),
    ],
)
def test_places_where_no_directory_can_be(tmp_path: Path, place: str, message: str) -> None:
    """A place where a directory can't be made is an error that says why."""
    (tmp_path / "file").touch()

    with pytest.raises(RunDirError, match=message):
        _open(tmp_path / place)


def test_a_directory_that_can_not_be_written(tmp_path: Path) -> None:
    """A directory without write permission is an error before anything starts."""
    (tmp_path / "readonly").mkdir()
    (tmp_path / "readonly").chmod(0o555)
    tmp_path.chmod(0o755)
    code = """if True:
        import os
        from agentix_runner.rundir.directory import RunDir
        from agentix_runner.errors import RunDirError
        if os.getuid() == 0:
            os.setuid(65534)
        for path in "readonly", "readonly/below":
            try:
                RunDir(path, identity={})
            except RunDirError as exc:
                print(exc)
    """

    with _python(code, cwd=tmp_path) as process:
        out, _ = process.communicate(timeout=HANG_S)

    assert out.decode().splitlines() == [
        "readonly can't be used (Permission denied): give a directory that can be written",
        "readonly/below can't be used (Permission denied): give a directory that can be written",
    ]


def test_links_are_not_followed(path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A link that somebody put where a file or folder of the run belongs leads nowhere, and stops nothing."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("precious")
    with _open(path) as run:
        (path / "a").symlink_to(outside)
        (path / "b").mkdir()
        (path / "b" / "patch.diff").symlink_to(outside / "precious")
        (path / "b" / "sandbox.log").symlink_to(outside / "precious")
        (path / "summary.json").symlink_to(outside / "precious")
        log = run.log("a", 0)
        log(b"x")
        run.save("a", 0, {"file": b"x"})
        run.log("b", 0)(b"x")
        run.record([_good("a"), _good("b")])
        run.refresh()

    assert _files(outside) == {"precious"}
    assert (outside / "precious").read_text() == "precious"
    assert (path / "b" / "patch.diff").read_text() == "diff\n"
    assert json.loads((path / "summary.json").read_text())["rollouts"] == 2
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    (path / "rollouts.jsonl").rename(outside / "journal")
    (path / "rollouts.jsonl").symlink_to(outside / "journal")
    with pytest.raises(RunDirError, match="can't be used"):
        _open(path)


@pytest.mark.parametrize("reader", [False, True])
def test_a_pipe_in_a_files_place_blocks_nothing(path: Path, reader: bool) -> None:
    """A named pipe where a log belongs gets nothing, whether somebody reads from it or not, and blocks nothing."""
    with _open(path) as run:
        (path / "a").mkdir()
        log = run.log("a", 0)
        os.mkfifo(path / "a" / "sandbox.log")
        fd = os.open(path / "a" / "sandbox.log", os.O_RDONLY | os.O_NONBLOCK) if reader else -1
        try:
            log(b"x")
            assert not reader or os.read(fd, 10) == b""
        finally:
            if reader:
                os.close(fd)
        run.record([_good("a")])

    assert stat.S_ISFIFO((path / "a" / "sandbox.log").stat().st_mode)
    assert list(read_rollouts(path)) == [_good("a")]


# Damage


@pytest.mark.parametrize("torn", [b"{", encode(_good("torn"))[:-1], b"\0" * 4096])
def test_a_torn_last_line_is_dropped(path: Path, torn: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """A torn last line is cut off with a warning, and what is recorded next is whole."""
    with _open(path) as run:
        run.record([_good("a")])
    with (path / "rollouts.jsonl").open("ab") as file:
        file.write(torn)

    assert list(read_rollouts(path)) == [_good("a")]
    with _open(path) as run:
        assert list(run.finished) == [("a", 0)]
        run.record([_good("b")])

    assert list(read_rollouts(path)) == [_good("a"), _good("b")]
    assert [record.getMessage() for record in caplog.records] == [
        f"{path}/rollouts.jsonl: the last line was torn ({len(torn)} bytes); it is dropped, and that rollout runs again"
    ]


def test_a_damaged_journal_is_an_error(path: Path) -> None:
    """A broken line in the middle is an error that names the line, and the journal stays as it is."""
    with _open(path) as run:
        run.record([_good("a"), _good("b"), _good("c")])
    journal = path / "rollouts.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(lines[0] + b"garbage\n" + lines[2])

    with pytest.raises(RunDirError, match=r"has a damaged journal: rollouts\.jsonl line 2 is broken"):
        _open(path)
    with pytest.raises(RunDirError, match=r"has a damaged journal: rollouts\.jsonl line 2 is broken"):
        list(read_rollouts(path))
    assert journal.read_bytes() == lines[0] + b"garbage\n" + lines[2]


_WRITER = """if True:
    import sys
    from agentix_runner.rundir.directory import RunDir
    from agentix_runner.records import Rollout
    path, batch = sys.argv[1], int(sys.argv[2])
    with RunDir(path, identity={}) as run:
        n = len(run.finished)
        print("open", n, flush=True)
        while True:
            run.record([Rollout(f"i{n + k}", patch=f"{n + k} " * 2000, score={"resolved": True}) for k in range(batch)])
            n += batch
            print("done", n, flush=True)
            if n % 5 == 0:
                run.refresh()
"""


@pytest.mark.parametrize("batch", [1, 7])
def test_kill_9_loses_nothing(path: Path, batch: int) -> None:
    """Killed at any moment, every rollout that was told of is there, and the directory opens and goes on."""
    told = 0
    for round_ in range(4):
        with _python(_WRITER, path, batch) as writer:
            assert writer.stdout is not None
            first = writer.stdout.readline().split()
            assert first[0] == b"open"
            assert int(first[1]) >= told
            lines = [writer.stdout.readline() for _ in range(3 + 5 * round_)]
            writer.kill()
            lines += writer.stdout.readlines()
            writer.wait(HANG_S)
        told = int([line for line in lines if line.endswith(b"\n")][-1].removeprefix(b"done "))

    rollouts = list(read_rollouts(path))
    assert len(rollouts) >= told > 0
    for number, rollout in enumerate(rollouts):
        assert rollout == Rollout(f"i{number}", patch=f"{number} " * 2000, score={"resolved": True})
    with RunDir(path, identity={}) as run:
        assert len(run.finished) == len(rollouts)
    assert (path / "i0" / "patch.diff").read_text() == "0 " * 2000
    assert json.loads((path / "summary.json").read_text())["resolved"] == len(rollouts)
    assert not [name for name in _files(path) if name.endswith(".tmp")]


def test_stopped_at_every_byte(path: Path) -> None:
    """Wherever in its last line a writer was stopped, the lines before it are there and the directory goes on."""
    with _open(path) as run:
        run.record([_good("a")])
    journal = path / "rollouts.jsonl"
    first = journal.read_bytes()
    last = encode(_good("b"))
    for end in range(0, len(last), 7):
        journal.write_bytes(first + last[:end])
        with _open(path) as run:
            assert list(run.finished) == [("a", 0)]
        assert journal.read_bytes() == first


# Full disks


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    place = tmp_path / "small"
    place.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)], capture_output=True, timeout=HANG_S, check=False
    )
    if made.returncode:
        pytest.skip("mounting takes root")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True, timeout=HANG_S)


def test_a_full_disk_stops_the_run_and_can_be_resumed(small_disk: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A full disk is a JournalError; what was recorded before is there, and with room again the run goes on."""
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(600 * 1024))
    path = small_disk / "run"
    endless = (_good(f"i{n}", patch="x" * 10_000) for n in itertools.count())

    def fill(run: RunDir) -> None:
        for rollout in endless:
            run.record([rollout])

    with _open(path) as run:
        log = run.log("a", 0)
        with pytest.raises(JournalError, match="No space left on device") as caught:
            fill(run)
        assert caught.value.path == str(path / "rollouts.jsonl")
        log(b"x" * 100_000)
        run.save("a", 0, {"f": b"x" * 100_000})
        with pytest.raises(JournalError, match="No space left on device"):
            run.record([_good("too", patch="y" * 500_000)])
    recorded = len(list(read_rollouts(path)))
    assert next(endless).instance_id == f"i{recorded + 1}"  # the one before it was refused

    ballast.unlink()
    with _open(path) as run:
        assert list(run.finished) == [(f"i{n}", 0) for n in range(recorded)]
        run.record([_good("more")])
    assert (path / f"i{recorded - 1}" / "patch.diff").stat().st_size == 10_000
    assert json.loads((path / "summary.json").read_text())["resolved"] == recorded + 1
    complaints = [record for record in caplog.records if "the run goes on" in record.getMessage()]
    assert len(complaints) == 1


def test_a_file_size_limit_stops_the_run(path: Path) -> None:
    """A journal that may not grow is a JournalError, and no line in it is half."""
    code = """if True:
        import resource, sys
        from agentix_runner.rundir.directory import RunDir
        from agentix_runner.records import Rollout
        from agentix_runner.errors import JournalError
        run = RunDir(sys.argv[1], identity={})
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
        for n in range(100):
            try:
                run.record([Rollout(f"i{n}", patch="x" * 3_000)])
            except JournalError as exc:
                print(n, "File too large" in str(exc))
                break
        run.close()
    """
    with _python(code, path) as process:
        out, _ = process.communicate(timeout=HANG_S)

    count, said = out.split()
    assert said == b"True"
    assert 10 <= int(count) <= 20
    assert (path / "rollouts.jsonl").read_bytes().endswith(b"\n")
    assert len(list(read_rollouts(path))) == int(count)


def test_derived_files_are_whole_or_old(path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    """When what is derived can't be written, the old files stay, refresh says so, and close logs it and lets go."""
    with _open(path) as run:
        run.record([_good("a")])
        run.refresh()
        before = (path / "preds.json").read_bytes()
        run.record([_good("b")])

        def no_rename(*args: Any, **kwargs: Any) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "rename", no_rename)
        with pytest.raises(JournalError, match="No space left on device"):
            run.refresh()
        assert (path / "preds.json").read_bytes() == before
        run.close()
        monkeypatch.undo()

    assert [record.levelname for record in caplog.records if "derived" in record.getMessage()] == ["ERROR"]
    assert not [name for name in _files(path) if name.endswith(".tmp")]
    _open(path).close()
    assert list(json.loads((path / "preds.json").read_text())) == ["a", "b"]


# One run at a time


def test_locked_within_a_process(path: Path) -> None:
    """A directory in use is an error that names the process, and it is free again after close."""
    with _open(path) as run:
        run.record([_good("a")])
        with pytest.raises(RunDirError, match=rf"is in use by process {os.getpid()} on .+: wait for that run to end"):
            _open(path)
    with _open(path) as run:
        assert list(run.finished) == [("a", 0)]


def test_locked_between_processes(path: Path) -> None:
    """The lock holds between processes and ends with the one that holds it, however that ends."""
    with _python(_WRITER, path, 1) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        with pytest.raises(RunDirError, match=f"is in use by process {writer.pid} on "):
            RunDir(path, identity={})
        assert isinstance(list(read_rollouts(path)), list)
        writer.send_signal(signal.SIGKILL)
        writer.stdout.read()
        writer.wait(HANG_S)

    RunDir(path, identity={}).close()


def test_the_lock_is_not_inherited(path: Path) -> None:
    """A child that outlives the run does not keep its directory."""
    with _open(path):
        child = _python("import sys; sys.stdin.read()", stdin=subprocess.PIPE, close_fds=False)
    with child:
        _open(path).close()
        child.communicate(timeout=HANG_S)


def test_a_failed_open_lets_go(path: Path) -> None:
    """After an open that failed no descriptor is left open, and the directory is not locked."""
    _open(path).close()
    before = len(os.listdir("/dev/fd"))
    for _ in range(3):
        with pytest.raises(RunDirError):
            _open(path, identity={"model": "other"})

    assert len(os.listdir("/dev/fd")) == before
    _open(path).close()
    assert len(os.listdir("/dev/fd")) == before


# After the end


def test_close_can_come_twice_and_late_calls_do_no_harm(path: Path, tmp_path: Path) -> None:
    """After close a log or a file that comes late goes nowhere, and a rollout is refused with an error."""
    outside = tmp_path / "outside"
    outside.mkdir()
    run = _open(path)
    early, noted = run.log("a", 0), run.log("b", 0)
    noted(b"x")
    number = run._dir_fd
    run.close()
    run.close()

    fd = os.open(outside, os.O_RDONLY)
    try:
        if fd != number:
            os.dup2(fd, number)  # as it happens when the number is given to somebody else
        early(b"x")
        noted(b"y")
        run.log("a", 0)(b"x")
        run.close_log("a", 0)
        run.save("a", 0, {"f": "x"})
        run.refresh()
        with pytest.raises(JournalError, match="is closed: open it again to record"):
            run.record([_good("a")])
    finally:
        for used in {fd, number}:
            os.close(used)

    assert os.listdir(outside) == []
    assert _files(path) == {
        "run.json",
        "run.lock",
        "rollouts.jsonl",
        "preds.json",
        "summary.json",
        "b/sandbox.log",
    }
    assert (path / "b" / "sandbox.log").read_bytes() == b"x"


# Logs and saved files


def test_logs_from_many_threads(path: Path) -> None:
    """What several threads write arrives whole, in the order of each."""
    with _open(path) as run:
        log = run.log("a", 0)
        threads = [
            threading.Thread(target=lambda n=n: [log(f"{n}:{k}\n".encode()) for k in range(100)]) for n in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    lines = (path / "a" / "sandbox.log").read_text().splitlines()
    assert len(lines) == 400
    for n in range(4):
        assert [line for line in lines if line.startswith(f"{n}:")] == [f"{n}:{k}" for k in range(100)]


def test_a_log_is_capped(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sandbox that prints without end can't fill the disk, and the log says where it was cut."""
    monkeypatch.setattr(files_module, "MAX_LOG", 1000)
    with _open(path) as run:
        log = run.log("a", 0)
        for _ in range(20):
            log(b"x" * 300)

    assert (path / "a" / "sandbox.log").read_bytes() == b"x" * 1000 + b"\n[cut: only the first 16 MiB are kept]\n"


def test_logs_take_no_descriptors(path: Path) -> None:
    """A thousand open logs need no more open files than none."""
    with _open(path) as run:
        before = len(os.listdir("/dev/fd"))
        logs = [run.log(f"i{n}", 0) for n in range(1000)]
        for log in logs:
            log(b"x")
        assert len(os.listdir("/dev/fd")) == before


def test_a_silent_sandbox_leaves_no_folder(path: Path) -> None:
    """A rollout without log, patch and files has no folder."""
    with _open(path) as run:
        run.log("a", 0)(b"")
        run.close_log("a", 0)
        run.save("a", 0, {})
        run.record([_bad("a")])

    assert not (path / "a").exists()


def test_a_log_ends_with_its_rollout(path: Path) -> None:
    """What comes after close_log is dropped."""
    with _open(path) as run:
        log = run.log("a", 0)
        log(b"before")
        run.close_log("a", 0)
        log(b"after")

    assert (path / "a" / "sandbox.log").read_bytes() == b"before"


def test_saved_files_have_safe_names(path: Path) -> None:
    """What an agent saves stays in its folder, whatever it is called, and does not replace the run's own files."""
    files: dict[str, str | bytes] = {
        "../../escape": "1",
        "/etc/passwd": "2",
        "patch.diff": "3",
        "log": "4",
        "LOG": "5",
        "t.json": "\udcff",
    }
    with _open(path) as run:
        run.save("a", 0, files)
        run.record([_good("a")])

    kept = {name.removeprefix("a/") for name in _files(path) if name.startswith("a/")}
    assert {"%2e.%2f..%2fescape", "%2fetc%2fpasswd", "%70atch.diff", "patch.diff", "t.json"} < kept
    assert len(kept) == 7
    assert (path / "a" / "patch.diff").read_text() == "diff\n"
    assert (path / "a" / "t.json").read_bytes() == b"\xff"
    assert not [name for name in os.listdir(path.parent) if "escape" in name]


def test_saved_files_are_bounded(path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """What an agent saves beyond the limit is left out, with a warning that names it; the rest is kept."""
    monkeypatch.setattr(files_module, "MAX_SAVED", 1000)
    monkeypatch.setattr(files_module, "MAX_FILES", 3)
    with _open(path) as run, caplog.at_level(logging.WARNING):
        run.save("a", 0, {"1": "x" * 600, "2": "x" * 600, "3": "x" * 400, "4": "x"})

    assert _files(path / "a") == {"1", "3"}
    assert [record.args[1] for record in caplog.records if isinstance(record.args, tuple)] == ["2", "4"]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"a": 5}, "AgentResult.files['a'] is a int: give str or bytes"),
        ({5: "a"}, "AgentResult.files has the name 5: give names as text"),
        (["a"], "AgentResult.files is a list: give a dict of names and contents"),
    ],
)
def test_saved_files_of_another_type(path: Path, files: Any, message: str) -> None:
    """A file that is neither text nor bytes is an error that names it, and nothing is written."""
    with _open(path) as run:
        with pytest.raises(BadOutcome) as caught:
            run.save("a", 0, files)
        assert not (path / "a").exists()

    assert str(caught.value) == message
    assert caught.value.where == "files"


def test_cost_does_not_grow(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Recording one more rollout reads nothing and writes its own line only, however many there are."""
    written: list[int] = []
    real = os.write

    def counting(fd: int, data: bytes) -> int:
        written.append(len(data))
        return real(fd, data)

    def never(*args: Any) -> bytes:
        raise AssertionError("read something")

    with _open(path) as run:
        run.record([_good(f"i{n}", patch="") for n in range(1000)])
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", counting)
            patch.setattr(os, "pread", never)
            run.record([_good("more", patch="")])

    assert written == [len(encode(_good("more", patch="")))]


def test_names_the_interface() -> None:
    """What the runner and the reports use is all here."""
    made: list[Callable[..., Any]] = [RunDir, read_rollouts, directory.identity_of]
    assert all(map(callable, made))


def test_a_lock_that_is_let_go_in_a_moment_is_waited_for(tmp_path: Path) -> None:
    """A run that was just killed may hold its directory a moment longer; the next one does not fail for that."""
    first = RunDir(tmp_path / "run", identity={})
    timer = threading.Timer(0.1, first.close)
    timer.start()
    RunDir(tmp_path / "run", identity={}).close()
    timer.join()
