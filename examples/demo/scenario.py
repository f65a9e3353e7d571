"""The acts of the demo: each injects one fault, waits for the promised result, and records claims and figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from examples.demo import damage, processes
from examples.demo.jobs import Training
from examples.demo.kills import WriteKiller
from examples.demo.logs import LogFollower
from examples.demo.page import Claim, Figure
from examples.demo.record import Kind, Record
from examples.demo.rig import Rig
from examples.demo.watch import JobWatch

START_SECONDS: Final = 120.0
RECOVERY_SECONDS: Final = 120.0
MOVE_SECONDS: Final = 90.0
FINISH_SECONDS: Final = 240.0
STEPS_BETWEEN_ACTS: Final = 12
UNSAVED_STEPS: Final = 5
"""Steps that training must be ahead of its newest checkpoint, so that a preemption notice has something to save."""
NOTICE_TAINT: Final = "karpenter.sh/disrupted"


@dataclass
class Outcome:
    """The claims and figures of all acts."""

    claims: list[Claim] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)

    def claim(self, text: str, holds: bool, seen: object) -> None:  # noqa: FBT001  the result is what a claim is about
        """Record whether a claim holds, with the evidence."""
        self.claims.append(Claim(text, bool(holds), str(seen)))

    def exit_code(self) -> int:
        """Return 0 if there is at least one claim and all of them hold, else 1."""
        return 0 if self.claims and all(c.holds for c in self.claims) else 1

    def figure(self, name: str, seconds: float | None, note: str = "") -> None:
        """Record a duration in seconds."""
        self.figures.append(Figure(name, "not seen" if seconds is None else f"{seconds:.2f} s", note))


@dataclass
class Stage:
    """Everything that the acts share."""

    rig: Rig
    training: Training
    record: Record
    watch: JobWatch
    logs: LogFollower
    killer: WriteKiller
    outcome: Outcome
    say: Callable[[str], None]
    applied_at: float = 0.0
    finished_at: float = 0.0

    @property
    def uid(self) -> str:
        """The job's UID."""
        return self.rig.uid(self.training.name)

    def step(self) -> int:
        """Return the last completed step in the status."""
        return int((self.watch.status.get("progress") or {}).get("step") or 0)

    def wait(self, holds: Callable[[dict[str, Any]], bool], what: str, timeout_seconds: float) -> dict[str, Any]:
        """Wait until the job's status holds. Raises TimeoutError, or RuntimeError if the job ends before."""

        def holds_or_ended(status: dict[str, Any]) -> bool:
            return holds(status) or ended(status)

        status = self.watch.until(holds_or_ended, what=what, timeout_seconds=timeout_seconds)
        if not holds(status):
            raise RuntimeError(f"{what}: the job has ended: {status.get('lastEnd')} {status.get('conditions')}")
        return status

    def pods(self) -> dict[int, str]:
        """Return the UID of each worker's newest pod."""
        return {worker: pod["metadata"]["uid"] for worker, pod in self.rig.pods(self.training.name).items()}

    def train_on(self) -> None:
        """Wait until the active attempt has taken some steps and committed a checkpoint."""
        attempt = self.watch.status.get("activeAttempt", 0)
        first = self.step()

        def enough(status: dict[str, Any]) -> bool:
            newest = (status.get("checkpoint") or {}).get("newest") or {}
            step = int((status.get("progress") or {}).get("step") or 0)
            return newest.get("attempt") == attempt and step >= first + STEPS_BETWEEN_ACTS

        self.wait(enough, f"{STEPS_BETWEEN_ACTS} steps and a checkpoint in attempt {attempt}", START_SECONDS)


def ended(status: dict[str, Any]) -> bool:
    """Return whether the job has succeeded or failed."""
    return "True" in {condition(status, "Failed"), condition(status, "Succeeded")}


def condition(status: dict[str, Any], kind: str) -> str:
    """Return the status of a condition, or Unknown."""
    return next((str(c["status"]) for c in status.get("conditions") or [] if c["type"] == kind), "Unknown")


def begin(stage: Stage) -> None:
    """Apply the job and wait for training."""
    stage.say("apply a TrainingJob; two JAX processes train")
    stage.record.mark("you", Kind.INFO, f"kubectl apply: {stage.training.name}, 2 workers × 2 devices")
    stage.applied_at = stage.record.now()
    stage.rig.apply(stage.training)
    stage.wait(lambda s: int((s.get("progress") or {}).get("step") or 0) > 0, "the first step", START_SECONDS)
    stage.train_on()


@contextmanager
def new_attempt(stage: Stage) -> Iterator[dict[str, Any]]:
    """Inject a fault in the ``with`` block, then wait until the next attempt trains. Yields a dict that collects facts."""
    before = stage.watch.status
    facts: dict[str, Any] = {
        "step": stage.step(),
        "attempt": before["attempt"],
        "before": before,
        "at": stage.record.now(),
    }
    yield facts
    attempt = before["attempt"] + 1
    stage.wait(lambda s: s.get("activeAttempt", 0) >= attempt, f"attempt {attempt}", RECOVERY_SECONDS)
    facts["active_at"] = stage.record.now()

    def training(status: dict[str, Any]) -> bool:
        """Return whether both workers train or have trained: a killed operator may first see the attempt after its end."""
        restored = (status.get("checkpoint") or {}).get("restored")
        now = (status.get("workers") or {}).get("training", 0) == 2
        return bool(restored) and (now or condition(status, "Succeeded") == "True")

    status = stage.wait(training, f"first step of attempt {attempt}", RECOVERY_SECONDS)
    facts["training_at"], facts["after"] = stage.record.now(), status
    facts["restored"] = status["checkpoint"]["restored"]
    facts["steps_lost"] = max(0, facts["step"] - facts["restored"]["step"])


def notice(stage: Stage) -> None:
    """A node gets a preemption notice."""
    stage.train_on()
    stage.wait(lambda s: _is_between_saves(stage, s), "a moment between two saves", START_SECONDS)
    node = stage.rig.node_of(stage.training.name, 1)
    pods = stage.pods()
    stage.say(f"node {node} is about to be preempted (taint {NOTICE_TAINT})")
    with new_attempt(stage) as facts:
        stage.record.mark("you", Kind.FAULT, f"taint {node} {NOTICE_TAINT}")
        stage.rig.taint(node, NOTICE_TAINT)
        status = stage.wait(
            lambda s: (s.get("preemption") or {}).get("outcome") not in {None, "pending"},
            "the save's outcome",
            MOVE_SECONDS,
        )
        facts["committed_at"] = stage.record.now()
        facts["preemption"] = status["preemption"]
    stage.rig.untaint(node, NOTICE_TAINT)
    _judge_notice(stage, facts, node=node, pods=pods)


def _judge_notice(stage: Stage, facts: dict[str, Any], *, node: str, pods: dict[int, str]) -> None:
    claim, figure, now = stage.outcome.claim, stage.outcome.figure, stage.pods()
    preemption, after = facts["preemption"], facts["after"]
    spare = preemption.get("secondsToSpare")
    claim("the preemption notice led to a save that the operator saw committed", preemption["outcome"] in {"committed", "fresh"},
          f"{preemption['outcome']} at step {preemption.get('savedStep')}, {spare} s to spare")  # fmt: skip
    moved = stage.rig.node_of(stage.training.name, 1)
    claim(
        "the replacement for the doomed worker is on another node",
        moved != node and now[1] != pods[1],
        f"{node} → {moved}",
    )
    claim("the other worker restarted in place, in the same pod", now[0] == pods[0], f"pod {now[0]}")
    claim("the preemption used no failure budget", _restarts(after, "Preemption") == 1 and not after.get("failureTimes"),
          f"restarts {after.get('restarts')}")  # fmt: skip
    claim("only steps since the last save were repeated", facts["steps_lost"] <= stage.training.every_steps,
          f"{facts['steps_lost']} steps")  # fmt: skip
    asked = [stage.logs.first(r"request .*: a save within", after=facts["at"], worker=w) for w in range(2)]
    all_asked_at = max((line.at for line in asked if line), default=None) if all(asked) else None
    figure("notice → all ranks have the save request", None if all_asked_at is None else all_asked_at - facts["at"])
    figure("notice → save seen committed", facts["committed_at"] - facts["at"])
    figure(
        "notice → first new step on the new node", facts["training_at"] - facts["at"], "training continues meanwhile"
    )
    _lost(stage, "notice", facts)


def crash(stage: Stage) -> None:
    """A trainer process is killed."""
    stage.train_on()
    pods = stage.pods()
    stage.say("a trainer crashes (SIGKILL)")
    with new_attempt(stage) as facts:
        stage.record.mark("worker 1", Kind.FAULT, "SIGKILL")
        processes.kill_trainer(stage.uid, 1)
    after = facts["after"]
    stage.outcome.claim("a crash costs a process, not a pod", stage.pods() == pods, "both pods kept their UIDs")
    stage.outcome.claim(
        "the crash was counted once, with its cause", _restarts(after, "Failure") == 1, after.get("restarts")
    )
    _stages(stage, facts)
    _lost(stage, "crash", facts)


def _stages(stage: Stage, facts: dict[str, Any]) -> None:
    attempt, start = facts["attempt"] + 1, facts["at"]
    spawned = stage.logs.first(rf"attempt {attempt} begins", after=start)
    restored = stage.logs.first(rf"attempt {attempt} continues after", after=start)
    stepped = stage.logs.first(r"first step of this process", after=start)
    figure = stage.outcome.figure
    figure("crash → attempt persisted", stage.watch.seen.get(f"attempt {attempt}", start) - start)
    figure("crash → trainers started in place", None if spawned is None else spawned.at - start)
    figure("crash → checkpoint verified and restored", None if restored is None else restored.at - start)
    figure("crash → first new step complete", None if stepped is None else stepped.at - start)
    figure("crash → both workers train, seen in status", facts["training_at"] - start)


def corruption(stage: Stage) -> Callable[[], None]:
    """One bit of tensor data flips in the newest checkpoint, then a restart is forced.

    Returns the control arm as a function to call later: plain Orbax is slow, and training might end before the next act.
    """
    stage.train_on()
    stage.say("one bit of the newest checkpoint flips, then a trainer crashes")
    run_folder = stage.training.run_folder
    with new_attempt(stage) as facts:
        processes.stop_trainers(stage.uid)  # prevent a newer checkpoint between the flip and the crash
        flip = damage.flip_newest(run_folder)
        damaged = damage.keep_aside(run_folder, flip, stage.training.output)
        stage.record.mark(
            "checkpoints", Kind.FAULT, f"flipped {flip} of attempt {flip.ref.attempt} step {flip.ref.step}"
        )
        stage.record.mark("worker 0", Kind.FAULT, "SIGKILL")
        processes.kill_trainer(stage.uid, 0)
        processes.continue_trainers(stage.uid)
    after, restored = facts["after"], facts["restored"]
    mine = [
        r
        for r in (after["checkpoint"].get("rejected") or [])
        if (r["attempt"], r["step"]) == (flip.ref.attempt, flip.ref.step)
    ]
    stage.outcome.claim("Holdfast refused the damaged checkpoint and named the file", any(flip.file in r["reason"] for r in mine),
                        mine[0]["reason"] if mine else "no rejection")  # fmt: skip
    older = (restored["attempt"], restored["step"]) < (flip.ref.attempt, flip.ref.step)
    stage.outcome.claim(
        "it restored the checkpoint before it", older, f"attempt {restored['attempt']} step {restored['step']}"
    )
    _lost(stage, "crash with a damaged checkpoint", facts)

    def control() -> None:
        plain = damage.load_with_plain_orbax(damaged, flip)
        stage.outcome.claim("control: plain Orbax loads the damaged checkpoint silently", plain.silent,
                            plain.raised or f"loaded {plain.digest_damaged[:12]}, true bytes {plain.digest_repaired[:12]}")  # fmt: skip

    return control


def operator_kills(stage: Stage) -> None:
    """The operator is killed before and after each write of one recovery."""
    stage.train_on()
    stage.say("a trainer crashes, and the operator is killed before and after each write of the recovery")
    restarts = stage.watch.status.get("restartsTotal", 0)
    with new_attempt(stage) as facts:
        stage.killer.armed = True
        stage.record.mark("worker 1", Kind.FAULT, "SIGKILL")
        processes.kill_trainer(stage.uid, 1)
    stage.killer.disarm()
    after, kills = facts["after"], len(stage.killer.killed)
    stage.outcome.claim("the operator was killed before and after writes of the recovery", kills >= 2, f"{kills} kills")
    once = after["attempt"] == facts["attempt"] + 1 and after.get("restartsTotal", 0) == restarts + 1
    stage.outcome.claim("the recovery completed once", once,
                        f"attempt {facts['attempt']} → {after['attempt']}, restarts {restarts} → {after.get('restartsTotal')}")  # fmt: skip
    stage.outcome.figures.append(Figure("operator kills in one recovery", str(kills), "; ".join(stage.killer.killed)))
    stage.outcome.figure("crash → first new step despite the kills", facts["training_at"] - facts["at"])
    _lost(stage, "crash with operator kills", facts)


def finish(stage: Stage) -> dict[str, Any]:
    """Wait until the job has succeeded."""
    stage.say("training continues to its end")
    status = stage.wait(lambda s: condition(s, "Succeeded") == "True", "completion", FINISH_SECONDS)
    stage.finished_at = stage.watch.seen["state Succeeded"]  # this may be before the end of the last act
    stage.record.mark("operator", Kind.GOOD, f"Succeeded at step {status['progress']['step']}")
    return status


def run_alone(rig: Rig, training: Training, say: Callable[[str], None], why: str) -> str:
    """Run a job to its end without faults. Returns its digest."""
    say(why)
    rig.apply(training)
    rig.wait_succeeded(training.name, timeout_seconds=FINISH_SECONDS)
    return digest(training.digest_file)


def digest(path: Path) -> str:
    """Read the digest of a training run."""
    return path.read_text().strip()


def _is_between_saves(stage: Stage, status: dict[str, Any]) -> bool:
    """Return whether, at the current pace, the newest checkpoint is some steps old and the next save is some steps away."""
    newest = (status.get("checkpoint") or {}).get("newest")
    pace = (status.get("progress") or {}).get("stepSeconds")
    if not newest or not pace:
        return False
    steps = (stage.record.now() - stage.watch.seen_committed(newest)) / pace
    return bool(UNSAVED_STEPS <= steps <= stage.training.every_steps - UNSAVED_STEPS)


def _restarts(status: dict[str, Any], cause: str) -> int:
    return int((status.get("restarts") or {}).get(cause, 0))


def _lost(stage: Stage, event: str, facts: dict[str, Any]) -> None:
    stage.outcome.figures.append(
        Figure(f"steps lost: {event}", str(facts["steps_lost"]), f"restored step {facts['restored']['step']}")
    )
