"""Images: pulled once each, a few at a time, ahead of their use, and removed again where that is asked."""

from __future__ import annotations

import logging
import secrets
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import docker
import docker.errors
import pytest

from agentix_runner import AgentResult, DockerProvider, RetryPolicy, SandboxConfig, run_rollouts
from agentix_runner.errors import SandboxStartError
from agentix_runner.providers.docker import images, pulls

from ...conftest import eventually
from ...support import docker_functions as there
from ...support.fakes import PlainAgent, PlainDataset, Solver
from ...support.registry import Registry

pytestmark = pytest.mark.usefixtures("nothing_left")


@pytest.fixture
def registry(engine: docker.DockerClient) -> Iterator[Registry]:
    """A registry whose images leave the engine after the test."""
    with Registry() as registry:
        yield registry
        prefix = registry.image("").rpartition("/")[0]
        for image in engine.api.images():
            for tag in image["RepoTags"] or ():
                if tag.startswith(f"{prefix}/"):
                    engine.images.remove(tag, force=True)


def name_of(number: int | str = 0) -> str:
    return f"agentix-test/{number}-{secrets.token_hex(4)}"


def is_there(engine: docker.DockerClient, image: str) -> bool:
    try:
        engine.images.get(image)
    except docker.errors.ImageNotFound:
        return False
    return True


def use(provider: DockerProvider, image: str, bundle: str) -> int:
    with provider.session(SandboxConfig(image=image, bundle=bundle)) as sandbox:
        return int(sandbox.remote(there.double, 21))


def test_a_missing_image_is_pulled_once(
    registry: Registry, suite_bundle: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Eight sessions that want it at once make one pull, and the log tells of it."""
    name = name_of()
    image = registry.image(name)
    provider = DockerProvider()
    with caplog.at_level(logging.INFO, "agentix_runner"), ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda _: use(provider, image, suite_bundle), range(8))) == [42] * 8
    assert registry.pulled == {name: 1}
    lines = [record.getMessage() for record in caplog.records if "pull" in record.getMessage()]
    assert lines == [f"pulling the image '{image}'", f"pulled the image '{image}' in 0 s"]


def test_always_pulls_once_in_a_process(registry: Registry, suite_bundle: str) -> None:
    """With pull="always" the registry is asked also for an image that is there, but not for each sandbox."""
    name = name_of()
    image = registry.image(name)
    assert use(DockerProvider(), image, suite_bundle) == 42
    asked = len(registry.asked)
    provider = DockerProvider(pull="always")
    assert [use(provider, image, suite_bundle) for _ in range(2)] == [42, 42]
    again = len(registry.asked) - asked
    assert 0 < again <= 2
    assert use(DockerProvider(), image, suite_bundle) == 42
    assert len(registry.asked) - asked == again


def test_no_more_than_four_are_pulled_at_once(registry: Registry, suite_bundle: str) -> None:
    """Ten images: four come at first, and then the others."""
    names = [name_of(number) for number in range(10)]
    provider = DockerProvider()
    registry.gate.clear()
    with ThreadPoolExecutor(10) as pool:
        uses = [pool.submit(use, provider, registry.image(name), suite_bundle) for name in names]
        eventually(lambda: registry.now == images.AT_A_TIME)
        registry.gate.set()
        assert [one.result(100) for one in uses] == [42] * 10
    assert registry.at_once == images.AT_A_TIME
    assert registry.pulled == dict.fromkeys(names, 1)


def test_expected_images_are_pulled_ahead_of_their_use(
    engine: docker.DockerClient, registry: Registry, busybox: str
) -> None:
    """As soon as a run says what it will use they come in that order, a limited number ahead, and no more after."""
    names = [name_of(number) for number in range(12)]
    wanted = [busybox, *map(registry.image, names)]
    provider = DockerProvider()
    overs = [provider.expect_image(image) for image in [*wanted, wanted[1]]]
    eventually(lambda: sum(registry.pulled.values()) == images.AHEAD, 60)
    assert set(registry.pulled) == set(names[: images.AHEAD])
    for over in reversed(overs):
        over()
    assert registry.pulled == dict.fromkeys(names[: images.AHEAD], 1)
    eventually(lambda: is_there(engine, wanted[images.AHEAD]), 60)


def test_each_first_use_lets_another_one_come(registry: Registry, suite_bundle: str) -> None:
    """An image that is used makes room for the next one to be pulled ahead."""
    names = [name_of(number) for number in range(images.AHEAD + 2)]
    provider = DockerProvider()
    overs = [provider.expect_image(registry.image(name)) for name in names]
    eventually(lambda: len(registry.pulled) == images.AHEAD, 60)
    assert use(provider, registry.image(names[0]), suite_bundle) == 42
    eventually(lambda: len(registry.pulled) == images.AHEAD + 1, 60)
    for over in reversed(overs):
        over()
    assert registry.pulled == dict.fromkeys(names[: images.AHEAD + 1], 1)


def test_a_missing_image_that_was_expected_is_told_to_its_user(registry: Registry, suite_bundle: str) -> None:
    """Pulling ahead fails silently; whoever uses the image gets the error."""
    name = name_of()
    registry.missing.add(name)
    provider = DockerProvider()
    over = provider.expect_image(registry.image(name))
    eventually(lambda: registry.asked != [])
    with pytest.raises(SandboxStartError, match="check its name, and that you may pull it"):
        use(provider, registry.image(name), suite_bundle)
    over()


class Images(PlainDataset):
    """One instance for each of the images."""

    def __init__(self, names: list[str]) -> None:
        super().__init__(len(names))
        self.names = dict(zip(self.ids, names, strict=True))

    def image(self, instance: dict[str, Any]) -> str:
        return self.names[instance["instance_id"]]


def test_a_run_pulls_ahead_and_removes_behind_itself(
    engine: docker.DockerClient, registry: Registry, suite_bundle: str
) -> None:
    """While the first rollout runs the others' images come; each goes with its last rollout."""
    names = [name_of(number) for number in range(3)]
    first, *others = map(registry.image, names)

    def solve(sandbox: Any, instance: dict[str, Any]) -> AgentResult:
        if instance["instance_id"] == "i0":
            eventually(lambda: all(is_there(engine, image) for image in others), 60)
        elif instance["instance_id"] == "i2":
            eventually(lambda: not is_there(engine, first), 60)
        return AgentResult(patch="p")

    rollouts = run_rollouts(
        dataset=Images([first, *others]),
        agent=Solver(solve),  # type: ignore[arg-type]
        provider=DockerProvider(remove_images=True),
        bundle=suite_bundle,
        n_attempts=2,
    )
    assert [(rollout.error, rollout.resolved) for rollout in rollouts] == [(None, True)] * 6
    assert registry.pulled == dict.fromkeys(names, 1)
    eventually(lambda: not any(is_there(engine, image) for image in others), 60)


def test_a_run_that_is_stopped_pulls_no_more(
    engine: docker.DockerClient, registry: Registry, suite_bundle: str
) -> None:
    """What was pulled for rollouts that never ran goes again, and no more is pulled."""
    names = [name_of(number) for number in range(images.AHEAD + 3)]
    stop = threading.Event()

    def solve(sandbox: Any, instance: dict[str, Any]) -> AgentResult:
        eventually(lambda: len(registry.pulled) >= 3, 60)
        stop.set()
        return AgentResult(patch="p")

    rollouts = run_rollouts(
        dataset=Images(list(map(registry.image, names))),
        agent=Solver(solve),  # type: ignore[arg-type]
        provider=DockerProvider(remove_images=True),
        bundle=suite_bundle,
        stop=stop,
    )
    assert not any(rollout.ran for rollout in rollouts)
    eventually(lambda: not any(is_there(engine, registry.image(name)) for name in names), 60)
    assert len(registry.pulled) < len(names)


def test_no_such_image_in_the_registry_is_not_tried_again(registry: Registry, suite_bundle: str) -> None:
    """The error names the image and the remedy, in one line."""
    name = name_of()
    registry.missing.add(name)
    with pytest.raises(SandboxStartError, match=name) as caught:
        use(DockerProvider(), registry.image(name), suite_bundle)
    assert caught.value.transient is False
    assert "\n" not in str(caught.value)
    assert "check its name" in str(caught.value)


def test_a_registry_in_trouble_is_tried_again(registry: Registry, suite_bundle: str) -> None:
    """503 and an unreachable registry are transient; the runner's retry then finds the image."""
    name = name_of()
    registry.troubles[name] = 1000
    with pytest.raises(SandboxStartError, match=name) as caught:
        use(DockerProvider(), registry.image(name), suite_bundle)
    assert caught.value.transient is True
    with pytest.raises(SandboxStartError) as caught:
        use(DockerProvider(), "127.0.0.1:9/agentix-test/nope:1", suite_bundle)
    assert caught.value.transient is True

    class Data(PlainDataset):
        def image(self, instance: dict[str, Any]) -> str:
            return registry.image(name)

    registry.troubles[name] = len(registry.asked) and 3
    retry = RetryPolicy(attempts=5, wait_initial=0.01, wait_max=0.01, wait_jitter=0)
    [rollout] = run_rollouts(
        dataset=Data(), agent=PlainAgent(), provider=DockerProvider(), bundle=suite_bundle, retry=retry
    )
    assert (rollout.error, rollout.resolved) == (None, True)


def test_an_image_goes_after_its_last_use(engine: docker.DockerClient, registry: Registry, suite_bundle: str) -> None:
    """With remove_images it stays while a rollout still needs it, and is removed when none does."""
    image = registry.image(name_of())
    provider = DockerProvider(remove_images=True)
    first, second = provider.expect_image(image), provider.expect_image(image)
    assert use(provider, image, suite_bundle) == 42
    first()
    first()
    assert use(provider, image, suite_bundle) == 42
    assert is_there(engine, image)
    second()
    eventually(lambda: not is_there(engine, image))


def test_an_image_that_was_there_before_stays(
    engine: docker.DockerClient, registry: Registry, suite_bundle: str
) -> None:
    """remove_images removes nothing that this run has not pulled, not even where it was pulled again."""
    image = registry.image(name_of())
    assert use(DockerProvider(), image, suite_bundle) == 42
    for pull in ("missing", "always"):
        provider = DockerProvider(remove_images=True, pull=pull)
        over = provider.expect_image(image)
        assert use(provider, image, suite_bundle) == 42
        over()
        assert provider._state.here(provider).images._ours == set()
        assert is_there(engine, image)


def test_without_a_run_a_pulled_image_goes_with_the_process(
    engine: docker.DockerClient, registry: Registry, suite_bundle: str
) -> None:
    """A session alone can't know which use is the last: the image is removed when the process ends."""
    image = registry.image(name_of())
    code = (
        "import sys\n"
        "from agentix_runner import AgentResult, DockerProvider, SandboxConfig\n"
        "provider = DockerProvider(remove_images=True)\n"
        "with provider.session(SandboxConfig(image=sys.argv[1], bundle=sys.argv[2])) as sandbox:\n"
        "    print(sandbox.remote(len, 'four'))\n"
        "print(bool(provider._state._here.engine.client.images.get(sys.argv[1])))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, image, suite_bundle], capture_output=True, text=True, timeout=100
    )
    assert (done.stdout, done.returncode) == ("4\nTrue\n", 0), done.stderr
    assert not is_there(engine, image)


def test_a_pull_without_news_is_given_up(monkeypatch: pytest.MonkeyPatch, registry: Registry) -> None:
    """Nobody waits for ever: the error is transient."""
    monkeypatch.setattr(pulls, "STALLED_S", 0.3)
    registry.gate.clear()
    with pytest.raises(SandboxStartError, match="took too long to pull the image") as caught:
        use(DockerProvider(), registry.image(name_of()), "unused")
    assert caught.value.transient is True


@pytest.mark.parametrize(
    ("found", "platform", "fits"),
    [
        ({"Os": "linux", "Architecture": "amd64"}, "linux/amd64", True),
        ({"Os": "linux", "Architecture": "amd64"}, "linux/x86_64", True),
        ({"Os": "linux", "Architecture": "amd64"}, "linux/arm64", False),
        ({"Os": "linux", "Architecture": "arm64", "Variant": "v8"}, "linux/aarch64/v8", True),
        ({"Os": "linux", "Architecture": "arm", "Variant": "v6"}, "linux/arm/v7", False),
        ({"Os": "windows", "Architecture": "amd64"}, "linux/amd64", False),
        ({"Os": "linux", "Architecture": "riscv64"}, "linux", True),
    ],
)
def test_an_image_fits_a_platform_or_not(found: dict[str, str], platform: str, fits: bool) -> None:
    """Names of architectures that mean the same are the same."""
    assert images._is_for(found, platform) is fits
