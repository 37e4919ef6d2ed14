"""What the tests of examples/run-swe-rollouts share: its folder on the path, as it is when its main.py runs."""

from __future__ import annotations

import base64
import contextlib
import functools
import importlib.util
import json
import os
import sys
import urllib.parse
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

from agentix_runner import DockerProvider, Rollout, run_rollouts

from .processes import ROOT

EXAMPLE = ROOT / "examples" / "run-swe-rollouts"
REQUIRE = "AGENTIX_REQUIRE_SWE"

if str(EXAMPLE) not in sys.path:
    sys.path.insert(0, str(EXAMPLE))


@functools.cache
def installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def need(package: str, extra: str) -> None:
    """Skip the test without `package`; fail it where the environment requires the extras of this example."""
    if not installed(package):
        missing(f"{package} is not installed: pip install -e '.[{extra}]'")


def required() -> bool:
    """Whether the environment requires what the tests of this example need, as CI does."""
    return os.environ.get(REQUIRE) == "1"


def missing(reason: str) -> NoReturn:
    """Skip the test for `reason`; fail it where that is required."""
    if required():
        pytest.fail(f"{REQUIRE}=1, but {reason}", pytrace=False)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def harness() -> Iterator[Any]:
    """The process that grades."""
    need("swebench", "swe")
    from harness import Harness

    with contextlib.closing(Harness()) as one:
        yield one


def run_rows(rows: list[dict[str, Any]], agent: Any, harness: Any, **settings: Any) -> list[Rollout]:
    """Rollouts of `rows` in containers, as main.py makes them; a minute for each row's tests."""
    from dataset import SweDataset

    of_dataset = {name: settings.pop(name) for name in ("eval_timeout", "max_log") if name in settings}
    dataset = SweDataset(rows=rows, harness=harness, **{"eval_timeout": 60, **of_dataset})
    return run_rollouts(dataset=dataset, agent=agent, **{"provider": DockerProvider(user="root"), **settings})


def spellings(key: str) -> set[str]:
    """A key as it might turn up: as it is, quoted for a URL or JSON, in base64 (as in Basic auth), in hex."""
    found = {key, urllib.parse.quote(key), urllib.parse.quote(key, safe=""), json.dumps(key)[1:-1], key.encode().hex()}
    for before in ("", "x", "xx"):  # where it begins within three bytes decides how its base64 looks
        coded = base64.b64encode((before + key).encode()).decode()
        found.add(coded[4:-4] if before else coded.rstrip("="))
    return found


def where_key_is(key: str, folder: Path, *texts: str) -> list[str]:
    """Which of `texts`, and of the files in `folder`, hold `key` in any spelling."""
    everything = {text[:200]: text for text in texts}
    for path in folder.rglob("*"):
        if path.is_file():
            everything[str(path)] = path.read_bytes().decode("latin-1")
    return [name for name, text in everything.items() if any(spelling in text for spelling in spellings(key))]


def search_sandbox(texts: list[bytes]) -> dict[str, list[int]]:
    """Which of `texts` stand in which file, or in which process's environment or arguments. Runs in the sandbox."""
    found = {}
    places = [f"/proc/{number}/{name}" for number in os.listdir("/proc") for name in ("environ", "cmdline")]
    for folder, inner, names in os.walk("/"):
        if folder == "/":
            inner[:] = set(inner) - {"agentix", "dev", "proc", "sys"}
        places += [path for name in names if os.path.isfile(path := os.path.join(folder, name))]
    for path in places:
        try:
            with open(path, "rb") as file:
                data = file.read()
        except OSError:
            continue
        here = [number for number, text in enumerate(texts) if text in data]
        if here:
            found[path] = here
    return found


class Searched:
    """Runs the async `agent`, and then searches its sandbox for `texts`: `found`."""

    def __init__(self, agent: Any, texts: Iterable[str]) -> None:
        self.agent = agent
        self.texts = [text.encode() for text in texts]
        self.found: dict[str, list[int]] = {}

    async def solve(self, sandbox: Any, instance: dict[str, Any], *, model: str | None) -> Any:
        result = await self.agent.solve(sandbox, instance, model=model)
        self.found = await sandbox.remote(search_sandbox, self.texts)
        return result
