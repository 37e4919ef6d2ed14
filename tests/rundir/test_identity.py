"""What must be the same for a run to be resumed, without any secret."""

from __future__ import annotations

import dataclasses
import enum
import json
import pathlib
from typing import Any

import attrs
import pytest

from agentix_runner.rundir.identity import differences, identity_of, without_secrets


class Plain:
    def __init__(self) -> None:
        self.anything = object()


class Mode(enum.Enum):
    FAST = "fast"


@attrs.define
class AgentConfig:
    temperature: float = 0.5
    callback: Any = None


@attrs.define
class ConfiguredAgent:
    config: AgentConfig = attrs.Factory(AgentConfig)
    prompt: str = "Fix it."
    api_key: str = "abc"
    max_tokens: int = 100
    step_timeout: float = 3.0
    step_limit: int = 5
    client: Any = attrs.Factory(object)
    hidden: str = attrs.field(default="h", repr=False)
    made: str = attrs.field(default="m", init=False)
    _private: str = "p"


@dataclasses.dataclass
class FolderDataset:
    path: pathlib.Path
    mode: Mode = Mode.FAST
    splits: tuple[str, ...] = ("test",)
    tags: frozenset[str] = frozenset("hgfedcba")
    options: dict[str, Any] = dataclasses.field(default_factory=dict)


def _identity(**more: Any) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "dataset": Plain(),
        "agent": Plain(),
        "provider": Plain(),
        "bundle": None,
        "model": "m",
        "score": True,
        "platform": None,
    }
    return identity_of(**{**arguments, **more})


def test_tells_adapters_by_their_class() -> None:
    """An adapter without declared fields is its class; two objects of it are the same, in whatever process."""
    identity = _identity()

    assert identity == {
        "dataset": {"adapter": "tests.rundir.test_identity:Plain"},
        "agent": {"adapter": "tests.rundir.test_identity:Plain"},
        "provider": {"adapter": "tests.rundir.test_identity:Plain"},
        "bundle": None,
        "model": "m",
        "score": True,
        "platform": None,
    }
    assert identity == _identity()


def test_declared_fields_are_part_of_it() -> None:
    """Declared fields that are plain values count, also of nested configurations; state, limits and secrets don't."""
    agent = _identity(agent=ConfiguredAgent())["agent"]

    assert agent == {
        "adapter": "tests.rundir.test_identity:ConfiguredAgent",
        "config": {"class": "tests.rundir.test_identity:AgentConfig", "temperature": 0.5, "callback": None},
        "prompt": "Fix it.",
        "max_tokens": 100,
    }


def test_dataclass_fields_become_plain() -> None:
    """Paths, enums, tuples and sets in declared fields are written as plain data, always in the same order."""
    dataset = FolderDataset(pathlib.Path("data"), options={"a": 1, "f": print, "timeout": 3})

    assert _identity(dataset=dataset)["dataset"] == {
        "adapter": "tests.rundir.test_identity:FolderDataset",
        "path": "data",
        "mode": "fast",
        "splits": ["test"],
        "tags": ["a", "b", "c", "d", "e", "f", "g", "h"],
        "options": {"a": 1},
    }


def test_arguments_of_the_command_line_count() -> None:
    """The path that was given stands for the class, and the arguments of a factory are part of the identity."""
    arguments = {
        "agent": "pkg.mod:make",
        "agent_args": {"n": "3", "api_key": "abc", "max_tokens": "100", "timeout": "5", "o": object()},
    }

    assert _identity(arguments=arguments)["agent"] == {"adapter": "pkg.mod:make", "n": "3", "max_tokens": "100"}


def test_a_providers_limits_may_change() -> None:
    """What a provider allows at most is a limit and no part of the identity; what an agent does at most is."""
    arguments = {"provider_args": {"max_log": "5", "python": "3"}, "agent_args": {"max_steps": "5"}}
    identity = _identity(arguments=arguments)

    assert identity["provider"] == {"adapter": "tests.rundir.test_identity:Plain", "python": "3"}
    assert identity["agent"] == {"adapter": "tests.rundir.test_identity:Plain", "max_steps": "5"}


def test_a_class_as_adapter() -> None:
    """A class whose methods are static is told by its own name."""
    assert _identity(agent=Plain)["agent"] == {"adapter": "tests.rundir.test_identity:Plain"}


def test_a_long_text_is_hashed() -> None:
    """A prompt of pages does not fill run.json, and still tells two runs apart."""
    one = _identity(agent=ConfiguredAgent(prompt="x" * 5000))["agent"]["prompt"]
    two = _identity(agent=ConfiguredAgent(prompt="x" * 5000 + "y"))["agent"]["prompt"]

    assert len(one) == len(two) == 64
    assert one != two


def test_is_json() -> None:
    """What it gives is the same after a journey through JSON."""
    identity = _identity(agent=ConfiguredAgent(prompt="\ud800"), dataset=FolderDataset(pathlib.Path("x")))

    assert json.loads(json.dumps(identity, allow_nan=False)) == identity


@pytest.mark.parametrize(
    "name",
    [
        "api_key",
        "apiKey",
        "OPENAI_API_KEY",
        "key",
        "keys",
        "token",
        "auth_token",
        "accessToken",
        "tokens",
        "secret",
        "client-secret",
        "password",
        "db.passwd",
        "Authorization",
        "credentials",
        "aws_access_key_id",
        "cookie",
        "auth",
    ],
)
def test_secrets_by_name(name: str) -> None:
    """What is called a secret is left out, at any depth."""
    assert without_secrets({name: "x", "b": [{name: ["x"], "c": 1}]}) == {"b": [{"c": 1}]}


@pytest.mark.parametrize("name", ["password", "client_secret", "api_key"])
def test_a_number_can_be_a_secret(name: str) -> None:
    """A password of digits is one."""
    assert without_secrets({name: 1234}) == {}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_tokens", 100),
        ("max_tokens", "100"),
        ("tokenizer", "gpt2"),
        ("keyword", "a"),
        ("author", "b"),
        ("use_auth", True),
        ("api_key", None),
        ("model", "claude-3-5-sonnet-latest"),
        ("url", "https://example.org:8080/v1"),
        ("text", "the risk-free basic idea of a monkey"),
    ],
)
def test_what_is_no_secret(name: str, value: Any) -> None:
    """What only sounds like a secret stays, since it tells runs apart."""
    assert without_secrets({name: value}) == {name: value}


@pytest.mark.parametrize(
    "value",
    [
        "sk-ant-REDACTED",
        "use sk-proj-abcdefghijklmnop please",
        "Bearer abcdefgh12345678",
        "ghp_abcdefghijklmnop1234",
        "AKIAABCDEFGHIJKLMNOP",
        "https://user:hunter2@example.org/",
        "https://example.org/?api_key=abc",
        "--password hunter2 --password=hunter2",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abc",
        "-----BEGIN RSA PRIVATE KEY-----\nabc",
    ],
)
def test_secrets_by_their_looks(value: str) -> None:
    """What looks like a secret is left out whatever it is called, also in the middle of a text or a list."""
    assert without_secrets({"a": value, "b": ["x", value], "c": {"d": value}}) == {"b": ["x"], "c": {}}


def test_differences_are_named() -> None:
    """Each difference is told by its full name, with both values, and what is equal is not."""
    old = {"model": "a", "agent": {"n": 1, "same": [1]}, "gone": None, "long": "x" * 200}
    new = {"model": "b", "agent": {"n": True, "same": [1]}, "more": {"x": 1}, "long": "x" * 200 + "y"}

    assert list(differences(old, new)) == [
        ("agent.n", "1", "true"),
        ("gone", "null", "not given"),
        ("long", '"' + "x" * 59 + "... (202 characters)", '"' + "x" * 59 + "... (203 characters)"),
        ("model", '"a"', '"b"'),
        ("more", "not given", '{"x": 1}'),
    ]
