"""Save requests, SIGTERM, hangs and orphans, with a real agent and trainers that speak the socket protocol."""

from __future__ import annotations

import contextlib
import socket
import time

import pytest

from holdfast_contract import keys
from holdfast_contract.exits import ExitCode
from holdfast_contract.local import MAX_LINE_BYTES, Hello, to_line
from holdfast_contract.manifest import CheckpointRef
from holdfast_contract.reasons import Cause, SaveOutcome
from holdfast_contract.sync import Action, Directive, Report, SaveReport, SaveRequest, TrainerPhase
from tests.support.agent.rig import AgentRig

ANSWERING = """
link = connect()
say(link, progress=Progress(5))
for command in commands(link):
    print("COMMAND", command.save, flush=True)
    if command.save is None:
        continue
    ref = CheckpointRef(ATTEMPT, 6, "f" * 64)
    outcome = SaveOutcome(os.environ.get("OUTCOME", "committed"))
    say(link, progress=Progress(6), newest=ref if outcome is SaveOutcome.COMMITTED else None,
        saves=(SaveReport(command.save.id, outcome, ref, "because"),))
    if command.save.stop and "STAY" not in os.environ:
        sys.exit(80 if outcome is SaveOutcome.COMMITTED else 81)
"""
IGNORING = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
link = connect()
say(link, progress=Progress(5))
print("ignoring", flush=True)
for_ever()
"""
AMPLE_GRACE = {keys.ENV_GRACE_SECONDS: "3600"}
"""Who ends with this has not waited for its grace to end."""


def save_of(report: Report, request_id: str) -> SaveReport | None:
    return next((save for save in report.saves if save.id == request_id), None)


def outcome(report: Report, request_id: str) -> SaveOutcome | None:
    save = save_of(report, request_id)
    return save.outcome if save else None


def run_to_stepping(rig: AgentRig, trainer: str, **environment: str) -> None:
    rig.start(trainer, **environment)
    rig.run_attempt(1)
    rig.operator.wait_report(lambda r: r.phase is TrainerPhase.RUNNING)


def test_a_requested_save_is_answered_and_training_goes_on(rig: AgentRig) -> None:
    run_to_stepping(rig, ANSWERING)
    rig.run_attempt(1, save=SaveRequest("notice-1", 900.0))
    report = rig.operator.wait_report(lambda r: outcome(r, "notice-1") is SaveOutcome.COMMITTED)
    assert report.newest == CheckpointRef(1, 6)
    assert report.newest is not None
    assert report.newest.digest == "f" * 64
    assert report.phase is TrainerPhase.RUNNING
    line = rig.wait_output("COMMAND SaveRequest(id='notice-1'")
    seconds_left = float(line.split("seconds_left=")[1].split(",")[0])
    assert 600.0 < seconds_left <= 900.0
    rig.run_attempt(1)
    rig.wait_output("COMMAND None")


def test_a_request_waits_for_a_trainer_that_connects_later(rig: AgentRig) -> None:
    rig.start(
        'while not os.path.exists("GO"):\n    time.sleep(0.01)\n'.replace("GO", str(rig.folder / "go")) + ANSWERING
    )
    rig.run_attempt(1, save=SaveRequest("early", 20.0))
    rig.operator.wait_report(lambda r: r.phase is TrainerPhase.STARTING and outcome(r, "early") is SaveOutcome.PENDING)
    (rig.folder / "go").touch()
    rig.operator.wait_report(lambda r: outcome(r, "early") is SaveOutcome.COMMITTED)


def test_a_request_without_a_trainer_fails_with_the_reason(rig: AgentRig) -> None:
    rig.start("sys.exit(9)")
    rig.operator.direct(Directive(Action.WAIT, 0, save=SaveRequest("none-yet", 5.0)))
    report = rig.operator.wait_report(lambda r: outcome(r, "none-yet") is SaveOutcome.FAILED)
    assert "no trainer runs" in report.saves[0].reason
    rig.run_attempt(1)
    rig.operator.wait_report(lambda r: r.phase is TrainerPhase.EXITED)
    rig.run_attempt(1, save=SaveRequest("too-late", 5.0))
    report = rig.operator.wait_report(lambda r: outcome(r, "too-late") is SaveOutcome.FAILED)
    assert "code 9" in report.saves[-1].reason


def test_a_crash_fails_the_pending_save_but_not_a_committed_one(rig: AgentRig) -> None:
    run_to_stepping(
        rig,
        """
        link = connect()
        say(link, progress=Progress(5))
        next(commands(link))
        done = SaveReport("one", SaveOutcome.COMMITTED, CheckpointRef(1, 5, "d"))
        say(link, progress=Progress(5), newest=CheckpointRef(1, 5, "d"), saves=(done, SaveReport("two", SaveOutcome.PENDING)))
        os.kill(os.getpid(), signal.SIGKILL)
        """,
    )
    rig.run_attempt(1, save=SaveRequest("two", 20.0))
    report = rig.operator.wait_report(lambda r: r.phase is TrainerPhase.EXITED)
    # The last message was in the socket when the process died: it counts.
    assert outcome(report, "one") is SaveOutcome.COMMITTED
    assert outcome(report, "two") is SaveOutcome.FAILED
    assert report.newest == CheckpointRef(1, 5)
    assert report.exit is not None
    assert (report.exit.code, report.exit.signal) == (137, 9)


def test_a_request_to_stop_ends_the_trainer_by_its_own_exit(rig: AgentRig) -> None:
    run_to_stepping(rig, ANSWERING)
    rig.run_attempt(1, save=SaveRequest("move", 9.0, stop=True))
    report = rig.operator.wait_report(lambda r: r.phase is TrainerPhase.EXITED)
    assert report.exit is not None
    assert report.exit.code == ExitCode.SAVED
    assert outcome(report, "move") is SaveOutcome.COMMITTED


def test_a_trainer_that_does_not_stop_in_time_is_killed(rig: AgentRig) -> None:
    run_to_stepping(rig, IGNORING)
    rig.run_attempt(1, save=SaveRequest("move", 0.5, stop=True))
    report = rig.operator.wait_report(
        lambda r: r.phase is TrainerPhase.NONE and outcome(r, "move") is SaveOutcome.FAILED
    )
    assert report.exit is None


def test_sigterm_saves_reports_the_save_and_ends_saved(rig: AgentRig) -> None:
    run_to_stepping(rig, ANSWERING)
    rig.terminate()
    assert rig.exit_code() == ExitCode.SAVED
    last = rig.operator.reports[-1]
    assert outcome(last, "sigterm") is SaveOutcome.COMMITTED
    assert last.newest == CheckpointRef(1, 6)
    assert last.exit is not None
    assert any(
        r.terminating_seconds_left is not None and r.terminating_seconds_left <= 6.5 for r in rig.operator.reports
    )
    assert "SIGTERM" in rig.termination_log.read_text()


def test_a_saved_trainer_that_closes_its_connection_ends_by_its_own_code(rig: AgentRig) -> None:
    run_to_stepping(
        rig,
        """
        link = connect()
        say(link, progress=Progress(5))
        request = next(commands(link)).save
        ref = CheckpointRef(1, 6, "d")
        say(link, newest=ref, saves=(SaveReport(request.id, SaveOutcome.COMMITTED, ref),))
        link.shutdown(socket.SHUT_RDWR)
        time.sleep(0.5)
        sys.exit(80)
        """,
    )
    rig.terminate()
    assert rig.exit_code() == ExitCode.SAVED
    end = rig.operator.reports[-1].exit
    assert end is not None
    assert (end.code, end.signal) == (ExitCode.SAVED, 0)


def test_sigterm_saves_without_any_operator(rig: AgentRig) -> None:
    run_to_stepping(rig, ANSWERING, **AMPLE_GRACE)
    rig.operator.close()
    rig.terminate()
    assert rig.exit_code() == ExitCode.SAVED


def test_a_committed_trainer_that_lingers_is_ended(rig: AgentRig) -> None:
    run_to_stepping(rig, ANSWERING, STAY="1", **{keys.ENV_GRACE_SECONDS: "4"})
    rig.terminate()
    assert rig.exit_code() == ExitCode.SAVED
    assert "the grace period ends" in rig.output


def test_sigterm_with_a_refused_save_ends_not_saved(rig: AgentRig) -> None:
    run_to_stepping(rig, ANSWERING, OUTCOME="too-late")
    rig.terminate()
    assert rig.exit_code() == ExitCode.NOT_SAVED
    assert outcome(rig.operator.reports[-1], "sigterm") is SaveOutcome.TOO_LATE


def test_a_trainer_that_ignores_everything_is_killed_within_the_grace(rig: AgentRig) -> None:
    run_to_stepping(rig, IGNORING, **{keys.ENV_GRACE_SECONDS: "2"})
    rig.terminate()
    assert rig.exit_code() == ExitCode.NOT_SAVED
    assert "the grace period ends" in rig.output


def test_sigterm_turns_a_pending_request_into_the_last_one(rig: AgentRig) -> None:
    run_to_stepping(
        rig,
        """
        link = connect()
        say(link, progress=Progress(5))
        for command in commands(link):
            print("COMMAND", command.save.id, command.save.stop, flush=True)
            if command.save.stop:
                ref = CheckpointRef(1, 6, "d")
                say(link, newest=ref, saves=(SaveReport(command.save.id, SaveOutcome.COMMITTED, ref),))
                sys.exit(80)
        """,
    )
    rig.run_attempt(1, save=SaveRequest("notice", 20.0))
    rig.wait_output("COMMAND notice False")
    rig.terminate()
    assert rig.exit_code() == ExitCode.SAVED
    assert "COMMAND notice True" in rig.output
    assert outcome(rig.operator.reports[-1], "notice") is SaveOutcome.COMMITTED


def test_sigterm_reaches_a_trainer_that_never_connected(rig: AgentRig) -> None:
    rig.start("print('no library', flush=True)\nfor_ever()", **AMPLE_GRACE)
    rig.run_attempt(1)
    rig.wait_output("no library")
    rig.terminate()
    assert rig.exit_code() == ExitCode.NOT_SAVED


@pytest.mark.parametrize(("trainer", "code"), [("sys.exit(0)", 0), ("sys.exit(7)", 7), ("sys.exit(85)", 85)])
def test_sigterm_after_the_end_ends_with_the_trainers_own_code(rig: AgentRig, trainer: str, code: int) -> None:
    rig.start(trainer)
    rig.run_attempt(1)
    rig.operator.wait_report(lambda r: r.phase is TrainerPhase.EXITED)
    rig.terminate()
    assert rig.exit_code() == code


def test_sigterm_before_any_trainer_ends_at_once(rig: AgentRig) -> None:
    rig.start("for_ever()")
    rig.operator.wait_report(lambda r: r.phase is TrainerPhase.NONE)
    rig.terminate()
    assert rig.exit_code(5) == ExitCode.NOT_SAVED


def test_a_hung_trainer_dumps_its_stacks_and_is_killed(rig: AgentRig) -> None:
    run_to_stepping(
        rig,
        """
        import faulthandler
        faulthandler.enable()
        link = connect()
        say(link, progress=Progress(5))
        def stuck_here():
            for_ever()
        stuck_here()
        """,
        **{keys.ENV_HANG_STEP_SECONDS: "1", keys.ENV_HANG_START_SECONDS: "30"},
    )
    report = rig.operator.wait_report(lambda r: r.phase is TrainerPhase.EXITED)
    assert report.exit is not None
    assert (report.exit.code, report.exit.cause) == (ExitCode.HANG, Cause.HANG)
    assert "stuck_here" in report.exit.last_lines


def test_signs_of_life_are_not_progress(rig: AgentRig) -> None:
    rig.start(
        """
        link = connect()
        while True:
            say(link, progress=Progress(0), buckets={"compile": time.monotonic()})
            time.sleep(0.05)
        """,
        **{keys.ENV_HANG_STEP_SECONDS: "30", keys.ENV_HANG_START_SECONDS: "1"},
    )
    rig.run_attempt(1)
    report = rig.operator.wait_report(lambda r: r.phase is TrainerPhase.EXITED)
    assert report.exit is not None
    assert report.exit.cause is Cause.HANG


@pytest.mark.parametrize(("trainer", "code"), [("sys.exit(1)", ExitCode.ORPHANED), ("sys.exit(0)", ExitCode.DONE)])
def test_an_ended_trainer_without_operator_is_an_orphan(rig: AgentRig, trainer: str, code: int) -> None:
    rig.start(
        'while not os.path.exists("GO"):\n    time.sleep(0.01)\n'.replace("GO", str(rig.folder / "go")) + trainer,
        **{keys.ENV_ORPHAN_SECONDS: "2"},
    )
    rig.run_attempt(1)
    rig.wait_output("attempt 1 begins")
    rig.operator.close()
    rig.wait_output("no directive")
    (rig.folder / "go").touch()
    assert rig.exit_code() == code
    assert "could not be reached" in rig.output


def test_a_running_trainer_is_never_an_orphan(rig: AgentRig) -> None:
    run_to_stepping(rig, ANSWERING, **{keys.ENV_ORPHAN_SECONDS: "0.5"})
    rig.operator.close()
    rig.wait_output("no directive")
    time.sleep(1.5)  # three times the limit: what must not happen needs its time
    assert rig.process is not None
    assert rig.process.poll() is None
    rig.terminate()
    assert rig.exit_code() == ExitCode.SAVED


def test_malformed_lines_are_survived(rig: AgentRig) -> None:
    run_to_stepping(
        rig,
        """
        link = connect()
        link.sendall(b"not json\\n")
        link.sendall(b'{"type": "Nonsense"}\\n')
        link.sendall(b'{"type": "TrainerUpdate", "body": {"progress": {"last_completed_step": "x"}}}\\n')
        link.sendall(b"x" * (3 * MAX_LINE_BYTES) + b"\\n")
        link.sendall(to_line(Hello(ATTEMPT, 1)))
        say(link, progress=Progress(7))
        for_ever()
        """,
    )
    report = rig.operator.wait_report(lambda r: r.progress is not None)
    assert report.progress is not None
    assert report.progress.last_completed_step == 7
    log = rig.output
    assert "last_completed_step: found 'x'" in log
    assert f"longer than {MAX_LINE_BYTES} bytes" in log


def test_only_the_current_trainer_is_served(rig: AgentRig) -> None:
    run_to_stepping(rig, ANSWERING)
    path = rig.environment[keys.ENV_AGENT_SOCKET]
    for line in (
        to_line(Hello(0, 1)),
        to_line(Hello(1, 1)),
        b"\n",
        b"x" * 5000,
        b'{"type":"AgentCommand","body":{}}\n',
    ):
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.settimeout(8)
            stranger.connect(path)
            stranger.sendall(line)
            with contextlib.suppress(ConnectionResetError):
                assert stranger.recv(1) == b""
    rig.run_attempt(1, save=SaveRequest("still-there", 9.0))
    rig.operator.wait_report(lambda r: outcome(r, "still-there") is SaveOutcome.COMMITTED)
