"""The agent's small parts: goodput ledger, settings, addresses, the trainer's environment, last lines, processes."""

from __future__ import annotations

import os
import queue
import threading
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given

from holdfast_agent import inspection, loop_events, trainer_environment
from holdfast_agent.agent_settings import AgentSettingsError, from_environment
from holdfast_agent.channel import address_of
from holdfast_agent.container_output import last_lines, write_termination_log
from holdfast_agent.goodput_ledger import GoodputLedger
from holdfast_agent.inspection import INSPECT_SECONDS, Inspector, inspect
from holdfast_contract import defaults, keys
from holdfast_contract.reasons import Bucket
from holdfast_contract.sync import Action, Directive, Inspection

GOOD = {
    keys.ENV_CONTROL_URL: "https://holdfast.system.svc:8443",
    keys.ENV_CONTROL_CA: "pem",
    keys.ENV_TOKEN_FILE: "/t",
    keys.ENV_REPLICA_INDEX: "3",
    keys.ENV_CHECKPOINT_PATH: "/c",
    keys.ENV_RUN: "r",
}
library_buckets = st.dictionaries(
    st.sampled_from([Bucket.PRODUCTIVE.value, Bucket.COMPILE.value, Bucket.STARTUP.value]), st.floats(0, 50)
)
ledger_events = st.lists(
    st.tuples(st.sampled_from(["begin", "end", "record"]), st.floats(0, 20), library_buckets), max_size=30
)


@given(ledger_events)
def test_the_buckets_add_up_to_the_agents_life(history: list[tuple[str, float, dict[str, float]]]) -> None:
    now, ledger, trainer = 1000.0, GoodputLedger(1000.0), False
    for what, seconds, buckets in history:
        now += seconds
        if what == "begin":
            ledger.begin_trainer(now)
            trainer = True
        elif what == "end":
            ledger.end_trainer(now)
            trainer = False
        elif trainer:
            ledger.record(buckets, now)
        account = ledger.at(now + 1.0)
        assert sum(account.values()) == pytest.approx(now + 1.0 - 1000.0, abs=1e-6)
        assert min(account.values()) >= -1e-6


def test_a_trainers_silence_goes_where_it_was_and_its_start_to_startup() -> None:
    ledger = GoodputLedger(0.0)
    ledger.begin_trainer(2.0)
    assert ledger.at(5.0) == pytest.approx({"idle": 2.0, "startup": 3.0})
    ledger.record({"startup": 1.0, "compile": 4.0}, 8.0)  # its clock began one second after its process
    assert ledger.at(8.0) == pytest.approx({"idle": 2.0, "startup": 2.0, "compile": 4.0})
    ledger.record({"startup": 1.0, "compile": 4.5, "productive": 10.0}, 19.0)  # and its message took half a second
    assert ledger.at(20.0) == pytest.approx({"idle": 2.0, "startup": 2.0, "compile": 4.5, "productive": 11.5})
    ledger.end_trainer(20.0)
    assert ledger.at(21.0) == pytest.approx({"idle": 3.0, "startup": 2.0, "compile": 4.5, "productive": 11.5})


def test_settings_are_read() -> None:
    read = from_environment(
        ["--", "python", "t.py"], GOOD | {keys.ENV_GRACE_SECONDS: "40", keys.ENV_HANG_STEP_SECONDS: ""}
    )
    assert read.command == ("python", "t.py")
    assert (read.control_host, read.control_port) == ("holdfast.system.svc", 8443)
    assert (read.process_index, read.grace_seconds, read.orphan_seconds) == (3, 40.0, defaults.ORPHAN_SECONDS)
    assert read.hang_step_seconds is None
    assert read.socket_path == "/var/run/holdfast/agent.sock"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({keys.ENV_CONTROL_URL: ""}, keys.ENV_CONTROL_URL),
        ({keys.ENV_CONTROL_URL: "http://h:1"}, keys.ENV_CONTROL_URL),
        ({keys.ENV_CONTROL_URL: "https://h:99999"}, keys.ENV_CONTROL_URL),
        ({keys.ENV_CONTROL_URL: "https://h:1/path"}, keys.ENV_CONTROL_URL),
        ({keys.ENV_CONTROL_CA: ""}, keys.ENV_CONTROL_CA),
        ({keys.ENV_TOKEN_FILE: ""}, keys.ENV_TOKEN_FILE),
        ({keys.ENV_REPLICA_INDEX: "-1"}, keys.ENV_REPLICA_INDEX),
        ({keys.ENV_REPLICA_INDEX: "one"}, keys.ENV_REPLICA_INDEX),
        ({keys.ENV_CHECKPOINT_PATH: ""}, keys.ENV_CHECKPOINT_PATH),
        ({keys.ENV_RUN: ""}, keys.ENV_RUN),
        ({keys.ENV_GRACE_SECONDS: "nan"}, keys.ENV_GRACE_SECONDS),
        ({keys.ENV_GRACE_SECONDS: "-3"}, keys.ENV_GRACE_SECONDS),
        ({keys.ENV_ORPHAN_SECONDS: "soon"}, keys.ENV_ORPHAN_SECONDS),
        ({keys.ENV_HANG_START_SECONDS: "0"}, keys.ENV_HANG_START_SECONDS),
        ({keys.ENV_AGENT_SOCKET: "relative"}, keys.ENV_AGENT_SOCKET),
        ({keys.ENV_AGENT_SOCKET: "/" + "x" * 107}, keys.ENV_AGENT_SOCKET),
    ],
)
def test_a_wrong_or_absent_setting_is_named(change: dict[str, str], field: str) -> None:
    absent = change.get(field) == ""
    message = f"`{field}` is required but not set" if absent else f"{field}: found .*, allowed: "
    with pytest.raises(AgentSettingsError, match=message) as caught:
        from_environment(["--", "c"], GOOD | change)
    assert caught.value.field == field


@pytest.mark.parametrize("arguments", [[], ["--"], ["python"]])
def test_a_missing_command_is_named(arguments: list[str]) -> None:
    with pytest.raises(AgentSettingsError, match="arguments"):
        from_environment(arguments, GOOD)


@pytest.mark.parametrize(
    ("text", "pair"),
    [
        ("10.0.0.1:8443", ("10.0.0.1", 8443)),
        ("[fd00::1]:8443", ("fd00::1", 8443)),
        ("host", None),
        (":1", None),
        ("h:0", None),
        ("h:70000", None),
        ("h:x", None),
        ("", None),
    ],
)
def test_addresses(text: str, pair: tuple[str, int] | None) -> None:
    assert address_of(text) == pair


def test_the_trainers_environment_holds_no_stale_facts() -> None:
    read = from_environment(["--", "c"], GOOD)
    stale = {keys.ENV_COORDINATOR: "old:1", keys.ENV_TAKE_OVER: "1", keys.ENV_PIN: "old", keys.ENV_FAILURES: "old"}
    container = GOOD | stale | {"USER_SET": "x"}
    variables = trainer_environment.for_trainer(read, container, Directive(Action.RUN, 4))
    assert variables[keys.ENV_PIN] == "none"
    assert variables["USER_SET"] == "x"
    gone = {keys.ENV_COORDINATOR, keys.ENV_TAKE_OVER, keys.ENV_FAILURES, keys.ENV_CONTROL_CA, keys.ENV_TOKEN_FILE}
    assert not gone & variables.keys()


@given(st.text(max_size=300), st.integers(1, 100))
def test_last_lines_fit_and_are_the_end(text: str, limit_bytes: int) -> None:
    kept = last_lines(text.encode(errors="replace"), limit_bytes)
    assert len(kept.encode()) <= limit_bytes
    assert text.encode(errors="replace").decode().rstrip().endswith(kept)


def test_the_termination_message_fits_and_is_written_only_where_wanted(tmp_path: Path) -> None:
    log = tmp_path / "log"
    write_termination_log(str(log), "summary", "line\n" * 5000)
    assert not log.exists()
    log.write_text("older and longer" * 1000)
    write_termination_log(str(log), "summary", "line\n" * 5000)
    text = log.read_text()
    assert text.startswith("summary\nline\n")
    assert len(text.encode()) <= 4096


def test_odd_storage_is_named(tmp_path: Path) -> None:
    assert inspect(str(tmp_path), "r").error == ""
    os.mkfifo(tmp_path / "r" / keys.OWNER_FILE)  # opening it to read would block for ever
    assert "not a readable owner record" in inspect(str(tmp_path), "r").error
    assert "found a URI" in inspect("gs://bucket/x", "r").error


def test_storage_that_does_not_answer_is_reported_once_and_its_late_answer_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, posted = threading.Event(), queue.Queue[loop_events.Event]()

    def hung(path: str, run: str) -> Inspection:
        assert answers.wait(20)
        return inspect(path, run)

    monkeypatch.setattr(inspection, "inspect", hung)
    inspector = Inspector(str(tmp_path), "r", posted.put)
    inspector.start(1, now=0.0)
    inspector.check(INSPECT_SECONDS - 1)
    assert posted.empty()
    inspector.check(INSPECT_SECONDS)
    inspector.start(1, now=INSPECT_SECONDS)  # the hung one is still there: no second one beside it
    inspector.check(10 * INSPECT_SECONDS)
    late = posted.get_nowait()
    assert posted.empty()
    assert isinstance(late, loop_events.Inspected)
    assert f"{tmp_path}: storage did not answer" in late.inspection.error
    answers.set()
    assert posted.get(timeout=10) == loop_events.Inspected(1, Inspection(0))
