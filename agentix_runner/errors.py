"""Every error of agentix-runner: whose fault it is, and what to do next.

The message is one line that names the culprit and the remedy. Data that a program may want is on attributes. All of
them survive pickling, because they travel between processes.

    AgentixError
    ├── BadArgument      (ValueError)  an argument of yours; nothing was started
    ├── BadAdapter       (TypeError)   a dataset, agent or provider that lacks something; nothing was started
    ├── RunDirError      (ValueError)  the run directory: not writable, in use, or of another run
    ├── JournalError     (OSError)     a finished rollout could not be written: the run stops
    ├── BadOutcome       (ValueError)  what an adapter returned can't be recorded
    ├── PhaseTimeout     (TimeoutError) a phase ran past its limit
    ├── Stopped                        the run was stopped before this could finish
    ├── WorkerDied                     the process of an executor that ran this is gone
    ├── BundleError                    a bundle can't be made, or is not one
    └── SandboxError                   everything that comes from a sandbox
        ├── SandboxStartError          it could not be started
        ├── SandboxDied                it ended while something was waiting for it
        ├── CallError                  the call can't be sent; it never reached the sandbox
        ├── BadResult                  what came back is not a valid result
        └── RemoteError                the function raised in the sandbox
"""

from __future__ import annotations

from collections.abc import Iterator


class AgentixError(Exception):
    """Base of all errors raised by agentix-runner."""

    transient: bool = False
    """Whether the same thing may well succeed when it is tried again."""


class BadArgument(AgentixError, ValueError):
    """An argument is wrong. Raised before anything starts."""


class BadAdapter(AgentixError, TypeError):
    """A dataset, agent or provider is not what it must be. Raised before anything starts."""


class RunDirError(AgentixError, ValueError):
    """The run directory can't be used: not writable, in use by another run, or of a different run.

    `path` is the directory.
    """

    def __init__(self, message: str, *, path: str = "") -> None:
        super().__init__(message)
        self.path = path


class JournalError(AgentixError, OSError):
    """A finished rollout could not be appended to the journal (disk full, say). The run stops.

    `path` is the journal.
    """

    def __init__(self, message: str, *, path: str = "") -> None:
        super().__init__(message)
        self.path = path


class BadOutcome(AgentixError, ValueError):
    """What an adapter returned can't be recorded. `where` names the value: `score["tests"][3]`."""

    def __init__(self, message: str, *, where: str = "") -> None:
        super().__init__(message)
        self.where = where


class PhaseTimeout(AgentixError, TimeoutError):
    """A phase of a rollout ran past its limit. `phase` is its name, `limit_s` the limit in seconds."""

    def __init__(self, message: str, *, phase: str = "", limit_s: float = 0.0) -> None:
        super().__init__(message)
        self.phase = phase
        self.limit_s = limit_s


class Stopped(AgentixError):
    """The run was stopped (`stop`, Ctrl-C, a signal, `max_errors`) before this could finish."""


class WorkerDied(AgentixError):
    """The process of an executor that ran a rollout died, as often as it was tried. `tries` says how often, where it
    is known."""

    transient = True

    def __init__(self, message: str, *, tries: int = 1) -> None:
        super().__init__(message)
        self.tries = tries


class BundleError(AgentixError):
    """A bundle can't be made from what is there, or what was given as one is none."""


class SandboxError(AgentixError):
    """Something that comes from a sandbox, or from the way to it."""


class SandboxStartError(SandboxError):
    """A sandbox could not be started. `transient` says whether another try may work."""

    def __init__(self, message: str, *, transient: bool = False) -> None:
        super().__init__(message)
        self.transient = transient


class SandboxDied(SandboxError):
    """The sandbox ended while something was waiting for it.

    `exit_code` is that of its first process (negative: the signal that killed it), None where it isn't known.
    `oom` is True where it is known that memory ran out.
    """

    def __init__(self, message: str, *, exit_code: int | None = None, oom: bool = False) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.oom = oom


class CallError(SandboxError):
    """A call can't be sent: its function or arguments don't travel. It never reached the sandbox."""


class BadResult(SandboxError):
    """What came back from the sandbox is malformed, too large, or not what the function's annotation says."""


class RemoteError(SandboxError):
    """The function raised in the sandbox.

    `type_name` is the exception's name there, `remote_message` its text and `remote_traceback` its traceback:
    all of them text made by the sandbox, never objects.
    """

    def __init__(
        self, message: str, *, type_name: str = "", remote_message: str = "", remote_traceback: str = ""
    ) -> None:
        super().__init__(message)
        self.type_name = type_name
        self.remote_message = remote_message
        self.remote_traceback = remote_traceback


def describe(exc: BaseException, limit: int = 2000) -> str:
    """One line for `exc`: its type's name and its message, as a rollout's `error` shows it.

    At most `limit` characters: the text may come from a sandbox. An exception whose `str()` raises is named only.
    """
    return one_line(type(exc).__name__, message_of(exc), limit)


def message_of(exc: BaseException) -> str:
    """`str(exc)`, or that it raised."""
    try:
        return str(exc)
    except Exception as broken:
        return f"(its message can't be shown: str() raised {type(broken).__name__})"


def one_line(name: str, text: str, limit: int = 2000) -> str:
    """`name: text` on one line, with at most `limit` characters of `text`."""
    text = " ".join(text.split())
    if len(text) > limit:
        text = text[:limit] + "..."
    return f"{name}: {text}" if text else name


# ---------------------------------------------------------------- what is worth another try

TRANSIENT_STATUS = frozenset({429, 502, 503, 504})
PERMANENT_STATUS = frozenset({400, 401, 403, 404})

# What a container engine says, with status 500, when it could not reach an image registry (moby's and Go's net texts).
REGISTRY_TROUBLE = (
    "tls handshake timeout",
    "i/o timeout",
    "connection refused",
    "connection reset",
    "no such host",
    "temporary failure in name resolution",
    "request canceled while waiting",
    "context deadline exceeded",
    "unexpected eof",
    "toomanyrequests",
    "bad gateway",
    "service unavailable",
    "gateway timeout",
)

# Connection trouble in HTTP libraries that does not derive from the built-in errors: known by name, so that none of
# them has to be imported.
CONNECTION_TROUBLE = frozenset(
    {
        "requests.exceptions.ConnectionError",
        "requests.exceptions.Timeout",
        "urllib3.exceptions.HTTPError",
        "httpx.TransportError",
        "httpcore.TimeoutException",
        "httpcore.NetworkError",
        "aiohttp.client_exceptions.ClientConnectionError",
        "asyncio.exceptions.TimeoutError",
        "concurrent.futures._base.TimeoutError",
    }
)


def is_transient(exc: BaseException) -> bool:
    """Whether making the sandbox may well work if it is tried again.

    Yes: an error that says so itself (`transient`), connection errors, timeouts, HTTP 429, 502, 503, 504, and a 500
    whose text is an unreachable registry. No: everything else; HTTP 400, 401, 403 and 404 (no such image) whatever
    their class, and what is not an `Exception` (KeyboardInterrupt, a cancelled task).
    """
    return (
        isinstance(exc, Exception) and any(map(_says_transient, _chain(exc))) and _status(exc) not in PERMANENT_STATUS
    )


def _says_transient(exc: BaseException) -> bool:
    if getattr(exc, "transient", False) is True:
        return True
    status = _status(exc)
    if status is not None:
        return status in TRANSIENT_STATUS or (status == 500 and is_registry_trouble(str(exc)))
    if isinstance(exc, (ConnectionError, TimeoutError)):
        return True
    return any(f"{c.__module__}.{c.__qualname__}" in CONNECTION_TROUBLE for c in type(exc).__mro__)


def _chain(exc: BaseException) -> Iterator[BaseException]:
    """`exc` and what it was explicitly raised from; a cycle or an endless chain ends after ten."""
    link: BaseException | None = exc
    for _ in range(10):
        if link is None:
            return
        yield link
        link = link.__cause__


def _status(exc: BaseException) -> int | None:
    """The HTTP status that an error carries, where the usual libraries put it."""
    for holder in (exc, getattr(exc, "response", None)):
        for name in ("status_code", "status"):
            value = getattr(holder, name, None)
            if isinstance(value, int) and not isinstance(value, bool):
                return value
    return None


def is_registry_trouble(text: str) -> bool:
    """Whether a container engine says here that it could not reach an image registry."""
    return any(words in text.lower() for words in REGISTRY_TROUBLE)
