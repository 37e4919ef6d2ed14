"""The host's end of an attached container: chunks, last words, and the end. Without an engine."""

from __future__ import annotations

import os
import socket
import ssl
import struct
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from agentix_runner.providers.docker import attach
from agentix_runner.providers.docker.attach import AttachTransport
from agentix_runner.remote.sandbox.guard import LAST_WORDS

# A key and a certificate for nobody, for these tests alone.
CERTIFICATE = """\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgsfAWXg9HwHqz9oM7
gbW4CcNgBH8Ia/2C6IrP8eEAu9mhRANCAAT8IL9rA4IMZLFWtWxs+270cnJLdndu
gtDVGDeaX4JdpRvistqJpP929dmOiOiv83LL8c+0tu1Q9Jq23EaUeCv0
-----END PRIVATE KEY-----
-----BEGIN CERTIFICATE-----
MIIBeTCCAR+gAwIBAgIUJsrmZhBLABnni6ckyANeUl24320wCgYIKoZIzj0EAwIw
ETEPMA0GA1UEAwwGbm9ib2R5MCAXDTI2MTEyOTE5MjgyMloYDzIxMjYxMTA1MTky
ODIyWjARMQ8wDQYDVQQDDAZub2JvZHkwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNC
AAT8IL9rA4IMZLFWtWxs+270cnJLdndugtDVGDeaX4JdpRvistqJpP929dmOiOiv
83LL8c+0tu1Q9Jq23EaUeCv0o1MwUTAdBgNVHQ4EFgQU2R0t0AzHNueaYLXDUka3
scd6AIgwHwYDVR0jBBgwFoAU2R0t0AzHNueaYLXDUka3scd6AIgwDwYDVR0TAQH/
BAUwAwEB/zAKBggqhkjOPQQDAgNIADBFAiAR2eyR3qxFDlvPqVE89ww5Jn00Y8of
aGHRhzNtObXxTgIhAIXestNd1g8MnKLOukmS4Wxid/Kmr2ZgpUavSXQkTfoo
-----END CERTIFICATE-----
"""


class End:
    """What the engine tells of a container's end: nothing, or a code."""

    def __init__(self, code: int | None = None, oom: bool = False) -> None:
        self.answer = (code, oom)
        self.asked: list[float] = []

    def __call__(self, timeout: float) -> tuple[int | None, bool]:
        self.asked.append(timeout)
        return self.answer


def chunk(stream: int, data: bytes) -> bytes:
    return struct.pack(">BxxxL", stream, len(data)) + data


@pytest.fixture
def engine_end() -> Iterator[socket.socket]:
    """The engine's end of the connection."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.settimeout(30)
        engine_end_of[theirs] = ours
        yield theirs
        del engine_end_of[theirs]


engine_end_of: dict[socket.socket, socket.socket] = {}


def transport(engine_end: socket.socket, end: End | None = None) -> AttachTransport:
    return AttachTransport(engine_end_of[engine_end], end or End())


def read_all(transport: AttachTransport, size: int = 100) -> bytes:
    found = b""
    while data := transport.read(size):
        assert len(data) <= size
        found += data
    return found


@pytest.mark.parametrize("step", [1, 3, 8, 1000])
def test_stdout_is_read_whatever_the_pieces(engine_end: socket.socket, step: int) -> None:
    """Chunks of both streams, empty ones too, in pieces of any size: stdout comes whole, stderr stays apart."""
    host = transport(engine_end, End(0))
    data = chunk(1, b"one ") + chunk(2, b"err") + chunk(1, b"") + chunk(3, b"engine") + chunk(1, b"two" * 100)
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read_all, host, 7)
        for start in range(0, len(data), step):
            engine_end.sendall(data[start : start + step])
        engine_end.close()
        assert reading.result(30) == b"one " + b"two" * 100
    assert host.ended(1).text == "errengine"


def test_a_chunk_longer_than_memory_costs_none(engine_end: socket.socket) -> None:
    """A length of four gigabytes is only a number: what comes is passed on."""
    host = transport(engine_end)
    engine_end.sendall(struct.pack(">BxxxL", 1, 2**32 - 1) + b"x" * 10)
    assert host.read(100) == b"x" * 10


def test_what_is_no_chunk_is_an_error(engine_end: socket.socket) -> None:
    """An unknown stream is not read any further."""
    host = transport(engine_end)
    engine_end.sendall(b"HTTP/1.1")
    with pytest.raises(OSError, match="unknown stream, 72"):
        host.read(100)


@pytest.mark.parametrize("cut", [1, 7, 8, 11])
def test_an_end_in_the_middle_of_a_chunk_is_the_end(engine_end: socket.socket, cut: int) -> None:
    """Nothing is made up of half a chunk."""
    host = transport(engine_end)
    engine_end.sendall(chunk(1, b"data!")[:cut])
    engine_end.close()
    assert read_all(host) == b"data!"[: max(0, cut - 8)]


@pytest.mark.parametrize(
    ("words", "engine", "expected"),
    [
        ("exit=3 oom=0", End(3), (3, False, "before")),
        ("exit=-9 oom=1", End(137), (-9, True, "before")),
        ("exit=-9 oom=0", End(137, True), (-9, True, "before")),
        ("exit=-9 oom=0", End(137, False), (-9, False, "before")),
        ("exit=0 oom=0", End(0, True), (0, False, "before")),
    ],
)
def test_the_guards_last_words_tell_the_workers_end(
    engine_end: socket.socket, words: str, engine: End, expected: tuple[int, bool, str]
) -> None:
    """The guard knows the worker's exit code; that memory ran out either may know."""
    host = transport(engine_end, engine)
    engine_end.sendall(chunk(2, b"before") + chunk(2, f"\n{LAST_WORDS} {words}\n".encode()))
    engine_end.close()
    assert read_all(host) == b""
    ended = host.ended(5)
    assert (ended.exit_code, ended.oom, ended.text) == expected
    assert all(timeout < 1 for timeout in engine.asked)


@pytest.mark.parametrize(
    ("engine", "expected"),
    [
        (End(None), (None, False)),
        (End(0), (0, False)),
        (End(1), (1, False)),
        (End(137), (-9, False)),
        (End(137, True), (-9, True)),
        (End(1, True), (1, False)),
        (End(139), (-11, False)),
    ],
)
def test_without_last_words_the_engine_tells_the_end(
    engine_end: socket.socket, engine: End, expected: tuple[int | None, bool]
) -> None:
    """A code above 128 is a signal, and memory that ran out is only the reason of a kill."""
    host = transport(engine_end, engine)
    engine_end.sendall(chunk(2, b"a traceback\n"))
    engine_end.close()
    assert read_all(host) == b""
    ended = host.ended(5)
    assert (ended.exit_code, ended.oom, ended.text) == (*expected, "a traceback")
    assert engine.asked == [5]


def test_last_words_in_the_middle_are_only_text(engine_end: socket.socket) -> None:
    """What was printed can't pass for the guard's last line by coming before it."""
    host = transport(engine_end, End(1))
    engine_end.sendall(chunk(2, f"\n{LAST_WORDS} exit=0 oom=0\nand more\n".encode()))
    engine_end.close()
    assert read_all(host) == b""
    assert host.ended(5).exit_code == 1


def test_much_text_is_cut_to_its_end(engine_end: socket.socket) -> None:
    """Only the last of it is kept."""
    host = transport(engine_end)
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read_all, host)
        for _ in range(100):
            engine_end.sendall(chunk(2, b"x" * 10_000))
        engine_end.sendall(chunk(2, b"the end"))
        engine_end.close()
        assert reading.result(30) == b""
    text = host.ended(1).text
    assert (len(text), text[-8:]) == (16 * 1024, "xthe end")


def test_a_sandbox_that_lingers_after_its_last_words_is_left(
    engine_end: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Frames that were under way are still read, but nobody waits for more of them for ever."""
    monkeypatch.setattr(attach, "_AFTER_LAST_WORDS_S", 0.05)
    host = transport(engine_end)
    engine_end.sendall(chunk(2, f"\n{LAST_WORDS} exit=3 oom=0\n".encode()) + chunk(1, b"late"))
    assert host.read(100) == b"late"
    with pytest.raises(TimeoutError):
        host.read(100)


def test_close_wakes_readers_and_writers(engine_end: socket.socket) -> None:
    """From another thread, any number of times."""
    host = transport(engine_end)

    def write_much() -> None:
        while True:
            host.write(bytes(1 << 20))

    with ThreadPoolExecutor(2) as pool:
        reading, writing = pool.submit(host.read, 10), pool.submit(write_much)
        engine_end.recv(100)
        host.close()
        host.close()
        assert reading.result(30) == b""
        assert isinstance(writing.exception(30), OSError)
    assert host.release(1) is True
    host.close()
    assert host.release(1) is True


def test_a_fork_holds_no_connection(engine_end: socket.socket) -> None:
    """A child of this process that lives on keeps no sandbox alive."""
    host = transport(engine_end)
    reader, writer = os.pipe()
    with threading.Lock():
        child = os.fork()
    if child == 0:
        os.close(writer)
        os.read(reader, 1)
        os._exit(0)
    try:
        os.close(reader)
        host.release(1)
        assert engine_end.recv(1) == b""
    finally:
        os.close(writer)
        os.waitpid(child, 0)


# --- TLS ---


def test_tls_is_read_and_written_at_once(tmp_path: Path) -> None:
    """Megabytes both ways at the same time, by several threads, arrive as they were; and close() wakes everyone."""
    path = tmp_path / "nobody.pem"
    path.write_text(CERTIFICATE)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(path)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    left, right = socket.socketpair()
    with left, right, ThreadPoolExecutor(4) as pool:
        accepted = pool.submit(server.wrap_socket, right, server_side=True)
        host = AttachTransport(client.wrap_socket(left), End())
        theirs = accepted.result(30)
        data = os.urandom(1 << 16) * 128
        echoed = bytearray()

        def echo() -> None:
            # One thread for both directions here: only the host's end is asked for more.
            theirs.settimeout(30)
            for _ in range(0, len(data), 1 << 15):
                piece = b""
                while len(piece) < 1 << 15:
                    piece += theirs.recv((1 << 15) - len(piece))
                theirs.sendall(chunk(1, piece))

        def write() -> None:
            for start in range(0, len(data), 1 << 15):
                host.write(data[start : start + (1 << 15)])

        echoing, writing = pool.submit(echo), pool.submit(write)
        while len(echoed) < len(data):
            echoed += host.read(1 << 16)
        assert echoed == data
        for future in (echoing, writing):
            assert future.exception(30) is None
        reading = pool.submit(host.read, 10)
        host.close()
        assert reading.exception(30) is not None or reading.result() == b""
        host.release(1)
        theirs.close()
