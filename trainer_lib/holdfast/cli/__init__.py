"""The command line: ``holdfast checkpoints ls|verify|diff|seal|rm|adopt PATH``.

Exit codes: 0 success; 1 something is damaged, differs or was refused; 2 wrong usage, or nothing was found; 64 the step that
an option names does not exist; 84 storage does not answer, or denies access.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import Final

from holdfast.cli import checkpoints
from holdfast.cli.usage import UsageError
from holdfast.errors import HoldfastError
from holdfast_contract.exits import ExitCode

USAGE: Final = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    parser = argparse.ArgumentParser(prog="holdfast", description="Checkpoints that a training run can rely on.")
    parser.add_argument("--version", action="version", version=f"holdfast {version('holdfast-training')}")
    groups = parser.add_subparsers(dest="group", required=True, metavar="checkpoints")
    checkpoints.add_to(groups)
    parsed = parser.parse_args(arguments)
    try:
        return int(parsed.command(parsed))
    except UsageError as error:
        return _failed(error, int(ExitCode.USAGE))
    except BrokenPipeError:  # the reader, such as head, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (FileNotFoundError, NotADirectoryError, ValueError) as error:
        return _failed(error, USAGE)
    except HoldfastError as error:
        return _failed(error, int(error.exit_code))
    except OSError as error:
        return _failed(error, int(ExitCode.STORAGE))


def _failed(error: Exception, code: int) -> int:
    print(f"holdfast: {error}", file=sys.stderr)
    return code
