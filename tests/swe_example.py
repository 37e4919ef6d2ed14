"""What the tests of examples/run-swe-rollouts share: its folder on the path, as it is when its main.py runs."""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
from pathlib import Path

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
    if installed(package):
        return
    reason = f"{package} is not installed: pip install -e '.[{extra}]'"
    if os.environ.get(REQUIRE) == "1":
        pytest.fail(f"{REQUIRE}=1, but {reason}", pytrace=False)
    pytest.skip(reason)
