"""Sandboxes in containers: what they are like from inside, and what is left of them."""

from __future__ import annotations

import io
import os
import pickle
import tarfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import docker
import docker.errors
import pytest

from agentix_runner import AgentResult, DockerProvider, Resource, SandboxConfig, run_rollouts
from agentix_runner.cli.adapters import load_provider
from agentix_runner.errors import BadArgument, CallError, SandboxError, SandboxStartError
from agentix_runner.providers import owners
from agentix_runner.providers.sandbox import RemoteSandbox
from agentix_runner.remote.tools import bash

from ...support import docker_functions as there
from ...support.docker_tools import containers_of, sockets
from ...support.fakes import AsyncAgent, AsyncDataset, PlainAgent, PlainDataset, Solver

Config = Callable[..., SandboxConfig]


@pytest.fixture
def config(busybox: str, suite_bundle: str) -> Config:
    """Makes configurations of sandboxes, of the smallest image unless told otherwise."""

    def make(**settings: Any) -> SandboxConfig:
        return SandboxConfig(**{"image": busybox, "bundle": suite_bundle, **settings})

    return make


@pytest.fixture
def image(engine: docker.DockerClient, busybox: str) -> Iterator[Callable[..., str]]:
    """Makes images from the smallest one, by lines of a Dockerfile; removed after the test."""
    made: list[str] = []

    def make(*lines: str) -> str:
        data = io.BytesIO()
        with tarfile.open(fileobj=data, mode="w") as tar:
            text = "\n".join([f"FROM {busybox}", *lines]).encode()
            member = tarfile.TarInfo("Dockerfile")
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text))
        built, _ = engine.images.build(fileobj=io.BytesIO(data.getvalue()), custom_context=True, rm=True, forcerm=True)
        made.append(built.id)
        return str(built.id)

    yield make
    for name in made:
        engine.images.remove(name, force=True)


# --- what a sandbox is like ---


@pytest.mark.usefixtures("nothing_left")
def test_a_function_of_the_bundle_runs_and_its_result_is_typed(config: Config) -> None:
    """An image without Python, libc or /etc runs a function by name; a dataclass comes back as one."""
    with DockerProvider().session(config()) as sandbox:
        facts = sandbox.remote(there.facts)
    assert isinstance(facts, there.Facts)
    assert (facts.uid, facts.cwd, facts.python) == (0, "/", "/agentix/bin/python")


@pytest.mark.usefixtures("nothing_left")
def test_the_defaults_are_strict(config: Config) -> None:
    """No network but loopback, no new privileges, a limit on processes."""
    with DockerProvider().session(config()) as sandbox:
        facts = sandbox.remote(there.facts)
    assert facts.interfaces == ["lo"]
    assert facts.new_privileges is False
    assert facts.pids_max == 4096


@pytest.mark.usefixtures("nothing_left")
def test_options_reach_the_engine(engine: docker.DockerClient, config: Config, tmp_path: Path) -> None:
    """Limits, user, directory, mounts, labels, network and more arguments are the container's."""
    provider = DockerProvider(
        memory="64m",
        cpus=0.5,
        pids_limit=50,
        user="1000:1000",
        workdir="/tmp",
        mounts=f"{tmp_path}:/data:ro",
        labels={"mine": "x"},
        network="bridge",
        options={"shm_size": "1m"},
    )
    labels = {"run_id": "r", "instance_id": "a/b", "attempt": "0", "phase": "agent"}
    with provider.session(config(labels=labels)) as sandbox:
        [found] = containers_of(engine)
        info = engine.api.inspect_container(found["Id"])
        facts = sandbox.remote(there.facts)
    host = info["HostConfig"]
    assert (host["Memory"], host["MemorySwap"], host["NanoCpus"]) == (64 << 20, 64 << 20, 500_000_000)
    assert (host["PidsLimit"], host["ShmSize"], host["NetworkMode"]) == (50, 1 << 20, "bridge")
    assert host["Binds"] == [f"{tmp_path}:/data:ro"]
    assert (host["AutoRemove"], host["LogConfig"]["Type"]) == (True, "none")
    assert (facts.uid, facts.cwd) == (1000, "/tmp")
    assert info["Config"]["Labels"]["mine"] == "x"
    assert found["Names"][0].startswith("/agentix-a-b-agent-")
    told = {key: info["Config"]["Labels"].get(key) for key in (owners.RUN, owners.INSTANCE, owners.PHASE)}
    assert told == {owners.RUN: "r", owners.INSTANCE: "a/b", owners.PHASE: "agent"}
    [mount] = [mount for mount in info["Mounts"] if mount["Destination"] == "/agentix"]
    assert (mount["Type"], mount["RW"]) == ("volume", False)


@pytest.mark.usefixtures("nothing_left")
def test_the_configuration_overrides_the_provider(engine: docker.DockerClient, config: Config) -> None:
    """A sandbox's own resource, network and environment win."""
    provider = DockerProvider(memory="1g", cpus=2, network="bridge")
    resource = Resource(memory=50 << 20, cpu=0.25)
    with provider.session(config(resource=resource, network="none", env={"A": "ä b"})) as sandbox:
        [found] = containers_of(engine)
        host = engine.api.inspect_container(found["Id"])["HostConfig"]
        facts = sandbox.remote(there.facts)
    assert (host["Memory"], host["NanoCpus"], facts.interfaces) == (50 << 20, 250_000_000, ["lo"])
    assert facts.env["A"] == "ä b"


@pytest.mark.usefixtures("nothing_left")
def test_a_read_only_sandbox_can_write_to_tmp_alone(config: Config) -> None:
    """The root is read-only, and /tmp is memory."""
    with DockerProvider(read_only=True).session(config()) as sandbox:
        assert sandbox.remote(bash, "echo x > /file").exit_code == 1
        assert sandbox.remote(bash, "echo x > /tmp/file && cat /tmp/file").stdout == "x\n"


# --- images of all sorts ---


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize(
    "line",
    [
        'ENTRYPOINT ["/bin/false"]',
        "ENTRYPOINT exit 1",
        'CMD ["/bin/false"]',
        "HEALTHCHECK --interval=1s CMD /bin/false",
        "ENV PYTHONHOME=/nowhere PYTHONPATH=/nowhere PYTHONSTARTUP=/nowhere PYTHONWARNINGS=error",
        "ENV PATH=/nowhere",
        "ENV LD_LIBRARY_PATH=/bin:/lib LD_DEBUG_OUTPUT=/x",
        "STOPSIGNAL SIGKILL",
        "WORKDIR /made/for/this",
        'SHELL ["/nowhere"]',
        "ONBUILD RUN /nowhere",
    ],
)
def test_what_an_image_says_of_its_start_does_not_matter(config: Config, image: Callable[..., str], line: str) -> None:
    """Entrypoints, health checks and variables of an image don't keep its sandbox from starting."""
    with DockerProvider().session(config(image=image(line))) as sandbox:
        assert sandbox.remote(there.double, 21) == 42


@pytest.mark.usefixtures("nothing_left")
def test_an_images_preloads_are_for_its_own_programs(config: Config, image: Callable[..., str]) -> None:
    """LD_PRELOAD of an image does not touch the worker, and is there for what the worker starts."""
    name = image("ENV LD_PRELOAD=/bin/busybox")
    with DockerProvider().session(config(image=name)) as sandbox:
        assert sandbox.remote(there.facts).env["LD_PRELOAD"] == "/bin/busybox"
        assert sandbox.remote(there.environment_of_child, "LD_PRELOAD") == "/bin/busybox"


@pytest.mark.usefixtures("nothing_left")
def test_an_images_user_is_the_sandboxs(config: Config, image: Callable[..., str]) -> None:
    """The worker runs as the image's USER, and is as well protected."""
    with DockerProvider().session(config(image=image("USER 1234:5678"))) as sandbox:
        assert sandbox.remote(there.facts).uid == 1234
        said = sandbox.remote(there.break_in)
        assert sandbox.remote(there.double, 1) == 2
    assert {text for name, text in said.items() if name.startswith(("open", "memory"))} == {"Permission denied"}


@pytest.mark.usefixtures("nothing_left")
def test_an_images_volumes_go_with_the_sandbox(
    engine: docker.DockerClient, config: Config, image: Callable[..., str]
) -> None:
    """Anonymous volumes that a VOLUME makes are removed with the container."""
    with DockerProvider().session(config(image=image("VOLUME /data"))) as sandbox:
        [found] = containers_of(engine)
        mounts = engine.api.inspect_container(found["Id"])["Mounts"]
        [volume] = [mount["Name"] for mount in mounts if mount["Destination"] == "/data"]
        sandbox.remote(there.write, "/data/file", "x")
        assert engine.api.inspect_volume(volume)["Name"] == volume
    with pytest.raises(docker.errors.NotFound):
        engine.api.inspect_volume(volume)


@pytest.mark.usefixtures("nothing_left")
def test_an_image_in_which_nothing_can_run_will_do(config: Config, empty: str) -> None:
    """The worker needs nothing of the image: not even a shell."""
    with DockerProvider().session(config(image=empty)) as sandbox:
        assert sandbox.remote(there.double, 4) == 8


# --- errors ---


@pytest.mark.usefixtures("nothing_left")
def test_no_such_image_is_a_clear_error(config: Config) -> None:
    """With pull="never" the error names the image and the remedy, and is not worth another try."""
    with pytest.raises(
        SandboxStartError, match=r"no image 'agentix-test/nope:1', and pull is 'never': pull or"
    ) as caught:
        with DockerProvider(pull="never").session(config(image="agentix-test/nope:1")):
            pass
    assert caught.value.transient is False


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("name", ["", "UPPER/Case:1", "a:b:c", "../x", "-x"])
def test_a_name_that_is_none_is_a_clear_error(config: Config, name: str) -> None:
    """What can't be an image's name is the engine's error, told in one line."""
    with pytest.raises(SandboxStartError) as caught:
        with DockerProvider(pull="missing").session(config(image=name)):
            pass
    assert caught.value.transient is False
    assert repr(name) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("nothing_left")
def test_an_image_of_another_architecture_is_a_clear_error(
    engine: docker.DockerClient, config: Config, busybox: str
) -> None:
    """An image that this engine could not run is refused before anything is made of it."""
    name = "agentix-test/foreign:1"
    engine.api.import_image_from_data(_empty_tar(), repository="agentix-test/foreign", tag="1")
    own = engine.images.get(busybox).attrs["Architecture"]
    archive = _with_architecture(b"".join(engine.images.get(name).save(named=True)), own, "riscv64")
    engine.images.remove(name)
    list(engine.api.load_image(archive))
    try:
        with pytest.raises(SandboxStartError, match=f"'{name}' is for riscv64, and the bundle .* for {own}"):
            with DockerProvider().session(config(image=name)):
                pass
    finally:
        engine.images.remove(name)


def _empty_tar() -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("file"))
    return data.getvalue()


def _with_architecture(archive: bytes, old: str, new: str) -> bytes:
    """An image's archive whose configuration names another architecture."""
    import hashlib
    import json

    files: dict[str, bytes] = {}
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        for member in tar:
            file = tar.extractfile(member) if member.isreg() else None
            if file is not None:
                files[member.name] = file.read()
    manifest = json.loads(files["manifest.json"])
    config = files.pop(manifest[0]["Config"]).replace(f'"{old}"'.encode(), f'"{new}"'.encode())
    manifest[0]["Config"] = f"{hashlib.sha256(config).hexdigest()}.json"
    files[manifest[0]["Config"]] = config
    files["manifest.json"] = json.dumps(manifest).encode()
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return data.getvalue()


@pytest.mark.usefixtures("nothing_left")
def test_what_is_no_bundle_is_a_clear_error(config: Config, busybox: str) -> None:
    """An image that was not made by `agentix build` is refused, and so is one that isn't there."""
    from agentix_runner.errors import BundleError

    for bundle, text in ((busybox, "is no bundle"), ("agentix-test/nope:1", "agentix build -t agentix-test/nope:1")):
        with pytest.raises(BadArgument, match=text):
            run_rollouts(dataset=PlainDataset(), agent=PlainAgent(), provider=DockerProvider(), bundle=bundle)
        with pytest.raises(BundleError, match=text):
            with DockerProvider().session(config(bundle=bundle)):
                pass


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"network": "no-such-network"}, "no-such-network"),
        ({"user": "no-such-user"}, "no-such-user"),
        ({"runtime": "no-such-runtime"}, "no-such-runtime"),
        ({"memory": "1k"}, "memory"),
        ({"mounts": ["no/such:/data"]}, "no/such"),
        ({"workdir": "relative"}, "relative"),
    ],
    ids=str,
)
def test_what_the_engine_refuses_is_told_and_leaves_nothing(config: Config, settings: Any, text: str) -> None:
    """An option that the engine does not take is an error with the engine's own words, not worth another try."""
    with pytest.raises(SandboxStartError, match=text) as caught:
        with DockerProvider(**settings).session(config()):
            pass
    assert caught.value.transient is False
    assert "\n" not in str(caught.value)


def test_an_empty_name_is_no_image(engine: docker.DockerClient) -> None:
    """It is what a dataset for `local` returns: the error names the culprit."""
    with pytest.raises(SandboxStartError, match=r"^the image is '': return the name of one from the dataset's image"):
        DockerProvider().session(SandboxConfig(image="")).__enter__()
    DockerProvider().expect_image("")()


@pytest.mark.usefixtures("nothing_left")
def test_a_worker_that_dies_at_its_start_is_quoted(config: Config, tmp_path: Path) -> None:
    """The error holds the end of what the sandbox's first process wrote."""
    (tmp_path / "guard.py").write_text("raise SystemExit('this guard is broken')\n")
    mount = f"{tmp_path}:/agentix/site-packages/agentix_runner/remote/sandbox:ro"
    with pytest.raises(SandboxStartError, match=r"exit code 1\); it wrote: this guard is broken"):
        with DockerProvider(mounts=[mount]).session(config()):
            pass


@pytest.mark.usefixtures("nothing_left")
def test_a_worker_that_never_answers_is_given_up(config: Config, tmp_path: Path) -> None:
    """The start is limited, the error may be transient, and the container is gone."""
    (tmp_path / "guard.py").write_text("import sys, time\nprint('here', file=sys.stderr, flush=True)\ntime.sleep(60)\n")
    mount = f"{tmp_path}:/agentix/site-packages/agentix_runner/remote/sandbox:ro"
    with pytest.raises(SandboxStartError, match=r"no answer in 0.7 s; it wrote: here") as caught:
        with DockerProvider(mounts=[mount], start_timeout=0.7).session(config()):
            pass
    assert caught.value.transient is True


@pytest.mark.usefixtures("nothing_left")
def test_a_module_that_the_bundle_lacks_is_a_clear_error(config: Config) -> None:
    """A function of an installed package that isn't in the bundle is an error that names the package."""
    import psutil

    with DockerProvider().session(config()) as sandbox:
        with pytest.raises(CallError, match="psutil"):
            sandbox.remote(psutil.cpu_count)
        assert sandbox.remote(there.double, 1) == 2


@pytest.mark.parametrize(
    ("settings", "text"),
    [({"pull": "sometimes"}, "DockerProvider.pull is 'sometimes': give one of 'missing', 'always', 'never'")],
)
def test_wrong_options_are_told_at_once(settings: Any, text: str) -> None:
    """A value that can't be right is refused when the provider is made."""
    with pytest.raises(BadArgument, match=text):
        DockerProvider(**settings)


# --- the provider itself ---


def test_the_provider_is_known_by_name() -> None:
    """`--provider docker` makes one, with options given as text."""
    provider = load_provider("docker", {"network": "bridge", "memory": "1g", "cpus": "1.5", "read_only": "yes"})
    assert provider == DockerProvider(network="bridge", memory="1g", cpus=1.5, read_only=True)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"start_timeout": 0}, "start_timeout is 0: give a number above 0"),
        ({"engine_timeout": float("inf")}, "engine_timeout is inf: give a number above 0"),
        ({"memory": "lots"}, "memory is 'lots': give bytes, text such as \"4g\", or None"),
        ({"memory": 0}, "memory is 0: give bytes"),
        ({"cpus": -1}, "cpus is -1: give a number above 0, or None"),
        ({"pids_limit": 0}, "pids_limit is 0: give a number above 0, or None"),
        ({"mounts": "/data"}, "mounts is '/data': give \"SOURCE:TARGET\""),
        ({"mounts": ["/data:data"]}, "mounts is '/data:data': give"),
        ({"labels": {"a": 1}}, "labels is {'a': 1}: give a dict of str to str"),
        ({"pull": "sometimes"}, "pull is 'sometimes': give one of"),
        ({"max_log": 1.5}, "max_log is 1.5: give a whole number"),
    ],
)
def test_a_wrong_argument_is_found_at_once(settings: dict[str, Any], text: str) -> None:
    """No provider is made with it, and no rollout has to fail for it."""
    with pytest.raises(BadArgument) as caught:
        DockerProvider(**settings)
    assert f"DockerProvider.{text}" in str(caught.value)


def test_usual_arguments_are_taken() -> None:
    """Sizes, shares and mounts as docker's own command takes them."""
    for memory in (1 << 30, "512m", "4g", "1.5GB", "1048576"):
        assert DockerProvider(memory=memory).memory == memory
    mounts = ["/a:/b", "name:/b:ro", "/a b:/c"]
    assert DockerProvider(mounts=mounts, cpus=0.5, pids_limit=None).mounts == tuple(mounts)


@pytest.mark.usefixtures("nothing_left")
def test_the_provider_can_be_pickled(config: Config) -> None:
    """A copy from another process works, also when the original is in use."""
    provider = DockerProvider(user="7")
    with provider.session(config()) as sandbox:
        copy = pickle.loads(pickle.dumps(provider))
        assert copy == provider
        with copy.session(config()) as other:
            assert other.remote(there.facts).uid == sandbox.remote(there.facts).uid == 7


@pytest.mark.usefixtures("nothing_left")
def test_a_client_or_a_function_that_makes_one_can_be_given(config: Config) -> None:
    """The client given is used, the function is called once."""
    made = []

    def make() -> docker.DockerClient:
        made.append(docker.from_env())
        return made[-1]

    provider = DockerProvider(client=make)
    for _ in range(2):
        with provider.session(config()) as sandbox:
            assert sandbox.remote(there.double, 2) == 4
    assert len(made) == 1
    with DockerProvider(client=made[0]).session(config()) as sandbox:
        assert sandbox.remote(there.double, 3) == 6


@pytest.mark.usefixtures("nothing_left")
def test_many_sandboxes_at_once_leave_no_descriptor(config: Config, caplog: pytest.LogCaptureFixture) -> None:
    """Sixteen at once, twice over: all answer, no warning of a full pool, and every socket is closed."""
    provider = DockerProvider()
    before = sockets()

    def one(number: int) -> int:
        with provider.session(config()) as sandbox:
            return sandbox.remote(there.double, number)

    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(one, range(32))) == [2 * number for number in range(32)]
    assert "pool is full" not in caplog.text
    assert sockets() <= before


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_left")
def test_sixty_four_rollouts_at_once(
    engine: docker.DockerClient, config: Config, busybox: str, suite_bundle: str, caplog: pytest.LogCaptureFixture
) -> None:
    """All of their sandboxes are there at the same time, all finish, no pool of connections is full, and no
    descriptor is left."""
    size = 64
    together = threading.Barrier(size)
    alive: list[int] = []

    class Data(PlainDataset):
        def image(self, instance: dict[str, Any]) -> str:
            return busybox

    def solve(sandbox: Any, instance: dict[str, Any]) -> AgentResult:
        if together.wait(180) == 0:
            alive.append(len(containers_of(engine)))
        together.wait(180)
        return AgentResult(patch=str(sandbox.remote(there.double, 21)))

    provider = DockerProvider()
    with provider.session(config()) as sandbox:
        assert sandbox.remote(there.double, 1) == 2
    engine.close()
    before = len(os.listdir("/proc/self/fd"))
    rollouts = run_rollouts(
        dataset=Data(size),
        agent=Solver(solve),  # type: ignore[arg-type]
        provider=provider,
        bundle=suite_bundle,
        n_concurrent=size,
    )
    assert [(r.resolved, r.error) for r in rollouts] == [(True, None)] * size
    assert alive == [size]
    assert "pool is full" not in caplog.text
    engine.close()
    assert len(os.listdir("/proc/self/fd")) <= before


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("dataset", [PlainDataset, AsyncDataset])
@pytest.mark.parametrize("agent", [PlainAgent, AsyncAgent])
def test_rollouts_with_plain_and_async_adapters(
    busybox: str, suite_bundle: str, dataset: type[PlainDataset], agent: Any
) -> None:
    """The runner takes the provider with adapters of either kind, mixed."""

    class Adapted(dataset):  # type: ignore[misc, valid-type]
        def image(self, instance: dict[str, Any]) -> str:
            return busybox

    rollouts = run_rollouts(
        dataset=Adapted(3), agent=agent(), provider=DockerProvider(), bundle=suite_bundle, n_concurrent=3
    )
    assert [(r.instance_id, r.resolved, r.error) for r in rollouts] == [(f"i{k}", True, None) for k in range(3)]


@pytest.mark.usefixtures("nothing_left")
def test_a_container_that_cant_be_removed_is_told(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the engine does not remove it the session's end says so: what it left could touch the score. It is
    removed when the engine does."""
    provider = DockerProvider()
    refuse = threading.Event()
    refuse.set()
    remove = docker.api.APIClient.remove_container

    def remove_container(self: Any, *args: Any, **kwargs: Any) -> None:
        if refuse.is_set():
            raise docker.errors.APIError("no")
        remove(self, *args, **kwargs)

    monkeypatch.setattr(docker.api.APIClient, "remove_container", remove_container)
    session = provider.session(config())
    sandbox = session.__enter__()
    assert isinstance(sandbox, RemoteSandbox)
    # Otherwise it has removed itself before anybody could refuse.
    provider._state.here(provider).tells_removals = False
    with pytest.raises(SandboxError, match=r"container agentix-\w+ could not be removed: no\. `agentix clean`"):
        session.__exit__(None, None, None)
    refuse.clear()
    with provider.session(config()) as sandbox:
        assert sandbox.remote(there.double, 1) == 2
