"""Starting, restarting, ending and burying trainers."""

from __future__ import annotations

import json
import signal
import subprocess

import psutil
import pytest

from holdfast_contract import keys
from holdfast_contract.exits import ExitCode
from holdfast_contract.manifest import CheckpointRef
from holdfast_contract.sync import Action, Directive, FailureHistory, TrainerPhase
from tests.support.agent.rig import AgentRig
from tests.support.polling import until

STEPPING = """
link = connect()
say(link, progress=Progress(1, total_steps=10, step_seconds=0.5, metrics={"loss": 2.0}), buckets={"productive": 0.1})
print("stepping", ATTEMPT, os.getpid())
for_ever()
"""


def wait_until_alone(agent: psutil.Process) -> None:
    until(lambda: not agent.children(recursive=True), 10, "alone", seen=lambda: agent.children(recursive=True))


def test_a_trainer_starts_with_the_facts_of_its_attempt(rig: AgentRig) -> None:
    rig.start("""
        names = [n for n in os.environ if n.startswith("HOLDFAST_")]
        print("ENV " + json.dumps({n: os.environ[n] for n in names}), flush=True)
        print("SESSION", os.getsid(0) == os.getpid() == os.getpgid(0), flush=True)
        link = connect()
        say(link, progress=Progress(3), restored=CheckpointRef(1, 2, "d"), restore_done=True)
        for_ever()
    """)
    rig.operator.wait_report(lambda r: r.phase is TrainerPhase.NONE and r.attempt == 0)
    rig.run_attempt(2, pin=CheckpointRef(1, 2, "d"), take_over=True, history=FailureHistory(3, 120.5))
    report = rig.operator.wait_report(lambda r: r.phase is TrainerPhase.RUNNING)
    assert (report.attempt, report.progress and report.progress.last_completed_step) == (2, 3)
    assert report.restored == CheckpointRef(1, 2)
    log = rig.wait_output("SESSION True")
    assert "holdfast: attempt 2 begins" in log
    variables = json.loads(log.split("ENV ", 1)[1].splitlines()[0])
    assert variables[keys.ENV_ATTEMPT] == "2"
    assert variables[keys.ENV_PROCESS_INDEX] == "0"
    assert variables[keys.ENV_COORDINATOR] == "127.0.0.1:9"
    assert json.loads(variables[keys.ENV_PIN]) == {"attempt": 1, "step": 2, "digest": "d"}
    assert variables[keys.ENV_TAKE_OVER] == "1"
    assert json.loads(variables[keys.ENV_FAILURES]) == {"failures": 3, "running_seconds": 120.5}
    assert variables[keys.ENV_COMPILE_CACHE] == str(rig.folder / "runtime" / "compile-cache")
    assert not {keys.ENV_CONTROL_CA, keys.ENV_CONTROL_URL, keys.ENV_TOKEN_FILE} & variables.keys()


def test_a_new_attempt_replaces_the_trainer_in_place(rig: AgentRig) -> None:
    rig.start(STEPPING)
    rig.run_attempt(1)
    rig.operator.wait_report(lambda r: r.phase is TrainerPhase.RUNNING and r.attempt == 1)
    first = int(rig.wait_output("stepping 1 ").split("stepping 1 ")[1].split()[0])
    rig.run_attempt(2)
    rig.operator.wait_report(lambda r: r.phase is TrainerPhase.RUNNING and r.attempt == 2)
    assert not psutil.pid_exists(first)
    log = rig.wait_output("stepping 2 ")
    assert log.index("attempt 1 begins") < log.index("stepping 1") < log.index("attempt 2 begins")
    assert rig.process is not None
    assert rig.process.poll() is None
    # The stopped trainer is no exit: nothing may take it for a crash.
    assert all(report.exit is None for report in rig.operator.reports)


@pytest.mark.parametrize(
    ("ending", "code", "number"),
    [("sys.exit(7)", 7, 0), ("os.kill(os.getpid(), signal.SIGSEGV)", 139, signal.SIGSEGV), ("sys.exit(0)", 0, 0)],
)
def test_an_end_is_reported_and_not_restarted(rig: AgentRig, ending: str, code: int, number: int) -> None:
    rig.start(f"""
        print("going down", file=sys.stderr, flush=True)
        {ending}
    """)
    rig.run_attempt(1)
    report = rig.operator.wait_report(lambda r: r.phase is TrainerPhase.EXITED)
    assert report.exit is not None
    assert (report.exit.attempt, report.exit.code, report.exit.signal) == (1, code, number)
    assert "going down" in report.exit.last_lines
    before = len(rig.operator.reports)
    rig.operator.direct(Directive(Action.RUN, 1, coordinator="127.0.0.1:10"))  # another directive, the same attempt
    rig.operator.wait(lambda: len(rig.operator.reports) > before or None)
    assert rig.output.count("begins") == 1
    rig.run_attempt(2)
    rig.operator.wait_report(lambda r: r.phase is TrainerPhase.EXITED and r.attempt == 2)
    assert rig.output.count("begins") == 2


def test_a_command_that_cannot_start_is_an_exit(rig: AgentRig) -> None:
    rig.start_command(["/no/such/program"])
    rig.run_attempt(1)
    report = rig.operator.wait_report(lambda r: r.phase is TrainerPhase.EXITED)
    assert report.exit is not None
    assert report.exit.code == 127
    assert "/no/such/program" in report.exit.last_lines


def test_no_descendant_survives_a_switch_or_an_end(rig: AgentRig) -> None:
    rig.start("""
        same = subprocess.Popen(["sleep", "1000"])
        away = subprocess.Popen([sys.executable, "-c", "import os, time; os.setsid(); "
                                 "os.fork(); time.sleep(1000)"], start_new_session=False)
        orphan = subprocess.run(["sh", "-c", "setsid sleep 1000 >/dev/null 2>&1 & echo $!"], stdout=subprocess.PIPE, text=True).stdout
        print("PIDS", ATTEMPT, same.pid, away.pid, orphan.strip(), flush=True)
        link = connect()
        say(link, progress=Progress(1))
        if ATTEMPT == 2:
            sys.exit(3)
        for_ever()
    """)
    for attempt in (1, 2):
        rig.run_attempt(attempt)
        line = rig.wait_output(f"PIDS {attempt} ").split(f"PIDS {attempt} ")[1].splitlines()[0]
        assert rig.process is not None
        agent = psutil.Process(rig.process.pid)
        pids = [int(pid) for pid in line.split()]
        assert len(pids) == 3
        if attempt == 1:
            rig.operator.wait_report(lambda r: r.phase is TrainerPhase.RUNNING)
            rig.operator.direct(Directive(Action.WAIT, 2))
        wait_until_alone(agent)
        assert not [pid for pid in pids if psutil.pid_exists(pid)]
    rig.operator.wait_report(lambda r: r.phase is TrainerPhase.EXITED and r.attempt == 2)


def test_orphaned_processes_are_reaped(rig: AgentRig) -> None:
    rig.start("""
        for _ in range(20):
            subprocess.run(["sh", "-c", "sleep 0.05 &"])
        link = connect()
        say(link, progress=Progress(1))
        for_ever()
    """)
    rig.run_attempt(1)
    rig.operator.wait_report(lambda r: r.phase is TrainerPhase.RUNNING)
    assert rig.process is not None
    agent = psutil.Process(rig.process.pid)
    until(
        lambda: len(agent.children(recursive=True)) == 1, 10, "one child", seen=lambda: agent.children(recursive=True)
    )


IN_A_PID_NAMESPACE = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc")


@pytest.mark.skipif(
    subprocess.run([*IN_A_PID_NAMESPACE, "true"], capture_output=True, check=False).returncode != 0,
    reason="this machine allows no user and PID namespaces",
)
def test_as_process_1_of_a_container(rig: AgentRig) -> None:
    rig.wrapper = IN_A_PID_NAMESPACE
    rig.start("""
        subprocess.run(["sh", "-c", "setsid sleep 1000 & sleep 0.01 & exit 0"])
        print("PARENT", os.getppid(), flush=True)
        link = connect()
        say(link, progress=Progress(1))
        for command in commands(link):
            ref = CheckpointRef(1, 2, "d")
            say(link, newest=ref, saves=(SaveReport(command.save.id, SaveOutcome.COMMITTED, ref),))
            sys.exit(80)
    """)
    rig.run_attempt(1)
    rig.operator.wait_report(lambda r: r.phase is TrainerPhase.RUNNING)
    rig.wait_output("PARENT 1")
    assert rig.process is not None
    (agent,) = psutil.Process(rig.process.pid).children()
    # The trainer and the process that left its session, and no zombie of the third.
    until(
        lambda: len(agent.children(recursive=True)) == 2,
        10,
        "two children",
        seen=lambda: agent.children(recursive=True),
    )
    agent.terminate()
    assert rig.exit_code() == ExitCode.SAVED


def test_done_stays_until_asked_to_exit_and_ends_with_zero(rig: AgentRig) -> None:
    rig.start("sys.exit(0)")
    rig.run_attempt(1)
    rig.operator.wait_report(lambda r: r.phase is TrainerPhase.EXITED)
    assert rig.process is not None
    assert rig.process.poll() is None
    rig.operator.direct(Directive(Action.EXIT, 1, why="the job has succeeded"))
    assert rig.exit_code() == ExitCode.DONE
    assert rig.output.splitlines()[-1].endswith("ends with code 0: exit requested: the job has succeeded")


def test_exit_stops_the_trainer(rig: AgentRig) -> None:
    rig.start(STEPPING)
    rig.run_attempt(1)
    rig.operator.wait_report(lambda r: r.phase is TrainerPhase.RUNNING)
    pid = int(rig.wait_output("stepping 1 ").split("stepping 1 ")[1].split()[0])
    rig.operator.direct(Directive(Action.EXIT, 1, why="this pod is no longer a member"))
    assert rig.exit_code() == ExitCode.SUPERSEDED
    assert not psutil.pid_exists(pid)
    assert "no longer a member" in rig.termination_log.read_text()


def test_output_passes_through_whole(rig: AgentRig) -> None:
    rig.start("""
        for i in range(2000):
            print(f"out {i} " + "x" * 50)
            print(f"err {i} " + "y" * 50, file=sys.stderr)
        print("é€ no newline at the end", end="", flush=True)
        sys.exit(5)
    """)
    rig.run_attempt(1)
    report = rig.operator.wait_report(lambda r: r.phase is TrainerPhase.EXITED)
    lines = rig.output.splitlines()
    assert [line for line in lines if line.startswith("out ")] == [f"out {i} " + "x" * 50 for i in range(2000)]
    assert [line for line in lines if line.startswith("err ")] == [f"err {i} " + "y" * 50 for i in range(2000)]
    assert "é€ no newline at the end" in lines
    assert report.exit is not None
    assert report.exit.last_lines.endswith("err 1999 " + "y" * 50)
    assert report.exit.last_lines.startswith("err ")
    assert len(report.exit.last_lines) <= 4096


def test_a_directive_of_a_lower_attempt_changes_nothing(rig: AgentRig) -> None:
    rig.start(STEPPING)
    rig.run_attempt(5)
    rig.operator.wait_report(lambda r: r.phase is TrainerPhase.RUNNING and r.attempt == 5)
    stale = Directive(Action.RUN, 4, coordinator="127.0.0.1:9")
    rig.operator.direct(stale)
    report = rig.operator.wait_report(lambda r: r.obeys == stale.tag)
    assert (report.attempt, report.phase) == (5, TrainerPhase.RUNNING)
    assert rig.output.count("begins") == 1
