"""Rows in the format of swebench 5."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from jsonfiles import has_bytes, read_lines, read_whole

from agentix_runner.errors import BadArgument

TEXTS = ("instance_id", "repo", "version", "image", "eval_script", "log_parser", "eval_type")
LISTS = ("FAIL_TO_PASS", "PASS_TO_PASS")


def read_rows(path: str | Path) -> list[dict[str, Any]]:
    """The rows of a .jsonl file, or of a .json file with a list of them. Raises: BadArgument."""
    read = read_whole if str(path).endswith(".json") else read_lines
    rows = read(path, what="rows, one JSON object a line")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise BadArgument(f"{path} holds something else than rows: give one JSON object a line")
    return rows


def check_ids(rows: list[dict[str, Any]]) -> None:
    """Raise BadArgument where a row can't be told from others by its "instance_id", a text."""
    for number, row in enumerate(rows, 1):
        if not isinstance(row.get("instance_id"), str) or not row["instance_id"]:
            given = f"the instance_id {row['instance_id']!r:.80}" if "instance_id" in row else "no instance_id"
            raise BadArgument(f"row {number} has {given}: give each row one, a text")


def check(row: dict[str, Any]) -> None:
    """Raise BadArgument where a row can't be run: it is not in the format of swebench 5, or wants more than is here."""
    missing = [name for name in TEXTS if not isinstance(row.get(name), str) or not row[name]]
    missing += [name for name in LISTS if not isinstance(row.get(name), (str, list))]
    name = f"row {row.get('instance_id')!r:.200}"
    if missing:
        raise BadArgument(
            f"{name} has no {', '.join(missing)}: it is of a revision from before swebench 5; "
            "the current revisions of SWE-bench/SWE-bench, _Lite, _Verified and _Multilingual have it (those of "
            "princeton-nlp/ do not)"
        )
    odd = [field for field in (*TEXTS, "patch", "problem_statement") if not has_bytes(str(row.get(field)))]
    if odd:
        raise BadArgument(f"{name} has half a character (a lone surrogate) in {odd[0]}: leave that row out")
    for field in LISTS:
        tests = _unpacked(row[field])
        if not isinstance(tests, list) or not all(isinstance(test, str) for test in tests):
            raise BadArgument(f"{name} has {field}={row[field]!r:.80}: give a list of names of tests, or it as JSON")
    assets = _unpacked(row.get("image_assets") or {})
    if not isinstance(assets, dict):
        raise BadArgument(f"{name} has image_assets={row['image_assets']!r:.80}: give an object, or it as JSON")
    if any(assets.values()):
        raise BadArgument(f"{name} has image_assets, which are not brought here: leave that row out")


def need(row: dict[str, Any], field: str, why: str) -> None:
    """Raise BadArgument where a row has no text in `field`, which `why` needs."""
    if not isinstance(row.get(field), str) or not row[field].strip():
        raise BadArgument(f"row {row['instance_id']!r:.200} has no {field}, which {why} needs: leave that row out")


def graded_part(row: dict[str, Any]) -> dict[str, Any]:
    """What of a row swebench reads to run and grade it. Raises: BadArgument."""
    check(row)
    return {name: row[name] for name in TEXTS + LISTS}


def _unpacked(value: Any) -> Any:
    """What a text of JSON holds; None where it is none."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        return None
