"""A node listens where its Services are and nowhere else, in whatever order and however close the changes come."""

import asyncio
import logging
from typing import Any

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localkube.node.api import Access
from localkube.node.services import Services

Json = dict[str, Any]
NAMESPACE = "test"
NAMES = ("one", "two")
FIRST_PORT = 20801

# A Service comes with some ports or goes; a pod behind it becomes ready, not ready, or goes.
service_changes = st.tuples(st.sampled_from(NAMES), st.none() | st.sets(st.integers(0, 2), min_size=1))
pod_changes = st.tuples(st.sampled_from(NAMES), st.sampled_from([None, False, True]))
changes = st.lists(st.one_of(st.tuples(st.just("service"), service_changes), st.tuples(st.just("pod"), pod_changes)))


def service(name: str, ports: set[int]) -> Json:
    return {
        "metadata": {"uid": f"service-{name}", "namespace": NAMESPACE, "name": name},
        "spec": {"selector": {"app": name}, "ports": [{"port": FIRST_PORT + port} for port in sorted(ports)]},
    }


def pod(name: str, *, ready: bool) -> Json:
    condition = {"type": "Ready", "status": str(ready)}
    return {
        "metadata": {"uid": f"pod-{name}", "namespace": NAMESPACE, "name": name, "labels": {"app": name}},
        "spec": {"containers": []},
        "status": {"podIP": "127.0.0.1", "conditions": [condition]},
    }


def listening() -> set[tuple[str, int]]:
    """Where this process accepts connections on addresses of Services."""
    ports = range(FIRST_PORT, FIRST_PORT + 3)
    found = [c.laddr for c in psutil.Process().net_connections("tcp4") if c.status == psutil.CONN_LISTEN]
    return {(address.ip, address.port) for address in found if address.port in ports}


class Model:
    """What the changes mean, one after the other."""

    def __init__(self) -> None:
        self.ports: dict[str, set[int]] = {}
        self.ready: dict[str, bool] = {}

    def take(self, services: Services, kind: str, name: str, value: Any) -> Any:
        """Note a change and return the node's work on it, not yet begun."""
        known: dict[str, Any] = self.ports if kind == "service" else self.ready
        old = known.get(name)
        gone = value is None
        if gone:
            known.pop(name, None)
            value = old if old is not None else ({0} if kind == "service" else False)
        else:
            known[name] = value
        event = "DELETED" if gone else "MODIFIED" if old is not None else "ADDED"
        if kind == "service":
            return services.on_service(event, service(name, value))
        return services.on_pod(event, pod(name, ready=value))

    def expected(self, hosts: str) -> set[tuple[str, int]]:
        """Where the node must listen, by the addresses that it tells its pods."""
        lines = [line.split() for line in hosts.splitlines()]
        addresses = {name: address for address, *names in lines for name in names if name in NAMES}
        assert addresses.keys() == self.ports.keys()
        return {(addresses[name], FIRST_PORT + port) for name in addresses if self.ready.get(name)
                for port in self.ports[name]}  # fmt: skip


async def play(steps: list[tuple[str, tuple[str, Any]]]) -> None:
    """All changes at once, as two watches deliver them; then everything goes, so that nothing stays open."""
    services, model = Services(Access("https://127.0.0.1:1", ssl=False, token=None), lambda: None), Model()
    await asyncio.gather(*[model.take(services, kind, name, value) for kind, (name, value) in steps])
    assert listening() == model.expected(services.hosts_text(NAMESPACE))
    await asyncio.gather(*[model.take(services, "service", name, None) for name in list(model.ports)])
    assert listening() == set()


@settings(deadline=None, max_examples=60)
@given(steps=changes)
def test_changes_at_the_same_time_leave_what_they_would_one_after_the_other(
    steps: list[tuple[str, tuple[str, Any]]],
) -> None:
    asyncio.run(play(steps))


def test_a_service_that_goes_while_its_port_is_being_opened_leaves_no_open_port(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        asyncio.run(play([("pod", ("one", True)), ("service", ("one", {0})), ("service", ("one", None))]))
        asyncio.run(play([("pod", ("one", True)), ("service", ("one", {0})), ("service", ("one", {0}))]))
    assert caplog.messages == []
