"""Images that are told of ahead of their use: to providers that want to know, by a thread that nobody waits for."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from agentix_runner import Rollout, Timeouts, run_rollouts

from ..conftest import eventually
from ..support.fakes import PlainAgent, PlainDataset, SyncProvider


class Foresighted(SyncProvider):
    """Wants to know. `uses` are the images that were told of and are not over."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[str] = []
        self.uses: Counter[str] = Counter()
        self.gone: list[str] = []

    def expect_image(self, image: str, platform: str | None) -> Callable[[], None]:
        self.told.append(image)
        with self.ledger.lock:
            self.uses[image] += 1

        def over() -> None:
            with self.ledger.lock:
                self.uses[image] -= 1
                if self.uses[image] == 0:
                    self.gone.append(image)

        return over


class Data(PlainDataset):
    """Each instance has what `choose` says for an image."""

    def __init__(self, size: int, choose: Callable[[str], Any]) -> None:
        super().__init__(size)
        self.choose = choose

    def image(self, instance: dict[str, Any]) -> str:
        return str(self.choose(instance["instance_id"]))


def run(data: Data, provider: Foresighted, **settings: Any) -> list[Rollout]:
    return run_rollouts(dataset=data, agent=PlainAgent(), provider=provider, **settings)  # type: ignore[arg-type]


@pytest.mark.usefixtures("no_threads_left")
def test_every_use_is_told_once_in_order_and_is_over_once() -> None:
    """At the end nothing is expected any more."""
    provider = Foresighted()
    gate = threading.Event()

    def choose(name: str) -> str:
        if threading.current_thread().name != "agentix-images":
            assert gate.wait(60)
        elif name == "i99":
            gate.set()
        return f"image {int(name[1:]) % 7}"

    rollouts = run(Data(100, choose), provider, n_concurrent=4)
    assert [rollout.resolved for rollout in rollouts] == [True] * 100
    assert provider.told == [f"image {number % 7}" for number in range(100)]
    assert set(provider.uses.values()) == {0}
    assert sorted(provider.gone) == [f"image {number}" for number in range(7)]


@pytest.mark.usefixtures("no_threads_left")
def test_an_image_that_raises_is_its_rollouts_error() -> None:
    """The other rollouts run."""

    def choose(name: str) -> str:
        if name == "i1":
            raise KeyError("no image for this one")
        return "image"

    rollouts = run(Data(3, choose), Foresighted(), n_concurrent=2)
    assert [rollout.error for rollout in rollouts] == [None, "KeyError: 'no image for this one'", None]


@pytest.mark.usefixtures("short_grace")
def test_an_image_that_hangs_costs_its_rollouts_limit() -> None:
    """The call of image() that never returns holds up neither the start nor another rollout, nor the end."""
    provider = Foresighted()
    hanging = threading.Event()

    def choose(name: str) -> str:
        if name == "i1":
            assert hanging.wait(300)
        return "image"

    rollouts = run(Data(4, choose), provider, n_concurrent=2, timeouts=Timeouts(session=0.3))
    hanging.set()
    assert [rollout.error for rollout in rollouts] == [
        None,
        "PhaseTimeout: session ran past its limit of 0.3 s",
        None,
        None,
    ]
    assert set(provider.uses.values()) == {0}
    eventually(lambda: not any(thread.name == "agentix-images" for thread in threading.enumerate()))


@pytest.mark.usefixtures("short_grace")
def test_a_stop_gets_through_while_an_image_hangs() -> None:
    """So does Ctrl-C: it is not the caller's thread that hangs."""
    hanging, stop = threading.Event(), threading.Event()

    def choose(name: str) -> str:
        stop.set()
        assert hanging.wait(300)
        return "image"

    rollouts = run(Data(3, choose), Foresighted(), stop=stop)
    hanging.set()
    assert [rollout.ran for rollout in rollouts] == [False] * 3


def test_rollouts_start_before_all_images_are_known() -> None:
    """The caller hears of the first rollout while the second one's image is still being looked for."""
    heard = threading.Event()

    def choose(name: str) -> str:
        if name != "i0":
            assert heard.wait(60)
        return "image"

    rollouts = run(Data(1_000, choose), Foresighted(), n_concurrent=1, on_result=lambda rollout: heard.set())
    assert {rollout.error for rollout in rollouts} == {None}


def test_an_image_stays_while_a_later_use_may_not_be_known_yet() -> None:
    """No use is over for the provider before all have been told of."""
    provider = Foresighted()
    ran, looked = threading.Event(), threading.Event()
    before: list[str] = []

    def choose(name: str) -> str:
        if name == "i5":
            if threading.current_thread().name == "agentix-images":
                assert ran.wait(60)
                before.extend(provider.gone)
                looked.set()
            assert looked.wait(60)
            return "shared"
        return "shared" if name == "i0" else name

    def on_result(rollout: Rollout) -> None:
        if rollout.instance_id == "i4":
            ran.set()

    rollouts = run(Data(6, choose), provider, on_result=on_result)
    assert {rollout.error for rollout in rollouts} == {None}
    assert before == []
    assert provider.gone.count("shared") == 1
