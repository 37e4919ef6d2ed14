"""Fixtures that several test files share; how a whole run is spread over processes, and what is made before it."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

import docker
import pytest

from agentix_runner.rollout import bridge, slots

from .support.claude_code import claude_bundle  # noqa: F401
from .support.docker_tools import ensure_suite_bundle, nothing_left, suite_bundle  # noqa: F401
from .support.engine import engine, engine_problem  # noqa: F401
from .support.images import DEBIAN, PYTHON, busybox, debian, debian_python, empty, ensure  # noqa: F401
from .support.processes import eventually
from .support.swe_images import ensure_row, swe_row  # noqa: F401

# By the fixture that gives it: what takes so long to make that a test's time limit should not have to cover it.
MADE_AHEAD = {
    "debian": lambda client: ensure(client, DEBIAN),
    "debian_python": lambda client: ensure(client, PYTHON),
    "swe_row": ensure_row,
    "suite_bundle": ensure_suite_bundle,
}


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """A whole run is spread over as many processes as there are cores; a part of it runs in this one."""
    part = any(os.path.exists(argument.partition("::")[0]) for argument in config.invocation_params.args)
    return 0 if part else max(2, os.cpu_count() or 2)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Make what the tests to come need, once for all processes, before the first of them runs."""
    needed = {name for item in session.items for name in getattr(item, "fixturenames", ())}
    if needed.isdisjoint(MADE_AHEAD) or session.config.option.collectonly or engine_problem():
        return
    with contextlib.closing(docker.from_env(timeout=600)) as client:
        for name, make in MADE_AHEAD.items():
            # What can't be made is told by the tests that miss it.
            if name in needed:
                with contextlib.suppress(Exception):
                    make(client)


@pytest.fixture
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Code that does not come back is given up after a moment, so that the test of it is quick."""
    monkeypatch.setattr(bridge, "LEFT_OVER_S", 0.1)
    monkeypatch.setattr(slots, "GRACE_S", 0.3)


@pytest.fixture
def no_threads_left() -> Iterator[None]:
    """The test ends with the threads that it began with."""
    before = set(threading.enumerate())
    yield
    eventually(lambda: set(threading.enumerate()) <= before)
