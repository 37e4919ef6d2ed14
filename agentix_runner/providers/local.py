"""Sandboxes on this machine, without Docker: for each a fresh directory and a guarded process.

It isolates files by convention only: what runs in such a sandbox can read and write whatever you can. What it does
give is a clean start (own directory, environment from an allow-list) and a clean end: every process and the directory
are gone after the session, on Linux also those that have left the process group, and also when this process was killed.
"""

from __future__ import annotations

import errno
import logging
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

from attrs import field, frozen

from ..errors import BadArgument, SandboxError, SandboxStartError
from ..records import SandboxConfig
from ..remote.host.transport import ProcessTransport
from ..remote.sandbox import guard
from . import directories as dirs
from . import settings
from .sandbox import RemoteSandbox

_log = logging.getLogger("agentix_runner.providers.local")

_INHERITED = frozenset(
    {
        *("PATH", "LANG", "LANGUAGE", "TZ", "TZDIR", "USER", "LOGNAME", "SHELL"),
        # An interpreter, and its TLS, may need these to run at all.
        *("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SSL_CERT_FILE", "SSL_CERT_DIR"),
    }
)
_ROOT = str(Path(__file__).parents[2])
_TRANSIENT = frozenset((errno.EAGAIN, errno.ENOMEM, errno.ENFILE, errno.EMFILE))


@frozen(kw_only=True)
class LocalProvider:
    """Makes sandboxes that are processes of this machine.

    `image` of a sandbox is a directory to copy in, or "" for an empty one; the copy is the working directory there.

    Args:
        root: where the sandboxes' directories are made (default: the system's temporary directory).
        env: variables for every sandbox, on top of the few that are inherited (PATH, LANG, LC_*, TZ and the like).
            `SandboxConfig.env` comes on top of these.
        python: the interpreter to run (default: this one). It must be of this one's version.
        start_timeout: seconds that a sandbox may take to answer for the first time.
        max_result: most bytes of one result.
        max_log: most bytes that one sandbox may print; the rest is dropped, and the log says so.
    """

    fds_per_session: ClassVar[int] = 6
    """Most file descriptors that one session takes in this process: two while it runs, the rest while it starts."""

    root: str | os.PathLike[str] | None = None
    env: Mapping[str, str] | None = None
    python: str | None = None
    start_timeout: float = field(default=60.0, validator=settings.above_zero)
    max_result: int = field(default=1 << 30, validator=settings.whole_number)
    max_log: int = field(default=64 << 20, validator=settings.whole_number)

    def check_run(self, *, bundle: str | None, platform: str | None) -> None:
        """Raises BadArgument for what no sandbox of a run could be made with."""
        if bundle is not None:
            raise BadArgument(f"the local provider runs this machine's Python: leave the bundle {bundle!r} out")
        if platform is not None:
            raise BadArgument(f"the local provider runs on this machine only: leave the platform {platform!r} out")
        if self.root is not None and not os.path.isdir(os.path.dirname(os.path.abspath(self.root))):
            raise BadArgument(f"LocalProvider.root is {os.fspath(self.root)!r}: there is no directory to make it in")
        if self.python is not None:
            self._check_python(self.python)

    def _check_python(self, python: str) -> None:
        command = [python, "-I", "-S", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
        try:
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=self.start_timeout)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            raise BadArgument(f"LocalProvider.python is {python!r}, which does not run: {error}") from error
        own = "{}.{}".format(*sys.version_info[:2])
        if done.stdout.decode(errors="replace").strip() != own:
            raise BadArgument(f"LocalProvider.python is {python!r}: give a Python {own}, as this one is")

    @contextmanager
    def session(self, config: SandboxConfig) -> Iterator[RemoteSandbox]:
        """A sandbox, and its end.

        Raises:
            SandboxStartError: it could not be started; `transient` where another try may work.
            SandboxError: at the end, where it can't be confirmed that nothing of the sandbox is left.
        """
        owner = os.getpid()
        base = dirs.make(self.root)
        sandbox = None
        ended = True
        try:
            work = dirs.copy_image(base, config.image)
            sandbox = self._start(base, work, config)
            sandbox.connect(self.start_timeout, _hello())
            yield sandbox
        finally:
            # A fork of this process may come by here too, and the sandbox is not its own.
            if os.getpid() == owner:
                if sandbox is not None:
                    ended = sandbox.close()
                dirs.remove(base, processes_too=not ended or os.path.lexists(base))
        if not ended:
            raise SandboxError(
                "the sandbox did not end as it should: its guard was killed, or something outlived it. What bears its "
                "mark was killed; more may be left"
            )

    def _start(self, base: str, work: str, config: SandboxConfig) -> RemoteSandbox:
        python = self.python or sys.executable
        if not python:
            raise SandboxStartError("this process does not know its interpreter: give LocalProvider(python=...)")
        command = [python, "-I", "-S", "-c", guard.BOOT, _ROOT, base]
        try:
            transport = ProcessTransport.start(command, cwd=work, env=self._environment(base, config))
        except (OSError, ValueError, TypeError) as error:
            code = getattr(error, "errno", None)
            remedy = ": raise `ulimit -n`" if code == errno.EMFILE else ""
            raise SandboxStartError(
                f"{python} could not be started: {error}{remedy}", transient=code in _TRANSIENT
            ) from error
        return RemoteSandbox(
            transport,
            shared=True,
            on_log=config.on_log,
            labels=config.labels,
            max_result=self.max_result,
            max_log=self.max_log,
        )

    def _environment(self, base: str, config: SandboxConfig) -> dict[str, str]:
        env = {key: value for key, value in os.environ.items() if key in _INHERITED or key.startswith("LC_")}
        env["HOME"] = os.path.join(base, "home")
        env["TMPDIR"] = os.path.join(base, "tmp")
        env.update(self.env or {})
        env.update(config.env or {})
        env[dirs.MARKER] = os.path.basename(base)
        return env


def _hello() -> dict[str, object]:
    """What makes the worker import what this process can."""
    try:
        here = os.getcwd()
    except OSError:
        # The directory is gone, and with it all that could be imported from it.
        here = os.path.sep
    return {
        "path": [os.path.normpath(os.path.join(here, entry)) for entry in sys.path if isinstance(entry, str)],
        "prefix": sys.prefix,
        "exec_prefix": sys.exec_prefix,
        "editable": [name for name in sys.modules if name.startswith("__editable__")],
    }
