"""The watch's cache: versions are checked, what was read or written wakes nobody, and what was missed is found."""

from __future__ import annotations

from typing import Any

from holdfast_contract import keys
from holdfast_operator.gateway.kube import Listed, Versions
from holdfast_operator.watch.cache import WatchCache
from tests.support.cluster.manifests import training_job

KEY = ("ns", "train")
OWNER = {"uid": "j", "controller": True, "kind": keys.KIND, "name": "train", "apiVersion": keys.API_VERSION}


def job(version: int, uid: str = "j", **status: Any) -> dict[str, Any]:
    made = training_job("train", namespace="ns")
    made["metadata"] |= {
        "uid": uid,
        "resourceVersion": str(version),
        "generation": 1,
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "managedFields": [{"manager": "kubectl"}],
    }
    return made | ({"status": status} if status else {})


def pod(index: int, version: int, **spec: Any) -> dict[str, Any]:
    labels = {
        keys.LABEL_JOB_NAME: "train",
        keys.LABEL_JOB_UID: "j",
        keys.LABEL_REPLICA_INDEX: str(index),
        keys.LABEL_CREATED_IN_ATTEMPT: "0",
    }
    meta = {"namespace": "ns", "name": f"train-{index}-0", "uid": f"p{index}", "resourceVersion": str(version)}
    return {"metadata": {**meta, "labels": labels, "ownerReferences": [OWNER]}, "spec": spec, "status": {}}


def node(version: int, **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "n1", "uid": "n", "resourceVersion": str(version)}, "spec": spec, "status": {}}


def filled() -> WatchCache:
    cache = WatchCache()
    cache.job("ADDED", job(10))
    cache.pod("ADDED", pod(1, 12, nodeName="n1"))
    cache.pod("ADDED", pod(0, 11, nodeName="n1"))
    cache.node("ADDED", node(5))
    return cache


def names(cache: WatchCache) -> list[str]:
    found = cache.snapshot(*KEY)
    assert found is not None
    return [p.name for p in found.pods]


def test_a_job_with_its_pods_and_nodes_is_known() -> None:
    found = filled().snapshot(*KEY)
    assert found is not None
    assert [p.name for p in found.pods] == ["train-0-0", "train-1-0"]
    assert list(found.nodes) == ["n1"]
    assert found.raw["metadata"]["resourceVersion"] == "10"
    assert "managedFields" not in found.raw["metadata"]


def test_what_was_written_is_known_at_once_and_its_echo_wakes_nobody() -> None:
    cache = filled()
    cache.job_read(job(20, attempt=3))
    assert cache.job("MODIFIED", job(20, attempt=3)) == []
    assert cache.job("MODIFIED", job(15)) == [], "an older version never replaces a newer one"
    assert cache.attempt(*KEY) == 3
    assert cache.job("MODIFIED", job(21)) == [KEY], "somebody else's change wakes"


def test_a_live_list_of_pods_outweighs_older_events_and_keeps_newer_ones() -> None:
    cache = filled()
    cache.pods_read(*KEY, "j", Listed([pod(0, 11)], "30"))
    assert names(cache) == ["train-0-0"]
    assert cache.pod("MODIFIED", pod(1, 25)) == [], "the list of version 30 showed that it is gone"
    assert names(cache) == ["train-0-0"]
    assert cache.pod("ADDED", pod(1, 31)) == [KEY]
    cache.pods_read(*KEY, "j", Listed([pod(0, 11)], "29"))
    assert names(cache) == ["train-0-0", "train-1-0"], "an answer that came late"


def test_what_is_not_known_for_certain_is_read_live() -> None:
    cache = filled()
    cache.pod("MODIFIED", pod(0, 13, nodeName="n2"))
    assert cache.snapshot(*KEY) is None, "node n2 was never seen"
    cache = filled()
    cache.doubt(*KEY)
    assert cache.snapshot(*KEY) is None
    cache.trust(*KEY)
    assert cache.snapshot(*KEY) is not None
    cache.job("MODIFIED", {**job(11), "spec": {"replicas": 0}})
    assert cache.snapshot(*KEY) is None, "a spec that the models refuse"
    strange = job(12)
    strange["metadata"]["resourceVersion"] = "abc"
    cache = WatchCache()
    cache.job("ADDED", strange)
    assert cache.snapshot(*KEY) is None, "versions that cannot be compared"


def test_ghosts_after_a_gap_of_the_watch_are_found() -> None:
    cache = filled()
    current = {"p0": "11"}
    assert cache.compare_pods(Versions(current, {"p0": KEY}, "40")) == {KEY}
    assert cache.snapshot(*KEY) is None, "the next pass reads live"
    cache.trust(*KEY)
    assert names(cache) == ["train-0-0"]
    assert cache.compare_pods(Versions(current, {"p0": KEY}, "41")) == set()
    assert cache.compare_pods(Versions({"p0": "42"}, {"p0": KEY}, "43")) == {KEY}, "a change that was not delivered"
    assert cache.compare_pods(Versions({"p0": "11", "p7": "44"}, {"p0": KEY, "p7": KEY}, "45")) == {KEY}, "a new pod"


def test_ghosts_of_nodes_and_jobs_are_found() -> None:
    cache = filled()
    assert cache.compare_nodes(Versions({"n": "5"}, {}, "40")) == set()
    assert cache.compare_nodes(Versions({}, {}, "4")) == set(), "a list from before the node"
    assert cache.compare_nodes(Versions({"n": "6"}, {}, "40")) == {KEY}, "a change that was not delivered"
    assert cache.compare_nodes(Versions({}, {}, "40")) == {KEY}
    cache = filled()
    cache.replace_jobs(Listed([], "9"))
    assert cache.snapshot(*KEY) is not None, "a list from before the job"
    cache.replace_jobs(Listed([], "40"))
    assert cache.jobs() == []


def test_a_job_that_was_deleted_and_made_again_is_not_mistaken() -> None:
    cache = filled()
    cache.job("ADDED", job(50, uid="other"))
    assert names(cache) == []
    assert cache.job("DELETED", job(45)) == [KEY]
    assert cache.snapshot(*KEY) is not None, "the end of the one before does not remove it"


def test_a_node_wakes_its_jobs_for_a_notice_and_not_for_a_heartbeat() -> None:
    cache = filled()
    beat = node(6)
    beat["status"] = {"images": ["x"]}
    assert cache.node("MODIFIED", beat) == []
    assert cache.node("MODIFIED", node(7, unschedulable=True)) == [KEY]
    found = cache.snapshot(*KEY)
    assert found is not None
    assert found.nodes["n1"].unschedulable
    assert cache.node("DELETED", node(8)) == [KEY]
    assert cache.snapshot(*KEY) is None, "a missing node is asked for"


def test_a_node_that_one_job_has_read_still_wakes_the_others_on_it() -> None:
    cache = filled()
    notice = node(6, unschedulable=True)
    cache.node_read("n1", notice)
    assert cache.node("MODIFIED", notice) == [KEY]
    cache.node_read("n1", None)
    assert cache.node("DELETED", notice) == [KEY]
