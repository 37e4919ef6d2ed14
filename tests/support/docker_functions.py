"""Functions for the docker provider's tests to run in sandboxes; in their bundle, so that they go by name."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass


@dataclass
class Facts:
    """What a sandbox looks like from inside."""

    uid: int
    cwd: str
    env: dict[str, str]
    interfaces: list[str]
    pids_max: int | None
    new_privileges: bool
    python: str


def facts() -> Facts:
    with open("/proc/self/status") as file:
        fields = dict(line.rstrip("\n").split(":\t", 1) for line in file)
    return Facts(
        uid=os.getuid(),
        cwd=os.getcwd(),
        env=dict(os.environ),
        interfaces=sorted(os.listdir("/sys/class/net")),
        pids_max=_pids_max(),
        new_privileges=fields["NoNewPrivs"] == "0",
        python=sys.executable,
    )


def _pids_max() -> int | None:
    for path in ("/sys/fs/cgroup/pids.max", "/sys/fs/cgroup/pids/pids.max"):
        if os.path.exists(path):
            with open(path) as file:
                text = file.read().strip()
            return None if text == "max" else int(text)
    return None


def double(x: int) -> int:
    return 2 * x


def sleep(seconds: float) -> str:
    time.sleep(seconds)
    return "slept"


def print_much(total: int) -> int:
    line = b"x" * 65535 + b"\n"
    for _ in range(total // len(line)):
        os.write(1, line)
    return total


def leave_children(count: int) -> int:
    """Processes in sessions of their own, which would go on for an hour."""
    for _ in range(count):
        subprocess.Popen(["sleep", "3600"], start_new_session=True, stdin=subprocess.DEVNULL)
    return count


def close_all() -> str:
    """Every descriptor that user code might close."""
    for number in (0, 1, 2):
        os.close(number)
    return "closed"


def eat(megabytes: int) -> int:
    """Use memory, for real."""
    held = bytearray()
    for _ in range(megabytes):
        held += os.urandom(1) * (1 << 20)
    return len(held)


def eat_in_child(megabytes: int) -> int:
    """The same in a child process; how it ended, as subprocess says it."""
    code = "import os\nheld = bytearray()\nwhile True: held += os.urandom(1) * (1 << 20)"
    return subprocess.run([sys.executable, "-I", "-S", "-c", code], stdin=subprocess.DEVNULL).returncode


def fill(path: str) -> str:
    """Write to a file until there is no more room; what the system says then."""
    try:
        with open(path, "wb", buffering=0) as file:
            while True:
                file.write(bytes(1 << 20))
    except OSError as error:
        return os.strerror(error.errno or 0)
    finally:
        os.unlink(path)


def zeros(size: int) -> bytes:
    return bytes(size)


def write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def exists(path: str) -> bool:
    return os.path.exists(path)


def pid_of_guard() -> int:
    return os.getppid()


def break_in() -> dict[str, str]:
    """As a process of its own in the sandbox: write into the frames, read them, stop the guard or the worker's ways to
    the host. What the system says to each."""
    code = f"""
import os, sys
said = {{}}
def attempt(name, do):
    try:
        do()
        said[name] = "done"
    except OSError as error:
        said[name] = os.strerror(error.errno)
worker = {os.getpid()}
for pid in (1, worker):
    for number in (0, 1, 2, 200, 201):
        attempt(f"open {{pid}} {{number}}", lambda: os.open(f"/proc/{{pid}}/fd/{{number}}", os.O_RDWR))
    attempt(f"memory {{pid}}", lambda: os.open(f"/proc/{{pid}}/mem", os.O_RDWR))
attempt("kill 1", lambda: os.kill(1, {int(signal.SIGKILL)}))
attempt("stop 1", lambda: os.kill(1, {int(signal.SIGSTOP)}))
attempt("interrupt 1", lambda: os.kill(1, {int(signal.SIGINT)}))
attempt("hang up 1", lambda: os.kill(1, {int(signal.SIGHUP)}))
print(repr(said))
"""
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], stdout=subprocess.PIPE, check=True)
    said: dict[str, str] = eval(done.stdout, {"__builtins__": {}})
    return said


def terminate_guard() -> None:
    os.kill(1, signal.SIGTERM)
    time.sleep(60)


def environment_of_child(name: str) -> str:
    return subprocess.run(["sh", "-c", f'printf %s "${name}"'], stdout=subprocess.PIPE, check=True).stdout.decode()
