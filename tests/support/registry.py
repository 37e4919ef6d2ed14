"""An image registry for tests, on loopback, where the engine takes it without TLS: what it has, and how it fails."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
_CONFIG = "application/vnd.docker.container.image.v1+json"
_LAYER = "application/vnd.docker.image.rootfs.diff.tar.gzip"


class Registry:
    """Any image that is asked for is there, each with content of its own, but those in `missing`.

    `troubles` is how often a request for a manifest is answered with 503 first. `pulled` counts the downloads of each
    image's layer. While `gate` is not set, manifests wait: `now` is how many do, `at_once` the most at one time.
    """

    def __init__(self) -> None:
        self.missing: set[str] = set()
        self.troubles: Counter[str] = Counter()
        self.pulled: Counter[str] = Counter()
        self.asked: list[str] = []
        self.now = self.at_once = 0
        self.gate = threading.Event()
        self.gate.set()
        self._lock = threading.Lock()
        self._blobs: dict[str, tuple[str, bytes]] = {}
        registry = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout = 30

            def do_GET(self) -> None:
                registry._answer(self)

            do_HEAD = do_GET

            def log_message(self, format: str, *args: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            block_on_close = False

            def handle_error(self, request: Any, client_address: Any) -> None:
                pass  # the engine tries TLS first, and hangs up when it likes

        self._server = Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    def __enter__(self) -> Registry:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.gate.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)

    def image(self, name: str) -> str:
        """The name by which the engine pulls the image `name` from here."""
        return f"127.0.0.1:{self._server.server_address[1]}/{name}:1"

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        parts = handler.path.strip("/").split("/")
        if len(parts) < 4:
            return _send(handler, 200, "application/json", b"{}")
        name, kind, what = "/".join(parts[1:-2]), parts[-2], parts[-1]
        if kind == "blobs":
            return self._blob(handler, what)
        with self._lock:
            self.asked.append(name)
            trouble = self.troubles[name] > 0
            self.troubles[name] -= trouble
            self.now += 1
            self.at_once = max(self.at_once, self.now)
        self.gate.wait(30)
        with self._lock:
            self.now -= 1
        if trouble:
            return _send(handler, 503, "text/plain", b"busy")
        if name in self.missing:
            error = {"errors": [{"code": "MANIFEST_UNKNOWN", "message": "manifest unknown"}]}
            return _send(handler, 404, "application/json", json.dumps(error).encode())
        return _send(handler, 200, _MANIFEST, self._manifest(name))

    def _manifest(self, name: str) -> bytes:
        data = io.BytesIO()
        with tarfile.open(fileobj=data, mode="w") as tar:
            text = f"{name} {self.image(name)}".encode()
            member = tarfile.TarInfo("name.txt")
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text))
        diff = f"sha256:{hashlib.sha256(data.getvalue()).hexdigest()}"
        layer = gzip.compress(data.getvalue(), mtime=0)
        config = json.dumps(
            {"architecture": "amd64", "os": "linux", "config": {}, "rootfs": {"type": "layers", "diff_ids": [diff]}}
        ).encode()
        described = [
            {"mediaType": media, "size": len(blob), "digest": self._keep(name if media == _LAYER else "", blob)}
            for media, blob in ((_CONFIG, config), (_LAYER, layer))
        ]
        manifest = {"schemaVersion": 2, "mediaType": _MANIFEST, "config": described[0], "layers": described[1:]}
        return json.dumps(manifest).encode()

    def _keep(self, name: str, blob: bytes) -> str:
        digest = f"sha256:{hashlib.sha256(blob).hexdigest()}"
        self._blobs[digest] = (name, blob)
        return digest

    def _blob(self, handler: BaseHTTPRequestHandler, digest: str) -> None:
        name, blob = self._blobs[digest]
        if not name:
            return _send(handler, 200, "application/octet-stream", blob)
        with self._lock:
            self.pulled[name] += 1
        return _send(handler, 200, "application/octet-stream", blob)


def _send(handler: BaseHTTPRequestHandler, status: int, kind: str, body: bytes) -> None:
    handler.send_response(status)
    handler.send_header("Content-Type", kind)
    handler.send_header("Content-Length", str(len(body)))
    handler.send_header("Docker-Distribution-Api-Version", "registry/2.0")
    handler.send_header("Docker-Content-Digest", f"sha256:{hashlib.sha256(body).hexdigest()}")
    handler.end_headers()
    if handler.command != "HEAD":
        handler.wfile.write(body)
