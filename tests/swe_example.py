"""What the tests of examples/run-swe-rollouts share: its folder on the path, as it is when its main.py runs."""

from __future__ import annotations

import base64
import functools
import importlib.util
import json
import os
import sys
import urllib.parse
from pathlib import Path
from typing import NoReturn

import pytest

EXAMPLE = Path(__file__).parent.parent / "examples" / "run-swe-rollouts"
REQUIRE = "AGENTIX_REQUIRE_SWE"

if str(EXAMPLE) not in sys.path:
    sys.path.insert(0, str(EXAMPLE))


@functools.cache
def installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def need(package: str, extra: str) -> None:
    """Skip the test without `package`; fail it where the environment requires the extras of this example."""
    if not installed(package):
        missing(f"{package} is not installed: pip install -e '.[{extra}]'")


def required() -> bool:
    """Whether the environment requires what the tests of this example need, as CI does."""
    return os.environ.get(REQUIRE) == "1"


def missing(reason: str) -> NoReturn:
    """Skip the test for `reason`; fail it where that is required."""
    if required():
        pytest.fail(f"{REQUIRE}=1, but {reason}", pytrace=False)
    pytest.skip(reason)


def spellings(key: str) -> set[str]:
    """A key as it might turn up: as it is, quoted for a URL or JSON, in base64 (as in Basic auth), in hex."""
    found = {key, urllib.parse.quote(key), urllib.parse.quote(key, safe=""), json.dumps(key)[1:-1], key.encode().hex()}
    for before in ("", "x", "xx"):  # where it begins within three bytes decides how its base64 looks
        coded = base64.b64encode((before + key).encode()).decode()
        found.add(coded[4:-4] if before else coded.rstrip("="))
    return found


def where_key_is(key: str, folder: Path, *texts: str) -> list[str]:
    """Which of `texts`, and of the files in `folder`, hold `key` in any spelling."""
    everything = {text[:200]: text for text in texts}
    for path in folder.rglob("*"):
        if path.is_file():
            everything[str(path)] = path.read_bytes().decode("latin-1")
    return [name for name, text in everything.items() if any(spelling in text for spelling in spellings(key))]
