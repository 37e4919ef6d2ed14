"""What a tunnel adds to a request: `python -m tests.bench.tunnel [local] [docker]`.

The same client in the same sandbox asks a server on the host's loopback, directly and through a tunnel in turn (in a
container, which has no way to it, the direct one is asked from the host): the time to the first byte of a streamed
answer, on a kept connection and on a new one, and the time of 20 MB. Medians in milliseconds, and what is added.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agentix_runner import SandboxConfig
from agentix_runner.providers.docker import DockerProvider
from agentix_runner.providers.local import LocalProvider

from ..support.tunnel_tools import Handler, connect, serving
from . import show


def first_bytes(url: str, count: int, kept: bool) -> list[float]:
    """Seconds to the first byte of the body, each time."""
    found = []
    connection = connect(url)
    for _ in range(count):
        if not kept:
            connection.close()
            connection = connect(url)
        began = time.perf_counter()
        connection.request("POST", "/stream", b"{}")
        answer = connection.getresponse()
        answer.read1(1)
        found.append(time.perf_counter() - began)
        answer.read()
    connection.close()
    return found


def whole(url: str, path: str) -> float:
    """Seconds for all of an answer."""
    connection = connect(url)
    began = time.perf_counter()
    connection.request("GET", path)
    answer = connection.getresponse()
    while answer.read1(1 << 16):
        pass
    connection.close()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("providers", nargs="*", metavar="PROVIDER", help="local (the default), docker")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--requests", type=int, default=20)
    given = parser.parse_args()
    unknown = set(given.providers) - {"local", "docker"}
    if unknown:
        parser.error(f"there is no provider {unknown.pop()!r}: there are local, docker")
    show.machine()
    rows: list[list[object]] = []
    with serving() as api, tempfile.TemporaryDirectory() as folder:

        @api.on("/stream")
        def stream(handler: Handler) -> None:
            handler.read_body()
            handler.head(transfer_encoding="chunked")
            handler.chunk(b"data: {}\n\n")
            handler.chunk(b"")

        @api.on("/large")
        def large(handler: Handler) -> None:
            handler.reply(bytes(20_000_000))

        for name in given.providers or ["local"]:
            provider: Any = LocalProvider() if name == "local" else DockerProvider()
            image = "" if name == "local" else "agentix-test/busybox:1"
            options = {"headers": {"x-api-key": "a-key-of-some-length"}, "record": Path(folder, "record.jsonl")}
            with provider.session(SandboxConfig(image=image)) as sandbox, sandbox.tunnel(api.url, **options) as url:

                def there(function: Callable[..., Any], *args: Any, sandbox: Any = sandbox) -> Any:
                    return sandbox.remote(function, *args)

                def here(function: Callable[..., Any], *args: Any) -> Any:
                    return function(*args)

                directly = there if name == "local" else here
                for what, kept in (("first byte, kept connection", True), ("first byte, new connection", False)):
                    direct, tunnelled = [], []
                    for _ in range(given.rounds):
                        direct += directly(first_bytes, api.url, given.requests, kept)
                        tunnelled += there(first_bytes, url, given.requests, kept)
                    rows.append(row(f"{name}, {what}", direct, tunnelled))
                direct, tunnelled = [], []
                for _ in range(given.rounds):
                    direct.append(directly(whole, api.url, "/large"))
                    tunnelled.append(there(whole, url, "/large"))
                rows.append(row(f"{name}, 20 MB", direct, tunnelled))
    show.table(
        "A request through a tunnel, ms, medians", ["", "direct", "tunnel", "its p95", "added", "/ direct"], rows
    )


def row(what: str, direct: list[float], tunnelled: list[float]) -> list[object]:
    one, other = (statistics.median(times) * 1000 for times in (direct, tunnelled))
    worst = sorted(tunnelled)[int(len(tunnelled) * 0.95)] * 1000
    return [what, one, other, worst, other - one, other / one]


if __name__ == "__main__":
    main()
