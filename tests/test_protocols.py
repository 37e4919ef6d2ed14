"""What an editor and a type checker know of a call in a sandbox."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[1]

ADAPTER = """
    from agentix_runner import AsyncSandbox, Sandbox

    def count(text: str, *, what: str = "") -> int: ...
    async def later(number: int) -> bytes: ...

    def plain(sandbox: Sandbox) -> None:
        reveal_type(sandbox.remote(count, "abc", what="b"))
        reveal_type(sandbox.remote(later, 1))
        sandbox.remote(count, 4)
        with sandbox.tunnel("https://api.example", headers={"x-api-key": "k"}) as url:
            reveal_type(url)

    async def awaitable(sandbox: AsyncSandbox) -> None:
        reveal_type(await sandbox.remote(count, "abc"))
        reveal_type(await sandbox.remote(later, 1))
        async with sandbox.tunnel("https://api.example") as url:
            reveal_type(url)
"""


def test_a_calls_arguments_and_its_result_are_typed(tmp_path: Path) -> None:
    """The function's own parameters and result, also where it is an `async def`, plain or awaited; an argument of
    another type is an error."""
    (tmp_path / "adapter.py").write_text(textwrap.dedent(ADAPTER))
    command = [sys.executable, "-m", "mypy", "adapter.py", "--follow-imports=silent", "--disable-error-code=empty-body"]
    env = {**os.environ, "MYPYPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=110, check=False)
    revealed = [line.partition("Revealed type is ")[2] for line in done.stdout.splitlines() if "Revealed" in line]
    assert [name.strip('"').removeprefix("builtins.") for name in revealed] == [
        "int", "bytes", "str", "int", "bytes", "str",
    ], done.stdout  # fmt: skip
    [wrong] = [line for line in done.stdout.splitlines() if "error:" in line]
    assert wrong.startswith("adapter.py:10: error: No overload variant")
