"""Which instances of a dataset to run: shuffle, then ids, then slice, then limit."""

from __future__ import annotations

import difflib
import random
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from itertools import islice
from typing import Any

from ..batch.checks import instance_id_of
from ..errors import BadArgument
from ..text import clean


def choose(
    instances: Iterable[Any],
    *,
    shuffle: int | None = None,
    ids: Sequence[str] = (),
    part: slice | None = None,
    limit: int | None = None,
) -> list[Any]:
    """The chosen instances, in the order to run them.

    `shuffle` is a seed: the same one gives the same order. `ids` are ids or globs, `part` a slice of what they leave,
    `limit` the number to take of that. A dataset that never ends works where `part` or `limit` bound it.

    Raises:
        BadArgument: one of `ids` matches nothing, or no instance is left.
    """
    part = part or slice(None)
    if shuffle is None and not ids and min(part.start or 0, part.stop or 0) >= 0:
        chosen = list(islice(islice(instances, part.start, part.stop), limit))
    else:
        chosen = list(instances)
        if shuffle is not None:
            random.Random(shuffle).shuffle(chosen)
        if ids:
            chosen = _matching(chosen, ids)
        chosen = chosen[part][:limit]
    if not chosen:
        if part == slice(None):
            raise BadArgument("the dataset has no instances: there is nothing to run")
        raise BadArgument("--slice leaves no instance to run: choose another part of the dataset")
    return chosen


def _matching(instances: list[Any], patterns: Sequence[str]) -> list[Any]:
    ids = [instance_id_of(instance, index) for index, instance in enumerate(instances)]
    wanted = set()
    for pattern in patterns:
        # An id may itself hold what a glob gives a meaning ("a[1]"), so the same text always matches.
        found = {name for name in ids if name == pattern or fnmatchcase(name, pattern)}
        if not found:
            close = difflib.get_close_matches(pattern, ids, n=3, cutoff=0.5) or ids[:3]
            raise BadArgument(
                f"--instance-id {pattern}: none of the {len(ids)} instances has such an id; "
                f"there are {', '.join(clean(name, 80) for name in close) or 'no instances'}"
            )
        wanted |= found
    return [instance for instance, name in zip(instances, ids, strict=True) if name in wanted]
