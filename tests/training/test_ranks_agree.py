"""Ranks agree on every save that does not follow from the step number: real processes, real collectives."""

from __future__ import annotations

import re
from pathlib import Path

from holdfast_contract.keys import ENV_CHECKPOINT_POLICY
from holdfast_contract.reasons import SaveOutcome
from holdfast_contract.runfolder import RunFolder
from tests.support.training.ranks import world


def test_twenty_requests_in_a_row_save_one_step_on_both_ranks(tmp_path: Path) -> None:
    requests = 20
    with world(tmp_path, "--steps", "100000", "--step-seconds", "0.002", agents=True) as ranks:
        ranks[0].wait_for(r"step 20\n")
        answers = []
        for number in range(requests):
            teller = ranks[number % 2]  # only one rank hears of it; the other learns of it by the agreement
            assert teller.agent is not None
            teller.agent.save(f"request-{number}", 20.0)
            reports = [rank.agent.outcome(f"request-{number}") for rank in ranks.ranks if rank.agent]
            answers.append(reports)
        teller.agent.save("last", 20.0, stop=True)
        assert ranks.codes() == [80, 80]
        output = ranks[0].output
    for first, second in answers:
        assert first.outcome in {SaveOutcome.COMMITTED, SaveOutcome.FRESH}
        assert first.checkpoint == second.checkpoint
    steps = [first.checkpoint.step for first, _ in answers if first.checkpoint]
    assert steps == sorted(set(steps))
    assert "abandoned" not in output
    assert len(re.findall(r"request last: save", output)) == 1


def test_saves_by_the_clock_are_agreed_on(tmp_path: Path) -> None:
    policy = {ENV_CHECKPOINT_POLICY: '{"every": {"seconds": 0.4}, "keep": {"latest": 50}}'}
    with world(tmp_path, "--steps", "150", "--step-seconds", "0.02", **policy) as ranks:
        assert ranks.codes() == [0, 0]
        committed = [re.findall(r"step (\d+) is committed", rank.output) for rank in ranks.ranks]
    assert committed[0] == committed[1]
    assert committed[0][-1] == "150"
    assert len(committed[0]) >= 4
    assert [str(ref.step) for ref in reversed(RunFolder(tmp_path / "run").candidates())] == committed[0]


def test_one_rank_may_ask_for_a_save_and_all_make_it(tmp_path: Path) -> None:
    program = Path(__file__).parents[1] / "support" / "training" / "asking_train.py"
    with world(tmp_path, "1", "3", program=program) as ranks:
        assert ranks.codes() == [0, 0]
        answers = [int(step) for step in re.findall(r"answer (\d+)", ranks[1].output)]
        assert "answer" not in ranks[0].output
    assert len(answers) == 3
    candidates = RunFolder(tmp_path / "run").survey().found
    assert set(answers) <= {found.ref.step for found in candidates}
    assert {found.manifest.process_count for found in candidates} == {2}


def test_a_request_that_cannot_be_met_is_too_late_and_may_still_stop(tmp_path: Path) -> None:
    with world(tmp_path, "--steps", "100000", "--step-seconds", "0.01", agents=True) as ranks:
        first, second = (rank.agent for rank in ranks.ranks)
        assert first is not None
        assert second is not None
        first.save("in-time", 20.0)
        saved = second.outcome("in-time")
        assert saved.outcome is SaveOutcome.COMMITTED
        assert saved.checkpoint is not None
        held = saved.checkpoint.step
        # While no further step is complete the checkpoint that is there would be the answer.
        first.wait_for(lambda u: u.progress is not None and u.progress.last_completed_step > held)
        first.save("late", 0.001)
        assert second.outcome("late").outcome is SaveOutcome.TOO_LATE
        assert "s are left" in first.outcome("late").reason
        second.save("late-stop", 0.001, stop=True)
        assert ranks.codes() == [81, 81]
    assert RunFolder(tmp_path / "run").candidates() == (saved.checkpoint,)
