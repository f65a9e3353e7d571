"""The operator's decisions, in order. Begin reading here.

A job is a row of numbers in its status. A rule that decides something writes it there and stops (a *turn*): the attempt
that follows, the save that was asked for, the move in preparation. Pods, directives and deletions are never decided:
they follow from the stored numbers (``carry``), so whoever dies between two calls is continued by the next pass.

    no attempt ──admit──► attempt n trains ──crash, lost pod──► n+1 prepared ──all agents there──► n+1 trains ...
                              │  └─notice: save, n+1 prepared while n trains on, switch──────────────▲
                              └─ completion, failure, suspension, deletion
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Final

from holdfast_operator.decide import conditions, goodput
from holdfast_operator.decide.actions import Plan, Turn, Wait
from holdfast_operator.decide.admission import admit
from holdfast_operator.decide.carry import carry_out
from holdfast_operator.decide.facts import Observation
from holdfast_operator.decide.learn import learn
from holdfast_operator.decide.lifecycle import complete, fail_for_good, rest_if_finished, stop_for_deletion, suspend
from holdfast_operator.decide.members import View
from holdfast_operator.decide.moves import answer_notices
from holdfast_operator.decide.recovery import prepare, recover

Rule = Callable[[View], Turn | Wait | None]

PRECEDENCE: Final[tuple[Rule, ...]] = (
    stop_for_deletion,  # a job that is being deleted saves and goes, whatever else it wanted
    rest_if_finished,  # what has succeeded or failed stays so
    complete,  # training reached its end: no later wish can undo that
    suspend,  # the user wants the pods back, or gives them again
    fail_for_good,  # nothing that another attempt could mend
    answer_notices,  # a place is about to go: save, prepare, switch
    recover,  # an attempt has ended: name the cause, count it once, number the next
    prepare,  # the next attempt begins once every worker's agent has spoken
    admit,  # the first attempt: look into the run's folder, settle whose it is
)
"""The first rule that has something to say decides this pass."""


def decide(observation: Observation, now: datetime) -> Plan:
    """What to do, given everything that is seen and the time. Pure: the same input gives the same plan."""
    seen = View.of(observation, now)
    learned = learn(seen)
    view = seen.under(learned.status)
    for rule in PRECEDENCE:
        answer = rule(view)
        if isinstance(answer, Turn):
            return _turn(view, learned, answer)
        if isinstance(answer, Wait):
            return carry_out(view, learned, answer.seconds)
    return carry_out(view, learned, None)


def _turn(view: View, learned: Turn, turn: Turn) -> Plan:
    """Remember the decision first. Nothing else happens in this pass; the next one follows at once."""
    status = goodput.account(view, conditions.derive(view.under(turn.status), turn.status))
    return Plan(status=status, events=(*learned.events, *turn.events), counts=(*learned.counts, *turn.counts))
