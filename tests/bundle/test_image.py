"""Bundles on a real engine: the images, the volumes, and that the Python in them runs where there is nothing else."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import docker
import docker.errors
import pytest

from agentix_runner.bundle import DIGEST_LABEL, PYTHON, PYTHON_LABEL, ROOT, VERSION_LABEL, layers, mount
from agentix_runner.bundle.base_image import BaseImage
from agentix_runner.bundle.default import default_bundle
from agentix_runner.bundle.image import build
from agentix_runner.errors import BundleError
from agentix_runner.providers import owners
from agentix_runner.providers.docker.container import COMMAND

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="bundles are made on Linux")

HOST_VERSION = "{}.{}.{}".format(*sys.version_info[:3])


@pytest.fixture(scope="session")
def bundle(engine: docker.DockerClient) -> str:
    """The default bundle."""
    return default_bundle(engine)


Load = Callable[..., str]


@pytest.fixture
def load(engine: docker.DockerClient, tmp_path: Path) -> Iterator[Load]:
    """Makes tiny bundle images, whose "Python" is a shell script; they and their volumes are removed afterwards."""
    tags = []

    def make(program: bytes = b"#!/agentix/bin/busybox sh\nexit 0\n", architecture: str = "") -> str:
        tree = tmp_path / secrets.token_hex(4)
        (tree / "bin").mkdir(parents=True)
        (tree / "bin" / "busybox").write_bytes(Path("/bin/busybox").read_bytes())
        (tree / "bin" / "python").write_bytes(program)
        (tree / "bin" / "nonce").write_text(secrets.token_hex(16))
        for path in (tree / "bin").iterdir():
            path.chmod(0o755)
        layer = layers.write_layer(tree, "agentix", tmp_path / "layer.tar")
        tag = f"agentix-test/tiny:{secrets.token_hex(6)}"
        own = engine.api.version()["Arch"]
        layers.write_image(tmp_path / "image.tar", [layer], tags=[tag], architecture=architecture or own, labels={})
        with open(tmp_path / "image.tar", "rb") as file:
            engine.images.load(file)
        tags.append(tag)
        return tag

    yield make
    digests = set()
    for tag in tags:
        with contextlib.suppress(docker.errors.ImageNotFound):
            digests.add(engine.images.get(tag).labels[DIGEST_LABEL])
            engine.images.remove(tag, force=True)
    for name, marks in bundle_volumes(engine).items():
        if marks.get(DIGEST_LABEL) in digests:
            engine.api.remove_volume(name, force=True)


def bundle_volumes(engine: docker.DockerClient) -> dict[str, dict[str, str]]:
    found = engine.api.volumes(filters={"label": "agentix.bundle"})["Volumes"] or []
    return {volume["Name"]: volume["Labels"] for volume in found}


def volumes_of(engine: docker.DockerClient, tag: str) -> list[str]:
    digest = engine.images.get(tag).labels[DIGEST_LABEL]
    return sorted(name for name, marks in bundle_volumes(engine).items() if marks.get(DIGEST_LABEL) == digest)


def run(engine: docker.DockerClient, image: str, volume: str, *command: str, **settings: Any) -> str:
    """What `command` prints in a container of `image` with the bundle, without a network."""
    output: bytes = engine.containers.run(
        image,
        list(command[1:]),
        entrypoint=[command[0]],
        network_mode="none",
        read_only=True,
        remove=True,
        stderr=True,
        mounts=[docker.types.Mount(ROOT, volume, type="volume", read_only=True, no_copy=True)],
        **settings,
    )
    return output.decode()


# The Python of a bundle

_WORKS = """
import asyncio, bz2, ctypes, ctypes.util, decimal, hashlib, json, lzma, os, sqlite3, ssl, subprocess, sys, zlib
def refused(path):
    try:
        open(path, "w")
    except OSError as error:
        return error.strerror
code = "import cloudpickle, sys; print(sys.executable)"
child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
packed = zlib.compress(lzma.compress(bz2.compress(b"x")))
print(json.dumps({
    "version": sys.version.split()[0],
    "executable": sys.executable,
    "prefix": sys.prefix,
    "path": [entry for entry in sys.path if not entry.startswith("/agentix/")],
    "tls": ssl.create_default_context().verify_mode == ssl.CERT_REQUIRED,
    "sql": sqlite3.connect(":memory:").execute("select 40 + 2").fetchone()[0],
    "c": ctypes.CDLL(None).getpid() == os.getpid(),
    "child": [child.stdout, child.stderr],
    "task": asyncio.run(asyncio.sleep(0, "done")),
    "packed": bz2.decompress(lzma.decompress(zlib.decompress(packed))).decode(),
    "hash": hashlib.sha3_256(b"").hexdigest()[:8],
    "text": "\u00e4".encode().decode(sys.getfilesystemencoding()),
    "write": refused("/agentix/x"),
    "compiled": os.path.exists(json.__cached__),
}))
"""


def test_the_python_runs_where_there_is_nothing(engine: docker.DockerClient, bundle: str, busybox: str) -> None:
    """The default bundle's Python runs in an image that holds a static busybox: TLS, SQLite, C calls, child processes
    of itself, compression. No network, a read-only root, a read-only volume."""
    volume = mount.bundle_volume(engine, bundle)
    said = json.loads(run(engine, busybox, volume, PYTHON, "-I", "-S", "-c", _WORKS))
    assert said == {
        "version": HOST_VERSION,
        "executable": PYTHON,
        "prefix": ROOT,
        "path": [],
        "tls": True,
        "sql": 42,
        "c": True,
        "child": [f"{PYTHON}\n", ""],
        "task": "done",
        "packed": "x",
        "hash": "a7ffc6f8",
        "text": "\u00e4",
        "write": "Read-only file system",
        "compiled": True,
    }


def test_the_python_runs_where_nothing_can(engine: docker.DockerClient, bundle: str, empty: str) -> None:
    """The bundle's Python runs in an image that has no program at all."""
    volume = mount.bundle_volume(engine, bundle)
    assert run(engine, empty, volume, PYTHON, "-I", "-S", "-c", "print(6 * 7)") == "42\n"


def test_the_images_own_settings_do_not_break_it(engine: docker.DockerClient, bundle: str, debian: str) -> None:
    """Neither an image's Python settings nor its library path make the bundle's Python take anything else's."""
    volume = mount.bundle_volume(engine, bundle)
    environment = {"PYTHONHOME": "/nowhere", "PYTHONPATH": "/tmp", "LD_LIBRARY_PATH": "/lib/x86_64-linux-gnu:/usr/lib"}
    code = "import ssl, sqlite3\nprint([line.split()[-1] for line in open('/proc/self/maps') if '.so' in line])"
    said = run(engine, debian, volume, PYTHON, "-I", "-S", "-c", code, environment=environment)
    assert [path for path in eval(said, {}) if not path.startswith("/agentix/")] == []


def test_a_sandboxs_first_process_is_there(engine: docker.DockerClient, bundle: str, busybox: str) -> None:
    """The guard starts from the bundle, and ends where the host hangs up at once."""
    volume = mount.bundle_volume(engine, bundle)
    assert run(engine, busybox, volume, *COMMAND).split() == ["agentix-guard:", "exit=0", "oom=0"]


def test_the_default_bundle_is_made_once(engine: docker.DockerClient) -> None:
    """Asked again, the default bundle is the image that is there, labelled with what it holds."""
    bundle = default_bundle(engine)
    before = engine.images.get(bundle).id
    lines: list[str] = []
    assert default_bundle(engine, lines.append) == bundle
    assert lines == []
    image = engine.images.get(bundle)
    assert image.id == before
    assert image.labels[PYTHON_LABEL] == HOST_VERSION
    assert image.labels[VERSION_LABEL] == "0.1.0"


_DEFAULT = """
import sys, docker
from agentix_runner.bundle import default
default.seed_key = lambda: sys.argv[1]
client = docker.from_env()
tag = default.default_bundle(client, lambda line: print(line) if line.startswith("making") else None)
print(tag)
client.close()
"""


@pytest.mark.slow
def test_processes_that_need_the_default_bundle_at_once_make_it_once(engine: docker.DockerClient, bundle: str) -> None:
    """Of two processes that need a default bundle that is not there, one makes it and both use it."""
    command = [sys.executable, "-c", _DEFAULT, secrets.token_hex(8)]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = sorted((process.communicate(timeout=100)[0].splitlines() for process in started), key=len)
    try:
        assert [len(lines) for lines in said] == [1, 2]
        assert said[1] == ["making the default bundle from this interpreter", *said[0]]
        assert said[0] != [bundle]
    finally:
        engine.images.remove(said[0][0])


# Building


def make_project(folder: Path, value: int) -> Path:
    """A project that brings its own build back end, so that building takes no network."""
    folder.mkdir(exist_ok=True)
    (folder / "pyproject.toml").write_text(
        "[build-system]\nrequires = []\nbuild-backend = 'backend'\nbackend-path = ['.']\n"
        "[project]\nname = 'tinyproject'\nversion = '1.0'\n"
    )
    (folder / "tinyproject.py").write_text(f"from agentix_runner import AgentResult, run_rollouts\nVALUE = {value}\n")
    (folder / "backend.py").write_text(
        "import zipfile\n"
        "def build_wheel(folder, config_settings=None, metadata_directory=None):\n"
        "    name = 'tinyproject-1.0-py3-none-any.whl'\n"
        "    about = 'Metadata-Version: 2.1\\nName: tinyproject\\nVersion: 1.0\\nRequires-Dist: agentix-runner'\n"
        "    info = {'METADATA': about,\n"
        "            'WHEEL': 'Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any', 'RECORD': '',\n"
        "            'entry_points.txt': '[console_scripts]\\ntiny = tinyproject:main'}\n"
        "    with zipfile.ZipFile(f'{folder}/{name}', 'w') as archive:\n"
        "        archive.write('tinyproject.py')\n"
        "        for file, text in info.items():\n"
        "            archive.writestr(f'tinyproject-1.0.dist-info/{file}', text)\n"
        "    return name\n"
    )
    return folder


def agentix(*arguments: str, **environment: str) -> tuple[int, str, str]:
    """Run the command; its exit code, stdout and stderr."""
    ran = subprocess.run(
        [sys.executable, "-c", "from agentix_runner.cli.main import main; main(prog_name='agentix')", *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=110,
    )
    return ran.returncode, ran.stdout, ran.stderr


@pytest.fixture
def tag(engine: docker.DockerClient) -> Iterator[str]:
    """A name for an image; the image and its volumes are removed afterwards."""
    name = f"agentix-test/built:{secrets.token_hex(6)}"
    yield name
    with contextlib.suppress(docker.errors.ImageNotFound):
        for volume in volumes_of(engine, name):
            engine.api.remove_volume(volume, force=True)
        engine.images.remove(name)


def test_a_projects_functions_are_in_the_bundle(
    engine: docker.DockerClient, bundle: str, busybox: str, tag: str, tmp_path: Path
) -> None:
    """`agentix build` puts a project, its scripts and additional files into the bundle; the project's folder stays as
    it was; building the same again gives the same image, and another content another one."""
    project = make_project(tmp_path / "project", 42)
    before = sorted(project.rglob("*"))
    (tmp_path / "extra").write_text("#!/bin/sh\necho extra\n")
    (tmp_path / "extra").chmod(0o755)
    command = ["build", str(project), "-t", tag, "--from-host", "--pip-arg=--no-index"]
    command += ["--add", f"{tmp_path}/extra:bin/extra"]
    code, out, err = agentix(*command)
    assert (code, out.split()[0], out.split()[2:]) == (0, tag, ["(Python", f"{HOST_VERSION})"]), err
    assert "Successfully installed" in err
    assert sorted(project.rglob("*")) == before
    image = engine.images.get(tag)
    assert image.labels[DIGEST_LABEL] == out.split()[1]

    volume = mount.bundle_volume(engine, tag)
    code_there = (
        "import sys; sys.path.append('/agentix/site-packages'); import tinyproject; print(tinyproject.VALUE,"
        " tinyproject.__file__)"
    )
    said = run(engine, busybox, volume, PYTHON, "-I", "-S", "-c", code_there)
    assert said == "42 /agentix/site-packages/tinyproject.py\n"
    assert run(engine, busybox, volume, "/agentix/bin/extra") == "extra\n"
    assert run(engine, busybox, volume, "/bin/head", "-n", "1", "/agentix/bin/tiny") == "#!/agentix/bin/python\n"

    assert agentix(*command, "-q") == (0, out, "")
    assert engine.images.get(tag).id == image.id
    make_project(project, 43)
    code, changed, err = agentix(*command)
    assert code == 0
    assert changed != out
    # The Python's layer is the same: the engine keeps it once.
    assert engine.images.get(tag).attrs["RootFS"]["Layers"][0] == image.attrs["RootFS"]["Layers"][0]
    for name in volumes_of(engine, tag) + [name for name in bundle_volumes(engine) if name.startswith(volume[:39])]:
        engine.api.remove_volume(name, force=True)
    engine.images.remove(image.id, force=True)


def test_an_added_program_has_its_libraries(
    engine: docker.DockerClient, busybox: str, tag: str, tmp_path: Path
) -> None:
    """A program that is added stays as it is to the byte, and runs by the bundle's loader in an image without any
    library: those that it needs are brought along, also those that are no part of glibc."""
    program = Path("/bin/ls").resolve()
    code, _, err = agentix("build", "-t", tag, "--from-host", "-q", "--add", f"{program}:tool/it")
    assert (code, err) == (0, "")
    volume = mount.bundle_volume(engine, tag)
    script = "exec /agentix/lib/ld-linux-* --library-path /agentix/lib /agentix/tool/it --version"
    assert run(engine, busybox, volume, "/bin/sh", "-c", script).startswith("ls (GNU coreutils)")
    said = run(engine, busybox, volume, "/bin/sha256sum", "/agentix/tool/it")
    assert said.split()[0] == hashlib.sha256(program.read_bytes()).hexdigest()


@pytest.mark.slow
def test_a_bundle_of_another_images_python(
    engine: docker.DockerClient, busybox: str, debian_python: str, tag: str, tmp_path: Path
) -> None:
    """A bundle made in a base image has that image's Python and the project, and leaves no container."""
    project = make_project(tmp_path / "project", 42)
    code, _, err = agentix("build", str(project), "-t", tag, "--base", debian_python, "--pip-arg=--no-index")
    assert code == 0, err
    volume = mount.bundle_volume(engine, tag)
    code_there = "import tinyproject, ssl, sqlite3, sys; print(tinyproject.VALUE, sys.prefix, sys.version.split()[0])"
    said = run(engine, busybox, volume, PYTHON, "-c", code_there)
    assert said == f"42 /agentix {engine.images.get(tag).labels[PYTHON_LABEL]}\n"
    assert engine.api.containers(all=True, filters={"label": "agentix.bundle.build"}) == []


def test_a_base_image_without_python_says_so(engine: docker.DockerClient, busybox: str) -> None:
    """A base image that has no Python is an error that names it, and no container is left."""
    with pytest.raises(BundleError, match=r"agentix-test/busybox:1.*python3"):
        build(engine, BaseImage(engine, busybox), "agentix-test/never:1")
    assert engine.api.containers(all=True, filters={"label": "agentix.bundle.build"}) == []


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--base", "x", "--from-host"], 2, "exclude each other"),
        (["--from-host", "--python", "3.1"], 2, "--base python:3.1-slim"),
        (["--from-host", "--python", "three"], 2, "give a version as X.Y"),
        (["--from-host", "--platform", "linux/m68k"], 2, "not linux/m68k"),
        (["/nowhere"], 2, "there is no /nowhere"),
        (["--add", "/nowhere:bin/x"], 2, "there is no /nowhere"),
        (["--add", "x"], 2, "give SRC:DEST"),
        (["--base", "agentix-test/not-here:1"], 1, "is not here and can't be pulled"),
    ],
)
def test_what_can_not_be_built(engine: docker.DockerClient, arguments: list[str], code: int, message: str) -> None:
    """Each wrong argument is one line that says what to do, and its exit code."""
    got, out, err = agentix("build", "-t", "agentix-test/never:1", "-q", *arguments)
    assert (got, out) == (code, "")
    assert message in err
    assert len(err.splitlines()) == 1


def test_without_an_engine_the_error_says_so() -> None:
    """No engine is one line that says what to do, and exit code 1."""
    got, out, err = agentix("build", "-t", "x:1", "--from-host", DOCKER_HOST="unix:///nowhere/docker.sock")
    assert (got, out) == (1, "")
    assert err.startswith("Error: no container engine answers at unix:///nowhere/docker.sock: ")
    assert len(err.splitlines()) == 1


# Volumes


def test_a_volume_is_made_once(engine: docker.DockerClient, load: Load, busybox: str) -> None:
    """A bundle's volume holds what its image holds below /agentix; asked again it is the same one. No container is
    left."""
    tag = load()
    volume = mount.bundle_volume(engine, tag)
    assert run(engine, busybox, volume, "/bin/ls", "/agentix/bin").split() == ["busybox", "nonce", "python"]
    assert mount.bundle_volume(engine, tag) == volume
    assert volumes_of(engine, tag) == [volume.rpartition("-")[0], volume]
    assert engine.api.containers(all=True, filters={"label": f"{mount.FILL_LABEL}={volume}"}) == []


_MAKE = """
import sys, docker
from agentix_runner.bundle import mount
{before}
client = docker.from_env()
print(mount.bundle_volume(client, sys.argv[1]))
client.close()
"""


def test_processes_that_make_it_at_once_get_the_same(engine: docker.DockerClient, load: Load) -> None:
    """Three processes that need a bundle's volume at the same time get one and the same; none is left over."""
    tag = load()
    started = [
        subprocess.Popen([sys.executable, "-c", _MAKE.format(before=""), tag], stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    got = {process.communicate(timeout=100)[0].strip() for process in started}
    assert len(got) == 1
    assert volumes_of(engine, tag) == [next(iter(got)).rpartition("-")[0], next(iter(got))]


def test_a_process_killed_in_the_middle_leaves_no_half_volume_in_use(engine: docker.DockerClient, load: Load) -> None:
    """After a kill -9 while the volume was being filled, the next process makes another one. The container that filled
    the first is known as a dead owner's, and without it that volume is unused."""
    tag = load()
    before = "import os\nmount._point_to = lambda *args: os.kill(os.getpid(), 9)"
    killed = subprocess.run([sys.executable, "-c", _MAKE.format(before=before), tag], timeout=100, check=False)
    assert killed.returncode == -9
    (abandoned,) = volumes_of(engine, tag)
    assert abandoned not in mount.unused_volumes(engine)
    labels = engine.api.inspect_container(f"{abandoned}-fill")["Config"]["Labels"]
    assert owners.Owner.from_labels(labels).is_dead
    volume = mount.bundle_volume(engine, tag)
    assert volume != abandoned
    engine.api.remove_container(f"{abandoned}-fill", force=True)
    unused = mount.unused_volumes(engine)
    assert abandoned in unused
    assert volume not in unused


def test_a_volume_that_somebody_removed_is_made_again(engine: docker.DockerClient, load: Load, busybox: str) -> None:
    """Where the contents were removed by hand, or came back empty by being mounted, they are made anew."""
    tag = load()
    volume = mount.bundle_volume(engine, tag)
    engine.api.remove_volume(volume)
    second = mount.bundle_volume(engine, tag)
    assert second != volume
    engine.api.remove_volume(second)
    engine.api.create_volume(second)
    third = mount.bundle_volume(engine, tag)
    assert run(engine, busybox, third, "/bin/ls", "/agentix/bin/python") == "/agentix/bin/python\n"
    engine.api.remove_volume(second)


def test_volumes_without_an_image_are_unused(engine: docker.DockerClient, load: Load, busybox: str) -> None:
    """A bundle's volumes are kept while its image is there or a container uses them, then removed, contents first;
    another's volume never is."""
    tag = load()
    volume = mount.bundle_volume(engine, tag)
    pointer = volume.rpartition("-")[0]
    foreign = engine.volumes.create(f"agentix-bundle-{secrets.token_hex(4)}")
    mounted = docker.types.Mount(ROOT, volume, type="volume", read_only=True, no_copy=True)
    user = engine.containers.create(busybox, ["true"], mounts=[mounted])
    try:
        assert not {volume, pointer} & set(mount.unused_volumes(engine))
        engine.images.remove(tag, force=True)
        assert not {volume, pointer} & set(mount.unused_volumes(engine))
        user.remove()
        found = [name for name in mount.remove_unused_volumes(engine, dry_run=True) if name in (volume, pointer)]
        assert found == [volume, pointer]
        assert volume in bundle_volumes(engine)
        removed = mount.remove_unused_volumes(engine)
        assert [name for name in removed if name in (volume, pointer)] == [volume, pointer]
        assert not {volume, pointer} & set(bundle_volumes(engine))
        assert foreign.name in [each.name for each in engine.volumes.list()]
    finally:
        foreign.remove()


def test_one_that_is_used_after_all_is_left_alone(
    engine: docker.DockerClient, load: Load, busybox: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A volume that a container took between the look and the removal stays, and so does its pointer."""
    tag = load()
    volume = mount.bundle_volume(engine, tag)
    pointer = volume.rpartition("-")[0]
    mounted = docker.types.Mount(ROOT, volume, type="volume", read_only=True, no_copy=True)
    user = engine.containers.create(busybox, ["true"], mounts=[mounted])
    try:
        monkeypatch.setattr(mount, "unused_volumes", lambda client: [volume, pointer])
        assert mount.remove_unused_volumes(engine) == []
        assert {volume, pointer} <= set(bundle_volumes(engine))
    finally:
        user.remove()


def test_what_is_no_bundle_is_refused(engine: docker.DockerClient, busybox: str) -> None:
    """An image that is missing, and one that is no bundle, are errors that name it and say what to do."""
    with pytest.raises(BundleError, match=r"no image nothing:1: make it with `agentix build -t nothing:1`"):
        mount.bundle_volume(engine, "nothing:1")
    with pytest.raises(BundleError, match=r"agentix-test/busybox:1 is no bundle"):
        mount.bundle_volume(engine, busybox)


@pytest.mark.parametrize(
    ("program", "architecture", "message"),
    [
        (b"\x7fELF not for here", "s390x", "is for s390x, and the engine runs"),
        (b"\x7fELF not for here", "", "does not run"),
        (b"#!/agentix/bin/busybox sh\necho broken; exit 3\n", "", "exit code 3 broken"),
    ],
)
def test_a_bundle_that_does_not_run_leaves_nothing(
    engine: docker.DockerClient, load: Load, program: bytes, architecture: str, message: str
) -> None:
    """A bundle for another architecture, or whose Python fails, is an error that says so; no volume or container is
    left."""
    tag = load(program, architecture)
    with pytest.raises(BundleError, match=message):
        mount.bundle_volume(engine, tag)
    assert volumes_of(engine, tag) == []
    assert [c["Names"] for c in engine.api.containers(all=True) if tag in c["Image"]] == []
