"""What runs in the process that `harness.py` starts: the only room that imports swebench. Host side.

A process of its own, because logs are written by what is tested: a line made to slow a parser's regular expressions
down would hold the interpreter for hours, and there it can be killed. One JSON line in, one out, over standard input,
which is a socket.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import socket
import sys
import time
from typing import Any

FOLDER = sys.argv[1]
CPU_S = {"rows": 1800}
"""How many seconds of a processor's time an answer may take; the others 300."""


def check(log_parser: str, eval_type: str) -> None:
    """Raise ValueError where a row can't be graded by what swebench has."""
    from swebench.harness.constants import EvalType
    from swebench.harness.log_parsers import PARSER_REGISTRY

    if log_parser not in PARSER_REGISTRY:
        known = ", ".join(sorted(PARSER_REGISTRY))
        raise ValueError(f"log_parser {log_parser!r} is none of swebench's: {known}")
    types = [each.value for each in EvalType]
    if eval_type not in types:
        raise ValueError(f"eval_type {eval_type!r} is none of swebench's: {', '.join(types)}")


def spec(row: dict[str, Any]) -> dict[str, Any]:
    """What a row's tests are run with: "eval_script", and how a patch is applied."""
    from swebench.harness.constants import CONTAINER_PATCH_FILE
    from swebench.harness.run_evaluation import GIT_APPLY_CMDS
    from swebench.harness.utils import make_test_spec

    check(row["log_parser"], row["eval_type"])
    return {
        "eval_script": make_test_spec(row).eval_script,
        "apply": GIT_APPLY_CMDS,
        "patch_file": CONTAINER_PATCH_FILE,
    }


def grade(row: dict[str, Any], patch: str, log: str, failed: str | None) -> dict[str, Any]:
    """The harness' own report of a log. `failed` ("apply" or "timeout") puts the harness' own mark of that into it."""
    from swebench.harness.constants import APPLY_PATCH_FAIL, TESTS_TIMEOUT
    from swebench.harness.grading import get_eval_report, parse_test_exit_code
    from swebench.harness.utils import make_test_spec

    mark = {"apply": APPLY_PATCH_FAIL, "timeout": TESTS_TIMEOUT, None: ""}[failed]
    test_spec = make_test_spec(row)
    prediction = {"instance_id": row["instance_id"], "model_name_or_path": "", "model_patch": patch}
    path = os.path.join(FOLDER, "test_output.txt")
    # As the harness does: in the encoding in which its own functions read the file.
    with open(path, "w", encoding="locale", errors="replace", newline="") as file:
        file.write(f"{log}\n{mark}" if mark else log)
    report = get_eval_report(test_spec, prediction, path, include_tests_status=True)[row["instance_id"]]
    return {"report": report, "exit_code": parse_test_exit_code(log)}


def rows(name: str, split: str) -> list[dict[str, Any]]:
    """The rows of a dataset by swebench's alias, a hub's name, or a path."""
    from swebench.cli._datasets import resolve_dataset
    from swebench.harness.utils import load_swebench_dataset

    return [dict(row) for row in load_swebench_dataset(resolve_dataset(name), split)]


def main() -> None:
    try:
        with socket.socket(fileno=os.dup(0)) as link, link.makefile("rb") as requests:
            with contextlib.suppress(ImportError):  # told when it is asked for
                import swebench.harness.run_evaluation  # noqa: F401
            for line in requests:
                request = json.loads(line)
                limit_cpu(CPU_S.get(request["ask"], 300))
                link.sendall(json.dumps(answer(request), default=str).encode() + b"\n")
    except OSError:
        """Whoever asked is gone."""
    finally:
        shutil.rmtree(FOLDER, ignore_errors=True)


def answer(request: dict[str, Any]) -> dict[str, Any]:
    try:
        return {
            "value": {"check": check, "spec": spec, "grade": grade, "rows": rows}[request["ask"]](**request["with"])
        }
    except Exception as exc:
        return {"error": str(exc), "type": type(exc).__name__}


def limit_cpu(seconds: int) -> None:
    """End this process where it takes more than `seconds` from now. Whoever asks gives up sooner; this is for when they
    are gone."""
    most = resource.getrlimit(resource.RLIMIT_CPU)[1]
    wanted = int(time.process_time()) + seconds
    resource.setrlimit(resource.RLIMIT_CPU, (wanted if most < 0 else min(wanted, most), most))


if __name__ == "__main__":
    main()
