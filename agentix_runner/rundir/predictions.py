"""preds.json: the patches of a run as the SWE-bench harness reads them, a file for each attempt."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from ..records import Rollout


def predictions_file(attempt: int) -> str:
    """The name of an attempt's file: preds.json, preds.1.json, ..."""
    return f"preds.{attempt}.json" if attempt else "preds.json"


def predictions(rollouts: Iterable[Rollout]) -> Iterator[bytes]:
    """The file's content, a piece at a time: {id: {instance_id, model_name_or_path, model_patch}}.

    In it is every rollout whose agent came to an end, also those with an empty patch, which the harness counts as such.
    What failed before there was a patch is not in it: the harness counts it as incomplete.
    """
    before = "{\n"
    for rollout in rollouts:
        if not rollout.patch and (rollout.error is not None or rollout.skipped == "setup_failed"):
            continue
        prediction = {
            "instance_id": rollout.instance_id,
            "model_name_or_path": rollout.model or "none",
            "model_patch": rollout.patch,
        }
        yield f"{before}{json.dumps(rollout.instance_id)}: {json.dumps(prediction)}".encode()
        before = ",\n"
    yield b"{}\n" if before == "{\n" else b"\n}\n"
