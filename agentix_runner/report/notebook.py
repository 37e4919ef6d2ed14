"""Rollouts as Jupyter shows them, and as a pandas DataFrame. Needs neither, until it is asked for.

What comes from a run is untrusted: it is escaped, and cut to what a cell can hold.
"""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Sequence
from typing import Any, SupportsIndex, overload

from ..errors import BadArgument
from ..records import LIMITED_PHASES, STATUSES, Rollout, status_html, status_of
from ..rundir.summary import summarize, usage_of
from ..text import HTML_CELL, html_line, plural, seconds

SHOWN = 20
"""How many rows a list of rollouts is shown with: so many from its beginning and its end together."""


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
        "status": status_of(rollout),
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
    counts = Counter(map(status_of, rollouts))
    told = ", ".join(f"{counts[status]} {status.replace('_', ' ')}" for status in STATUSES if counts[status])
    rate = summarize(rollouts)["resolved_rate"]
    head = [plural(len(rollouts), "rollout"), *([told] if told else [])]
    head += [f"resolved rate {rate:.1%}"] if rate is not None else []
    attempts = any(rollout.attempt for rollout in rollouts)
    names = ["instance", *(["attempt"] if attempts else []), "status", "duration", "error"]
    if counts["error"] + counts["not_run"] == 0:
        names.remove("error")
    rows = [_table_row(rollout, names) for rollout in rollouts]
    if len(rows) > SHOWN:
        more = f'<tr><td colspan="{len(names)}" style="{HTML_CELL}">… {len(rows) - SHOWN} more …</td></tr>'
        rows[SHOWN // 2 : len(rows) - SHOWN // 2] = [more]
    header = "".join(f'<th style="{HTML_CELL}">{name}</th>' for name in names)
    table = f"<table><thead><tr>{header}</tr></thead><tbody>{''.join(rows)}</tbody></table>" if rows else ""
    return f"<div><p>{' · '.join(map(html.escape, head))}</p>{table}</div>"


def _table_row(rollout: Rollout, names: Sequence[str]) -> str:
    cells = {
        "instance": html_line(rollout.instance_id, 80),
        "attempt": str(rollout.attempt),
        "status": status_html(rollout),
        "duration": seconds(rollout.duration_s),
        "error": html_line(rollout.error or "", 120),
    }
    return f"<tr>{''.join(f'<td style={HTML_CELL!r}>{cells[name]}</td>' for name in names)}</tr>"
