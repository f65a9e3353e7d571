"""Every example in the README and the docs runs, or is accepted by the API server, as it stands."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
EXAMPLE_SECONDS = 100
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def _blocks(language):
    return [
        pytest.param(found[2], id=f"{page.name}:{page.read_text()[: found.start()].count(chr(10)) + 1}")
        for page in PAGES
        for found in _BLOCK.finditer(page.read_text())
        if found[1] == language
    ]


@pytest.mark.parametrize("source", _blocks("python"))
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

    source = next(found[2] for found in _BLOCK.finditer((ROOT / "README.md").read_text()) if found[1] == "python")
    (tmp_path / "train.py").write_text(source)
    environment = {**os.environ, "HOLDFAST_CHECKPOINT_PATH": str(tmp_path / "checkpoints"), "JAX_PLATFORMS": "cpu"}
    subprocess.run([sys.executable, "train.py"], env=environment, cwd=tmp_path, timeout=EXAMPLE_SECONDS, check=True)
    (run,) = (tmp_path / "checkpoints").iterdir()
    assert RunFolder(run).candidates()[0].step == 100


@pytest.mark.parametrize("source", _blocks("yaml"))
def test_training_jobs_in_the_docs_are_accepted_by_the_api_server(source, cluster, namespace, tmp_path):
    documents = [d for d in yaml.safe_load_all(source) if isinstance(d, dict) and d.get("kind") == "TrainingJob"]
    if not documents:
        return  # a fragment: values, a rule of Prometheus, ...
    manifest = tmp_path / "job.yaml"
    manifest.write_text(yaml.safe_dump_all(documents))
    cluster.kubectl("apply", "--filename", str(ROOT / "crds"))
    cluster.kubectl("wait", "--for=condition=Established", "--timeout=30s", "--filename", str(ROOT / "crds"))
    cluster.kubectl("apply", "--dry-run=server", "--namespace", namespace, "--filename", str(manifest))


def test_links_between_pages_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
