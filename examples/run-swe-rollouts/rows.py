"""Rows in the format of swebench 5."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from agentix_runner.errors import BadArgument

TEXTS = ("instance_id", "repo", "version", "image", "eval_script", "log_parser", "eval_type")
LISTS = ("FAIL_TO_PASS", "PASS_TO_PASS")


def read_rows(path: str | Path) -> list[dict[str, Any]]:
    """The rows of a .jsonl file, or of a .json file with a list of them. Raises: BadArgument."""
    try:
        text = Path(path).read_text(encoding="utf-8")
        lines = (line for line in text.split("\n") if line.strip())
        rows = json.loads(text) if str(path).endswith(".json") else [json.loads(line) for line in lines]
    except (OSError, ValueError) as exc:
        raise BadArgument(f"{path} can't be read as rows, one JSON object a line: {exc}") from exc
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise BadArgument(f"{path} holds something else than rows: give one JSON object a line")
    return rows


def check(row: dict[str, Any]) -> None:
    """Raise BadArgument where a row can't be run: it is not in the format of swebench 5, or wants more than is here."""
    missing = [name for name in TEXTS if not isinstance(row.get(name), str) or not row[name]]
    missing += [name for name in LISTS if not isinstance(row.get(name), (str, list))]
    if missing:
        raise BadArgument(
            f"row {row.get('instance_id')!r} has no {', '.join(missing)}: it is of a revision from before swebench 5; "
            "the current revisions of SWE-bench/SWE-bench, _Lite, _Verified and _Multilingual have it (those of "
            "princeton-nlp/ do not)"
        )
    assets = row.get("image_assets") or {}
    if any((json.loads(assets) if isinstance(assets, str) else assets).values()):
        raise BadArgument(
            f"row {row['instance_id']!r} has image_assets, which are not brought here: leave that row out"
        )


def graded_part(row: dict[str, Any]) -> dict[str, Any]:
    """What of a row swebench reads to run and grade it. Raises: BadArgument."""
    check(row)
    return {name: row[name] for name in TEXTS + LISTS}
