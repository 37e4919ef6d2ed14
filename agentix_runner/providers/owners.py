"""Whose a container is: the labels that say so, and whether that process still lives.

agentix.run_id, agentix.instance_id, agentix.phase     what it is for
agentix.owner_host, .owner_pid, .owner_start           the process that made it: its machine and PID namespace, its
                                                       number, and when it was started (numbers are used again)
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

from .directories import boot_id, pid_namespace, started

RUN = "agentix.run_id"
INSTANCE = "agentix.instance_id"
ATTEMPT = "agentix.attempt"
PHASE = "agentix.phase"
HOST = "agentix.owner_host"
PID = "agentix.owner_pid"
START = "agentix.owner_start"


def labels_for(about: Mapping[str, str]) -> dict[str, str]:
    """The labels of a container that this process makes. `about` are those of the rollout that it is for."""
    labels = {RUN: about.get("run_id", ""), INSTANCE: about.get("instance_id", "")}
    labels |= {ATTEMPT: about.get("attempt", ""), PHASE: about.get("phase", "")}
    return {**{key: value for key, value in labels.items() if value}, **owner()}


def owner() -> dict[str, str]:
    """The labels that name this process."""
    pid = os.getpid()
    return {HOST: host(), PID: str(pid), START: started(pid)}


def host() -> str:
    """This machine since it was booted, and PID namespace: where a process id means what it means here.

    Many machines have one name, and the first namespace has the same number on all. What was there before the machine
    was booted is not known from here; an engine removes that itself when it starts.
    """
    return f"{socket.gethostname()}/{boot_id()[:13]}/{pid_namespace().strip('pid:[]')}"


def is_here(labels: Mapping[str, str]) -> bool:
    """Whether the owner was a process whose life can be told from here."""
    return labels.get(HOST) == host()


def is_dead(labels: Mapping[str, str]) -> bool:
    """Whether the owner is known to be dead. What can't be known is alive."""
    pid = labels.get(PID, "")
    try:
        return is_here(labels) and pid.isdigit() and started(int(pid)) != labels.get(START)
    except OSError:
        return False
