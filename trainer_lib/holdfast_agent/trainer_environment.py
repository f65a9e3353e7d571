"""The environment of a trainer process: the container's own, minus the agent's secrets, plus the attempt's values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from holdfast_agent.agent_settings import AgentSettings
from holdfast_contract import codec, keys
from holdfast_contract.sync import Directive

COMPILE_CACHE_NAME: Final = "compile-cache"
_AGENT_ONLY: Final = frozenset({keys.ENV_CONTROL_URL, keys.ENV_CONTROL_CA, keys.ENV_TOKEN_FILE})


def for_trainer(settings: AgentSettings, container: Mapping[str, str], directive: Directive) -> dict[str, str]:
    """The variables for the trainer of the directive's attempt.

    Args:
        settings: The agent's settings.
        container: The container's own environment.
        directive: The directive to run the attempt.
    """
    pin = keys.NO_PIN if directive.pin is None else codec.encode(directive.pin).decode()
    variables = {name: value for name, value in container.items() if name not in _AGENT_ONLY}
    variables |= {
        keys.ENV_ATTEMPT: str(directive.attempt),
        keys.ENV_PROCESS_INDEX: str(settings.process_index),
        keys.ENV_PIN: pin,
        keys.ENV_AGENT_SOCKET: settings.socket_path,
        keys.ENV_COMPILE_CACHE: f"{settings.runtime_directory}/{COMPILE_CACHE_NAME}",
    }
    history = directive.history and codec.encode(directive.history).decode()
    # Stale values from the container must not survive where this attempt has none.
    for name, value in (
        (keys.ENV_COORDINATOR, directive.coordinator),
        (keys.ENV_TAKE_OVER, directive.take_over and keys.TAKE_OVER_YES),
        (keys.ENV_FAILURES, history),
    ):
        if value:
            variables[name] = value
        else:
            variables.pop(name, None)
    return variables
