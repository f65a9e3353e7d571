"""The sync thread: posts the newest report, passes the operator's directives to the loop, and never stops trying."""

from __future__ import annotations

import random
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from holdfast_agent import loop_events
from holdfast_agent.channel import Channel, ChannelError, HttpAnswer, address_of
from holdfast_agent.container_output import log
from holdfast_agent.report_slot import PendingReport, ReportSlot
from holdfast_agent.reporting import lean
from holdfast_contract import codec
from holdfast_contract.sync import MAX_BODY_BYTES, Action, Directive

FIRST_BACKOFF_SECONDS: Final = 0.1
MAX_BACKOFF_SECONDS: Final = 10.0
BACKOFF_GROWTH: Final = 1.5
"""Growth of the pause per failure. It makes the agent ask again within half of the time that the operator was away."""
MAX_RETRY_AFTER_SECONDS: Final = 30.0
PACE_SECONDS: Final = 1.0
"""Least time between two requests while nothing changes in meaning, whatever the operator does."""
ACKNOWLEDGE_SECONDS: Final = 5.0
"""How long the loop may take to publish a report that repeats the tag of a new directive."""
OVERHOLD_SECONDS: Final = 4.0
"""How much longer than asked a request may be held before the agent interrupts it, so that progress still flows."""
MAX_LEADER_HOPS: Final = 3


@dataclass(frozen=True)
class Service:
    """The operator's Service: its address, the TLS context that verifies it, and the file with this pod's token."""

    host: str
    port: int
    context: ssl.SSLContext
    token_file: str


class RefusedError(Exception):
    """The operator answered with something other than a directive.

    ``retry_after_seconds``: how long it asks the agent to wait; None if it does not say.
    """

    def __init__(self, problem: str, retry_after_seconds: float | None = None) -> None:
        self.retry_after_seconds = retry_after_seconds
        super().__init__(problem)


class LeaderElsewhereError(Exception):
    """The leader is at another address, to which the channel now points."""


class SyncClient:
    """Owns the connection. The loop calls ``publish``; everything else happens in the thread."""

    def __init__(self, service: Service, slot: ReportSlot, post: Callable[[loop_events.Event], None]) -> None:
        """Prepare to connect; ``start`` begins.

        Args:
            service: Where the operator is.
            slot: Where ``publish`` leaves the newest report for the thread.
            post: Queues an event for the loop; called on the thread.
        """
        self._service, self._slot, self._post = service, slot, post
        self._channel = self._new_channel((service.host, service.port))
        self._flight = threading.Lock()  # guards the four below
        self._sent: PendingReport | None = None  # in flight
        self._sent_at = 0.0
        self._urgent_number = 0  # of the newest report that changed in meaning
        self._interrupted = False  # the agent itself interrupted the request
        self._lean = False
        self._hops = 0
        self._failing_since: float | None = None
        self._last_problem = ""
        self._backoff = FIRST_BACKOFF_SECONDS
        self._retry_after_seconds: float | None = None

    def start(self) -> None:
        """Start the thread."""
        threading.Thread(target=self._run, name="sync", daemon=True).start()

    def publish(self, pending: PendingReport, now: float) -> None:
        """Replace the report to send. A held request is interrupted if the new report differs in meaning."""
        self._slot.put(pending)
        with self._flight:
            self._urgent_number = pending.urgent_number
            sent = self._sent
            if sent is None or self._interrupted:
                return
            overheld = pending.number > sent.number and now > self._sent_at + pending.hold_seconds + OVERHOLD_SECONDS
            if sent.number >= pending.urgent_number and not overheld:
                return
            self._interrupted = True
            self._channel.cut()

    def _run(self) -> None:
        while True:
            started = time.monotonic()
            answered = self._exchange()
            if answered is None:  # interrupted: the next report is waiting
                continue
            pending, directive = answered
            if directive is None:
                self._rest(pending)
                continue
            if directive.tag != pending.report.obeys:
                # The loop answers a new directive with a new report; until then the one in the slot is out of date.
                self._wait_acknowledged(directive.tag)
                continue
            self._wait_for_change(pending, started + PACE_SECONDS)

    def _wait_acknowledged(self, tag: str) -> None:
        self._slot.wait_for(lambda new: new.report.obeys == tag, ACKNOWLEDGE_SECONDS)

    def _rest(self, pending: PendingReport) -> None:
        """Pause after a failure: as the operator asked, else for the back-off, which a change in meaning ends."""
        if self._retry_after_seconds is not None:
            time.sleep(min(max(self._retry_after_seconds, FIRST_BACKOFF_SECONDS), MAX_RETRY_AFTER_SECONDS))
            return
        # Jitter over half the range: a thousand agents that lost one operator must not return at once.
        pause = random.uniform(self._backoff / 2, self._backoff)
        self._backoff = min(self._backoff * BACKOFF_GROWTH, MAX_BACKOFF_SECONDS)
        self._wait_for_change(pending, time.monotonic() + pause)

    def _wait_for_change(self, pending: PendingReport, until: float) -> None:
        """Wait until that instant, or until a report newer than ``pending`` changes in meaning."""
        self._slot.wait_for(lambda new: new.urgent_number > pending.number, until - time.monotonic())

    def _exchange(self) -> tuple[PendingReport, Directive | None] | None:
        """Send the newest report once. None: try again at once; no directive: it failed."""
        pending, fresh = self._newest(), True
        try:
            fresh = self._channel.open()
            pending = self._newest()  # connecting took a while
            directive = self._request(pending)
        except LeaderElsewhereError:
            return None
        except ChannelError as error:
            if self._landed() or not fresh:  # the agent interrupted it, or the idle connection had been closed
                return None
            self._to_service()
            return self._failed(pending, str(error), None)
        except RefusedError as refused:
            return self._failed(pending, str(refused), refused.retry_after_seconds)
        except (OSError, ValueError) as error:  # the token's file
            return self._failed(pending, str(error), None)
        self._succeeded(pending, directive)
        return pending, directive

    def _newest(self) -> PendingReport:
        pending = self._slot.wait_for(lambda _: True, ACKNOWLEDGE_SECONDS)
        if pending is None:
            raise RuntimeError("the loop publishes a report before it starts the sync thread")
        return pending

    def _request(self, pending: PendingReport) -> Directive:
        body = codec.encode(lean(pending.report) if self._lean else pending.report)
        if len(body) > MAX_BODY_BYTES:
            body = codec.encode(lean(pending.report))
        token = self._token()
        with self._flight:
            self._sent, self._sent_at, self._interrupted = pending, time.monotonic(), False
            # If a newer report has already changed in meaning, the operator must not hold this request at all.
            hold_seconds = 0.0 if self._urgent_number > pending.number else pending.hold_seconds
        answer = self._channel.post(body, token, hold_seconds)
        if self._landed():  # interrupted just after the answer came
            self._channel.close()
        return self._read(answer)

    def _landed(self) -> bool:
        """No request is in flight any more; whether the agent itself interrupted it."""
        with self._flight:
            self._sent, interrupted, self._interrupted = None, self._interrupted, False
        return interrupted

    def _token(self) -> str:
        """Read for each request: the kubelet replaces the file long before the token in it expires."""
        with open(self._service.token_file, encoding="ascii") as file:
            token = file.read(64 * 1024).strip()
        if not token:
            raise ValueError(f"{self._service.token_file}: found an empty file, allowed: a token")
        return token

    def _read(self, answer: HttpAnswer) -> Directive:
        if answer.status == 200:
            return self._decode(answer)
        if answer.status == 403:
            directive = self._decode(answer)
            if directive.action is Action.EXIT:
                return directive
        if answer.status == 421:
            self._follow(answer)
        if answer.status == 413:
            self._lean = True
        text = answer.body[:200].decode(errors="replace")
        raise RefusedError(f"the operator answered {answer.status}: {text}", answer.retry_after_seconds)

    @staticmethod
    def _decode(answer: HttpAnswer) -> Directive:
        try:
            return codec.decode(Directive, answer.body)
        except codec.CodecError as error:
            raise RefusedError(f"the operator answered {answer.status} without a directive: {error}") from None

    def _follow(self, answer: HttpAnswer) -> None:
        """Go to the leader that a standby names; its certificate must carry the Service's name like any other."""
        leader = answer.leader
        if not leader:
            try:
                leader = codec.decode(Directive, answer.body).leader
            except codec.CodecError:
                leader = ""
        address = address_of(leader)
        self._hops += 1
        self._channel.close()
        if address is None or self._hops > MAX_LEADER_HOPS:
            self._hops = 0
            self._to_service()
            raise RefusedError(f"no leader to ask: the standby names {leader!r}", answer.retry_after_seconds)
        self._channel = self._new_channel(address)
        raise LeaderElsewhereError

    def _to_service(self) -> None:
        """Return to the Service's own address: the leader's may be gone."""
        self._channel.close()
        self._channel = self._new_channel((self._service.host, self._service.port))

    def _new_channel(self, address: tuple[str, int]) -> Channel:
        return Channel(self._service.context, self._service.host, address)

    def _failed(
        self, pending: PendingReport, problem: str, retry_after_seconds: float | None
    ) -> tuple[PendingReport, None]:
        if self._failing_since is None:
            self._failing_since = time.monotonic()
        if problem != self._last_problem:
            self._last_problem = problem
            log(f"no directive: {problem}; training is not affected, trying again")
        self._retry_after_seconds = retry_after_seconds
        self._post(loop_events.Unreachable(self._failing_since))
        return pending, None

    def _succeeded(self, pending: PendingReport, directive: Directive) -> None:
        if self._last_problem:
            log("the operator answers again")
        self._failing_since, self._last_problem, self._backoff, self._hops = None, "", FIRST_BACKOFF_SECONDS, 0
        self._slot.mark_delivered(pending.number)
        self._post(loop_events.Directed(directive))
