"""How large the package is, and whether its layers hold: `python -m tests.house`. Exit code 1 where a bound is broken.

Code is what is left without blank lines, comments and docstrings. Everything is read from the source, nothing imported.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "agentix_runner"

# From the bottom. A module imports its own floor and those below; the longest name that fits it tells its floor, and
# what is on none (the package's own __init__) lies above them all.
FLOORS = (
    ("_version", "protocols", "records", "errors", "text", "threads"),
    ("remote", "remote.wire", "remote.sandbox", "remote.tools"),
    ("remote.host",),
    ("tunnel",),
    ("bundle",),
    ("providers",),
    ("rundir",),
    ("rollout",),
    ("executors",),
    ("report",),
    ("batch",),
    ("runner",),
    ("cli",),
)
IN_THE_SANDBOX = FLOORS[1]
LEAST_SHARE_OF_WORDS = 0.132

# Lines of code at most, then the folders and modules that are counted, then those of them that are not.
PARTS = {
    "tunnel and its inlet": (1450, ["tunnel", "remote/sandbox/inlet", "remote/sandbox/http1", "remote/wire/streams"]),
    "bundle": (850, ["bundle"]),
    "executors": (680, ["executors", "batch/prefetch"]),
    "cli and what it shows": (1350, ["cli", "report/progress", "report/terminal", "report/counts"]),
    "runner, batch, rollout": (1500, ["runner", "batch/batch", "batch/checks", "batch/stopping", "rollout", "threads"]),
}
CONVERSION_OF_TEXT = ("cli/arguments", "cli/values")  # belongs to none of them


def main() -> int:
    paths = sorted(PACKAGE.rglob("*.py"))
    sizes = {path.relative_to(PACKAGE).with_suffix("").as_posix(): size_of(path.read_text()) for path in paths}
    code, statements, words, lines = (sum(column) for column in zip(*sizes.values(), strict=True))
    longest = max(sizes, key=lambda name: sizes[name][3])
    graph = imports()
    problems = {
        "import circles": circles(graph),
        "imports that run up": running_up(graph),
        "imports beyond the standard library in the sandbox": foreign_in_sandbox(),
    }
    rows = [
        ("package, lines of code", code, 11_000),
        ("package, statements", statements, 10_100),
        ("modules beside __init__", sum(path.name != "__init__.py" for path in paths), 95),
        (f"lines of the longest module, {longest}", sizes[longest][3], 350),
        ("modules at the package's root", sum("/" not in name for name in sizes), 8),
        *((f"{name}, lines of code", _part(sizes, belonging), most) for name, (most, belonging) in PARTS.items()),
        *((name, len(found), 0) for name, found in problems.items()),
        ("tests, lines of code", sum(size_of(path.read_text())[0] for path in (ROOT / "tests").rglob("*.py")), 15_000),
    ]
    for name, value, most in rows:
        print(f"{name:55} {value:7,}  <= {most:6,}  {'' if value <= most else 'BROKEN'}".rstrip())
    few_words = words / lines < LEAST_SHARE_OF_WORDS
    verdict = "BROKEN" if few_words else ""
    print(f"{'share of docstrings and comments':55} {words / lines:7.1%}  >= {LEAST_SHARE_OF_WORDS:6.1%}  {verdict}")
    for name, found in problems.items():
        for problem in found:
            print(f"{name}: {problem}")
    return int(few_words or any(value > most for _, value, most in rows))


def size_of(source: str) -> tuple[int, int, int, int]:
    """Lines of code, statements, lines that hold nothing but words (docstrings, comments), and lines in all."""
    nodes = list(ast.walk(ast.parse(source)))
    words: set[int] = set()
    for node in nodes:
        body = getattr(node, "body", None)
        for each in body if isinstance(body, list) else ():
            if (
                isinstance(each, ast.Expr)
                and isinstance(each.value, ast.Constant)
                and isinstance(each.value.value, str)
            ):
                words.update(range(each.lineno, (each.end_lineno or each.lineno) + 1))
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT and token.string.strip():
            code.update(range(token.start[0], token.end[0] + 1))
    code -= words
    words |= {number for number, line in enumerate(source.splitlines(), 1) if line.lstrip().startswith("#")} - code
    return len(code), sum(isinstance(node, ast.stmt) for node in nodes), len(words), len(source.splitlines())


def _part(sizes: dict[str, tuple[int, int, int, int]], belonging: list[str]) -> int:
    total = 0
    for name, size in sizes.items():
        if name not in CONVERSION_OF_TEXT and any(name == part or name.startswith(f"{part}/") for part in belonging):
            total += size[0]
    return total


def imports() -> dict[str, set[str]]:
    """Which modules of the package each of its modules imports, anywhere in it; dotted, the package itself is ''."""
    names = {_module(path): path for path in PACKAGE.rglob("*.py")}
    graph: dict[str, set[str]] = {}
    for name, path in names.items():
        found = {each.removeprefix("agentix_runner").lstrip(".") for each in imported(path) if _own(each)}
        # `from .a import b`: b is a module, or a name in module a.
        graph[name] = {each if each in names else each.rpartition(".")[0] for each in found} - {name}
    return graph


def imported(path: Path) -> set[str]:
    """The full dotted names that a module of the package imports: modules, and what it takes from them."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            folder = path.relative_to(ROOT).parent.parts
            start = list(folder[: len(folder) + 1 - node.level]) if node.level else []
            module = ".".join([*start, *([node.module] if node.module else [])])
            found |= {f"{module}.{alias.name}" for alias in node.names}
    return found


def circles(graph: dict[str, set[str]]) -> list[str]:
    """Groups of modules that import each other, directly or by others."""
    reached: dict[str, set[str]] = {}
    for name in graph:
        reached[name], ahead = set(), [name]
        while ahead:
            new = graph[ahead.pop()] - reached[name]
            reached[name] |= new
            ahead += new
    groups = {tuple(sorted(to for to in reached[name] if name in reached[to])) for name in graph}
    return [" <-> ".join(group) for group in sorted(groups) if group]


def running_up(graph: dict[str, set[str]]) -> list[str]:
    """Imports of a module on a higher floor."""
    return sorted(f"{name} -> {to}" for name in graph for to in graph[name] if _floor(to) > _floor(name))


def foreign_in_sandbox() -> list[str]:
    """What modules that run in the sandbox import that is neither in the standard library nor runs there itself."""
    found = []
    for path in PACKAGE.rglob("*.py"):
        name = _module(path)
        if _floor(name) == FLOORS.index(IN_THE_SANDBOX):
            top = {each.partition(".")[0] for each in imported(path) if not _own(each)}
            found += [f"{name} -> {each}" for each in sorted(top - sys.stdlib_module_names)]
    return found


def _own(name: str) -> bool:
    return name.partition(".")[0] == "agentix_runner"


def _module(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix("__init__").rstrip(".")


def _floor(name: str) -> int:
    floors = [(part, floor) for floor, parts in enumerate(FLOORS) for part in parts]
    fitting = [(len(part), floor) for part, floor in floors if f"{name}.".startswith(f"{part}.")]
    return max(fitting, default=(0, len(FLOORS)))[1]


if __name__ == "__main__":
    sys.exit(main())
