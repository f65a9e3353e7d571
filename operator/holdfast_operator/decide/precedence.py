"""The operator's decisions, in their order. Begin reading here.

The status of a job holds a few numbers: the newest attempt, the active attempt, the attempt in preparation, the open
save request. Each pass asks the rules in turn. The first rule with an answer decides the pass, in one of two ways:

    StatusDecision   the rule changes those numbers; the pass stores them and does nothing else
    Wait             nothing changes; no later rule is asked

Without a status decision, the pass brings about what the stored numbers say: ``effects`` derives pods, directives and
deletions from them. So an operator that dies between two requests loses nothing: the next pass continues from the status.

The life of a job (n is the number of an attempt):

    no attempt ──admit──► n trains ──crash, lost pod──► n+1 prepared ──all agents report──► n+1 trains ──► ...
                             │ └─notice: save; n+1 prepared while n trains; switch─────────────▲
                             └─completion, failure, suspension, deletion
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
    stop_for_deletion,  # the user deletes the job: save, stop, remove the finalizer
    stay_finished,  # a job that has succeeded or failed does not change any more
    complete,  # every worker finished training: the job has succeeded
    suspend,  # the user suspends or resumes the job
    fail_for_good,  # another attempt cannot help: the job has failed
    answer_notices,  # a preemption notice: save, prepare new pods, switch
    recover,  # an attempt has ended: name the cause, count it once, number the next attempt
    prepare,  # the next attempt begins once every worker's agent has reported
    admit,  # the first attempt: inspect the run's folder, check its owner
)
"""The first rule that answers decides the pass; see the files in ``rules``."""


def decide(observation: Observation, now: datetime) -> JobPlan:
    """The plan for one pass, given what is observed and the time. Pure: the same input gives the same plan."""
    observed = JobView.of(observation, now)
    reported = apply_reports(observed)
    view = observed.under(reported.status)
    for rule in PRECEDENCE:
        answer = rule(view)
        if isinstance(answer, StatusDecision):
            return _store(view, reported, answer)
        if isinstance(answer, Wait):
            return plan_effects(view, reported, answer.seconds)
    return plan_effects(view, reported, None)


def _store(view: JobView, reported: StatusDecision, decision: StatusDecision) -> JobPlan:
    """Store the decision. Nothing else happens in this pass; the next pass follows at once."""
    status = job_goodput.account(view, conditions.derive(view.under(decision.status), decision.status))
    return JobPlan(
        status=status, events=(*reported.events, *decision.events), counts=(*reported.counts, *decision.counts)
    )
