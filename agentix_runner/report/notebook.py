"""Rollouts as Jupyter shows them, and as a pandas DataFrame. Needs neither, until it is asked for.

What comes from a run is untrusted: it is escaped, and cut to what a cell can hold.
"""

from __future__ import annotations

import html
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, SupportsIndex, overload

from ..errors import BadArgument
from ..records import LIMITED_PHASES, Rollout
from ..rundir.summary import STATUSES, summarize, usage_of
from ..text import clean, plural, printable, seconds

SHOWN = 20
"""How many rows a list of rollouts is shown with: so many from its beginning and its end together."""
MAX_TEXT = 20_000  # characters of one text

_COLORS = {"resolved": "#2c9c69", "unresolved": "#d8932a", "error": "#d1453f", "setup_failed": "#8d62c9"}
_LEFT = "text-align:left;vertical-align:top"


class Rollouts(list[Rollout]):
    """A list of rollouts that Jupyter shows as a table. In everything else it is a list; a slice of it is one too."""

    __slots__ = ()

    @overload
    def __getitem__(self, index: SupportsIndex, /) -> Rollout: ...
    @overload
    def __getitem__(self, index: slice, /) -> Rollouts: ...
    def __getitem__(self, index: SupportsIndex | slice, /) -> Rollout | Rollouts:
        if isinstance(index, slice):
            return Rollouts(super().__getitem__(index))
        return super().__getitem__(index)

    def _repr_html_(self) -> str:
        return rollouts_html(self)

    def to_pandas(self) -> Any:
        """A pandas DataFrame with a row for each rollout.

        Columns: instance_id, attempt, status, resolved, reward, duration_s, the seconds of each phase (session_s, ...:
        both sandboxes together), what the agent noted of tokens and cost, agent_exit, model, started_at, error, patch,
        score, info.

        Raises:
            BadArgument: pandas is not installed.
        """
        try:
            import pandas
        except ImportError:
            raise BadArgument("to_pandas() needs pandas: pip install pandas") from None
        # Where there is pyarrow, pandas keeps text in it, which takes none of the bytes that are no UTF-8.
        with pandas.option_context("mode.string_storage", "python"):
            frame = pandas.DataFrame(list(map(_record, self)), columns=None if self else list(_record(Rollout(""))))
        frame["started_at"] = pandas.to_datetime(frame["started_at"], unit="s", utc=True)
        return frame


def _record(rollout: Rollout) -> dict[str, Any]:
    spent = dict.fromkeys((f"{phase}_s" for phase in LIMITED_PHASES), 0.0)
    for name, start, end in rollout.phases:
        spent[f"{name}_s"] = spent.get(f"{name}_s", 0.0) + end - start
    return {
        "instance_id": rollout.instance_id,
        "attempt": rollout.attempt,
        "status": _status(rollout),
        "resolved": rollout.resolved,
        "reward": rollout.reward,
        "duration_s": rollout.duration_s,
        **spent,
        **dict(usage_of(rollout.info)),
        "agent_exit": rollout.agent_exit,
        "model": rollout.model,
        "started_at": rollout.started_at,
        "error": rollout.error,
        "patch": rollout.patch,
        "score": rollout.score,
        "info": rollout.info,
    }


def rollouts_html(rollouts: Sequence[Rollout]) -> str:
    """Rollouts as an HTML table, with a line of counts above it."""
    counts = Counter(map(_status, rollouts))
    told = ", ".join(f"{counts[status]} {_words(status)}" for status in STATUSES if counts[status])
    rate = summarize(rollouts)["resolved_rate"]
    head = [plural(len(rollouts), "rollout"), *([told] if told else [])]
    head += [f"resolved rate {rate:.1%}"] if rate is not None else []
    attempts = any(rollout.attempt for rollout in rollouts)
    names = ["instance", *(["attempt"] if attempts else []), "status", "duration", "error"]
    if counts["error"] + counts["not_run"] == 0:
        names.remove("error")
    rows = [_table_row(rollout, names) for rollout in rollouts]
    if len(rows) > SHOWN:
        more = f'<tr><td colspan="{len(names)}" style="{_LEFT}">… {len(rows) - SHOWN} more …</td></tr>'
        rows[SHOWN // 2 : len(rows) - SHOWN // 2] = [more]
    header = "".join(f'<th style="{_LEFT}">{name}</th>' for name in names)
    table = f"<table><thead><tr>{header}</tr></thead><tbody>{''.join(rows)}</tbody></table>" if rows else ""
    return f"<div><p>{' · '.join(map(html.escape, head))}</p>{table}</div>"


def rollout_html(rollout: Rollout) -> str:
    """One rollout as an HTML table: all of it, the long parts folded."""
    return f"<table><tbody>{''.join(_fields(rollout))}</tbody></table>"


def _fields(rollout: Rollout) -> Iterator[str]:
    yield _field("instance", _line(rollout.instance_id, 400))
    if rollout.attempt:
        yield _field("attempt", str(rollout.attempt))
    yield _field("status", _badge(rollout))
    if rollout.error is not None:
        failure = rollout.failure
        text = _line(rollout.error, 2000)
        yield _field(f"error in {_line(failure.phase, 40)}" if failure else "error", text)
        if failure and failure.traceback:
            yield _field("traceback", _folded(failure.traceback))
    yield _field("duration", seconds(rollout.duration_s))
    if rollout.phases:
        yield _field("phases", ", ".join(f"{_line(n, 40)} {seconds(end - start)}" for n, start, end in rollout.phases))
    for name, data in (("score", rollout.score), ("info", rollout.info)):
        if data:
            yield _field(name, _bag(data))
    if rollout.model is not None:
        yield _field("model", _line(rollout.model, 200))
    if rollout.patch:
        yield _field("patch", _folded(rollout.patch))


def _field(name: str, value: str) -> str:
    return f'<tr><th style="{_LEFT}">{name}</th><td style="{_LEFT}">{value}</td></tr>'


def _table_row(rollout: Rollout, names: Sequence[str]) -> str:
    cells = {
        "instance": _line(rollout.instance_id, 80),
        "attempt": str(rollout.attempt),
        "status": _badge(rollout),
        "duration": seconds(rollout.duration_s),
        "error": _line(rollout.error or "", 120),
    }
    return f"<tr>{''.join(f'<td style={_LEFT!r}>{cells[name]}</td>' for name in names)}</tr>"


def _badge(rollout: Rollout) -> str:
    status = _status(rollout)
    return f'<span style="color:{_COLORS.get(status, "#8f9bab")}">●</span>&nbsp;{_words(status)}'


def _bag(data: Mapping[str, Any]) -> str:
    text = json.dumps(data, indent=2, ensure_ascii=False, default=repr)
    return _folded(text) if len(text) > 300 else f"<pre>{_text(text)}</pre>"


def _folded(text: str) -> str:
    count = plural(text.count("\n") + (not text.endswith("\n")), "line")
    return f"<details><summary>{count}</summary><pre>{_text(text)}</pre></details>"


def _line(text: str, limit: int) -> str:
    return html.escape(clean(text, limit))


def _text(text: str) -> str:
    return html.escape(printable(text if len(text) <= MAX_TEXT else text[:MAX_TEXT] + "\n[cut here]"))


def _status(rollout: Rollout) -> str:
    return rollout.status if rollout.ran else "not_run"


def _words(status: str) -> str:
    return status.replace("_", " ")
