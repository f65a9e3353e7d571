"""A step that failed costs the report its metrics, and nothing else."""

from __future__ import annotations

import logging
from pathlib import Path

import jax.numpy as jnp
import pytest

from holdfast.training.agent_client import AgentClient
from holdfast.training.progress import Steps
from holdfast_contract.local import TrainerUpdate
from tests.support.agent.agent_socket import AgentSocket
from tests.support.polling import until


def test_the_report_goes_on_without_the_metrics_of_a_failed_step() -> None:
    """A deleted array stands for one whose computation failed: both raise when they are read."""
    loss = jnp.float32(1)
    loss.delete()
    with pytest.raises(RuntimeError, match="deleted"):
        float(loss)
    steps = Steps(lambda step: None)
    steps.watch(["loss"])
    steps.start_at(4)
    steps.add(5, [loss], {"loss": loss, "rate": 0.5})
    report = steps.report()
    assert report is not None
    assert (report.last_completed_step, report.metrics) == (5, {"rate": 0.5})
    assert steps.recent() == {"loss": ()}


def test_a_report_that_cannot_be_gathered_keeps_the_connection_and_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[int] = []

    def update() -> TrainerUpdate:
        asked.append(1)
        if len(asked) < 5:
            raise RuntimeError("the peer is gone")
        return TrainerUpdate()

    agent = AgentSocket(tmp_path / "agent.sock")
    client = AgentClient(agent.path, 1, update=update, command=lambda command: None)
    client.start()
    try:
        until(lambda: (client.notify(), agent.updates)[1], 30, "an update")
        assert agent.connections == 1
    finally:
        client.close()
        agent.close()
    said = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert len(said) == 1
    assert "the peer is gone" in str(said[0].exc_text)
