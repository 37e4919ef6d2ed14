"""`K=V` texts as the arguments of a factory."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Optional

import pytest

from agentix_runner.cli.values import convert_arguments
from agentix_runner.errors import BadArgument

if TYPE_CHECKING:
    from nowhere import Unknown


class Color(enum.Enum):
    RED = "red"
    BLUE = 2


def convert(factory: Any, **args: str) -> dict[str, Any]:
    return convert_arguments(factory, args, option="--dataset-arg", name="m:f")


def annotated(
    i: int = 0,
    f: float = 0.0,
    b: bool = False,
    s: str = "",
    p: Path = Path(),
    n: int | None = None,
    o: Optional[str] = None,  # noqa: UP045 - the old spelling is what is tested
    lit: Literal["a", 1] = "a",
    color: Color = Color.RED,
    many: list[int] | None = None,
    raw: bytes = b"",
    anything: Any = None,
) -> None: ...


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("i", "3", 3),
        ("i", "-1", -1),
        ("f", "3", 3.0),
        ("f", "1e-3", 0.001),
        ("b", "true", True),
        ("b", "No", False),
        ("b", "0", False),
        ("s", "3", "3"),
        ("s", "none", "none"),
        ("s", "", ""),
        ("p", "a/b", Path("a/b")),
        ("n", "none", None),
        ("n", "7", 7),
        ("o", "null", None),
        ("o", "7", "7"),
        ("lit", "1", 1),
        ("lit", "a", "a"),
        ("color", "BLUE", Color.BLUE),
        ("color", "red", Color.RED),
        ("many", "[1, 2]", [1, 2]),
        ("raw", "xy", b"xy"),
        ("anything", '{"a": 1}', {"a": 1}),
        ("anything", "some text", "some text"),
        ("anything", "NaN", "NaN"),
    ],
)
def test_by_annotation(name: str, text: str, value: Any) -> None:
    """A text becomes what the parameter's annotation says, and JSON or text where that says nothing."""
    [(key, converted)] = convert(annotated, **{name: text}).items()
    assert key == name
    assert converted == value
    assert type(converted) is type(value)


def unannotated(a, image="", n=3, rate=0.5, on=False, none=None):  # type: ignore[no-untyped-def]
    return None


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("a", "5", 5),
        ("a", "x", "x"),
        ("a", '"5"', "5"),
        ("a", "null", None),
        ("image", "5", "5"),
        ("n", "5", 5),
        ("rate", "5", 5.0),
        ("on", "yes", True),
        ("none", "true", True),
    ],
)
def test_by_default(name: str, text: str, value: Any) -> None:
    """Without an annotation the type of the default decides; without one the text is tried as JSON."""
    converted = convert(unannotated, **{"a": "1", name: text})[name]
    assert converted == value
    assert type(converted) is type(value)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("i", "x", "--dataset-arg i: give a whole number, not 'x'"),
        ("i", "1.5", "--dataset-arg i: give a whole number, not '1.5'"),
        ("f", "x", "--dataset-arg f: give a number, not 'x'"),
        ("b", "maybe", "--dataset-arg b: give true or false, not 'maybe'"),
        ("n", "x", "--dataset-arg n: give none, or give a whole number, not 'x'"),
        ("lit", "z", "--dataset-arg lit: it must be one of a, 1, not 'z'"),
        ("color", "green", "--dataset-arg color: it must be one of red, 2, not 'green'"),
    ],
)
def test_does_not_convert(name: str, text: str, message: str) -> None:
    """A text that does not convert is refused, saying what was expected."""
    with pytest.raises(BadArgument) as caught:
        convert(annotated, **{name: text})
    assert str(caught.value) == message


def test_unknown_name() -> None:
    """A name that the factory does not take is refused, with those that it takes and the closest one."""
    with pytest.raises(BadArgument) as caught:
        convert(unannotated, a="1", imag="x")
    assert str(caught.value) == (
        "--dataset-arg imag: m:f does not take 'imag'; it takes a, image, n, rate, on, none (did you mean 'image'?)"
    )
    with pytest.raises(BadArgument, match="it takes no arguments"):
        convert(lambda: None, a="1")


def test_missing_name() -> None:
    """A parameter without a default that is not given is named, with how to give it."""
    with pytest.raises(BadArgument) as caught:
        convert(unannotated)
    assert str(caught.value) == "m:f needs a: give --dataset-arg a=VALUE"


def test_other_factories() -> None:
    """`**kwargs` takes any name; classes are asked by their constructor; what has no signature gets JSON or text."""

    class Made:
        def __init__(self, n: int, **rest: float) -> None: ...

    assert convert(Made, n="1", x="2") == {"n": 1, "x": 2.0}
    assert convert(dict, a="1", b="x") == {"a": 1, "b": "x"}


def test_annotation_that_can_not_be_resolved() -> None:
    """An annotation that exists for type checkers only does not stop the others' texts from being taken."""

    def factory(a: Unknown, n: int = 1) -> None: ...

    assert convert(factory, a="[1]") == {"a": [1]}


def test_a_collection_is_given_as_json() -> None:
    """A mapping or a list takes JSON; text that is none is refused, not passed on as a str."""

    def factory(env: dict[str, str] | None = None, mounts: tuple[str, ...] = ()) -> Any:
        return env, mounts

    def convert(**args: str) -> dict[str, Any]:
        return convert_arguments(factory, args, option="--x-arg", name="factory")

    assert convert(env='{"A": "b"}', mounts='["a:b"]') == {"env": {"A": "b"}, "mounts": ["a:b"]}
    with pytest.raises(BadArgument, match="give a JSON object"):
        convert(env="A=b")
    with pytest.raises(BadArgument, match="give a JSON list"):
        convert(mounts="a:b")
