"""One provider's side of a container engine, in one process: the client, shared by all its sandboxes, and its errors.

The client and what is known of images and bundles are kept for the process. Connections, the stream of events and its
thread are there only while there are sandboxes.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ...errors import SandboxStartError, is_transient
from .contexts import Endpoint, find_endpoint
from .events import Events

_log = logging.getLogger("agentix_runner.providers.docker")

# requests takes the certificates named there instead of those that docker-py has been given.
_CA_BUNDLES = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
# Idle connections that are kept. On a Unix socket docker-py has a pool for each URL, and fills it with as many empty
# places: few must do. Anywhere else all requests share one, which is dropped from and warned about when it is full.
_POOL = 32
_SHARED_POOL = 4096
# Seconds for an answer, where the client has no limit, and for one to a request that ends something.
_PATIENT_S = 60.0
_BRIEF_S = 20.0


class Engine:
    """`make` returns a `docker.DockerClient`; `label` is on all containers that are ours."""

    def __init__(self, make: Callable[[], Any], label: str) -> None:
        self.pid = os.getpid()
        self._make = make
        self._label = label
        # Guards what follows; held while connecting, so that it is done once.
        self._lock = threading.Lock()
        self._client: Any = None
        self._events: Events | None = None
        self._users = 0
        self._was_reached = False
        self._failures = 0
        self._failure: SandboxStartError | None = None

    @property
    def client(self) -> Any:
        """The client. Only within `used`."""
        return self._client

    @property
    def api(self) -> Any:
        """docker-py's low-level client, patient as the client is. Only within `used`."""
        return limited(self._client.api, self._client.api.timeout or _PATIENT_S)

    @property
    def brief(self) -> Any:
        """The same with less patience: for what is done at an end, where somebody waits."""
        return limited(self._client.api, min(self._client.api.timeout or _BRIEF_S, _BRIEF_S))

    @property
    def events(self) -> Events:
        """The stream of events. Only within `used`."""
        assert self._events is not None
        return self._events

    @contextmanager
    def used(self, at_first: Callable[[], None] | None = None) -> Iterator[None]:
        """Inside, the engine can be used. `at_first` is called once in the process, when it is reached.

        Raises:
            SandboxStartError: no engine can be reached.
        """
        failures = self._failures
        with self._lock:
            if self._failure is not None and self._failures != failures:
                # Somebody has found out while this one waited: no need for each to wait for a silent engine in turn.
                raise SandboxStartError(str(self._failure), transient=self._failure.transient)
            self._connect()
            self._failure = None
            self._users += 1
        try:
            if at_first is not None:
                self._once(at_first)
            yield
        finally:
            with self._lock:
                self._users -= 1
                if self._users == 0:
                    self._disconnect()

    def knock(self) -> None:
        """Raise OSError where nobody listens at the engine's socket. docker-py would say the same, later and in
        other words, and leave the socket to the garbage collector."""
        path = getattr(getattr(self._client.api, "_custom_adapter", None), "socket_path", None)
        if path is not None:
            knock(path, self._client.api.timeout or _PATIENT_S)

    def _connect(self) -> None:
        try:
            if self._client is None:
                self._client = self._make()
                self._events = Events(self.api, self._label)
            if not self.events.alive:
                self.knock()
                self.events.open()
        except Exception as error:
            if self._users == 0 and self._client is not None:
                self._disconnect()
            self._failures += 1
            self._failure = self.explained(error, "be reached")
            raise self._failure from (error if self._failure.transient else None)

    def _disconnect(self) -> None:
        self.events.close()
        # Closes the idle connections; the client makes new ones when it is used again.
        self._client.close()

    def _once(self, action: Callable[[], None]) -> None:
        with self._lock:
            if self._was_reached:
                return
            self._was_reached = True
        action()

    @contextmanager
    def doing(self, what: str) -> Iterator[None]:
        """Inside, errors of docker-py become a SandboxStartError that says what failed: "the engine can't `what`"."""
        import docker.errors
        import requests
        import urllib3.exceptions

        try:
            yield
        except (
            docker.errors.DockerException,
            requests.RequestException,
            urllib3.exceptions.HTTPError,
            OSError,
        ) as error:
            explained = self.explained(error, what)
            raise explained from (error if explained.transient else None)

    def explained(self, error: BaseException, what: str) -> SandboxStartError:
        """The SandboxStartError that tells of `error`, and what to do about it."""
        import docker.errors
        import requests
        import urllib3.exceptions

        if isinstance(error, SandboxStartError):
            return error
        where = self._address()
        numbers = set(_numbers(error))
        if errno.EACCES in numbers or errno.EPERM in numbers:
            return SandboxStartError(
                f"no permission to use the container engine at {where}: become a member of its group "
                "(`sudo usermod -aG docker $USER`, then log in again), or run it rootless"
            )
        if numbers & {errno.ENOENT, errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH}:
            # Where it has answered before it may be starting again. Where it never did, waiting is no remedy.
            return SandboxStartError(
                f"no container engine answers at {where}: start Docker, or set DOCKER_HOST to where it is",
                transient=self._was_reached,
            )
        if any(isinstance(one, ssl.SSLError) for one in _chain(error)):
            set_ = next((name for name in _CA_BUNDLES if os.environ.get(name)), None)
            remedy = f"unset {set_}, which takes precedence" if set_ else "check DOCKER_CERT_PATH, and who it trusts"
            return SandboxStartError(f"no secure connection to the container engine at {where}: {remedy}")
        if errno.EMFILE in numbers:
            return SandboxStartError(f"the engine can't {what}: too many open files: raise `ulimit -n`")
        late = (requests.Timeout, urllib3.exceptions.TimeoutError, TimeoutError)
        if any(isinstance(one, late) for one in _chain(error)):
            return SandboxStartError(f"the container engine at {where} took too long to {what}", transient=True)
        if isinstance(error, docker.errors.APIError):
            text = f"the engine can't {what}: {one_line(error)}"
            return SandboxStartError(text, transient=is_transient(error))
        transient = self._was_reached and (is_transient(error) or any(map(is_transient, _chain(error))))
        return SandboxStartError(f"the engine at {where} can't {what}: {one_line(error)}", transient=transient)

    def _address(self) -> str:
        if self._client is not None:
            return _shown(self._client.api)
        try:
            return find_endpoint().url
        except SandboxStartError:
            return "the docker context"  # which this client was not made from


def connect(timeout: float) -> Any:
    """A client of the engine that docker's own command would use.

    `timeout` is for each answer of the engine, in seconds. Raises SandboxStartError, and what docker-py and requests
    raise.
    """
    import docker

    where = find_endpoint()
    if where.url.startswith("ssh://"):
        host, slash, path = where.url.removeprefix("ssh://").partition("/")
        there = slash + path if path else "/var/run/docker.sock"
        raise SandboxStartError(
            f"the container engine at {where.url} can't be used through ssh directly: forward its socket (`ssh -nNT -L "
            f"/tmp/docker.sock:{there} ssh://{host}`), and set DOCKER_HOST=unix:///tmp/docker.sock"
        )
    if where.url.startswith("unix://"):
        knock(where.url.removeprefix("unix://"), timeout)
    settings: dict[str, Any] = {"timeout": timeout, "max_pool_size": _POOL}
    if where.from_environment:
        return _roomy(docker.from_env(**settings))
    return _roomy(docker.DockerClient(base_url=where.url, tls=_tls(where), **settings))


def _tls(where: Endpoint) -> Any:
    from docker.tls import TLSConfig

    if not where.secure or where.url.startswith("unix://"):
        return False
    files = where.certificates
    own = (files["cert"], files["key"]) if "cert" in files and "key" in files else None
    return TLSConfig(client_cert=own, ca_cert=files.get("ca"), verify=where.verified)


def _roomy(client: Any) -> Any:
    from requests.adapters import HTTPAdapter

    for scheme in ("http://", "https://"):
        adapter = client.api.adapters.get(scheme)
        # Not one that docker-py has made, for a Unix socket or for ssh.
        if type(adapter) is HTTPAdapter:
            client.api.mount(scheme, HTTPAdapter(pool_maxsize=_SHARED_POOL))
    return client


def knock(path: str, limit_s: float) -> None:
    """Raise OSError where nobody listens at a Unix socket."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(limit_s)
        probe.connect(path)


def limited(api: Any, limit_s: float) -> Any:
    """A view of docker-py's low-level client whose every request has `limit_s` for its answer to begin.

    docker-py attaches, and asks for events, without any limit: an engine that is stopped would never be left.
    """
    view = object.__new__(type(api))
    view.__dict__.update(api.__dict__)
    view.timeout = limit_s

    def limit(send: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **kwargs: send(*args, **{**kwargs, "timeout": kwargs.get("timeout") or limit_s})

    for method in ("get", "post", "put", "delete"):
        setattr(view, method, limit(getattr(api, method)))
    return view


def one_line(error: BaseException) -> str:
    """What `error` says, in one line of bounded length. Of an engine's answer only its own words."""
    text = getattr(error, "explanation", None) or str(error)
    if isinstance(text, bytes):
        text = text.decode(errors="replace")
    return " ".join(str(text).split())[:1000]


def _shown(api: Any) -> str:
    adapter = getattr(api, "_custom_adapter", None)
    path = getattr(adapter, "socket_path", None)
    return f"unix://{path}" if path else str(api.base_url)


def _chain(error: BaseException) -> list[BaseException]:
    """`error` and all that it was made from; HTTP libraries hide the cause in arguments and attributes."""
    found: list[BaseException] = []
    waiting: list[Any] = [error]
    while waiting and len(found) < 30:
        one = waiting.pop(0)
        if isinstance(one, BaseException) and one not in found:
            found.append(one)
            waiting += [one.__cause__, one.__context__, getattr(one, "reason", None), *one.args]
    return found


def _numbers(error: BaseException) -> Iterator[int]:
    for one in _chain(error):
        # TLS errors have numbers of their own there.
        if isinstance(one, OSError) and isinstance(one.errno, int) and not isinstance(one, ssl.SSLError):
            yield one.errno
