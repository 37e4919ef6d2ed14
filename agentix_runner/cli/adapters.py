"""An adapter named on the command line, `module:attr` or `path/to/file.py:attr`, as an object.

What the user's own code raises on the way is shown as theirs: its type, message, file and line, and it is the cause
of the error raised here.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import os
import pkgutil
import sys
import sysconfig
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from ..errors import BadAdapter, BadArgument, describe, one_line
from ..protocols import SandboxProvider
from ..providers import provider_factory
from ..text import clean
from .values import convert_arguments


def add_working_directory() -> None:
    """Make the working directory importable, ahead of everything else, as `python -m` does."""
    with suppress(OSError):  # it was removed: nothing can be imported from there
        here = os.getcwd()
        if sys.path[:1] != [here]:
            sys.path.insert(0, here)


def load_adapter(path: str, protocol: type, *, option: str, args: Mapping[str, str]) -> Any:
    """The object that `path` names: itself where it has the methods of `protocol`; what it returns, called with `args`,
    where it is a class or a factory.

    `option` is how the user gave it ("--dataset"), for the messages; "-arg" behind it is how `args` are given.

    Raises:
        BadArgument: the path's form, an attribute that is not there, arguments that don't fit.
        BadAdapter: the module does not import, the factory raises, or the object lacks a method.
    """
    where = f"{option} {path}"
    module_name, attribute = _split(path, option)
    found = _find(_import(module_name, where), attribute, where)
    methods = protocol_methods(protocol)
    is_object = not isinstance(found, type) and any(callable(getattr(found, name, None)) for name in methods)
    if "." in attribute and inspect.isfunction(found) and next(iter(inspect.signature(found).parameters), "") == "self":
        raise BadAdapter(f"{where} is a method: name its class, {module_name}:{attribute.rpartition('.')[0]}")
    if not is_object and callable(found):
        arguments = convert_arguments(found, args, option=f"{option}-arg", name=path)
        with users_code(f"{where} raised"):
            found = found(**arguments)
        if inspect.iscoroutine(found):
            found.close()
            raise BadAdapter(f"{where} is an async function: a factory must be a plain def")
        if isinstance(found, type):
            raise BadAdapter(f"{where} returned the class {found.__name__}: it must return an object")
    elif args:
        raise BadArgument(
            f"{option}-arg {next(iter(args))}: {path} is an object, which takes none; "
            "leave it out, or name a class or a factory"
        )
    lacking = [name for name in methods if not callable(getattr(found, name, None))]
    if lacking:
        raise BadAdapter(
            f"{where}: {_kind(found)} lacks {', '.join(f'{name}()' for name in lacking)}; "
            f"agentix_runner.{protocol.__name__} needs {', '.join(methods)}"
        )
    return found


def load_provider(name: str, args: Mapping[str, str]) -> Any:
    """The provider of that name, made with `args`, or what `load_adapter` makes of `module:attr`.

    Raises:
        BadArgument, BadAdapter: as `load_adapter`, or there is no provider of that name.
    """
    if ":" in name:
        return load_adapter(name, SandboxProvider, option="--provider", args=args)
    factory = provider_factory(name)
    arguments = convert_arguments(factory, args, option="--provider-arg", name=f"provider {name!r}")
    with users_code(f"--provider {name} raised"):
        return factory(**arguments)


def read_instances(dataset: Any, path: str) -> Iterator[Any]:
    """What `dataset.instances()` yields, errors raised on the way being the user's.

    Raises:
        BadAdapter: it raised, or what it returns is no iterable.
    """
    where = f"--dataset {path}: instances()"
    with users_code(f"{where} raised"):
        found = dataset.instances()
    if inspect.iscoroutine(found):
        found.close()
    if not hasattr(found, "__iter__"):
        raise BadAdapter(f"{where} returned {_kind(found)}: it must return a list of dicts")
    with users_code(f"{where} raised"):
        yield from found


def protocol_methods(protocol: type) -> list[str]:
    """The names of the methods that `protocol` requires."""
    return [name for name, value in vars(protocol).items() if callable(value) and not name.startswith("_")]


def _split(path: str, option: str) -> tuple[str, str]:
    module, colon, attribute = path.rpartition(":")
    if colon and module and all(part.isidentifier() for part in attribute.split(".")):
        return module, attribute
    hint = "for example my_module:thing"
    parts = path.split(".")
    if len(parts) > 1 and parts[-1] != "py" and all(part.isidentifier() for part in parts):
        hint = f"did you mean {'.'.join(parts[:-1])}:{parts[-1]}?"
    raise BadArgument(f"{option} {path}: an adapter is given as module:attribute; {hint}")


def _import(name: str, where: str) -> ModuleType:
    file = None
    if name.endswith(".py") or os.sep in name:
        file = Path(name).resolve()
        name = _module_of(file, where)
    elif not all(part.isidentifier() for part in name.split(".")):
        raise BadArgument(f"{where}: {name!r} is not the name of a module; for example my_module:thing")
    missing = None
    with users_code(f"{where}: importing {name!r} failed"):
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as exc:
            # A module that the user's own module asks for is another matter: that is the real error to show.
            missing = exc.name
            if missing is None or not (name == missing or name.startswith(f"{missing}.")):
                raise
    if missing is not None:
        raise BadAdapter(f"{where}: there is no module {missing!r}; {_remedy(missing)}")
    if file is not None and not _is_file(module, file):
        raise BadAdapter(f"{where}: another module is called {name!r} already ({module.__file__}): rename the file")
    return module


def _module_of(file: Path, where: str) -> str:
    """The name by which `file` imports, its folder (that of its outermost package) made importable."""
    if not file.is_file():
        raise BadArgument(f"{where}: there is no file {file}")
    if file.suffix != ".py" or "." in file.stem:
        raise BadArgument(f"{where}: {file.name} can't be imported: it must be called NAME.py, without other dots")
    parts = [] if file.stem == "__init__" else [file.stem]
    folder = file.parent
    while (folder / "__init__.py").is_file():
        parts.append(folder.name)
        folder = folder.parent
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    return ".".join(reversed(parts))


def _is_file(module: ModuleType, file: Path) -> bool:
    return module.__file__ is not None and os.path.samefile(module.__file__, file)


def _remedy(missing: str) -> str:
    parent, _, last = missing.rpartition(".")
    paths = getattr(sys.modules.get(parent), "__path__", ()) if parent else sys.path[:1]
    close = difflib.get_close_matches(last, [m.name for m in pkgutil.iter_modules(paths)], n=3)
    if close:
        return f"close: {', '.join(f'{parent}.{name}' if parent else name for name in close)}"
    return "run from the folder that holds it, or install it"


def _find(module: ModuleType, attribute: str, where: str) -> Any:
    found: Any = module
    for name in attribute.split("."):
        owner = found
        with users_code(f"{where}: looking up {name!r} raised"):
            found = getattr(owner, name, _MISSING)
        if found is _MISSING:
            public = [n for n in dir(owner) if not n.startswith("_")]
            close = difflib.get_close_matches(name, public, n=3)
            hint = f"close: {', '.join(close)}" if close else f"it has {', '.join(public[:8]) or 'nothing public'}"
            raise BadArgument(f"{where}: {getattr(owner, '__name__', _kind(owner))} has no {name!r}; {hint}")
    return found


_MISSING = object()


def _kind(found: object) -> str:
    return "None" if found is None else type(found).__name__


@contextmanager
def users_code(doing: str) -> Iterator[None]:
    """What is raised inside becomes an error that shows it as the user's: what was being done, then the exception's
    type, message and place. Errors of agentix_runner about an argument are left as they are."""
    try:
        yield
    except BadArgument:
        raise
    except (Exception, SystemExit) as exc:
        text = one_line(type(exc).__name__, exc.msg) if isinstance(exc, SyntaxError) else describe(exc)
        place = _place(exc)
        raise BadAdapter(f"{doing}: {clean(text)}" + (f" ({place})" if place else "")) from exc


def _place(exc: BaseException) -> str:
    """Where it was raised, as file:line: the last place in the user's own code, else the last one at all."""
    if isinstance(exc, SyntaxError) and exc.filename:
        return f"{_short(exc.filename)}:{exc.lineno}"
    frames = [f for f in traceback.extract_tb(exc.__traceback__) if not _is_machinery(f.filename)]
    own = [f for f in frames if not _is_installed(f.filename)]
    last = (own or frames)[-1:]
    return f"{_short(last[0].filename)}:{last[0].lineno}" if last else ""


def _is_machinery(filename: str) -> bool:
    here = os.path.dirname(os.path.dirname(__file__))
    return filename.startswith(("<frozen importlib", here + os.sep, os.path.dirname(importlib.__file__) + os.sep))


def _is_installed(filename: str) -> bool:
    paths = sysconfig.get_paths()
    folders = {paths["stdlib"], paths["platstdlib"], paths["purelib"], paths["platlib"]}
    return filename.startswith("<") or any(filename.startswith(folder + os.sep) for folder in folders)


def _short(filename: str) -> str:
    relative = os.path.relpath(filename)
    return filename if relative.startswith("..") else relative
