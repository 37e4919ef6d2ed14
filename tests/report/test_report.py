"""The report without a browser: numbers, what is read of a run directory, the page's text, files and watching."""

from __future__ import annotations

import base64
import configparser
import fnmatch
import hashlib
import json
import math
import os
import re
import signal
import subprocess
import sys
import threading
import zlib
from pathlib import Path
from typing import Any

import click.testing
import pytest

import agentix_runner.report
from agentix_runner.cli.main import main as agentix
from agentix_runner.errors import BadArgument, RunDirError
from agentix_runner.report import watch, write_report
from agentix_runner.report.data import MAX_LOG, MAX_PATCH, read_run
from agentix_runner.report.notebook import Rollouts
from agentix_runner.report.page import page
from agentix_runner.report.stats import compare, mean_interval, sign_test, wilson
from agentix_runner.report.terminal import table
from agentix_runner.report.write import names_of
from agentix_runner.rundir.directory import RunDir, read_rollouts
from agentix_runner.rundir.runfile import in_use

from ..support.report_runs import EVIL, LONG, PATCH, every_kind, failed, make_run, rollout

CLI = click.testing.CliRunner()


def unpacked(text: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(zlib.decompress(base64.b64decode(text)))
    return data


def index_of(text: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
    assert found
    data: dict[str, Any] = json.loads(found.group(1))
    return data


class TestNumbers:
    """How sure a rate is, and what differs between runs."""

    def test_wilson(self) -> None:
        """The interval is that of the literature, stays within 0 and 1, and holds the rate."""
        # Newcombe, "Two-sided confidence intervals for the single proportion", 1998, table I, method 3.
        for c, n, low, high in [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611)]:
            assert wilson(c / n, n) == pytest.approx((low, high), abs=5e-5)
        assert wilson(1.0, 29) == pytest.approx((0.8830, 1.0), abs=5e-5)
        assert wilson(0.5, 0) == (0.0, 1.0)

    def test_single_attempts(self) -> None:
        """For single attempts the interval of the mean is Wilson's."""
        values = [1.0] * 7 + [0.0] * 3
        assert mean_interval(values, 10) == pytest.approx((0.7, *wilson(0.7, 10)))

    def test_attempts_that_are_alike_count_once(self) -> None:
        """Where all attempts at an instance end alike, they are worth one; where they don't, up to all of them."""
        alike = mean_interval([1.0] * 10 + [0.0] * 10, trials=80)
        assert alike == pytest.approx((0.5, *wilson(0.5, 20)))
        unlike = mean_interval([0.5] * 20, trials=80)
        assert unlike == pytest.approx((0.5, *wilson(0.5, 80)))
        between = mean_interval([0.25, 0.75] * 10, trials=200)
        assert between == pytest.approx((0.5, *wilson(0.5, 20 * 0.25 / (0.0625 * 20 / 19))))

    def test_extremes(self) -> None:
        """All or nothing has an interval too, of one trial for each instance; without instances it is everything."""
        assert mean_interval([1.0] * 5, trials=20) == pytest.approx((1.0, *wilson(1.0, 5)))
        assert mean_interval([], 0) == (0.0, 0.0, 1.0)

    def test_sign_test(self) -> None:
        """It is the exact two-sided binomial test at one half, also for many."""
        assert sign_test(0, 0) == 1.0
        assert sign_test(5, 5) == 1.0
        assert sign_test(1, 9) == pytest.approx(22 / 1024)
        assert sign_test(9, 1) == sign_test(1, 9)
        assert sign_test(2000, 2100) == pytest.approx(0.1220, abs=1e-3)

    def test_compare(self) -> None:
        """Each run is held against the first, instance by instance, by the share of attempts that resolved."""
        first = {"a": [1, 1], "b": [1, 0], "c": [3, 1], "d": [1, 1]}
        second = {"b": [2, 1], "a": [1, 0], "c": [6, 2], "e": [1, 1]}
        found = compare([first, second, {}])
        assert found["instances"] == [
            ["a", [[1, 1], [1, 0], None], ["lost", "only"]],
            ["b", [[1, 0], [2, 1], None], ["gained", "only"]],
            ["c", [[3, 1], [6, 2], None], ["same", "only"]],
            ["d", [[1, 1], None, None], ["only", "only"]],
            ["e", [None, [1, 1], None], ["only", "only"]],
        ]
        assert found["against"] == [
            {"gained": 1, "lost": 1, "same": 1, "only": 2, "p": 1.0},
            {"gained": 0, "lost": 0, "same": 0, "only": 5, "p": 1.0},
        ]


class TestReading:
    """What the page gets of a run directory."""

    def test_rows(self, tmp_path: Path) -> None:
        """A row has what the table and the charts need, and leaves out what is empty."""
        run = read_run(make_run(tmp_path / "run", every_kind()), name="run")
        rows = {(row["id"], row["attempt"]): row for row in run.index["rollouts"]}
        assert rows["good", 0] == {
            "id": "good",
            "attempt": 0,
            "status": "resolved",
            "duration": 15.5,
            "started": 1_700_000_000.0,
            "phases": [[0, 0, 0.5], [1, 0.5, 2], [2, 2, 10], [4, 10, 10.5], [0, 10.5, 11], [3, 11, 15], [4, 15, 15.5]],
            "reward": 1.0,
            "added": 1,
            "removed": 2,
        }
        assert rows["bad", 0]["usage"] == {"usage.input_tokens": 1200}
        assert {key: rows["slow", 0][key] for key in ("status", "error", "type", "phase")} == {
            "status": "error",
            "error": "PhaseTimeout: the agent ran past its 10 s",
            "type": "PhaseTimeout",
            "phase": "agent",
        }
        assert len(rows[LONG, 0]["error"]) == 241
        assert run.index["about"] == {"dataset": "bench:tasks", "agent": "bench:Agent", "model": "m"}
        assert run.index["summary"]["error"] == 7
        assert run.tallies["bad"] == [2, 1]

    def test_rates(self, tmp_path: Path) -> None:
        """There is a rate with its interval, and pass@k for each k where there are several attempts."""
        rollouts = [rollout(f"i{n}", attempt=a, score={"resolved": a < n}) for n in range(4) for a in range(3)]
        index = read_run(make_run(tmp_path / "run", rollouts), name="run").index
        assert index["rate"][0] == pytest.approx(0.5)
        assert [(k, value, n) for k, value, _, _, n in index["pass_at_k"]] == [
            (1, pytest.approx(0.5), 4),
            (2, pytest.approx((0 + 2 / 3 + 1 + 1) / 4), 4),
            (3, pytest.approx(0.75), 4),
        ]
        assert all(low < value < high for _, value, low, high, _ in index["pass_at_k"])

    def test_nothing_scored(self, tmp_path: Path) -> None:
        """A run without scores has no rate, and one without rollouts is no error."""
        assert read_run(make_run(tmp_path / "a", [rollout("x", patch=PATCH)]), name="a").index["rate"] is None
        empty = read_run(make_run(tmp_path / "b", []), name="b")
        assert (empty.index["rollouts"], empty.details) == ([], [])

    def test_details(self, tmp_path: Path) -> None:
        """A rollout's details are whole: patch, traceback, score, info, log, files, numbers beyond a browser's."""
        path = make_run(tmp_path / "run", every_kind(), log=b"printed\n", files=True)
        run = read_run(path, name="run")
        found = {row["id"]: unpacked(text) for row, text in zip(run.index["rollouts"], run.details, strict=True)}
        assert found["good"] == {
            "folder": "good",
            "patch": PATCH,
            "patch_size": len(PATCH),
            "score": [["resolved", "true"], ["tests", '{\n  "passed": 3\n}']],
            "agent_exit": 0,
            "model": "m",
            "log": "printed\n",
            "log_size": 8,
            "files": sorted(name for name in os.listdir(path / "good") if name not in ("patch.diff", "sandbox.log")),
        }
        assert found["remote"]["traceback"].endswith("\nValueError: no")
        assert found[EVIL]["patch"].splitlines()[1] == f"+{EVIL}"
        assert ["n", str(2**70)] in unpacked(run.details[1])["score"]

    def test_a_reward_beyond_a_float(self, tmp_path: Path) -> None:
        """A reward that no float holds is on none of the charts and in no mean; everything is shown all the same."""
        huge = rollout("huge", score={"resolved": True, "reward": 10**400})
        path = make_run(tmp_path / "run", [huge, rollout("usual", score={"reward": 0.25})])
        run = read_run(path, name="run")
        assert [row.get("reward") for row in run.index["rollouts"]] == [None, 0.25]
        assert run.index["summary"]["mean_reward"] == 0.25
        assert ["reward", str(10**400)] in unpacked(run.details[0])["score"]
        assert write_report([path], tmp_path / "report.html").rollouts == 2
        assert "mean reward" in table(run.index["summary"])
        for arguments in ([], ["huge"], ["--status", "resolved"], ["--json"]):
            assert CLI.invoke(agentix, ["show", str(path), *arguments]).exit_code == 0
        assert Rollouts(read_rollouts(path)).to_pandas()["reward"].tolist() == [math.inf, 0.25]
        assert Rollouts([huge])._repr_html_().startswith("<div><p>1 rollout · 1 resolved")
        assert str(10**400) in huge._repr_html_()

    def test_large(self, tmp_path: Path) -> None:
        """Of a large patch the beginning is on the page, of a large log the end, from a line's beginning."""
        log = b"".join(b"line %06d\n" % n for n in range(MAX_LOG // 5))
        path = make_run(tmp_path / "run", [rollout("a", patch="+" + "p" * MAX_PATCH)], log=log)
        [details] = map(unpacked, read_run(path, name="run").details)
        assert (len(details["patch"]), details["patch_size"]) == (MAX_PATCH, MAX_PATCH + 1)
        assert details["log_size"] == len(log)
        assert details["log"].startswith("line ")
        assert log.decode().endswith(details["log"])
        assert MAX_LOG - 12 <= len(details["log"]) <= MAX_LOG

    def test_no_room(self, tmp_path: Path) -> None:
        """What goes past the room for details is left out; the rows are all there."""
        path = make_run(tmp_path / "run", [rollout(name, patch=PATCH) for name in "abc"])
        size = len(read_run(path, name="run").details[0])
        run = read_run(path, name="run", room=size + size // 2)
        assert [bool(text) for text in run.details] == [True, False, False]
        assert len(run.index["rollouts"]) == 3

    def test_links_are_not_followed(self, tmp_path: Path) -> None:
        """A log that is a link to another file is not read."""
        path = make_run(tmp_path / "run", [rollout("a", patch=PATCH)])
        (tmp_path / "secret").write_text("secret")
        (path / "a" / "sandbox.log").symlink_to(tmp_path / "secret")
        [details] = map(unpacked, read_run(path, name="run").details)
        assert "log" not in details

    def test_packed_once(self, tmp_path: Path) -> None:
        """A page that is written again packs again only what is new."""
        path = make_run(tmp_path / "run", [rollout("a", patch=PATCH)])
        packed: dict[tuple[Any, ...], str] = {}
        read_run(path, name="run", packed=packed)
        marked = dict.fromkeys(packed, "kept")
        make_run(path, [rollout("b")])
        assert read_run(path, name="run", packed=marked).details[0] == "kept"
        assert unpacked(read_run(path, name="run", packed=marked).details[1])["folder"] == "b"


class TestPage:
    """The page's text."""

    def test_text_ends_no_element(self, tmp_path: Path) -> None:
        """Hostile text is nowhere in the page as it is, and comes out of its data as it went in."""
        run = read_run(make_run(tmp_path / "run", every_kind(), log=EVIL.encode()), name=EVIL)
        text = b"".join(page([run], made_at=0.0)).decode("utf-8")
        assert EVIL not in text
        assert "<script>window.pwned" not in text
        assert "&lt;/script&gt;" in text.partition("<title>")[2].partition("</title>")[0]
        assert EVIL in [row["id"] for row in index_of(text)["runs"][0]["rollouts"]]
        assert text.count("<script") == 2 + len(run.details)

    def test_policy(self, tmp_path: Path) -> None:
        """The policy allows the page's own script and style by their hashes, and nothing else."""
        run = read_run(make_run(tmp_path / "run", []), name="run")
        text = b"".join(page([run], made_at=0.0)).decode()
        found = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
        assert found

        def hashed(tag: str) -> str:
            inside = text.partition(f"<{tag}>")[2].partition(f"</{tag}>")[0]
            return f"'sha256-{base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()}'"

        assert dict(part.split(" ", 1) for part in found.group(1).split("; ")) == {
            "default-src": "'none'",
            "script-src": hashed("script"),
            "style-src": hashed("style"),
            "base-uri": "'none'",
            "form-action": "'none'",
            "require-trusted-types-for": "'script'",
        }

    def test_self_contained(self, tmp_path: Path) -> None:
        """The page names no address but that of SVG's namespace."""
        run = read_run(make_run(tmp_path / "run", []), name="run")
        text = b"".join(page([run], made_at=0.0)).decode()
        assert set(re.findall(r"\w+://[^\"' ]*", text)) == {"http://www.w3.org/2000/svg"}

    def test_assets_are_packaged(self) -> None:
        """Every file that the page is made of is in the package's data."""
        setup = configparser.ConfigParser()
        setup.read(Path(__file__).parents[2] / "setup.cfg")
        patterns = setup["options.package_data"]["agentix_runner.report"].split()
        top = Path(agentix_runner.report.__file__).parent
        names = [path.relative_to(top).as_posix() for path in (top / "assets").iterdir()]
        assert len(names) == 10
        assert [n for n in names if not any(fnmatch.fnmatch(n, pattern) for pattern in patterns)] == []


class TestWriting:
    """Where the page goes."""

    def test_one_and_two(self, tmp_path: Path) -> None:
        """One page holds one run or several, and says how many rollouts are in it."""
        one = make_run(tmp_path / "one", [rollout("a", score={"resolved": True})])
        two = make_run(tmp_path / "two", [rollout("a", score={"resolved": False}), rollout("b")])
        out = tmp_path / "report.html"
        written = write_report([one], out)
        assert (written.rollouts, written.size) == (1, out.stat().st_size)
        assert index_of(out.read_text())["comparison"] is None
        assert write_report([str(one), str(two)], str(out)).rollouts == 3
        data = index_of(out.read_text())
        assert [run["name"] for run in data["runs"]] == ["one", "two"]
        assert data["comparison"]["against"] == [{"gained": 0, "lost": 1, "same": 0, "only": 1, "p": 1.0}]

    def test_names(self) -> None:
        """Runs are called by their directories, with as many parents as tells them apart."""
        assert names_of([Path("runs/a"), Path("runs/b")]) == ["a", "b"]
        assert names_of([Path("x/old/run"), Path("x/new/run")]) == ["old/run", "new/run"]
        assert names_of([Path("x/run"), Path("x/run")]) == ["run (1)", "run (2)"]

    def test_another_file_is_not_written_over(self, tmp_path: Path) -> None:
        """What is no report stays as it is; a report and an empty file are replaced."""
        run = make_run(tmp_path / "run", [])
        journal = run / "rollouts.jsonl"
        with pytest.raises(BadArgument, match=r"rollouts.jsonl|run.json"):
            write_report([run], run / "run.json")
        assert json.loads((run / "run.json").read_text())["format"] == 1
        assert journal.read_bytes() == b""
        out = tmp_path / "report.html"
        out.touch()
        write_report([run], out)
        write_report([run], out)
        assert out.read_text().startswith("<!doctype html>")

    @pytest.mark.parametrize("name", ["", "missing/report.html", "pipe"])
    def test_no_such_place(self, tmp_path: Path, name: str) -> None:
        """A directory, a missing folder and a pipe are refused in one line that says what to give."""
        os.mkfifo(tmp_path / "pipe")
        run = make_run(tmp_path / "run", [])
        with pytest.raises(BadArgument, match="give a"):
            write_report([run], tmp_path / name)
        assert sorted(os.listdir(tmp_path)) == ["pipe", "run"]

    def test_nothing_is_left_of_a_page_that_failed(self, tmp_path: Path) -> None:
        """A run directory that is none leaves the report that was there."""
        out = tmp_path / "report.html"
        write_report([make_run(tmp_path / "run", [])], out)
        before = out.read_bytes()
        with pytest.raises(RunDirError, match="is no run directory"):
            write_report([tmp_path / "run", tmp_path], out)
        assert out.read_bytes() == before
        assert sorted(os.listdir(tmp_path)) == ["report.html", "run"]
        with pytest.raises(BadArgument, match="no run directory is given"):
            write_report([], out)


class TestWatching:
    """Writing the page while a run goes on."""

    def test_until_the_run_ends(self, tmp_path: Path) -> None:
        """It is written at once and after each change, loads itself again, and at last stays as it is."""
        path, out = tmp_path / "run", tmp_path / "report.html"
        live, counts = [], []
        with RunDir(path, identity={}) as run_dir:
            now, steps = 0.0, iter(range(1000))

            def sleep(seconds: float) -> None:
                """The run goes on while the watcher sleeps."""
                nonlocal now
                now += seconds
                step = next(steps)
                if step in (2, 30, 60):
                    run_dir.record([rollout(str(step))])
                elif step == 90:
                    run_dir.close()

            def on_write(written: Any) -> None:
                counts.append(written.rollouts)
                live.append(index_of(out.read_text())["live_s"])

            assert in_use(path)
            watch([path], out, on_write=on_write, sleep=sleep, clock=lambda: now)
        assert counts == [0, 1, 2, 3, 3]
        assert live == [5.0, 5.0, 5.0, 5.0, None]
        assert not in_use(path)

    def test_no_run(self, tmp_path: Path) -> None:
        """Where nothing runs, one page is written and that is all."""
        path = make_run(tmp_path / "run", [rollout("a")])
        counts: list[int] = []
        watch([path], tmp_path / "r.html", on_write=lambda w: counts.append(w.rollouts), sleep=pytest.fail)
        assert counts == [1]

    def test_interrupted(self, tmp_path: Path) -> None:
        """Ctrl-C leaves a page that does not wait for more."""
        path, out = tmp_path / "run", tmp_path / "report.html"

        def sleep(seconds: float) -> None:
            raise KeyboardInterrupt

        with RunDir(path, identity={}):
            with pytest.raises(KeyboardInterrupt):
                watch([path], out, on_write=lambda written: None, sleep=sleep)
        assert index_of(out.read_text())["live_s"] is None

    def test_asking_takes_nothing(self, tmp_path: Path) -> None:
        """Whether a run uses a directory can be asked while it does, and where there is none."""
        assert not in_use(tmp_path)
        with RunDir(tmp_path / "run", identity={}) as run_dir:
            asked = [in_use(tmp_path / "run") for _ in range(100)]
            run_dir.record([rollout("a")])
        assert asked == [True] * 100
        with RunDir(tmp_path / "run", identity={}):
            pass


class TestCommand:
    """`agentix report`."""

    def test_report(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """It writes report.html where one is, and says so."""
        monkeypatch.chdir(tmp_path)
        make_run(tmp_path / "runs" / "x", every_kind())
        done = CLI.invoke(agentix, ["report", "runs/x"], prog_name="agentix")
        assert (done.exit_code, done.stderr) == (0, "")
        assert re.fullmatch(r"report\.html: 14 rollouts, \d+ kB\n", done.stdout)
        assert index_of((tmp_path / "report.html").read_text())["runs"][0]["name"] == "x"

    def test_wrong_use(self, tmp_path: Path) -> None:
        """What is no run directory, and no directory at all, is one line and exit code 2."""
        done = CLI.invoke(agentix, ["report", str(tmp_path), "-o", str(tmp_path / "r.html")], prog_name="agentix")
        assert (done.exit_code, done.stdout) == (2, "")
        assert done.stderr == f"Error: {tmp_path} is no run directory: it has no run.json\n"
        assert CLI.invoke(agentix, ["report"], prog_name="agentix").exit_code == 2
        assert not (tmp_path / "r.html").exists()

    def test_watch(self, tmp_path: Path) -> None:
        """--watch ends with the run, and tells what the last page holds."""
        path, out = tmp_path / "run", tmp_path / "r.html"
        with RunDir(path, identity={}) as run_dir:
            run_dir.record([failed("a", "agent", "E", "x")])
            threading.Timer(0.3, run_dir.close).start()
            done = CLI.invoke(agentix, ["report", str(path), "-o", str(out), "--watch"], prog_name="agentix")
        assert done.exit_code == 0
        assert done.stderr == f"watching until the run ends; open {out}\n"
        assert re.fullmatch(re.escape(str(out)) + r": 1 rollout, \d+ kB\n", done.stdout)

    def test_interrupted(self, tmp_path: Path) -> None:
        """Ctrl-C while it watches is exit code 130; the page is whole and waits for nothing more."""
        path, out = tmp_path / "run", tmp_path / "r.html"
        code = "from agentix_runner.cli.main import main; main(prog_name='agentix')"
        command = [sys.executable, "-c", code, "report", str(path), "-o", str(out), "--watch"]
        with RunDir(path, identity={}) as run_dir:
            run_dir.record([rollout("a")])
            with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
                try:
                    assert process.stderr is not None
                    assert process.stderr.readline() == f"watching until the run ends; open {out}\n"
                    process.send_signal(signal.SIGINT)
                    told = process.stderr.read()
                    assert process.wait(60) == 130
                finally:
                    process.kill()
        assert re.fullmatch(f"Ended by SIGINT: {re.escape(str(out))}: 1 rollout, \\d+ kB\n", told)
        assert index_of(out.read_text())["live_s"] is None
        assert sorted(os.listdir(tmp_path)) == ["r.html", "run"]
