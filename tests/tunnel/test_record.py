"""What a tunnel keeps: the record, the tokens, and the key to itself."""

from __future__ import annotations

import base64
import gzip
import json
import logging
import os
import re
import secrets
import threading
import urllib.parse
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentix_runner import LocalProvider, SandboxConfig
from agentix_runner.errors import BadArgument
from agentix_runner.providers.docker import DockerProvider
from agentix_runner.providers.sandbox import RemoteSandbox
from agentix_runner.text import is_secret_header
from agentix_runner.tunnel import record as record_module
from agentix_runner.tunnel.record import BodyCopy, Inflater, Record
from agentix_runner.tunnel.secrets import SecretFilter
from agentix_runner.tunnel.usage import Usage, UsageReader

from ..support.tunnel_tools import Api, Handler, ask, serving


@pytest.fixture(scope="module", params=["local", "docker"])
def sandbox(request: pytest.FixtureRequest) -> Iterator[RemoteSandbox]:
    """One sandbox of each provider, with a key in the host's environment, as is usual."""
    provider: Any = LocalProvider()
    image = ""
    if request.param == "docker":
        request.getfixturevalue("engine")
        provider = DockerProvider(network="none")
        image = request.getfixturevalue("busybox")
    with provider.session(SandboxConfig(image=image, labels={"instance_id": "i-1", "phase": "agent"})) as sandbox:
        yield sandbox


@pytest.fixture(scope="module")
def local() -> Iterator[RemoteSandbox]:
    with LocalProvider().session(SandboxConfig(image="", labels={"instance_id": "i-1"})) as sandbox:
        yield sandbox


@pytest.fixture
def api() -> Iterator[Api]:
    with serving() as api:
        yield api


def entries(path: Path) -> list[dict[str, Any]]:
    """The lines of a record, each of which must be whole."""
    text = path.read_text()
    assert text.endswith("\n")
    return [json.loads(line) for line in text.split("\n")[:-1]]


# --- the record ---


def test_an_exchange_is_one_line_of_json(local: RemoteSandbox, api: Api, tmp_path: Path) -> None:
    """Time, method, path, headers, both bodies, status and latency; of whom, by the sandbox's labels."""

    @api.on("/v1/messages")
    def answer(handler: Handler) -> None:
        handler.read_body()
        handler.reply('{"text": "grüß\\u2028dich"}'.encode(), request_id="r1")

    record = tmp_path / "record.jsonl"
    with local.tunnel(api.url, record=record) as url:
        local.remote(ask, url, "/v1/messages?beta=true", "POST", b'{"a": 1}', {"X-Mine": "m"})
        [entry] = entries(record)
    assert list(entry) == [
        *("time", "labels", "method", "path", "status", "request_headers", "first_byte_s", "response_headers"),
        *("latency_s", "request_body", "response_body"),
    ]
    assert (entry["method"], entry["path"], entry["status"]) == ("POST", "/v1/messages?beta=true", 200)
    assert entry["labels"] == {"instance_id": "i-1"}
    assert (entry["request_body"], entry["response_body"]) == ('{"a": 1}', '{"text": "grüß\\u2028dich"}')
    assert ["X-Mine", "m"] in entry["request_headers"]
    assert ["request-id", "r1"] in entry["response_headers"]
    assert 0 < entry["first_byte_s"] <= entry["latency_s"] < 30
    assert entry["time"] > 1e9


def test_bodies_that_are_no_text_are_base64_and_long_ones_are_cut(
    local: RemoteSandbox, api: Api, tmp_path: Path
) -> None:
    """A mark tells how long a cut body was; a cut goes through no character."""
    bodies = {"/binary": b"\x00\xff" * 10, "/long": "ä".encode() * 100, "/longer": b"\xff" * 200}
    for path, body in bodies.items():
        api.on(path)(lambda handler, body=body: handler.reply(body))  # type: ignore[misc]
    record = tmp_path / "record.jsonl"
    with local.tunnel(api.url, record=record, max_record_bytes=51) as url:
        for path, body in bodies.items():
            assert local.remote(ask, url, path)[2] == body
    binary, long, longer = entries(record)
    assert base64.b64decode(binary["response_body_base64"]) == b"\x00\xff" * 10
    assert "response_cut" not in binary
    assert (long["response_body"], long["response_cut"], long["response_bytes"]) == ("ä" * 25, True, 200)
    assert base64.b64decode(longer["response_body_base64"]) == b"\xff" * 51
    assert longer["response_bytes"] == 200


@pytest.mark.parametrize(
    ("coding", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress), ("br", lambda data: data[::-1])]
)
def test_compressed_answers_pass_untouched_and_are_read(
    local: RemoteSandbox, api: Api, tmp_path: Path, coding: str, pack: Any
) -> None:
    """The client gets the bytes that were sent; record and usage have what they say, where that can be told."""
    said = json.dumps({"usage": {"input_tokens": 7, "output_tokens": 8}, "pad": "x" * 200_000}).encode()
    packed = pack(said)
    api.on("/v1/messages")(lambda handler: handler.reply(packed, content_encoding=coding))
    record = tmp_path / "record.jsonl"
    tunnel = local.tunnel(api.url, record=record)
    with tunnel as url:
        status, headers, body = local.remote(ask, url, "/v1/messages", "GET", None, {"Accept-Encoding": "gzip, br"})
    assert (status, dict(headers)["content-encoding"], body) == (200, coding, packed)
    assert api.asked[0].all("accept-encoding") == ["identity"]
    [entry] = entries(record)
    assert entry["response_body"] == (said if coding != "br" else packed).decode()
    assert tunnel.usage == (Usage(requests=1) if coding == "br" else Usage(1, 7, 8))


def test_a_body_that_would_inflate_without_end_is_cut() -> None:
    """No more than a limit is unpacked, in small pieces; garbage ends it too."""
    inflater = Inflater("gzip", 1_000_000)
    pieces = list(inflater.feed(gzip.compress(bytes(50_000_000))))
    assert sum(map(len, pieces)) == 1_000_000
    assert max(map(len, pieces)) <= 65536
    assert list(inflater.feed(b"more")) == []
    assert list(Inflater("gzip", 100).feed(b"garbage")) == []
    assert list(Inflater("identity", 1).feed(b"plain")) == [b"plain"]


def test_what_went_wrong_is_recorded_too(local: RemoteSandbox, api: Api, tmp_path: Path) -> None:
    """Refused by the tunnel, broken off by the upstream, or left by the client: one line each, with the error."""
    from .test_tunnel import leave, read_broken

    begun = threading.Event()

    @api.on("/broken")
    def broken(handler: Handler) -> None:
        handler.head(transfer_encoding="chunked")
        handler.chunk(b"hello")
        handler.drop()

    @api.on("/endless")
    def endless(handler: Handler) -> None:
        handler.head(transfer_encoding="chunked")
        handler.chunk(b"hello")
        handler.wait_for_hangup()
        begun.set()

    record = tmp_path / "record.jsonl"
    with local.tunnel(api.url, record=record) as url:
        local.remote(ask, url, "/v1/%2e%2e/x")
        local.remote(read_broken, url)
        local.remote(leave, url, "/endless", 5)
        assert begun.wait(30)
    told = {entry["path"]: (entry["status"], entry["response_body"], entry["error"]) for entry in entries(record)}
    assert told == {
        None: (400, "", 'a request\'s path has "." or ".." in it'),
        "/broken": (200, "hello", f"{api.url} closed the connection inside its answer"),
        "/endless": (200, "hello", "the client is gone"),
    }


def test_many_tunnels_write_whole_lines_to_one_file(local: RemoteSandbox, api: Api, tmp_path: Path) -> None:
    """From threads, with large bodies, each line is there once and whole."""
    record = tmp_path / "record.jsonl"

    def one(number: int) -> None:
        with local.tunnel(api.url, record=record) as url:
            for part in range(3):
                local.remote(ask, url, f"/{number}/{part}", "POST", bytes([65 + number]) * 300_000)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(one, range(6)))
    found = sorted((entry["path"], entry["request_body"][:1], len(entry["request_body"])) for entry in entries(record))
    assert found == sorted((f"/{n}/{part}", chr(65 + n), 300_000) for n in range(6) for part in range(3))


def test_processes_write_whole_lines_to_one_file(tmp_path: Path) -> None:
    """The file itself is locked while a line is written."""
    path = tmp_path / "record.jsonl"
    path.write_text('{"torn": "by a writer that was kil')
    children = []
    for number in range(3):
        child = os.fork()
        if child == 0:
            try:
                record = Record(path)
                record.open()
                for part in range(20):
                    record.append({"n": number, "part": part, "text": "x" * 200_000})
                os._exit(0)
            finally:
                os._exit(1)
        children.append(child)
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0, 0, 0]
    torn, *lines = path.read_text().splitlines()
    assert torn == '{"torn": "by a writer that was kil'
    found = sorted((entry["n"], entry["part"]) for entry in map(json.loads, lines))
    assert found == [(n, part) for n in range(3) for part in range(20)]


def test_a_line_that_could_not_be_written_is_taken_back(
    local: RemoteSandbox, api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A full disk: the client gets its answer, the error is logged and counted, and the file holds whole lines."""
    record = tmp_path / "record.jsonl"
    real = os.write
    full = False

    def write(file: int, data: Any) -> int:
        if full and len(data) > 10:
            return real(file, bytes(data)[:10])
        if full:
            raise OSError(28, "No space left on device")
        return real(file, data)

    tunnel = local.tunnel(api.url, record=record)
    with tunnel as url:
        local.remote(ask, url, "/a")
        monkeypatch.setattr(record_module.os, "write", lambda file, data: write(file, data))
        full = True
        assert local.remote(ask, url, "/b")[0] == 200
        full = False
        local.remote(ask, url, "/c")
    assert [entry["path"] for entry in entries(record)] == ["/a", "/c"]
    assert tunnel.unrecorded == 1
    assert "No space left on device" in caplog.text


@pytest.mark.parametrize("where", ["missing/record.jsonl", ".", "pipe"])
def test_a_record_that_cant_be_written_is_an_error_at_the_start(
    local: RemoteSandbox, api: Api, tmp_path: Path, where: str
) -> None:
    """Nothing is opened in the sandbox."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BadArgument, match="the tunnel's record"), local.tunnel(api.url, record=tmp_path / where):
        pass


@given(st.binary(max_size=60), st.integers(0, 60), st.integers(1, 9))
def test_a_copy_is_the_beginning_of_the_body(body: bytes, limit: int, step: int) -> None:
    """However it comes; and the entry says whether that is all."""
    copy = BodyCopy(limit)
    for start in range(0, len(body), step):
        copy.feed(body[start : start + step])
    entry = copy.entry("x", bytes)
    kept = entry["x_body"].encode() if "x_body" in entry else base64.b64decode(entry["x_body_base64"])
    assert body[:limit].startswith(kept)
    assert len(kept) >= min(limit, len(body)) - 3
    assert entry.get("x_cut", False) == (len(body) > limit)


# --- usage ---


def sse(*events: Any) -> bytes:
    return b"".join(b"event: x\r\ndata: " + json.dumps(event).encode() + b"\r\n\r\n" for event in events)


ANTHROPIC = {
    "input_tokens": 10,
    "output_tokens": 20,
    "cache_read_input_tokens": 30,
    "cache_creation_input_tokens": 40,
    "cache_creation": {"ephemeral_5m_input_tokens": 40},
}
CHAT = {"prompt_tokens": 100, "completion_tokens": 20, "prompt_tokens_details": {"cached_tokens": 60}}
RESPONSES = {"input_tokens": 100, "output_tokens": 20, "input_tokens_details": {"cached_tokens": 60}}


@pytest.mark.parametrize(
    ("kind", "body", "usage"),
    [
        ("application/json", json.dumps({"type": "message", "usage": ANTHROPIC}).encode(), Usage(1, 10, 20, 30, 40)),
        ("application/json; charset=utf-8", json.dumps({"usage": CHAT}).encode(), Usage(1, 40, 20, 60)),
        ("application/json", json.dumps({"object": "response", "usage": RESPONSES}).encode(), Usage(1, 40, 20, 60)),
        ("application/json", b'{"usage": {"prompt_tokens": 5, "total_tokens": 5}}', Usage(1, 5)),
        (
            "text/event-stream; charset=utf-8",
            sse(
                {"type": "message_start", "message": {"usage": {**ANTHROPIC, "output_tokens": 1}}},
                {"type": "content_block_delta", "delta": {"text": '"usage"'}},
                {"type": "message_delta", "usage": {"output_tokens": 15}},
                {"type": "message_delta", "usage": {"output_tokens": 20, "input_tokens": 10}},
                {"type": "message_stop"},
            ),
            Usage(1, 10, 20, 30, 40),
        ),
        (
            "text/event-stream",
            sse({"choices": [], "usage": None}, {"choices": [], "usage": CHAT}) + b"data: [DONE]\n\n",
            Usage(1, 40, 20, 60),
        ),
        (
            "text/event-stream",
            sse({"type": "response.created"}, {"type": "response.completed", "response": {"usage": RESPONSES}}),
            Usage(1, 40, 20, 60),
        ),
        ("text/event-stream", sse({"usage": CHAT}).rstrip(), Usage(1, 40, 20, 60)),
        # What is none.
        ("application/json", b'{"input_tokens": 5}', Usage(1)),
        ("application/json", b'{"usage": "much"}', Usage(1)),
        ("application/json", b'{"usage": {"input_tokens": true, "output_tokens": -5, "prompt_tokens": 1e3}}', Usage(1)),
        ("application/json", b'{"usage": {"input_tokens": 1%s}}' % (b"0" * 5000), Usage(1)),
        ("application/json", b'{"usage": ' + b"[" * 100_000, Usage(1)),
        ("application/json", b'["usage"]', Usage(1)),
        ("text/plain", b'{"usage": {"input_tokens": 5}}', Usage(1)),
        ("text/event-stream", b'data: {"usage"\n\ndata: 5\n\n', Usage(1)),
        ("", b"", Usage(1)),
    ],
)
@pytest.mark.parametrize("step", [1, 7, 1 << 20])
def test_tokens_are_read_from_answers(kind: str, body: bytes, usage: Usage, step: int) -> None:
    """Anthropic's messages, OpenAI's chat completions and responses, whole or streamed, in any pieces."""
    meter = UsageReader(kind)
    for start in range(0, len(body), max(step, len(body) // 500)):
        meter.feed(body[start : start + max(step, len(body) // 500)])
    assert meter.usage() == usage


def test_a_line_without_end_is_not_kept() -> None:
    """A stream's line over the limit is passed over, and the next one is read."""
    meter = UsageReader("text/event-stream")
    for _ in range(100):
        meter.feed(b"data: " + b"x" * 100_000)
        assert len(meter._buffer) < 5_000_000
    meter.feed(b'"usage"\n' + sse({"usage": CHAT}))
    assert meter.usage() == Usage(1, 40, 20, 60)


def test_a_tunnel_sums_what_its_answers_report(local: RemoteSandbox, api: Api, tmp_path: Path) -> None:
    """Whole and streamed, also of a stream that breaks off; it is there when the client has its answer."""
    from .test_tunnel import read_broken

    api.on("/whole")(lambda handler: handler.reply(json.dumps({"usage": ANTHROPIC}).encode()))

    @api.on("/broken")
    def broken(handler: Handler) -> None:
        handler.head(transfer_encoding="chunked")
        handler.chunk(sse({"message": {"usage": {"input_tokens": 1000, "output_tokens": 1}}}))
        handler.drop()

    tunnel = local.tunnel(api.url, record=tmp_path / "record")
    with tunnel as url:
        for number in range(1, 20):
            local.remote(ask, url, "/whole")
            assert tunnel.usage == Usage(number, 10 * number, 20 * number, 30 * number, 40 * number)
        local.remote(read_broken, url)
    assert tunnel.usage == Usage(20, 1190, 381, 570, 760)
    recorded = [entry["usage"] for entry in entries(tmp_path / "record")]
    assert recorded[0] == {
        "input_tokens": 10,
        "output_tokens": 20,
        "cache_read_tokens": 30,
        "cache_write_tokens": 40,
    }
    assert sum(one["input_tokens"] for one in recorded) == 1190


# --- the key ---


def make_key() -> str:
    """A key of its own for each test: one in a module would be in every sandbox that imports it."""
    return f'sk-ant-"{secrets.token_hex(8)}"/+{secrets.token_hex(8)}='


def spellings(key: str) -> dict[str, bytes]:
    """How a key may be written."""
    plain = key.encode()
    return {
        "plain": plain,
        "base64": base64.b64encode(plain).rstrip(b"="),
        # Where something stands before it, its base64 is another.
        "base64 behind a byte": base64.b64encode(b"x" + plain)[4:-4],
        "base64 behind two": base64.b64encode(b"xx" + plain)[4:-4],
        "basic": base64.b64encode(b"user:" + plain).rstrip(b"="),
        "quoted": urllib.parse.quote(key, safe="").encode(),
        "json": json.dumps(key)[1:-1].encode(),
        "hex": plain.hex().encode(),
        "reversed": plain[::-1],
    }


def find_in_memory(patterns: list[str]) -> list[int]:
    """Which of these regular expressions match something in this process's memory. No pattern holds what it looks for
    in one piece: the search would find itself."""
    import re

    compiled = [re.compile(pattern.encode(), re.DOTALL) for pattern in patterns]
    found = set()
    with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb", 0) as memory:
        for line in maps.readlines():
            ends, rights = line.split()[:2]
            if not rights.startswith("rw"):
                continue
            start, end = (int(one, 16) for one in ends.split("-"))
            for at in range(start, end, 1 << 20):
                try:
                    memory.seek(at)
                    data = memory.read(min((1 << 20) + 200, end - at))
                except OSError:
                    continue
                found |= {number for number, one in enumerate(compiled) if one.search(data)}
    return sorted(found)


def patterns_of(texts: list[bytes]) -> list[str]:
    """Regular expressions for these, in which no two bytes of theirs stand side by side."""
    return ["".join(f"\\x{byte:02x}" for byte in text) for text in texts]


def environment_and_files() -> bytes:
    text = repr(dict(os.environ)).encode()
    for folder, inner, names in os.walk(os.getcwd()):
        if folder == "/":
            inner[:] = set(inner) - {"agentix", "bin", "dev", "proc", "sys"}
        for name in names:
            if not os.path.isfile(os.path.join(folder, name)):
                continue
            with open(os.path.join(folder, name), "rb") as file:
                text += file.read()
    for number in os.listdir("/proc"):
        for name in ("environ", "cmdline"):
            try:
                with open(f"/proc/{number}/{name}", "rb") as file:
                    text += file.read()
            except OSError:  # no process, or gone, or somebody else's
                continue
    return text


def test_the_search_of_memory_finds_what_is_there(local: RemoteSandbox) -> None:
    """Else the next test could not fail."""
    one, other = make_key(), make_key()
    patterns = patterns_of([one.encode(), other.encode()])
    assert local.remote(find_in_memory, patterns) == []
    assert local.remote(keep, one) is None
    assert local.remote(find_in_memory, patterns) == [0]


def keep(text: str) -> None:
    import builtins

    builtins._kept = text.encode()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("x-api-key", lambda key: key),
        ("Authorization", lambda key: f"Bearer {key}"),
        ("authorization", lambda key: "Basic " + base64.b64encode(f"user:{key}".encode()).decode()),
    ],
    ids=["key", "bearer", "basic"],
)
def test_the_key_is_nowhere_but_upstream(
    sandbox: RemoteSandbox,
    api: Api,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    name: str,
    form: Any,
) -> None:
    """In no spelling: in the sandbox's memory, environment, processes and files, in record, log, answers, errors and
    reprs; though the server gets it, and repeats all that it gets."""
    key = make_key()
    value = form(key)
    monkeypatch.setenv("ANTHROPIC_API_KEY", key)
    caplog.set_level(logging.DEBUG)

    @api.on("/repeat")
    def repeat(handler: Handler) -> None:
        said = repr(str(handler.headers)) + json.dumps(handler.headers.items()) + str(dict(handler.headers.items()))
        handler.reply(said.encode(), echo=next(iter(handler.all(name)), ""))

    @api.on("/repeat-slowly")
    def repeat_slowly(handler: Handler) -> None:
        handler.head(transfer_encoding="chunked")
        for byte in str(handler.headers).encode():
            handler.chunk(bytes([byte]))
        handler.chunk(b"")

    api.on("/silent")(lambda handler: handler.wait_for_hangup())
    api.on("/broken")(lambda handler: handler.drop())
    record = tmp_path / "record.jsonl"
    answers: list[Any] = []
    own = {name.upper(): "placeholder", "x-other-key": "other-placeholder"}
    tunnel = sandbox.tunnel(api.url, headers={name: value}, record=record, read_timeout=0.5)
    with tunnel as url:
        for path in ("/repeat", "/repeat-slowly", "/silent", "/broken", "/v1/../x"):
            answers.append(sandbox.remote(ask, url, path, "POST", b"{}", own))
        in_memory = sandbox.remote(find_in_memory, patterns_of(list(spellings(key).values())))
        seen = sandbox.remote(environment_and_files)
    with pytest.raises(BadArgument) as caught, sandbox.tunnel(api.url, headers={name: value + "\n"}):
        pass
    assert [handler.all(name) for handler in api.asked] == [[value]] * 4
    assert [status for status, _, _ in answers] == [200, 200, 504, 502, 400]
    assert b"*" * 20 in answers[0][2]
    assert b"*" * 20 in answers[1][2]
    assert int(dict(answers[0][1])["content-length"]) == len(answers[0][2])
    assert in_memory == []
    texts = {
        "record": record.read_bytes(),
        "log": caplog.text.encode(),
        "answers": repr(answers).encode() + b"".join(body for _, _, body in answers),
        "sandbox": seen,
        "reprs": f"{tunnel!r} {tunnel} {tunnel.usage} {tunnel.limits} {caught.value!r} {vars(caught.value)}".encode(),
    }
    found = {(what, how) for what, text in texts.items() for how, one in spellings(key).items() if one in text}
    assert found == set()
    assert "placeholder" not in repr([entry.get("request_headers") for entry in entries(record)])


def test_secrets_are_told_by_their_names() -> None:
    """What a header is called says whether it is one; short values are left alone."""
    for name in ("Authorization", "x-api-key", "api-key", "x-goog-api-key", "Cookie", "X-Auth-Token", "my-secret"):
        assert is_secret_header(name)
    for name in ("anthropic-version", "anthropic-beta", "content-type", "openai-organization"):
        assert not is_secret_header(name)
    mask = SecretFilter({"anthropic-version": "2023-06-01", "x-key": "short", "x-api-key": None})
    assert mask.hide(b"2023-06-01 short") == b"2023-06-01 short"
    assert mask.hide_text("2023-06-01 \udc80 short") == "2023-06-01 \udc80 short"
    key = make_key()
    assert SecretFilter({"x-api-key": key}).hide_text(f"a {key} b") == f"a {'*' * len(key)} b"


ODD_KEY = 'sk/ant-+é"0123456789 abc~'


@pytest.mark.parametrize("before", ["", "x", "xy", "xyz"])
@pytest.mark.parametrize("after", ["", "z", "zyx"])
def test_a_secret_is_hidden_however_it_is_written(before: str, after: str) -> None:
    """In URLs, JSON and base64, both alphabets and wherever it stands: no run of it is to be read."""
    mask = SecretFilter({"authorization": f"Bearer {ODD_KEY}"})
    text = before + ODD_KEY + after
    data = text.encode("latin-1")
    whole: list[bytes] = [data, quote(text).encode(), quote(text, safe="").encode()]
    whole += [json.dumps(text).encode(), json.dumps(text).replace("/", "\\/").encode()]
    whole += [base64.b64encode(data), base64.urlsafe_b64encode(data)]
    for written in whole:
        hidden = mask.hide(written)
        assert len(hidden) == len(written)
        # At its ends base64 mixes it with its neighbours: a character each.
        kept = [run for run in re.split(rb"\*+", hidden) if run]
        assert sum(map(len, kept)) <= len(written) - len(ODD_KEY), (written, hidden)
        assert b"*" * len(ODD_KEY) in hidden, (written, hidden)


@given(st.lists(st.sampled_from(["secret-value-1", "secret-", "s", "x", "secret-value-", "1"]), max_size=20), st.data())
def test_a_secret_is_hidden_however_the_body_is_cut(parts: list[str], data: st.DataObject) -> None:
    """The same as in one piece, of the same length, and nothing is held back that can't be a secret."""
    mask = SecretFilter({"x-api-key": "secret-value-1"})
    body = "".join(parts).encode()
    masked, got, at = mask.stream(), b"", 0
    while at < len(body):
        size = data.draw(st.integers(1, 20))
        got += masked.feed(body[at : at + size])
        at = min(at + size, len(body))
        assert at - len(got) <= len("secret-value-1") - 1
    got += masked.feed(b"", last=True)
    assert got == body.replace(b"secret-value-1", b"*" * 14)
