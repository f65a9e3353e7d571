"""Values that apply where the user names none, and limits, on which two parts must agree."""

from __future__ import annotations

from typing import Final

GRACE_SECONDS: Final = 30
"""A pod's termination grace period, as in Kubernetes itself. The operator writes it into pods whose template has none
and plans its saves with it; the agent assumes it where ``HOLDFAST_GRACE_SECONDS`` is not set."""

ORPHAN_SECONDS: Final = 900
"""How long an agent without a trainer waits for an operator that it cannot reach before it ends. The operator's setting
``HOLDFAST_OPERATOR_ORPHAN_SECONDS`` replaces it and reaches the agent in ``HOLDFAST_ORPHAN_SECONDS``; an agent without
that variable assumes it."""

# The rules of spec.checkpoint. The CRD writes these defaults into objects, and the library applies them where the training
# script leaves a value open.
SAVE_SECONDS: Final = 600
"""Interval between saves without a rule for saves."""
KEEP_LATEST: Final = 3
"""How many of the newest checkpoints are kept without a rule for it. The CRD leaves the field open; the library fills
it."""
SECONDS_BETWEEN_FAILURES: Final = 6 * 3600
"""Expected seconds of training between two failures, before any failure is observed. The 54-day pre-training run of
Llama 3 was interrupted every 3 hours on 16,384 GPUs (arXiv:2407.21783, section 3.3.4); smaller jobs fail less often."""
PRIOR_FAILURES: Final = 1
"""Weight of that expectation in observed failures: one, so that a few failures outweigh it."""
UNSTABLE_WINDOW: Final = 32
"""How many values of a metric decide whether it is unstable."""
SHORTEST_WINDOW: Final = 8
LONGEST_WINDOW: Final = 1024
"""Limits of that number. The CRD and the library refuse others; the library remembers as many values as the longest
has."""
UNSTABLE_TOLERANCE: Final = 6.0
"""Distance from the median beyond which a value is unstable, in units of the usual spread."""
