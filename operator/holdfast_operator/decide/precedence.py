"""The operator's decisions, in order. Begin reading here.

A job is a row of numbers in its status. A rule that decides something writes it there and stops (a *status decision*):
the attempt that follows, the save that is asked for, the replacement in preparation. Pods, directives and deletions are
never decided: they follow from the stored numbers (``effects``). An operator that dies between two calls loses nothing;
the next pass goes on from what is stored.

    no attempt ──admit──► attempt n trains ──crash, lost pod──► n+1 prepared ──all agents there──► n+1 trains ...
                              │  └─notice: save, n+1 prepared while n trains on, switch──────────────▲
                              └─ completion, failure, suspension, deletion
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Final

from holdfast_operator.decide import conditions, job_goodput
from holdfast_operator.decide.actions import JobPlan, StatusDecision, Wait
from holdfast_operator.decide.effects import plan_effects
from holdfast_operator.decide.facts import Observation
from holdfast_operator.decide.members import JobView
from holdfast_operator.decide.reports import apply_reports
from holdfast_operator.decide.rules.admission import admit
from holdfast_operator.decide.rules.completion import complete, stay_finished
from holdfast_operator.decide.rules.deletion import stop_for_deletion
from holdfast_operator.decide.rules.failure import fail_for_good
from holdfast_operator.decide.rules.preemption import answer_notices
from holdfast_operator.decide.rules.preparation import prepare
from holdfast_operator.decide.rules.recovery import recover
from holdfast_operator.decide.rules.suspension import suspend

Rule = Callable[[JobView], StatusDecision | Wait | None]

PRECEDENCE: Final[tuple[Rule, ...]] = (
    stop_for_deletion,  # a job that is being deleted saves and goes, whatever its spec says
    stay_finished,  # what has succeeded or failed stays so
    complete,  # training reached its end: no later change can undo that
    suspend,  # the user wants the pods back, or gives them again
    fail_for_good,  # nothing that another attempt could mend
    answer_notices,  # a place is about to go: save, prepare, switch
    recover,  # an attempt has ended: name the cause, count it once, number the next
    prepare,  # the next attempt begins once every worker's agent has reported
    admit,  # the first attempt: look into the run's folder, settle whose it is
)
"""The first rule that answers decides this pass."""


def decide(observation: Observation, now: datetime) -> JobPlan:
    """What to do, given everything that is seen and the time. Pure: the same input gives the same plan."""
    seen = JobView.of(observation, now)
    reported = apply_reports(seen)
    view = seen.under(reported.status)
    for rule in PRECEDENCE:
        answer = rule(view)
        if isinstance(answer, StatusDecision):
            return _remember(view, reported, answer)
        if isinstance(answer, Wait):
            return plan_effects(view, reported, answer.seconds)
    return plan_effects(view, reported, None)


def _remember(view: JobView, reported: StatusDecision, decision: StatusDecision) -> JobPlan:
    """Remember the decision first. Nothing else happens in this pass; the next one follows at once."""
    status = job_goodput.account(view, conditions.derive(view.under(decision.status), decision.status))
    return JobPlan(
        status=status, events=(*reported.events, *decision.events), counts=(*reported.counts, *decision.counts)
    )
