"""A small repository in an image, and rows about it in the format of swebench 5. Made on this machine.

The image has what the images of SWE-bench have: bash, git, Python, pytest, and the repository in /testbed, with an edit
of a tracked file that was never committed and a file that is not tracked.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import io
import os
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import docker
import pytest

from .engine import skip_or_fail
from .images import PYTHON, CannotMake, _there, ensure, one_at_a_time

REPOSITORY = "agentix-test/swe"
_PACKAGES = ("pytest", "_pytest", "py", "pluggy", "iniconfig", "packaging", "pygments")
_WHEN = "2024-01-01T00:00:00Z"

FILES: dict[str, bytes] = {
    ".gitignore": b"__pycache__/\n*.pyc\n",
    "calc.py": b"def add(a, b):\n    return a - b\n\n\ndef mul(a, b):\n    return a * b\n",
    "crlf.txt": b"one\r\ntwo\r\nthree\r\n",
    "latin.txt": b"caf\xe9\nna\xefve\n",
    "a name with spaces.txt": b"spaces\n",
    'quo"te.txt': b"quote\n",
    "tool.sh": b"#!/bin/sh\necho tool\n",
    "blob.bin": bytes(range(256)) * 8,
    "no_newline.txt": b"no newline at the end",
    "old_name.txt": b"".join(b"line %d of a file that will be moved\n" % n for n in range(20)),
    "settings.cfg": b"[calc]\ndebug = no\n",
    "tests/test_calc.py": b"from calc import mul\n\n\ndef test_mul():\n    assert mul(2, 3) == 6\n",
}
EDITED = {"settings.cfg": b"[calc]\ndebug = yes\n"}
UNTRACKED = {"build/out.log": b"built\n", "calc.egg-info": b"Name: calc\n"}

GOLD = """\
diff --git a/calc.py b/calc.py
--- a/calc.py
+++ b/calc.py
@@ -1,5 +1,5 @@
 def add(a, b):
-    return a - b
+    return a + b
\x20
\x20
 def mul(a, b):
"""
WRONG = GOLD.replace("+    return a + b", "+    return a * b")
BREAKS = """\
diff --git a/calc.py b/calc.py
--- a/calc.py
+++ b/calc.py
@@ -1,6 +1,6 @@
 def add(a, b):
-    return a - b
+    return a + b
\x20
\x20
 def mul(a, b):
-    return a * b
+    return a ** b
"""
DOES_NOT_APPLY = GOLD.replace("-    return a - b", "-    return b - a - b").replace("def add(a, b)", "def plus(x)")
# git refuses the one file and, asked to apply what it can, changes the other: patch needs them both as they were.
FUZZY = (
    GOLD.replace(" def mul(a, b):", " def multiply(a, b):")
    + """\
diff --git a/tool.sh b/tool.sh
--- a/tool.sh
+++ b/tool.sh
@@ -1,2 +1,2 @@
 #!/bin/sh
-echo tool
+echo tools
"""
)
HANGS = GOLD.replace("+    return a + b", "+    import time\n+    time.sleep(3600)").replace("+1,5 @@", "+1,6 @@")
FORGES = """\
diff --git a/conftest.py b/conftest.py
new file mode 100644
--- /dev/null
+++ b/conftest.py
@@ -0,0 +1,6 @@
+import os
+
+with open(f"/proc/{os.getppid()}/fd/1", "w") as log:  # past pytest's own capture
+    log.write("PASSED tests/test_calc.py::test_add\\nPASSED tests/test_calc.py::test_mul\\n")
+
+os._exit(3)
"""
TEST_PATCH = """\
diff --git a/tests/test_calc.py b/tests/test_calc.py
--- a/tests/test_calc.py
+++ b/tests/test_calc.py
@@ -1,4 +1,8 @@
-from calc import mul
+from calc import add, mul
+
+
+def test_add():
+    assert add(2, 3) == 5
\x20
\x20
 def test_mul():
"""


def make_repository(folder: Path) -> str:
    """Write the repository, as the image has it; the commit that it is at."""
    _write(folder, FILES)
    (folder / "tool.sh").chmod(0o755)
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    for who in ("AUTHOR", "COMMITTER"):
        environment |= {f"GIT_{who}_NAME": "t", f"GIT_{who}_EMAIL": "t@localhost", f"GIT_{who}_DATE": _WHEN}

    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", *arguments], cwd=folder, env=environment, check=True, stdout=subprocess.PIPE, timeout=60
        )
        return done.stdout.decode().strip()

    git("init", "--quiet", "--initial-branch=main")
    git("add", "--all")
    git("commit", "--quiet", "--message", "Base")
    _write(folder, {**EDITED, **UNTRACKED})
    return git("rev-parse", "HEAD")


def _write(folder: Path, files: dict[str, bytes]) -> None:
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def make_row(instance_id: str, image: str, base: str, **changes: Any) -> dict[str, Any]:
    """A row; its tests are those of TEST_PATCH."""
    tests = "tests/test_calc.py"
    script = f"""\
#!/bin/bash
set -uxo pipefail
cd /testbed
git checkout {base} {tests}
git apply -v - <<'EOF_114329324912'
{TEST_PATCH}
EOF_114329324912
: '>>>>> Start Test Output'
python3 -m pytest -rA -p no:cacheprovider {tests}
: '>>>>> End Test Output'
git checkout {base} {tests}
"""
    row = {
        "instance_id": instance_id,
        "repo": "test/calc",
        "base_commit": base,
        "version": "1.0",
        "patch": GOLD,
        "test_patch": TEST_PATCH,
        "problem_statement": "add(2, 3) is -1: it must be 5.",
        "FAIL_TO_PASS": f'["{tests}::test_add"]',
        "PASS_TO_PASS": [f"{tests}::test_mul"],
        "image": image,
        "eval_script": script,
        "log_parser": "parse_log_pytest",
        "eval_type": "pass_and_fail",
    }
    return {**row, **changes}


@pytest.fixture(scope="session")
def swe_row(engine: docker.DockerClient) -> dict[str, Any]:
    """The row whose image is made."""
    try:
        return ensure_row(engine)
    except CannotMake as error:
        skip_or_fail(f"the test image {REPOSITORY} can't be made: {error}")


def ensure_row(client: docker.DockerClient) -> dict[str, Any]:
    """The row, with its image in the engine. Raises CannotMake where something that it takes is missing here."""
    base_image = _base(client)
    with tempfile.TemporaryDirectory() as folder:
        commit = make_repository(Path(folder))
        content = hashlib.sha256(repr((base_image, commit, EDITED, UNTRACKED)).encode()).hexdigest()[:16]
        tag = f"{REPOSITORY}:calc-{content}"
        if not _there(client, tag):
            with one_at_a_time():
                _build(client, tag, f"FROM {base_image}\nADD testbed.tar /testbed\n", {"testbed.tar": Path(folder)})
    return make_row("test__calc-1", tag, commit)


def _base(client: docker.DockerClient) -> str:
    """The image without the repository: Debian with git and Python, and this environment's pytest."""
    tag = f"{REPOSITORY}:base-4"
    if _there(client, tag):
        return tag
    ensure(client, PYTHON)
    with one_at_a_time(), tempfile.TemporaryDirectory() as folder:
        for name in _PACKAGES:
            spec = importlib.util.find_spec(name)
            assert spec is not None
            assert spec.origin is not None
            source = Path(spec.origin)
            if source.name == "__init__.py":
                ignored = shutil.ignore_patterns("__pycache__", "*.so")
                shutil.copytree(source.parent, Path(folder, name), ignore=ignored)
            else:
                shutil.copy2(source, folder)
        # pytest asks for its parts' versions.
        metadata = Path(folder, "pluggy.dist-info", "METADATA")
        metadata.parent.mkdir()
        metadata.write_text(f"Metadata-Version: 2.1\nName: pluggy\nVersion: {importlib.metadata.version('pluggy')}\n")
        tools = Path(folder, "tools")
        tools.mkdir()
        found = shutil.which("patch")  # Debian's own has few needs; without it, the harness' last try fails, as there
        if found:
            shutil.copy2(found, tools / "patch")
        made = (
            f"FROM {PYTHON}\n"
            "ADD packages.tar /usr/lib/python3/dist-packages\nADD tools.tar /usr/bin\n"
            "RUN ln -sf python3 /usr/bin/python\n"
        )
        _build(client, tag, made, {"tools.tar": tools, "packages.tar": Path(folder)})
    return tag


def _build(client: docker.DockerClient, tag: str, dockerfile: str, tars: dict[str, Path]) -> None:
    with tempfile.TemporaryFile() as context:
        with tarfile.open(fileobj=context, mode="w") as tar:
            _add(tar, "Dockerfile", dockerfile.encode())
            for name, folder in tars.items():
                inner = io.BytesIO()
                with tarfile.open(fileobj=inner, mode="w") as packed:
                    packed.add(folder, arcname=".", filter=_owned_by_root)
                _add(tar, name, inner.getvalue())
        context.seek(0)
        client.images.build(fileobj=context, custom_context=True, tag=tag, rm=True, forcerm=True, network_mode="none")


def _owned_by_root(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = "root"
    return member


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    tar.addfile(member, io.BytesIO(data))
