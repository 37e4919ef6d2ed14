"""What the host brings into a bundle: its own agentix_runner, and cloudpickle and the like as they are installed here.

All of it is pure Python, so that it runs on any interpreter that the bundle may have.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import itertools
import os
import shutil
import zipfile
from pathlib import Path

from .._version import __version__
from .interpreter import all_files

_BROUGHT = ("attrs", "cattrs", "cloudpickle", "exceptiongroup", "tenacity", "typing-extensions")
"""So that by-value functions arrive, and `from agentix_runner import ...` works in the project's modules."""
_OWN = Path(__file__).resolve().parent.parent
_METADATA = f"Metadata-Version: 2.1\nName: agentix-runner\nVersion: {__version__}\n"
_INFO = f"agentix_runner-{__version__}.dist-info"


def write_seed(folder: Path) -> None:
    """Copy all that into `folder`, each distribution into a folder of its name."""
    own = folder / "agentix-runner"
    for source, relative in _own_files():
        target = own / "agentix_runner" / relative
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)
    info = own / _INFO
    info.mkdir()
    (info / "METADATA").write_text(_METADATA)
    (info / "INSTALLER").write_text("agentix\n")
    for name in _BROUGHT:
        for source, relative in _files_of(name):
            target = folder / name / relative
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)


def seed_key() -> str:
    """A hash of all that `write_seed` would write."""
    digest = hashlib.sha256()
    for source, relative in itertools.chain(_own_files(), *(sorted(_files_of(name)) for name in _BROUGHT)):
        digest.update(f"{relative}\0{_hash(source)}\0".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def recipe_key(*names: str) -> str:
    """A hash of the named source files of this package: another recipe gives another tree from the same things."""
    here = Path(__file__).parent
    return hashlib.sha256("".join(_hash(str(here / name)) for name in names).encode()).hexdigest()


def write_stand_in(folder: Path) -> Path:
    """Make a wheel that says it is this agentix-runner and needs nothing, and holds nothing. With it pip is content
    where the project needs agentix-runner, and brings none of what only the host's side needs."""
    path = folder / f"agentix_runner-{__version__}-py3-none-any.whl"
    wheel = "Wheel-Version: 1.0\nGenerator: agentix\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in (("METADATA", _METADATA), ("WHEEL", wheel), ("RECORD", "")):
            archive.writestr(zipfile.ZipInfo(f"{_INFO}/{name}"), text)
    return path


def _own_files() -> list[tuple[str, str]]:
    """(file, path in the package) of agentix_runner. All of it: a project's modules import the host's side too."""
    found = []
    for path in all_files(str(_OWN)):
        relative = os.path.relpath(path, _OWN)
        if not path.endswith(".pyc") and "__pycache__" not in relative:
            found.append((path, relative))
    return found


def _files_of(name: str) -> list[tuple[str, str]]:
    """(file, path in site-packages) of an installed distribution; nothing where it is not installed."""
    try:
        files = importlib.metadata.distribution(name).files or []
    except importlib.metadata.PackageNotFoundError:
        return []
    left_out = ("RECORD", "REQUESTED", "direct_url.json")
    found = []
    for file in files:
        path = os.path.realpath(str(file.locate()))
        if ".." in file.parts or file.suffix in (".pyc", ".pth") or file.name in left_out or not os.path.isfile(path):
            continue
        found.append((path, file.as_posix()))
    return found


def _hash(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()
