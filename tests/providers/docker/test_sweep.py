"""What dead owners have left, and who removes it: each run's first contact, and `agentix clean`."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import docker
import docker.errors
import pytest
from click.testing import CliRunner, Result

from agentix_runner import DockerProvider, SandboxConfig
from agentix_runner.bundle import mount
from agentix_runner.cli.main import main
from agentix_runner.providers import owners
from agentix_runner.providers.docker import sweep
from agentix_runner.providers.owners import Owner, process_start

from ...support import docker_functions as there

Make = Callable[..., str]


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> str:
    """A machine of the test's own: other processes' sweeps don't meet its containers."""
    name = f"test-{secrets.token_hex(6)}/1"
    monkeypatch.setattr(owners, "host", lambda: name)
    return name


@pytest.fixture
def dead() -> dict[str, str]:
    """The labels of an owner that has died."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    labels = {owners.PID: str(child.pid), owners.START: process_start(child.pid)}
    assert child.stdin is not None
    child.stdin.close()
    child.wait(30)
    return labels


@pytest.fixture
def make(engine: docker.DockerClient, busybox: str, host: str) -> Iterator[Make]:
    """Makes containers with given labels, running or only made; what is left of them goes after the test."""
    made: list[str] = []

    def make(labels: dict[str, str], *, running: bool = False) -> str:
        name = f"agentix-test-{secrets.token_hex(6)}"
        made.append(name)
        engine.api.create_container(busybox, ["sleep", "600"], name=name, labels={owners.HOST: host, **labels})
        if running:
            engine.api.start(name)
        return name

    yield make
    for name in made:
        sweep.remove(engine.api, name)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Stands in for the removal of volumes: with which dry_run it was asked."""
    asked: list[bool] = []

    def remove_unused_volumes(client: Any, dry_run: bool = False) -> list[str]:
        asked.append(dry_run)
        return ["agentix-bundle-x"]

    monkeypatch.setattr(mount, "remove_unused_volumes", remove_unused_volumes)
    return asked


def is_there(engine: docker.DockerClient, name: str) -> bool:
    try:
        engine.api.inspect_container(name)
    except docker.errors.NotFound:
        return False
    return True


def is_dead(labels: dict[str, str]) -> bool:
    return Owner.from_labels(labels).is_dead


def run(*args: str) -> Result:
    return CliRunner().invoke(main, ["clean", *args], prog_name="agentix")


def test_dead_owners_are_told_from_living_ones(host: str, dead: dict[str, str]) -> None:
    """An owner is dead only where it is known to be: on this machine, by number and start."""
    me = Owner.current().labels
    assert me == {owners.HOST: host, owners.PID: str(os.getpid()), owners.START: process_start(os.getpid())}
    assert is_dead(me) is False
    assert is_dead({**me, **dead}) is True
    assert is_dead({**me, owners.START: "another"}) is True
    assert is_dead({**me, **dead, owners.HOST: "elsewhere/1"}) is False
    assert is_dead({owners.HOST: host}) is False
    assert is_dead({}) is False


def test_a_run_sweeps_what_dead_owners_left(
    engine: docker.DockerClient, make: Make, dead: dict[str, str], busybox: str, suite_bundle: str
) -> None:
    """At a provider's first session what belongs to dead owners is removed, running or not, and nothing else."""
    gone = [make(dead), make(dead, running=True)]
    kept = [
        make(Owner.current().labels),
        make({**dead, owners.HOST: "elsewhere/1"}),
        make({"agentix.run_id": "r"}),
    ]
    with DockerProvider().session(SandboxConfig(image=busybox, bundle=suite_bundle)) as sandbox:
        assert sandbox.remote(there.double, 21) == 42
    assert [is_there(engine, name) for name in gone] == [False, False]
    assert [is_there(engine, name) for name in kept] == [True, True, True]


def test_clean_removes_what_dead_owners_left(
    engine: docker.DockerClient, make: Make, dead: dict[str, str], asked: list[bool]
) -> None:
    """`agentix clean` removes it, and says what; the living and the unlabelled stay."""
    gone = make({**dead, owners.RUN: "r1"}, running=True)
    kept = make({**Owner.current().labels, owners.RUN: "r1"})
    result = run()
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == (
        f"removed container {gone} (running, run r1)\n"
        "removed volume agentix-bundle-x\n"
        "removed 1 container and 1 volume\n"
    )
    assert (is_there(engine, gone), is_there(engine, kept), asked) == (False, True, [False])
    assert run("--all-dead").stdout.endswith("removed 0 containers and 1 volume\n")


def test_a_dry_run_only_tells(engine: docker.DockerClient, make: Make, dead: dict[str, str], asked: list[bool]) -> None:
    """`--dry-run` names the same things and removes none."""
    name = make(dead)
    result = run("--dry-run")
    assert result.stdout == (
        f"would remove container {name} (created)\n"
        "would remove volume agentix-bundle-x\n"
        "would remove 1 container and 1 volume\n"
    )
    assert (is_there(engine, name), asked) == (True, [True])


def test_clean_of_one_run(engine: docker.DockerClient, make: Make, dead: dict[str, str], asked: list[bool]) -> None:
    """`--run` removes that run's containers, also those of another machine, no other's, and no volume."""
    run_id = f"r-{secrets.token_hex(4)}"
    gone = [make({**dead, owners.RUN: run_id}), make({**dead, owners.RUN: run_id, owners.HOST: "elsewhere/1"})]
    kept = make({**dead, owners.RUN: "other"})
    result = run("--run", run_id)
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (0, "removed 2 containers and 0 volumes")
    assert [is_there(engine, name) for name in (*gone, kept)] == [False, False, True]
    assert asked == []


def test_a_run_that_may_go_on_elsewhere_is_cleaned_by_force_only(
    engine: docker.DockerClient, make: Make, dead: dict[str, str]
) -> None:
    """What runs and belongs to a process that can't be seen from here is refused, naming it, without --force."""
    run_id = f"r-{secrets.token_hex(4)}"
    name = make({**dead, owners.RUN: run_id, owners.HOST: "elsewhere/1"}, running=True)
    result = run("--run", run_id)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == (
        f"Error: run {run_id} may go on (process {dead[owners.PID]} on elsewhere/1, which can't be seen from here): "
        "stop that first, or give --force\n"
    )
    assert is_there(engine, name)
    assert run("--run", run_id, "--force").exit_code == 0
    assert not is_there(engine, name)


def test_a_machine_of_the_same_name_is_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the process id and the namespace are the same: nothing is known of it, so that it counts as alive."""
    owner = attrs.evolve(Owner.current(), pid="1", start="other")
    assert owner.is_dead is True
    monkeypatch.setattr(owners, "boot_id", lambda: "5ca1ab1e-0000-4000-8000-000000000000")
    assert (owner.is_here, owner.is_dead) == (False, False)


def test_a_run_that_goes_on_is_not_cleaned(engine: docker.DockerClient, make: Make, dead: dict[str, str]) -> None:
    """`--run` of a living run is refused, and nothing of it is removed."""
    run_id = f"r-{secrets.token_hex(4)}"
    names = [make({**dead, owners.RUN: run_id}), make({**Owner.current().labels, owners.RUN: run_id})]
    result = run("--run", run_id)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == f"Error: run {run_id} goes on (process {os.getpid()}): stop that first\n"
    assert [is_there(engine, name) for name in names] == [True, True]


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (("--run", "x", "--all-dead"), "--run and --all-dead exclude each other"),
        (("--run", ""), "--run is empty"),
        (("--force",), "--force needs --run ID"),
        (("--nope",), "No such option"),
    ],
)
def test_wrong_arguments_are_one_line(args: tuple[str, ...], text: str) -> None:
    """They cost exit code 2, and no engine is asked."""
    result = run(*args)
    assert result.exit_code == 2
    assert result.stderr.startswith("Error: ")
    assert text in result.stderr
    assert result.stderr.count("\n") == 1


def test_clean_without_an_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is an error with the remedy, in one line."""
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no.sock")
    result = run()
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("Error: no container engine answers at unix://")
    assert result.stderr.count("\n") == 1


def test_removing_what_is_not_there_is_no_error(engine: docker.DockerClient) -> None:
    """A container that is gone is as good as one that was removed."""
    assert sweep.remove(engine.api, "agentix-test-not-there") is None


def test_a_removal_that_goes_on_elsewhere_is_waited_for(engine: docker.DockerClient) -> None:
    """The engine's "already in progress" is no failure: it returns when the container is gone."""
    said = []

    class Api:
        def remove_container(self, name: str, **settings: Any) -> None:
            said.append(json.dumps(settings, sort_keys=True))
            response = type("Response", (), {"status_code": 409, "reason": "Conflict", "url": ""})()
            raise docker.errors.APIError("removal is already in progress", response=response)

        def inspect_container(self, name: str) -> None:
            said.append("look")
            if said.count("look") == 3:
                raise docker.errors.NotFound("gone")

    sweep.remove(Api(), "x")
    assert said == ['{"force": true, "v": true}', "look"] * 3
