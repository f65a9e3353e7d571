"""``python -m holdfast_agent -- COMMAND [ARGUMENT ...]``: the first process of a worker's container."""

from __future__ import annotations

import os
import ssl
import sys

from holdfast_agent import container_output, reaper
from holdfast_agent.agent import Agent
from holdfast_agent.agent_settings import AgentSettingsError, from_environment
from holdfast_agent.channel import client_context
from holdfast_agent.sync_client import Service
from holdfast_contract import keys
from holdfast_contract.exits import ExitCode


def main() -> int:
    """Run the agent and return the container's exit code."""
    try:
        settings = from_environment(sys.argv[1:], os.environ)
        try:
            context = client_context(settings.control_ca)
        except (ssl.SSLError, ValueError) as error:
            raise AgentSettingsError.wrong_value(
                keys.ENV_CONTROL_CA, settings.control_ca[:40], f"PEM certificates ({error})"
            ) from None
        service = Service(settings.control_host, settings.control_port, context, settings.token_file)
        try:
            reaper.become_reaper()
            agent = Agent(settings, service)
        except OSError as error:
            raise AgentSettingsError.wrong_value(
                keys.ENV_AGENT_SOCKET, settings.socket_path, f"a socket path that can be created ({error})"
            ) from None
    except AgentSettingsError as error:
        container_output.log(str(error))
        path = os.environ.get(keys.ENV_TERMINATION_LOG) or keys.TERMINATION_LOG
        container_output.write_termination_log(path, f"holdfast agent: {error}", "")
        return int(ExitCode.USAGE)
    return agent.run()


if __name__ == "__main__":
    code = main()
    container_output.flush()
    # Threads may be stuck in storage or in a held request, and an ordinary exit would wait for some of them.
    os._exit(code)
