"""The tunnel against enemies: sandboxes that keep to no rule, clients that never read, upstreams without end; and who
shares the wire with it."""

from __future__ import annotations

import itertools
import json
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from agentix_runner import LocalProvider, SandboxConfig
from agentix_runner.providers.sandbox import RemoteSandbox
from agentix_runner.remote.wire import frames
from agentix_runner.remote.wire.frames import MAX_PAYLOAD, WINDOW, Frame
from agentix_runner.remote.wire.streams import Reset, Stalled, Stream, pack_head, unpack_head
from agentix_runner.tunnel.tunnel import Tunnel

from ..conftest import eventually
from ..remote.test_connection import Actor, connected
from ..support.background import in_background
from ..support.tunnel_tools import KEY, Api, Handler, ask, connect, serving

FIRST = frames.TUNNEL_STREAMS


@pytest.fixture
def api() -> Iterator[Api]:
    with serving() as api:
        yield api


@pytest.fixture(scope="module")
def local() -> Iterator[RemoteSandbox]:
    with LocalProvider().session(SandboxConfig(image="")) as sandbox:
        yield sandbox


@contextmanager
def opened(api: Api, **options: Any) -> Iterator[tuple[Tunnel, Actor]]:
    """A tunnel whose sandbox end the test plays."""
    with connected() as (sandbox, actor):
        tunnel = sandbox.tunnel(api.url, **options)
        opening = in_background(tunnel.__enter__)
        call, (function, args, _) = actor.take_call()
        assert function.__name__ == "open_tunnel"
        assert args[0] == 1
        actor.answer(call, 4711)
        assert opening.result(30) == "http://127.0.0.1:4711"
        try:
            yield tunnel, actor
        finally:
            sandbox.kill()
            tunnel.close()


def asking(stream: int, *lines: str, tunnel: str = "1") -> bytes:
    return pack_head(stream, [tunnel, *lines]).to_bytes()


class Answers:
    """What the host sends, by stream."""

    def __init__(self, actor: Actor) -> None:
        self.actor = actor
        self.heads: dict[int, list[str]] = {}
        self.bodies: dict[int, bytes] = {}
        self.ended: set[int] = set()
        self.resets: dict[int, bytes] = {}

    def take(self) -> Frame:
        frame = self.actor.take()
        if frame.kind == frames.HEAD:
            self.heads[frame.stream] = unpack_head(frame.payload)
        elif frame.kind == frames.BODY:
            self.bodies[frame.stream] = self.bodies.get(frame.stream, b"") + frame.payload
            if frame.end:
                self.ended.add(frame.stream)
        elif frame.kind == frames.RESET:
            self.resets[frame.stream] = bytes(frame.payload)
        return frame

    def until(self, stream: int) -> None:
        while stream not in self.ended and stream not in self.resets:
            self.take()


# --- a sandbox that keeps to no rule ---


def test_thousands_of_requests_that_nobody_reads_take_a_few_threads(api: Api) -> None:
    """No more than max_concurrent run, no more than that wait, and the others are forgotten at once."""
    release = threading.Event()

    @api.on("/slow")
    def slow(handler: Handler) -> None:
        release.wait(30)
        handler.reply(b"")

    with opened(api, max_concurrent=4) as (tunnel, actor):
        for number in range(5000):
            actor.socket.sendall(asking(FIRST + number, "GET", "/slow", "0"))
        # Frames are read in turn: when this is answered, all those before it have been read.
        calling = in_background(lambda: tunnel._connection.remote(int))
        actor.answer(actor.take_call()[0], 7)
        assert calling.result(30) == 7
        eventually(lambda: len(api.asked) == 4)
        assert tunnel._tunnels is not None
        eventually(lambda: len(tunnel._tunnels._exchanges) == 8)
        threads = [one for one in threading.enumerate() if one.name == "agentix-tunnel"]
        assert len(threads) == 4
        release.set()
        eventually(lambda: len(api.asked) == 8)


def test_requests_that_are_taken_back_while_they_wait_are_forgotten(api: Api) -> None:
    """However many: nothing is held of them; nor of those that wait when the tunnel is closed."""
    release = threading.Event()

    @api.on("/slow")
    def slow(handler: Handler) -> None:
        release.wait(30)
        handler.reply(b"")

    with opened(api, max_concurrent=2) as (tunnel, actor):
        for number in range(2):
            actor.socket.sendall(asking(FIRST + number, "GET", "/slow", "0"))
        eventually(lambda: len(api.asked) == 2)
        for number in range(2, 500):
            actor.socket.sendall(asking(FIRST + number, "GET", "/slow", "0", "a", "b" * 1000))
            actor.send(frames.RESET, FIRST + number, b"x")
        actor.socket.sendall(asking(FIRST + 500, "GET", "/slow", "0"))
        calling = in_background(lambda: tunnel._connection.remote(int))
        actor.answer(actor.take_call()[0], 7)
        assert calling.result(30) == 7
        assert tunnel._tunnels is not None
        held = tunnel._tunnels._exchanges
        assert sorted(held) == [FIRST, FIRST + 1, FIRST + 500]
        tunnel.cancel("enough")
        eventually(lambda: not held)
        release.set()


@pytest.mark.parametrize("number", ["9" * 60_000, "-1", "\u00b2", "1 ", ""])
def test_a_number_of_a_tunnel_that_is_none_is_nothing(api: Api, number: str) -> None:
    """Its request is dropped, and the next one is answered."""
    with opened(api) as (_, actor):
        actor.socket.sendall(asking(FIRST, "GET", "/", "0", tunnel=number))
        actor.socket.sendall(asking(FIRST + 1, "GET", "/", "0"))
        answers = Answers(actor)
        answers.until(FIRST + 1)
        assert list(answers.heads) == [FIRST + 1]


def test_what_an_upstream_says_beside_headers_and_body_is_not_passed_on(
    api: Api, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither the words behind its status nor a header that can't be read: they may repeat the key."""

    @api.on("/")
    def repeats(handler: Handler) -> None:
        key = handler.headers["x-api-key"]
        handler.wfile.write(f"HTTP/1.1 401 no {key}\r\ncontent-length: 0\r\nx-echo {key}\r\n\r\n".encode())

    with opened(api, headers={"x-api-key": KEY}) as (_, actor):
        answers = Answers(actor)
        actor.socket.sendall(asking(FIRST, "GET", "/", "0"))
        answers.until(FIRST)
        assert answers.heads[FIRST][:2] == ["401", "Unauthorized"]
        assert KEY not in str(answers.heads) + str(answers.bodies)
    assert KEY not in caplog.text


@pytest.mark.parametrize(
    "lines",
    [
        (),
        ("GET",),
        ("GET", "/x", "-5"),
        ("GET", "http://evil.example/", "0"),
        ("GET", "/../x", "0"),
        ("GET\r\nx: y", "/", "0"),
        ("GET", "/", "0", "a: b\r\nc", "d"),
        ("GET", "/", "0", *["a", "b"] * 2000),
        ("TRACE", "/", "0"),
    ],
)
def test_heads_that_its_own_end_would_never_send_are_refused(api: Api, lines: tuple[str, ...]) -> None:
    """The host's own check, whatever the other end let through."""
    with opened(api) as (_, actor):
        answers = Answers(actor)
        actor.socket.sendall(asking(FIRST, *lines))
        answers.until(FIRST)
        assert answers.heads[FIRST][0] in ("400", "405")
        assert json.loads(answers.bodies[FIRST])["type"] == "error"
    assert api.asked == []


def test_frames_of_streams_that_were_never_opened_are_nothing(api: Api) -> None:
    """Bodies, credit and resets of unknown streams, heads of unknown tunnels, and frames that only the host sends."""
    with opened(api) as (tunnel, actor):
        for number in range(1000):
            actor.send(frames.BODY, FIRST + number, b"x" * 1000, end=False)
            actor.socket.sendall(frames.credit(FIRST + number, 2**32 - 1).to_bytes())
            actor.send(frames.RESET, FIRST + number, b"why")
            actor.send(frames.CALL, FIRST + number, b"x")
            actor.socket.sendall(
                asking(FIRST + number, "GET", "/", "0", tunnel=("2", "", "x", "²", "9" * 50)[number % 5])
            )
        answers = Answers(actor)
        actor.socket.sendall(asking(FIRST + 5000, "GET", "/", "0"))
        answers.until(FIRST + 5000)
        assert set(answers.heads) == {FIRST + 5000}
        eventually(lambda: tunnel._tunnels._exchanges == {})


def test_a_sandbox_that_sends_more_than_it_may_loses_that_request(api: Api) -> None:
    """A body beyond its credit is cut off at a window's size, however small its frames; other requests go on."""
    stuck = threading.Event()

    @api.on("/stuck")
    def answer(handler: Handler) -> None:
        stuck.wait(30)

    with opened(api) as (tunnel, actor):
        answers = Answers(actor)
        actor.socket.sendall(asking(FIRST, "POST", "/stuck", "chunked"))
        eventually(lambda: len(api.asked) == 1)
        sending = in_background(
            lambda: [actor.send(frames.BODY, FIRST, b"x" * MAX_PAYLOAD, end=False) for _ in range(400)]
        )
        answers.until(FIRST)
        assert answers.resets[FIRST] == b"more was sent than was asked for"
        sending.result(30)
        actor.socket.sendall(asking(FIRST + 1, "GET", "/", "0"))
        answers.until(FIRST + 1)
        assert answers.heads[FIRST + 1][0] == "200"
        eventually(lambda: tunnel._tunnels._exchanges == {})
        assert not stuck.is_set()
        stuck.set()


@pytest.mark.parametrize(
    ("length", "sent", "why"),
    [
        ("5", b"hello world", b"a request's body is longer than it says"),
        ("50", b"hello world", b"a request's body is shorter than it says"),
    ],
)
def test_a_body_of_another_length_than_told_never_ends_well(api: Api, length: str, sent: bytes, why: bytes) -> None:
    """What follows could be read as another request: the connection is closed instead."""
    read = []

    @api.on("/x")
    def answer(handler: Handler) -> None:
        read.append(handler.rfile.read(1000))
        handler.close_connection = True

    with opened(api) as (_, actor):
        answers = Answers(actor)
        actor.socket.sendall(asking(FIRST, "POST", "/x", length))
        actor.send(frames.BODY, FIRST, sent)
        answers.until(FIRST)
        assert answers.resets[FIRST] == why
        eventually(lambda: len(read) == 1)
    assert read[0] in (b"", sent)
    assert length == "50" or read == [b""]


def test_a_sandbox_that_takes_nothing_is_given_up(api: Api) -> None:
    """An answer that gets no credit holds its thread and connection for read_timeout, and no longer."""
    sent = []

    @api.on("/large")
    def large(handler: Handler) -> None:
        handler.head(transfer_encoding="chunked")
        with suppress(OSError):
            for _ in range(4000):
                handler.chunk(bytes(50_000))
                sent.append(50_000)

    with opened(api, read_timeout=0.5) as (_, actor):
        answers = Answers(actor)
        actor.socket.sendall(asking(FIRST, "GET", "/large", "0"))
        answers.until(FIRST)
        assert answers.resets[FIRST] == b"the client does not read its answer"
        assert len(answers.bodies[FIRST]) == WINDOW
        eventually(lambda: api.connections() == 0)
    assert sum(sent) < 50_000_000


def test_a_request_whose_body_does_not_come_is_given_up(api: Api) -> None:
    """408, and the upstream's connection is closed."""
    with opened(api, read_timeout=0.3) as (_, actor):
        answers = Answers(actor)
        actor.socket.sendall(asking(FIRST, "POST", "/x", "5"))
        actor.send(frames.BODY, FIRST, b"he", end=False)
        answers.until(FIRST)
        assert answers.heads[FIRST][0] == "408"
        eventually(lambda: api.connections() == 0)


# --- clients that never read ---


def ask_and_wait(url: str, path: str, seconds: float) -> None:
    connection = connect(url)
    connection.request("GET", path)
    time.sleep(seconds)
    connection.close()


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_an_answer_that_nobody_reads_stops_at_its_source(local: RemoteSandbox, api: Api) -> None:
    """The upstream is held up, from end to end: neither the host nor the sandbox keeps what the client doesn't take."""
    sent = itertools.count()
    last = [0]

    @api.on("/large")
    def large(handler: Handler) -> None:
        handler.head(transfer_encoding="chunked")
        with suppress(OSError):
            while True:
                handler.chunk(bytes(100_000))
                last[0] = next(sent)

    with local.tunnel(api.url, max_response_bytes=1 << 40) as url:
        before = resident(), local.remote(resident)
        in_background(local.remote, ask_and_wait, url, "/large", 60.0)
        eventually(lambda: last[0] > 20)

        def still() -> bool:
            now = last[0]
            time.sleep(0.2)
            return last[0] == now

        eventually(still)
        after = resident(), local.remote(resident)
        assert local.remote(ask, url)[0] == 200
        assert last[0] * 100_000 < 60_000_000
        assert after[0] - before[0] < 20_000_000
        assert after[1] - before[1] < 20_000_000


def half_requests(url: str, count: int) -> tuple[int, bytes]:
    """Open many connections and leave each in the midst of its request; then ask."""
    host, port = url.split("//")[1].split(":")
    opened = []
    try:
        for _ in range(count):
            one = socket.create_connection((host, int(port)), timeout=30)
            one.sendall(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Le")
            opened.append(one)
        extra = socket.create_connection((host, int(port)), timeout=30)
        opened.append(extra)
        got = b""
        while data := extra.recv(1000):
            got += data
    finally:
        for one in opened:
            one.close()
    return ask_until_answered(url), got


def ask_until_answered(url: str) -> int:
    for _ in range(1000):
        status = ask(url)[0]
        if status != 503:
            return status
        time.sleep(0.01)
    return 503


def test_half_requests_take_nothing_of_the_host(local: RemoteSandbox, api: Api) -> None:
    """Connections are limited in the sandbox; the next one is told so, and there is room again when they are gone."""
    with local.tunnel(api.url, max_concurrent=2) as url:
        status, got = local.remote(half_requests, url, 130)
        assert status == 200
        assert got.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
        assert b"too many connections at once" in got
    assert len(api.asked) == 1


# --- upstreams without end ---


@pytest.mark.parametrize("what", ["headers", "interim", "body", "chunk"])
def test_an_upstream_without_end_ends_with_the_tunnel(local: RemoteSandbox, api: Api, what: str) -> None:
    """Endless headers, interim answers, bodies or one huge chunk: memory stays small, and closing ends it."""
    began, gone = threading.Event(), threading.Event()

    @api.on("/endless")
    def endless(handler: Handler) -> None:
        with suppress(OSError):
            if what == "headers":
                handler.wfile.write(b"HTTP/1.1 200 OK\r\na: ")
            elif what != "interim":
                handler.wfile.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            if what == "chunk":
                handler.wfile.write(b"%x\r\n" % (1 << 50))
            piece = {"headers": b"b", "interim": b"HTTP/1.1 100 Continue\r\n\r\n", "chunk": bytes(65536)}.get(
                what, b"ff\r\n" + bytes(255) + b"\r\n"
            )
            for number in itertools.count():
                handler.wfile.write(piece)
                if number == (2 if what == "chunk" else 200):
                    began.set()
                if what == "headers":
                    time.sleep(0.001)
        gone.set()
        handler.close_connection = True

    before = resident()
    tunnel = local.tunnel(api.url)
    with tunnel as url:
        in_background(local.remote, ask_and_wait, url, "/endless", 60.0)
        assert began.wait(30)
        time.sleep(0.1)
        assert resident() - before < 20_000_000
    assert gone.wait(30)
    assert tunnel._running == set()


# --- who shares the wire ---


def make_bytes(size: int) -> bytes:
    return bytes(size)


def print_much(size: int) -> None:
    for _ in range(size // 10_000):
        os.write(1, b"x" * 9_999 + b"\n")


def ping_until(url: str, path: str, most: int) -> int:
    """Ask again and again, one after the other, until the server says stop."""
    connection = connect(url)
    for number in range(most):
        connection.request("GET", path)
        if connection.getresponse().read() == b"stop":
            connection.close()
            return number
    connection.close()
    return most


def test_results_and_output_do_not_hold_up_a_tunnel(api: Api) -> None:
    """While 200 MB of result and a flood of output pass, requests go to and fro all the time."""
    done = threading.Event()
    api.on("/ping")(lambda handler: handler.reply(b"stop" if done.is_set() else b"go on"))
    provider = LocalProvider(max_log=1 << 40)
    with provider.session(SandboxConfig(image="")) as sandbox, sandbox.tunnel(api.url) as url:
        printing = in_background(sandbox.remote, print_much, 60_000_000)
        result = in_background(sandbox.remote, make_bytes, 200_000_000)
        pinging = in_background(sandbox.remote, ping_until, url, "/ping", 1_000_000)
        assert len(result.result(60)) == 200_000_000
        printing.result(60)
        done.set()
        assert pinging.result(60) >= 20


def pour(url: str) -> int:
    connection = connect(url)
    connection.request("GET", "/pour")
    answer = connection.getresponse()
    size = 0
    while data := answer.read1(65536):
        size += len(data)
    connection.close()
    return size


def test_a_tunnel_does_not_hold_up_calls(local: RemoteSandbox, api: Api) -> None:
    """While answers pour through it, calls are made and answered."""
    done = threading.Event()

    @api.on("/pour")
    def answer(handler: Handler) -> None:
        handler.head(transfer_encoding="chunked")
        while not done.is_set():
            handler.chunk(bytes(65536))
        handler.chunk(b"")

    with local.tunnel(api.url, max_response_bytes=1 << 40) as url:
        pouring = [in_background(local.remote, pour, url) for _ in range(4)]
        eventually(lambda: len(api.asked) == 4)
        for number in range(100):
            assert local.remote(abs, -number) == number
            assert len(local.remote(make_bytes, 10_000)) == 10_000
        assert not any(one.done() for one in pouring)
        done.set()
        assert all(one.result(60) > 0 for one in pouring)


# --- streams ---


def pair() -> tuple[Stream, Stream]:
    """Two ends of a stream, joined without a wire."""
    ends: list[Stream] = []
    asks = Stream(FIRST, lambda frame: ends[1].take(frame), asks=True)
    ends += [asks, Stream(FIRST, lambda frame: asks.take(frame))]
    return ends[0], ends[1]


def test_a_stream_carries_any_amount_within_its_window() -> None:
    """What is sent arrives, and no more than a window is ever kept."""
    sender, receiver = pair()
    data = os.urandom(1000) * 10_000
    sending = in_background(lambda: sender.send(data, end=True, timeout=30))
    got = bytearray()
    while piece := receiver.read(30):
        assert len(piece) <= WINDOW
        got += piece
    assert bytes(got) == data
    assert sending.result(30) is True
    assert receiver.is_whole()


def test_a_stream_without_credit_stalls() -> None:
    """Both ends wait no longer than they are told to."""
    sender, receiver = pair()
    assert sender.send(bytes(WINDOW), timeout=0.01) is True
    with pytest.raises(Stalled):
        sender.send(b"x", timeout=0.01)
    receiver.read(1)
    assert sender.send(b"", end=True, timeout=0.01) is True
    assert receiver.read(1) == b""
    with pytest.raises(Stalled):
        sender.read(0.01)


def test_a_stream_that_is_answered_sends_no_more() -> None:
    """The end that asks learns it also while it waits for credit."""
    sender, receiver = pair()
    sender.send(bytes(WINDOW), timeout=1)
    sending = in_background(lambda: sender.send(b"more", timeout=30))
    receiver.send_head(["413", "No", ""])
    assert sending.result(30) is False
    assert sender.answer() == ["413", "No", ""]


def test_what_came_before_a_bad_end_is_read_first() -> None:
    """And then the reason is told."""
    sender, receiver = pair()
    receiver.send(b"first", timeout=1)
    receiver.send_reset("broke off")
    assert sender.read(1) == b"first"
    for act in (sender.read, sender.answer, sender.check, lambda: sender.send(b"x", timeout=1)):
        with pytest.raises(Reset, match="broke off"):
            act()  # type: ignore[operator]


@pytest.mark.parametrize(
    "frame",
    [
        Frame(frames.BODY, FIRST, bytes(MAX_PAYLOAD)),
        Frame(frames.HEAD, FIRST, b"x"),
        Frame(frames.CALL, FIRST, b"x"),
        Frame(frames.RESET, FIRST, b"\xff" * MAX_PAYLOAD),
    ],
    ids=["body", "head", "call", "reset"],
)
def test_a_frame_against_the_rules_is_the_streams_end(frame: Frame) -> None:
    """Twice the end, a head where none belongs, another kind: that stream is over."""
    _, receiver = pair()
    receiver.take(frame)
    receiver.take(frame)
    with suppress(Reset):
        receiver.read(1)
    with pytest.raises(Reset) as caught:
        receiver.check()
    assert len(str(caught.value)) <= 300


def test_small_frames_take_no_more_memory_than_large_ones() -> None:
    """A window of single bytes is one buffer; empty frames are nothing."""
    _, receiver = pair()
    for _ in range(10_000):
        receiver.take(Frame(frames.BODY, FIRST, b"x", end=False))
        receiver.take(Frame(frames.BODY, FIRST, b"", end=False))
    assert receiver.read(1) == b"x" * 10_000
    assert struct.calcsize(">BBII") == frames.HEADER.size
