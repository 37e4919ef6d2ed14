"""The choreography of a rollout, seen from outside."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from agentix_runner import AgentResult, Resource, Rollout, SandboxConfig, iter_rollouts, rollout_one, run_rollouts
from tests.support.fakes import (
    AsyncAgent,
    AsyncDataset,
    AsyncProvider,
    Ledger,
    PlainAgent,
    PlainDataset,
    Solver,
    SyncProvider,
    SyncSandbox,
)

PHASES = ["session", "setup", "agent", "teardown", "session", "score", "teardown"]


def run(agent: Any = None, dataset: Any = None, provider: Any = None, **kwargs: Any) -> list[Rollout]:
    return run_rollouts(
        dataset=dataset or PlainDataset(),
        agent=agent or PlainAgent(),
        provider=provider or SyncProvider(),
        **kwargs,
    )


@pytest.mark.parametrize(
    ("provider", "dataset", "agent"),
    list(itertools.product([SyncProvider, AsyncProvider], [PlainDataset, AsyncDataset], [PlainAgent, AsyncAgent])),
)
@pytest.mark.usefixtures("no_threads_left")
def test_all_eight_combinations_of_sync_and_async_give_the_same_rollout(
    provider: Any, dataset: Any, agent: Any
) -> None:
    """Provider, dataset and agent may each be sync or async; the outcome does not depend on it."""
    ledger = Ledger()
    rollouts = run(agent(), dataset(3), provider(ledger), n_concurrent=2, model="m", bundle="b:1")
    assert [r.instance_id for r in rollouts] == ["i0", "i1", "i2"]
    for rollout in rollouts:
        assert rollout.error is None
        assert rollout.status == "resolved"
        assert rollout.patch == f"PATCH OF {rollout.instance_id.upper()}"
        assert rollout.score == {"resolved": True, "patch": rollout.patch}
        assert rollout.agent_exit == 0
        assert rollout.info == {"model": "m"}
        assert rollout.model == "m"
        assert [name for name, _, _ in rollout.phases] == PHASES
    assert ledger.open == 0


def test_phases_follow_each_other_within_the_duration() -> None:
    """Each phase starts after the one before has ended, and the last ends before the rollout's duration is over."""
    [rollout] = run()
    times = [t for _, start, end in rollout.phases for t in (start, end)]
    assert times == sorted(times)
    assert times[0] >= 0
    assert times[-1] <= rollout.duration_s


def test_the_agents_sandbox_is_gone_before_scoring_starts() -> None:
    """Nothing the agent left running can touch the score: its session has ended before the second one begins."""
    ledger = Ledger()

    class Dataset(PlainDataset):
        def score(self, sandbox: Any, instance: dict[str, Any], patch: str) -> dict[str, Any]:
            ledger.note("score", ledger.open)
            return {"resolved": True}

    run(dataset=Dataset(), provider=SyncProvider(ledger))
    image = "image-i0"
    assert ledger.events == [("open", image), ("close", image), ("open", image), ("score", 1), ("close", image)]


class FailingExit:
    """A provider whose sessions of a phase can't be left."""

    def __init__(self, phase: str) -> None:
        self.phase = phase

    @contextmanager
    def session(self, config: SandboxConfig) -> Iterator[SyncSandbox]:
        yield SyncSandbox(config)
        if config.labels["phase"] == self.phase:
            raise OSError("can't remove it")


def test_there_is_no_scoring_where_the_agents_sandbox_may_still_run() -> None:
    """If the end of the agent's sandbox can't be confirmed, the patch and the error are kept, and nothing is scored."""
    [rollout] = run(provider=FailingExit("agent"))
    assert rollout.patch == "PATCH OF I0"
    assert rollout.score is None
    assert rollout.error == "OSError: can't remove it"
    assert rollout.failure is not None
    assert rollout.failure.phase == "teardown"


def test_a_failed_teardown_after_scoring_keeps_the_score() -> None:
    """The verdict is in: that its sandbox could not be removed does not change it."""
    [rollout] = run(provider=FailingExit("score"))
    assert rollout.resolved
    assert rollout.error is None


def test_a_failed_teardown_does_not_replace_the_agents_own_error() -> None:
    """What is told is what went wrong first."""

    def solve(sandbox: Any, instance: Any) -> AgentResult:
        raise LookupError("the agent's own")

    [rollout] = run(Solver(solve), provider=FailingExit("agent"))
    assert rollout.error == "LookupError: the agent's own"
    assert rollout.failure is not None
    assert rollout.failure.phase == "agent"
    assert "test_runner.py" in rollout.failure.traceback


def test_a_patch_survives_a_failing_score() -> None:
    """An error in score() keeps the patch, the exit code and the info that the agent made."""

    class Dataset(PlainDataset):
        def score(self, sandbox: Any, instance: Any, patch: str) -> Any:
            raise RuntimeError("grading is broken")

    [rollout] = run(dataset=Dataset(), model="m")
    assert (rollout.patch, rollout.agent_exit, rollout.info) == ("PATCH OF I0", 0, {"model": "m"})
    assert rollout.error == "RuntimeError: grading is broken"
    assert rollout.score is None
    assert rollout.reward is None
    assert rollout.failure is not None
    assert rollout.failure.phase == "score"


def test_a_patch_survives_a_second_sandbox_that_can_not_be_made() -> None:
    """The scoring sandbox failing to start is an error of phase "session"; the patch is there."""

    class Provider(SyncProvider):
        def session(self, config: SandboxConfig) -> Any:
            if config.labels["phase"] == "score":
                raise ValueError("no such image")
            return super().session(config)

    [rollout] = run(provider=Provider())
    assert rollout.patch == "PATCH OF I0"
    assert rollout.failure is not None
    assert (rollout.failure.phase, rollout.failure.type) == ("session", "ValueError")


def test_one_failing_instance_does_not_touch_the_others() -> None:
    """A failure is data on its own rollout."""

    def solve(sandbox: Any, instance: Any) -> AgentResult:
        if instance["instance_id"] == "i1":
            raise RuntimeError("boom")
        return AgentResult(patch="p")

    rollouts = run(Solver(solve), PlainDataset(3), n_concurrent=3)
    assert [r.status for r in rollouts] == ["resolved", "error", "resolved"]


@pytest.mark.parametrize("error", [SystemExit(3), StopIteration("s"), KeyboardInterrupt(), asyncio.CancelledError()])
@pytest.mark.parametrize("kind", ["plain", "async", "threaded"])
@pytest.mark.parametrize("method", ["setup", "solve", "score"])
def test_what_is_no_exception_is_the_rollouts_error_all_the_same(error: BaseException, kind: str, method: str) -> None:
    """SystemExit, StopIteration, KeyboardInterrupt and CancelledError from an adapter stay on its rollout."""

    def plain(*args: Any, **kwargs: Any) -> Any:
        raise error

    async def later(*args: Any, **kwargs: Any) -> Any:
        await asyncio.sleep(0)
        raise error

    dataset, agent = PlainDataset(2), PlainAgent()
    setattr(agent if method == "solve" else dataset, method, later if kind == "async" else plain)
    provider = AsyncProvider() if kind == "threaded" else SyncProvider()
    rollouts = run(agent, dataset, provider)
    assert [r.status for r in rollouts] == ["error", "error"]
    for rollout in rollouts:
        assert rollout.failure is not None
        # A coroutine can't raise StopIteration: Python itself makes it a RuntimeError.
        expected = {type(error).__name__} | ({"RuntimeError"} if isinstance(error, StopIteration) else set())
        assert rollout.failure.type in expected
        assert rollout.failure.phase == {"setup": "setup", "solve": "agent", "score": "score"}[method]


def test_a_false_setup_skips_the_rest() -> None:
    """setup() returning False ends the rollout as setup_failed, which is no error."""

    class Dataset(PlainDataset):
        def setup(self, sandbox: Any, instance: Any) -> bool:
            return False

    ledger = Ledger()
    [rollout] = run(dataset=Dataset(), provider=SyncProvider(ledger))
    assert (rollout.skipped, rollout.error, rollout.score, rollout.reward) == ("setup_failed", None, None, None)
    assert ledger.events == [("open", "image-i0"), ("close", "image-i0")]


def test_a_setup_that_forgets_to_return_is_an_error() -> None:
    """None is not taken for False: it would skip a whole run because of a forgotten `return True`."""

    class Dataset(PlainDataset):
        def setup(self, sandbox: Any, instance: Any) -> Any:
            return None

    [rollout] = run(dataset=Dataset())
    assert rollout.error is not None
    assert "return True when the instance is ready" in rollout.error


@pytest.mark.parametrize("patch", ["", "\n", "  \n\t", None, b""])
def test_an_empty_patch_is_skipped_without_a_second_sandbox(patch: Any) -> None:
    """There is nothing to score; the reward is None, not 0."""
    ledger = Ledger()
    [rollout] = run(Solver(lambda s, i: AgentResult(patch=patch, exit_code=1)), provider=SyncProvider(ledger))
    assert (rollout.skipped, rollout.agent_exit, rollout.reward) == ("empty_patch", 1, None)
    assert len(ledger.events) == 2


def test_score_false_keeps_the_patch_and_makes_one_sandbox() -> None:
    """Without scoring a rollout ends with its patch."""
    ledger = Ledger()
    [rollout] = run(provider=SyncProvider(ledger), score=False)
    assert (rollout.patch, rollout.score, rollout.status) == ("PATCH OF I0", None, "not_scored")
    assert len(ledger.events) == 2


def test_the_score_gets_the_patch_byte_for_byte() -> None:
    """Carriage returns, NUL, bytes that are no UTF-8 and a missing final newline reach score() as they were."""
    raw = b"a\r\nb\0\xff\xfe\nno newline"
    [rollout] = run(Solver(lambda s, i: AgentResult(patch=raw)))  # type: ignore[arg-type]
    assert rollout.score is not None
    assert rollout.score["patch"].encode("utf-8", "surrogateescape") == raw


@pytest.mark.parametrize(
    ("result", "words"),
    [
        ("a diff", "return AgentResult(patch="),
        (None, "return AgentResult(patch="),
        (AgentResult(patch=3), "patch"),  # type: ignore[arg-type]
        (AgentResult(patch="p", exit_code="zero"), "exit_code"),  # type: ignore[arg-type]
    ],
)
def test_what_solve_returns_is_checked(result: Any, words: str) -> None:
    """Something else than an AgentResult is that rollout's error, which says what to return."""
    [rollout] = run(Solver(lambda s, i: result))
    assert rollout.error is not None
    assert words in rollout.error
    assert rollout.failure is not None
    assert rollout.failure.phase == "agent"


@pytest.mark.parametrize(
    ("score", "words"),
    [
        (True, "return a dict"),
        (None, "return a dict"),
        ({"loss": float("nan")}, "loss"),
        ({"o": object()}, "object"),
        ({"resolved": "false"}, "give True or False"),
        ({"resolved": []}, "give True or False"),
        ({"resolved": True, "reward": "0.5"}, "give a number"),
    ],
)
def test_what_score_returns_is_checked(score: Any, words: str) -> None:
    """A score that can't be recorded is that rollout's error; the patch is kept."""

    class Dataset(PlainDataset):
        def score(self, sandbox: Any, instance: Any, patch: str) -> Any:
            return score

    [rollout] = run(dataset=Dataset())
    assert rollout.error is not None
    assert words in rollout.error
    assert (rollout.patch, rollout.score) == ("PATCH OF I0", None)


def test_info_that_json_can_not_hold_is_kept_as_its_repr() -> None:
    """The agent's notes never cost the rollout."""
    [rollout] = run(
        Solver(lambda s, i: AgentResult(patch="p", info={"usage": {1, 2}, "o": object, "nan": float("nan")}))
    )
    assert rollout.resolved
    assert rollout.info["o"] == repr(object)


def test_a_plain_def_that_returns_an_awaitable_is_told_to_be_async() -> None:
    """A coroutine that comes out of a plain method is never left un-awaited in silence."""

    class Agent:
        def solve(self, sandbox: Any, instance: Any, *, model: Any) -> Any:
            return AsyncAgent().solve(sandbox, instance, model=model)

    [rollout] = run(Agent())
    assert rollout.error is not None
    assert "async def solve" in rollout.error


def test_the_dataset_chooses_resources_env_and_network_by_phase() -> None:
    """`Dataset.sandbox` reaches the provider's config, a dict of resources as a Resource."""
    configs: list[SandboxConfig] = []

    class Dataset(PlainDataset):
        def sandbox(self, instance: Any, phase: str) -> dict[str, Any]:
            return {"resource": {"cpu": 2, "memory": "4g"}, "env": {"PHASE": phase}, "network": "none"}

    class Provider(SyncProvider):
        def session(self, config: SandboxConfig) -> Any:
            configs.append(config)
            return super().session(config)

    run(dataset=Dataset(), provider=Provider(), bundle="b:1", platform="linux/amd64")
    assert [c.env for c in configs] == [{"PHASE": "agent"}, {"PHASE": "score"}]
    assert configs[0].resource == Resource(cpu=2, memory="4g")
    assert (configs[0].image, configs[0].bundle, configs[0].platform) == ("image-i0", "b:1", "linux/amd64")
    assert configs[0].network == "none"
    assert configs[0].labels["instance_id"] == "i0"


@pytest.mark.parametrize(
    ("hook", "words"),
    [
        (lambda i, p: {"memory": "4g"}, "it may give resource, env and network"),
        (lambda i, p: {"resource": {"cpu": -1}}, "Resource.cpu"),
        (lambda i, p: {"resource": {"cores": 1}}, "cores"),
    ],
)
def test_a_wrong_sandbox_choice_is_the_rollouts_error(hook: Any, words: str) -> None:
    """An unknown key or a senseless resource names itself."""
    dataset = PlainDataset()
    dataset.sandbox = hook  # type: ignore[attr-defined]
    [rollout] = run(dataset=dataset)
    assert rollout.error is not None
    assert words in rollout.error


def test_an_image_that_can_not_be_told_is_the_rollouts_error() -> None:
    """dataset.image() raising, or returning something else than a str, costs that instance only."""

    class Dataset(PlainDataset):
        def image(self, instance: Any) -> Any:
            return {"i0": "ok", "i1": None}.get(instance["instance_id"]) or (_ for _ in ()).throw(KeyError("image"))

    rollouts = run(dataset=Dataset(2))
    assert [r.status for r in rollouts] == ["resolved", "error"]


def test_a_provider_that_makes_no_context_manager_says_so() -> None:
    """A `session` without its decorator is named, with the remedy."""

    class Provider:
        def session(self, config: SandboxConfig) -> Iterator[SyncSandbox]:
            yield SyncSandbox(config)

    [rollout] = run(provider=Provider())
    assert rollout.error is not None
    assert "no context manager" in rollout.error


def test_an_async_provider_that_can_not_be_recognised_beforehand_works() -> None:
    """A session() that is a plain function returning an async context manager is found out at its first use."""
    inner = AsyncProvider()

    class Provider:
        def session(self, config: SandboxConfig) -> Any:
            return inner.session(config)

    ledger = inner.ledger
    rollouts = run(dataset=PlainDataset(3), provider=Provider(), n_concurrent=2)
    assert [r.status for r in rollouts] == ["resolved"] * 3
    assert [name for name, _, _ in rollouts[0].phases] == PHASES
    assert ledger.open == 0


def test_events_tell_each_phase_in_order() -> None:
    """on_event gets (instance id, phase) as the phases begin, on the caller's thread."""
    seen: list[tuple[str, str]] = []
    run(dataset=PlainDataset(1), on_event=lambda *e: seen.append(e))
    assert seen == [("i0", "setup"), ("i0", "agent"), ("i0", "score")]


def test_rollout_one_runs_one_instance() -> None:
    """rollout_one gives the rollout itself."""
    dataset = PlainDataset()
    dataset.image = lambda instance: "img"  # type: ignore[method-assign]
    agent = Solver(lambda s, i: AgentResult(patch=f"p{i['id']}"))
    rollout = rollout_one({"id": 7}, dataset=dataset, agent=agent, provider=SyncProvider())
    assert (rollout.instance_id, rollout.patch, rollout.resolved) == ("7", "p7", True)


def test_iter_rollouts_yields_them_as_they_finish() -> None:
    """The quick one comes first, whatever the input order."""
    import threading

    gate = threading.Event()

    def solve(sandbox: Any, instance: Any) -> AgentResult:
        if instance["instance_id"] == "i0":
            assert gate.wait(20)
        return AgentResult(patch="p")

    seen = []
    for rollout in iter_rollouts(dataset=PlainDataset(2), agent=Solver(solve), provider=SyncProvider(), n_concurrent=2):
        seen.append(rollout.instance_id)
        gate.set()
    assert seen == ["i1", "i0"]


def test_it_runs_where_a_loop_is_running_already() -> None:
    """As in Jupyter: run_rollouts blocks inside a coroutine, and nothing is patched."""

    async def cell() -> list[Rollout]:
        return run(AsyncAgent(), AsyncDataset(2), AsyncProvider(), n_concurrent=2)

    assert [r.status for r in asyncio.run(cell())] == ["resolved", "resolved"]


def test_no_instances_give_no_rollouts() -> None:
    """An empty batch is no error."""
    assert run(dataset=PlainDataset(ids=["x"]), instances=[]) == []
