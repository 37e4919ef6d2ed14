"""The agent that has been there before: patches from a file of predictions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from attrs import field, frozen

from agentix_runner import AgentResult
from agentix_runner.errors import BadArgument


def read_predictions(path: str | Path) -> dict[str, dict[str, Any]]:
    """The predictions of a file, by instance id, in the forms that swebench reads: .jsonl, or .json with a list of them
    or with an object {id: prediction}.

    Raises:
        BadArgument: it is no such file.
    """
    try:
        text = Path(path).read_bytes().decode("utf-8", "surrogateescape")
        if str(path).endswith(".jsonl"):
            found = [json.loads(line) for line in text.split("\n") if line.strip()]
        else:
            found = json.loads(text)
    except (OSError, ValueError) as exc:
        raise BadArgument(f"{path} can't be read as predictions (.json or .jsonl): {exc}") from exc
    if isinstance(found, dict):
        found = list(found.values())
    if not isinstance(found, list) or not all(isinstance(p, dict) and "instance_id" in p for p in found):
        raise BadArgument(f"{path} holds something else than predictions: each needs an instance_id and a model_patch")
    for prediction in found:
        if not isinstance(prediction.get("model_patch"), (str, type(None))):
            raise BadArgument(f"{path}: the model_patch of {prediction['instance_id']} is no text")
    return {prediction["instance_id"]: prediction for prediction in found}


@frozen
class RecordedAgent:
    """Gives the patches of `predictions`, by instance id (see `read_predictions`)."""

    predictions: dict[str, dict[str, Any]] = field(repr=False)

    def solve(self, sandbox: Any, instance: dict[str, Any], *, model: str | None) -> AgentResult:
        try:
            prediction = self.predictions[instance["instance_id"]]
        except KeyError:
            raise LookupError(
                f"there is no prediction for {instance['instance_id']}: leave that instance out"
            ) from None
        info = {"model_name_or_path": prediction.get("model_name_or_path")}
        return AgentResult(patch=prediction["model_patch"] or "", info=info)
