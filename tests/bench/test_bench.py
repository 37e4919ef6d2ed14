"""The benchmarks' common command, without running a benchmark."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from agentix_runner import run_rollouts
from agentix_runner.rundir.directory import RunDir
from tests.bench import __main__ as bench
from tests.bench import scale, show
from tests.bench.overhead import Plain, Provider

ROOT = Path(__file__).parents[2]


def test_a_table_reads_well_as_text_and_as_markdown(capsys: pytest.CaptureFixture[str]) -> None:
    """Names to the left, figures to the right, with three digits or so."""
    show.table("Costs", ["", "n", "ms"], [["bare", 10_000, 1234.56], ["ours", 8, 12.345], ["theirs", 8, 0.5]])
    assert capsys.readouterr().out == (
        "\nCosts\n\n"
        "|        |      n |    ms |\n"
        "|:-------|-------:|------:|\n"
        "| bare   | 10,000 | 1,235 |\n"
        "| ours   |      8 |  12.3 |\n"
        "| theirs |      8 |  0.50 |\n"
        "\n"
    )


def test_the_machine_is_shown_once(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A benchmark that the common command runs does not repeat it."""
    show.machine("pytest", "no-such-package")
    assert "no no-such-package" in capsys.readouterr().out
    monkeypatch.setenv(show.SHOWN, "1")
    show.machine("pytest")
    assert capsys.readouterr().out == ""


def test_every_benchmark_is_found_in_its_order() -> None:
    """Also those that nobody has listed."""
    assert bench.benchmarks()[:4] == ["overhead", "scale", "dask", "sandboxes"]


def test_an_unknown_benchmark_is_a_usage_error() -> None:
    """The message lists those that there are."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench", "nonsense"], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert "there is no benchmark 'nonsense': there are overhead, scale, dask" in done.stderr


def test_what_the_scale_benchmark_measures_is_real(tmp_path: Path) -> None:
    """Its directory resumes with as many rollouts as it says, its rollouts are resolved."""
    with scale.directory_of(30) as path, RunDir(path, identity=scale.IDENTITY) as run_dir:
        assert len(run_dir.finished) == 30
        assert scale.record_ms(run_dir, 30, 2) > 0
        assert (path / "project__project-31" / "sandbox.log").read_bytes() == b"a line of a log\n"
    both = Plain(3)
    assert [r.resolved for r in run_rollouts(dataset=both, agent=both, provider=Provider())] == [True] * 3
