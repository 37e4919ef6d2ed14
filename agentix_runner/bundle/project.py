"""The packages of a bundle: the project and what it needs by pip, the remote side and cloudpickle as the host has them.
Standard library only: it also runs in a base image.
"""

from __future__ import annotations

import collections
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

from . import PYTHON
from .interpreter import CannotCollect, all_files

_PIP_LIMIT_S = 3600.0
_PIP_ENVIRONMENT = {
    "PYTHONHASHSEED": "0",
    # 1980, as everything in a bundle: what a build back end writes down, and the first time that a wheel can hold.
    "SOURCE_DATE_EPOCH": "315532800",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "PIP_NO_INPUT": "1",
    "PIP_ROOT_USER_ACTION": "ignore",
}
_SHEBANG = re.compile(rb"\A#!(?:[^\n]*python[^\n]*|/bin/sh\n'''exec' [^\n]*\n' ''')\n")


def install(
    site: str,
    scripts: str,
    requirements: Iterable[str],
    *,
    pip_args: Iterable[str] = (),
    where: str = "/",
    on_line: Callable[[str], None] = lambda line: None,
) -> None:
    """Install `requirements` (as pip takes them, from the folder `where`) into the new folder `site`, and their scripts
    into `scripts`. `on_line` is told each line that pip prints.

    Raises:
        CannotCollect: there is no pip, or it failed.
    """
    command = [sys.executable, "-m", "pip", "install", "--target", site, "--no-compile", "--no-warn-script-location"]
    end = _run([*command, *pip_args, *requirements], where, on_line)
    if end is not None:
        raise CannotCollect(end)
    _forget_host(site, scripts)


def add_seed(site: str, seed: str) -> None:
    """Add what the host brings, each distribution in a folder of its name, where pip has not installed its own. The
    host's agentix_runner always wins: both ends of the wire must be of one version."""
    os.makedirs(site, exist_ok=True)
    there = {_distribution(name): name for name in os.listdir(site) if name.endswith(".dist-info")}
    for name in sorted(os.listdir(seed)):
        if name == "agentix-runner":
            for old in os.listdir(site):
                if old == "agentix_runner" or _distribution(old) == name:
                    shutil.rmtree(os.path.join(site, old))
        elif name in there:
            continue
        shutil.copytree(os.path.join(seed, name), site, dirs_exist_ok=True)


def _distribution(info: str) -> str:
    return re.sub(r"[-_.]+", "-", info.partition("-")[0]).lower()


def _run(command: list[str], where: str, on_line: Callable[[str], None]) -> str | None:
    """Run pip. None if all went well, else what to tell."""
    process = subprocess.Popen(
        command,
        cwd=where,
        env={**os.environ, **_PIP_ENVIRONMENT},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    assert process.stdout is not None
    timer = threading.Timer(_PIP_LIMIT_S, process.kill)
    timer.daemon = True
    timer.start()
    last: collections.deque[str] = collections.deque(maxlen=50)
    try:
        with process.stdout:
            for data in process.stdout:
                line = data.decode(errors="replace").rstrip()[:1000]
                last.append(line)
                on_line(line)
        code = process.wait()
    finally:
        timer.cancel()
        if process.poll() is None:
            process.kill()
            process.wait()
    if code == 0:
        return None
    if any("No module named pip" in line for line in last):
        return f"{sys.executable} has no pip: run {sys.executable} -m ensurepip, or give a --base image that has it"
    errors = [line for line in last if line.startswith("ERROR: ")] or [line for line in last if line]
    return f"pip ended with {code}: {' / '.join(errors[-3:])}"


def _forget_host(site: str, scripts: str) -> None:
    """Take out what holds only where pip ran."""
    editable = [name for name in os.listdir(site) if name.startswith("__editable__") or name.endswith(".egg-link")]
    if editable:
        raise CannotCollect(f"an editable install ({editable[0]}) can't travel: name the folder itself, without -e")
    made = Path(site, "bin")
    if made.is_dir():
        os.makedirs(scripts, exist_ok=True)
        for script in sorted(made.iterdir()):
            if re.match(r"python[\d.]*\Z", script.name) or not script.is_file():
                continue
            data = script.read_bytes()
            target = Path(scripts, script.name)
            target.write_bytes(_SHEBANG.sub(b"#!" + PYTHON.encode() + b"\n", data, count=1))
            target.chmod(0o755)
        shutil.rmtree(made)
    for info in sorted(Path(site).glob("*.dist-info")):
        (info / "direct_url.json").unlink(missing_ok=True)
        record = info / "RECORD"
        if record.is_file():
            lines = record.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
            kept = [line for line in lines if _is_there(site, line)]
            record.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8", errors="surrogateescape")
    for path in all_files(site):
        if path.endswith(".pyc"):
            os.unlink(path)


def _is_there(site: str, line: str) -> bool:
    name = line[1:].partition('"')[0] if line.startswith('"') else line.partition(",")[0]
    return ".." not in name.split("/") and os.path.lexists(os.path.join(site, name))
