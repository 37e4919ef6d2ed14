"""Adapters named on the command line."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentix_runner.cli.adapters import add_working_directory, load_adapter, protocol_methods, read_instances
from agentix_runner.errors import AgentixError, BadAdapter, BadArgument
from agentix_runner.protocols import Agent, Dataset, SandboxProvider

MODULE = """
    import functools

    class Agent:
        def __init__(self, steps: int = 1):
            self.steps = steps
        def solve(self, sandbox, instance, *, model):
            return self.steps

    class Holder:
        agent = Agent(5)

    class Half:
        def image(self, instance): ...
        def setup(self, sandbox, instance): ...

    agent = Agent(2)
    half = Half()
    number = 3
    partial = functools.partial(Agent, 9)

    def make(steps: int = 3):
        return Agent(steps)

    def make_nothing():
        pass

    def make_class():
        return Agent

    async def make_later():
        return Agent()

    def fail():
        return int("x")

    def leave():
        raise SystemExit("no key")

    def __getattr__(name):
        if name == "lazy":
            raise RuntimeError("not now")
        raise AttributeError(name)
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory with a module `bench`, and nothing left of what a test imports."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = set(sys.modules)
    (tmp_path / "bench.py").write_text(textwrap.dedent(MODULE))
    add_working_directory()
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def load(path: str, protocol: type = Agent, **args: str) -> Any:
    return load_adapter(path, protocol, option="--agent", args=args)


def error_of(path: str, protocol: type = Agent, **args: str) -> str:
    with pytest.raises(AgentixError) as caught:
        load(path, protocol, **args)
    assert isinstance(caught.value, (BadAdapter, BadArgument))
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("path", "args", "steps"),
    [
        ("bench:agent", {}, 2),
        ("bench:Holder.agent", {}, 5),
        ("bench:Agent", {}, 1),
        ("bench:Agent", {"steps": "7"}, 7),
        ("bench:make", {}, 3),
        ("bench:make", {"steps": "4"}, 4),
        ("bench:partial", {}, 9),
        ("bench.py:agent", {}, 2),
        ("./bench.py:agent", {}, 2),
    ],
)
def test_object_class_and_factory(path: str, args: dict[str, str], steps: int) -> None:
    """An object is taken as it is; a class or a factory is called with the arguments."""
    assert load(path, **args).solve(None, {}, model=None) == steps


def test_files(here: Path) -> None:
    """A file is imported from its own folder, or from that of its package; it can import what is next to it."""
    (here / "deep" / "pkg").mkdir(parents=True)
    (here / "deep" / "side.py").write_text("STEPS = 11\n")
    (here / "deep" / "alone-here.py").write_text("import side, bench\nagent = bench.Agent(side.STEPS)\n")
    (here / "deep" / "pkg" / "__init__.py").write_text("")
    (here / "deep" / "pkg" / "mod.py").write_text("from bench import Agent\nfrom . import other\nagent = Agent(12)\n")
    (here / "deep" / "pkg" / "other.py").write_text("")
    assert load("deep/alone-here.py:agent").steps == 11
    assert load("deep/pkg/mod.py:agent").steps == 12
    assert sys.modules["pkg.mod"].agent.steps == 12
    assert load(f"{here}/deep/pkg/mod.py:agent").steps == 12


def test_working_directory_comes_first(here: Path) -> None:
    """A module of the working directory wins over an installed one of that name."""
    (here / "cattr.py").write_text("from bench import agent\n")
    assert load("cattr:agent").steps == 2


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("bench", "--agent bench: an adapter is given as module:attribute; for example my_module:thing"),
        ("a.b.c", "--agent a.b.c: an adapter is given as module:attribute; did you mean a.b:c?"),
        ("bench.py", "--agent bench.py: an adapter is given as module:attribute; for example my_module:thing"),
        ("bench:", "--agent bench:: an adapter is given as module:attribute; for example my_module:thing"),
        (":agent", "--agent :agent: an adapter is given as module:attribute; for example my_module:thing"),
        ("bench:a b", "--agent bench:a b: an adapter is given as module:attribute; for example my_module:thing"),
        ("be nch:a", "--agent be nch:a: 'be nch' is not the name of a module; for example my_module:thing"),
        ("..x:a", "--agent ..x:a: '..x' is not the name of a module; for example my_module:thing"),
        ("benhc:agent", "--agent benhc:agent: there is no module 'benhc'; close: bench"),
        ("bench:agnet", "--agent bench:agnet: bench has no 'agnet'; close: agent, Agent"),
        ("bench:Holder.x", "--agent bench:Holder.x: Holder has no 'x'; it has agent"),
        ("bench:Agent.solve", "--agent bench:Agent.solve is a method: name its class, bench:Agent"),
        ("bench:number", "--agent bench:number: int lacks solve(); agentix_runner.Agent needs solve"),
        ("bench:make_nothing", "--agent bench:make_nothing: None lacks solve(); agentix_runner.Agent needs solve"),
        ("bench:make_class", "--agent bench:make_class returned the class Agent: it must return an object"),
        ("bench:make_later", "--agent bench:make_later is an async function: a factory must be a plain def"),
    ],
)
def test_refused(path: str, message: str) -> None:
    """What can't be loaded is refused in one line that names the culprit and the remedy."""
    assert error_of(path) == message


def test_missing_methods() -> None:
    """An object that lacks methods of its Protocol is refused, naming them."""
    assert error_of("bench:half", Dataset) == (
        "--agent bench:half: Half lacks instances(), score(); "
        "agentix_runner.Dataset needs instances, image, setup, score"
    )
    assert protocol_methods(SandboxProvider) == ["session"]


def test_arguments_for_an_object() -> None:
    """Arguments given to what is no factory are refused."""
    assert error_of("bench:agent", steps="3") == (
        "--agent-arg steps: bench:agent is an object, which takes none; leave it out, or name a class or a factory"
    )


def test_module_that_is_nowhere(here: Path) -> None:
    """A module that is not there is refused, saying where was looked; also a part of a package."""
    (here / "pkg").mkdir()
    (here / "pkg" / "__init__.py").write_text("")
    (here / "pkg" / "things.py").write_text("")
    assert error_of("zzz.things:x").startswith("--agent zzz.things:x: there is no module 'zzz'; run from the folder")
    assert error_of("pkg.thing:x") == "--agent pkg.thing:x: there is no module 'pkg.thing'; close: pkg.things"
    assert error_of("gone.py:x") == f"--agent gone.py:x: there is no file {here}/gone.py"
    (here / "a.b.py").write_text("")
    assert error_of("a.b.py:x").endswith("a.b.py can't be imported: it must be called NAME.py, without other dots")


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import bench\nimport no_such_thing\n", "ModuleNotFoundError: No module named 'no_such_thing' (broken.py:2)"),
        ("x = 1\ny = x / 0\n", "ZeroDivisionError: division by zero (broken.py:2)"),
        (
            "import json\n\njson.loads('x')\n",
            "JSONDecodeError: Expecting value: line 1 column 1 (char 0) (broken.py:3)",
        ),
        ("raise SystemExit(3)\n", "SystemExit: 3 (broken.py:1)"),
        ("raise KeyError\n", "KeyError (broken.py:1)"),
        ("raise ValueError('two\\nlines \\x1b[31m')\n", "ValueError: two lines \\x1b[31m (broken.py:1)"),
        ("from bench import nothing\n", "cannot import name 'nothing' from 'bench'"),
    ],
)
def test_import_that_raises(here: Path, source: str, expected: str) -> None:
    """What the user's module raises is shown as it is: type, message, file and line."""
    (here / "broken.py").write_text(source)
    text = error_of("broken:agent")
    assert text.startswith("--agent broken:agent: importing 'broken' failed: ")
    assert expected in text


def test_syntax_error(here: Path) -> None:
    """A syntax error is shown with the line that it is in."""
    (here / "broken.py").write_text("x = 1\ndef f(:\n")
    assert error_of("broken:agent").endswith("importing 'broken' failed: SyntaxError: invalid syntax (broken.py:2)")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("bench:fail", "--agent bench:fail raised: ValueError: invalid literal for int() with base 10: 'x' (bench.py:"),
        ("bench:leave", "--agent bench:leave raised: SystemExit: no key (bench.py:"),
        ("bench:lazy", "--agent bench:lazy: looking up 'lazy' raised: RuntimeError: not now (bench.py:"),
    ],
)
def test_user_code_that_raises(path: str, expected: str) -> None:
    """What a factory raises is the user's: shown with its place, and kept as the cause."""
    with pytest.raises(BadAdapter) as caught:
        load(path)
    assert str(caught.value).startswith(expected)
    assert caught.value.__cause__ is not None


def test_exception_that_can_not_be_shown(here: Path) -> None:
    """An exception whose text raises does not hide where it came from."""
    (here / "broken.py").write_text("class E(Exception):\n    def __str__(self): raise KeyError\nraise E\n")
    assert error_of("broken:x").endswith("failed: E: (its message can't be shown: str() raised KeyError) (broken.py:3)")


def test_interrupt_passes(here: Path) -> None:
    """Ctrl-C during an import is no error of the module."""
    (here / "broken.py").write_text("raise KeyboardInterrupt\n")
    with pytest.raises(KeyboardInterrupt):
        load("broken:x")


def test_file_whose_name_is_taken(here: Path) -> None:
    """A file can't take the place of another module that is imported already."""
    (here / "textwrap.py").write_text("agent = 1\n")
    assert "another module is called 'textwrap' already" in error_of("textwrap.py:agent")


class Instances:
    def __init__(self, found: Any) -> None:
        self.found = found

    def instances(self) -> Any:
        return self.found


def test_instances() -> None:
    """Instances are read one by one; what the dataset raises on the way is the user's error."""

    def broken() -> Iterator[int]:
        yield 1
        raise ValueError("no rows")

    reading = read_instances(Instances(broken()), "m:d")
    assert next(reading) == 1
    with pytest.raises(BadAdapter, match=r"--dataset m:d: instances\(\) raised: ValueError: no rows \(.*test_adapters"):
        next(reading)
    with pytest.raises(BadAdapter, match=r"instances\(\) returned None: it must return a list of dicts"):
        next(read_instances(Instances(None), "m:d"))


def test_async_instances() -> None:
    """An async instances() is refused, and leaves no coroutine behind."""

    class Later:
        async def instances(self) -> list[int]:
            return [1]

    with pytest.raises(BadAdapter, match="returned coroutine: it must return a list"):
        next(read_instances(Later(), "m:d"))
