"""The interpreter that runs this, copied into a tree. Standard library only: it also runs in a base image.

Copied are the executable, its loader, the shared libraries and the standard library without what a sandbox has no use
for. Nothing is changed in binaries here: that is `patchelf`'s part, and it need not be where this runs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from typing import Any

from . import ROOT
from .elf import is_dynamic, libraries, loader_of

_DROPPED_FOLDERS = {
    "__pycache__", "dist-packages", "ensurepip", "idle_test", "idlelib", "site-packages", "test", "tests", "tkinter",
    "turtledemo",
}  # fmt: skip
# sitecustomize is the machine's, not Python's.
_DROPPED_FILES = {"EXTERNALLY-MANAGED", "sitecustomize.py", "turtle.py", "usercustomize.py"}
_DROPPED_ENDINGS = (".a", ".exe", ".o", ".pyc")
_DROPPED_MODULES = ("_ctypes_test.", "_test", "_tkinter.", "_xxtestfuzz.", "xxlimited")
# Loaded by name while running, so that no file says it needs them; and the rest of glibc, small, for added programs.
_LOADED_LATER = (
    "libanl.so.1", "libdl.so.2", "libgcc_s.so.1", "libm.so.6", "libnss_dns.so.2", "libnss_files.so.2",
    "libpthread.so.0", "libresolv.so.2", "librt.so.1", "libutil.so.1",
)  # fmt: skip
_SYSTEM_PREFIXES = ("/", "/usr", "/usr/local")
_COMPILE_LIMIT_S = 900

_COMPILE = """
import compileall, py_compile, sys
compileall.compile_dir(
    sys.argv[1], stripdir=sys.argv[1], prependdir=sys.argv[2], quiet=2, force=True, workers=1, maxlevels=40,
    invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
)
"""


class CannotCollect(Exception):
    """This interpreter can't be copied; the message says why."""


def python_facts() -> dict[str, Any]:
    """What this interpreter is: "version", "executable" (its real file), "stdlib" (its folder), "dynload" (the folder
    of its extension modules), "libdir" and "loader" (None for a static one).

    Raises:
        CannotCollect: it is no CPython of 3.10 or later on Linux.
    """
    version = ".".join(map(str, sys.version_info[:3]))
    if not sys.platform.startswith("linux"):
        raise CannotCollect(f"this Python runs on {sys.platform}, and sandboxes take one for Linux")
    if sys.implementation.name != "cpython":
        raise CannotCollect(f"this Python is {sys.implementation.name}, and only CPython is known to run when copied")
    if sys.version_info < (3, 10):  # noqa: UP036 - a base image's may be older
        raise CannotCollect(f"it is Python {version}, and 3.10 is the first that will do")
    executable = os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)
    if not os.path.isfile(os.__file__):
        raise CannotCollect(f"its standard library is no folder ({os.__file__})")
    stdlib = os.path.realpath(os.path.dirname(os.__file__))
    dynload = next((path for path in sys.path if os.path.basename(path) == "lib-dynload"), f"{stdlib}/lib-dynload")
    try:
        loader = loader_of(executable)
    except ValueError as error:
        raise CannotCollect(f"its executable {executable} is no program file: {error}") from error
    if loader is not None and not os.path.isfile(loader):
        raise CannotCollect(f"the loader {loader} that its executable {executable} names is not there")
    return {
        "version": version,
        "executable": executable,
        "stdlib": stdlib,
        "dynload": dynload,
        "libdir": sys.platlibdir,
        "loader": loader,
    }


def collect_python(root: str) -> None:
    """Copy this interpreter into `root`, which stands for /agentix.

    Raises:
        CannotCollect: it can't be copied.
    """
    facts = python_facts()
    name = os.path.basename(facts["stdlib"])
    stdlib = os.path.join(root, facts["libdir"], name)
    for folder in ("bin", "lib", "site-packages"):
        os.makedirs(os.path.join(root, folder), exist_ok=True)
    shutil.copy(facts["executable"], os.path.join(root, "bin", "python"))
    for link in ("python3", "python" + sysconfig.get_python_version()):
        os.symlink("python", os.path.join(root, "bin", link))
    copied = [facts["executable"], *_copy_library(facts["stdlib"], stdlib)]
    if os.path.isdir(facts["dynload"]):
        copied += _copy_library(facts["dynload"], os.path.join(stdlib, "lib-dynload"))
    # Where `site` looks: Debian's knows another name than everybody else's.
    up = os.path.relpath(os.path.join(root, "site-packages"), stdlib)
    for link in ("site-packages", "dist-packages"):
        os.symlink(up, os.path.join(stdlib, link))
    if facts["loader"] is not None:
        shutil.copy(facts["loader"], os.path.join(root, "lib", os.path.basename(facts["loader"])))
        collect_libraries(copied, facts["loader"], os.path.join(root, "lib"), later=_LOADED_LATER)
    _forget_prefix(stdlib, sys.base_prefix)
    compile_tree(stdlib, f"{ROOT}/{facts['libdir']}/{name}")


def collect_libraries(
    files: Iterable[str],
    loader: str,
    into: str,
    *,
    known: Iterable[str] = (),
    later: Iterable[str] = (),
    inside: str | None = None,
) -> list[str]:
    """Copy into the folder `into` the shared libraries that `files` get, without those named in `known` and those in
    the folder `inside`; those named in `later` too, where they lie beside one that is needed.

    Returns what was not found, as "FILE needs NAME".
    """
    own = os.path.realpath(inside) + os.sep if inside is not None else None
    wanted: dict[str, str] = {}
    missing: dict[str, str] = {}
    for file in files:
        if not is_dynamic(file):
            continue
        for name, path in libraries(file, loader).items():
            if path is None:
                missing.setdefault(name, file)
            elif name not in known and not (own and path.startswith(own)):
                wanted.setdefault(name, path)
    beside = {os.path.dirname(path) for path in wanted.values()} if later else set()
    for name in later:
        for folder in sorted(beside):
            if os.path.exists(os.path.join(folder, name)):
                wanted.setdefault(name, os.path.join(folder, name))
    for name, path in wanted.items():
        if name != os.path.basename(loader):
            os.makedirs(into, exist_ok=True)
            shutil.copy(path, os.path.join(into, name))
    return [f"{file} needs {name}" for name, file in missing.items() if name not in wanted and name not in known]


def compile_tree(folder: str, stands_for: str) -> None:
    """Compile every module in `folder`, as files of the folder `stands_for`. The volume is read-only, so that no later
    import could keep what it compiled. Files that are no valid Python are left alone.

    Raises:
        CannotCollect: the compiler did not come to its end.
    """
    # One process, one order and one hash seed: what is compiled depends on them in its details.
    environment = {"PATH": os.environ.get("PATH", ""), "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
    if "LD_LIBRARY_PATH" in os.environ:
        environment["LD_LIBRARY_PATH"] = os.environ["LD_LIBRARY_PATH"]
    command = [sys.executable, "-s", "-S", "-W", "ignore", "-c", _COMPILE, folder, stands_for]
    done = subprocess.run(
        command,
        cwd="/",
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=_COMPILE_LIMIT_S,
    )
    if done.returncode != 0:
        raise CannotCollect(f"compiling {folder} failed: {done.stdout.decode(errors='replace')[-500:]}")


def all_files(folder: str) -> Iterator[str]:
    """Every file below `folder`, in a fixed order."""
    for here, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            yield os.path.join(here, name)


def _copy_library(source: str, target: str) -> list[str]:
    """Copy what is worth it of a folder of the standard library. Returns the extension modules' files at `source`,
    which the loader has to be asked about: their own search paths hold only there."""
    binaries = []
    for here, folders, names in os.walk(source):
        folders[:] = sorted(name for name in folders if name not in _DROPPED_FOLDERS and not name.startswith("config-"))
        there = os.path.join(target, os.path.relpath(here, source))
        os.makedirs(there, exist_ok=True)
        for name in sorted(names):
            path = os.path.join(here, name)
            if name in _DROPPED_FILES or name.endswith(_DROPPED_ENDINGS) or not os.path.isfile(path):
                continue
            if name.startswith(_DROPPED_MODULES) and ".so" in name:
                continue
            # Links are followed: they may lead out of the tree (Debian's do).
            shutil.copy(path, os.path.join(there, name))
            if ".so" in name:
                binaries.append(path)
    return binaries


def _forget_prefix(stdlib: str, prefix: str) -> None:
    """Where Python was built for a folder of somebody's own, let its build data name the bundle's instead."""
    if prefix in _SYSTEM_PREFIXES:
        return
    for name in sorted(os.listdir(stdlib)):
        if name.startswith("_sysconfigdata") and name.endswith(".py"):
            path = os.path.join(stdlib, name)
            with open(path, encoding="utf-8", errors="surrogateescape") as file:
                text = file.read()
            with open(path, "w", encoding="utf-8", errors="surrogateescape") as file:
                file.write(text.replace(prefix, ROOT))
