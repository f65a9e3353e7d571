"""Whether a saved state is healthy: a verdict stored with each checkpoint. An unhealthy one is never the best."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from typing import Any

from holdfast.policies.metric_values import as_floats
from holdfast_contract.manifest import HEALTHY_METRIC

Predicate = Callable[[Mapping[str, float]], bool]

log = logging.getLogger("holdfast")


def finite(*names: str) -> Predicate:
    """A state is healthy if it has these metrics and they are finite. Without names: if all its metrics are finite."""

    def predicate(metrics: Mapping[str, float]) -> bool:
        return all(math.isfinite(metrics.get(name, math.nan)) for name in names or metrics)

    return predicate


def with_verdict(metrics: Mapping[str, Any], predicate: Predicate | None) -> dict[str, Any]:
    """The metrics and, if there is a predicate, its verdict on them as one more metric: 1 is healthy, 0 is not.

    The predicate runs when the verdict is converted to a float, in the background, since metrics may not be computed
    yet. Raises ValueError if the program has a metric of that name.
    """
    if predicate is None:
        return dict(metrics)
    if HEALTHY_METRIC in metrics:
        raise ValueError(f"metrics: found {HEALTHY_METRIC!r}, allowed: any other name, because `healthy` is set")
    return {**metrics, HEALTHY_METRIC: _Verdict(predicate, dict(metrics))}


class _Verdict:
    def __init__(self, predicate: Predicate, metrics: Mapping[str, Any]) -> None:
        self._predicate, self._metrics = predicate, metrics

    def __float__(self) -> float:
        try:
            return float(bool(self._predicate(as_floats(self._metrics))))
        except Exception:  # the predicate is the program's own code; its errors must not cost the checkpoint
            log.exception("the health predicate failed: the checkpoint counts as unhealthy")
            return 0.0
