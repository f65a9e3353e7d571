"""The API server accepts every TrainingJob in the README and the docs unchanged."""

import pytest
import yaml

from tests.support.docs.pages import ROOT, every_block


@pytest.mark.parametrize("source", every_block("yaml"))
def test_training_jobs_in_the_docs_are_accepted_by_the_api_server(source, cluster, namespace, tmp_path):
    documents = [d for d in yaml.safe_load_all(source) if isinstance(d, dict) and d.get("kind") == "TrainingJob"]
    if not documents:
        return  # not a job: chart values, a Prometheus rule, ...
    manifest = tmp_path / "job.yaml"
    manifest.write_text(yaml.safe_dump_all(documents))
    cluster.kubectl("apply", "--filename", str(ROOT / "crds"))
    cluster.kubectl("wait", "--for=condition=Established", "--timeout=30s", "--filename", str(ROOT / "crds"))
    cluster.kubectl("apply", "--dry-run=server", "--namespace", namespace, "--filename", str(manifest))
