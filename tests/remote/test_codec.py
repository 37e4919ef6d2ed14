from __future__ import annotations

import json
import math
import struct
import threading
from contextlib import suppress
from typing import Any

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentix_runner.remote.wire import codec
from agentix_runner.remote.wire.codec import Malformed, Unsendable, decode, encode

from ..support import wire_functions as remote

SENDABLE_CHARACTERS = st.one_of(
    st.characters(exclude_categories=("Cs",)), st.integers(0xDC80, 0xDCFF).map(chr), st.sampled_from('$"\\[]{}\x00')
)
TEXT = st.text(SENDABLE_CHARACTERS)
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.binary(), TEXT, st.complex_numbers(), st.just("$")
)
KEYS = st.one_of(st.integers(), TEXT, st.binary(), st.booleans(), st.just("$"), st.tuples(st.integers(), TEXT))
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner),
        st.lists(inner).map(tuple),
        st.sets(KEYS),
        st.frozensets(KEYS),
        st.dictionaries(TEXT, inner),
        st.dictionaries(KEYS, inner),
    ),
    max_leaves=30,
)


def message(header: bytes, *blobs: bytes) -> bytes:
    """A message whose JSON is `header`, whatever that is."""
    sizes = b"".join(struct.pack(">Q", len(blob)) for blob in blobs)
    return struct.pack(">II", len(header), len(blobs)) + sizes + header + b"".join(blobs)


def sent(value: Any) -> bytes:
    return b"".join(encode(value))


def same(a: Any, b: Any) -> bool:
    """Equal, of the same types all the way down, with NaN equal to itself and -0.0 not to 0.0."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return repr(a) == repr(b)
    if isinstance(a, complex):
        return same(a.real, b.real) and same(a.imag, b.imag)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return same(list(a), list(b)) and same(list(a.values()), list(b.values()))
    if isinstance(a, (set, frozenset)):
        return bool(a == b) and sorted(map(repr, a)) == sorted(map(repr, b))
    return bool(a == b)


@given(VALUES)
@settings(deadline=None)
def test_plain_data_comes_back_as_it_was(value: Any) -> None:
    """Every value of plain types comes back equal and of the same types, in the same order."""
    assert same(decode(sent(value)), value)


@pytest.mark.parametrize(
    "value",
    [
        "x" * 5000,
        "é\udcff" * 5000,
        {"k" * 5000: 1},
        10**4000,
        -(10**5000),
        (1 << 13200) - 1,
        [[]] * 1000,
        {"$": "tuple", "v": [1]},
        {"a": {"$": 1}},
        -0.0,
    ],
    ids=lambda value: repr(value)[:20] if not isinstance(value, int) else "int",
)
def test_large_and_misleading_values_come_back_as_they_were(value: Any) -> None:
    """Long text, huge integers and dicts that look like tags come back as they were."""
    assert same(decode(sent(value)), value)


def test_rich_objects_travel_as_what_they_are_made_of() -> None:
    """A dataclass is a dict of its fields, an enum its value, a path and a date text, a named tuple a tuple."""
    value = decode(sent(remote.make_report()))
    assert list(value) == ["name", "when", "day", "path", "colour", "point", "parts", "best", "by_number"]
    assert value["when"] == "2024-02-29T12:30:01.000005+00:00"
    assert (value["path"], value["colour"], value["point"]) == ("x/y", "r", (3, 4))
    assert value["by_number"] == {7: b"\xff\x00"}
    assert same(decode(sent([numpy.float64(1.5), numpy.int32(7), bytearray(b"x")])), [1.5, 7, b"x"])


def test_bytes_are_not_copied_into_the_json() -> None:
    """Bytes travel beside the JSON, and not even as a copy."""
    data = bytes(100_000)
    parts = encode({"a": data})
    assert len(parts) == 2
    assert parts[1] is data


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"a": [1, object()]}, "result['a'][1] is a builtins.object, which can't be sent"),
        ([{"x": {1: threading.Lock()}}], "result[0]['x'][1] is a _thread.lock"),
        ((x for x in ()), "result is a builtins.generator"),
        (["a\ud800b"], r"result[0] has the lone surrogate '\ud800'"),
        (numpy.zeros(2), "result is a numpy.ndarray"),
    ],
)
def test_what_cant_be_sent_is_named(value: Any, text: str) -> None:
    """The error says where in the result the culprit is, and what it is."""
    with pytest.raises(Unsendable) as caught:
        encode(value)
    assert text in str(caught.value)


def test_a_value_that_holds_itself_is_refused() -> None:
    """A cycle ends in an error, and not in an overflow."""
    value: list[Any] = []
    value.append(value)
    with pytest.raises(Unsendable, match="nested deeper than 100 levels, or holds itself"):
        encode(value)


def test_what_the_sender_accepts_is_not_too_deep_for_the_receiver() -> None:
    """The deepest value that can be sent can also be received, with each kind of container."""
    for wrap in (lambda v: [v], lambda v: (v,), lambda v: {1: v}, lambda v: {"$": v}, lambda v: {"a": v}):
        value: Any = None
        deepest = None
        for _ in range(codec.MAX_DEPTH + 1):
            value = wrap(value)
            try:
                deepest = sent(value)
            except Unsendable:
                break
            decode(deepest)
        else:
            pytest.fail("nothing was too deep")
        assert deepest is not None


@pytest.mark.parametrize("opening", [b"[", b'{"a":', b'[{"a":['])
@pytest.mark.parametrize("size", [300, 100_000])
def test_deep_nesting_is_refused_before_it_is_parsed(
    opening: bytes, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """JSON that is nested too deep never reaches the parser."""
    monkeypatch.setattr(json, "loads", lambda *_, **__: pytest.fail("parsed"))
    closing = opening.replace(b"[", b"]").replace(b"{", b"}").replace(b'"a":', b"")[::-1]
    with pytest.raises(Malformed, match="nested deeper than 200"):
        decode(message(opening * size + b"1" + closing * size))


def test_brackets_in_text_are_no_nesting() -> None:
    """Only what is outside of text counts, whatever is escaped in it."""
    value = ["[" * 1000, '"[{\\' * 200, {'"': "]" * 300}]
    assert decode(sent(value)) == value


@pytest.mark.parametrize(
    ("header", "text"),
    [
        (b"NaN", "NaN"),
        (b"[Infinity]", "Infinity"),
        (b"-Infinity", "-Infinity"),
        (b'{"a":1,"a":2}', "same key twice"),
        (b'{"a":{"b":1,"b":1}}', "same key twice"),
        (b"[1", "don't match"),
        (b"][", "don't match"),
        (b"{]", "not the JSON"),
        (b"", "not the JSON"),
        (b"1 2", "not the JSON"),
        (b'"\xc3\xa9"', "not the JSON"),
        (b'"\\ud800"', "lone surrogate"),
        (b'{"\\udfff":1}', "lone surrogate"),
        (b'["\\udc7f"]', "lone surrogate"),
        (b'{"$":"object","v":"os.system"}', "unknown tag 'object'"),
        (b'{"$":{"a":1},"v":1}', "unknown tag"),
        (b'{"$":[],"v":1}', "unknown tag"),
        (b'{"v":1,"$":"tuple"}', "not of the form"),
        (b'{"$":"tuple"}', "not of the form"),
        (b'{"$":"tuple","v":1,"w":2}', "not of the form"),
        (b'{"$":"tuple","v":"ab"}', "not a list"),
        (b'{"$":"tuple","v":{"a":1}}', "not a list"),
        (b'{"$":"set","v":[1,1]}', "same item twice"),
        (b'{"$":"set","v":[[1]]}', "not the JSON"),
        (b'{"$":"dict","v":[[1,2],[1,3]]}', "same key twice"),
        (b'{"$":"dict","v":[[1,2,3]]}', "not the JSON"),
        (b'{"$":"dict","v":[[[],2]]}', "not the JSON"),
        (b'{"$":"set","v":[%s]}' % b",".join(b"%d" % (n * (2**61 - 1)) for n in range(300)), "the same hash"),
        (b'{"$":"dict","v":[%s]}' % b",".join(b"[%d,1]" % (n * (2**61 - 1)) for n in range(300)), "the same hash"),
        (b'{"$":"float","v":"1.5"}', "neither NaN nor"),
        (b'{"$":"float","v":[]}', "neither NaN nor"),
        (b'{"$":"complex","v":["a","b"]}', "not the JSON"),
        (b'{"$":"complex","v":[1,2]}', "not numbers"),
        (b'{"$":"int","v":"12"}', "not hexadecimal"),
        (b'{"$":"int","v":"0x1 "}', "not hexadecimal"),
        (b'{"$":"int","v":5}', "not hexadecimal"),
        (b'{"$":"bytes","v":0}', "not there"),
        (b'{"$":"bytes","v":-1}', "not there"),
        (b'{"$":"bytes","v":true}', "not there"),
        (b'{"$":"bytes","v":"0"}', "not there"),
        (b"1" * 5000, "integer of 5000 digits"),
        (b"[" + b"9" * 5_000_000 + b"]", "integer of 5000000 digits"),
        (b'{"$":"int","v":"0x' + b"f" * 2_000_000 + b'"}', "too long"),
    ],
    ids=lambda value: value[:24].decode("latin-1") if isinstance(value, bytes) else "",
)
def test_malformed_json_is_refused(header: bytes, text: str) -> None:
    """Whatever breaks the rules is Malformed, and no other error."""
    with pytest.raises(Malformed) as caught:
        decode(message(header))
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "at least 8 wanted"),
        (b"\0" * 7, "at least 8 wanted"),
        (struct.pack(">II", 2**32 - 1, 0), "the limit is"),
        (struct.pack(">II", 5, 0) + b"null", "at least 13 wanted"),
        (struct.pack(">II", 4, 2**32 - 1) + b"null", "wanted"),
        (message(b"null") + b"x", "13 bytes: 12 wanted"),
        (message(b"null", b"abc")[:-1], "wanted"),
        (struct.pack(">IIQ", 4, 1, 2**64 - 1) + b"null", "wanted"),
        (message(b'[{"$":"bytes","v":0},{"$":"bytes","v":0}]', b"abc"), "two references"),
        (message(b'{"$":"text","v":0}', b"\xff"), "not the JSON"),
        (message(b'{"$":"text","v":0}', b"\xed\xa0\x80"), "lone surrogate"),
    ],
)
def test_malformed_messages_are_refused(data: bytes, text: str) -> None:
    """Lengths that don't add up and bytes that are not what they should be are Malformed."""
    with pytest.raises(Malformed) as caught:
        decode(data)
    assert text in str(caught.value)


@given(st.binary(max_size=200), st.lists(st.binary(max_size=5), max_size=2))
def test_any_bytes_are_a_value_or_malformed(header: bytes, blobs: list[bytes]) -> None:
    """Decoding whatever bytes gives a value or Malformed."""
    for data in (header, message(header, *blobs)):
        with suppress(Malformed):
            decode(data)


@given(st.text(alphabet='[]{}",:0123456789.-e$v\\ntrufals NaIity"', max_size=60), st.lists(st.binary(max_size=5)))
@settings(max_examples=300)
def test_anything_like_json_is_a_value_or_malformed(header: str, blobs: list[bytes]) -> None:
    """Decoding text that is nearly JSON gives a value or Malformed."""
    with suppress(Malformed):
        decode(message(header.encode(), *blobs))


def test_nan_travels_by_tag() -> None:
    """A NaN that was really returned comes back, and the JSON of it is valid."""
    assert math.isnan(decode(sent(math.nan)))
    assert b'{"$":"float","v":"nan"}' in sent(math.nan)
