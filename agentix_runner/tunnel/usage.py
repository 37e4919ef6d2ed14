"""Tokens that a model API reports in its answers, summed: Anthropic's and OpenAI's shapes, streamed or not."""

from __future__ import annotations

import json
from typing import Any

from attrs import frozen

from ..remote.wire.codec import Malformed, check_depth

_JSON_LIMIT = 16 * 1024 * 1024
_LINE_LIMIT = 4 * 1024 * 1024
_MOST = 10**15

_INPUT = ("input_tokens", "prompt_tokens")
_OUTPUT = ("output_tokens", "completion_tokens")
# Where they are told in this way, they are among the input tokens.
_CACHED = ("input_tokens_details", "prompt_tokens_details")


@frozen
class Usage:
    """What went through a tunnel: how many `requests` the upstream answered, whatever the answer, and tokens.

    `input_tokens` are those that were not read from a cache or written to one; `cache_read_tokens` and
    `cache_write_tokens` are the others.
    """

    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.requests + other.requests,
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cache_read_tokens + other.cache_read_tokens,
            self.cache_write_tokens + other.cache_write_tokens,
        )


class UsageReader:
    """Reads along with one answer. What it can't make sense of it leaves alone."""

    def __init__(self, content_type: str) -> None:
        kind = content_type.partition(";")[0].strip().lower()
        self._streamed = kind == "text/event-stream"
        self._reads = self._streamed or kind.endswith("json")
        self._buffer = bytearray()
        self._skipping = False
        self._found: dict[str, int] = {}

    def feed(self, data: bytes) -> None:
        """A part of the body, not compressed."""
        if not self._reads:
            return
        self._buffer += data
        if not self._streamed:
            if len(self._buffer) > _JSON_LIMIT:
                self._reads = False
                self._buffer = bytearray()
            return
        if b"\n" in data:
            *lines, rest = self._buffer.split(b"\n")
            self._buffer = rest
            for line in lines:
                if not self._skipping:
                    self._take_line(line)
                self._skipping = False
        if len(self._buffer) > _LINE_LIMIT:
            self._skipping = True
            self._buffer = bytearray()

    def usage(self) -> Usage:
        """What the answer has reported, so far or in all."""
        if self._reads and not self._streamed and self._buffer:
            self._take_json(bytes(self._buffer))
            self._buffer = bytearray()
        elif self._streamed and self._buffer and not self._skipping:
            self._take_line(self._buffer)
            self._buffer = bytearray()
        found = self._found
        cached = found.get("cached_tokens", 0)
        return Usage(
            1,
            max(0, _first(found, _INPUT) - cached),
            _first(found, _OUTPUT),
            found.get("cache_read_input_tokens", 0) + cached,
            found.get("cache_creation_input_tokens", 0),
        )

    def _take_line(self, line: bytearray) -> None:
        if line.startswith(b"data:") and b'"usage"' in line:
            self._take_json(bytes(line[5:]))

    def _take_json(self, data: bytes) -> None:
        if b'"usage"' not in data:
            return
        try:
            check_depth(data)
            value = json.loads(data)
        except (ValueError, RecursionError, Malformed):
            return
        if not isinstance(value, dict):
            return
        # In a stream they stand inside the message (Anthropic's first event) or the response (OpenAI's last).
        for holder in (value, value.get("message"), value.get("response")):
            if isinstance(holder, dict) and isinstance(holder.get("usage"), dict):
                self._note(holder["usage"])

    def _note(self, usage: dict[str, Any]) -> None:
        counts = {name: usage.get(name) for name in (*_INPUT, *_OUTPUT)}
        counts |= {name: usage.get(name) for name in ("cache_read_input_tokens", "cache_creation_input_tokens")}
        for name in _CACHED:
            details = usage.get(name)
            if isinstance(details, dict):
                counts["cached_tokens"] = details.get("cached_tokens")
        for name, count in counts.items():
            if type(count) is int and 0 <= count < _MOST:
                # Each report of a stream is of all that went before it.
                self._found[name] = max(count, self._found.get(name, 0))


def _first(found: dict[str, int], names: tuple[str, ...]) -> int:
    return next((found[name] for name in names if name in found), 0)
