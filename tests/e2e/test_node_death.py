"""A node dies without a word: nobody reports, the control plane notices, the worker goes on elsewhere."""

from __future__ import annotations

from collections.abc import Callable

from holdfast_contract.reasons import Cause
from tests.support.cluster.job import Job, Script
from tests.support.cluster.world import NODES, World
from tests.support.polling import until

JobMaker = Callable[..., Job]
NOTICED_SECONDS = 90.0
"""Until the control plane calls the node unready (12 s here), the operator calls it lost, and the attempt begins."""


def test_the_worker_of_a_dead_node_goes_on_elsewhere_from_the_newest_checkpoint(
    world: World, make_job: JobMaker, undisturbed: Callable[[int], str]
) -> None:
    # One worker per node, and the operator on the third.
    doomed, other = [node for node in NODES if node not in world.nodes_of_operator()][:2]
    apart = {
        "podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [
                {
                    "topologyKey": "kubernetes.io/hostname",
                    "labelSelector": {"matchLabels": {"holdfast.dev/job-name": "job"}},
                }
            ]
        }
    }
    job = make_job(Script.tiny(steps=120), every_steps=10, pod={"affinity": apart}).apply()
    job.until(lambda s: s.checkpoint("newest") >= (1, 10), "a checkpoint", 60.0)
    before = job.pods()
    places = {pod["spec"]["nodeName"]: index for index, pod in before.items()}
    node = doomed if doomed in places else other
    world.cluster.nodes.kill(node)
    try:
        status = job.until(lambda s: s.active == 2, "the next attempt begins", NOTICED_SECONDS)
        index = places[node]
        assert sum(status.restarts.values()) == 1
        assert set(status.restarts) <= {Cause.NODE_LOST, Cause.POD_LOST}
        status = job.until_trains(2)
        after = job.pods()
        assert after[index]["spec"]["nodeName"] != node
        assert after[index]["metadata"]["uid"] != before[index]["metadata"]["uid"]
        assert after[1 - index]["metadata"]["uid"] == before[1 - index]["metadata"]["uid"]
        assert status.checkpoint("restored")[1] % 10 == 0
        assert status.raw["failureTimes"] == []
        assert job.digest() == undisturbed(120)
    finally:
        world.cluster.nodes.restart(node)
        until(lambda: _ready(world, node), 60.0, f"{node} is back")


def _ready(world: World, node: str) -> bool:
    path = '{.status.conditions[?(@.type=="Ready")].status}'
    return world.kubectl("get", "node", node, "-o", f"jsonpath={path}") == "True"
