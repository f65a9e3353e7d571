"""Rule: the job fails where another attempt cannot help."""

from __future__ import annotations

from typing import Final

from holdfast_contract.exits import ExitCode
from holdfast_contract.reasons import Cause, Reason
from holdfast_operator.decide import attempts, causes
from holdfast_operator.decide.actions import StatusDecision
from holdfast_operator.decide.ending import active_seconds, fail
from holdfast_operator.decide.members import JobView

MESSAGE_CHARACTERS: Final = 512
"""How much of a trainer's last lines a condition shows; status.lastEnd.lastLines has more."""

_FATAL: Final = {
    int(ExitCode.NO_VALID_CHECKPOINT): Reason.NO_VALID_CHECKPOINT,
    int(ExitCode.FOREIGN_RUN): Reason.FOREIGN_CHECKPOINT_OWNER,
}


def fail_for_good(view: JobView) -> StatusDecision | None:
    """The job fails if its deadline has passed, no valid checkpoint is left, or its run belongs to another job."""
    limit = view.spec.active_deadline_seconds
    if limit is not None and active_seconds(view) >= limit:
        message = f"the job was active for longer than spec.activeDeadlineSeconds ({limit} s)"
        status = attempts.finish(view, Cause.USER_REQUEST, message=message)
        return fail(view, status, Reason.DEADLINE_EXCEEDED, message)
    if not view.status.active_attempt or view.preparing:
        return None
    for end in causes.ends(view):
        if end.code in _FATAL:
            status = attempts.finish(view, Cause.FAILURE, message=end.sentence, end=end)
            return fail(view, status, _FATAL[end.code], _last_sentence(end.last_lines) or end.sentence)
    return None


def _last_sentence(last_lines: str) -> str:
    """The end of a trainer's last lines, cut at a line, that fits into MESSAGE_CHARACTERS; at least the last line.

    Of a Python traceback, only what follows its last frame: the error itself.
    """
    lines = last_lines.strip().splitlines()
    frames = [i for i, line in enumerate(lines) if line.startswith('  File "')]
    if frames:
        error = (i for i in range(frames[-1] + 1, len(lines)) if not lines[i].startswith(" "))
        lines = lines[next(error, frames[-1]) :]
    while len(lines) > 1 and len("\n".join(lines)) > MESSAGE_CHARACTERS:
        lines.pop(0)
    return "\n".join(lines)[-MESSAGE_CHARACTERS:]
