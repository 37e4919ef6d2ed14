"""The page: one HTML file with its style, its script and its data, that needs no network and runs no other script.

    <meta CSP>         nothing is loaded from anywhere; only the style and the script with these hashes apply
    <style> <body>     assets/page.css and page.html
    <script json>      the index of all runs
    <script>           the assets/*.js, in one function
    <script text>      one for each rollout: its details, packed; read when they are looked at

The script comes before the details, so that a large page is there before all of it is read.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from .._version import __version__
from .data import RunView
from .stats import compare

GENERATOR = "agentix report"
SCRIPTS = ("base.js", "charts.js", "timeline.js", "table.js", "details.js", "run.js", "compare.js", "page.js")
_ESCAPES = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"})


def page(runs: Sequence[RunView], *, made_at: float, live_s: float | None = None) -> Iterator[bytes]:
    """The page, piece by piece. `made_at` is a Unix time; with `live_s` it loads itself again every so many seconds."""
    index = {
        "version": __version__,
        "made_at": made_at,
        "live_s": live_s,
        "runs": [run.index for run in runs],
        "comparison": compare([run.tallies for run in runs]) if len(runs) > 1 else None,
    }
    title = " · ".join(run.index["name"] for run in runs)
    yield _head(title)
    yield f'<script type="application/json" id="data">{_json(index)}</script>\n'.encode("ascii")
    yield f"<script>{_script()}</script>\n".encode()
    for number, run in enumerate(runs):
        for row, details in enumerate(run.details):
            if details:
                yield f'<script type="text/plain" id="details-{number}-{row}">{details}</script>\n'.encode("ascii")
    yield b"</body>\n</html>\n"


def _json(data: Any) -> str:
    """JSON that is plain ASCII and can't end the element that it stands in."""
    return json.dumps(data, allow_nan=False, separators=(",", ":")).translate(_ESCAPES)


def _head(title: str) -> bytes:
    policy = (
        f"default-src 'none'; script-src {_hash(_script())}; style-src {_hash(_asset('page.css'))}; "
        "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'"
    )
    text = f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="generator" content="{GENERATOR}">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<meta name="color-scheme" content="light dark">
<title>{html.escape(_printable(title))}</title>
<style>{_asset("page.css")}</style>
</head>
{_asset("page.html")}"""
    return text.encode("utf-8", "backslashreplace")


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text[:300])


@cache
def _script() -> str:
    return '(() => {\n"use strict";\n' + "\n".join(_asset(name) for name in SCRIPTS) + "\n})();"


@cache
def _asset(name: str) -> str:
    return (files(__package__) / "assets" / name).read_text("utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
