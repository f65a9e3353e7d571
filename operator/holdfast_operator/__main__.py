"""``python -m holdfast_operator``: reads the environment, runs one replica, ends with an exit code."""

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
    """The exit code: 0 after a signal, 64 for settings that cannot work, 1 for anything else."""
    json_logs.configure(logging.INFO)
    try:
        given = operator_settings.from_environment(os.environ)
        json_logs.configure(given.log_level)
        return asyncio.run(_run(given, os.environ.get("KUBECONFIG") or None))
    except (operator_settings.OperatorSettingsError, AccessError) as error:
        log.error("%s", error)  # noqa: TRY400  the sentence is for whoever set it, a trace is not
        return ExitCode.USAGE
    except Exception:  # the last one to know; the kubelet starts us again
        log.exception("the operator cannot go on")
        return 1


async def _run(given: operator_settings.OperatorSettings, kubeconfig: str | None) -> int:
    return await Operator(given, kubeconfig=kubeconfig).run()


if __name__ == "__main__":
    sys.exit(main())
