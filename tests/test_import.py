"""What importing the package does, and does not."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import agentix_runner

PACKAGE = Path(agentix_runner.__file__).parent


def python(script: str) -> str:
    done = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout


def test_importing_prints_nothing_and_loads_neither_docker_nor_click() -> None:
    """Every public name can be had without docker, click, requests or cloudpickle being imported."""
    script = """
import sys, agentix_runner
for name in agentix_runner.__all__:
    getattr(agentix_runner, name)
print(sorted({"docker", "click", "requests", "cloudpickle", "tqdm", "numpy"} & set(sys.modules)))
"""
    assert python(script) == "[]\n"


def test_a_bare_import_loads_no_module_of_its_own_but_the_version() -> None:
    """The names are imported on first use."""
    script = "import sys, agentix_runner; print(sorted(m for m in sys.modules if m.startswith('agentix_runner.')))"
    assert python(script) == "['agentix_runner._version']\n"


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    """Lazy names fail like any other."""
    script = "import agentix_runner\ntry: agentix_runner.Nope\nexcept AttributeError as exc: print(exc)"
    assert "no attribute 'Nope'" in python(script)


def test_only_the_bridge_imports_asyncio() -> None:
    """On the host side. (The worker, in the sandbox, imports it where a function to call is a coroutine function.)"""
    importers = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if any(name.split(".")[0] == "asyncio" for name in names):
                importers.add(path.relative_to(PACKAGE).as_posix())
    assert importers - {"remote/sandbox/worker.py", "remote/host/calls.py"} == {"rollout/bridge.py"}


def test_nothing_below_the_runner_imports_it() -> None:
    """Data flows one way."""
    for path in PACKAGE.rglob("*.py"):
        if path.parent.name == "cli" or path.name in ("runner.py", "__init__.py"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                assert node.module not in ("runner", "agentix_runner.runner"), path


def test_modules_stay_small() -> None:
    """A room that holds more than 400 lines holds two ideas."""
    assert [p.name for p in PACKAGE.rglob("*.py") if len(p.read_text().splitlines()) > 400] == []
