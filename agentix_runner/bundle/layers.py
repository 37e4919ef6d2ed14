"""Trees as tar files that are the same for the same content, and the image archive that is made of them."""

from __future__ import annotations

import hashlib
import io
import json
import os
import stat
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from attrs import frozen

from . import BUNDLE_LABEL, DIGEST_LABEL, PYTHON

EPOCH = 315_532_800
"""When everything in a bundle was changed last: 1980, the first time that zip files know. Seconds."""
_EPOCH_TEXT = "1980-01-01T00:00:00Z"
_PIECE = 1 << 20


@frozen(kw_only=True)
class Layer:
    """A layer as an uncompressed tar file. `digest` is "sha256:..." of that file."""

    path: Path
    digest: str


def write_layer(tree: Path, prefix: str, path: Path) -> Layer:
    """Pack the folder `tree` into the tar file `path`, as the folder `prefix` (without a slash at its beginning).

    Order, owners, times and modes are always the same, so that the same content gives the same file. Files that are
    neither regular, nor folders, nor symbolic links are left out.
    """
    with open(path, "wb") as file:
        hashing = _Hashing(file)
        with tarfile.open(fileobj=hashing, mode="w", format=tarfile.GNU_FORMAT) as tar:  # type: ignore[call-overload]
            for source, name in _walk(str(tree), prefix):
                _add(tar, source, name)
    return Layer(path=path, digest=f"sha256:{hashing.hash.hexdigest()}")


def read_layer(path: Path) -> Layer:
    """The layer in the tar file `path`."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
    return Layer(path=path, digest=f"sha256:{digest.hexdigest()}")


def write_image(
    path: Path, layers: list[Layer], *, tags: list[str], architecture: str, labels: Mapping[str, str]
) -> tuple[str, str]:
    """Write the archive of a bundle image of `layers` to `path`, as `docker load` takes it.

    Returns the image's id and its content digest ("sha256:..." both), which is among its labels.
    """
    digest = "sha256:" + hashlib.sha256(_json([architecture, [layer.digest for layer in layers]])).hexdigest()
    name, _, variant = architecture.partition("/")
    config: dict[str, Any] = {
        "architecture": name,
        "os": "linux",
        "created": _EPOCH_TEXT,
        "config": {"Cmd": [PYTHON], "Labels": {**labels, BUNDLE_LABEL: "1", DIGEST_LABEL: digest}},
        "rootfs": {"type": "layers", "diff_ids": [layer.digest for layer in layers]},
        "history": [{"created": _EPOCH_TEXT, "created_by": "agentix build"} for _ in layers],
    }
    if variant:
        config["variant"] = variant
    data = _json(config)
    image = hashlib.sha256(data).hexdigest()
    names = [f"{number}/layer.tar" for number in range(len(layers))]
    manifest = [{"Config": f"{image}.json", "RepoTags": tags, "Layers": names}]
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as tar:
        for layer, member in zip(layers, names, strict=True):
            folder = _member(os.path.dirname(member), tarfile.DIRTYPE, 0o755)
            tar.addfile(folder)
            _add(tar, str(layer.path), member)
        for member, text in ((f"{image}.json", data), ("manifest.json", _json(manifest))):
            entry = _member(member, tarfile.REGTYPE, 0o644)
            entry.size = len(text)
            tar.addfile(entry, io.BytesIO(text))
    return f"sha256:{image}", digest


def unpack(stream: IO[bytes], into: Path) -> None:
    """Unpack a tar file that a container gave, below `into`. Nothing of it lands outside, whatever it says.

    Raises:
        ValueError: it holds a name that leads outside.
    """
    into = into.resolve()
    with tarfile.open(fileobj=stream, mode="r|") as tar:
        for member in tar:
            target = into / member.name
            # What an earlier member made may be a link: the folder counts as it is on the disk now.
            parent = target.parent.resolve()
            if member.name.startswith("/") or ".." in member.name.split("/") or into not in (parent, *parent.parents):
                raise ValueError(f"the container's archive holds {member.name!r}, which leads outside")
            if target.is_symlink():
                raise ValueError(f"the container's archive holds {member.name!r} twice")
            if member.isdir():
                target.mkdir(parents=True, exist_ok=True)
            elif member.issym():
                target.symlink_to(member.linkname)
            elif member.isfile():
                source = tar.extractfile(member)
                assert source is not None
                with open(target, "wb") as file:
                    while piece := source.read(_PIECE):
                        file.write(piece)
                target.chmod(0o755 if member.mode & 0o100 else 0o644)


class _Hashing:
    """A file that hashes what is written to it."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file
        self.hash = hashlib.sha256()

    def write(self, data: bytes) -> int:
        self.hash.update(data)
        return self.file.write(data)

    def tell(self) -> int:
        return self.file.tell()


def _walk(source: str, name: str) -> list[tuple[str, str]]:
    """(file, name in the archive) of `source` and all below it, a folder before what is in it."""
    found = [(source, name)]
    for entry in sorted(os.scandir(source), key=lambda entry: entry.name):
        below = f"{name}/{entry.name}"
        if entry.is_dir(follow_symlinks=False):
            found += _walk(entry.path, below)
        else:
            found.append((entry.path, below))
    return found


def _add(tar: tarfile.TarFile, source: str, name: str) -> None:
    status = os.lstat(source)
    if stat.S_ISLNK(status.st_mode):
        link = _member(name, tarfile.SYMTYPE, 0o777)
        link.linkname = os.readlink(source)
        tar.addfile(link)
    elif stat.S_ISDIR(status.st_mode):
        tar.addfile(_member(name, tarfile.DIRTYPE, 0o755))
    elif stat.S_ISREG(status.st_mode):
        member = _member(name, tarfile.REGTYPE, 0o755 if status.st_mode & 0o100 else 0o644)
        member.size = status.st_size
        with open(source, "rb") as file:
            tar.addfile(member, file)


def _member(name: str, kind: bytes, mode: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.mode, member.mtime = kind, mode, EPOCH
    return member


def _json(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
