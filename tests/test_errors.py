"""Errors: whose fault, what next, and that they travel."""

from __future__ import annotations

import pickle

import pytest

from agentix_runner import errors
from agentix_runner.errors import AgentixError, SandboxDied, describe

ALL = [e for e in vars(errors).values() if isinstance(e, type) and issubclass(e, AgentixError)]


@pytest.mark.parametrize("kind", ALL)
def test_errors_survive_pickling_with_their_data(kind: type[AgentixError]) -> None:
    """Type, message and every attribute come back: errors travel between processes."""
    error = kind("what is wrong: what to do")
    for name in vars(error):
        setattr(error, name, "data")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert str(again) == "what is wrong: what to do"
    assert vars(again) == vars(error)


def test_every_error_is_in_the_tree_of_the_modules_docstring() -> None:
    """Someone who reads the top of errors.py sees all of them."""
    assert errors.__doc__ is not None
    for kind in ALL:
        assert kind.__name__ in errors.__doc__


def test_data_is_on_attributes() -> None:
    """A program needs no parsing of messages."""
    died = SandboxDied("out of memory", exit_code=-9, oom=True)
    assert (died.exit_code, died.oom, died.transient) == (-9, True, False)


def test_describing_an_error_is_one_bounded_line() -> None:
    """Newlines are folded, length is bounded, an empty message leaves no colon, a broken str() is survived."""

    class Broken(Exception):
        def __str__(self) -> str:
            raise LookupError

    assert describe(ValueError("a\n  b")) == "ValueError: a b"
    assert describe(ValueError()) == "ValueError"
    assert len(describe(ValueError("x" * 10_000))) < 2100
    assert describe(Broken()) == "Broken: (its message can't be shown: str() raised LookupError)"
