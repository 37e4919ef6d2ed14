"""The Docker engine that tests run on: one fixture, one reason to skip.

Without an engine the tests that ask for the fixture `engine` are skipped; with AGENTIX_REQUIRE_DOCKER=1 in the
environment, as in CI, they fail instead. `.ci/engine.sh` starts one.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from typing import NoReturn

import docker
import docker.errors
import pytest

REQUIRE = "AGENTIX_REQUIRE_DOCKER"


@functools.cache
def engine_problem() -> str | None:
    """Why no Docker engine can be used here; None where one answers."""
    try:
        client = docker.from_env(timeout=10)
    except docker.errors.DockerException as error:
        return f"no Docker engine answers ({' '.join(str(error).split())[:200]}); .ci/engine.sh starts one"
    try:
        client.ping()
    except Exception as error:  # whatever requests and urllib3 make of a broken engine
        return f"no Docker engine answers ({' '.join(str(error).split())[:200]}); .ci/engine.sh starts one"
    finally:
        client.close()
    return None


def skip_or_fail(reason: str) -> NoReturn:
    """Skip the test for `reason`; fail it where the environment requires Docker."""
    if os.environ.get(REQUIRE) == "1":
        pytest.fail(f"{REQUIRE}=1, but {reason}", pytrace=False)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def engine() -> Iterator[docker.DockerClient]:
    """A client of the engine, shared by the whole session."""
    problem = engine_problem()
    if problem:
        skip_or_fail(problem)
    client = docker.from_env(timeout=120, max_pool_size=32)
    yield client
    client.close()
