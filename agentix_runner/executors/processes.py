"""Rollouts by any other executor, a `ProcessPoolExecutor` for one.

What the rollouts share is in a file, which is there for as long as the run wants them: a process of this machine
reads it there, and stops what it is at when the file goes, or the process that started it does. Elsewhere, with an
executor that leads to other machines, it goes along with each rollout, and a stop means that no new one starts.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from typing import TYPE_CHECKING

from attrs import frozen

from ..errors import BadAdapter, Stopped, describe
from ..providers.owners import Owner
from ..records import Rollout
from ..rollout.phases import Item, Spec
from ..rollout.result import fail
from .elsewhere import Elsewhere
from .lines import this_process
from .remote_job import Outcome, Workplace, pack, pack_instance

if TYPE_CHECKING:
    from ..batch.checks import Planned

WATCH_S = 0.2
"""How often (seconds) a process looks whether the run goes on."""


@frozen
class Ticket:
    """How to get at what the rollouts of a run share: in the file `path`, or else in `parcel`."""

    host: str
    owner: Owner
    path: str
    run_id: str
    model: str | None
    parcel: bytes | None


class Processes(Elsewhere):
    """A place: an executor of which nothing is known but that it runs functions."""

    def __init__(
        self, executor: Executor, spec: Spec, *, n_concurrent: int, keeps: bool, jobs: Sequence[Planned]
    ) -> None:
        super().__init__(executor, spec, n_concurrent=n_concurrent, keeps=keeps, jobs=jobs)
        self._parcel = pack(spec, keeps=keeps)
        self._folder = ""

    def prepare(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="agentix-run-")
        path = os.path.join(self._folder, "parcel")
        with open(path, "wb") as file:
            file.write(self._parcel)
        parcel = None if isinstance(self.executor, ProcessPoolExecutor) else self._parcel
        self._ticket = Ticket(this_process(), Owner.current(), path, self.run.run_id, self.spec.model, parcel)

    def send(self, name: str, item: Item) -> Future[Outcome]:
        instance = pack_instance(item.instance, item.instance_id)
        return self.executor.submit(run_errand, self._ticket, name, instance, item.instance_id, item.attempt)

    def reach(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._ticket.path)
        self.take_back()  # what has not begun

    def clean_up(self) -> None:
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)


# ---------------------------------------------------------------- over there

_workplaces: dict[str, Workplace] = {}
_opening = threading.Lock()


def run_errand(ticket: Ticket, name: str, instance: bytes, instance_id: str, attempt: int) -> Outcome:
    """Run one rollout in this process. Never raises."""
    try:
        place = _workplace(ticket)
    except Exception as exc:
        error = exc
        if not isinstance(exc, Stopped):
            error = BadAdapter(f"the adapters can't be loaded in the executor's process: {describe(exc, 500)}")
            error.__cause__ = exc
        rollout = Rollout(instance_id, attempt=attempt, model=ticket.model)
        fail(rollout, "session", error)
        return Outcome(rollout)
    with _deaf(ticket.host):
        return place.run(name, instance, instance_id, attempt)


def _workplace(ticket: Ticket) -> Workplace:
    with _opening:
        place = _workplaces.get(ticket.path)
        if place is None:
            shared = os.path.exists(ticket.path)
            if not shared and ticket.parcel is None:
                raise Stopped("the run was stopped")
            if ticket.parcel is not None:
                parcel = ticket.parcel
            else:
                with open(ticket.path, "rb") as file:
                    parcel = file.read()
            place = Workplace(parcel, ticket.run_id)
            if shared:
                # Without a watch nobody would know when to let go of it.
                _workplaces[ticket.path] = place
                threading.Thread(target=_watch, args=(ticket.path, place, ticket.owner), daemon=True).start()
        return place


def _watch(path: str, place: Workplace, owner: Owner) -> None:
    # By the owner's number, not by this process's parent, which may be a fork server that outlives the owner.
    while os.path.exists(path) and not owner.is_dead:
        time.sleep(WATCH_S)
    place.stop()
    shutil.rmtree(os.path.dirname(path), ignore_errors=True)  # where nobody else is left to do it
    with _opening:
        del _workplaces[path]


@contextlib.contextmanager
def _deaf(host: str) -> Iterator[None]:
    """Inside, Ctrl-C is not for this process: a terminal sends it to all, and the one at the other end decides."""
    if host == this_process() or threading.current_thread() is not threading.main_thread():
        yield
        return
    # A handler that does nothing, since what is ignored would be ignored in the sandbox's processes too.
    before = signal.signal(signal.SIGINT, lambda signum, frame: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
