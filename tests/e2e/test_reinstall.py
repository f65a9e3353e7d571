"""The release goes and comes back below a running job, and ``helm test`` finds what agents find."""

from __future__ import annotations

from collections.abc import Callable

from localkube import helm_install
from tests.support.cluster.chart import Helm
from tests.support.cluster.job import Job, Script
from tests.support.cluster.world import HELM_SECONDS, HOLDFAST, RELEASE, SYSTEM, World

JobMaker = Callable[..., Job]
MORE_STEPS = 20


def test_a_running_job_outlives_an_uninstallation_and_trusts_the_next_operator(
    world: World, make_job: JobMaker
) -> None:
    job = make_job(Script.tiny(steps=5000), every_steps=100).apply()
    step, pods = job.until_step(5).step, job.pod_uids()
    helm = Helm(world.cluster.kubeconfig)
    # No operator is left that could ask for something while its permissions go; test_rbac allows no refused request.
    world.scale(0)
    gone = helm.run("uninstall", RELEASE, "--namespace", SYSTEM, "--wait")
    helm_install.install(world.cluster, HOLDFAST, deadline_seconds=HELM_SECONDS)
    assert gone.returncode == 0, gone.stderr
    status = job.until_step(step + MORE_STEPS)
    assert (status.attempt, status.restarts, job.pod_uids()) == (1, {}, pods), job.describe()


def test_helm_test_tells_an_operator_from_none(world: World) -> None:
    helm = Helm(world.cluster.kubeconfig)
    command = ("test", RELEASE, "--namespace", SYSTEM, f"--timeout={HELM_SECONDS}s")
    with world.operator_away():
        assert helm.run(*command).returncode != 0
    done = helm.run(*command, "--logs")
    assert done.returncode == 0, done.stderr + done.stdout
