"""A fixture that the tests of examples/run-swe-rollouts share."""

from ..support.swe_example import harness  # noqa: F401
