"""The report on the package's size and layers measures what it says."""

from __future__ import annotations

from . import house
from .test_import import KNOWN_CIRCLES, KNOWN_UP


def test_code_is_what_is_no_blank_comment_or_docstring() -> None:
    """A docstring of several lines and a comment are words; an expression over two lines is two of code."""
    source = (
        '"""Says\nwhat."""\n\n# Why.\nx = (1,  # one\n  2)\n\n\ndef f():\n    """Does."""\n    return """a\n\nb"""\n'
    )
    assert house.size_of(source) == (6, 5, 4, 13)


def test_circles_are_found_also_by_way_of_others() -> None:
    """A module that only leads to a circle is no part of it."""
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}, "e": {"f"}, "f": {"e"}}
    assert house.circles(graph) == ["a <-> b <-> c", "e <-> f"]


def test_an_import_that_runs_up_is_found() -> None:
    """By the longest name that fits; the package's own names are above everything."""
    graph = {"remote.host.calls": {"providers.sandbox", "tunnel.tunnel"}, "providers.sandbox": {"tunnel", "text"}}
    assert house.running_up({**graph, "cli.run": {"runner", ""}}) == [
        "cli.run -> ",
        "remote.host.calls -> providers.sandbox",
        "remote.host.calls -> tunnel.tunnel",
    ]


def test_what_is_known_is_still_there() -> None:
    """What has been mended is taken off the list."""
    graph = house.imports()
    assert KNOWN_UP - set(house.running_up(graph)) == set()
    circles = [set(circle.split(" <-> ")) for circle in house.circles(graph)]
    assert [known for known in KNOWN_CIRCLES if not any(circle <= known for circle in circles)] == []
