"""What `--add` puts into a bundle: files as they are, and the shared libraries that programs among them need.

Added programs are not patched: some carry data behind their end. Where an image has a glibc they start by themselves;
elsewhere the bundle's own loader starts them: `/agentix/lib/ld-linux-… --library-path /agentix/lib PROGRAM`.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from ..errors import BadArgument
from . import ROOT
from .elf import is_dynamic, libraries, loader_of
from .interpreter import all_files


def add(root: Path, source: Path, destination: str) -> Path:
    """Put `source`, a file or a folder, at `destination` below `root`, which stands for /agentix. Returns its place.

    Raises:
        BadArgument: it can't be there.
    """
    relative = destination.removeprefix(ROOT + "/").strip("/")
    parts = relative.split("/")
    if not relative or relative.startswith("~") or any(part in ("", ".", "..") for part in parts):
        raise BadArgument(f"--add {source}:{destination}: name a place below {ROOT}, as in {source}:bin/{source.name}")
    target = root.joinpath(*parts)
    if relative in ("bin/python", "bin/python3") or parts[0] in ("lib", "lib64", "site-packages"):
        raise BadArgument(
            f"--add {source}:{destination}: {ROOT}/{relative} belongs to the bundle's Python: name another"
        )
    if os.path.lexists(target):
        raise BadArgument(f"--add {source}:{destination}: {ROOT}/{relative} is there already: name another place")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, symlinks=True)
        else:
            shutil.copy(source, target)
    except (OSError, shutil.Error) as error:
        raise BadArgument(f"--add {source}:{destination}: {' '.join(str(error).split())[:500]}") from error
    return target


def bring_libraries(
    added: Iterable[Path], loader: str, known: Iterable[str], into: Path, *, root: Path, take: bool
) -> list[str]:
    """Copy into the folder `into` the shared libraries that programs in `added`, which is below `root`, get of this
    machine, without those that the bundle has: its Python's (`known`) and those that came with them. `loader` is this
    machine's. With `take` False nothing is copied: this machine's do not suit the bundle's Python.

    Returns what the bundle lacks, as "FILE needs NAME".
    """
    files = [path for place in added for path in ([place] if place.is_file() else map(Path, all_files(str(place))))]
    there = {*known, *(path.name for path in files), os.path.basename(loader)}
    missing: dict[str, str] = {}
    for path in files:
        if not is_dynamic(str(path)) or os.path.basename(loader_of(str(path)) or loader) != os.path.basename(loader):
            continue
        for name, found in libraries(str(path), loader).items():
            if name in there:
                continue
            if take and found is not None:
                into.mkdir(parents=True, exist_ok=True)
                shutil.copy(found, into / name)
                there.add(name)
            else:
                missing.setdefault(name, f"{ROOT}/{path.relative_to(root)} needs {name}")
    return list(missing.values())
