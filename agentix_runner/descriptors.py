"""File descriptors: how many this process may have open, and room for what it is about to take."""

from __future__ import annotations

import os
import resource

from .errors import BadArgument
from .rollout.bridge import FDS_PER_LOOP

SPARE_FDS = 64
"""File descriptors left for everything else: the journal, logs, the adapters' own connections."""


def make_room(*, n_loops: int, n_sessions: int, per_session: int) -> None:
    """Raise the soft limit on open files to what the run needs, as far as the hard limit allows.

    Raises: BadArgument where not even the event loops fit; sandboxes that don't fit fail one by one, and may be
    retried when others have ended.
    """
    used = _open_files() + SPARE_FDS
    must = used + n_loops * FDS_PER_LOOP
    wish = must + n_sessions * per_session
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or wish <= soft:
        return
    target = wish if hard == resource.RLIM_INFINITY else min(wish, hard)
    if target > soft:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
            soft = target
        except (OSError, ValueError):  # macOS: a hard limit of "infinity" that the kernel does not grant
            target = soft
    if n_loops and must > soft:
        raise BadArgument(
            f"n_concurrent={n_loops} with async adapters needs {must} file descriptors and {soft} are allowed: "
            f"lower n_concurrent to {max((soft - used) // FDS_PER_LOOP, 1)}, or raise the limit (ulimit -n {must})"
        )


def _open_files() -> int:
    """How many file descriptors this process has open; a guess where the system does not tell."""
    for path in ("/proc/self/fd", "/dev/fd"):
        try:
            return len(os.listdir(path))
        except OSError:
            continue
    return 32
