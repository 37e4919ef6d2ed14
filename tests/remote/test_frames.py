from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentix_runner.remote.wire import frames
from agentix_runner.remote.wire.frames import Frame, FrameError, FrameReader, Truncated


def reader_of(data: bytes, step: int = 1 << 20) -> FrameReader:
    """A reader that gets `data` in pieces of at most `step` bytes."""
    pieces = [data[start : start + step] for start in range(0, len(data), step)]

    def read(size: int) -> bytes:
        if not pieces:
            return b""
        piece = pieces.pop(0)
        if len(piece) > size:
            pieces.insert(0, piece[size:])
        return piece[:size]

    return FrameReader(read)


def taken(reader: FrameReader) -> list[tuple[int, int, bytes, bool]]:
    found = []
    while (frame := reader.next()) is not None:
        found.append((frame.kind, frame.stream, bytes(frame.payload), frame.end))
    return found


@pytest.mark.parametrize(
    ("frame", "data"),
    [
        (Frame(frames.HELLO, 0, b"{}"), b"\x01\x01\x00\x00\x00\x00\x00\x00\x00\x02{}"),
        (Frame(frames.CALL, 1, b"ab", end=False), b"\x02\x00\x00\x00\x00\x01\x00\x00\x00\x02ab"),
        (Frame(frames.RESULT, 258, b"r"), b"\x03\x01\x00\x00\x01\x02\x00\x00\x00\x01r"),
        (Frame(frames.ERROR, 2**32 - 1, b""), b"\x04\x01\xff\xff\xff\xff\x00\x00\x00\x00"),
        (Frame(frames.LOG, 0, b"\x00\xff"), b"\x05\x01\x00\x00\x00\x00\x00\x00\x00\x02\x00\xff"),
        (frames.credit(7, 65536), b"\x06\x01\x00\x00\x00\x07\x00\x00\x00\x04\x00\x01\x00\x00"),
        (Frame(frames.HEAD, 2**31, b"h"), b"\x07\x01\x80\x00\x00\x00\x00\x00\x00\x01h"),
        (Frame(frames.BODY, 2**31 + 1, b"b", end=False), b"\x08\x00\x80\x00\x00\x01\x00\x00\x00\x01b"),
        (Frame(frames.RESET, 2**31, b"why"), b"\x09\x01\x80\x00\x00\x00\x00\x00\x00\x03why"),
    ],
)
def test_the_bytes_of_each_kind_of_frame_never_change(frame: Frame, data: bytes) -> None:
    """Every kind of frame has exactly these bytes, in both directions."""
    assert frame.to_bytes() == data
    assert taken(reader_of(data)) == [(frame.kind, frame.stream, bytes(frame.payload), frame.end)]


def test_every_kind_is_among_those_that_are_frozen() -> None:
    """There is no kind of frame besides those whose bytes are spelled out above."""
    assert frozenset({1, 2, 3, 4, 5, 6, 7, 8, 9}) == frames.KINDS
    assert (frames.WIRE, frames.MAX_PAYLOAD, frames.WINDOW) == (1, 65536, 1048576)
    assert frames.TUNNEL_STREAMS == 2**31


@given(st.lists(st.tuples(st.sampled_from(sorted(frames.KINDS)), st.binary(max_size=300))), st.integers(1, 40))
def test_frames_are_read_however_the_bytes_are_cut(items: list[tuple[int, bytes]], step: int) -> None:
    """Frames that follow each other are read alike, whatever pieces they come in."""
    data = b"".join(Frame(kind, 5, payload).to_bytes() for kind, payload in items)
    assert taken(reader_of(data, step)) == [(kind, 5, payload, True) for kind, payload in items]


@given(st.lists(st.integers(0, 200_000), max_size=4))
def test_a_long_message_is_cut_into_frames_and_ends_once(sizes: list[int]) -> None:
    """The parts of a message come out in one piece, no frame is too long, and only the last one has the end."""
    parts: list[bytes | memoryview] = [bytes([index]) * size for index, size in enumerate(sizes)]
    cut = list(frames.frames_of(frames.RESULT, 3, parts))
    assert b"".join(bytes(frame.payload) for frame in cut) == b"".join(parts)
    assert [frame.end for frame in cut] == [False] * (len(cut) - 1) + [True]
    assert max(len(frame.payload) for frame in cut) <= frames.MAX_PAYLOAD


@pytest.mark.parametrize("length", [frames.MAX_PAYLOAD + 1, 2**31, 2**32 - 1])
def test_a_length_over_the_limit_is_refused_unread(length: int) -> None:
    """A frame that says it is too long (a negative length reads as one) is refused before any of it is read."""
    reader = reader_of(frames.HEADER.pack(frames.RESULT, 1, 1, length) + b"x" * 100)
    with pytest.raises(FrameError, match=f"says it has {length} bytes; the limit is 65536"):
        reader.next()


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\x00\x01\x00\x00\x00\x00\x00\x00\x00\x00", "0 is no kind of frame"),
        (b"\xc8\x01\x00\x00\x00\x00\x00\x00\x00\x00", "200 is no kind of frame"),
        (b"HTTP/1.1 400 Bad Request", "72 is no kind of frame"),
        (b"\x03\x03\x00\x00\x00\x00\x00\x00\x00\x00", "unknown flags: 0x3"),
    ],
)
def test_what_is_no_frame_is_refused(data: bytes, text: str) -> None:
    """Unknown kinds and flags are errors, not guesses."""
    with pytest.raises(FrameError, match=text):
        reader_of(data).next()


@pytest.mark.parametrize(
    ("size", "wanted", "got"), [(1, 10, 1), (9, 10, 9), (10, 5, 0), (14, 5, 4)], ids=["kind", "header", "none", "part"]
)
def test_a_cut_frame_tells_how_much_was_wanted_and_came(size: int, wanted: int, got: int) -> None:
    """A connection that ends inside a frame reports the bytes wanted and the bytes that came."""
    data = Frame(frames.LOG, 0, b"12345").to_bytes()[:size]
    with pytest.raises(Truncated) as caught:
        reader_of(data).next()
    assert (caught.value.wanted, caught.value.got) == (wanted, got)
    assert f"{wanted} bytes wanted, {got} came" in str(caught.value)


def test_what_breaks_the_limits_is_not_sent() -> None:
    """The sender refuses a frame that the receiver would refuse."""
    with pytest.raises(FrameError, match="over the limit"):
        Frame(frames.LOG, 0, b"x" * (frames.MAX_PAYLOAD + 1)).to_bytes()
    with pytest.raises(FrameError, match="no kind"):
        Frame(200, 0).to_bytes()


def test_a_credit_of_another_size_is_refused() -> None:
    """A credit frame holds four bytes."""
    assert frames.credit_of(frames.credit(1, 77)) == 77
    with pytest.raises(FrameError, match="a credit frame of 3 bytes"):
        frames.credit_of(Frame(frames.CREDIT, 1, b"123"))
