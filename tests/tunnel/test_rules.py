"""What a tunnel lets through: addresses, paths, headers, framing, limits."""

from __future__ import annotations

import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentix_runner import LocalProvider, SandboxConfig
from agentix_runner.errors import BadArgument
from agentix_runner.providers.sandbox import RemoteSandbox
from agentix_runner.remote.sandbox.http1 import Refusal, RequestReader, parse_head
from agentix_runner.tunnel.policy import Address, check_headers, check_request, incoming, outgoing

from ..support.background import in_background
from ..support.tunnel_tools import KEY, Api, Handler, ask, raw, serving
from .test_tunnel import refusal


@pytest.fixture(scope="module")
def local() -> Iterator[RemoteSandbox]:
    with LocalProvider().session(SandboxConfig(image="")) as sandbox:
        yield sandbox


@pytest.fixture
def api() -> Iterator[Api]:
    with serving() as api:
        yield api


# --- addresses ---


@pytest.mark.parametrize(
    ("url", "address", "text"),
    [
        ("https://api.anthropic.com", Address("https", "api.anthropic.com", 443), "https://api.anthropic.com"),
        ("http://HOST:8080/v1/", Address("http", "host", 8080, "/v1"), "http://host:8080"),
        ("https://[::1]:9/a/b", Address("https", "::1", 9, "/a/b"), "https://[::1]:9"),
    ],
)
def test_an_upstream_is_scheme_host_port_and_prefix(url: str, address: Address, text: str) -> None:
    """A default port and a slash at the end say nothing."""
    assert Address.of(url) == address
    assert str(address) == text


@pytest.mark.parametrize(
    "url",
    [
        *("", "api.anthropic.com", "ftp://host", "https://", "https://host?x=1", "https://host/#", "https://host/a b"),
        *(
            "https://host:99999",
            "https://host/../x",
            "https://host/%2e%2e/x",
            "https://host\r\nx",
            "https://[::1",
            5,
            None,
        ),
        *("https://host/\\x", "https://hö.st"),
    ],
)
def test_what_is_no_upstream_is_refused_at_once(local: RemoteSandbox, url: Any) -> None:
    """The error names it; nothing is started."""
    with pytest.raises(BadArgument, match="upstream"):
        local.tunnel(url)


def test_a_password_in_the_upstream_is_refused_and_not_shown(local: RemoteSandbox) -> None:
    """It belongs into the headers."""
    with pytest.raises(BadArgument, match="give them in headers=") as caught:
        local.tunnel(f"https://user:{KEY}@host")
    assert KEY not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"headers": {"a b": "x"}}, "a name that no header can have"),
        ({"headers": {"x-api-key": f"{KEY}\r\nother: 1"}}, "'x-api-key' has a value"),
        ({"headers": {"x-api-key": 5}}, "'x-api-key' has a value"),
        ({"headers": {"x-api-key": "schlüssel→"}}, "'x-api-key' has a value"),
        ({"headers": {"a": "1", "A": "2"}}, "the same name twice"),
        ({"headers": {"Host": "x"}}, "'Host' is not for you to give"),
        ({"headers": {"content_length": "1"}}, "'content_length' is not for you to give"),
        ({"max_concurrent": 0}, r"max_concurrent=\.\.\.\) is 0: give a whole number above 0"),
        ({"max_request_bytes": 1.5}, "max_request_bytes"),
        ({"read_timeout": -1}, "give a number of seconds above 0"),
        ({"timeout": 5}, "no argument 'timeout'"),
        ({"ca_file": "/nowhere"}, "ca_file '/nowhere' can't be used"),
    ],
)
def test_bad_arguments_are_refused_at_once(local: RemoteSandbox, options: dict[str, Any], text: str) -> None:
    """The error names the culprit, and no header's value."""
    with pytest.raises(BadArgument, match=text) as caught:
        local.tunnel("https://host", **options)
    assert KEY not in str(caught.value)


# --- requests ---


@pytest.mark.parametrize(
    ("target", "method", "status"),
    [
        *((target, "GET", 400) for target in ("", "*", "x", "http://evil.example/", "evil.example:80", "/a#b", "/a b")),
        *((target, "GET", 400) for target in ("/../x", "/a/..", "/./x", "/a/%2e%2E/x", "/%252e%252e/x", "/a/..%2fx")),
        *(
            (target, "GET", 400)
            for target in ("/a\\..\\x", "/a/..;x=1/b", "/%25252525252e./", "/\xe9", "/a\rb", "/a\x00")
        ),
        *(("/v1", method, 400) for method in ("get", "", "G ET", "GET\r\n", "X" * 30)),
        *(("/v1", method, 405) for method in ("CONNECT", "TRACE")),
    ],
)
def test_only_plain_paths_and_methods_go_through(target: str, method: str, status: int) -> None:
    """What could lead elsewhere, or show the key, is refused by the host itself."""
    with pytest.raises(Refusal) as caught:
        check_request([method, target, "0"])
    assert caught.value.status == status


@pytest.mark.parametrize(
    "target", ["/", "/v1/messages?a=/../b", "/v1/..a/.b/c..", "/v1/%20%2F?x=%0d%0a", "//x//", "/a;b=.."]
)
def test_paths_that_only_look_odd_go_through(target: str) -> None:
    """Dots inside names, and anything in a query."""
    assert check_request(["GET", target, "0"]).target == target


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        ([], 400),
        (["GET"], 400),
        (["GET", "/"], 400),
        (["GET", "/", "-1"], 400),
        (["GET", "/", "9" * 20], 400),
        (["GET", "/", "0", "name"], 400),
        (["GET", "/", "0", "na me", "x"], 400),
        (["GET", "/", "0", "name", "a\rb"], 400),
        (["GET", "/", "0", "name", "a\x00"], 400),
        (["GET", "/", "0", "", ""], 400),
        (["GET", "/", "0", *["a", "b"] * 101], 400),
        (["GET", "/", "0", "Upgrade", "websocket"], 501),
    ],
)
def test_a_head_of_another_form_is_refused(lines: list[str], status: int) -> None:
    """The sandbox's end may be an enemy: the host checks what its own end would never send."""
    with pytest.raises(Refusal) as caught:
        check_request(lines)
    assert caught.value.status == status


@given(st.lists(st.text(), max_size=8))
def test_no_head_makes_the_check_fail_in_another_way(lines: list[str]) -> None:
    """Any lines at all are a request or a refusal."""
    status = 0
    try:
        check_request(lines)
    except Refusal as refused:
        status = refused.status
    assert status in (0, 400, 405, 501)


# --- headers ---


def test_the_hosts_headers_replace_the_sandboxs_in_any_spelling(local: RemoteSandbox, api: Api) -> None:
    """In other capitals, repeated, with underscores, or named as one of the connection's own."""
    given = {"X-Api-Key": KEY, "anthropic_version": "2023-06-01", "authorization": None}
    with local.tunnel(api.url, headers=given) as url:
        head = (
            "GET /v1 HTTP/1.1\r\nHost: localhost\r\nX-API-KEY: a\r\nx-api-key: b\r\nX_Api_Key: c\r\nx-api_key: d\r\n"
            "Anthropic-Version: 1\r\nAUTHORIZATION: Bearer e\r\n"
            "Connection: close, x-api-key, X-Mine\r\nx-mine: f\r\nkeep: g\r\nKeep: h\r\n\r\n"
        )
        local.remote(raw, url, head.encode())
    [asked] = api.asked
    sent = sorted((name.lower(), value) for name, value in asked.headers.items())
    assert sent == [
        ("accept-encoding", "identity"),
        ("anthropic_version", "2023-06-01"),
        ("host", f"127.0.0.1:{api.server_port}"),
        ("keep", "g"),
        ("keep", "h"),
        ("x-api-key", KEY),
    ]


def test_headers_of_the_connection_stay_on_it() -> None:
    """Hop-by-hop headers, and those that Connection names, go no further in either direction."""
    hop = [("Connection", "x-a, close"), ("X-A", "1"), ("Keep-Alive", "5"), ("TE", "trailers"), ("Upgrade", "h2c")]
    hop += [("Proxy-Authorization", "x"), ("Transfer-Encoding", "chunked"), ("Content-Length", "5"), ("Trailer", "x")]
    assert outgoing([*hop, ("Expect", "100-continue"), ("Host", "evil"), ("b", "2")], {}) == [("b", "2")]
    assert incoming([*hop, ("b", "2"), ("set-cookie", "c"), ("folded", "a\r\n  b"), ("bad name", "x")]) == [
        *(("b", "2"), ("set-cookie", "c"), ("folded", "a b"))
    ]
    assert check_headers(None) == {}


HOST = b"Host: 127.0.0.1:1\r\n"


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: 127.0.0.1.evil.example\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + HOST + HOST + b"\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + HOST + b"a: b\n c: d\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + HOST + b"a: b\rc: d\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + HOST + b"a: b\r\n c\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + HOST + b"a : b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + HOST + b"a: \x00\r\n\r\n", 400),
        (b"GET / HTTP/2.0\r\n" + HOST + b"\r\n", 400),
        (b"GET /\r\n\r\n", 400),
        (b"GET / x HTTP/1.1\r\n" + HOST + b"\r\n", 400),
        (b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello", 400),
        (b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: +5\r\n\r\nhello", 400),
        (b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 5, 5\r\n\r\nhello", 400),
        (b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501),
        (b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n\r\n0\r\n\r\n", 501),
        (b"POST / HTTP/1.0\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 501),
        (b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n-5\r\nhello\r\n0\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n0x5\r\nhello\r\n0\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n4\r\nhello\r\n0\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\n" + HOST + b"Expect: miracles\r\nContent-Length: 1\r\n\r\nx", 400),
        (b"GET / HTTP/1.1\r\n" + HOST + b"a: b\r\n" * 101 + b"\r\n", 431),
        (b"GET / HTTP/1.1\r\n" + HOST + b"a: " + b"b" * 40_000 + b"\r\n\r\n", 431),
        (b"GET /" + b"a" * 40_000, 431),
    ],
)
def test_what_can_be_read_in_two_ways_is_refused(local: RemoteSandbox, api: Api, data: bytes, status: int) -> None:
    """One answer, the connection is closed, and no server sees a whole request."""
    whole = []
    api.on("/")(lambda handler: whole.append(handler.read_body()))
    with local.tunnel(api.url) as url:
        got = local.remote(raw, url, data + b"GET /second HTTP/1.1\r\n" + HOST + b"\r\n")
    lines = got.partition(b"\r\n\r\n")[0].split(b"\r\n")
    assert lines[0].startswith(b"HTTP/1.1 %d " % status)
    assert b"connection: close" in lines
    assert got.count(b"HTTP/1.1 ") == 1
    assert json.loads(got.partition(b"\r\n\r\n")[2])["type"] == "error"
    assert whole == []
    assert [handler.path for handler in api.asked if handler.path != "/"] == []


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET http://evil.example/ HTTP/1.1\r\n", 400),
        (b"GET evil.example HTTP/1.1\r\n", 400),
        (b"GET //evil.example/../x HTTP/1.1\r\n", 400),
        (b"CONNECT evil.example:443 HTTP/1.1\r\n", 405),
        (b"TRACE / HTTP/1.1\r\n", 405),
        (b"OPTIONS * HTTP/1.1\r\n", 400),
        (b"GET / HTTP/1.1\r\nUpgrade: websocket\r\n", 501),
    ],
)
def test_what_leads_elsewhere_is_refused(local: RemoteSandbox, api: Api, data: bytes, status: int) -> None:
    """Nobody is asked, and the client is told why."""
    with local.tunnel(api.url) as url:
        got = local.remote(raw, url, data + HOST + b"Connection: close\r\n\r\n")
    assert got.startswith(b"HTTP/1.1 %d " % status)
    assert json.loads(got.partition(b"\r\n\r\n")[2])["error"]["type"] == "invalid_request_error"
    assert api.asked == []


@given(st.binary(max_size=200))
def test_any_bytes_are_a_request_or_a_refusal(data: bytes) -> None:
    """Reading a head has no other outcome, and no header that it finds holds the end of a line."""
    status, headers = 0, []
    try:
        headers = parse_head(b"GET / HTTP/1.1\r\n" + data).headers
    except Refusal as refused:
        status = refused.status
    assert status in (0, 400, 431, 501)
    assert all("\r" not in name + value and "\n" not in name + value for name, value in headers)


class Pieces:
    """A connection that bytes come from in pieces."""

    def __init__(self, data: bytes, step: int) -> None:
        self.data = data
        self.step = step

    def recv(self, size: int) -> bytes:
        piece, self.data = self.data[: self.step], self.data[self.step :]
        return piece


@given(st.lists(st.binary(min_size=1, max_size=300), max_size=5), st.integers(1, 50))
def test_requests_are_read_however_their_bytes_are_cut(parts: list[bytes], step: int) -> None:
    """A chunked request with extensions and trailers, and the one behind it, in any pieces."""
    chunks = b"".join(b"%X ;x=y\r\n%b\r\n" % (len(part), part) for part in parts)
    first = b"POST /a HTTP/1.1\r\nTransfer-Encoding: Chunked\r\n\r\n" + chunks + b"000\r\ntrailer: x\r\n\r\n"
    second = b"\r\nPOST /b HTTP/1.0\r\nContent-Length: 3\r\nConnection: keep-alive\r\n\r\nabc"
    client = RequestReader(Pieces(first + second, step))  # type: ignore[arg-type]
    assert client.begun()
    one = client.request()
    assert (one.method, one.target, one.length, one.keeps) == ("POST", "/a", None, True)
    assert b"".join(client.body(one.length)) == b"".join(parts)
    assert client.begun()
    two = client.request()
    assert (two.target, two.minor, two.length, two.keeps) == ("/b", 0, 3, True)
    assert b"".join(client.body(two.length)) == b"abc"
    assert not client.begun()


def test_a_client_that_asks_first_is_told_to_go_on(local: RemoteSandbox, api: Api) -> None:
    """Expect: 100-continue is answered by the tunnel, and goes no further."""
    with local.tunnel(api.url) as url:
        got = local.remote(continue_then_send, url)
    assert got.startswith(b"HTTP/1.1 200 OK\r\n")
    assert api.asked[0].all("expect") == []
    assert api.asked[0].body == b"hello"


def continue_then_send(url: str) -> bytes:
    host, port = url.split("//")[1].split(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        head = b"POST / HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 5\r\n"
        connection.sendall(head + b"Connection: close\r\n\r\n")
        interim = connection.recv(100)
        if interim != b"HTTP/1.1 100 Continue\r\n\r\n":
            return interim
        connection.sendall(b"hello")
        got = b""
        while piece := connection.recv(65536):
            got += piece
        return got


def test_an_offer_of_another_protocol_is_ignored(local: RemoteSandbox, api: Api) -> None:
    """Clients that try for HTTP/2 get their answer in HTTP/1.1."""
    head = b"GET /x HTTP/1.1\r\n" + HOST + b"Connection: Upgrade, HTTP2-Settings, close\r\nUpgrade: h2c\r\n"
    with local.tunnel(api.url) as url:
        got = local.remote(raw, url, head + b"HTTP2-Settings: x\r\n\r\n")
    assert got.startswith(b"HTTP/1.1 200 OK\r\n")
    assert api.asked[0].all("upgrade") + api.asked[0].all("http2-settings") == []


# --- limits ---


def test_too_many_requests_at_once_are_told_so(local: RemoteSandbox, api: Api) -> None:
    """429; those under way go on, and afterwards there is room again."""
    begun, leave = threading.Semaphore(0), threading.Event()

    @api.on("/slow")
    def slow(handler: Handler) -> None:
        begun.release()
        assert leave.wait(30)
        handler.reply(b"")

    with local.tunnel(api.url, max_concurrent=2) as url:
        running = [in_background(local.remote, ask, url, "/slow") for _ in range(2)]
        for _ in running:
            assert begun.acquire(timeout=30)
        answer = local.remote(ask, url)
        assert refusal(answer) == (429, "rate_limit_error", "more than 2 requests at once (max_concurrent)")
        assert dict(answer[1])["retry-after"] == "1"
        leave.set()
        assert [future.result(30)[0] for future in running] == [200, 200]
        assert local.remote(ask, url)[0] == 200


def test_a_request_that_is_too_large_is_told_so(local: RemoteSandbox, api: Api) -> None:
    """413, by the length that it tells or by what comes; the server never sees the end of it."""
    bodies = []
    api.on("/v1/messages")(lambda handler: bodies.append(handler.read_body()))
    with local.tunnel(api.url, max_request_bytes=100_000) as url:
        told = refusal(local.remote(ask, url, "/v1/messages", "POST", bytes(100_001)))
        assert told == (413, "request_too_large", "a request of 100001 bytes; max_request_bytes is 100000")
        came = refusal(local.remote(ask, url, "/v1/messages", "POST", [bytes(50_000)] * 3))
        assert came == (413, "request_too_large", "a request's body is over max_request_bytes, 100000")
    assert bodies == []


def test_an_answer_that_is_too_large_is_told_or_broken_off(local: RemoteSandbox, api: Api) -> None:
    """502 where its length is told; else it ends at the limit, as an error."""
    api.on("/told")(lambda handler: handler.reply(bytes(100_001)))

    @api.on("/broken")
    def broken(handler: Handler) -> None:
        handler.head(transfer_encoding="chunked")
        for _ in range(100):
            handler.chunk(bytes(10_000))

    from .test_tunnel import read_broken

    tunnel = local.tunnel(api.url, max_response_bytes=100_000)
    with tunnel as url:
        told = refusal(local.remote(ask, url, "/told"))
        assert told == (502, "api_error", "an answer of 100001 bytes; max_response_bytes is 100000")
        status, got, error = local.remote(read_broken, url)
        assert (status, error) == (200, "IncompleteRead")
        assert len(got) <= 100_000


def test_the_tunnels_bytes_can_be_used_up(local: RemoteSandbox, api: Api) -> None:
    """Requests and answers count; what comes then is a 403, which no client tries again."""
    api.on("/v1/messages")(lambda handler: handler.reply(handler.read_body()))
    with local.tunnel(api.url, max_total_bytes=1000) as url:
        for _ in range(2):
            assert local.remote(ask, url, "/v1/messages", "POST", bytes(250))[0] == 200
        for _ in range(2):
            answer = local.remote(ask, url, "/v1/messages", "POST", bytes(250))
            assert refusal(answer) == (403, "permission_error", "max_total_bytes, 1000, are used up")


def test_a_host_without_descriptors_says_so(api: Api, tmp_path: Path) -> None:
    """Opening a tunnel raises the soft limit on open files to what it may take. Where there is no room even so, a
    request that needs a new connection is answered at once with the cause and the remedy, one that finds an idle
    connection goes on, and all do when there is room again."""
    script = """
import os, resource, sys
from agentix_runner import LocalProvider, SandboxConfig
from agentix_runner.errors import BadArgument
from tests.support.tunnel_tools import ask

api = sys.argv[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 400))
with LocalProvider().session(SandboxConfig(image="")) as sandbox:
    with sandbox.tunnel(api) as used, sandbox.tunnel(api.replace("127.0.0.1", "localhost")) as unused:
        assert 64 < resource.getrlimit(resource.RLIMIT_NOFILE)[0] <= 400
        assert sandbox.remote(ask, used)[0] == 200
        taken = []

        def fill():
            try:
                while True:
                    taken.append(os.dup(0))
            except OSError:
                pass

        fill()
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(taken) + 1,) * 2)
        for url in (unused, used, unused):
            status, _, body = sandbox.remote(ask, url)
            print(status, body.decode())
            fill()
        try:
            with sandbox.tunnel(api, record=sys.argv[2]):
                print("opened")
        except BadArgument as error:
            print(error)
        for one in taken:
            os.close(one)
        for url in (used, unused):
            assert sandbox.remote(ask, url)[0] == 200
"""
    done = subprocess.run(
        [sys.executable, "-c", script, api.url, str(tmp_path / "record")],
        cwd=Path(__file__).parents[2],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    first, idle, third, last = done.stdout.splitlines()
    assert idle.startswith("200 ")
    for answer in (first, third):
        assert answer.startswith("503 ")
        assert "the tunnel's host has too many open files: raise `ulimit -n` there" in answer
    assert (
        last
        == f"the tunnel's record {str(tmp_path / 'record')!r} can't be written: Too many open files: raise `ulimit -n`"
    )


# --- TLS ---


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A certificate of 127.0.0.1's own making, and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl to make a certificate with")
    folder = tmp_path_factory.mktemp("tls")
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", "2", "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    command += ["-keyout", str(folder / "key"), "-out", str(folder / "cert")]
    subprocess.run(command, check=True, capture_output=True)
    return str(folder / "cert"), str(folder / "key")


@pytest.fixture
def secure(api: Api, certificate: tuple[str, str]) -> str:
    """The server's URL, by TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    api.socket = context.wrap_socket(api.socket, server_side=True)
    return api.url.replace("http:", "https:")


def test_certificates_are_checked(local: RemoteSandbox, api: Api, secure: str, certificate: tuple[str, str]) -> None:
    """One that nobody vouches for is a bad gateway; with ca_file= it is good, and connections are kept."""
    with local.tunnel(secure) as url:
        status, _, message = refusal(local.remote(ask, url))
        assert (status, api.asked) == (502, [])
        assert message.startswith(f"the certificate of {secure} is not trusted: self-signed certificate")
    with local.tunnel(secure, ca_file=certificate[0]) as url:
        assert [local.remote(ask, url, "/x", "POST", bytes(100_000))[0] for _ in range(3)] == [200] * 3
    assert len({handler.client_address for handler in api.asked}) == 1


def test_a_client_that_goes_ends_its_request_by_tls_too(
    local: RemoteSandbox, api: Api, secure: str, certificate: tuple[str, str]
) -> None:
    """Cutting a connection does not depend on what runs over it."""
    from .test_tunnel import leave

    gone = threading.Event()

    @api.on("/endless")
    def answer(handler: Handler) -> None:
        handler.head(transfer_encoding="chunked")
        handler.chunk(b"hello")
        try:
            handler.wait_for_hangup()
        except ssl.SSLError:
            handler.close_connection = True
        gone.set()

    with local.tunnel(secure, ca_file=certificate[0]) as url:
        local.remote(leave, url, "/endless", 5)
        assert gone.wait(30)


def test_no_proxy_of_the_environment_is_used(
    local: RemoteSandbox, api: Api, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The key goes to the upstream, and not through whatever HTTP_PROXY names."""
    with serving() as proxy:
        for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy.url)
        monkeypatch.delenv("NO_PROXY", raising=False)
        with local.tunnel(api.url) as url:
            assert local.remote(ask, url)[0] == 200
        assert (len(api.asked), proxy.asked) == (1, [])
    assert os.environ["HTTP_PROXY"] == proxy.url
