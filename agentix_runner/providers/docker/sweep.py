"""Containers that have to go: one by name, those of owners that are dead, those of a run."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from attrs import frozen

from ...errors import SandboxError
from .. import owners
from ..owners import Owner
from .engine import one_line

_log = logging.getLogger("agentix_runner.providers.docker")

# How long (seconds) the engine may take with one removal that it has begun, and with all of a sweep.
GONE_LIMIT_S = 30.0
_SWEEP_LIMIT_S = 60.0


@frozen(kw_only=True)
class Found:
    """A container of ours in the engine. `status` is the engine's word, as in "running" or "created"."""

    id: str
    name: str
    status: str
    run_id: str
    owner: Owner


def find(api: Any, run_id: str | None = None) -> list[Found]:
    """The containers with our label, of one run or of all. Raises what docker-py raises."""
    label = owners.PID if run_id is None else f"{owners.RUN}={run_id}"
    found = api.containers(all=True, filters={"label": label})
    return [
        Found(
            id=one["Id"],
            name=(one.get("Names") or [one["Id"][:12]])[0].lstrip("/"),
            status=one.get("State", ""),
            run_id=labels.get(owners.RUN, ""),
            owner=Owner.from_labels(labels),
        )
        for one in found
        # Also by the filter; but what has no owner's label is not ours, whatever an engine answers.
        if owners.PID in (labels := one.get("Labels") or {})
    ]


def remove(api: Any, container: str, *, now: Callable[[], float] = time.monotonic) -> None:
    """Remove a container, running or not, with its anonymous volumes; return when it is gone.

    One that isn't there, or that is being removed already, is as good.

    Raises:
        SandboxError: it is still there after `GONE_LIMIT_S`.
        docker.errors.DockerException, requests.RequestException: the engine does not do it, or does not answer.
    """
    from docker.errors import APIError, NotFound

    end = now() + GONE_LIMIT_S
    pause = 0.005
    why = "it is still being removed"
    while True:
        try:
            api.remove_container(container, force=True, v=True)
            return
        except NotFound:
            return
        except APIError as error:
            # 409: it removes itself right now. 500: it was just ending, or its file system is busy for a moment.
            if error.status_code not in (409, 500):
                raise
            why = one_line(error)
        if now() > end:
            raise SandboxError(f"container {container} is still there after {GONE_LIMIT_S:g} s: {why}")
        time.sleep(pause)
        pause = min(pause * 2, 0.25)
        try:
            api.inspect_container(container)
        except NotFound:
            return


def sweep(api: Any, *, now: Callable[[], float] = time.monotonic) -> list[str]:
    """Remove the containers of owners that are dead. Returns their names. Failures are logged."""
    from docker.errors import DockerException
    from requests import RequestException

    removed: list[str] = []
    end = now() + _SWEEP_LIMIT_S
    try:
        for found in find(api):
            if not found.owner.is_dead:
                continue
            if now() > end:
                _log.warning("many containers of dead runs are left: remove them with `agentix clean --all-dead`")
                break
            _log.info("removing container %s: its owner is dead", found.name)
            remove(api, found.id)
            removed.append(found.name)
    except (DockerException, RequestException, SandboxError) as error:
        _log.warning("containers of dead runs could not be removed: %s", one_line(error))
    return removed
