"""The program between a node and a container: whatever is asked of it and whenever, it says how the container ended."""

import asyncio
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from localkube.node.containers import ContainerPlan, ContainerProcess, Sandbox
from localkube.node.program import make_sandbox
from tests.support.polling import until_async

ROUNDS = 12
BURST = 100
END_SECONDS = 30.0


async def start(sandbox: Sandbox, folder: Path, argv: Sequence[str]) -> ContainerProcess:
    plan = ContainerPlan(argv, {"PATH": "/usr/bin:/bin"}, "/", "test", str(folder / "log"), (),
                read_only_root=False, no_new_privileges=False)  # fmt: skip
    return await ContainerProcess.start(sandbox, plan)


@pytest.mark.parametrize("isolation", ["namespaces", "process"])
def test_signals_at_the_very_end_of_a_container_do_not_hide_how_it_ended(isolation: str, tmp_path: Path) -> None:
    """The node must not wait for ever for a container that ended while it was told to end."""

    async def flood(sandbox: Sandbox, folder: Path) -> int | None:
        process = await start(sandbox, folder, ["sh", "-c", "trap '' TERM; echo on; sleep 0.02; exit 7"])
        await until_async((folder / "log").read_text, END_SECONDS, "it runs", longest_pause_seconds=0.001)
        while not process.exit_code.done():
            for _ in range(BURST):
                process.terminate()
            await asyncio.sleep(0)
        return await process.wait(END_SECONDS)

    async def main() -> list[int | None]:
        sandbox = await make_sandbox(isolation, tmp_path)
        async with asyncio.timeout(END_SECONDS):
            return [await flood(sandbox, folder) for folder in folders]

    folders = [tmp_path / str(number) for number in range(ROUNDS)]
    for folder in folders:
        folder.mkdir()

    assert asyncio.run(main()) == [7] * ROUNDS


@pytest.mark.parametrize("isolation", ["namespaces", "process"])
def test_a_killed_sandbox_program_takes_its_container_along(isolation: str, tmp_path: Path) -> None:
    async def main() -> int | None:
        process = await start(await make_sandbox(isolation, tmp_path), tmp_path, ["sleep", "1000"])
        process._sandbox.send_signal(signal.SIGKILL)
        return await process.wait(END_SECONDS)

    assert asyncio.run(main()) == 128 + signal.SIGKILL
