"""The configuration of a session: from the environment in a pod, from arguments elsewhere."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

from holdfast.distributed.world import World
from holdfast.errors import ConfigurationError, StorageUnusable
from holdfast.policies.checkpoint_health import Predicate
from holdfast.policies.failure_rate import UNOBSERVED
from holdfast.policies.job_rules import JobRules, rules_from_json
from holdfast.policies.keep_rules import KeepRule
from holdfast.policies.save_rules import SavePolicy
from holdfast.store.store_settings import WriterName
from holdfast_contract import codec, keys
from holdfast_contract.manifest import CheckpointRef, Owner
from holdfast_contract.sync import FailureHistory

log = logging.getLogger("holdfast")

DEFAULT_RUN: Final = "default"
POISON_AFTER: Final = 3
"""With an operator, which restarts a job that crashes; without one nothing is skipped unless it is asked for."""
_RUN_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,126}[A-Za-z0-9])?", re.ASCII)


@dataclass(frozen=True)
class SessionConfig:
    """Everything that a session needs to know. ``attempt`` None: the next one after those on storage.

    ``world`` None: the program joined ``jax.distributed`` itself, or is alone.
    """

    folder: Path
    every: SavePolicy
    keep: KeepRule
    world: World | None
    attempt: int | None
    pin: CheckpointRef | Literal["any"] | None  # the newest that may be restored; None: nothing may
    owner_identity: tuple[str, str, str]  # job UID, namespace, name; empty outside a cluster
    create_path: bool = False  # outside a job no volume is forgotten: make the folder if it is missing
    take_over: bool = False
    agent_socket: Path | None = None
    compile_cache: Path | None = None
    poison_after: int = 0  # see StoreSettings
    save_seconds: float | None = None  # see StoreSettings; None: its default
    writer: WriterName = "direct"  # see StoreSettings
    check_saves: bool = False  # see StoreSettings
    healthy: Predicate | None = None
    fresh: bool = False  # begin from the initial state although checkpoints exist
    history: FailureHistory = UNOBSERVED  # of the attempts before this one, as far as an operator has observed them

    def owner(self, attempt: int) -> Owner:
        """The owner record of this job in an attempt."""
        uid, namespace, name = self.owner_identity
        return Owner(job_uid=uid, namespace=namespace, name=name, attempt=attempt)


@dataclass(frozen=True, kw_only=True)
class SessionArguments:
    """The arguments of ``session``; None: the environment or a default decides."""

    path: str | os.PathLike[str] | None = None
    run: str | None = None
    every: SavePolicy | None = None
    keep: KeepRule | None = None
    world: World | None = None
    healthy: Predicate | None = None
    timeout_seconds: float | None = None
    on_save_error: str = "continue"
    writer: WriterName = "direct"
    check_saves: bool = False
    fresh: bool = False


def resolve_config(arguments: SessionArguments, environment: Mapping[str, str]) -> SessionConfig:
    """Combine arguments and environment; an argument wins.

    Raises:
        ConfigurationError: names the argument or variable.
    """
    path = arguments.path if arguments.path is not None else environment.get(keys.ENV_CHECKPOINT_PATH)
    if path is None or not os.fspath(path):
        raise ConfigurationError(
            f"`path` is required but not set: pass session(path=<folder for checkpoints>), or set "
            f"{keys.ENV_CHECKPOINT_PATH}, as the operator does"
        )
    rules = _rules(arguments, environment)
    poison = _integer(environment, keys.ENV_POISON_AFTER, minimum=0)
    socket, cache = environment.get(keys.ENV_AGENT_SOCKET), environment.get(keys.ENV_COMPILE_CACHE)
    return SessionConfig(
        folder=_folder(os.fspath(path)) / _run_name(arguments, environment),
        every=rules.every,
        keep=rules.keep,
        healthy=rules.healthy,
        world=arguments.world if arguments.world is not None else _world(environment),
        attempt=_integer(environment, keys.ENV_ATTEMPT, minimum=1),
        pin=_pin(environment.get(keys.ENV_PIN)),
        owner_identity=_identity(environment),
        create_path=keys.ENV_JOB_UID not in environment,
        take_over=environment.get(keys.ENV_TAKE_OVER) == keys.TAKE_OVER_YES,
        agent_socket=Path(socket) if socket else None,
        compile_cache=Path(cache) if cache else None,
        history=_history(environment.get(keys.ENV_FAILURES)),
        poison_after=POISON_AFTER if socket and poison is None else poison or 0,
        save_seconds=arguments.timeout_seconds,
        writer=arguments.writer,
        check_saves=arguments.check_saves,
        fresh=arguments.fresh,
    )


def _folder(path: str) -> Path:
    if "://" in path:
        raise ConfigurationError(f"path: found {path!r}, allowed: a folder on a mounted volume")
    try:
        folder = Path(path).expanduser()
    except RuntimeError:  # this user has neither HOME nor a passwd entry, or there is no user of that name
        raise ConfigurationError(
            f"path: found {path!r}, allowed: a path without '~': no home folder is known"
        ) from None
    if not folder.is_absolute():
        folder = Path.cwd() / folder
    if folder.exists() and not folder.is_dir():
        raise StorageUnusable("found a file, allowed: a folder for checkpoints", path=folder)
    return folder


def _run_name(arguments: SessionArguments, environment: Mapping[str, str]) -> str:
    name = arguments.run or environment.get(keys.ENV_RUN) or environment.get(keys.ENV_JOB_UID) or DEFAULT_RUN
    if not _RUN_NAME.fullmatch(name):
        allowed = "1 to 128 letters, digits, '.', '_' or '-', first and last a letter or digit"
        raise ConfigurationError(f"run: found {name!r}, allowed: {allowed}")
    return name


def _rules(arguments: SessionArguments, environment: Mapping[str, str]) -> JobRules:
    """The job's rules. An argument replaces a rule, with a warning: the job object still shows the rule of its spec."""
    text = environment.get(keys.ENV_CHECKPOINT_POLICY)
    try:
        rules = rules_from_json(text, keys.ENV_CHECKPOINT_POLICY) if text else JobRules()
    except ValueError as error:
        raise ConfigurationError(str(error)) from None
    given = {name: getattr(arguments, name) for name in ("every", "keep", "healthy")}
    given = {name: value for name, value in given.items() if value is not None}
    if text and given:
        log.warning("the program's own %s is used instead of the job's spec.checkpoint", ", ".join(given))
    return replace(rules, **given)


def _history(text: str | None) -> FailureHistory:
    if not text:
        return UNOBSERVED
    try:
        return codec.decode(FailureHistory, text)
    except codec.CodecError as error:
        raise ConfigurationError(f"{keys.ENV_FAILURES}: {error}") from None


def _world(environment: Mapping[str, str]) -> World | None:
    count = _integer(environment, keys.ENV_REPLICAS, minimum=1)
    if count is None:
        return None
    index = _integer(environment, keys.ENV_PROCESS_INDEX, minimum=0)
    if index is None:
        raise ConfigurationError(f"`{keys.ENV_PROCESS_INDEX}` is required but not set; allowed: 0 to {count - 1}")
    coordinator = environment.get(keys.ENV_COORDINATOR, "")
    own = environment.get(keys.ENV_POD_IP, "")
    bind = f"{f'[{own}]' if ':' in own else own}:{coordinator.rpartition(':')[2]}" if own and coordinator else ""
    return World(count, index, coordinator, bind)


def _pin(text: str | None) -> CheckpointRef | Literal["any"] | None:
    """Absent: no operator, anything may be restored. "none": nothing may be."""
    if text is None:
        return "any"
    if text == keys.NO_PIN:
        return None
    try:
        return codec.decode(CheckpointRef, text)
    except codec.CodecError as error:
        raise ConfigurationError(f"{keys.ENV_PIN}: {error}") from None


def _identity(environment: Mapping[str, str]) -> tuple[str, str, str]:
    names = (keys.ENV_JOB_UID, keys.ENV_JOB_NAMESPACE, keys.ENV_JOB_NAME)
    uid, namespace, name = (environment.get(n, "") for n in names)
    return uid, namespace, name


def _integer(environment: Mapping[str, str], name: str, *, minimum: int) -> int | None:
    text = environment.get(name)
    if not text:
        return None
    if not text.isdecimal() or int(text) < minimum:
        raise ConfigurationError(f"{name}: found {text!r}, allowed: a whole number of {minimum} or more")
    return int(text)
