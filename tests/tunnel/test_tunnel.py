"""The tunnel from end to end: clients in a sandbox, a server on the host's loopback, on each provider."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from agentix_runner import SandboxConfig
from agentix_runner.errors import BadArgument, SandboxDied
from agentix_runner.providers.docker import DockerProvider
from agentix_runner.providers.local import LocalProvider
from agentix_runner.providers.sandbox import RemoteSandbox
from agentix_runner.remote.sandbox import inlet as inlet_module
from agentix_runner.remote.sandbox.inlet import TunnelListener, TunnelListeners
from agentix_runner.tunnel import tunnel as tunnel_module
from agentix_runner.tunnel.usage import Usage

from ..conftest import eventually
from ..support.background import in_background
from ..support.tunnel_tools import KEY, Api, Handler, ask, connect, raw, serving


@pytest.fixture(scope="module", params=["local", "docker"])
def sandbox(request: pytest.FixtureRequest) -> Iterator[RemoteSandbox]:
    """One sandbox of each provider; in a container it has no network at all."""
    if request.param == "local":
        provider: Any = LocalProvider()
        image = ""
    else:
        request.getfixturevalue("engine")
        provider = DockerProvider(network="none")
        image = request.getfixturevalue("busybox")
    with provider.session(SandboxConfig(image=image, labels={"instance_id": "i-1", "phase": "agent"})) as sandbox:
        yield sandbox


@pytest.fixture(scope="module")
def local() -> Iterator[RemoteSandbox]:
    """A sandbox for what is not the provider's business."""
    with LocalProvider().session(SandboxConfig(image="")) as sandbox:
        yield sandbox


@pytest.fixture
def api() -> Iterator[Api]:
    with serving() as api:
        yield api


def refusal(answer: tuple[int, Any, bytes]) -> tuple[int, str, str]:
    """Status, type and message of an error made by the tunnel."""
    status, headers, body = answer
    assert ("content-type", "application/json") in headers
    said = json.loads(body)
    assert said["type"] == "error"
    assert said["error"]["message"].startswith("agentix tunnel: ")
    return status, said["error"]["type"], said["error"]["message"].removeprefix("agentix tunnel: ")


# --- requests and answers ---


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
def test_a_request_arrives_as_it_was_sent(sandbox: RemoteSandbox, api: Api, method: str) -> None:
    """Method, path with its query, headers and body arrive; the answer's status, headers and body come back."""

    @api.on("/v1/thing")
    def answer(handler: Handler) -> None:
        handler.reply(handler.read_body()[::-1], status=418, kind="text/plain", x_one="1", request_id="r")

    with sandbox.tunnel(api.url) as url:
        assert url.startswith("http://127.0.0.1:")
        status, headers, body = sandbox.remote(
            ask, url, "/v1/thing?beta=true&q=%20%2f", method, b"hello", {"X-Mine": "a b"}
        )
    assert (status, body) == (418, b"olleh")
    assert [h for h in headers if h[0] in ("x-one", "request-id")] == [("x-one", "1"), ("request-id", "r")]
    [asked] = api.asked
    assert (asked.command, asked.path, asked.body) == (method, "/v1/thing?beta=true&q=%20%2f", b"hello")
    assert asked.all("x-mine") == ["a b"]
    assert asked.all("host") == [f"127.0.0.1:{api.server_port}"]
    assert asked.all("accept-encoding") == ["identity"]
    assert asked.all("user-agent") == []


def test_bodies_of_any_framing_arrive_whole(sandbox: RemoteSandbox, api: Api) -> None:
    """Chunked or of a known length, small, large or empty, in both directions."""

    @api.on("/chunked")
    def chunked(handler: Handler) -> None:
        handler.read_body()
        handler.head(kind="text/plain", transfer_encoding="chunked")
        for start in range(0, len(handler.body), 100_000):
            handler.chunk(handler.body[start : start + 100_000])
        handler.chunk(b"")

    @api.on("/counted")
    def counted(handler: Handler) -> None:
        handler.reply(handler.read_body())

    @api.on("/unsaid")
    def unsaid(handler: Handler) -> None:
        handler.read_body()
        handler.head(kind="text/plain", connection="close")
        handler.wfile.write(handler.body)
        handler.close_connection = True

    large = os.urandom(1000) * 5000
    with sandbox.tunnel(api.url) as url:
        for path in ("/chunked", "/counted", "/unsaid"):
            for body in (b"", b"x", large, [b"ab", b"c" * 70_000, large]):
                whole = b"".join(body) if isinstance(body, list) else body
                status, _, got = sandbox.remote(ask, url, path, "POST", body)
                assert status == 200
                assert hashlib.sha256(got).digest() == hashlib.sha256(whole).digest()
    framings = {(bool(h.all("content-length")), bool(h.all("transfer-encoding"))) for h in api.asked}
    assert framings == {(True, False), (False, True)}


def head(url: str) -> tuple[int, str | None, bytes, int]:
    connection = connect(url)
    connection.request("HEAD", "/v1/messages")
    first = connection.getresponse()
    body = first.read()
    connection.request("GET", "/empty")
    second = connection.getresponse()
    second.read()
    connection.close()
    return first.status, first.getheader("content-length"), body, second.status


def test_answers_without_a_body_leave_the_connection_usable(sandbox: RemoteSandbox, api: Api) -> None:
    """HEAD keeps the length that it tells, 204 has none, and another request follows on the same connection."""
    api.on("/empty")(lambda handler: handler.head(status=204))
    with sandbox.tunnel(api.url) as url:
        status, length, body, after = sandbox.remote(head, url)
    assert (status, body, after) == (200, b"", 204)
    assert length is not None
    assert int(length) > 10


def read_events(url: str, count: int) -> list[bytes]:
    """Read a stream; tell the server of each part as soon as it is there."""
    connection, other = connect(url), connect(url)
    connection.request("POST", "/stream", b"{}")
    answer = connection.getresponse()
    seen = []
    for number in range(count):
        event = b""
        while not event.endswith(b"\n\n"):
            event += answer.read1(65536)
        seen.append(event)
        other.request("GET", f"/ack?{number}")
        other.getresponse().read()
    seen.append(answer.read())
    connection.close()
    other.close()
    return seen


@pytest.mark.parametrize("framing", ["chunked", "counted", "unsaid"])
def test_each_part_of_a_stream_arrives_before_the_next_is_sent(sandbox: RemoteSandbox, api: Api, framing: str) -> None:
    """The server goes on only when the sandbox has told that it has the part before."""
    acked = threading.Semaphore(0)
    events = [b"data: %d\n\n" % number for number in range(20)]

    @api.on("/stream")
    def stream(handler: Handler) -> None:
        handler.read_body()
        if framing == "chunked":
            handler.head(transfer_encoding="chunked")
        elif framing == "counted":
            handler.head(content_length=str(len(b"".join(events))))
        else:
            handler.head()
            handler.close_connection = True
        for number, event in enumerate(events):
            # The connection is free for the last one's acknowledgement when all is said.
            assert not number or acked.acquire(timeout=30)
            if framing == "chunked":
                handler.chunk(event)
            else:
                handler.wfile.write(event)
        if framing == "chunked":
            handler.chunk(b"")

    @api.on("/ack")
    def ack(handler: Handler) -> None:
        acked.release()
        handler.reply(b"")

    with sandbox.tunnel(api.url) as url:
        assert sandbox.remote(read_events, url, len(events)) == [*events, b""]


def ask_in_turn(url: str, count: int) -> list[int]:
    connection = connect(url)
    sizes = []
    for number in range(count):
        connection.request("POST", f"/n/{number}", b"x" * number)
        sizes.append(json.loads(connection.getresponse().read())["size"])
    connection.close()
    return sizes


def test_connections_are_kept_on_both_sides(sandbox: RemoteSandbox, api: Api) -> None:
    """Many requests of one connection in the sandbox take one connection to the server."""
    with sandbox.tunnel(api.url) as url:
        assert sandbox.remote(ask_in_turn, url, 30) == list(range(30))
        assert len({handler.client_address for handler in api.asked}) == 1
    eventually(lambda: api.connections() == 0)


def ask_at_once(url: str, count: int) -> list[int]:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(lambda _: ask(url, "/together")[0], range(count)))


def test_requests_run_at_once(sandbox: RemoteSandbox, api: Api) -> None:
    """The server answers the first one when the last one has come."""
    together = threading.Barrier(16)

    @api.on("/together")
    def answer(handler: Handler) -> None:
        together.wait(30)
        handler.reply(b"")

    with sandbox.tunnel(api.url) as url:
        assert sandbox.remote(ask_at_once, url, 16) == [200] * 16


def test_two_tunnels_of_a_sandbox_lead_to_their_own_upstreams(sandbox: RemoteSandbox, api: Api) -> None:
    """Each has its address, its headers and its usage."""
    with serving() as other, sandbox.tunnel(api.url) as first, sandbox.tunnel(other.url, headers={"a": "b"}) as second:
        assert first != second
        sandbox.remote(ask, first, "/one")
        sandbox.remote(ask, second, "/two")
        assert [(h.path, h.all("a")) for h in api.asked] == [("/one", [])]
        assert [(h.path, h.all("a")) for h in other.asked] == [("/two", ["b"])]


def test_the_upstreams_path_stands_before_each_request(local: RemoteSandbox, api: Api) -> None:
    """What is asked for in the sandbox is below the prefix."""
    with local.tunnel(f"{api.url}/api/v2/") as url:
        local.remote(ask, url, "/models?x=1")
        local.remote(ask, url, "//evil.example/x")
    assert [handler.path for handler in api.asked] == ["/api/v2/models?x=1", "/api/v2//evil.example/x"]


# --- ends ---


def leave(url: str, path: str, read: int) -> None:
    """Ask, read a little, and hang up."""
    connection = connect(url)
    connection.request("POST", path, b"{}")
    if read:
        answer = connection.getresponse()
        if len(answer.read(read)) != read:
            raise ValueError("too little came")
        answer.close()
    else:
        ask(url, "/begun")
    connection.close()


@pytest.mark.parametrize("read", [0, 5])
def test_a_client_that_goes_takes_its_upstream_request_with_it(sandbox: RemoteSandbox, api: Api, read: int) -> None:
    """Before the answer has begun or in its midst: the server's connection is closed, and the next request works."""
    begun, gone = threading.Event(), threading.Event()

    @api.on("/begun")
    def has_begun(handler: Handler) -> None:
        assert begun.wait(30)
        handler.reply(b"")

    @api.on("/endless")
    def answer(handler: Handler) -> None:
        handler.read_body()
        begun.set()
        if read:
            handler.head(transfer_encoding="chunked")
            handler.chunk(b"hello")
        handler.wait_for_hangup()
        gone.set()

    with sandbox.tunnel(api.url) as url:
        sandbox.remote(leave, url, "/endless", read)
        assert gone.wait(30)
        assert sandbox.remote(ask, url)[0] == 200


def half_a_request(url: str, framing: str) -> None:
    connection = connect(url)
    connection.putrequest("POST", "/v1/messages")
    connection.putheader(*framing.split(": "))
    connection.endheaders()
    connection.send(b"5\r\nhello\r\n")
    ask(url, "/seen")
    connection.close()


@pytest.mark.parametrize("framing", ["Content-Length: 1000", "Transfer-Encoding: chunked"])
def test_half_a_request_is_never_taken_for_a_whole_one(sandbox: RemoteSandbox, api: Api, framing: str) -> None:
    """A client that hangs up inside its body: the server sees a connection that breaks off, and no end of a body."""
    ends: list[bytes] = []
    begun = threading.Event()

    @api.on("/seen")
    def seen(handler: Handler) -> None:
        assert begun.wait(30)
        handler.reply(b"")

    @api.on("/v1/messages")
    def answer(handler: Handler) -> None:
        handler.connection.settimeout(30)
        rest = handler.rfile.read(10)
        begun.set()
        try:
            while data := handler.rfile.read1(65536):
                rest += data
        except ConnectionError:
            pass
        ends.append(rest)
        handler.close_connection = True

    with sandbox.tunnel(api.url) as url:
        sandbox.remote(half_a_request, url, framing)
        eventually(lambda: len(ends) == 1)
    assert ends == [b"5\r\nhello\r\n"]


def read_broken(url: str) -> tuple[int, bytes, str]:
    connection = connect(url)
    connection.request("GET", "/broken")
    answer = connection.getresponse()
    got = b""
    try:
        while data := answer.read1(65536):
            got += data
        # read1 itself doesn't compare with the length that was told.
        error = "short" if answer.length else ""
    except (http.client.IncompleteRead, ConnectionError) as exc:
        error = type(exc).__name__
    connection.close()
    return answer.status, got, error


@pytest.mark.parametrize("framing", ["chunked", "counted"])
def test_an_answer_that_breaks_off_breaks_off_in_the_sandbox(sandbox: RemoteSandbox, api: Api, framing: str) -> None:
    """The client gets what came, and then an error, never a good end."""

    @api.on("/broken")
    def answer(handler: Handler) -> None:
        if framing == "chunked":
            handler.head(transfer_encoding="chunked")
            handler.chunk(b"hello")
        else:
            handler.head(content_length="1000")
            handler.wfile.write(b"hello")
        handler.drop()

    with sandbox.tunnel(api.url) as url:
        status, got, error = sandbox.remote(read_broken, url)
        assert (status, got) == (200, b"hello")
        assert error in ("IncompleteRead", "short")
        old = sandbox.remote(raw, url, b"GET /broken HTTP/1.0\r\n\r\n")
        assert old.startswith(b"HTTP/1.1 200 OK\r\n")
        assert framing == "counted" or old.endswith(b" RESET")


def test_a_refused_connection_is_a_bad_gateway_with_the_reason(sandbox: RemoteSandbox) -> None:
    """502, in JSON that the SDKs show."""
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        upstream = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        with sandbox.tunnel(upstream) as url:
            assert refusal(sandbox.remote(ask, url)) == (
                502,
                "api_error",
                f"the connection to {upstream} failed: Connection refused",
            )


def test_an_upstream_without_a_word_is_a_gateway_timeout(local: RemoteSandbox, api: Api) -> None:
    """Silence before the answer is a 504; within it, the answer breaks off. The server's connection is closed."""
    gone = []

    @api.on("/v1/messages")
    def silent(handler: Handler) -> None:
        handler.wait_for_hangup()
        gone.append(1)

    @api.on("/broken")
    def stalls(handler: Handler) -> None:
        handler.head(transfer_encoding="chunked")
        handler.chunk(b"hello")
        silent(handler)

    with local.tunnel(api.url, read_timeout=0.3) as url:
        assert refusal(local.remote(ask, url)) == (504, "timeout_error", f"{api.url} sent nothing for 0.3 s")
        assert local.remote(read_broken, url) == (200, b"hello", "IncompleteRead")
        eventually(lambda: len(gone) == 2)


def test_a_host_that_never_accepts_is_a_gateway_timeout(local: RemoteSandbox) -> None:
    """The connection is given up after connect_timeout."""
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        others = []
        for _ in range(3):
            other = socket.socket()
            other.setblocking(False)
            other.connect_ex(full.getsockname())
            others.append(other)
        upstream = f"http://127.0.0.1:{full.getsockname()[1]}"
        with local.tunnel(upstream, connect_timeout=0.2) as url:
            assert refusal(local.remote(ask, url)) == (504, "timeout_error", f"no connection to {upstream} in 0.2 s")
        for other in others:
            other.close()


def test_a_name_that_is_none_is_a_bad_gateway(local: RemoteSandbox) -> None:
    """The error names the upstream."""
    with local.tunnel("https://model.invalid/v1") as url:
        status, kind, message = refusal(local.remote(ask, url))
    assert (status, kind) == (502, "api_error")
    assert message.startswith("the name of https://model.invalid can't be resolved: ")


@pytest.mark.parametrize(
    ("said", "text"),
    [
        (b"", "closed the connection without an answer"),
        (b"garbage\r\n\r\n", "is not valid HTTP: BadStatusLine"),
        (b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 101 + b"\r\n", "is not valid HTTP: HTTPException"),
        (b"HTTP/1.1 200 OK\r\na: " + b"b" * 70_000, "is not valid HTTP: LineTooLong"),
        (b"HTTP/1.1 101 Switching\r\n\r\n", "answered with status 101, which ends no request"),
        (b"HTTP/1.1 200 OK\r\n" + (b"a: " + b"b" * 60_000 + b"\r\n") * 2 + b"\r\n", "headers that are too large"),
    ],
    ids=["nothing", "garbage", "headers", "line", "status", "large"],
)
def test_what_is_no_answer_is_a_bad_gateway(local: RemoteSandbox, api: Api, said: bytes, text: str) -> None:
    """Whatever else the upstream sends, the client gets a 502 that says so."""

    @api.on("/v1/messages")
    def answer(handler: Handler) -> None:
        handler.wfile.write(said)
        handler.drop()

    with local.tunnel(api.url) as url:
        status, _, message = refusal(local.remote(ask, url))
    assert status == 502
    assert text in message


def test_redirects_are_not_followed(sandbox: RemoteSandbox, api: Api) -> None:
    """The client gets the redirect itself; nobody else is asked, with or without the key."""
    with serving() as other:

        @api.on("/v1/messages")
        def answer(handler: Handler) -> None:
            handler.reply(b"", status=307, location=f"{other.url}/x")

        with sandbox.tunnel(api.url, headers={"x-api-key": KEY}) as url:
            status, headers, _ = sandbox.remote(ask, url)
        assert (status, dict(headers)["location"]) == (307, f"{other.url}/x")
        assert other.asked == []


def post_large(url: str) -> tuple[int, bytes]:
    """Send a body that never ends, until there is an answer."""
    host, port = url.split("//")[1].split(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        head = f"POST /v1/messages HTTP/1.1\r\nHost: {host}\r\nContent-Length: 50000000\r\n\r\n"
        connection.sendall(head.encode())
        connection.setblocking(False)
        got, sent = b"", 0
        while b"\r\n\r\n" not in got:
            with suppress(BlockingIOError, ConnectionError):
                sent += connection.send(bytes(10_000))
            try:
                got += connection.recv(65536)
            except BlockingIOError:
                time.sleep(0.001)
        return sent, got


def test_an_answer_before_the_end_of_the_request_reaches_the_client(local: RemoteSandbox, api: Api) -> None:
    """A request that is refused at once, while its body is still being sent."""
    with local.tunnel(api.url, max_request_bytes=40_000_000) as url:
        sent, got = local.remote(post_large, url)
        assert got.startswith(b"HTTP/1.1 413 Content Too Large\r\n")
        assert b"connection: close" in got
        assert sent < 20_000_000
        assert local.remote(ask, url)[0] == 200
    assert len(api.asked) == 1


# --- the end of the tunnel ---


def is_closed(url: str) -> bool:
    try:
        ask(url)
    except OSError:
        return True
    return False


@pytest.mark.usefixtures("no_threads_left")
def test_nothing_is_left_of_a_closed_tunnel(local: RemoteSandbox, api: Api) -> None:
    """Requests under way end on both sides, nobody listens any more, and no thread, socket or stream is left."""
    before = set(local.remote(thread_names)), local.remote(open_sockets)
    started, gone = threading.Event(), threading.Event()

    @api.on("/broken")
    def answer(handler: Handler) -> None:
        handler.head(transfer_encoding="chunked")
        handler.chunk(b"hello")
        started.set()
        handler.wait_for_hangup()
        gone.set()

    with local.tunnel(api.url) as url:
        reading = in_background(local.remote, read_broken, url)
        assert started.wait(30)
    assert reading.result(30)[2] == "IncompleteRead"
    assert gone.wait(30)
    assert local.remote(is_closed, url)
    eventually(lambda: (set(local.remote(thread_names)), local.remote(open_sockets)) == before)
    tunnels = local.handler(tunnel_module.Tunnels)
    assert (tunnels._exchanges, tunnels._tunnels) == ({}, {})


def thread_names() -> list[str]:
    return sorted(thread.name for thread in threading.enumerate() if "call" not in thread.name)


def open_sockets() -> int:
    count = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            count += os.readlink(f"/proc/self/fd/{name}").startswith(("socket:", "pipe:"))
        except OSError:
            continue
    return count


def test_a_tunnel_closes_while_a_client_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that is accepted just then, its thread not begun, is hung up on; closing does not raise."""
    held, begin = threading.Event(), threading.Thread.start

    def slow(thread: threading.Thread) -> None:
        if thread.name == "agentix-inlet" and threading.current_thread().name == "agentix-inlet":
            held.set()
            assert closed.wait(30)
        begin(thread)

    closed = threading.Event()
    monkeypatch.setattr(threading.Thread, "start", slow)
    inlet = TunnelListener(TunnelListeners(lambda frame: None), 1, 4)
    monkeypatch.setattr(inlet_module, "_CLOSE_S", 0.1)
    with socket.create_connection(("127.0.0.1", inlet.port)) as client:
        assert held.wait(30)
        inlet.close()
        closed.set()
        client.settimeout(30)
        assert client.recv(1) == b""
    eventually(lambda: not inlet._thread.is_alive() and not inlet._connections)


def test_a_tunnel_opens_once(local: RemoteSandbox, api: Api) -> None:
    """A second time is an error that says what to do; its usage stays readable."""
    tunnel = local.tunnel(api.url)
    with tunnel as url:
        local.remote(ask, url)
    assert tunnel.usage == Usage(requests=1)
    with pytest.raises(BadArgument, match="make another one"), tunnel:
        pass
    assert repr(tunnel) == f"<Tunnel to {api.url}>"


@pytest.mark.usefixtures("no_threads_left")
@pytest.mark.parametrize("how", ["kill", "exit", "stop"])
def test_the_sandboxs_end_is_the_tunnels(api: Api, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed, dead or stopped: the upstream's connections are closed, and leaving the tunnel takes no long time."""
    monkeypatch.setattr(tunnel_module, "_CLOSE_S", 0.3)
    gone, started = threading.Event(), threading.Event()

    @api.on("/broken")
    def answer(handler: Handler) -> None:
        handler.head(transfer_encoding="chunked")
        handler.chunk(b"hello")
        started.set()
        handler.wait_for_hangup()
        gone.set()

    with LocalProvider().session(SandboxConfig(image="")) as sandbox:
        tunnel = sandbox.tunnel(api.url)
        with tunnel as url:
            reading = in_background(sandbox.remote, read_broken, url)
            assert started.wait(30)
            if how == "kill":
                sandbox.kill()
            elif how == "exit":
                with pytest.raises(SandboxDied):
                    sandbox.remote(os._exit, 3)
            else:
                os.kill(sandbox.remote(os.getpid), signal.SIGSTOP)
            assert how == "stop" or gone.wait(30)
        assert gone.wait(30)
        if how == "stop":
            sandbox.kill()
        assert isinstance(reading.exception(30), SandboxDied)
    with pytest.raises(SandboxDied), sandbox.tunnel(api.url):
        pass


@pytest.mark.usefixtures("no_threads_left")
def test_a_tunnel_that_was_left_open_ends_with_the_session(api: Api) -> None:
    """Whoever forgot to leave the block leaks nothing."""
    with LocalProvider().session(SandboxConfig(image="")) as sandbox:
        tunnel = sandbox.tunnel(api.url)
        url = tunnel.__enter__()
        assert sandbox.remote(ask, url)[0] == 200
    eventually(lambda: api.connections() == 0)


def fork_and_keep(url: str) -> int:
    """Leave a child behind that holds whatever this process has open."""
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    return child


def test_a_fork_in_the_sandbox_holds_no_connection_open(local: RemoteSandbox, api: Api) -> None:
    """A child of the worker's outlives the tunnel: clients see the end all the same."""

    @api.on("/broken")
    def answer(handler: Handler) -> None:
        handler.head(transfer_encoding="chunked")
        handler.chunk(b"hello")
        handler.wait_for_hangup()

    with local.tunnel(api.url) as url:
        reading = in_background(local.remote, read_broken, url)
        eventually(lambda: len(api.asked) == 1)
        child = local.remote(fork_and_keep, url)
    assert reading.result(30)[2] == "IncompleteRead"
    assert local.remote(is_closed, url)
    local.remote(os.kill, child, 9)
