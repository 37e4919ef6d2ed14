"""The texts of options."""

from __future__ import annotations

import math

import click
import pytest

from agentix_runner.cli.values import duration, error_limit, key_value, part, to_mapping


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("1.5", 1.5), (".5", 0.5), ("30s", 30), ("30m", 1800), ("2h", 7200), ("1d", 86400), (" 2H ", 7200)],
)
def test_duration(text: str, seconds: float) -> None:
    """A duration is a number of seconds, or has a unit."""
    assert duration(text) == seconds


def test_duration_none() -> None:
    """ "none" is no limit."""
    assert duration("none") == duration("None") == math.inf


@pytest.mark.parametrize("text", ["0", "-5", "0m", "", "soon", "1w", "nan", "inf", "1e999", "9" * 400, "1:30"])
def test_duration_refused(text: str) -> None:
    """What is no time above 0 is refused, with the forms that are taken."""
    with pytest.raises(click.BadParameter, match="expected seconds above 0, 30m, 2h, or none"):
        duration(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1:3", slice(1, 3)),
        (":3", slice(None, 3)),
        ("2:", slice(2, None)),
        (":", slice(None, None)),
        ("-2:", slice(-2, None)),
    ],
)
def test_part(text: str, expected: slice) -> None:
    """A part is a slice without a step."""
    assert part(text) == expected


@pytest.mark.parametrize("text", ["3", "", "a:b", "1:2:3", "1.5:2"])
def test_part_refused(text: str) -> None:
    """What is no A:B is refused."""
    with pytest.raises(click.BadParameter, match="expected A:B"):
        part(text)


@pytest.mark.parametrize(("text", "expected"), [("5", 5), ("0.1", 0.1), ("10%", 0.1), ("0", 0)])
def test_error_limit(text: str, expected: float) -> None:
    """A limit of errors is a count, or a fraction."""
    limit = error_limit(text)
    assert limit == expected
    assert type(limit) is type(expected)


def test_error_limit_refused() -> None:
    """What is no number is refused."""
    with pytest.raises(click.BadParameter, match="'many' is not a valid number of errors"):
        error_limit("many")


def test_key_value() -> None:
    """Only the first equals sign divides; a value may be empty."""
    assert key_value("url=http://h/?a=b") == ("url", "http://h/?a=b")
    assert key_value("image=") == ("image", "")


@pytest.mark.parametrize("text", ["key", "=v", "a b=c", ""])
def test_key_value_refused(text: str) -> None:
    """What is not a valid K=V is refused."""
    with pytest.raises(click.BadParameter, match="is not a valid K=V"):
        key_value(text)


def test_key_value_keeps_a_secret() -> None:
    """The value of a malformed pair is not repeated: it may be a secret."""
    with pytest.raises(click.BadParameter) as caught:
        key_value("api-key=sk-123")
    assert "sk-123" not in caught.value.message


def test_to_mapping_refuses_a_second_value() -> None:
    """A name given twice is refused, naming it."""
    option = click.Option(["--agent-arg"])
    assert to_mapping(None, option, [("a", "1"), ("b", "2")]) == {"a": "1", "b": "2"}
    with pytest.raises(click.UsageError, match="--agent-arg a is given twice"):
        to_mapping(None, option, [("a", "1"), ("a", "2")])
