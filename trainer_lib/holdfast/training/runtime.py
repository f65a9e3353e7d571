"""The runtime of an open session, and how they are joined."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from holdfast.distributed.agreement import Decision
from holdfast.distributed.agreement_thread import Agreement
from holdfast.distributed.coordination import Coordination
from holdfast.distributed.peers import Peers
from holdfast.errors import PeerLost
from holdfast.policies.save_when_unstable import watched_metrics
from holdfast.training.agent_client import AgentClient
from holdfast.training.beginning import FORGOTTEN_IN_SESSION, Beginning
from holdfast.training.config import SessionConfig
from holdfast.training.goodput import GoodputAccountant, process_age_seconds
from holdfast.training.progress import Steps
from holdfast.training.save_request_loop import SaveRequestLoop
from holdfast.training.save_requests import Agreed, SaveRequestQueue
from holdfast.training.saves import Saves
from holdfast.training.schedule import Schedule
from holdfast.training.status import Status
from holdfast.training.termination import SIGTERM_SECONDS, TerminationSignal
from holdfast_contract.keys import ENV_AGENT_SOCKET
from holdfast_contract.runfolder import RunFolder
from holdfast_contract.sync import SIGTERM_SAVE_ID, SaveRequest

if TYPE_CHECKING:
    from holdfast.store import Store, StoreSettings

log = logging.getLogger("holdfast")

ATTEMPT_SECONDS: Final = 60.0
"""How long process 0 may take to look for the highest attempt on storage."""
REPORT_SECONDS: Final = 2.0
"""How long the last update to the agent may take."""


@dataclass
class TrainerState:
    """The state of this process from its first moment on; the agent receives it once there is a connection."""

    accountant: GoodputAccountant = field(default_factory=lambda: GoodputAccountant(process_age_seconds()))
    agent: AgentClient | None = None

    def __post_init__(self) -> None:
        self.steps = Steps(self._step_completed)
        self.status = Status(self.accountant, self.steps, self._changed)
        self.stepped = False
        self.crowded = ENV_AGENT_SOCKET in os.environ  # others wait for how this process ends

    def flush(self) -> bool:
        """Send the whole state to the agent now, within REPORT_SECONDS; True without an agent."""
        return self.agent is None or self.agent.flush(REPORT_SECONDS)

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
class Runtime:
    """All parts of an open session."""

    config: SessionConfig
    trainer: TrainerState
    coordination: Coordination
    attempt: int
    beginning: Beginning
    schedule: Schedule
    store: Store
    requests: SaveRequestLoop
    saves: Saves
    agreement: Agreement
    peers: Peers
    signal: TerminationSignal

    def start(self) -> None:
        """Start all threads, then claim the run. Raises what the claim raises."""
        self.agreement.start()
        self.requests.start()
        self.peers.start()
        if self.trainer.agent is not None:
            self.trainer.agent.start()
        self.store.claim(take_over=self.config.take_over)
        self.signal.install()

    def close(self) -> None:
        """Stop all threads; nothing is saved or reported after this."""
        self.signal.restore()
        self.peers.close()
        self.requests.close()
        self.agreement.close()
        if self.trainer.agent is not None:
            self.trainer.agent.close()


def assemble(
    config: SessionConfig, coordination: Coordination, trainer: TrainerState, *, abandoned: Callable[[PeerLost], None]
) -> Runtime:
    """Make the runtime and join them; nothing runs yet. ``abandoned``: see Peers."""
    store, attempt = open_store(config, coordination)
    schedule = Schedule(config.every, coordination.process_index)
    trainer.steps.watch(watched_metrics(config.every))
    events = SaveRequestQueue()
    saves = Saves(
        store,
        accountant=trainer.accountant,
        steps=trainer.steps,
        status=trainer.status,
        requests=events,
        history=config.history,
    )

    def agreed(request: SaveRequest, decision: Decision) -> None:
        events.put(Agreed(request, decision, trainer.status.newest))

    agreement = Agreement(coordination, facts=saves.facts, agreed=agreed)
    requests = SaveRequestLoop(
        events,
        agreement=agreement,
        status=trainer.status,
        schedule=schedule,
        process_index=coordination.process_index,
    )
    if config.agent_socket is not None:
        trainer.agent = AgentClient(
            config.agent_socket, attempt, update=trainer.status.update, command=requests.command
        )
    sigterm = SaveRequest(SIGTERM_SAVE_ID, seconds_left=SIGTERM_SECONDS, stop=True)
    return Runtime(
        config=config,
        trainer=trainer,
        coordination=coordination,
        attempt=attempt,
        beginning=Beginning(config, attempt, coordination, remedy=FORGOTTEN_IN_SESSION),
        schedule=schedule,
        store=store,
        requests=requests,
        saves=saves,
        agreement=agreement,
        peers=Peers(coordination, abandoned),
        signal=TerminationSignal(lambda: requests.request(sigterm)),
    )


def open_store(
    config: SessionConfig, coordination: Coordination, settings: StoreSettings | None = None
) -> tuple[Store, int]:
    """The store of this run, not claimed yet, and its attempt."""
    from holdfast.store import Store

    if config.create_path:
        config.folder.parent.mkdir(parents=True, exist_ok=True)
    attempt = config.attempt or _next_attempt(config, coordination)
    store = Store(
        RunFolder(config.folder),
        attempt=attempt,
        owner=config.owner(attempt),
        coordination=coordination,
        settings=settings or _settings(config),
        retention=config.keep,
    )
    return store, attempt


def _settings(config: SessionConfig) -> StoreSettings:
    from holdfast.store import StoreSettings

    settings = StoreSettings(poison_after=config.poison_after, writer=config.writer, check_saves=config.check_saves)
    return settings if config.save_seconds is None else replace(settings, save_seconds=config.save_seconds)


def _next_attempt(config: SessionConfig, coordination: Coordination) -> int:
    """Without an operator: one more than the highest on storage, as process 0 sees it."""
    if coordination.process_index == 0:
        coordination.create("session/attempt", str(RunFolder(config.folder).highest_attempt() + 1))
    try:
        return int(coordination.get("session/attempt", ATTEMPT_SECONDS))
    except TimeoutError:
        raise PeerLost("process 0 to choose the attempt", limit_seconds=ATTEMPT_SECONDS, missing=[0]) from None
