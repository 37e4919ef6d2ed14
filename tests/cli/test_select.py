"""Which instances of a dataset are run."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from agentix_runner.cli.select import choose
from agentix_runner.errors import BadArgument

TEN = [{"id": f"task/{i}"} for i in range(10)]


def ids(instances: Any = TEN, **how: Any) -> list[str]:
    return [i["id"].removeprefix("task/") for i in choose(instances, **how)]


def test_everything() -> None:
    """Without a choice all instances are run, in the dataset's order."""
    assert "".join(ids()) == "0123456789"


def test_limit_and_slice() -> None:
    """The limit takes from what the slice leaves."""
    assert ids(limit=2) == ["0", "1"]
    assert ids(part=slice(3, 9), limit=2) == ["3", "4"]
    assert ids(part=slice(-2, None)) == ["8", "9"]
    assert ids(part=slice(None, -7), limit=5) == ["0", "1", "2"]


def test_ids() -> None:
    """Ids are exact or globs, each instance once, in the dataset's order."""
    assert ids(ids=["task/7", "task/[1-3]", "*/2"]) == ["1", "2", "3", "7"]


def test_id_that_looks_like_a_glob() -> None:
    """An id that holds what a glob gives a meaning is found by its own text."""
    assert ids([{"id": "a[1]"}, {"id": "a1"}], ids=["a[1]"]) == ["a[1]", "a1"]
    assert ids([{"id": "a[2]"}, {"id": "a1"}], ids=["a[2]"]) == ["a[2]"]


def test_shuffle() -> None:
    """The same seed gives the same order, another one another, and the filter comes after it."""
    order = ids(shuffle=7)
    assert order == ids(shuffle=7)
    assert order != ids(shuffle=8)
    assert sorted(order) == ids()
    assert ids(shuffle=7, ids=["task/[1-4]"]) == [i for i in order if i in "1234"]
    assert ids(shuffle=7, part=slice(2, 5), limit=2) == order[2:4]


def test_unknown_id() -> None:
    """An id or a glob that matches nothing is refused, with the closest ids."""
    with pytest.raises(BadArgument) as caught:
        ids(ids=["task/1", "tusk/3"])
    text = str(caught.value)
    assert text.startswith("--instance-id tusk/3: none of the 10 instances has such an id; there are task/3, ")


def test_nothing_left() -> None:
    """A choice that leaves nothing, and a dataset of nothing, are refused."""
    with pytest.raises(BadArgument, match="--slice leaves no instance"):
        ids(part=slice(20, None))
    with pytest.raises(BadArgument, match="the dataset has no instances"):
        ids([])


@pytest.mark.parametrize("how", [{"limit": 2}, {"part": slice(0, 2)}, {"part": slice(0, None), "limit": 2}])
def test_endless_dataset(how: dict[str, Any]) -> None:
    """Of a dataset that never ends, no more is read than is run."""
    endless = ({"id": str(i)} for i in itertools.count())
    assert ids(endless, **how) == ["0", "1"]
    assert next(endless) == {"id": "2"}


def test_instance_without_id() -> None:
    """Looking for ids, an instance without one is an error that names it."""
    with pytest.raises(BadArgument, match="instance 1 has no id"):
        ids([{"id": "a"}, {"name": "b"}], ids=["a"])
