"""Rollouts in Jupyter: how they are shown, as a DataFrame, and in a real kernel, interrupted too."""

from __future__ import annotations

import copy
import html.parser
import json
import os
import pickle
import queue
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentix_runner import Rollout, run_rollouts
from agentix_runner.errors import BadArgument
from agentix_runner.records import NOT_RUN
from agentix_runner.report.notebook import SHOWN, Rollouts

from ..support.fakes import PlainAgent, PlainDataset, SyncProvider
from ..support.report_runs import EVIL, ODD, PATCH, every_kind

NOTEBOOK = Path(__file__).parents[2] / "examples" / "notebook.ipynb"


class Page(html.parser.HTMLParser):
    """The tags and the text of some HTML, and the text of its table's cells by row."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.rows: list[list[str]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_data(self, data: str) -> None:
        self.text += data
        if self.rows and self.rows[-1]:
            self.rows[-1][-1] += data


class TestList:
    """`Rollouts` is a list."""

    def test_of_a_run(self) -> None:
        """It is what run_rollouts returns, in input order."""
        found = run_rollouts(dataset=PlainDataset(3), agent=PlainAgent(), provider=SyncProvider(), n_concurrent=2)
        assert type(found) is Rollouts
        assert [r.instance_id for r in found] == ["i0", "i1", "i2"]

    def test_is_a_list(self) -> None:
        """It equals, prints, copies, pickles, adds and sorts as the list of the same rollouts."""
        plain = every_kind()
        rollouts = Rollouts(plain)
        assert isinstance(rollouts, list)
        assert rollouts == plain
        assert plain == rollouts
        assert repr(rollouts) == repr(plain)
        assert rollouts + plain == plain + plain
        assert sorted(rollouts, key=lambda r: r.instance_id) == sorted(plain, key=lambda r: r.instance_id)
        for again in (pickle.loads(pickle.dumps(rollouts)), copy.copy(rollouts), copy.deepcopy(rollouts)):
            assert type(again) is Rollouts
            assert again == plain
        assert rollouts[0] is plain[0]
        assert rollouts[-1] is plain[-1]
        rollouts.append(plain[0])
        assert len(rollouts) == len(plain) + 1

    def test_slices(self) -> None:
        """A slice is shown as a table too; an index out of range is an IndexError."""
        rollouts = Rollouts(every_kind())
        assert type(rollouts[1:3]) is Rollouts
        assert rollouts[1:3] == every_kind()[1:3]
        assert rollouts[::-1] == every_kind()[::-1]
        with pytest.raises(IndexError):
            rollouts[100]


class TestTable:
    """What Jupyter shows."""

    def test_list(self) -> None:
        """Counts and the rate, then a row for each rollout."""
        page = Page(Rollouts(every_kind()[:5])._repr_html_())
        counts = "5 rollouts · 2 resolved, 1 unresolved, 1 empty patch, 1 setup failed · resolved rate 37.5%"
        assert page.text.startswith(counts)
        assert page.rows == [
            ["instance", "attempt", "status", "duration"],
            ["good", "0", "●\xa0resolved", "15.5s"],
            ["bad", "0", "●\xa0unresolved", "15.5s"],
            ["bad", "1", "●\xa0resolved", "1m39s"],
            ["empty", "0", "●\xa0empty patch", "10.5s"],
            ["unprepared", "0", "●\xa0setup failed", "10.5s"],
        ]

    def test_errors(self) -> None:
        """Errors have a column where there are some; what did not run counts as that."""
        page = Page(Rollouts([Rollout("a", error="E: no"), Rollout("b", error=f"{NOT_RUN}stopped")])._repr_html_())
        assert page.text.startswith("2 rollouts · 1 error, 1 not run")
        assert page.rows[1:] == [
            ["a", "●\xa0error", "0.00s", "E: no"],
            ["b", "●\xa0not run", "0.00s", "not run: stopped"],
        ]

    def test_long(self) -> None:
        """Of a long list the beginning and the end are shown."""
        page = Page(Rollouts([Rollout(f"i{n}", score={"resolved": True}) for n in range(1000)])._repr_html_())
        names = [row[0] for row in page.rows[1:]]
        half = SHOWN // 2
        assert names == [
            *(f"i{n}" for n in range(half)),
            f"… {1000 - SHOWN} more …",
            *(f"i{n}" for n in range(1000 - half, 1000)),
        ]

    def test_empty(self) -> None:
        """An empty list says so."""
        assert Rollouts()._repr_html_() == "<div><p>0 rollouts</p></div>"

    def test_one(self) -> None:
        """One rollout is shown in full."""
        page = Page(every_kind()[0]._repr_html_())
        assert [row[0] for row in page.rows] == [
            "instance", "status", "duration", "phases", "score", "model", "patch",
        ]  # fmt: skip
        assert page.rows[3][1].startswith("session 0.50s, setup 1.5s, agent 8.0s,")
        assert page.rows[-1][1] == f"10 lines{PATCH}"

    def test_one_error(self) -> None:
        """An error is shown with its phase and its traceback."""
        [remote] = [r for r in every_kind() if r.instance_id == "remote"]
        page = Page(remote._repr_html_())
        assert page.rows[2:4] == [
            ["error in score", "RemoteError: ValueError: no"],
            ["traceback", '3 linesTraceback:\n  File "x.py", line 1\nValueError: no'],
        ]

    def test_hostile_text(self) -> None:
        """Markup stays text, and what steers or reorders is an escape."""
        rollouts = Rollouts(every_kind())
        for text in (rollouts._repr_html_(), *(r._repr_html_() for r in rollouts)):
            page = Page(text)
            assert page.tags <= {
                "div",
                "p",
                "table",
                "thead",
                "tbody",
                "tr",
                "th",
                "td",
                "span",
                "details",
                "summary",
                "pre",
            }
            assert "\u202e" not in text
            assert "\x1b" not in text
        assert EVIL in Page(rollouts._repr_html_()).text
        assert ODD not in rollouts._repr_html_()


class TestPandas:
    """`to_pandas`."""

    def test_frame(self) -> None:
        """A row for each rollout, with the seconds of each phase and the usage that agents noted."""
        pandas = pytest.importorskip("pandas")
        frame = Rollouts(every_kind()).to_pandas()
        assert frame["status"].tolist()[:4] == ["resolved", "unresolved", "resolved", "empty_patch"]
        assert frame["resolved"].sum() == 2
        assert frame["session_s"][0] == 1.0
        assert frame[["setup_s", "agent_s", "score_s", "teardown_s"]].loc[0].tolist() == [1.5, 8.0, 4.0, 1.0]
        assert frame["usage.input_tokens"][1] == 1200
        assert frame["cost"][2] == 0.25
        assert frame["started_at"][0] == pandas.Timestamp("2023-11-14 22:13:20", tz="UTC")
        assert frame["started_at"].isna().sum() == 1
        assert frame["patch"][0] == PATCH
        assert frame.groupby("status")["duration_s"].max()["resolved"] == 99.0

    def test_empty(self) -> None:
        """Without rollouts the columns are there all the same."""
        pytest.importorskip("pandas")
        frame = Rollouts().to_pandas()
        assert len(frame) == 0
        assert {"instance_id", "status", "agent_s", "started_at"} <= set(frame.columns)

    def test_without_pandas(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Without pandas it says how to get it."""
        monkeypatch.setitem(sys.modules, "pandas", None)
        with pytest.raises(BadArgument, match="pip install pandas"):
            Rollouts().to_pandas()


def test_light() -> None:
    """Returning rollouts loads neither pandas nor IPython."""
    code = """
        import sys
        from agentix_runner import Rollout, run_rollouts
        from agentix_runner.report.notebook import Rollouts
        Rollouts([Rollout("a")])._repr_html_()
        print(sorted({"pandas", "IPython", "click", "docker"} & set(sys.modules)))
    """
    run = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"


class Kernel:
    """A real kernel, whose cells run one at a time."""

    def __init__(self, manager: Any, client: Any) -> None:
        self.manager = manager
        self.client = client

    def start(self, code: str) -> str:
        return self.client.execute(textwrap.dedent(code))

    def printed_until(self, message_id: str, word: str) -> str:
        """What the cell has printed, once `word` is in it."""
        text = ""
        until = time.monotonic() + 60
        while word not in text:
            assert time.monotonic() < until, text
            try:
                message = self.client.get_iopub_msg(timeout=1)
            except queue.Empty:
                continue
            if message["parent_header"].get("msg_id") == message_id and message["msg_type"] == "stream":
                text += message["content"]["text"]
        return text

    def reply(self, message_id: str) -> dict[str, Any]:
        """How the cell ended."""
        until = time.monotonic() + 60
        while True:
            assert time.monotonic() < until
            message = self.client.get_shell_msg(timeout=60)
            if message["parent_header"].get("msg_id") == message_id:
                content: dict[str, Any] = message["content"]
                return content

    def value(self, code: str, expression: str) -> Any:
        """Run a cell, then evaluate an expression to what JSON can hold."""
        message_id = self.client.execute(
            textwrap.dedent(code), user_expressions={"v": f"__import__('json').dumps({expression})"}
        )
        reply = self.reply(message_id)
        assert reply["status"] == "ok", reply
        return json.loads(eval(reply["user_expressions"]["v"]["data"]["text/plain"], {}))


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[Kernel]:
    manager_of = pytest.importorskip("jupyter_client.manager")
    pytest.importorskip("ipykernel")
    manager, client = manager_of.start_new_kernel(kernel_name="python3", startup_timeout=60, cwd=str(tmp_path))
    try:
        yield Kernel(manager, client)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
        manager.context.destroy(linger=0) if hasattr(manager, "context") else None


@pytest.mark.slow
def test_the_example(tmp_path: Path) -> None:
    """The example notebook runs as it is, with its functions in sandboxes, a bar, tables, a frame and the report."""
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("cloudpickle")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert [cell for cell in notebook.cells if cell.get("outputs")] == []
    nbclient.NotebookClient(
        notebook, timeout=100, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    results = [
        output.data
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        if output.output_type == "execute_result"
    ]
    table, one, count, frame, written = results
    assert Page(table["text/html"]).text.startswith(
        "10 rollouts · 7 resolved, 2 unresolved, 1 error · resolved rate 70.0%"
    )
    assert "seven is too much" in Page(one["text/html"]).text
    assert count["text/plain"] == "7"
    assert [row[0].strip() for row in Page(frame["text/html"]).rows[2:]] == ["error", "resolved", "unresolved"]
    assert written["text/plain"].startswith("Written(rollouts=10, ")
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")
    bars = [
        output for cell in notebook.cells for output in cell.get("outputs", []) if output.output_type == "display_data"
    ]
    assert len(bars) == 1


BENCH = """
    import os, time
    from agentix_runner import AgentResult, LocalProvider, run_rollouts

    def sleep(seconds: float) -> None:
        print("asleep", flush=True)
        time.sleep(seconds)

    class Tasks:
        def instances(self):
            return [{"instance_id": f"i{n}"} for n in range(6)]
        def image(self, instance):
            return ""
        def setup(self, sandbox, instance):
            return True
        def score(self, sandbox, instance, patch):
            return {"resolved": True}

    class Agent:
        def __init__(self, seconds):
            self.seconds = seconds
        def solve(self, sandbox, instance, *, model):
            if instance["instance_id"] != "i0":
                sandbox.remote(sleep, self.seconds)
            return AgentResult(patch="x")

    def told(instance_id, phase):
        if instance_id == "i2" and phase == "agent":
            print("i2 runs", flush=True)
"""

RUN = """
    rollouts = run_rollouts(
        dataset=Tasks(), agent=Agent({seconds}), provider=LocalProvider(), n_concurrent=2, run_dir="run", on_event=told
    )
"""


@pytest.mark.slow
def test_interrupt(kernel: Kernel, tmp_path: Path) -> None:
    """The stop button ends a cell's run: no process, thread or directory is left, what has finished is kept, and the
    cell can be run again to go on."""
    psutil = pytest.importorskip("psutil")
    pytest.importorskip("cloudpickle")
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    kernel.value(f"import tempfile; tempfile.tempdir = {str(temporary)!r}\n" + textwrap.dedent(BENCH), "None")
    process = psutil.Process(kernel.value("", "__import__('os').getpid()"))
    before, files = set(process.children(recursive=True)), os.listdir(temporary)
    cell = kernel.start(RUN.format(seconds=600))
    kernel.printed_until(cell, "i2 runs")
    assert set(process.children(recursive=True)) - before
    assert len(os.listdir(temporary)) > len(files)
    kernel.manager.interrupt_kernel()
    reply = kernel.reply(cell)
    assert (reply["status"], reply["ename"]) == ("error", "KeyboardInterrupt")

    assert set(process.children(recursive=True)) - before == set()
    assert os.listdir(temporary) == files
    threads = "[t.name for t in __import__('threading').enumerate() if 'agentix' in t.name]"
    assert kernel.value("", threads) == []

    found = kernel.value(RUN.format(seconds=0), "[[r.instance_id, r.resolved] for r in rollouts]")
    assert found == [[f"i{n}", True] for n in range(6)]
    lines = (tmp_path / "run" / "rollouts.jsonl").read_text().splitlines()
    assert json.loads(lines[0])["instance_id"] == "i0"  # kept from the first time
    assert len(lines) == 6
