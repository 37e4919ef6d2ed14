"""The tree of a bundle, as two layers: the interpreter's, which is cached, and that of what is installed.

Where the interpreter comes from is a `Source`: this one (`ThisPython`), or a base image's (`base.BaseImage`).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from attrs import frozen

from ..errors import BundleError
from . import ROOT, additions
from .cache import cache_folder, locked, scratch
from .elf import loader_of
from .inside import gather
from .interpreter import CannotCollect, all_files, python_facts
from .layers import Layer, read_layer, write_layer
from .patchelf import patch_tree
from .seed import recipe_key, write_seed, write_stand_in

_log = logging.getLogger("agentix_runner.bundle")

_CACHED = 4
"""How many interpreters' layers are kept; each is some 80 MB."""
_RECIPE = ("__init__.py", "interpreter.py", "elf.py", "layers.py", "patchelf.py")
_ARCHITECTURES = {
    "aarch64": "arm64",
    "amd64": "amd64",
    "arm64": "arm64",
    "armv7l": "arm/v7",
    "i386": "386",
    "i686": "386",
    "x86_64": "amd64",
}
_NOT_THE_PROJECT = (
    "*.egg-info", "*.pyc", ".git", ".hypothesis", ".mypy_cache", ".nox", ".pytest_cache", ".ruff_cache", ".tox",
    ".venv", "__pycache__", "node_modules", "venv",
)  # fmt: skip


@frozen(kw_only=True)
class Project:
    """What is installed: the folder that pip runs in, and what it is told to install there."""

    folder: Path
    requirements: tuple[str, ...]


@frozen(kw_only=True)
class Assembled:
    """The layers of a bundle. `version` is its Python's, `missing` what was not found, as "FILE needs NAME"."""

    layers: tuple[Layer, ...]
    version: str
    missing: tuple[str, ...]


class Source(Protocol):
    """Where the interpreter comes from."""

    architecture: str

    def key(self) -> str:
        """A text that is another one when the interpreter is."""
        ...

    def gather(self, spec: dict[str, Any], work: Path, on_line: Callable[[str], None]) -> dict[str, Any]:
        """Do as `inside.gather` does, on the interpreter. All paths in `spec` are below `work`.

        Raises:
            CannotCollect: something of it can't be done.
        """
        ...


class ThisPython:
    """The interpreter that runs this."""

    def __init__(self) -> None:
        self.architecture = host_architecture()

    def key(self) -> str:
        facts = python_facts()
        folders = {os.path.dirname(facts["executable"]), facts["stdlib"], facts["dynload"]}
        digest = hashlib.sha256(repr(sorted(facts.items())).encode())
        for folder in sorted(folders):
            for path in [facts["executable"]] if folder.endswith("/bin") else all_files(folder):
                if "/site-packages/" not in path and "/__pycache__/" not in path and os.path.isfile(path):
                    status = os.stat(path)
                    digest.update(
                        f"{path}\0{status.st_size}\0{status.st_mtime_ns}\0".encode("utf-8", "surrogateescape")
                    )
        return f"host {digest.hexdigest()}"

    def gather(self, spec: dict[str, Any], work: Path, on_line: Callable[[str], None]) -> dict[str, Any]:
        return gather(spec, on_line)


@contextlib.contextmanager
def assembled(
    source: Source,
    *,
    project: Project | None = None,
    add: Iterable[tuple[Path, str]] = (),
    pip_args: Iterable[str] = (),
    on_line: Callable[[str], None] = _log.debug,
) -> Iterator[Assembled]:
    """Assemble a bundle; its layers are there inside the `with` block only. `on_line` is told how it goes.

    Raises:
        BundleError: it can't be made from that.
        BadArgument: one of `add` is not possible.
    """
    with scratch() as work:
        try:
            yield _assemble(source, work, project, tuple(add), tuple(pip_args), on_line)
        except CannotCollect as error:
            raise BundleError(f"no bundle can be made: {error}") from error


def _assemble(
    source: Source,
    work: Path,
    project: Project | None,
    add: Sequence[tuple[Path, str]],
    pip_args: Sequence[str],
    on_line: Callable[[str], None],
) -> Assembled:
    key = hashlib.sha256(f"{source.key()} {recipe_key(*_RECIPE)}".encode()).hexdigest()[:32]
    cached = _cached(key, work)
    out = work / "out"
    out.mkdir()
    (work / "seed").mkdir()
    write_seed(work / "seed")
    spec: dict[str, Any] = {
        "out": str(out),
        "python": cached is None,
        "seed": str(work / "seed"),
        "known": cached[1]["libraries"] if cached else [],
        "requirements": [],
        "pip_args": list(pip_args),
        "where": str(work),
    }
    if project is not None:
        on_line(f"installing {project.folder}")
        copy_project(project.folder, work / "project")
        spec["where"] = str(work / "project")
        spec["requirements"] = [str(write_stand_in(work)), *project.requirements]
    facts = source.gather(spec, work, on_line)
    if cached is None:
        on_line("patching its binaries")
        patch_tree(out / "python", facts["loader"])
        python = write_layer(out / "python", ROOT.strip("/"), work / "python.tar")
        _keep(key, python, facts)
    else:
        python = cached[0]
    patch_tree(out / "site", facts["loader"])
    missing = [*facts["missing"], *_add_all(source, out, add, facts)]
    site = write_layer(out / "site", ROOT.strip("/"), work / "site.tar")
    return Assembled(layers=(python, site), version=facts["version"], missing=tuple(missing))


def _add_all(source: Source, out: Path, add: Sequence[tuple[Path, str]], facts: dict[str, Any]) -> list[str]:
    """Add all of `add`, and the libraries that it needs. Returns what the bundle lacks, as "FILE needs NAME"."""
    root = out / "site"
    added = [additions.add(root, path, destination) for path, destination in add]
    loader = _own_loader()
    if not added or loader is None or os.path.basename(loader) != facts["loader"]:
        return []
    own, brought = root / "lib", out / "brought"
    known = [*facts["libraries"], *(os.listdir(own) if own.is_dir() else ())]
    # Those of this machine go with its own glibc only.
    take = isinstance(source, ThisPython)
    missing = additions.bring_libraries(added, loader, known, brought, root=root, take=take)
    if brought.is_dir():
        patch_tree(brought, facts["loader"])
        shutil.copytree(brought, own, dirs_exist_ok=True)
    return missing


def _own_loader() -> str | None:
    """This machine's loader; None where it has none."""
    try:
        return loader_of(os.path.realpath(sys.executable)) if sys.platform.startswith("linux") else None
    except ValueError:
        return None


def host_architecture() -> str:
    """This machine's architecture, as images name it: "amd64", "arm64", ..."""
    machine = platform.machine().lower()
    if sys.maxsize < 2**32:
        machine = {"x86_64": "i686", "aarch64": "armv7l"}.get(machine, machine)
    return _ARCHITECTURES.get(machine, machine)


def copy_project(source: Path, target: Path) -> None:
    """Copy a project's folder without what is no part of it: building must not write into the user's own."""
    skip = shutil.ignore_patterns(*_NOT_THE_PROJECT)

    def ignore(folder: str, names: list[str]) -> set[str]:
        left_out = set(skip(folder, names))
        for name in names:
            path = os.path.join(folder, name)
            special = not (os.path.islink(path) or os.path.isfile(path) or os.path.isdir(path))
            if special or os.path.exists(os.path.join(path, "pyvenv.cfg")):
                left_out.add(name)
        if os.path.samefile(folder, source):
            # What an earlier build left there would be installed again, deleted modules too.
            left_out |= {"build", "dist"} & set(names)
            # Versions may be taken from the history.
            left_out.discard(".git")
        return left_out

    try:
        shutil.copytree(source, target, symlinks=True, ignore=ignore)
    except (OSError, shutil.Error) as error:
        raise BundleError(f"{source} can't be copied: {' '.join(str(error).split())[:500]}") from error


def _cached(key: str, work: Path) -> tuple[Layer, dict[str, Any]] | None:
    """The interpreter's layer of an earlier time, if it is kept whole; linked into `work`, so that it stays."""
    folder = cache_folder()
    kept = folder / f"python-{key}.tar"
    mine = work / "python.tar"
    with locked("layers"):
        try:
            facts = json.loads((folder / f"python-{key}.json").read_text())
            _link(kept, mine)
            os.utime(kept)
        except (OSError, ValueError):
            return None
    layer = read_layer(mine)
    if not isinstance(facts, dict) or facts.get("digest") != layer.digest:
        mine.unlink()
        return None
    return layer, facts


def _keep(key: str, layer: Layer, facts: dict[str, Any]) -> None:
    """Keep the interpreter's layer for another time. It is a cache: failing is only slower."""
    folder = cache_folder()
    temporary = folder / f"python-{key}.{os.getpid()}.part"
    try:
        with locked("layers"):
            _link(layer.path, temporary)
            os.replace(temporary, folder / f"python-{key}.tar")
            record = {"digest": layer.digest, "version": facts["version"], "libraries": facts["libraries"]}
            temporary.write_text(json.dumps(record))
            os.replace(temporary, folder / f"python-{key}.json")
            for left in folder.glob("python-*.part"):
                left.unlink()
            kept = sorted(folder.glob("python-*.tar"), key=lambda path: path.stat().st_mtime, reverse=True)
            for old in kept[_CACHED:]:
                old.unlink()
                old.with_suffix(".json").unlink(missing_ok=True)
    except OSError as error:
        _log.warning("the bundle's Python could not be cached in %s: %s", folder, error)


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy(source, target)
