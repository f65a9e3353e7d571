"""The sync thread: posts the newest report, hands on what the operator answers, and keeps trying for ever."""

from __future__ import annotations

import random
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from holdfast_agent import events
from holdfast_agent.channel import Answer, Channel, ChannelError, address_of
from holdfast_agent.mailbox import Letter, Mailbox
from holdfast_agent.output import say
from holdfast_agent.reporting import lean
from holdfast_contract import codec
from holdfast_contract.sync import MAX_BODY_BYTES, Action, Directive

FIRST_BACKOFF_SECONDS: Final = 0.1
MAX_BACKOFF_SECONDS: Final = 10.0
BACKOFF_GROWTH: Final = 1.5
"""By which the pause grows: an operator that was away is asked again within half of the time that it was away."""
MAX_RETRY_AFTER_SECONDS: Final = 30.0
PACE_SECONDS: Final = 1.0
"""Least time between two requests while nothing changes in meaning, whatever the operator does."""
TAKE_IN_SECONDS: Final = 5.0
"""How long the loop may take to turn a directive into a report that obeys it."""
OVERHOLD_SECONDS: Final = 4.0
"""How much longer than asked a request may be held before it is cut, so that progress still flows."""
MAX_LEADER_HOPS: Final = 3


@dataclass(frozen=True)
class Service:
    """Where the operator is to be found, and who it must prove to be."""

    host: str
    port: int
    context: ssl.SSLContext
    token_file: str


class RefusedError(Exception):
    """An answer other than a directive. ``wait_seconds``: how long the operator asks us to wait, if it does."""

    def __init__(self, problem: str, wait_seconds: float | None = None) -> None:
        self.wait_seconds = wait_seconds
        super().__init__(problem)


class ElsewhereError(Exception):
    """The leader is at another address, to which the channel now points."""


class SyncClient:
    """Owns the connection. The loop calls ``publish``; everything else happens in the thread."""

    def __init__(self, service: Service, mailbox: Mailbox, post: Callable[[events.Event], None]) -> None:
        self._service, self._mailbox, self._post = service, mailbox, post
        self._channel = self._new_channel((service.host, service.port))
        self._flight = threading.Lock()  # guards the four below
        self._sent: Letter | None = None  # in flight
        self._sent_at = 0.0
        self._wanted = 0  # the newest change in meaning
        self._cut = False  # we broke the request off ourselves
        self._lean = False
        self._hops = 0
        self._failing_since: float | None = None
        self._said = ""
        self._backoff = FIRST_BACKOFF_SECONDS
        self._asked_to_wait: float | None = None

    def start(self) -> None:
        """Begin to talk."""
        threading.Thread(target=self._run, name="sync", daemon=True).start()

    def publish(self, letter: Letter, now: float) -> None:
        """Take the newest report. A held request that says otherwise in meaning is broken off and sent anew."""
        self._mailbox.put(letter)
        with self._flight:
            self._wanted = letter.urgent_number
            sent = self._sent
            if sent is None or self._cut:
                return
            overheld = letter.number > sent.number and now > self._sent_at + letter.hold_seconds + OVERHOLD_SECONDS
            if sent.number >= letter.urgent_number and not overheld:
                return
            self._cut = True
            self._channel.cut()

    def _run(self) -> None:
        while True:
            started = time.monotonic()
            answered = self._exchange()
            if answered is None:  # broken off by ourselves: the next report is waiting
                continue
            letter, directive = answered
            if directive is None:
                self._rest(letter)
                continue
            if directive.tag != letter.report.obeys:
                # The loop turns it into a report that obeys it; until then the one in the mailbox is out of date.
                self._wait_obeyed(directive.tag)
                continue
            self._wait_for_change(letter, started + PACE_SECONDS)

    def _wait_obeyed(self, tag: str) -> None:
        self._mailbox.wait_for(lambda new: new.report.obeys == tag, TAKE_IN_SECONDS)

    def _rest(self, letter: Letter) -> None:
        """After a failure: as long as the operator asked for, else the back-off, which a change in meaning ends."""
        if self._asked_to_wait is not None:
            time.sleep(min(max(self._asked_to_wait, FIRST_BACKOFF_SECONDS), MAX_RETRY_AFTER_SECONDS))
            return
        # Jitter over half the range: a thousand agents that lost one operator must not return at once.
        pause = random.uniform(self._backoff / 2, self._backoff)
        self._backoff = min(self._backoff * BACKOFF_GROWTH, MAX_BACKOFF_SECONDS)
        self._wait_for_change(letter, time.monotonic() + pause)

    def _wait_for_change(self, letter: Letter, until: float) -> None:
        """Sleep until then, or until something changes in meaning after ``letter``."""
        self._mailbox.wait_for(lambda new: new.urgent_number > letter.number, until - time.monotonic())

    def _exchange(self) -> tuple[Letter, Directive | None] | None:
        """Send the newest report once. None: try again at once; no directive: it failed."""
        letter, fresh = self._newest(), True
        try:
            fresh = self._channel.open()
            letter = self._newest()  # connecting took a while
            directive = self._ask(letter)
        except ElsewhereError:
            return None
        except ChannelError as error:
            if self._landed() or not fresh:  # we broke it off, or it was closed while nobody used it
                return None
            self._to_service()
            return self._failed(letter, str(error), None)
        except RefusedError as refused:
            return self._failed(letter, str(refused), refused.wait_seconds)
        except (OSError, ValueError) as error:  # the token's file
            return self._failed(letter, str(error), None)
        self._succeeded(letter, directive)
        return letter, directive

    def _newest(self) -> Letter:
        letter = self._mailbox.wait_for(lambda _: True, TAKE_IN_SECONDS)
        if letter is None:
            raise RuntimeError("the loop publishes a report before it starts the sync thread")
        return letter

    def _ask(self, letter: Letter) -> Directive:
        body = codec.encode(lean(letter.report) if self._lean else letter.report)
        if len(body) > MAX_BODY_BYTES:
            body = codec.encode(lean(letter.report))
        token = self._token()
        with self._flight:
            self._sent, self._sent_at, self._cut = letter, time.monotonic(), False
            # If it changed in meaning after we took it, do not even begin to wait.
            hold_seconds = 0.0 if self._wanted > letter.number else letter.hold_seconds
        answer = self._channel.post(body, token, hold_seconds)
        if self._landed():  # broken off just after the answer came
            self._channel.close()
        return self._read(answer)

    def _landed(self) -> bool:
        """No request is in flight any more; whether it was we who broke it off."""
        with self._flight:
            self._sent, cut, self._cut = None, self._cut, False
        return cut

    def _token(self) -> str:
        """Read for each request: the kubelet replaces the file long before the token in it expires."""
        with open(self._service.token_file, encoding="ascii") as file:
            token = file.read(64 * 1024).strip()
        if not token:
            raise ValueError(f"{self._service.token_file}: found an empty file, allowed: a token")
        return token

    def _read(self, answer: Answer) -> Directive:
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
        said = answer.body[:200].decode(errors="replace")
        raise RefusedError(f"the operator answered {answer.status}: {said}", answer.retry_after_seconds)

    @staticmethod
    def _decode(answer: Answer) -> Directive:
        try:
            return codec.decode(Directive, answer.body)
        except codec.CodecError as error:
            raise RefusedError(f"the operator answered {answer.status} without a directive: {error}") from None

    def _follow(self, answer: Answer) -> None:
        """Go where the leader is said to be; its certificate must carry the Service's name like any other."""
        said = answer.leader
        if not said:
            try:
                said = codec.decode(Directive, answer.body).leader
            except codec.CodecError:
                said = ""
        address = address_of(said)
        self._hops += 1
        self._channel.close()
        if address is None or self._hops > MAX_LEADER_HOPS:
            self._hops = 0
            self._to_service()
            raise RefusedError(f"no leader to ask: the standby names {said!r}", answer.retry_after_seconds)
        self._channel = self._new_channel(address)
        raise ElsewhereError

    def _to_service(self) -> None:
        """Back to the Service's own address: the leader's may be gone."""
        self._channel.close()
        self._channel = self._new_channel((self._service.host, self._service.port))

    def _new_channel(self, address: tuple[str, int]) -> Channel:
        return Channel(self._service.context, self._service.host, address)

    def _failed(self, letter: Letter, problem: str, wait_seconds: float | None) -> tuple[Letter, None]:
        if self._failing_since is None:
            self._failing_since = time.monotonic()
        if problem != self._said:
            self._said = problem
            say(f"no directive: {problem}; training is not affected, trying again")
        self._asked_to_wait = wait_seconds
        self._post(events.Unreachable(self._failing_since))
        return letter, None

    def _succeeded(self, letter: Letter, directive: Directive) -> None:
        if self._said:
            say("the operator answers again")
        self._failing_since, self._said, self._backoff, self._hops = None, "", FIRST_BACKOFF_SECONDS, 0
        self._mailbox.delivered(letter.number)
        self._post(events.Directed(directive, letter.number))
