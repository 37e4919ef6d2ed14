"""Names for files and folders that are made from names that others chose."""

from __future__ import annotations

import os
import re
import unicodedata
from pathlib import Path
from urllib.parse import unquote

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from agentix_runner.errors import BadArgument
from agentix_runner.rundir.names import is_cut, safe_file_name, safe_file_names, safe_name

_ids = st.text(st.characters(exclude_categories=()), min_size=1) | st.text("aAbB.~%/-_0", min_size=1)
_attempts = st.integers(0, 3) | st.integers(0, 10**9)


def _read_back(name: str) -> tuple[str, int]:
    """What a folder's name says, for anybody who can decode a URL."""
    stem, _, attempt = name.partition(".")
    return unquote(stem.partition("~")[0], errors="surrogatepass"), int(attempt or 0)


@pytest.mark.parametrize(
    ("instance_id", "attempt", "name"),
    [
        ("django__django-11099", 0, "django__django-11099"),
        ("django__django-11099", 1, "django__django-11099.1"),
        ("HumanEval/0", 0, "HumanEval%2f0~21"),
        ("Ab", 0, "Ab~1"),
        ("aB", 2, "aB~2.2"),
        ("AB", 0, "AB~3"),
        ("..", 0, "%2e%2e"),
        (".", 0, "%2e"),
        ("a.1", 0, "a%2e1"),
        ("run.json", 0, "run%2ejson"),
        ("-rf", 0, "%2drf"),
        ("a~1", 0, "a%7e1"),
        ("%2e", 0, "%252e"),
        ("/etc/passwd", 0, "%2fetc%2fpasswd"),
        ("é", 0, "%c3%a9"),
        ("a\x00\n\udcff", 0, "a%00%0a%ed%b3%bf"),
    ],
)
def test_name_of_an_instance(instance_id: str, attempt: int, name: str) -> None:
    """A usual id is its own name; what is special to a file system is encoded; and the id can be read back."""
    assert safe_name(instance_id, attempt) == name
    assert _read_back(name) == (instance_id, attempt)


@given(_ids, _attempts)
@example("x" * 151, 7)
@example("\U0010ffff" * 200, 10**9)
def test_names_are_safe(instance_id: str, attempt: int) -> None:
    """A name is short ASCII without anything that a shell or a file system takes specially, and reversible."""
    name = safe_name(instance_id, attempt)

    assert len(name.encode("ascii")) < 255
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.~%")
    assert name[0] not in "-.~"
    assert unicodedata.normalize("NFD", name) == name
    if not is_cut(name):
        assert _read_back(name) == (instance_id, attempt)


@given(_ids, _ids, _attempts, _attempts)
@example("abc.1", "abc", 0, 1)
@example("\u00e9", "e\u0301", 0, 0)
@example("K", "\u212a", 0, 0)
@example("x" * 200, "X" * 200, 0, 0)
@example("\ud83d\ude00", "\U0001f600", 0, 0)
def test_names_never_meet(one: str, two: str, attempt_one: int, attempt_two: int) -> None:
    """Two rollouts never share a name, also where case is ignored and Unicode normalised."""
    assume((one, attempt_one) != (two, attempt_two))

    assert safe_name(one, attempt_one).casefold() != safe_name(two, attempt_two).casefold()


@given(st.text("aAbBcC", min_size=1, max_size=8))
def test_case_alone_tells_names_apart(instance_id: str) -> None:
    """Ids that differ by case alone have names that differ by more."""
    for other in (instance_id.lower(), instance_id.upper(), instance_id.swapcase()):
        if other != instance_id:
            assert safe_name(other).lower() != safe_name(instance_id).lower()


def test_long_ids_are_cut() -> None:
    """An id that is too long keeps a readable beginning, whole escapes, and a hash that tells it from others."""
    one, two = safe_name("é" * 300 + "1"), safe_name("é" * 300 + "2")

    assert one != two
    assert one.startswith("%c3%a9%c3%a9")
    assert re.fullmatch("(%[0-9a-f]{2})+~~[0-9a-f]{32}", one)
    assert len(one) < 150
    assert safe_name("é" * 300 + "1", 3) == one + ".3"


@pytest.mark.parametrize(("instance_id", "attempt"), [("", 0), ("a", -1)])
def test_what_has_no_name(instance_id: str, attempt: int) -> None:
    """An empty id and a negative attempt are errors."""
    with pytest.raises(BadArgument, match="the id must not be empty, the attempt 0 or more"):
        safe_name(instance_id, attempt)


@pytest.mark.parametrize(
    ("name", "safe"),
    [
        ("trajectory.json", "trajectory.json"),
        ("README.md", "README.md"),
        ("../../etc/passwd", "%2e.%2f..%2fetc%2fpasswd"),
        ("/abs", "%2fabs"),
        (".bashrc", "%2ebashrc"),
        ("..", "%2e."),
        ("", "%"),
        ("-rf", "%2drf"),
        ("patch.diff", "%70atch.diff"),
        ("PATCH.diff", "%50ATCH.diff"),
        ("sandbox.log", "%73andbox.log"),
        ("instance.json", "%69nstance.json"),
        ("a b\x00.txt", "a%20b%00.txt"),
    ],
)
def test_file_name(name: str, safe: str) -> None:
    """A file that an agent saves keeps its name where it can; it is never a path, hidden, or a file of a run."""
    assert safe_file_name(name) == safe


def test_long_file_name_keeps_its_extension() -> None:
    """A file name that is too long is cut in the middle."""
    name = safe_file_name("x" * 300 + ".traj.json")

    assert name.startswith("xxx")
    assert name.endswith(".traj.json")
    assert len(name) < 150


@given(st.sets(st.text(st.characters(exclude_categories=()), max_size=5) | st.text("aA.~%/"), max_size=20))
@example({"README.md", "readme.md", "Readme.md"})
@example({"A", "a", "%41"})
def test_file_names_never_meet(names: set[str]) -> None:
    """Files that an agent saves never overwrite each other, also where case is ignored."""
    safe = safe_file_names(names)

    assert set(safe) == names
    assert len({made.casefold() for made in safe.values()}) == len(names)
    assert all(0 < len(made) < 255 and "/" not in made and not made.startswith(".") for made in safe.values())
    assert not {made.lower() for made in safe.values()} & {"patch.diff", "sandbox.log", "instance.json"}


def test_names_work_on_disk(tmp_path: Path) -> None:
    """The file system takes the names, each as a file of its own."""
    ids = ["a", "A", "..", "a/b", "\ud800", "é", "e\u0301", "x" * 1000, "X" * 1000, "\n", "a.1", "CON", "~"]

    for instance_id in ids:
        (tmp_path / safe_name(instance_id)).mkdir()

    assert sorted(os.listdir(tmp_path)) == sorted(map(safe_name, ids))
