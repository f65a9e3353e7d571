"""``python -m holdfast_operator``: reads the environment, runs one replica and returns its exit code."""

from __future__ import annotations

import asyncio
import logging
import os
import sys

from holdfast_contract.exits import ExitCode
from holdfast_operator import operator_settings
from holdfast_operator.app import Operator
from holdfast_operator.gateway.cluster_access import AccessError
from holdfast_operator.telemetry import json_logs

log = logging.getLogger("holdfast_operator")


def main() -> int:
    """Run one replica. Returns 0 after a signal, 64 if the settings are wrong, 1 after any other error."""
    json_logs.configure(logging.INFO)
    try:
        given = operator_settings.from_environment(os.environ)
        json_logs.configure(given.log_level)
        return asyncio.run(_run(given, os.environ.get("KUBECONFIG") or None))
    except (operator_settings.OperatorSettingsError, AccessError) as error:
        log.error("%s", error)  # noqa: TRY400  the message is for the person who set it; a trace does not help
        return ExitCode.USAGE
    except Exception:  # the last handler: the kubelet starts the container again
        log.exception("the operator ends because of an unexpected error")
        return 1


async def _run(given: operator_settings.OperatorSettings, kubeconfig: str | None) -> int:
    return await Operator(given, kubeconfig=kubeconfig).run()


if __name__ == "__main__":
    sys.exit(main())
