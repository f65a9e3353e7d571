"""Rematerialisation: what the forward pass keeps for the backward pass, by policy or under a byte budget.

::

    from holdfast import remat

    layer = remat.wrap(layer, remat.dots(batch=False))                         # one function or Flax module
    loss = remat.assign(loss, {"attention": remat.nothing()})                  # marked parts, by name
    planned = remat.plan(loss, params, batch, budget=remat.fraction(0.3))      # the cheapest that fits
    print(planned.report.table())

Values and gradients stay the same; only memory and time change.
"""

from holdfast.remat.assign import EveryNth, assign, every
from holdfast.remat.comparison import compare
from holdfast.remat.layers import scan_layers
from holdfast.remat.memory_budget import Budget, DoesNotFit, bytes_per_device, fraction
from holdfast.remat.planning import Kept, Plan, automatic, plan
from holdfast.remat.remat_policies import (
    Policy,
    any_of,
    dots,
    everything,
    names,
    names_but,
    nothing,
    offload_dots,
    where,
)
from holdfast.remat.report import Report, Row
from holdfast.remat.wrap import block, wrap

__all__ = [
    "Budget",
    "DoesNotFit",
    "EveryNth",
    "Kept",
    "Plan",
    "Policy",
    "Report",
    "Row",
    "any_of",
    "assign",
    "automatic",
    "block",
    "bytes_per_device",
    "compare",
    "dots",
    "every",
    "everything",
    "fraction",
    "names",
    "names_but",
    "nothing",
    "offload_dots",
    "plan",
    "scan_layers",
    "where",
    "wrap",
]
