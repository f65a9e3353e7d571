"""Every Python example in the README and the docs runs unchanged, and every link between pages has a target."""

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
    script.write_text(
        source.replace("/tmp/", f"{tmp_path}/")
    )  # keep the test out of files that a reader may have in /tmp
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


@pytest.fixture(scope="module")
def readme_loop(tmp_path_factory):
    """README's loop, run once: its checkpoint folder and what it printed."""
    folder = tmp_path_factory.mktemp("readme")
    (folder / "train.py").write_text(next(iter(blocks(PAGES[0], "python").values())))
    checkpoints = folder / "checkpoints"
    environment = {**os.environ, "HOLDFAST_CHECKPOINT_PATH": str(checkpoints), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "train.py"],
        env=environment,
        cwd=folder,
        stdout=subprocess.PIPE,
        text=True,
        timeout=EXAMPLE_SECONDS,
        check=True,
    )
    return checkpoints, done.stdout


def test_readme_loop_leaves_a_checkpoint_of_its_last_step(readme_loop):
    from holdfast_contract.runfolder import RunFolder

    (run,) = readme_loop[0].iterdir()
    assert RunFolder(run).candidates()[0].step == 100


def test_readme_loop_prints_the_output_that_the_readme_shows(readme_loop):
    shown = next(iter(blocks(PAGES[0], "text").values()))
    assert readme_loop[1] == shown


def test_links_between_pages_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
