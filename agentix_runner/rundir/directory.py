"""The run directory: what a run leaves behind, and what it resumes from.

    run.json         what was run
    rollouts.jsonl   the journal: one line for each finished rollout; the last one of an (id, attempt) counts
    preds.json       predictions as the SWE-bench harness reads them (attempt 0; preds.1.json for the next)
    summary.json     counts, rates, pass@k, time by phase, errors by type
    <safe id>[.attempt]/   patch.diff, sandbox.log, and what the agent saved
    run.lock         held while a run uses the directory

Everything but the journal and run.json is derived from the journal, written to a temporary name and renamed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ..errors import JournalError, RunDirError
from ..records import Rollout
from .files import LogFile, files_to_keep, folder, open_plain_file, read_file, replace
from .identity import identity_of
from .journal import BrokenLine, Journal, Key, Line, encode, read_at, scan
from .jsonable import patch_bytes
from .names import ID_FILE, LOG_FILE, PATCH_FILE, is_cut, safe_file_names, safe_name
from .predictions import predictions, predictions_file
from .runfile import bad_directory, claim, open_folder, pretty, read_run_file_bytes, refuse_foreign, take_lock
from .summary import Summary

__all__ = ["RunDir", "identity_of", "read_rollouts"]

JOURNAL_FILE = "rollouts.jsonl"
SUMMARY_FILE = "summary.json"

_log = logging.getLogger(__name__)


class RunDir:
    """A run directory in use. A context manager: its end refreshes what is derived, and lets the directory go.

    `path` is the directory, `run_id` its own name, the same each time it is opened. `finished` are the rollouts that
    were on disk when it was opened and need not run again.
    """

    path: Path
    run_id: str
    finished: dict[Key, Rollout]

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        identity: Mapping[str, Any],
        details: Mapping[str, Any] | None = None,
        retry_errors: bool = False,
    ) -> None:
        """Make the directory (and its parents), or open it again to resume its run.

        `identity` is what must be the same for that (`identity_of`), `details` is for the reader only. Secrets in
        either are not written. With `retry_errors`, rollouts with an error don't count as finished.

        Raises:
            RunDirError: it can't be made or written, another run is using it, it is of a different run, it is no run
                directory, or its journal is damaged.
        """
        self.path = path = Path(path)
        self._lock = threading.Lock()  # of the journal, and of what is derived from it
        self._files_lock = threading.Lock()  # of logs and saved files, so that no rollout waits for the journal
        self._closed = False  # changes under both: after it the descriptors' numbers may be of other files
        self._logs: dict[Key, LogFile] = {}
        self._patches_checked = False
        self._complained = False
        self._lines: dict[Key, Line] = {}
        with contextlib.ExitStack() as stack, _explained(path, "used", ": give a directory that can be written"):
            self._dir_fd = open_folder(path)
            stack.callback(os.close, self._dir_fd)
            refuse_foreign(path, self._dir_fd)
            stack.callback(os.close, take_lock(path, self._dir_fd))
            self.run_id = claim(path, self._dir_fd, identity, details or {})
            fd = open_plain_file(JOURNAL_FILE, os.O_RDWR | os.O_APPEND | os.O_CREAT, dir_fd=self._dir_fd)
            self._journal = Journal(fd, str(path / JOURNAL_FILE))
            stack.callback(self._journal.close)
            os.fsync(self._dir_fd)
            recorded = self._load()
            self._resources = stack.pop_all()
        self.finished = {key: r for key, r in recorded.items() if r.error is None or not retry_errors}

    def record(self, rollouts: Sequence[Rollout]) -> None:
        """Put finished rollouts on disk: their lines, synced once, then their patches. Those not run are left out.

        Raises:
            JournalError: they can't be written; none of them is in the journal.
            BadOutcome: one of them holds what JSON can't; none of them is in the journal.
        """
        ran = [rollout for rollout in rollouts if rollout.ran]
        if not ran:
            return
        lines = [encode(rollout) for rollout in ran]
        with self._lock:
            if self._closed:
                raise JournalError(f"{self.path} is closed: open it again to record", path=str(self.path))
            for rollout, line in zip(ran, self._journal.append(lines), strict=True):
                self._lines[_key(rollout)] = line
            self._keep_patches(ran)

    def log(self, instance_id: str, attempt: int) -> Callable[[bytes], None]:
        """A sink, callable from any thread, for what the rollout's sandboxes print. The log starts afresh.

        At most 16 MiB are kept. A disk error is logged once and never raised.
        """
        sink = LogFile(LOG_FILE, partial(self._folder, instance_id, attempt), self._complain)
        self.close_log(instance_id, attempt)
        with self._files_lock:
            if self._closed:
                sink.close()
            else:
                with contextlib.suppress(OSError), self._folder(instance_id, attempt, create=False) as inside:
                    os.unlink(LOG_FILE, dir_fd=inside)
                self._logs[instance_id, attempt] = sink
        return sink

    def close_log(self, instance_id: str, attempt: int) -> None:
        """The rollout has ended: what its sink still gets is dropped."""
        with self._files_lock:
            sink = self._logs.pop((instance_id, attempt), None)
        if sink:
            sink.close()

    def save(self, instance_id: str, attempt: int, files: Mapping[str, str | bytes]) -> None:
        """Keep what the agent saved, by safe names. What goes past 256 MiB or 1,000 files is left out, with a warning.

        Raises:
            BadOutcome: a name is not text, or a file neither text nor bytes; nothing is written.
        """
        kept = files_to_keep(instance_id, files)
        if not kept:
            return
        names = safe_file_names(files)
        with self._files_lock:
            if self._closed:
                return
            try:
                with self._folder(instance_id, attempt) as inside:
                    for name, data in kept.items():
                        replace(names[name], [data], dir_fd=inside, durable=False)
            except OSError as exc:
                self._complain(exc)

    def refresh(self) -> None:
        """Derive preds.json, preds.1.json, ... and summary.json from the journal, and patches that a crash left out.

        Raises:
            JournalError: they can't be written.
        """
        with self._lock:
            if not self._closed:
                self._derive()

    def close(self) -> None:
        """Refresh, and let the directory go. A failing refresh is logged: the journal has it all. Idempotent."""
        with self._lock, self._files_lock:
            if self._closed:
                return
            self._closed = True
            try:
                for sink in self._logs.values():
                    sink.close()
                self._derive()
            except JournalError as exc:
                _log.error("%s", exc)
            finally:
                self._resources.close()

    def __enter__(self) -> RunDir:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _load(self) -> dict[Key, Rollout]:
        """The rollouts in the journal; a torn last line is cut off."""
        recorded: dict[Key, Rollout] = {}
        size = 0
        for line, rollout in scan(self._journal.fd):
            size = line.start + line.length
            self._lines[_key(rollout)] = line
            recorded[_key(rollout)] = rollout
        torn = self._journal.size - size
        if torn:
            _log.warning(
                "%s: the last line was torn (%d bytes); it is dropped, and that rollout runs again",
                self._journal.path,
                torn,
            )
            self._journal.cut(size)
        return recorded

    def _derive(self) -> None:
        summary = Summary()
        keys: dict[int, list[Key]] = {0: []}  # by attempt
        for key in sorted(self._lines):
            keys.setdefault(key[1], []).append(key)
        try:
            for attempt in sorted(keys):
                rollouts = self._read(keys[attempt], summary)
                replace(predictions_file(attempt), predictions(rollouts), dir_fd=self._dir_fd, durable=True)
            replace(SUMMARY_FILE, [pretty(summary.result())], dir_fd=self._dir_fd, durable=True)
            self._patches_checked = True
        except (OSError, BrokenLine) as exc:
            raise JournalError(
                f"{self.path}: what is derived from the journal can't be written ({exc}): make room, then run again "
                "with the same directory",
                path=str(self.path),
            ) from exc

    def _read(self, keys: Iterable[Key], summary: Summary) -> Iterator[Rollout]:
        """The rollouts of `keys`, one at a time, on their way into the summary."""
        for key in keys:
            rollout = read_at(self._journal.fd, self._lines[key])
            summary.add(rollout)
            if rollout.patch and not self._patches_checked:
                self._keep_patches([rollout])
            yield rollout

    def _keep_patches(self, rollouts: Iterable[Rollout]) -> None:
        """Make each patch.diff what it should be; without a patch there is none."""
        for rollout in rollouts:
            try:
                with self._folder(rollout.instance_id, rollout.attempt, create=bool(rollout.patch)) as inside:
                    _keep_patch(patch_bytes(rollout.patch), inside)
            except FileNotFoundError:
                pass  # neither a patch nor a folder
            except OSError as exc:  # of this one's folder alone
                self._complain(exc)

    @contextlib.contextmanager
    def _folder(self, instance_id: str, attempt: int, *, create: bool = True) -> Iterator[int]:
        """A rollout's folder. Where its name is too short for the id, a file in it holds the id."""
        name = safe_name(instance_id, attempt)
        with folder(name, dir_fd=self._dir_fd, create=create) as inside:
            if create and is_cut(name) and ID_FILE not in os.listdir(inside):
                whole = {"instance_id": instance_id, "attempt": attempt}
                replace(ID_FILE, [pretty(whole)], dir_fd=inside, durable=False)
            yield inside

    def _complain(self, exc: OSError) -> None:
        """Tell once that something beside the journal can't be written."""
        if not self._complained:
            self._complained = True
            _log.warning("%s: logs, patches or saved files can't be written (%s); the run goes on", self.path, exc)


def read_rollouts(path: str | os.PathLike[str]) -> Iterator[Rollout]:
    """The rollouts in a run directory, each (id, attempt) once, in the order in which they finished.

    One at a time, also while a run goes on. A torn last line is left out.

    Raises:
        RunDirError: it is no run directory, or its journal is damaged.
    """
    where = Path(path)
    read_run_file_bytes(where)
    return _read(where)


def _read(path: Path) -> Iterator[Rollout]:
    with _explained(path, "read"), contextlib.ExitStack() as stack:
        try:
            with folder(path) as top:
                fd = open_plain_file(JOURNAL_FILE, os.O_RDONLY, dir_fd=top)
        except FileNotFoundError:
            return  # nothing has finished yet
        stack.callback(os.close, fd)
        last: dict[Key, Line] = {}
        for line, rollout in scan(fd):
            last.pop(_key(rollout), None)  # so that it goes to the end
            last[_key(rollout)] = line
        for line in last.values():
            yield read_at(fd, line)


def _key(rollout: Rollout) -> Key:
    return rollout.instance_id, rollout.attempt


def _keep_patch(data: bytes, dir_fd: int) -> None:
    if not data:
        os.unlink(PATCH_FILE, dir_fd=dir_fd)
        return
    with contextlib.suppress(OSError):
        if read_file(PATCH_FILE, dir_fd=dir_fd, limit=len(data)) == data:
            return
    replace(PATCH_FILE, [data], dir_fd=dir_fd, durable=False)


@contextlib.contextmanager
def _explained(path: Path, doing: str, remedy: str = "") -> Iterator[None]:
    """What goes wrong in the block, as an error that says what is wrong with the run directory."""
    try:
        yield
    except RunDirError:
        raise
    except BrokenLine as exc:
        message = f"has a damaged journal: {JOURNAL_FILE} {exc}; remove that line to go on"
        raise bad_directory(path, message) from exc
    except (OSError, ValueError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) and exc.strerror else str(exc)
        raise bad_directory(path, f"can't be {doing} ({reason}){remedy}") from exc
