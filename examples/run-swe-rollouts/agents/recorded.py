"""The agent that has been there before: patches from a file of predictions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attrs import field, frozen
from jsonfiles import has_bytes, read_lines, read_whole

from agentix_runner import AgentResult
from agentix_runner.errors import BadArgument


def read_predictions(path: str | Path) -> dict[str, dict[str, Any]]:
    """The predictions of a file, by instance id, in the forms that swebench reads: .jsonl, or .json with a list of them
    or with an object {id: prediction}.

    Raises:
        BadArgument: it is no such file.
    """
    read = read_lines if str(path).endswith(".jsonl") else read_whole
    found = read(path, what="predictions (.json or .jsonl)", errors="surrogateescape")
    if isinstance(found, dict):
        found = list(found.values())
    if not isinstance(found, list) or not all(isinstance(p, dict) and "instance_id" in p for p in found):
        raise BadArgument(f"{path} holds something else than predictions: each needs an instance_id and a model_patch")
    if not found:
        raise BadArgument(f"{path} holds no predictions: there is nothing to run")
    predictions: dict[str, dict[str, Any]] = {}
    for prediction in found:
        name = prediction["instance_id"]
        if not isinstance(name, str) or not name:
            raise BadArgument(
                f"{path} has a prediction with the instance_id {name!r:.80}: give a text, the id of a row"
            )
        if "model_patch" not in prediction:
            raise BadArgument(
                f"{path}: the prediction for {name:.200} has no model_patch: give a text, or null for none"
            )
        if not isinstance(prediction["model_patch"], (str, type(None))):
            raise BadArgument(f"{path}: the model_patch of {name:.200} is no text")
        if not has_bytes(prediction["model_patch"] or ""):
            raise BadArgument(f"{path}: the model_patch of {name:.200} has half a character (a lone surrogate) in it")
        if name in predictions:
            raise BadArgument(f"{path} has two predictions for {name:.200}: leave one of them out")
        predictions[name] = prediction
    return predictions


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
