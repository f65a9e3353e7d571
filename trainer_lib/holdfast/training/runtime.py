"""The parts of an open session, and how they are joined."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from holdfast.distributed.agreement import Ask, Decision
from holdfast.distributed.agreement_thread import Agreement
from holdfast.distributed.coordination import Coordination
from holdfast.distributed.peers import Peers
from holdfast.errors import PeerLost
from holdfast.policies.triggers import watched_metrics
from holdfast.training.agent_client import AgentClient
from holdfast.training.config import Surroundings
from holdfast.training.goodput import Accountant, process_age_seconds
from holdfast.training.progress import Steps
from holdfast.training.save_requests import SIGTERM_SECONDS, RequestDesk, TerminationSignal
from holdfast.training.saves import Saves
from holdfast.training.schedule import Schedule
from holdfast.training.status import Status
from holdfast_contract.keys import ENV_AGENT_SOCKET
from holdfast_contract.runfolder import RunFolder
from holdfast_contract.sync import SIGTERM_SAVE_ID

if TYPE_CHECKING:
    from holdfast.store import Store, StoreSettings

log = logging.getLogger("holdfast")

ATTEMPT_SECONDS: Final = 60.0
"""How long process 0 may take to look for the highest attempt on storage."""
TELL_SECONDS: Final = 2.0
"""How long the last word to the agent may take."""


@dataclass
class Journal:
    """What is known of this process from its first moment on, and told to the agent once there is one."""

    accountant: Accountant = field(default_factory=lambda: Accountant(process_age_seconds()))
    agent: AgentClient | None = None

    def __post_init__(self) -> None:
        self.steps = Steps(self._step_completed)
        self.status = Status(self.accountant, self.steps, self._changed)
        self.stepped = False
        self.crowded = ENV_AGENT_SOCKET in os.environ  # others wait for how this process ends

    def tell(self) -> bool:
        """Let the agent know everything now, within TELL_SECONDS; True if there is nobody to tell."""
        return self.agent is None or self.agent.flush(TELL_SECONDS)

    def _changed(self) -> None:
        if self.agent is not None:
            self.agent.notify()

    def _step_completed(self, step: int) -> None:
        from holdfast_contract.reasons import Bucket

        if not self.stepped:
            self.stepped = True
            log.info("the first step of this process, step %d, is complete", step)
        self.accountant.enter_phase(Bucket.PRODUCTIVE)


@dataclass(frozen=True)
class Parts:
    """Everything between joining the world and leaving it."""

    where: Surroundings
    journal: Journal
    coordination: Coordination
    attempt: int
    schedule: Schedule
    store: Store
    desk: RequestDesk
    saves: Saves
    agreement: Agreement
    peers: Peers
    signal: TerminationSignal

    def start(self) -> None:
        """Begin to watch and to talk, then claim the run. Raises what the claim raises."""
        self.agreement.start()
        self.peers.start()
        if self.journal.agent is not None:
            self.journal.agent.start()
        self.store.claim(take_over=self.where.take_over)
        self.signal.install()

    def close(self) -> None:
        """Stop watching and talking; nothing is saved or told after this."""
        self.signal.restore()
        self.peers.close()
        self.agreement.close()
        if self.journal.agent is not None:
            self.journal.agent.close()


def assemble(
    where: Surroundings, coordination: Coordination, journal: Journal, *, abandoned: Callable[[PeerLost], None]
) -> Parts:
    """Make the parts and join them; nothing runs yet. ``abandoned``: see Peers."""
    store, attempt = open_store(where, coordination)
    schedule = Schedule(where.every, coordination.process_index)
    journal.steps.watch(watched_metrics(where.every))
    desk = RequestDesk(journal.status, coordination.process_index)
    saves = Saves(
        store,
        accountant=journal.accountant,
        steps=journal.steps,
        status=journal.status,
        answered=desk.answered,
        history=where.history,
    )

    def decided(ask: Ask, decision: Decision) -> None:
        schedule.decided(ask, decision)
        desk.decided(ask, decision)

    agreement = Agreement(coordination, facts=saves.facts, decided=decided)
    desk.connect(agreement, saves)
    if where.agent_socket is not None:
        journal.agent = AgentClient(where.agent_socket, attempt, update=journal.status.update, command=desk.command)
    return Parts(
        where=where,
        journal=journal,
        coordination=coordination,
        attempt=attempt,
        schedule=schedule,
        store=store,
        desk=desk,
        saves=saves,
        agreement=agreement,
        peers=Peers(coordination, abandoned),
        signal=TerminationSignal(lambda: desk.request(Ask(SIGTERM_SAVE_ID, seconds_left=SIGTERM_SECONDS, stop=True))),
    )


def open_store(
    where: Surroundings, coordination: Coordination, settings: StoreSettings | None = None
) -> tuple[Store, int]:
    """The store of this run, which nobody has claimed yet, and the attempt that it is for."""
    from holdfast.policies.retention import from_spec
    from holdfast.store import Store

    if where.create_path:
        where.folder.parent.mkdir(parents=True, exist_ok=True)
    attempt = where.attempt or _next_attempt(where, coordination)
    store = Store(
        RunFolder(where.folder),
        attempt=attempt,
        owner=where.owner(attempt),
        coordination=coordination,
        settings=settings or _settings(where),
        retention=from_spec(where.keep.to_spec()),
    )
    return store, attempt


def _settings(where: Surroundings) -> StoreSettings:
    from holdfast.store import StoreSettings

    settings = StoreSettings(poison_after=where.poison_after, writer=where.writer, check_saves=where.check_saves)
    return settings if where.save_seconds is None else replace(settings, save_seconds=where.save_seconds)


def _next_attempt(where: Surroundings, coordination: Coordination) -> int:
    """Without an operator: one more than the highest on storage, as process 0 sees it."""
    if coordination.process_index == 0:
        coordination.create("session/attempt", str(RunFolder(where.folder).highest_attempt() + 1))
    try:
        return int(coordination.get("session/attempt", ATTEMPT_SECONDS))
    except TimeoutError:
        raise PeerLost("process 0 to choose the attempt", limit_seconds=ATTEMPT_SECONDS, missing=[0]) from None
