"""A unit test computes, and does nothing else: no process, no sleep, no event loop in real time, no compiling with JAX.

The first of these that a test tries fails it, with the place where such a test belongs.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
import time
from collections.abc import Generator, Iterator
from typing import Any, Final, NoReturn

import pytest
from jax import monitoring

ELSEWHERE: Final = "tests/packaging, storage, training and agent are for tests that need it"
PROCESS_EVENTS: Final = frozenset(
    {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system", "os.exec"}
)
"""What the interpreter announces before it starts a process."""
COMPILE_EVENT: Final = "/jax/core/compile/backend_compile_duration"


class Guard:
    """What the running test has tried that a unit test does not do.

    Nothing is refused outside a test, nor in threads that other folders' tests left behind in this process.
    """

    def __init__(self) -> None:
        self.active = False
        self.found: list[str] = []
        self._others: set[threading.Thread] = set()
        self._sleep, self._new_event_loop = time.sleep, asyncio.events.new_event_loop

    @property
    def watches(self) -> bool:
        """Whether a unit test runs, in this thread or in one that it started."""
        return self.active and threading.current_thread() not in self._others

    def refuse(self, what: str) -> NoReturn:
        """Note it, for the test may catch the exception."""
        self.found.append(what)
        raise AssertionError(f"a unit test {what}: {ELSEWHERE}")

    def on_audit_event(self, name: str, _arguments: tuple[Any, ...]) -> None:
        if name in PROCESS_EVENTS and self.watches:
            self.refuse(f"starts a process ({name})")

    def on_jax_event(self, name: str, _seconds: float, **_: Any) -> None:
        if name == COMPILE_EVENT and self.watches:
            self.refuse("compiles with JAX")

    def sleep(self, seconds: float) -> None:
        if self.watches:
            self.refuse(f"sleeps for {seconds:g} s; tests/support/virtual_time.Clock does not")
        self._sleep(seconds)

    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        if self.watches:
            self.refuse("runs an event loop in real time; tests/support/virtual_time.run does not")
        return self._new_event_loop()

    @contextlib.contextmanager
    def watch(self) -> Iterator[None]:
        """Refuse from here on, and fail at the end if something was refused and the test went on."""
        self.found.clear()
        self._others = set(threading.enumerate()) - {threading.current_thread()}
        self.active = True
        try:
            yield
        finally:
            self.active = False
        assert not self.found, f"a unit test {self.found[0]}: {ELSEWHERE}"


GUARD: Final = Guard()
sys.addaudithook(GUARD.on_audit_event)
monitoring.register_event_duration_secs_listener(GUARD.on_jax_event)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Generator[None, object, object]:
    """Around the fixtures, so that a test's own clock replaces these."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "sleep", GUARD.sleep)
        patch.setattr(asyncio.events, "new_event_loop", GUARD.new_event_loop)
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    """The test itself."""
    with GUARD.watch():
        yield
