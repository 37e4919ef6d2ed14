"""What is found out once, by whoever asks first; those who ask meanwhile wait for the same outcome."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Once(Generic[K, V]):
    """Values by key. One that could not be had is not kept: the next one to ask tries again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: dict[K, Future[V]] = {}

    def get(self, key: K, make: Callable[[], V]) -> V:
        """The value of `key`; `make()` finds it where nobody has. Raises what that raised."""
        with self._lock:
            future = self._found.get(key)
            mine = future is None
            if future is None:
                future = self._found[key] = Future()
        if mine:
            try:
                future.set_result(make())
            except BaseException as error:
                with self._lock:
                    if self._found.get(key) is future:
                        del self._found[key]
                future.set_exception(error)
        return future.result()

    def forget(self, key: K) -> None:
        """It is not true any more."""
        with self._lock:
            self._found.pop(key, None)

    def __contains__(self, key: K) -> bool:
        with self._lock:
            return key in self._found
