"""What importing the package does and does not, and which of its modules may import which."""

from __future__ import annotations

import pytest

from . import house
from .support.processes import python

# Not yet as it should be; each line goes with what it names.
KNOWN_CIRCLES = [
    {"providers.docker.container", "providers.docker.provider"},
]
KNOWN_UP = {
    "bundle.base_image -> providers.owners",
    "bundle.mount -> providers.owners",
}


@pytest.mark.parametrize(
    ("script", "printed"),
    [
        (
            "import sys, agentix_runner\nfor name in agentix_runner.__all__: getattr(agentix_runner, name)\n"
            "print({'docker', 'click', 'requests', 'cloudpickle', 'tqdm', 'numpy'} & set(sys.modules))",
            "set()\n",
        ),
        (
            "import sys, agentix_runner; print([m for m in sys.modules if m.startswith('agentix_runner.')])",
            "['agentix_runner._version']\n",
        ),
        (
            "import agentix_runner\ntry: agentix_runner.Nope\nexcept AttributeError as exc: print(exc)",
            "module 'agentix_runner' has no attribute 'Nope'\n",
        ),
    ],
    ids=["all names without docker or click", "a bare import loads the version alone", "a name that is not there"],
)
def test_importing_is_light_and_silent(script: str, printed: str) -> None:
    """The public names are imported on first use, print nothing, and fail like any other where they are not there."""
    assert python(script) == printed


def test_imports_go_down_only() -> None:
    """No module imports one on a higher floor, not even for types or inside a function."""
    assert set(house.running_up(house.imports())) - KNOWN_UP == set()


def test_no_modules_import_each_other() -> None:
    """Neither directly nor by way of others, not even for types or inside a function."""
    circles = [set(circle.split(" <-> ")) for circle in house.circles(house.imports())]
    assert [circle for circle in circles if not any(circle <= known for known in KNOWN_CIRCLES)] == []


def test_the_sandbox_needs_only_the_standard_library() -> None:
    """What runs there runs in images that hold nothing else; it imports no host-side module either (that is up)."""
    assert house.foreign_in_sandbox() == []


def test_asyncio_is_imported_in_one_place() -> None:
    """The bridge on the host; in the sandbox, the worker, where a function to call is a coroutine function."""
    importers = set()
    for path in house.PACKAGE.rglob("*.py"):
        if any(name.partition(".")[0] == "asyncio" for name in house.imported(path)):
            importers.add(path.relative_to(house.PACKAGE).as_posix())
    assert importers - {"remote/host/calls.py"} == {"rollout/bridge.py", "remote/sandbox/worker.py"}
