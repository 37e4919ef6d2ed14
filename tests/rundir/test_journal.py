"""The journal: whole lines, or none."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentix_runner.errors import BadOutcome, JournalError
from agentix_runner.records import Failure, Rollout
from agentix_runner.rundir import journal as journal_module
from agentix_runner.rundir.journal import BrokenLine, Journal, decode, encode, read_at, scan
from agentix_runner.rundir.jsonable import to_jsonable, to_jsonable_or_repr

_texts = st.text(st.characters(exclude_categories=()))
_floats = st.floats(allow_nan=False, allow_infinity=False)
_json = st.recursive(
    st.none() | st.booleans() | st.integers() | _floats | _texts,
    lambda inner: st.lists(inner) | st.dictionaries(_texts, inner),
    max_leaves=10,
)
_bags = st.dictionaries(_texts, _json, max_size=3)
_rollouts = st.builds(
    Rollout,
    instance_id=_texts,
    patch=_texts,
    score=st.none() | _bags,
    agent_exit=st.none() | st.integers(),
    error=st.none() | _texts,
    skipped=st.none() | _texts,
    duration_s=_floats,
    attempt=st.integers(0, 100),
    model=st.none() | _texts,
    started_at=st.none() | _floats,
    phases=st.lists(st.tuples(_texts, _floats, _floats), max_size=3),
    info=_bags,
    failure=st.none() | st.builds(Failure, phase=_texts, type=_texts, message=_texts, traceback=_texts),
)


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    fd = os.open(tmp_path / "rollouts.jsonl", os.O_RDWR | os.O_CREAT | os.O_APPEND)
    journal = Journal(fd, str(tmp_path / "rollouts.jsonl"))
    yield journal
    journal.close()


def _read(journal: Journal) -> list[Rollout]:
    return [rollout for _, rollout in scan(journal.fd)]


@given(_rollouts)
@example(
    Rollout(
        "\ud83d\ude00", patch="\ud83d\ude00 is not \U0001f600 nor \ue000", score={"\ud83d\ude00": 1, "\U0001f600": 2}
    )
)
@example(Rollout("a", patch="\x00\r\n\u2028\udcff\ud800", phases=[("agent", 0, 1)]))
def test_read_equals_written(rollout: Rollout) -> None:
    """A rollout that was written reads back equal, whatever text it holds, in one line of ASCII."""
    line = encode(rollout)
    read = decode(line)

    assert read == rollout
    assert line.isascii()
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert all(type(phase) is tuple for phase in read.phases)


@given(_rollouts)
def test_cut_lines_are_no_rollouts(rollout: Rollout) -> None:
    """No beginning of a line is taken for a rollout."""
    line = encode(rollout)

    for end in {0, 1, len(line) // 2, len(line) - 2}:
        with pytest.raises(BrokenLine):
            decode(line[:end])


@given(st.dictionaries(st.text(), _json | st.sets(st.integers()) | st.binary() | st.dates()))
def test_plain_is_what_is_read(value: Any) -> None:
    """What `to_jsonable` makes of a value is what a reload of the journal gives."""
    try:
        score = to_jsonable(value)
    except BadOutcome:
        score = None
    rollout = Rollout("a", score=score, info=to_jsonable_or_repr(value))

    assert decode(encode(rollout)) == rollout


@pytest.mark.parametrize(
    "change",
    [
        {"score": {"a": float("nan")}},
        {"score": {"a": {1, 2}}},
        {"score": {"a": object()}},
        {"score": [1]},
        {"info": None},
        {"info": {"n": 10**5000}},
        {"patch": None},
        {"patch": b"x"},
        {"error": ValueError("x")},
        {"attempt": "1"},
        {"phases": [("agent", 0.0)]},
        {"phases": [("agent", 0.0, "1")]},
        {"phases": [(1, 0.0, 1.0)]},
        {"failure": Failure("agent", "X", None)},  # type: ignore[arg-type]
        {"started_at": "now"},
    ],
)
def test_what_would_not_be_read_is_not_written(change: dict[str, Any]) -> None:
    """A rollout whose line could not be read again is an error before anything is written."""
    rollout = Rollout("some-id", **change)

    with pytest.raises(BadOutcome, match="rollout of 'some-id'"):
        encode(rollout)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\n",
        b"null\n",
        b"[]\n",
        b'"x"\n',
        b"{}\n",
        b'{"instance_id": null, "attempt": 0}\n',
        b'{"instance_id": "a", "patch": null}\n',
        b'{"instance_id": "a", "attempt": "0"}\n',
        b'{"instance_id": "a", "attempt": 0, "phases": 5}\n',
        b'{"instance_id": "a", "attempt": 0, "phases": [[1, 2, 3]]}\n',
        b'{"instance_id": "a", "attempt": 0, "info": []}\n',
        b'{"instance_id": "a", "duration_s": "1"}\n',
        b"\xff\xfe\n",
        b"\x00" * 100 + b"\n",
        b"[" * 100_000 + b"\n",
        b'{"instance_id": "a", "attempt": 1' + b"0" * 5000 + b"}\n",
    ],
)
def test_odd_lines_are_broken_lines(line: bytes) -> None:
    """A line that is no rollout is a BrokenLine and never another exception."""
    with pytest.raises(BrokenLine):
        decode(line)


def test_unknown_fields_are_ignored() -> None:
    """A line of a later version that knows more fields can be read."""
    assert decode(
        b'{"instance_id": "a", "later": 1, "failure": {"phase": "p", "type": "t", "message": "m", "x": 1}}\n'
    ) == (Rollout("a", failure=Failure("p", "t", "m")))


def test_appends_and_tells_where(journal: Journal) -> None:
    """Lines are appended whole, and each can be read by its place."""
    rollouts = [Rollout(str(n), patch="x" * n) for n in range(5)]

    places = journal.append([encode(rollout) for rollout in rollouts[:2]])
    places += journal.append([encode(rollout) for rollout in rollouts[2:]])

    assert [read_at(journal.fd, place) for place in places] == rollouts
    assert [line for line, _ in scan(journal.fd)] == places
    assert journal.size == os.fstat(journal.fd).st_size


@pytest.mark.parametrize("torn", [b"{", encode(Rollout("torn"))[:-1], b"\x00" * 50, b"{}\n", b"\x00\x00\n"])
def test_a_torn_end_is_left_out(journal: Journal, torn: bytes) -> None:
    """A last line that is not whole, or no rollout, is left out."""
    journal.append([encode(Rollout("a")), encode(Rollout("b"))])
    os.write(journal.fd, torn)

    assert _read(journal) == [Rollout("a"), Rollout("b")]


def test_a_broken_line_in_the_middle_is_named(journal: Journal) -> None:
    """A broken line that others follow is an error that says which it is."""
    journal.append([encode(Rollout("a"))])
    os.write(journal.fd, b'{"instance_id": "b", "att\n' + encode(Rollout("c")))

    with pytest.raises(BrokenLine, match=r"line 2 is broken \(not JSON: "):
        _read(journal)


def test_a_failed_write_leaves_nothing(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    """When a write fails half way, what it wrote is cut off, and the next line is whole."""
    journal.append([encode(Rollout("a"))])

    def half(fd: int, data: bytes) -> None:
        os.write(fd, data[: len(data) // 2])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(journal_module, "write_all", half)
        with pytest.raises(JournalError, match="No space left on device") as caught:
            journal.append([encode(Rollout("b")), encode(Rollout("c"))])
    assert caught.value.path == journal.path
    assert _read(journal) == [Rollout("a")]
    assert os.fstat(journal.fd).st_size == journal.size

    journal.append([encode(Rollout("d"))])
    assert _read(journal) == [Rollout("a"), Rollout("d")]


def test_a_write_that_can_not_be_undone_at_once(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the cut fails too, it is made up for before the next line, so that no line is broken by another."""
    journal.append([encode(Rollout("a"))])

    def half(fd: int, data: bytes) -> None:
        os.write(fd, data[: len(data) // 2])
        raise OSError(5, "Input/output error")

    def no_cut(fd: int, size: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(journal_module, "write_all", half)
        patch.setattr(os, "ftruncate", no_cut)
        with pytest.raises(JournalError, match="Input/output error"):
            journal.append([encode(Rollout("b"))])
        with pytest.raises(JournalError, match="Input/output error"):
            journal.append([encode(Rollout("b"))])
    assert os.fstat(journal.fd).st_size > journal.size

    journal.append([encode(Rollout("c"))])
    assert _read(journal) == [Rollout("a"), Rollout("c")]


def test_a_failed_sync_is_a_failed_write(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line that may not be on the disk is not in the journal."""

    def no_sync(fd: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(journal_module, "_sync", no_sync)
        with pytest.raises(JournalError, match="Input/output error"):
            journal.append([encode(Rollout("a"))])

    assert _read(journal) == []
    assert journal.append([encode(Rollout("b"))])[0].start == 0


def test_lines_are_synced_before_append_returns(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    """All lines of one append are synced, once, after they were written."""
    sizes = []
    monkeypatch.setattr(journal_module, "_sync", lambda fd: sizes.append(os.fstat(fd).st_size))

    journal.append([encode(Rollout("a")), encode(Rollout("b"))])

    assert sizes == [journal.size]


def test_a_deleted_journal_is_an_error(journal: Journal) -> None:
    """A journal that somebody deleted takes no more lines: they would be lost without a word."""
    os.unlink(journal.path)

    with pytest.raises(JournalError, match="it was deleted"):
        journal.append([encode(Rollout("a"))])


def test_lines_are_for_other_tools_too() -> None:
    """A line is a JSON object with the fields of a rollout, in their order."""
    data = json.loads(encode(Rollout("a", phases=[("agent", 0.0, 1.0)], failure=Failure("agent", "X", "m"))))

    assert list(data) == [
        "instance_id",
        "patch",
        "score",
        "agent_exit",
        "error",
        "skipped",
        "duration_s",
        "attempt",
        "model",
        "started_at",
        "phases",
        "info",
        "failure",
    ]
    assert data["phases"] == [["agent", 0.0, 1.0]]
    assert data["failure"]["type"] == "X"
