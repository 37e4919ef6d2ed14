"""How a call is put on the wire: the function by name where the sandbox can import it, by value where it can't.

A call is: 1 byte (by name?) | length of the target: 4 bytes | target | pickle of (args, kwargs)
The target is `module:qualname`, or a pickle of the function.
"""

from __future__ import annotations

import io
import pickle
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FunctionType, ModuleType
from typing import Any

from attrs import frozen

from ...errors import CallError

_REMEDY = 'pip install "agentix-runner[notebook]", or move it into a module'
_NAMELESS = frozenset((type(None), type(...), type(NotImplemented)))
# cloudpickle's registry of modules to send by value is one for the whole process.
_registering = threading.Lock()


@frozen(kw_only=True)
class ImportableModules:
    """What the sandbox can import. `shared`: all that this process can. Otherwise the standard library and `modules`
    (names of top-level modules). `python` is the sandbox's version, as (major, minor)."""

    python: tuple[int, int]
    shared: bool = False
    modules: frozenset[str] = frozenset()

    def imports(self, module: str) -> bool:
        """Whether the sandbox can import `module`."""
        if module == "__main__":
            return False
        top = module.partition(".")[0]
        return self.shared or top in sys.stdlib_module_names or top in self.modules


def name_of(function: object) -> str:
    """What to call `function` in messages."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if not isinstance(name, str):
        return f"a {type(function).__qualname__} object"
    return name if module in (None, "builtins", "__main__") else f"{module}.{name}"


def make_call(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], importable: ImportableModules
) -> list[bytes | memoryview]:
    """The parts of a call. Raises CallError."""
    if not callable(function):
        raise CallError(f"remote() got {function!r:.200}, which is not callable: give a function and its arguments")
    reference = _reference(function, importable)
    what = f"the arguments of {name_of(function)}"
    arguments = _dump((args, kwargs), what, importable)
    target = _dump(function, name_of(function), importable) if reference is None else reference.encode()
    return [bytes([reference is not None]) + len(target).to_bytes(4, "big") + target, arguments]


def _reference(function: Any, importable: ImportableModules) -> str | None:
    module, path = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(path, str) or not importable.imports(module):
        return None
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    return f"{module}:{path}" if found is function else None


class _NotByName(Exception):
    """Something to be pickled can't be imported in the sandbox."""


class _Pickler(pickle.Pickler):
    """pickle, which stops at what the sandbox can't import. Called for classes and functions, not for plain data."""

    def __init__(self, file: io.BytesIO, importable: ImportableModules) -> None:
        super().__init__(file, protocol=5)
        self._importable = importable

    def reducer_override(self, value: Any) -> Any:
        # The builtin singletons' classes have no name to import them by, and pickle knows them.
        named = isinstance(value, FunctionType) or (issubclass(type(value), type) and value not in _NAMELESS)
        if named and _reference(value, self._importable) is None:
            raise _NotByName(name_of(value))
        return NotImplemented


def _dump(value: Any, what: str, importable: ImportableModules) -> bytes:
    file = io.BytesIO()
    try:
        _Pickler(file, importable).dump(value)
    except _NotByName as error:
        return _dump_by_value(value, what, str(error), importable)
    except Exception as error:
        raise CallError(f"{what} can't be sent: {type(error).__name__}: {error}") from error
    return file.getvalue()


def _dump_by_value(value: Any, what: str, culprit: str, importable: ImportableModules) -> bytes:
    if importable.python != sys.version_info[:2]:
        here, there = ".".join(map(str, sys.version_info[:2])), ".".join(map(str, importable.python))
        raise CallError(
            f"{what} would have to go by value ({culprit} can't be imported in the sandbox), which needs the same "
            f"Python on both sides: here is {here}, there {there}. Put it into a module that the sandbox has"
        )
    try:
        import cloudpickle  # type: ignore[import-untyped]
    except ImportError:
        raise CallError(f"{what} can't be imported in the sandbox ({culprit}): {_REMEDY}") from None
    try:
        with by_value(own_modules(importable)):
            return bytes(cloudpickle.dumps(value, protocol=5))
    except Exception as error:
        raise CallError(f"{what} can't be sent: {type(error).__name__}: {error}") from error


@contextmanager
def by_value(modules: Iterable[ModuleType]) -> Iterator[None]:
    """Inside, cloudpickle sends by value what is of `modules`. One at a time: its registry is the process's."""
    import cloudpickle

    with _registering:
        registered: list[ModuleType] = []
        try:
            for module in modules:
                if module.__name__ not in cloudpickle.list_registry_pickle_by_value():
                    cloudpickle.register_pickle_by_value(module)
                    registered.append(module)
            yield
        finally:
            for module in registered:
                cloudpickle.unregister_pickle_by_value(module)


def own_modules(importable: ImportableModules) -> list[ModuleType]:
    """Loaded modules that the sandbox lacks and that are nobody's package: the user's own, of the working directory."""
    if importable.shared:
        return []
    installed = tuple({sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib", "platstdlib")})
    own = []
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file and not importable.imports(name) and name != "__main__" and not file.startswith(installed):
            own.append(module)
    return own
