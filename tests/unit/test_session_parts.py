"""The session's parts that need no world: import, surroundings, accounting, data positions, exit codes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.distributed.world import World
from holdfast.errors import ConfigurationError, NoValidCheckpoint, PeerLost, RestoreError
from holdfast.policies.save_rules import every_steps
from holdfast.state import data_position
from holdfast.training.config import SessionArguments, resolve_config
from holdfast.training.goodput import GoodputAccountant
from holdfast.training.shutdown import exit_code_of
from holdfast_contract.exits import ExitCode
from holdfast_contract.manifest import CheckpointRef
from holdfast_contract.reasons import Bucket

POD = {
    "HOLDFAST_CHECKPOINT_PATH": "/checkpoints",
    "HOLDFAST_RUN": "char-lm",
    "HOLDFAST_JOB_UID": "uid",
    "HOLDFAST_JOB_NAMESPACE": "ml",
    "HOLDFAST_JOB_NAME": "lm",
    "HOLDFAST_REPLICAS": "2",
    "HOLDFAST_PROCESS_INDEX": "1",
    "HOLDFAST_COORDINATOR": "10.0.0.7:8477",
    "HOLDFAST_POD_IP": "10.0.0.8",
    "HOLDFAST_ATTEMPT": "3",
    "HOLDFAST_PIN": '{"attempt": 2, "step": 50, "digest": "d"}',
    "HOLDFAST_CHECKPOINT_POLICY": '{"every": {"steps": 50}}',
}


def test_a_home_folder_that_nobody_knows_is_refused_by_name() -> None:
    with pytest.raises(ConfigurationError, match="path: found '~nobody-at-all/run', allowed: a path without '~'"):
        resolve_config(SessionArguments(path="~nobody-at-all/run"), {})


def test_a_pod_says_everything() -> None:
    where = resolve_config(SessionArguments(), POD)
    assert where.folder == Path("/checkpoints/char-lm")
    assert where.world == World(2, 1, "10.0.0.7:8477", "10.0.0.8:8477")
    assert where.attempt == 3
    assert where.pin == CheckpointRef(2, 50, "d")
    assert where.every == every_steps(50)
    assert where.owner(3).job_uid == "uid"
    assert not where.create_path


def test_an_argument_wins_over_the_environment() -> None:
    where = resolve_config(SessionArguments(path="/elsewhere", run="other", every=every_steps(7)), POD)
    assert where.folder == Path("/elsewhere/other")
    assert where.every == every_steps(7)


def test_pins() -> None:
    assert resolve_config(SessionArguments(), POD | {"HOLDFAST_PIN": "none"}).pin is None
    assert resolve_config(SessionArguments(path="/p"), {}).pin == "any"


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"HOLDFAST_CHECKPOINT_PATH": ""}, "`path` is required but not set: pass session(path="),
        ({"HOLDFAST_CHECKPOINT_PATH": "gs://bucket"}, "path: found 'gs://bucket'"),
        ({"HOLDFAST_RUN": "../x"}, "run: found '../x'"),
        ({"HOLDFAST_REPLICAS": "two"}, "HOLDFAST_REPLICAS: found 'two', allowed: a whole number of 1 or more"),
        ({"HOLDFAST_PROCESS_INDEX": "2"}, "world.process_index: found 2, allowed: 0 to 1"),
        ({"HOLDFAST_PROCESS_INDEX": ""}, "`HOLDFAST_PROCESS_INDEX` is required but not set; allowed: 0 to 1"),
        ({"HOLDFAST_COORDINATOR": "nowhere"}, "world.coordinator: found 'nowhere', allowed: host:port"),
        ({"HOLDFAST_ATTEMPT": "0"}, "HOLDFAST_ATTEMPT: found '0'"),
        ({"HOLDFAST_PIN": "{}"}, "HOLDFAST_PIN: `CheckpointRef.attempt` is required but not set"),
        ({"HOLDFAST_CHECKPOINT_POLICY": '{"every": {"steps": -1}}'}, "every_steps: found -1"),
    ],
)
def test_wrong_surroundings_are_refused_by_name(change: dict[str, str], named: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        resolve_config(SessionArguments(), POD | change)
    assert named in str(caught.value)


@given(moves=st.lists(st.tuples(st.sampled_from(list(Bucket)), st.floats(0, 1e4), st.booleans()), max_size=30))
def test_buckets_add_up_to_the_age_of_the_process(moves: list[tuple[Bucket, float, bool]]) -> None:
    now = 100.0
    accountant = GoodputAccountant(age_seconds=7.0, clock=lambda: now)
    for bucket, seconds, inside in moves:
        if inside:
            with accountant.within(bucket):
                now += seconds
        else:
            accountant.enter_phase(bucket)
            now += seconds
    assert sum(accountant.seconds().values()) == pytest.approx(now - 100.0 + 7.0)


def test_seconds_within_a_bucket_are_not_the_phases() -> None:
    now = 0.0
    accountant = GoodputAccountant(age_seconds=1.0, clock=lambda: now)
    now = 2.0
    with accountant.within(Bucket.SAVE_STALL):
        accountant.enter_phase(Bucket.PRODUCTIVE)
        now = 5.0
    now = 9.0
    assert accountant.seconds() == {"startup": 3.0, "save-stall": 3.0, "productive": 4.0}


class Iterator:
    """Anything that can tell and take its state."""

    def __init__(self, state: Any) -> None:
        self.state = state

    def get_state(self) -> Any:
        return self.state

    def set_state(self, state: Any) -> None:
        self.state = state


@given(
    state=st.binary()
    | st.recursive(
        st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False, allow_infinity=False),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=10,
    )
)
def test_a_data_position_comes_back_as_it_was(state: Any) -> None:
    stored = data_position.capture(Iterator(state))
    fresh = Iterator("elsewhere")
    data_position.reinstate(fresh, stored, checkpoint="c")
    assert fresh.state == state
    assert type(fresh.state) is type(state)


@pytest.mark.parametrize("state", [object(), {1: "a"}, (1, 2), float("nan")])
def test_a_data_position_that_json_would_change_is_refused(state: Any) -> None:
    with pytest.raises(TypeError, match=r"data.get_state\(\): found"):
        data_position.capture(Iterator(state))


def test_data_on_one_side_only_is_an_error() -> None:
    with pytest.raises(RestoreError, match="called without data"):
        data_position.reinstate(None, b"{}", checkpoint="c")
    with pytest.raises(RestoreError, match="holds no data position"):
        data_position.reinstate(Iterator(1), None, checkpoint="c")
    with pytest.raises(TypeError, match="data: found int"):
        data_position.require_iterator(3)


def test_every_exception_has_its_code() -> None:
    assert exit_code_of(RuntimeError("mine")) == 1
    assert exit_code_of(SystemExit(7)) == 7
    assert exit_code_of(SystemExit()) == 0
    assert exit_code_of(SystemExit("words")) == 1
    assert exit_code_of(KeyboardInterrupt()) == 130
    assert exit_code_of(NoValidCheckpoint(Path("/x"), [])) == ExitCode.NO_VALID_CHECKPOINT
    assert exit_code_of(PeerLost("a vote", limit_seconds=1.0)) == ExitCode.PEER_LOST
    assert exit_code_of(ConfigurationError("x")) == ExitCode.USAGE


def test_an_error_of_jax_that_tells_of_a_peer_is_a_lost_peer() -> None:
    import jax

    gloo = jax.errors.JaxRuntimeError("UNKNOWN: Gloo all-reduce failed: Connection reset by peer")
    assert exit_code_of(gloo) == ExitCode.PEER_LOST
    assert exit_code_of(jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory")) == 1
    assert exit_code_of(RuntimeError("gloo is my cat")) == 1
