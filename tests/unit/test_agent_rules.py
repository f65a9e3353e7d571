"""The agent's pure rules: for every history of directives, ends and signals, what it would do next is allowed."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import hypothesis.strategies as st
import pytest
from hypothesis import event, given, settings

from holdfast_agent import reacting
from holdfast_agent.agent_state import AgentState, PendingSave, Trainer, on_directive, on_sigterm, on_update
from holdfast_agent.reacting import Abort, ForwardSigterm, Inspect, Leave, Limits, SendSaveRequest, Spawn, Stop, react
from holdfast_agent.reporting import lean, phase_of, report_of, saves_of
from holdfast_contract import codec
from holdfast_contract.exits import ExitCode
from holdfast_contract.local import TrainerUpdate
from holdfast_contract.manifest import CheckpointRef, Rejection
from holdfast_contract.reasons import SaveOutcome
from holdfast_contract.sync import (
    MAX_BODY_BYTES,
    Action,
    Directive,
    Inspection,
    Progress,
    Report,
    SaveReport,
    SaveRequest,
    TrainerExit,
    TrainerPhase,
)

LIMITS = Limits(orphan_seconds=900.0, hang_step_seconds=60.0, hang_start_seconds=120.0)
GRACE_SECONDS = 30.0

requests = st.builds(SaveRequest, st.sampled_from("ab"), st.floats(0, 60), st.booleans())
# What ends a history is rare, so that there is one.
actions = st.sampled_from([Action.RUN] * 6 + [Action.WAIT, Action.INSPECT, Action.EXIT])
directives = st.builds(
    Directive, actions, st.integers(0, 4), st.just("h:1"), save=st.none() | requests
)  # fmt: skip
updates = st.builds(
    TrainerUpdate,
    progress=st.none() | st.builds(Progress, st.integers(0, 9), total_steps=st.none() | st.just(9)),
    newest=st.none() | st.builds(CheckpointRef, st.integers(1, 3), st.integers(0, 9)),
    saves=st.lists(st.builds(SaveReport, st.sampled_from(["a", "b", "sigterm"]), st.sampled_from(SaveOutcome)), max_size=3).map(tuple),
)  # fmt: skip


@dataclass
class World:
    """A model of the loop: carries out intents on the state and keeps count of what may happen once only."""

    state: AgentState = field(default_factory=AgentState)
    now: float = 0.0
    spawned: list[int] = field(default_factory=list)
    left: Leave | None = None

    def act(self) -> None:
        for intent in react(self.state, LIMITS, self.now):
            self._do(intent)

    def _do(self, intent: reacting.Intent) -> None:
        state = self.state
        match intent:
            case Spawn(directive):
                assert state.running is None, "two trainers at once"
                assert not state.children, "an older trainer's process is still there"
                assert state.termination is None, "a pod that ends starts nothing"
                assert directive.attempt > max(self.spawned, default=0) or directive.attempt == 0 == len(self.spawned)
                self.spawned.append(directive.attempt)
                self.state = replace(state, trainer=Trainer(directive.attempt, self.now), children=True)
            case Stop():
                assert state.children, "nothing to stop"
                if state.trainer and state.trainer.stopping_since is None:
                    self.state = replace(state, trainer=replace(state.trainer, stopping_since=self.now))
            case SendSaveRequest(save):
                assert state.running is not None
                assert state.running.connected
                self.state = replace(state, trainer=replace(state.running, last_request_sent=save))
            case Abort():
                assert state.running is not None
                self.state = replace(state, trainer=replace(state.running, aborting_since=self.now))
            case ForwardSigterm():
                assert state.termination is not None
                assert not state.termination.forwarded
                self.state = replace(state, termination=replace(state.termination, forwarded=True))
            case Inspect():
                assert state.running is None
                self.state = replace(state, inspection=Inspection(0), inspected_at=self.now)
            case Leave():
                assert not state.children or self.now > reacting.UNKILLABLE_SECONDS
                self.left = intent

    def end_process(self, code: int, *, leaving: bool = False) -> None:
        """The process is gone; so is all that it started, unless it leaves some behind."""
        trainer = self.state.running
        if trainer is None:
            self.state = replace(self.state, children=leaving and self.state.children)
            return
        end = TrainerExit(trainer.attempt, code) if trainer.stopping_since is None else None
        trainer = replace(trainer, running=False, connected=False, ended_at=self.now, exit=end)
        self.state = replace(self.state, trainer=trainer, children=leaving)


_direct = st.tuples(st.just("direct"), directives)
_update = st.tuples(st.just("update"), updates)
_connect = st.tuples(st.just("connect"), st.booleans())
_end = st.tuples(st.sampled_from(["end", "end-leaving"]), st.sampled_from([0, 1, 80, 81, 137]))
_wait = st.tuples(st.just("wait"), st.floats(0, 200))
_rare = st.tuples(st.just("sigterm"), st.none()) | st.tuples(st.just("unreachable"), st.booleans())
_common = [_direct, _update, _connect, _end, _wait]
happenings = st.integers(0, 24).flatmap(lambda i: _common[i // 5] if i < 24 else _rare)


def happen(world: World, what: str, value: object) -> None:
    state = world.state
    if isinstance(value, Directive):
        world.state = on_directive(state, value, world.now)
    elif isinstance(value, TrainerUpdate):
        world.state = on_update(state, value, world.now) if state.running else state
    elif what == "end" and isinstance(value, int):
        world.end_process(value)
    elif what == "end-leaving" and isinstance(value, int):
        world.end_process(value, leaving=True)
    elif what == "connect" and state.running is not None:
        world.state = replace(state, trainer=replace(state.running, connected=bool(value), last_request_sent=None))
    elif what == "wait" and isinstance(value, float):
        world.now += value
    elif what == "sigterm":
        world.state = on_sigterm(state, GRACE_SECONDS, world.now)
    elif what == "unreachable":
        world.state = replace(state, unreachable_since=world.now if value else None)


def state_starts(state: AgentState) -> bool:
    """Whether a trainer of the obeyed attempt is still to be started."""
    run = state.directive is not None and state.directive.action is Action.RUN
    return run and state.current is None and state.termination is None


@settings(max_examples=300)
@given(st.lists(happenings, min_size=5, max_size=40))
def test_every_history_keeps_the_rules(history: list[tuple[str, object]]) -> None:
    world = World()
    for what, value in history:
        before = world.state
        happen(world, what, value)
        assert world.state.attempt >= before.attempt, "the attempt only grows"
        world.act()
        if world.left is not None:
            break
        report = report_of(world.state, {}, world.now)
        assert codec.decode(Report, codec.encode(report)) == report
        assert (report.phase is TrainerPhase.EXITED) <= (
            report.exit is not None and report.exit.attempt == report.attempt
        )
        asked = {save.id for save in (world.state.pending_save, world.state.effective_save) if save}
        assert asked <= {save.id for save in report.saves}, "every request has a report"
        starts = state_starts(world.state)
        pending = [save for save in report.saves if save.outcome is SaveOutcome.PENDING]
        assert not pending or world.state.running is not None or starts, "no trainer is left that could save"
    event(f"{min(len(world.spawned), 3)} trainers or more")
    assert world.spawned == sorted(set(world.spawned)), "one trainer per attempt, in order"


@given(st.lists(happenings, max_size=25))
def test_the_end_always_comes(history: list[tuple[str, object]]) -> None:
    """After SIGTERM, if killed processes die, the agent is gone when the grace period is."""
    world = World()
    for what, value in history:
        happen(world, what, value)
        world.act()
        if world.left is not None:
            return
    world.state = replace(on_sigterm(world.state, GRACE_SECONDS, world.now))
    termination = world.state.termination
    assert termination is not None
    world.now = max(world.now, termination.kill_at)
    for _ in range(3):
        world.act()
        if world.left is None:
            assert world.state.trainer is not None
            assert world.state.trainer.stopping_since is not None
            world.end_process(137)
    assert world.left is not None


@given(st.lists(happenings, max_size=25))
def test_exit_always_ends(history: list[tuple[str, object]]) -> None:
    world = World()
    for what, value in history:
        happen(world, what, value)
        world.act()
        if world.left is not None:
            return
    happen(world, "direct", Directive(Action.EXIT, 0))
    for _ in range(3):
        world.act()
        if world.left is None:
            world.end_process(137)
    assert world.left is not None
    assert world.left.code in {ExitCode.SUPERSEDED, ExitCode.DONE}


def running(now: float = 0.0, **fields: object) -> AgentState:
    state = on_directive(AgentState(), Directive(Action.RUN, 1, "h:1"), now)
    trainer = replace(Trainer(1, now, connected=True), **fields)  # type: ignore[arg-type]
    return replace(state, trainer=trainer, children=True)


def update(*saves: SaveReport, step: int = 5, total: int | None = None) -> TrainerUpdate:
    return TrainerUpdate(progress=Progress(step, total), saves=saves)


def test_an_orphan_waits_its_whole_limit_once_both_trainer_and_operator_are_missing() -> None:
    """Also if the operator had been away for longer than that while the trainer was well."""
    away = replace(running(), unreachable_since=10.0)
    end = TrainerExit(1, 1)
    ended = replace(
        away, trainer=replace(away.running, running=False, ended_at=5000.0, exit=end), children=False  # type: ignore[type-var]
    )  # fmt: skip
    assert react(ended, LIMITS, 5899.0) == ()
    [leave] = react(ended, LIMITS, 5900.0)
    assert isinstance(leave, Leave)
    assert leave.code == ExitCode.ORPHANED
    back = replace(ended, unreachable_since=None)
    assert react(back, LIMITS, 9999.0) == ()
    gone_later = replace(ended, unreachable_since=9000.0)
    assert react(gone_later, LIMITS, 9899.0) == ()
    assert react(replace(gone_later, trainer=None), LIMITS, 9900.0) == (leave,), "nor does one that never began"


def test_an_earlier_deadline_is_sent_again_a_shrinking_one_is_not() -> None:
    run = Directive(Action.RUN, 1, "h:1", save=SaveRequest("n", 30.0))
    state = on_directive(running(), run, 100.0)
    assert react(state, LIMITS, 100.0) == (SendSaveRequest(PendingSave("n", 130.0)),)
    state = replace(state, trainer=replace(state.trainer, last_request_sent=state.pending_save))  # type: ignore[type-var]
    later = on_directive(state, replace(run, save=SaveRequest("n", 20.1)), 110.0)
    assert react(later, LIMITS, 110.0) == ()
    sooner = on_directive(state, replace(run, save=SaveRequest("n", 10.0)), 110.0)
    assert react(sooner, LIMITS, 110.0) == (SendSaveRequest(PendingSave("n", 120.0)),)
    gone = on_directive(state, replace(run, save=None), 110.0)
    assert react(gone, LIMITS, 110.0) == (SendSaveRequest(None),)


def test_an_answered_request_is_not_made_again_by_a_new_connection() -> None:
    state = on_directive(running(), Directive(Action.RUN, 1, "h:1", save=SaveRequest("n", 30.0)), 0.0)
    pending = on_update(state, update(SaveReport("n", SaveOutcome.PENDING)), 1.0)
    assert react(pending, LIMITS, 1.0) == (SendSaveRequest(PendingSave("n", 30.0)),)
    answered = on_update(state, update(SaveReport("n", SaveOutcome.COMMITTED)), 1.0)
    assert react(answered, LIMITS, 1.0) == ()
    stop = replace(
        answered,
        pending_save=PendingSave("n", 30.0, stop=True),
        trainer=replace(answered.trainer, last_request_sent=PendingSave("n", 30.0)),
    )  # type: ignore[type-var]
    assert react(stop, LIMITS, 1.0) == (SendSaveRequest(PendingSave("n", 30.0, stop=True)),)


def test_sigterm_is_passed_on_only_to_a_trainer_that_cannot_be_asked() -> None:
    connected = on_sigterm(running(), 30.0, 1.0)
    assert [type(intent) for intent in react(connected, LIMITS, 1.0)] == [SendSaveRequest]
    importing = on_sigterm(running(connected=False), 30.0, 1.0)
    assert react(importing, LIMITS, 1.0) == (ForwardSigterm(),)
    # One that ends takes its connection down first: a signal would spoil its exit code.
    ending = on_sigterm(running(connected=False, disconnected_at=1.0), 30.0, 1.0)
    assert react(ending, LIMITS, 2.9) == ()
    assert react(ending, LIMITS, 3.0) == (ForwardSigterm(),)
    saved = on_update(ending, update(SaveReport("sigterm", SaveOutcome.COMMITTED)), 1.5)
    assert react(saved, LIMITS, 5.0) == ()


def test_sigterm_takes_over_an_unanswered_request_and_its_earlier_deadline() -> None:
    state = on_directive(running(), Directive(Action.RUN, 1, "h:1", save=SaveRequest("n", 10.0)), 0.0)
    assert on_sigterm(state, 30.0, 1.0).effective_save == PendingSave("n", 10.0, stop=True)
    answered = on_update(state, update(SaveReport("n", SaveOutcome.COMMITTED)), 0.5)
    assert on_sigterm(answered, 30.0, 1.0).effective_save == PendingSave("sigterm", 28.0, stop=True)
    twice = on_sigterm(on_sigterm(state, 30.0, 1.0), 30.0, 9.0)
    assert twice == on_sigterm(state, 30.0, 1.0)


def test_what_ignores_sigterm_is_stopped_before_its_grace_ends() -> None:
    state = on_sigterm(running(last_request_sent=PendingSave("sigterm", 11.5, stop=True)), 2.0, 10.0)
    assert react(state, LIMITS, 11.74) == ()
    assert react(state, LIMITS, 11.75) == (Stop("the grace period ends"),)


def test_a_request_after_sigterm_is_answered_by_sigterms_save() -> None:
    state = on_sigterm(running(), 30.0, 0.0)
    state = on_directive(state, Directive(Action.RUN, 1, "h:1", save=SaveRequest("late", 10.0)), 1.0)
    state = on_update(state, update(SaveReport("sigterm", SaveOutcome.COMMITTED, CheckpointRef(1, 6))), 2.0)
    outcomes = {save.id: save.outcome for save in saves_of(state)}
    assert outcomes == {"sigterm": SaveOutcome.COMMITTED, "late": SaveOutcome.COMMITTED}


def test_an_older_attempts_reports_are_left_out_but_its_checkpoint_is_not() -> None:
    state = on_update(
        running(), replace(update(SaveReport("n", SaveOutcome.COMMITTED)), newest=CheckpointRef(1, 4, "d")), 1.0
    )
    state = on_directive(state, Directive(Action.RUN, 2, "h:1"), 2.0)
    report = report_of(state, {}, 2.0)
    assert (report.attempt, report.phase, report.saves, report.progress) == (2, TrainerPhase.NONE, (), None)
    assert report.newest == CheckpointRef(1, 4)
    assert react(state, LIMITS, 2.0) == (Stop("attempt 2 supersedes it"),)


@pytest.mark.parametrize(
    ("message", "seconds", "hangs"),
    [
        (update(step=5), 59.0, False),
        (update(step=5), 61.0, True),
        (update(step=9, total=9), 61.0, False),  # the final save may take as long as the start
        (update(step=9, total=9), 121.0, True),
        (TrainerUpdate(), 61.0, False),
        (TrainerUpdate(), 121.0, True),
        # A restored step is not one of this attempt: the compile of the first step has the limit of the start.
        (TrainerUpdate(progress=Progress(5), restored=CheckpointRef(0, 5)), 61.0, False),
    ],
)
def test_what_counts_as_a_hang(message: TrainerUpdate, seconds: float, hangs: bool) -> None:
    state = on_update(running(), message, 10.0)
    at = (10.0 if message != TrainerUpdate() else 0.0) + seconds
    assert any(isinstance(intent, Abort) for intent in react(state, LIMITS, at)) is hangs


def test_a_hung_trainer_gets_time_for_its_stacks_only() -> None:
    state = running(aborting_since=200.0, update=update(step=5))
    assert react(state, LIMITS, 200.0 + reacting.DUMP_SECONDS - 0.1) == ()
    assert react(state, LIMITS, 200.0 + reacting.DUMP_SECONDS) == (Stop("it hung"),)


def test_processes_that_survive_sigkill_end_the_container() -> None:
    state = running(stopping_since=0.0)
    assert isinstance(react(state, LIMITS, reacting.UNKILLABLE_SECONDS)[0], Stop)
    (leave,) = react(state, LIMITS, reacting.UNKILLABLE_SECONDS + 0.1)
    assert isinstance(leave, Leave)
    assert leave.code == ExitCode.HANG


def test_only_what_an_operator_must_know_at_once_is_meaning() -> None:
    state = running()
    first = report_of(on_update(state, update(step=5), 1.0), {"idle": 1.0}, 1.0).meaning()
    assert report_of(on_update(state, update(step=6), 2.0), {"idle": 2.0}, 2.0).meaning() == first
    saved = on_update(state, update(SaveReport("n", SaveOutcome.FAILED), step=6), 2.0)
    assert report_of(saved, {}, 2.0).meaning() != first


def test_phases() -> None:
    trainer = Trainer(1, 0.0)
    assert phase_of(None) is TrainerPhase.NONE
    assert phase_of(trainer) is TrainerPhase.STARTING
    restored = TrainerUpdate(progress=Progress(5), restored=CheckpointRef(1, 5), restore_done=True)
    assert phase_of(replace(trainer, update=restored)) is TrainerPhase.STARTING
    assert phase_of(replace(trainer, update=replace(restored, progress=Progress(6)))) is TrainerPhase.RUNNING
    assert phase_of(replace(trainer, running=False)) is TrainerPhase.NONE
    assert phase_of(replace(trainer, running=False, exit=TrainerExit(1, 1))) is TrainerPhase.EXITED


def test_the_largest_lean_report_fits() -> None:
    big = Report(
        1, 1, "t", TrainerPhase.EXITED, TrainerExit(1, 1, last_lines="é" * 4000),
        Progress(1, metrics={f"m{i}": 1.0 for i in range(100_000)}),
        saves=tuple(SaveReport(str(i), SaveOutcome.FAILED, reason="r" * 4000) for i in range(64)),
        rejected=tuple(Rejection(1, i, "r" * 4000) for i in range(64)),
        inspection=Inspection(1, tuple(CheckpointRef(1, i, "d" * 64) for i in range(64))),
    )  # fmt: skip
    small = lean(big)
    assert len(codec.encode(small)) < MAX_BODY_BYTES / 2
    assert codec.decode(Report, codec.encode(small)) == small


def test_a_save_without_hurry_stays_without_hurry() -> None:
    directive = Directive(Action.RUN, 1, save=SaveRequest("n"))
    state = on_directive(on_directive(AgentState(), directive, 1.0), directive, 50.0)
    assert state.pending_save is not None
    assert state.pending_save.request(60.0) == SaveRequest("n", seconds_left=None)


def test_an_update_without_a_trainer_changes_nothing() -> None:
    state = AgentState()
    assert on_update(state, TrainerUpdate(), 1.0) is state
