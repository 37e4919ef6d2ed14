"""Which process a sandbox belongs to, and whether that process still lives. Runs on the host.

One record for directories (it is in their names), for containers, and for what bundles are made with (it is in their
labels):

agentix.run_id, agentix.instance_id, agentix.phase     what a container is for
agentix.owner_host, .owner_pid, .owner_start           the process that made it: its machine and PID namespace, its
                                                       number, and when it was started (numbers are used again)
"""

from __future__ import annotations

import functools
import os
import socket
import sys
import zlib
from collections.abc import Mapping

from attrs import frozen

RUN = "agentix.run_id"
INSTANCE = "agentix.instance_id"
ATTEMPT = "agentix.attempt"
PHASE = "agentix.phase"
HOST = "agentix.owner_host"
PID = "agentix.owner_pid"
START = "agentix.owner_start"


@frozen
class Owner:
    """A process that sandboxes belong to. What is not known of it is ""."""

    host: str
    pid: str
    start: str

    @classmethod
    def current(cls) -> Owner:
        """This process."""
        pid = os.getpid()
        return cls(host(), str(pid), process_start(pid))

    @classmethod
    def from_labels(cls, labels: Mapping[str, str]) -> Owner:
        return cls(labels.get(HOST, ""), labels.get(PID, ""), labels.get(START, ""))

    @classmethod
    def from_name(cls, name: str) -> Owner:
        """The owner whose `name` this is. One of another machine is known by that alone."""
        parts = name.split("-")
        if len(parts) != 3 or parts[0] != _host_hash():
            return cls("", "", "")
        return cls(host(), parts[1], parts[2])

    @property
    def labels(self) -> dict[str, str]:
        return {HOST: self.host, PID: self.pid, START: self.start}

    @property
    def name(self) -> str:
        """A process of this machine as a part of file names: its host (without the boot, which `start` tells), its
        number and its start."""
        return f"{_host_hash()}-{self.pid}-{self.start}"

    @property
    def is_here(self) -> bool:
        """Whether this is a process whose life can be told from here."""
        return self.host == host()

    @property
    def is_dead(self) -> bool:
        """Whether it is known to be dead. What can't be known is alive."""
        try:
            return self.is_here and self.pid.isdigit() and process_start(int(self.pid)) != self.start
        except OSError:
            return False


def labels_for(about: Mapping[str, str]) -> dict[str, str]:
    """The labels of a container that this process makes. `about` are those of the rollout that it is for."""
    labels = {RUN: about.get("run_id"), INSTANCE: about.get("instance_id")}
    labels |= {ATTEMPT: about.get("attempt"), PHASE: about.get("phase")}
    return {**{label: value for label, value in labels.items() if value}, **Owner.current().labels}


def owner() -> dict[str, str]:
    """The labels that name this process."""
    return Owner.current().labels


def host() -> str:
    """This machine since it was booted, and PID namespace: where a process id means what it means here.

    Many machines have one name, and the first namespace has the same number on all. What was there before the machine
    was booted is not known from here; an engine removes that itself when it starts.
    """
    return f"{socket.gethostname()}/{boot_id()[:13]}/{pid_namespace().strip('pid:[]')}"


def process_start(pid: int) -> str:
    """When `pid` was started, as text that tells it from another process of the same number. "" where it isn't
    running, "0" where that is all that can be known. Raises OSError where it can't be known."""
    if sys.platform != "linux":
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return ""
        except OSError:
            pass
        return "0"
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    if fields[0] in (b"Z", b"X"):
        return ""
    boot = boot_id()
    return f"{boot[:4]}.{int(fields[19])}" if boot else f"{int(fields[19])}"


@functools.lru_cache(maxsize=1)
def _host_hash() -> str:
    return f"{zlib.crc32(f'{socket.gethostname()} {pid_namespace()}'.encode()):08x}"


def pid_namespace() -> str:
    """Where process ids mean what they mean here, on this machine. "" where that can't be known."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


@functools.lru_cache(maxsize=1)
def boot_id() -> str:
    """Another one each time that a machine is booted. "" where that can't be known."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""
