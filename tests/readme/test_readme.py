"""README is the front door: its snippets run, its commands are the ones that are used."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


def test_the_snippets_run_one_after_the_other(tmp_path: Path) -> None:
    """Pasted into one script in README's order, all Python blocks run as they stand."""
    script = tmp_path / "readme.py"
    script.write_text("\n".join(blocks("python")))
    done = subprocess.run(
        [sys.executable, "-W", "error", script], cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "ada resolved 1.0" in done.stdout
    assert (tmp_path / "runs" / "greetings" / "rollouts.jsonl").read_text().count("\n") == 2


def test_the_snippets_are_formatted() -> None:
    """Each Python block is laid out as the code of this repository is."""
    for block in blocks("python"):
        command = [sys.executable, "-m", "ruff", "format", "--config", str(ROOT / ".ruff.toml"), "-"]
        done = subprocess.run(command, input=block, capture_output=True, text=True, timeout=60, check=True)
        assert done.stdout == block


def test_adapters_to_copy_are_short() -> None:
    """Those of "Integrate a dataset" and "Integrate an agent" take less than 60 lines each."""
    lengths = {
        name: len(block.splitlines())
        for block in blocks("python")
        for name in ("Repositories", "CommandAgent")
        if f"class {name}:" in block
    }
    assert set(lengths) == {"Repositories", "CommandAgent"}
    assert max(lengths.values()) < 60


def test_ci_calls_the_test_command_of_the_readme() -> None:
    """The line that README gives for the tests ends in the command that CI runs."""
    [line] = [line for block in blocks("sh") for line in block.splitlines() if "pytest" in line]
    command = line.split(" && ")[-1]
    assert command in (ROOT / ".ci" / "run").read_text().splitlines()


@pytest.mark.parametrize(
    "line",
    [line for block in blocks("sh") for line in block.splitlines() if "agentix" in line or "examples/" in line],
)
def test_the_commands_have_options_that_exist(line: str) -> None:
    """Every option in a command of README is in that command's help."""
    words = shlex.split(line.split(" && ")[-1])
    words[0] = sys.executable if words[0] == "python" else str(Path(sys.executable).with_name(Path(words[0]).name))
    help_of = words[:2] if Path(words[0]).name == "agentix" or words[0] == sys.executable else words[:1]
    shown = subprocess.run(
        [*help_of, "--help"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    ).stdout
    options = [word for word in words if word.startswith("--")]
    assert [option for option in options if option not in shown] == []
