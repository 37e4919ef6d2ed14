"""How what an adapter returned or raised becomes fields of its rollout."""

from __future__ import annotations

import traceback
from typing import Any

from ..errors import BadOutcome, RemoteError, Stopped, describe, is_transient, message_of, one_line
from ..records import NOT_RUN, Failure, Rollout
from ..rundir.jsonable import patch_text, to_jsonable, to_jsonable_or_repr

MESSAGE_CHARS = 20_000
TRACEBACK_CHARS = 50_000
"""What is kept of an error's message and of its traceback (its end): either may be a sandbox's own text."""


def take_setup(value: Any) -> bool:
    """What `setup` returned, as a bool. None is a forgotten `return`, and is not taken for a failed setup."""
    if value is None:
        raise BadOutcome("setup returned None: return True when the instance is ready, else False", where="setup")
    return bool(value)


def take_agent_result(rollout: Rollout, result: Any) -> None:
    """Put an AgentResult (or anything with its attributes) on the rollout.

    Raises: BadOutcome. What was good before that is kept.
    """
    if not hasattr(result, "patch"):
        raise BadOutcome(
            f"solve returned {type(result).__name__}: return AgentResult(patch=..., exit_code=..., info=...)",
            where="solve",
        )
    rollout.patch = patch_text(result.patch)
    rollout.info = _as_dict(to_jsonable_or_repr(getattr(result, "info", None) or {}))
    code = to_jsonable(getattr(result, "exit_code", None), "exit_code")
    if code is not None and (isinstance(code, bool) or not isinstance(code, int)):
        raise BadOutcome(f"exit_code is {code!r}: give a whole number or None", where="exit_code")
    rollout.agent_exit = code


def take_score(rollout: Rollout, score: Any) -> None:
    """Put what `score` returned on the rollout. Raises: BadOutcome."""
    value = to_jsonable(score, "score")
    if not isinstance(value, dict):
        raise BadOutcome(
            f'score returned {type(score).__name__}: return a dict such as {{"resolved": True}}', where="score"
        )
    resolved, reward = value.get("resolved"), value.get("reward")
    if not (resolved is None or isinstance(resolved, bool) or resolved in (0, 1)):
        raise BadOutcome(f'score["resolved"] is {resolved!r:.100}: give True or False', where='score["resolved"]')
    if not (reward is None or isinstance(reward, (bool, int, float))):
        raise BadOutcome(f'score["reward"] is {reward!r:.100}: give a number or nothing', where='score["reward"]')
    rollout.score = value


def failure_of(phase: str, exc: BaseException) -> Failure:
    """All that is kept of `exc`, which ended `phase`. Runs its `str()`: call it where a limit holds."""
    return Failure(
        phase=phase,
        type=exc.type_name if isinstance(exc, RemoteError) and exc.type_name else type(exc).__name__,
        message=message_of(exc)[:MESSAGE_CHARS],
        traceback=_traceback(exc)[-TRACEBACK_CHARS:],
        transient=is_transient(exc),
    )


def record_failure(rollout: Rollout, phase: str, exc: BaseException, failure: Failure | None = None) -> None:
    """Put `exc`, which ended `phase`, on the rollout; what it has already stays. `failure` is what is known of it."""
    rollout.skipped = None
    rollout.score = None
    if isinstance(exc, Stopped):
        rollout.error = f"{NOT_RUN}{exc}"
        return
    rollout.failure = failure or failure_of(phase, exc)
    rollout.error = one_line(type(exc).__name__, rollout.failure.message)


def _as_dict(info: Any) -> dict[str, Any]:
    return info if isinstance(info, dict) else {"info": info}


def _traceback(exc: BaseException) -> str:
    try:
        text = "".join(traceback.format_exception(exc))
    except Exception as broken:  # an exception whose parts raise when they are shown
        text = f"{describe(exc)} (its traceback can't be shown: {type(broken).__name__})"
    if isinstance(exc, RemoteError) and exc.remote_traceback:
        text += f"\nIn the sandbox:\n{exc.remote_traceback}"
    return text
