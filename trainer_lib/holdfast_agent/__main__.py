"""``python -m holdfast_agent -- COMMAND [ARGUMENT ...]``: the first process of a worker's container."""

from __future__ import annotations

import os
import ssl
import sys

from holdfast_agent import output, processes
from holdfast_agent.agent import Agent
from holdfast_agent.channel import client_context
from holdfast_agent.settings import SettingsError, from_environment
from holdfast_agent.sync import Service
from holdfast_contract import keys
from holdfast_contract.exits import ExitCode


def main() -> int:
    """Run the agent; the container's exit code."""
    try:
        settings = from_environment(sys.argv[1:], os.environ)
        try:
            context = client_context(settings.control_ca)
        except (ssl.SSLError, ValueError) as error:
            raise SettingsError(keys.ENV_CONTROL_CA, settings.control_ca[:40], f"PEM certificates ({error})") from None
        service = Service(settings.control_host, settings.control_port, context, settings.token_file)
        try:
            processes.become_reaper()
            agent = Agent(settings, service)
        except OSError as error:
            raise SettingsError(keys.ENV_AGENT_SOCKET, settings.socket_path, f"a usable place ({error})") from None
    except SettingsError as error:
        output.say(str(error))
        path = os.environ.get(keys.ENV_TERMINATION_LOG) or keys.TERMINATION_LOG
        output.write_termination_log(path, f"holdfast agent: {error}", "")
        return int(ExitCode.USAGE)
    return agent.run()


if __name__ == "__main__":
    code = main()
    output.flush()
    # Threads may be stuck in storage or in a held request; the interpreter's own end would wait for some of them.
    os._exit(code)
