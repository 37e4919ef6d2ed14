"""The repository in the sandbox: its clean state before an agent, its changes after one, and a patch put into it.

Commands and the reading of their results, so that plain and async methods share them:
`patch_of(sandbox.remote(bash, **DIFF))`, `patch_of(await sandbox.remote(bash, **DIFF))`.
"""

from __future__ import annotations

import re
from typing import Any

from agentix_runner.remote.tools import BashResult

WORKDIR = "/testbed"
BASE = "refs/agentix/base"
MIB = 1024 * 1024
GIT = {f"GIT_{who}_{what}": "agentix@localhost" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
GIT |= {"GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}

# Edits of tracked files that an image comes with are part of what is given: they are committed, so that no patch holds
# them. A patch that did could not be applied where they are. Files that are there and not tracked (build output) are
# named, to be excluded.
CLEAN: dict[str, Any] = {
    "command": f"""
set -e
git -c core.hooksPath=/dev/null add --update --ignore-errors .
if ! git diff --cached --quiet --ignore-submodules=all; then
    git -c core.hooksPath=/dev/null commit --quiet --no-verify --no-gpg-sign --message 'What the image comes with'
fi
git update-ref {BASE} HEAD
exclude=$(git rev-parse --git-path info/exclude)
mkdir -p "$(dirname "$exclude")"
touch "$exclude"
printf '%s\\0' "$exclude"
git ls-files --others --exclude-standard --directory --no-empty-directory -z
printf '\\0'
git ls-files --others --exclude-standard -z
""",
    "cwd": WORKDIR,
    "env": GIT,
    "timeout": 900,
    "max_output": 64 * MIB,
}

# With an index of its own: what an agent left in the repository's (a lock, half a merge) is no matter. diff-index, as
# other than diff it takes no user's settings for what a diff looks like. A repository inside is no part of a patch.
DIFF: dict[str, Any] = {
    "command": f"""
set -e
export GIT_INDEX_FILE="$(git rev-parse --absolute-git-dir)/agentix-index"
trap 'rm -f "$GIT_INDEX_FILE" "$GIT_INDEX_FILE.lock"' EXIT
rm -f "$GIT_INDEX_FILE.lock"
find . -mindepth 2 -name .git -prune | sed -e 's|/[.]git$||; s|^[.]/|/|; s/[][\\\\*?! ]/\\\\&/g' \
    >> "$(git rev-parse --git-path info/exclude)"
set -- -c core.fsmonitor=false -c core.sparseCheckout=false -c core.safecrlf=false
git "$@" read-tree {BASE}
git "$@" add --all . >&2
git "$@" diff-index -p --cached --binary --full-index -M --no-ext-diff --no-textconv --ignore-submodules=all {BASE} --
""",
    "cwd": WORKDIR,
    "env": GIT,
    "timeout": 900,
    "max_output": 128 * MIB,
}

# As swebench's harness does it between its tries: a try that failed leaves parts behind.
RESTORE: dict[str, Any] = {"command": "git checkout -- . ; git clean -fd", "cwd": WORKDIR, "timeout": 900}

MACHINE = (
    "No space left on device|Disk quota exceeded|Read-only file system|Input/output error|Cannot allocate memory"
    "|Too many open files|Resource temporarily unavailable"
)
# Only where a line of git's or patch's own ends with it: names in a patch are somebody's choice.
_MACHINE_LINE = re.compile(rf"^(?:error|fatal|patch|\S*patch: \*\*\*\*).*: (?:{MACHINE})$", re.MULTILINE)
_FATAL = 128  # git's own exit code for what it can't do; above it are signals
_CANT_RUN = (126, 127)
MOST_EXCLUDED = 2000


def finished(result: BashResult, doing: str) -> BashResult:
    """`result`, where its command ended well. Raises RuntimeError otherwise."""
    if result.truncated and result.exit_code == 0:
        raise RuntimeError(f"{doing} gave more than can be kept")
    if result.exit_code != 0 or result.timed_out:
        why = "took too long" if result.timed_out else f"ended with {result.exit_code}"
        raise RuntimeError(f"{doing} {why}: {' '.join((result.stderr or result.stdout)[-500:].split())}")
    return result


def exclusions(listed: BashResult) -> tuple[str, str]:
    """What CLEAN printed: the path of the file of exclusions, and the lines that name what was there and not tracked.

    File by file, so that a file that an agent adds beside them counts; by folder where there are very many.
    """
    path, _, names = finished(listed, "putting the repository into its clean state").stdout.partition("\0")
    folders, _, files = names.partition("\0\0") if not names.startswith("\0") else ("", "", names[1:])
    chosen = files.split("\0") if files.count("\0") <= MOST_EXCLUDED else folders.split("\0")
    return path, "".join(_exclusion(name) for name in chosen if name)


def _exclusion(name: str) -> str:
    escaped = re.sub(r"[\\*?\[\]! ]", r"\\\g<0>", name)
    return "/" + re.sub("[\r\n]", "?", escaped) + "\n"  # a line can't hold a line's end; "?" is any character


def patch_of(result: BashResult) -> str:
    """The patch that DIFF printed: what the agent changed, in bytes (surrogateescape), or "".

    Raises:
        RuntimeError: it can't be taken, or is too large.
    """
    return finished(result, "taking the diff").stdout


def raise_if_machine(result: BashResult, doing: str) -> None:
    """Raise where a command that applies a patch failed by the machine's fault and not by the patch's.

    Raises:
        RuntimeError: it can't run, was killed, took too long, or met a full disk or the like.
    """
    output = result.stdout + result.stderr
    if result.timed_out:
        raise RuntimeError(f"{doing} took too long")
    if result.exit_code > _FATAL or (result.exit_code in _CANT_RUN and doing.startswith("git ")):
        raise RuntimeError(f"{doing} ended with {result.exit_code}: {output[-300:].strip()}")
    found = _MACHINE_LINE.search(output)
    if result.exit_code != 0 and found:
        raise RuntimeError(f"{doing} failed by the machine's fault: {found[0][:300]}")
