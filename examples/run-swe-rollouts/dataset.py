"""SWE-bench, and what is in its row format: SweDataset."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from attrs import field, frozen
from harness import Harness, HarnessError, NotInstalled
from rows import check, check_ids, graded_part, read_rows
from scoring import apply, grade, run_tests
from testbed import CLEAN, MIB, WORKDIR, exclusions

from agentix_runner.errors import BadArgument
from agentix_runner.remote.tools import bash, read_file, write_file


@frozen(kw_only=True)
class SweDataset:
    """Rows in the format of swebench 5. Each names its image, its test script and how the script's output is read.

    Args:
        rows: the rows, or the path of a file of them (see `read_rows`).
        name: the dataset's name, where there is no `rows`: swebench's alias ("verified"), a hub's name or a path.
        split: which part of it.
        eval_timeout: how long a row's test script may run, in seconds.
        max_log: most bytes of its output. A script that prints more is an error, as its log can't be graded.
    """

    rows: Any = field(default=None, repr=False)
    name: str | None = None
    split: str = "test"
    eval_timeout: float = field(default=1800)
    max_log: int = 64 * MIB
    harness: Harness = field(factory=Harness, repr=False, eq=False)

    @eval_timeout.validator
    def _above_zero(self, _: Any, value: float) -> None:
        if not value > 0:
            raise BadArgument(f"eval_timeout is {value!r}: it must be above 0 seconds")

    def instances(self) -> Iterable[dict[str, Any]]:
        """The rows. Raises: BadArgument where they can't be read or loaded."""
        if self.rows is not None:
            return read_rows(self.rows) if isinstance(self.rows, (str, Path)) else self.rows
        name = self.name or "SWE-bench/SWE-bench"
        try:
            return self.harness.ask("rows", name=name, split=self.split)
        except NotInstalled as exc:
            raise BadArgument(str(exc)) from exc
        except HarnessError as exc:
            raise BadArgument(
                f"the dataset {name!r}, split {self.split!r}, can't be loaded: is it there, and the network (or "
                f"HF_HOME, where it was downloaded)? Rows can also be given as a file, with --rows. {exc}"
            ) from exc

    def check(self, rows: list[dict[str, Any]]) -> None:
        """Raise BadArgument where one of `rows` can't be run or graded."""
        check_ids(rows)
        grading: dict[tuple[str, str], str] = {}
        for row in rows:
            check(row)
            grading.setdefault((row["log_parser"], row["eval_type"]), row["instance_id"])
        for (log_parser, eval_type), name in grading.items():
            try:
                self.harness.ask("check", log_parser=log_parser, eval_type=eval_type)
            except HarnessError as exc:
                raise BadArgument(f"row {name!r:.200} can't be graded: {exc}") from exc

    def image(self, instance: dict[str, Any]) -> str:
        check(instance)
        return instance["image"]

    def setup(self, sandbox: Any, instance: dict[str, Any]) -> bool:
        """Put /testbed into its clean state: nothing to commit, whatever the image comes with."""
        self.harness.start()
        relative, lines = exclusions(sandbox.remote(bash, **CLEAN))
        path = str(Path(WORKDIR, relative))
        sandbox.remote(write_file, path, sandbox.remote(read_file, path) + lines.encode("utf-8", "surrogateescape"))
        return True

    def score(self, sandbox: Any, instance: dict[str, Any], patch: str) -> dict[str, Any]:
        """swebench's own report, where it failed, and the end of the log. Raises where the machine failed and not the
        patch."""
        row = graded_part(instance)
        spec = self.harness.ask("spec", row=row)
        applied, said = apply(sandbox, spec, patch)
        if not applied:
            return grade(self.harness, row, patch, said, stage="apply")
        ran = run_tests(sandbox, spec, timeout=self.eval_timeout, max_log=self.max_log)
        stage = "timeout" if ran.timed_out else None
        return grade(self.harness, row, patch, ran.stdout, stage=stage, exit_code=ran.exit_code)
