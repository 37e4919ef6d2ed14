"""Where the engine is, as docker's own command finds it: DOCKER_HOST, else DOCKER_CONTEXT, else the current context.

docker-py looks for contexts only beside a config.json, and passes DOCKER_CONTEXT over: the files are read here.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attrs import frozen

from ...errors import SandboxStartError

DEFAULT = "unix:///var/run/docker.sock"
_ENDPOINT = "docker"


@frozen(kw_only=True)
class Endpoint:
    """An engine's address. `secure`: over TLS, with `certificates` by their kind ("ca", "cert", "key")."""

    url: str
    from_environment: bool = False
    secure: bool = False
    verified: bool = True
    certificates: Mapping[str, str] = {}


def find_endpoint(env: Mapping[str, str] = os.environ) -> Endpoint:
    """The engine that docker's own command would use here.

    Raises:
        SandboxStartError: the context that is chosen is not there, or its files can't be read.
    """
    if env.get("DOCKER_HOST"):
        return Endpoint(url=env["DOCKER_HOST"], from_environment=True)
    folder = Path(env.get("DOCKER_CONFIG") or Path("~/.docker").expanduser())
    name = env.get("DOCKER_CONTEXT") or _read(folder / "config.json").get("currentContext") or "default"
    if name == "default":
        return Endpoint(url=DEFAULT)
    # The names of contexts are hashed, so that they may hold anything.
    key = hashlib.sha256(str(name).encode()).hexdigest()
    endpoints = _read(folder / "contexts" / "meta" / key / "meta.json").get("Endpoints")
    endpoint = endpoints.get(_ENDPOINT) if isinstance(endpoints, dict) else None
    if not isinstance(endpoint, dict):
        raise SandboxStartError(
            f"there is no docker context {name!r} in {folder}: give one of `docker context ls` in DOCKER_CONTEXT or "
            "by `docker context use`"
        )
    kept = folder / "contexts" / "tls" / key / _ENDPOINT
    files = {kind: kept / f"{kind}.pem" for kind in ("ca", "cert", "key")}
    certificates = {kind: str(file) for kind, file in files.items() if file.is_file()}
    unverified = endpoint.get("SkipTLSVerify") is True
    return Endpoint(
        url=endpoint.get("Host") or DEFAULT,
        secure=bool(certificates) or unverified,
        verified=not unverified,
        certificates=certificates,
    )


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise SandboxStartError(f"docker's settings in {path} can't be read: {error}") from error
    return found if isinstance(found, dict) else {}
