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
import itertools
import json
import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import BadOutcome, JournalError, RunDirError
from ..records import Rollout
from .files import folder, open_plain_file, read_file, replace
from .identity import identity_of
from .journal import BrokenLine, Journal, Key, Line, decode, encode, key_of, read_at, scan
from .jsonable import patch_bytes
from .logfiles import LogFile
from .names import ID_FILE, LOG_FILE, PATCH_FILE, is_cut, safe_file_names, safe_name
from .runfile import RUN_FILE, bad_directory, claim, open_folder, pretty, refuse_foreign, take_lock
from .summary import Summary

__all__ = ["RunDir", "identity_of", "read_rollouts"]

JOURNAL_FILE = "rollouts.jsonl"
SUMMARY_FILE = "summary.json"

MAX_SAVED = 256 * 1024 * 1024
"""How much an agent may save for one rollout, in bytes."""
MAX_FILES = 1000
"""How many files an agent may save for one rollout."""

_log = logging.getLogger(__name__)


class RunDir:
    """A run directory in use. A context manager: its end refreshes what is derived, and lets the directory go.

    `path` is the directory, `run_id` its own name, the same each time it is opened. `finished` are the rollouts that
    were on disk when it was opened and need not run again.
    """

    path: Path
    run_id: str
    finished: dict[Key, Rollout]

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        identity: Mapping[str, Any],
        details: Mapping[str, Any] | None = None,
        retry_errors: bool = False,
    ) -> RunDir:
        """Make the directory (and its parents), or open it again to resume its run.

        `identity` is what must be the same for that (`identity_of`), `details` is for the reader only. Secrets in
        either are not written. With `retry_errors`, rollouts with an error don't count as finished.

        Raises:
            RunDirError: it can't be made or written, another run is using it, it is of a different run, it is no run
                directory, or its journal is damaged.
        """
        return cls(Path(path), identity=identity, details=details or {}, retry_errors=retry_errors)

    def __init__(
        self, path: Path, *, identity: Mapping[str, Any], details: Mapping[str, Any], retry_errors: bool
    ) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._logs_lock = threading.Lock()  # of their own, so that no rollout waits for the journal
        self._save_lock = threading.Lock()
        self._logs: dict[Key, LogFile] = {}
        self._complained = False
        self._closed = False  # no log is taken any more
        self._released = False  # nothing is: the descriptors' numbers may be of other files by now
        self._lines: dict[Key, Line] = {}
        self._unchecked: set[Key] = set()
        with contextlib.ExitStack() as stack:
            try:
                self._dir_fd = open_folder(path)
                stack.callback(os.close, self._dir_fd)
                refuse_foreign(path, self._dir_fd)
                stack.callback(os.close, take_lock(path, self._dir_fd))
                refuse_foreign(path, self._dir_fd)
                self.run_id = claim(path, self._dir_fd, identity, details)
                self._journal = self._open_journal()
                stack.callback(self._journal.close)
            except (OSError, ValueError) as exc:
                if isinstance(exc, RunDirError):
                    raise
                reason = exc.strerror if isinstance(exc, OSError) and exc.strerror else str(exc)
                raise bad_directory(path, f"can't be used ({reason}): give a directory that can be written") from exc
            self.finished = self._load(retry_errors)
            self._resources = stack.pop_all()

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
            if self._released:
                raise JournalError(f"{self.path} is closed: open it again to record", path=str(self.path))
            for rollout, line in zip(ran, self._journal.append(lines), strict=True):
                self._lines[_key(rollout)] = line
        for rollout in ran:
            try:
                self._keep_patch(rollout)
            except OSError as exc:
                self._unchecked.add(_key(rollout))
                self._complain(exc)

    def log(self, instance_id: str, attempt: int) -> Callable[[bytes], None]:
        """A sink, callable from any thread, for what the rollout's sandboxes print. The log starts afresh.

        At most 16 MiB are kept. A disk error is logged once and never raised.
        """
        name = safe_name(instance_id, attempt)
        key = (instance_id, attempt)
        self.close_log(instance_id, attempt)
        sink = LogFile(self._dir_fd, name, lambda: self._name_folder(name, instance_id, attempt), self._complain)
        with self._logs_lock:
            if self._closed:
                sink.close()
            else:
                with contextlib.suppress(OSError), folder(name, dir_fd=self._dir_fd) as inside:
                    os.unlink(LOG_FILE, dir_fd=inside)
                self._logs[key] = sink
        return sink

    def close_log(self, instance_id: str, attempt: int) -> None:
        """The rollout has ended: what its sink still gets is dropped."""
        with self._logs_lock:
            sink = self._logs.pop((instance_id, attempt), None)
        if sink:
            sink.close()

    def save(self, instance_id: str, attempt: int, files: Mapping[str, str | bytes]) -> None:
        """Keep what the agent saved, by safe names. What goes past 256 MiB or 1,000 files is left out, with a warning.

        Raises:
            BadOutcome: a name is not text, or a file neither text nor bytes; nothing is written.
        """
        check_files(files)
        if not files:
            return
        names = safe_file_names(files)
        left = MAX_SAVED
        with self._save_lock:
            if self._released:
                return
            try:
                with self._folder(instance_id, attempt) as inside:
                    for number, (name, content) in enumerate(files.items()):
                        data = patch_bytes(content) if isinstance(content, str) else bytes(content)
                        if len(data) > left or number >= MAX_FILES:
                            _log.warning(
                                "%s: the agent's file %.100r is left out: too much was saved", instance_id, name
                            )
                            continue
                        left -= len(data)
                        replace(names[name], [data], dir_fd=inside, durable=False)
            except OSError as exc:
                self._complain(exc)

    def refresh(self) -> None:
        """Derive preds.json, preds.1.json, ... and summary.json from the journal, and patches that a crash left out.

        In preds.json is every rollout whose agent came to an end, also those with an empty patch, which the harness
        counts as such. What failed before there was a patch is not in it: the harness counts it as incomplete.

        Raises:
            JournalError: they can't be written.
        """
        summary = Summary()
        try:
            with self._lock:
                if self._released:
                    return
                keys = sorted(self._lines, key=lambda key: (key[1], key[0]))
                if not keys or keys[0][1] > 0:
                    self._replace("preds.json", _predictions(()))
                for attempt, group in itertools.groupby(keys, key=lambda key: key[1]):
                    name = f"preds.{attempt}.json" if attempt else "preds.json"
                    self._replace(name, _predictions(self._derive(group, summary)))
                self._replace(SUMMARY_FILE, [pretty(summary.result())])
        except (OSError, BrokenLine) as exc:
            raise JournalError(
                f"{self.path}: what is derived from the journal can't be written ({exc}): make room, then run again "
                "with the same directory",
                path=str(self.path),
            ) from exc

    def close(self) -> None:
        """Refresh, and let the directory go. A failing refresh is logged: the journal has it all. Idempotent."""
        with self._logs_lock:
            if self._closed:
                return
            self._closed = True
            logs = list(self._logs.values())
            self._logs.clear()
        try:
            for sink in logs:
                sink.close()
            self.refresh()
        except JournalError as exc:
            _log.error("%s", exc)
        finally:
            with self._lock, self._save_lock:
                self._released = True
                self._resources.close()

    def __enter__(self) -> RunDir:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _open_journal(self) -> Journal:
        fd = open_plain_file(JOURNAL_FILE, os.O_RDWR | os.O_APPEND | os.O_CREAT, dir_fd=self._dir_fd)
        os.fsync(self._dir_fd)
        return Journal(fd, str(self.path / JOURNAL_FILE))

    def _load(self, retry_errors: bool) -> dict[Key, Rollout]:
        """The finished rollouts; a torn last line is cut off."""
        finished: dict[Key, Rollout] = {}
        size = 0
        try:
            for line, rollout in scan(self._journal.fd, decode):
                size = line.start + line.length
                self._journal.count = line.number
                self._lines[_key(rollout)] = line
                finished[_key(rollout)] = rollout
            if size < self._journal.size:
                _log.warning(
                    "%s: the last line was torn (%d bytes); it is dropped, and that rollout runs again",
                    self._journal.path,
                    self._journal.size - size,
                )
                self._journal.cut(size)
        except BrokenLine as exc:
            raise bad_directory(
                self.path, f"has a damaged journal: {JOURNAL_FILE} {exc}; remove that line to go on"
            ) from exc
        except OSError as exc:
            raise bad_directory(self.path, f"can't be used ({exc.strerror or exc})") from exc
        self._unchecked = {key for key, rollout in finished.items() if rollout.patch}
        if retry_errors:
            finished = {key: rollout for key, rollout in finished.items() if rollout.error is None}
        return finished

    def _derive(self, keys: Iterable[Key], summary: Summary) -> Iterator[Rollout]:
        """The rollouts of `keys`, one at a time, on their way into the summary."""
        for key in keys:
            rollout = read_at(self._journal.fd, self._lines[key])
            summary.add(rollout)
            if key in self._unchecked:
                try:
                    self._keep_patch(rollout)
                    self._unchecked.discard(key)
                except OSError as exc:  # of this one's folder alone
                    self._complain(exc)
            yield rollout

    def _keep_patch(self, rollout: Rollout) -> None:
        """Make patch.diff what it should be; without a patch there is none."""
        name = safe_name(rollout.instance_id, rollout.attempt)
        if not rollout.patch:
            with contextlib.suppress(FileNotFoundError), folder(name, dir_fd=self._dir_fd) as inside:
                os.unlink(PATCH_FILE, dir_fd=inside)
            return
        data = patch_bytes(rollout.patch)
        with self._folder(rollout.instance_id, rollout.attempt) as inside:
            if _key(rollout) in self._unchecked:
                with contextlib.suppress(OSError):
                    if read_file(PATCH_FILE, dir_fd=inside, limit=len(data)) == data:
                        return
            replace(PATCH_FILE, [data], dir_fd=inside, durable=False)

    @contextlib.contextmanager
    def _folder(self, instance_id: str, attempt: int) -> Iterator[int]:
        name = safe_name(instance_id, attempt)
        self._name_folder(name, instance_id, attempt)
        with folder(name, dir_fd=self._dir_fd, create=True) as inside:
            yield inside

    def _name_folder(self, name: str, instance_id: str, attempt: int) -> None:
        """Where the folder's name is too short for the id, a file in it holds the id."""
        if is_cut(name):
            with folder(name, dir_fd=self._dir_fd, create=True) as inside:
                replace(
                    ID_FILE, [pretty({"instance_id": instance_id, "attempt": attempt})], dir_fd=inside, durable=False
                )

    def _replace(self, name: str, chunks: Iterable[bytes]) -> None:
        replace(name, chunks, dir_fd=self._dir_fd, durable=True)

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
    try:
        names = os.listdir(where)
    except OSError as exc:
        raise bad_directory(where, f"is no run directory that can be read ({exc.strerror or exc})") from exc
    if RUN_FILE not in names:
        raise bad_directory(where, f"is no run directory: it has no {RUN_FILE}")
    return _read(where)


def _read(path: Path) -> Iterator[Rollout]:
    with contextlib.ExitStack() as stack:
        try:
            fd = os.open(path / JOURNAL_FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            stack.callback(os.close, fd)
            last: dict[Key, Line] = {}
            for line, key in scan(fd, key_of):
                last.pop(key, None)  # so that it goes to the end
                last[key] = line
            for line in last.values():
                yield read_at(fd, line)
        except FileNotFoundError:
            return  # nothing has finished yet
        except BrokenLine as exc:
            raise bad_directory(path, f"has a damaged journal: {JOURNAL_FILE} {exc}") from exc
        except OSError as exc:
            raise bad_directory(path, f"can't be read ({exc.strerror or exc})") from exc


def _key(rollout: Rollout) -> Key:
    return rollout.instance_id, rollout.attempt


def check_files(files: Any) -> None:
    """Raises BadOutcome unless `files` is what an AgentResult may save."""
    if not isinstance(files, Mapping):
        raise BadOutcome(
            f"AgentResult.files is a {type(files).__name__}: give a dict of names and contents", where="files"
        )
    for name, content in files.items():
        if not isinstance(name, str):
            raise BadOutcome(f"AgentResult.files has the name {name!a:.80}: give names as text", where="files")
        if not isinstance(content, (str, bytes, bytearray, memoryview)):
            kind = type(content).__name__
            raise BadOutcome(f"AgentResult.files[{name!a:.80}] is a {kind}: give str or bytes", where="files")


def _predictions(rollouts: Iterable[Rollout]) -> Iterator[bytes]:
    """preds.json, a piece at a time."""
    before = "{\n"
    for rollout in rollouts:
        if not rollout.patch and (rollout.error is not None or rollout.skipped == "setup_failed"):
            continue
        prediction = {
            "instance_id": rollout.instance_id,
            "model_name_or_path": rollout.model or "none",
            "model_patch": rollout.patch,
        }
        yield f"{before}{json.dumps(rollout.instance_id)}: {json.dumps(prediction)}".encode()
        before = ",\n"
    yield b"{}\n" if before == "{\n" else b"\n}\n"
