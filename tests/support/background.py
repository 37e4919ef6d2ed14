"""Something that goes on while a test does something else."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any


def in_background(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
    """Call `function` in a thread of its own; the future gets its value, or what it raises."""
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()
    threading.Thread(target=_run, args=(future, function, args, kwargs), name="test-background", daemon=True).start()
    return future


def _run(future: Future[Any], function: Callable[..., Any], args: Any, kwargs: Any) -> None:
    try:
        future.set_result(function(*args, **kwargs))
    except BaseException as error:
        future.set_exception(error)
        # The error's traceback has this frame: what it holds would stay until somebody collects garbage.
        del future, function, args
