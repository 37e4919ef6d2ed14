"""Fixtures that several test files share."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from agentix_runner.rollout import bridge, slots

from .support.claude_code import claude_bundle  # noqa: F401
from .support.docker_tools import nothing_left, suite_bundle  # noqa: F401
from .support.engine import engine  # noqa: F401
from .support.images import busybox, debian, debian_python, empty  # noqa: F401
from .support.processes import eventually
from .support.swe_images import swe_row  # noqa: F401


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
