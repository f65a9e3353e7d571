"""The channel to the operator under faults: it may refuse, move, send nonsense, hang up or vanish; training continues."""

from __future__ import annotations

from http import HTTPStatus
from itertools import pairwise
from pathlib import Path

import pytest

from holdfast_contract import codec, keys
from holdfast_contract.exits import ExitCode
from holdfast_contract.manifest import Owner
from holdfast_contract.sync import Action, Directive, TrainerPhase
from tests.support.agent.rig import AgentRig
from tests.support.operator.scripted_operator import Refusal, ScriptedOperator, leader_elsewhere
from tests.support.operator.tls import Authority, new_authority, server_context
from tests.support.polling import until

STEPPING = """
link = connect()
say(link, progress=Progress(1))
for step in range(2, 100000):
    time.sleep(0.02)
    say(link, progress=Progress(step), buckets={"productive": step * 0.02})
"""


def stepping(rig: AgentRig) -> None:
    rig.start(STEPPING)
    rig.run_attempt(1)
    rig.operator.wait_report(lambda r: r.phase is TrainerPhase.RUNNING)


def step_of(rig: AgentRig) -> int:
    progress = rig.operator.reports[-1].progress
    return progress.last_completed_step if progress else 0


def test_progress_flows_over_one_connection_at_a_bounded_rate(rig: AgentRig) -> None:
    stepping(rig)
    connections, before = rig.operator.connections, len(rig.operator.reports)
    first = step_of(rig)
    rig.operator.wait_report(lambda r: r.progress is not None and r.progress.last_completed_step > first + 150)
    assert rig.operator.connections == connections
    assert len(rig.operator.reports) - before < 10  # 150 steps of 20 ms, about one report a second


def test_a_change_in_meaning_does_not_wait_for_a_held_request(rig: AgentRig) -> None:
    rig.start(
        'while not os.path.exists("GO"):\n    time.sleep(0.01)\nsys.exit(4)'.replace("GO", str(rig.folder / "go"))
    )
    rig.run_attempt(1)
    rig.operator.wait_report(lambda r: r.phase is TrainerPhase.STARTING)
    (rig.folder / "go").touch()
    # The request in flight may be held for 25 s.
    rig.operator.wait_report(lambda r: r.phase is TrainerPhase.EXITED, 3.0)


@pytest.mark.parametrize(
    "status",
    [HTTPStatus.UNAUTHORIZED, HTTPStatus.BAD_REQUEST, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.INTERNAL_SERVER_ERROR],
)
def test_a_refusal_disturbs_nothing_and_is_retried_with_pauses(rig: AgentRig, status: HTTPStatus) -> None:
    stepping(rig)
    before, asked = step_of(rig), len(rig.operator.requests)
    rig.operator.refuse(Refusal(status, b"not today"))
    rig.wait_output(f"the operator answered {status.value}: not today")
    refusals = rig.operator.wait(lambda: [r for r in rig.operator.requests[asked:] if r[0] is status][3:] or None)
    assert refusals
    rig.operator.refuse(None)
    rig.operator.wait_report(lambda r: r.progress is not None and r.progress.last_completed_step > before)
    assert rig.output.count("not today") == 1  # logged once for many attempts
    assert rig.output.count("begins") == 1
    rig.wait_output("the operator answers again")


def test_a_403_that_is_no_directive_is_no_order_to_exit(rig: AgentRig) -> None:
    stepping(rig)
    rig.operator.refuse(Refusal(HTTPStatus.FORBIDDEN, b"<html>some proxy</html>"))
    rig.wait_output("without a directive")
    rig.operator.refuse(Refusal(HTTPStatus.FORBIDDEN, codec.encode(Directive(Action.WAIT, 9))))
    rig.wait_output("the operator answered 403: {")
    assert rig.process is not None
    assert rig.process.poll() is None
    rig.operator.refuse(Refusal(HTTPStatus.FORBIDDEN, codec.encode(Directive(Action.EXIT, 1))))
    assert rig.exit_code() == ExitCode.SUPERSEDED


def first_of(operator: ScriptedOperator, status: HTTPStatus, count: int) -> list[float]:
    """When the first requests came that were answered like this."""
    answered = zip(operator.arrivals, operator.requests, strict=False)  # the last one may be held
    return [arrival for arrival, (found, _) in answered if found == status][:count]


def test_retry_after_is_honoured(rig: AgentRig) -> None:
    rig.start(STEPPING)
    rig.operator.wait_report(lambda r: r.attempt == 0)
    rig.operator.refuse(Refusal(HTTPStatus.TOO_MANY_REQUESTS, b"slower", {"Retry-After": "2"}))
    rig.wait_output("slower")
    refused = rig.operator.wait(
        lambda: found if len(found := first_of(rig.operator, HTTPStatus.TOO_MANY_REQUESTS, 3)) == 3 else None
    )
    assert all(later - earlier >= 2.0 for earlier, later in pairwise(refused))
    rig.operator.refuse(None)
    rig.run_attempt(1)
    rig.operator.wait_report(lambda r: r.phase is TrainerPhase.RUNNING)


@pytest.mark.parametrize("in_header", [True, False])
def test_a_standby_sends_the_agent_to_the_leader_and_back(rig: AgentRig, in_header: bool) -> None:
    leader = ScriptedOperator(rig.tls)
    try:
        leader.direct(Directive(Action.RUN, 1, coordinator="127.0.0.1:9"))
        rig.operator.refuse(leader_elsewhere(f"127.0.0.1:{leader.port}", in_header=in_header))
        rig.start(STEPPING)
        leader.wait_report(lambda r: r.phase is TrainerPhase.RUNNING)
        assert not rig.operator.reports
    finally:
        leader.close()
    rig.operator.refuse(None)
    rig.run_attempt(1)
    rig.operator.wait_report(lambda r: r.phase is TrainerPhase.RUNNING and r.attempt == 1)
    assert rig.output.count("begins") == 1


def test_a_leader_must_prove_the_services_name(rig: AgentRig, authority: Authority, tmp_path: Path) -> None:
    impostor = ScriptedOperator(server_context(authority, tmp_path, "another.service"))
    try:
        impostor.direct(Directive(Action.RUN, 1))
        rig.operator.refuse(leader_elsewhere(f"127.0.0.1:{impostor.port}", in_header=True))
        rig.start(STEPPING)
        rig.wait_output("no trusted TLS peer 'localhost'")
        assert not impostor.requests
    finally:
        impostor.close()


def test_an_endless_chain_of_standbys_is_given_up_with_pauses(rig: AgentRig) -> None:
    rig.operator.refuse(leader_elsewhere(f"127.0.0.1:{rig.operator.port}", in_header=True))
    rig.start(STEPPING)
    rig.wait_output("no leader to ask")
    rig.operator.refuse(None)
    rig.operator.wait_report(lambda r: r.attempt == 0)


def test_an_untrusted_authority_receives_nothing(rig: AgentRig) -> None:
    rig.environment[keys.ENV_CONTROL_CA] = new_authority("another authority").pem
    rig.start(STEPPING)
    rig.wait_output("no trusted TLS peer")
    assert not rig.operator.requests


def test_an_authority_bundle_of_old_and_new_is_accepted(rig: AgentRig) -> None:
    rig.environment[keys.ENV_CONTROL_CA] = new_authority("older authority").pem + rig.authority.pem
    rig.start(STEPPING)
    rig.operator.wait_report(lambda r: r.attempt == 0)


def test_a_rotated_token_is_read_anew(rig: AgentRig) -> None:
    stepping(rig)
    with rig.operator.changed:
        rig.operator.tokens = {"second-token"}
    rig.wait_output("401")
    rig.token_file.unlink()
    rig.wait_output("No such file")
    rig.token_file.write_text("second-token\n")
    rig.operator.wait(lambda: (HTTPStatus.OK, "second-token") in rig.operator.requests or None)
    assert (HTTPStatus.UNAUTHORIZED, "first-token") in rig.operator.requests


def test_a_report_that_is_too_large_is_sent_again_smaller(rig: AgentRig) -> None:
    with rig.operator.changed:
        rig.operator.max_body_bytes = 4096
    rig.start("""
        link = connect()
        say(link, progress=Progress(1, metrics={f"metric-{i}": 1.0 for i in range(500)}),
            rejected=tuple(Rejection(1, i, "r" * 100) for i in range(64)))
        for_ever()
    """)
    rig.run_attempt(1)
    report = rig.operator.wait_report(lambda r: r.phase is TrainerPhase.RUNNING)
    assert 0 < len(report.rejected) < 64
    assert HTTPStatus.REQUEST_ENTITY_TOO_LARGE in {status for status, _ in rig.operator.requests}


def test_training_outlives_the_operator_and_finds_it_again(rig: AgentRig) -> None:
    stepping(rig)
    port, before = rig.operator.port, step_of(rig)
    rig.operator.close()
    rig.wait_output("no directive")
    rig.operator = ScriptedOperator(rig.tls, port=port)
    rig.run_attempt(1)
    report = rig.operator.wait_report(lambda r: r.phase is TrainerPhase.RUNNING, 20)
    assert report.progress is not None
    assert report.progress.last_completed_step > before
    assert rig.output.count("begins") == 1


def test_the_buckets_add_up_to_the_agents_life(rig: AgentRig) -> None:
    rig.start(STEPPING)
    rig.run_attempt(1)
    first = rig.operator.wait_report(lambda r: r.buckets.get("productive", 0) > 1)
    rig.run_attempt(2)
    second = rig.operator.wait_report(lambda r: r.attempt == 2 and r.buckets.get("productive", 0) > 2)
    for report in (first, second):
        assert set(report.buckets) <= {"idle", "startup", "productive"}
        assert report.buckets["idle"] > 0
        assert report.buckets["startup"] > 0
    assert sum(second.buckets.values()) > sum(first.buckets.values()) + 1


def inspect(rig: AgentRig, attempt: int = 0) -> Directive:
    rig.start(STEPPING)
    directive = Directive(Action.INSPECT, attempt)
    rig.operator.direct(directive)
    return directive


def test_an_empty_storage_is_inspected_and_proven_writable(rig: AgentRig) -> None:
    inspect(rig)
    report = rig.operator.wait_report(lambda r: r.inspection is not None)
    assert report.inspection is not None
    assert (report.inspection.highest_attempt, report.inspection.candidates, report.inspection.error) == (0, (), "")
    assert list((rig.storage / "a-run").iterdir()) == []


def test_an_inspection_tells_the_highest_attempt_and_the_owner(rig: AgentRig) -> None:
    run = rig.storage / "a-run"
    (run / "7").mkdir(parents=True)
    (run / "3" / "10").mkdir(parents=True)
    owner = Owner("uid-1", "default", "a-job", 7)
    (run / keys.OWNER_FILE).write_bytes(codec.encode(owner))
    inspect(rig)
    report = rig.operator.wait_report(lambda r: r.inspection is not None)
    assert report.inspection is not None
    assert report.inspection.highest_attempt == 7
    assert report.inspection.owner == owner
    assert report.inspection.candidates == ()
    rig.run_attempt(8)
    rig.operator.wait_report(lambda r: r.phase is TrainerPhase.RUNNING and r.inspection is None)


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (lambda storage: storage.rmdir(), "found nothing, allowed: a directory that exists"),
        (lambda storage: (storage.rmdir(), storage.write_text("x")), "found a file"),
        (lambda storage: (storage / "a-run").write_text("x"), "File exists"),
        (
            lambda storage: ((storage / "a-run").mkdir(), (storage / "a-run" / keys.OWNER_FILE).write_text("?")),
            "not a readable owner record",
        ),
    ],
)
def test_storage_that_cannot_be_used_is_named(rig: AgentRig, prepare, message: str) -> None:  # type: ignore[no-untyped-def]
    prepare(rig.storage)
    inspect(rig)
    report = rig.operator.wait_report(lambda r: r.inspection is not None)
    assert report.inspection is not None
    assert message in report.inspection.error
    assert str(rig.storage) in report.inspection.error


def test_settings_that_cannot_work_end_with_a_clear_line(rig: AgentRig) -> None:
    rig.environment[keys.ENV_CONTROL_URL] = "http://plain:80"
    rig.start(STEPPING)
    assert rig.exit_code() == ExitCode.USAGE
    message = f"{keys.ENV_CONTROL_URL}: found 'http://plain:80', allowed: https://HOST:PORT"
    assert message in rig.output.splitlines()[-1]
    assert message in rig.termination_log.read_text()


def test_an_authority_that_is_no_pem_is_a_usage_error(rig: AgentRig) -> None:
    rig.environment[keys.ENV_CONTROL_CA] = "hello"
    rig.start(STEPPING)
    assert rig.exit_code() == ExitCode.USAGE
    assert f"{keys.ENV_CONTROL_CA}: found 'hello', allowed: PEM certificates" in rig.output


def test_the_socket_is_the_trainers_alone_and_goes_with_the_agent(rig: AgentRig) -> None:
    stepping(rig)
    path = Path(rig.environment[keys.ENV_AGENT_SOCKET])
    assert path.stat().st_mode & 0o777 == 0o600
    rig.operator.direct(Directive(Action.EXIT, 1))
    rig.exit_code()
    until(lambda: not path.exists(), 1, "the socket is gone")
