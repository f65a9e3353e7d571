"""Pods that become unusable before their attempt begins: waits, nodes, budgets, and what the others keep."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast_contract.reasons import Condition
from holdfast_operator.decide import backoff, conditions
from holdfast_operator.decide.actions import CreatePod
from holdfast_operator.decide.children import ControlSettings, pod
from holdfast_operator.decide.facts import Taint
from tests.support.operator.decide_parts import START, spec
from tests.support.operator.decide_world import World

REJECTIONS = ["UnexpectedAdmissionError", "Evicted", "OutOfcpu", "OutOfnvidia.com/gpu", "NodeAffinity"]


def only(world: World, *names: str) -> None:
    """New pods find a place on these nodes only."""
    for name, node in world.nodes.items():
        taints = () if name in names else (Taint("full", "", "NoSchedule"),)
        world.nodes[name] = replace(node, taints=taints)


@pytest.mark.parametrize("why", REJECTIONS)
def test_kubelet_that_admits_nothing_for_minutes_costs_few_pods_and_no_budget(why: str) -> None:
    world = World(spec=spec(recovery={"maxFailures": 0, "noProgressLimit": 1}))
    only(world, "a")
    world.rejects["a"] = why
    world.run(120)
    assert len(world.created) <= 2 * 6
    assert len(world.events) <= 12
    assert not conditions.finished(world.status)
    assert world.status.failure_times == ()
    shown = conditions.get(world.status, Condition.RUNNING)
    assert shown is not None
    assert why in shown.message
    assert "the next one is created not before" in shown.message
    world.rejects.clear()
    world.settle(world.training, passes=400)
    assert world.status.setbacks == ()
    assert world.status.restarts == {}


def test_next_pod_prefers_another_node_than_the_one_that_rejected_it() -> None:
    world = World()
    world.rejects["a"] = "UnexpectedAdmissionError"
    world.settle(world.training)
    assert len(world.created) == 3
    assert "a" not in {world.node_of(0), world.node_of(1)}
    assert world.now - START < timedelta(seconds=8)


def test_broken_replacement_in_a_move_waits_and_the_others_keep_theirs() -> None:
    world = World(spec=spec(replicas=3))
    world.nodes |= {name: replace(world.nodes["a"], name=name) for name in ("d", "e", "f")}
    only(world, "a", "b", "c")
    world.settle(world.training)
    nodes = {i: world.node_of(i) for i in range(3)}
    only(world, "d", "e", "f")
    world.rejects |= {"e": "Evicted", "f": "Evicted"}
    for index in range(3):
        world.taint(nodes[index], "example.com/leaving")
    world.set_spec(
        preemption=spec(
            preemption={"notices": [{"name": "x", "taint": {"key": "example.com/leaving"}, "deadlineSeconds": 3600}]}
        ).preemption
    )
    world.settle(lambda: world.status.transition is not None)
    world.run(5)
    ready = [p.name for p in world.pods.values() if p.node == "d"]
    assert ready
    world.run(120)
    assert len(world.created) <= 3 + 3 + 2 * 6
    assert world.training(), "the active attempt trains meanwhile"
    assert set(ready) <= set(world.pods), "a ready replacement is kept"
    shown = conditions.get(world.status, Condition.PREEMPTED)
    assert shown is not None
    assert "Evicted on node" in shown.message
    world.rejects.clear()
    world.settle(lambda: world.status.restarts_total == 1 and world.training(), passes=500)
    assert set(ready) <= set(world.pods), "a ready replacement becomes the worker"
    assert world.status.restarts == {"Preemption": 1}
    assert world.status.goodput.steps_lost == 0


@given(seed=st.text(max_size=20), failures=st.integers(0, 10_000))
def test_waits_grow_to_a_cap_and_repeat_exactly(seed: str, failures: int) -> None:
    seconds = backoff.wait_seconds(seed, failures)
    assert seconds == backoff.wait_seconds(seed, failures)
    assert 0 <= seconds <= backoff.LONGEST_SECONDS
    if failures < 2:
        assert seconds == 0
    else:
        plain = min(backoff.LONGEST_SECONDS, backoff.FIRST_SECONDS * 2.0 ** min(failures - 2, 10))
        assert plain <= seconds <= plain * (1 + backoff.JITTER)


def test_shunned_node_is_a_preference_beside_the_users_own() -> None:
    preferred = "preferredDuringSchedulingIgnoredDuringExecution"
    mine = {"weight": 1, "preference": {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["x"]}]}}
    template = spec().template.to_manifest()
    template["spec"]["affinity"] = {"nodeAffinity": {preferred: [mine]}}
    world = World(spec=spec(template=template))
    job = world.observe().job
    manifest = pod(job, CreatePod(0, 1, shun_nodes=("a",)), ControlSettings("https://h", "pem"))
    terms = manifest["spec"]["affinity"]["nodeAffinity"][preferred]
    assert terms[0] == mine
    assert terms[1]["preference"]["matchFields"] == [{"key": "metadata.name", "operator": "NotIn", "values": ["a"]}]
