"""What tests of other processes share: where the repository is, a Python to run there, and a wait for what it does."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
"""The repository's folder."""


def run_python(code: str, *arguments: object, flags: tuple[str, ...] = (), **options: Any) -> Any:
    """Run `code` in another Python, in the repository's folder; what came of it, with its output as text."""
    command = [sys.executable, *flags, "-c", textwrap.dedent(code), *map(str, arguments)]
    options = {"cwd": ROOT, "capture_output": True, "text": True, "timeout": 100, **options}
    return subprocess.run(command, **options)


def python(code: str, *arguments: object, flags: tuple[str, ...] = ("-W", "error"), **options: Any) -> str:
    """What `code` prints in another Python, which must end well and say nothing on stderr."""
    done = run_python(code, *arguments, flags=flags, **options)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return str(done.stdout)


def eventually(condition: Callable[[], object], limit_s: float = 60.0) -> None:
    """Wait until `condition()` holds; fail where it has not after `limit_s`, a generous hang limit."""
    until = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.005)
