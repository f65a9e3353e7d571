"""Prometheus metrics, in a registry of their own. Their names come from the contract.

A job's series are made at each scrape from the jobs that exist then, so they vanish with the job.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.registry import Collector

from holdfast_contract.reasons import Metric
from holdfast_operator.decide.actions import Count

log = logging.getLogger(__name__)

LiveStep = Callable[[str, str], int | None]
"""The last completed step of a job as its agents report it now; None if none does. Called from the scraping thread."""
Jobs = Callable[[], Iterable[Mapping[str, Any]]]
"""The live jobs as the API server has them; called from the scraping thread."""

_COUNTERS: Final[dict[Metric, tuple[str, tuple[str, ...]]]] = {
    Metric.RECONCILES: ("Reconcile passes.", ("result",)),
    Metric.RESTARTS: ("Attempts that ended and were followed by another attempt.", ("cause",)),
    Metric.PREEMPTION_SAVES: ("Saves requested for a preemption notice.", ("outcome",)),
    Metric.CHECKPOINTS_REJECTED: ("Checkpoints rejected as damaged or foreign.", ()),
    Metric.STEPS_LOST: ("Steps repeated because of a restart.", ()),
    Metric.SYNC_REQUESTS: ("Requests of agents, by HTTP status.", ("code",)),
}
_HISTOGRAMS: Final[dict[Metric, tuple[str, tuple[float, ...]]]] = {
    Metric.RECONCILE_SECONDS: (
        "Duration of a reconcile pass.",
        (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 60),
    ),
    Metric.PREEMPTION_SECONDS_TO_SPARE: (
        "Seconds from a committed save to the notice's deadline; negative if the save was late.",
        (-30, -10, 0, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 3600),
    ),
}


class OperatorMetrics:
    """The operator's counters and the scrape-time view of its jobs."""

    def __init__(self, jobs: Jobs = tuple, live_step: LiveStep = lambda _namespace, _name: None) -> None:
        self.registry = CollectorRegistry()
        self._series: dict[Metric, MetricWrapperBase] = {}
        for name, (text, labels) in _COUNTERS.items():
            self._series[name] = Counter(name.value.removesuffix("_total"), text, labels, registry=self.registry)
        for name, (text, buckets) in _HISTOGRAMS.items():
            self._series[name] = Histogram(name.value, text, buckets=buckets, registry=self.registry)
        self._leader = Gauge(Metric.LEADER.value, "1 on the active replica.", registry=self.registry)
        self._expiry = Gauge(
            Metric.CERTIFICATE_EXPIRY.value, "Unix time of the control certificate's expiry.", registry=self.registry
        )
        self._watch = Gauge(
            Metric.WATCH_LAST_EVENT.value, "Unix time of the watch's last event.", ("resource",), registry=self.registry
        )
        self.registry.register(_JobCollector(jobs, live_step))

    def count(self, count: Count) -> None:
        """Add to a counter or observe a value. Never raises: a wrong label is only logged."""
        try:
            series = self._series[count.metric]
            if count.labels:
                series = series.labels(**count.labels)
            if isinstance(series, Counter):
                series.inc(count.amount)
            elif isinstance(series, Histogram):
                series.observe(count.amount)
        except (KeyError, ValueError) as error:
            log.error("metric %s not counted: %s", count.metric, error)  # noqa: TRY400  the message says it all

    def set_leading(self, leading: bool) -> None:  # noqa: FBT001  a gauge of one bit
        """Show whether this replica leads."""
        self._leader.set(1 if leading else 0)

    def set_certificate_expiry(self, instant: datetime) -> None:
        """Show when the control endpoint's certificate expires."""
        self._expiry.set(instant.timestamp())

    def watch_delivered(self, resource: str) -> None:
        """Show that the watch of a resource has just delivered an event."""
        self._watch.labels(resource=resource).set_to_current_time()

    def serve(self, host: str | None, port: int) -> tuple[int, Callable[[], None]]:
        """Serve in threads, so that a slow scraper blocks nothing. Returns the port and a function that stops it."""
        server, _thread = start_http_server(port, addr=host or "0.0.0.0", registry=self.registry)
        return int(server.server_port), server.shutdown


class _JobCollector(Collector):
    """Gauges of the jobs that exist at the moment of the scrape."""

    def __init__(self, jobs: Jobs, live_step: LiveStep) -> None:
        self._jobs, self._live_step = jobs, live_step

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """The families without samples, for the registry."""
        return _families().values()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """One sample per job and gauge."""
        families = _families()
        for job in self._jobs():
            _add(families, job, self._live_step)
        yield from families.values()


def _families() -> dict[Metric, GaugeMetricFamily]:
    place = ["namespace", "name"]
    return {
        Metric.JOB_STEP: GaugeMetricFamily(Metric.JOB_STEP, "Last completed step.", labels=place),
        Metric.JOB_ATTEMPT: GaugeMetricFamily(Metric.JOB_ATTEMPT, "Number of the newest attempt.", labels=place),
        Metric.JOB_GOODPUT_SECONDS: GaugeMetricFamily(
            Metric.JOB_GOODPUT_SECONDS, "How the job spent its time.", labels=[*place, "bucket"]
        ),
        Metric.JOB_NEWEST_CHECKPOINT: GaugeMetricFamily(
            Metric.JOB_NEWEST_CHECKPOINT, "Unix time at which the newest checkpoint was seen committed.", labels=place
        ),
    }


def _add(families: Mapping[Metric, GaugeMetricFamily], job: Mapping[str, Any], live_step: LiveStep) -> None:
    """Add one job's samples; a value that its status lacks gets none."""
    meta, status = job["metadata"], job.get("status") or {}
    place = [meta["namespace"], meta["name"]]
    if "attempt" in status:
        families[Metric.JOB_ATTEMPT].add_metric(place, float(status["attempt"]))
    stored = (status.get("progress") or {}).get("step")
    if step := live_step(meta["namespace"], meta["name"]) or stored:
        families[Metric.JOB_STEP].add_metric(place, float(step))
    for bucket, seconds in ((status.get("goodput") or {}).get("buckets") or {}).items():
        families[Metric.JOB_GOODPUT_SECONDS].add_metric([*place, bucket], float(seconds))
    newest = (status.get("checkpoint") or {}).get("newest") or {}
    if committed := newest.get("committedAt"):
        instant = datetime.fromisoformat(committed).timestamp()
        families[Metric.JOB_NEWEST_CHECKPOINT].add_metric(place, instant)
