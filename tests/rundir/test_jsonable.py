"""What may go into a record."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import json
import math
import pathlib
import threading
from collections import Counter, OrderedDict, defaultdict, namedtuple
from typing import Any

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentix_runner.errors import BadOutcome
from agentix_runner.rundir import jsonable
from agentix_runner.rundir.jsonable import patch_bytes, patch_text, to_jsonable, to_jsonable_or_repr


class Color(enum.Enum):
    RED = "red"
    NESTED = ("a", {"b": 1})


class Level(enum.IntEnum):
    HIGH = 3


class Text(str):
    """A str that lies about itself."""

    def __str__(self) -> str:
        return "a lie"


class Whole(int):
    def __int__(self) -> int:
        raise RuntimeError("no int")


class Real(float):
    def __float__(self) -> float:
        return math.nan


@dataclasses.dataclass
class Data:
    name: str
    inner: Any = None


@attrs.define
class Attrs:
    name: str
    inner: Any = None


Pair = namedtuple("Pair", "left right")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"resolved": True}, {"resolved": True}),
        ({None: 1, 2: 2, 1.5: 3, False: 4}, {"null": 1, "2": 2, "1.5": 3, "false": 4}),
        ({Color.RED: 1, Level.HIGH: 2}, {"red": 1, "3": 2}),
        ((1, (2, [3])), [1, [2, [3]]]),
        (Pair(1, 2), [1, 2]),
        ({3, 1, 2}, [1, 2, 3]),
        (frozenset({"b", "a"}), ["a", "b"]),
        ({1, "a", 2.5, None, (1, 2), "A"}, [None, 2.5, 1, [1, 2], "A", "a"]),
        (pathlib.PurePosixPath("/a/b"), "/a/b"),
        (Color.RED, "red"),
        (Color.NESTED, ["a", {"b": 1}]),
        (Level.HIGH, 3),
        (b"\xff\x00a", "\udcff\x00a"),
        (bytearray(b"abc"), "abc"),
        (datetime.date(2024, 2, 29), "2024-02-29"),
        (datetime.datetime(2024, 2, 29, 1, 2, tzinfo=datetime.timezone.utc), "2024-02-29T01:02:00+00:00"),
        (Data("a", Attrs("b", {1})), {"name": "a", "inner": {"name": "b", "inner": [1]}}),
        (np.float64(0.5), 0.5),
        (np.float32(0.5), 0.5),
        (np.int64(7), 7),
        (np.bool_(True), True),
        (np.str_("x"), "x"),
        (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        ({"a": np.array([True])}, {"a": [True]}),
        (Text("true text"), "true text"),
        (Whole(5), 5),
        (Real(0.25), 0.25),
        (OrderedDict(a=1), {"a": 1}),
        (defaultdict(list, a=[1]), {"a": [1]}),
        (Counter("aab"), {"a": 2, "b": 1}),
        ("\ud800\x00\r\n", "\ud800\x00\r\n"),
        (10**4299, 10**4299),
        (-(10**4299), -(10**4299)),
        (None, None),
        ("", ""),
        ({}, {}),
    ],
)
def test_becomes_plain(value: Any, expected: Any) -> None:
    """Whatever has an obvious meaning in JSON becomes exactly that, with plain types all the way down."""
    result = to_jsonable(value)

    assert result == expected
    assert _all_plain(result)
    assert json.loads(json.dumps(result, allow_nan=False)) == result


@pytest.mark.parametrize(
    ("value", "where", "why"),
    [
        ({"a": [0, 1, 2, object()]}, 'score["a"][3]', "an object, which can't be recorded"),
        ({"reward": math.nan}, 'score["reward"]', "nan"),
        ({"reward": -math.inf}, 'score["reward"]', "-inf"),
        ({"reward": np.float64("nan")}, 'score["reward"]', "nan"),
        ([np.array([1.0, math.inf])], "score[0][1]", "inf"),
        ({"a": {1 + 2j}}, 'score["a"]{...}', "a complex"),
        ({"a": lambda: 0}, 'score["a"]', "a function"),
        ({"a": Data}, 'score["a"]', "a type"),
        ({(1, 2): 3}, "score", "a key that is a tuple ((1, 2))"),
        ({b"a": 3}, "score", "a key that is a bytes"),
        ({math.nan: 3}, "score", "nan"),
        ({"a": {1: "x", "1": "y"}}, 'score["a"]', 'two keys that are both "1"'),
        ({"a": {True: "x", "true": "y"}}, 'score["a"]', 'two keys that are both "true"'),
        ({"n": 10**4300}, 'score["n"]', "more than 4300 digits"),
        ({"n": 10**100_000}, 'score["n"]', "more than 4300 digits"),
        ({"a\nb": object()}, 'score["a\\nb"]', "an object"),
        ({"k" * 200: object()}, f'score["{"k" * 57}..."]', "an object"),
        (np.zeros(100, dtype=np.longdouble)[0], "score", "a longdouble"),
        (object(), "score", "an object"),
    ],
)
def test_names_what_cannot_be_recorded(value: Any, where: str, why: str) -> None:
    """What JSON can't hold is an error of one line that names the place and says why."""
    with pytest.raises(BadOutcome) as caught:
        to_jsonable(value, "score")

    assert caught.value.where == where
    assert str(caught.value).startswith(where + " ")
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)


def _broken(name: str, base: type = object, **more: Any) -> Any:
    def broken(*args: Any, **kwargs: Any) -> Any:
        raise ZeroDivisionError("on purpose")

    return type("Broken", (base,), {name: broken, **more})


class _Meta(type):
    def __getattribute__(cls, name: str) -> Any:
        raise ZeroDivisionError("on purpose")


class _OfMeta(metaclass=_Meta):
    pass


class _Liar:
    __class__ = dict  # type: ignore[assignment]


class _OwnList:
    dtype = "int"

    def tolist(self) -> Any:
        return [self]


class _FakeData:
    __dataclass_fields__ = 3


@pytest.mark.parametrize(
    "value",
    [
        _OfMeta(),
        _Liar(),
        _OwnList(),
        _FakeData(),
        _broken("tolist", dtype="int")(),
        _broken("__str__", pathlib.PurePosixPath)("a"),
        _broken("isoformat", datetime.date)(2024, 1, 1),
        type("LyingDate", (datetime.date,), {"isoformat": lambda self: 5})(2024, 1, 1),
        attrs.make_class("Empty", {"x": attrs.field(init=False)})(),
    ],
)
def test_hostile_objects_are_bad_outcomes(value: Any) -> None:
    """An object whose methods raise or lie is a BadOutcome and never another exception; in notes text stands for it."""
    with pytest.raises(BadOutcome):
        to_jsonable({"a": value}, "score")
    notes = to_jsonable_or_repr({"a": value, "b": 1})
    assert notes["b"] == 1
    assert type(notes["a"]) is str or type(notes["a"][0]) is str


@pytest.mark.parametrize("method", ["items", "__iter__", "__len__", "keys", "__getitem__"])
def test_a_dict_is_read_past_its_own_methods(method: str) -> None:
    """A dict subclass gives what it really holds, whatever its methods do."""
    assert to_jsonable(_broken(method, dict)({"a": 1})) == {"a": 1}


@pytest.mark.parametrize("convert", [to_jsonable, to_jsonable_or_repr])
def test_an_interrupt_passes_through(convert: Any) -> None:
    """An interrupt that comes while a value's own code runs is not swallowed."""

    class Interrupting(datetime.date):
        def isoformat(self) -> str:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert({"a": Interrupting(2024, 1, 1)})


def test_cycles_are_named() -> None:
    """A value that holds itself is an error at the place where it does."""
    score: dict[str, Any] = {"a": [1]}
    score["a"].append(score)

    with pytest.raises(BadOutcome, match="contains itself") as caught:
        to_jsonable(score, "score")

    assert caught.value.where == 'score["a"][1]'


def test_what_is_shared_is_no_cycle() -> None:
    """The same object in two places is written in both."""
    shared = [1]

    assert to_jsonable({"a": shared, "b": shared}) == {"a": [1], "b": [1]}


def test_depth_is_limited() -> None:
    """A value may be nested 100 deep, and is an error beyond that."""

    def nested(depth: int) -> Any:
        value: Any = 1
        for _ in range(depth):
            value = [value]
        return value

    assert to_jsonable(nested(101)) == nested(101)
    with pytest.raises(BadOutcome, match="nested more than 100 deep"):
        to_jsonable(nested(102))
    with pytest.raises(BadOutcome, match="nested more than 100 deep"):
        to_jsonable(nested(50_000))
    assert "..." in json.dumps(to_jsonable_or_repr(nested(50_000)))


def test_size_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is too large in all is an error, also when it is small but refers to itself over and over."""
    monkeypatch.setattr(jsonable, "MAX_TEXT", 10_000)
    wide: Any = ["x"]
    for _ in range(60):
        wide = [wide, wide]

    with pytest.raises(BadOutcome, match="goes past 10,000 characters"):
        to_jsonable({"a": "x" * 5_000, "b": ["x" * 5_001]})
    with pytest.raises(BadOutcome, match="goes past"):
        to_jsonable(wide)
    with pytest.raises(BadOutcome, match="an array of 80,000 bytes"):
        to_jsonable(np.zeros(10_000))
    assert len(json.dumps(to_jsonable_or_repr(wide))) < 50_000
    assert to_jsonable_or_repr({"a": "x" * 20_000, "b": 1}) == {
        "a": "<left out: goes past 10,000 characters in all>",
        "...": "<left out: too large>",
    }


def test_a_large_text_in_a_small_dict_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The way for small scores is no way around the limit."""
    monkeypatch.setattr(jsonable, "MAX_TEXT", 100_000)

    with pytest.raises(BadOutcome, match="goes past"):
        to_jsonable({"output": "x" * 100_001})


def test_is_a_copy() -> None:
    """What was recorded does not change when the adapter changes its own object later."""
    for score in ({"a": 1}, {"a": [1], "b": {}}):
        result = to_jsonable(score)
        assert result == score
        assert result is not score
        score.clear()
        assert len(result) > 0


def test_a_score_that_another_thread_changes() -> None:
    """A dict that changes while it is read gives a copy or a BadOutcome."""
    score = {str(n): n for n in range(50)}
    done = threading.Event()

    def change() -> None:
        n = 0
        while not done.is_set():
            score[f"more{n % 10}"] = n
            score.pop(f"more{(n + 5) % 10}", None)
            n += 1

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(2_000):
            assert to_jsonable(score)["7"] == 7
    finally:
        done.set()
        thread.join()


def test_notes_keep_what_they_can() -> None:
    """In an agent's notes what JSON can't hold becomes its repr, and the rest stays."""
    notes = {
        "cost": math.nan,
        "model": object,
        ("a", 1): "x",
        "('a', 1)": "y",
        1: "z",
        "ok": [1, {"deep": {2}}, 1 + 2j],
        "long": bytes(5),
    }

    assert to_jsonable_or_repr(notes) == {
        "cost": "nan",
        "model": "<class 'object'>",
        "('a', 1)": "x",
        "('a', 1) (2)": "y",
        "1": "z",
        "ok": [1, {"deep": [2]}, "(1+2j)"],
        "long": "\0" * 5,
    }


def test_notes_are_bounded() -> None:
    """A repr takes at most 1,000 characters, and one that raises is replaced by the type's name."""

    class Chatty:
        def __repr__(self) -> str:
            return "x" * 1_000_000

    class Mute:
        def __repr__(self) -> str:
            raise RuntimeError

    chatty, mute = to_jsonable_or_repr([Chatty(), Mute()])

    assert set(chatty) <= {"x", "."}
    assert len(chatty) <= 1000
    assert "Mute" in mute
    cycle: list[Any] = ["x" * 900, "y" * 900]
    cycle.append(cycle)
    assert len(to_jsonable_or_repr(cycle)[2]) == 1000
    assert to_jsonable_or_repr(math.inf) == "inf"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""),
        ("", ""),
        ("a\r\nb\x00\ud800", "a\r\nb\x00\ud800"),
        (b"caf\xe9\r\n", "caf\udce9\r\n"),
        (bytearray(b"x"), "x"),
        (memoryview(b"x"), "x"),
        (Text("true text"), "true text"),
    ],
)
def test_patch_is_kept(value: Any, text: str) -> None:
    """A patch is kept to the byte: line ends, NUL, what isn't UTF-8, no newline at its end."""
    assert patch_text(value) == text
    assert type(patch_text(value)) is str


@pytest.mark.parametrize("value", [0, False, ["diff"], {"patch": ""}, object()])
def test_patch_of_another_type(value: Any) -> None:
    """A patch that is neither text nor bytes is an error that names it."""
    with pytest.raises(BadOutcome, match=r"patch is an? .*: return a unified diff as str or bytes") as caught:
        patch_text(value)

    assert caught.value.where == "patch"


def test_patch_that_is_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """A patch can't fill the disk."""
    monkeypatch.setattr(jsonable, "MAX_TEXT", 10)

    assert patch_text("x" * 10) == "x" * 10
    with pytest.raises(BadOutcome, match="patch has 11 characters: at most 10 are kept"):
        patch_text(b"x" * 11)


@given(st.binary())
def test_bytes_come_back(data: bytes) -> None:
    """A patch given as bytes is those bytes again when it is written."""
    assert patch_bytes(patch_text(data)) == data


def test_lone_surrogates_are_written() -> None:
    """A surrogate that stands for no byte does not keep the bytes around it from coming back."""
    assert patch_bytes("a\udcff\ud800\udc80b\u20ac") == b"a\xff\xed\xa0\x80\x80b\xe2\x82\xac"


_texts = st.text(st.characters(exclude_categories=()))
_atoms = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | _texts
_values = st.recursive(
    _atoms | st.binary() | st.sets(st.integers()) | st.dates(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(_texts | st.integers(), inner),
)


@given(_values)
def test_lenient_and_strict_agree(value: Any) -> None:
    """What can be recorded is the same in both manners, and doing it twice changes nothing."""
    try:
        strict = to_jsonable(value)
    except BadOutcome:
        assert to_jsonable_or_repr(value) is not None
        return
    assert _all_plain(strict)
    assert to_jsonable(strict) == strict
    assert to_jsonable_or_repr(value) == strict


@given(st.recursive(_atoms | st.floats() | st.complex_numbers(), lambda inner: st.lists(inner) | st.sets(_atoms)))
def test_notes_are_always_json(value: Any) -> None:
    """Whatever the notes are, they can be written."""
    json.dumps(to_jsonable_or_repr(value), allow_nan=False)


def _all_plain(value: Any) -> bool:
    if type(value) is dict:
        return all(type(key) is str and _all_plain(item) for key, item in value.items())
    if type(value) is list:
        return all(map(_all_plain, value))
    return value is None or type(value) in (str, int, float, bool)
