"""Values that apply where the user names none, and on which two parts must agree."""

from __future__ import annotations

from typing import Final

GRACE_SECONDS: Final = 30
"""A pod's termination grace period, as in Kubernetes itself. The operator writes it into pods whose template has none
and plans its saves with it; the agent assumes it where ``HOLDFAST_GRACE_SECONDS`` is not set."""

ORPHAN_SECONDS: Final = 900
"""How long an agent without a trainer waits for an operator that it cannot reach before it ends. The operator's setting
``HOLDFAST_OPERATOR_ORPHAN_SECONDS`` replaces it and reaches the agent in ``HOLDFAST_ORPHAN_SECONDS``; an agent without
that variable assumes it."""
