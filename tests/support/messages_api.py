"""A Messages API for tests, on this machine's loopback: it answers by script, streaming or not, and counts.

Each answer is chosen by how many tool results the request holds: the first where there is none yet, and so on.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

INPUT_TOKENS, OUTPUT_TOKENS = 1000, 20


class MessagesApi:
    """`steps` are lists of content blocks: `say(...)`, `use(...)`. `status` other than 200 is given to all.

    `silent`: takes requests and never answers.
    """

    def __init__(self, steps: list[list[dict[str, Any]]] | None = None, *, status: int = 200, silent: bool = False):
        self.steps = steps or [[say("done")]]
        self.status = status
        self.silent = silent
        self.requests: list[dict[str, Any]] = []
        self.keys: set[str | None] = set()
        self.url = ""
        self.over = threading.Event()

    def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        results = 0
        for message in body.get("messages", []):
            if isinstance(message.get("content"), list):
                results += sum(block.get("type") == "tool_result" for block in message["content"])
        blocks = self.steps[min(results, len(self.steps) - 1)] if body.get("tools") else [say("a title")]
        uses_tool = any(block["type"] == "tool_use" for block in blocks)
        return {
            "id": f"msg_{len(self.requests)}",
            "type": "message",
            "role": "assistant",
            "model": body.get("model", ""),
            "content": blocks,
            "stop_reason": "tool_use" if uses_tool else "end_turn",
            "stop_sequence": None,
            "usage": {"input_tokens": INPUT_TOKENS, "output_tokens": OUTPUT_TOKENS},
        }


def say(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def use(name: str, **given: Any) -> dict[str, Any]:
    return {
        "type": "tool_use",
        "id": f"toolu_{name}_{abs(hash(json.dumps(given, sort_keys=True)))}",
        "name": name,
        "input": given,
    }


@contextlib.contextmanager
def serving(api: MessagesApi) -> Iterator[MessagesApi]:
    """Inside, `api.url` answers."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: Any) -> None:
            """Tests read what they want from `api`."""

        def do_HEAD(self) -> None:
            self._send(200, b"")

        def do_GET(self) -> None:
            self._send(404, b"{}")

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            api.requests.append(body)
            api.keys.add(self.headers["x-api-key"])
            if api.silent:
                api.over.wait(60)
                self.close_connection = True
            elif api.status != 200:
                error = {"type": "authentication_error" if api.status == 401 else "overloaded_error", "message": "no"}
                self._send(api.status, json.dumps({"type": "error", "error": error}).encode())
            elif "count_tokens" in self.path:
                self._send(200, json.dumps({"input_tokens": INPUT_TOKENS}).encode())
            elif body.get("stream"):
                self._stream(api.answer(body))
            else:
                self._send(200, json.dumps(api.answer(body)).encode())

        def _send(self, status: int, data: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def _stream(self, message: dict[str, Any]) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for event in events(message):
                data = f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()
                self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
                self.wfile.flush()
            self.wfile.write(b"0\r\n\r\n")

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.block_on_close = False
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    api.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield api
    finally:
        api.over.set()
        server.shutdown()
        server.server_close()
        thread.join(10)


def events(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """`message` as the events of a stream."""
    usage = message["usage"]
    yield {
        "type": "message_start",
        "message": {**message, "content": [], "stop_reason": None, "usage": {**usage, "output_tokens": 1}},
    }
    for index, block in enumerate(message["content"]):
        if block["type"] == "text":
            empty, delta = {**block, "text": ""}, {"type": "text_delta", "text": block["text"]}
        else:
            empty = {**block, "input": {}}
            delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
        yield {"type": "content_block_start", "index": index, "content_block": empty}
        yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    yield {
        "type": "message_delta",
        "delta": {"stop_reason": message["stop_reason"], "stop_sequence": None},
        "usage": {"output_tokens": usage["output_tokens"]},
    }
    yield {"type": "message_stop"}
