"""Every example in the README and the docs runs as it stands, and every link leads somewhere."""

import os
import re
import subprocess
import sys

import pytest

from tests.support.docs.pages import PAGES, blocks, every_block

EXAMPLE_SECONDS = 100


@pytest.mark.parametrize("source", every_block("python"))
def test_python_example_runs_to_its_end(source, tmp_path):
    script = tmp_path / "example.py"
    script.write_text(source.replace("/tmp/", f"{tmp_path}/"))  # what a reader left there is not the test's
    environment = {**os.environ, "HOLDFAST_CHECKPOINT_PATH": str(tmp_path / "checkpoints"), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, str(script)],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=EXAMPLE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_readme_loop_leaves_a_checkpoint_of_its_last_step(tmp_path):
    from holdfast_contract.runfolder import RunFolder

    source = next(iter(blocks(PAGES[0], "python").values()))
    (tmp_path / "train.py").write_text(source)
    environment = {**os.environ, "HOLDFAST_CHECKPOINT_PATH": str(tmp_path / "checkpoints"), "JAX_PLATFORMS": "cpu"}
    subprocess.run([sys.executable, "train.py"], env=environment, cwd=tmp_path, timeout=EXAMPLE_SECONDS, check=True)
    (run,) = (tmp_path / "checkpoints").iterdir()
    assert RunFolder(run).candidates()[0].step == 100


def test_links_between_pages_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
