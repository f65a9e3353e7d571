"""Agent and library under a UID that no passwd file knows, without HOME, where only the job's own folders can be written."""

from __future__ import annotations

import sys
from pathlib import Path

from holdfast_contract.exits import ExitCode
from holdfast_contract.runfolder import RunFolder
from holdfast_contract.sync import Action, Directive
from tests.support.agent.rig import AgentRig
from tests.support.cluster import any_user
from tests.support.docs.pages import PAGES, blocks


def test_the_readme_loop_trains_under_any_uid(rig: AgentRig) -> None:
    any_user.demand()
    script = rig.folder / "train.py"
    script.write_text(next(iter(blocks(PAGES[0], "python").values())))
    rig.wrapper = tuple(any_user.command(rig.folder))
    rig.start_command([sys.executable, str(script)], JAX_PLATFORMS="cpu")
    rig.run_attempt(1)
    rig.wait_output("the trainer ended with code 0", 90)
    rig.operator.direct(Directive(Action.EXIT, 1, why="the job has succeeded"))
    assert rig.exit_code() == ExitCode.DONE
    assert RunFolder(Path(rig.storage, "a-run")).candidates()[0].step == 100
