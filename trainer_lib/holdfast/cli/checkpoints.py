"""``holdfast checkpoints``: list and verify checkpoints, compare two, seal, remove, adopt."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any, Final

from holdfast.catalog import listing, sealing
from holdfast.catalog.listing import ListedCheckpoint, Validity
from holdfast.cli import adopt, remove
from holdfast.cli.printing import metrics_text, name_of, print_json, print_table, record_of, size_text
from holdfast.cli.progress import VerifyProgress
from holdfast.cli.usage import UsageError
from holdfast_contract.exits import ExitCode

WRONG: Final = 1
_NAMED_STEPS: Final = 20
"""How many of the steps that exist an error names."""


def add_to(groups: Any) -> None:
    """Add the group and its commands to the parser's groups."""
    group = groups.add_parser("checkpoints", help="list, verify, compare, seal, remove and adopt checkpoints")
    commands = group.add_subparsers(dest="name", required=True, metavar="ls|verify|diff|seal|rm|adopt")
    where = argparse.ArgumentParser(add_help=False)
    where.add_argument(
        "path", metavar="PATH", help="checkpoint path, a run's folder in it, or an Orbax manager's folder"
    )
    where.add_argument("--run", help="only this run below PATH")
    output = argparse.ArgumentParser(add_help=False)
    output.add_argument("--json", action="store_true", help="print JSON")

    ls = commands.add_parser("ls", parents=[where, output], help="list checkpoints, each run's newest first")
    ls.add_argument("--deep", action="store_true", help="compare the digests of all files, not only their sizes")
    ls.set_defaults(command=_list)
    verify = commands.add_parser(
        "verify", parents=[where, output], help="compare every byte with the manifests; exit code 1 if any differs"
    )
    verify.set_defaults(command=_verify)
    diff = commands.add_parser("diff", parents=[output], help="compare the leaves of two checkpoints")
    diff.add_argument("first", metavar="STEP_FOLDER")
    diff.add_argument("second", metavar="STEP_FOLDER")
    diff.add_argument("--structure", action="store_true", help="paths, shapes and dtypes only; needs no JAX")
    diff.set_defaults(command=_diff)
    seal = commands.add_parser(
        "seal", parents=[output], help="write manifests for the finished steps of an Orbax manager's folder"
    )
    seal.add_argument("path", metavar="PATH", help="the manager's folder")
    seal.add_argument("--step", type=int, help="only this step; default: all steps that are not sealed")
    seal.set_defaults(command=_seal)
    remove.add_to(commands, output)
    adopt.add_to(commands, output)


def _list(arguments: argparse.Namespace) -> int:
    if listing.is_step(arguments.path):
        holder, entry = listing.step_at(arguments.path)
        checked, unsealed = [[holder.check(entry, deep=arguments.deep)]], []
    else:
        holders = listing.checkpoint_folders(arguments.path, run=arguments.run)
        checked = [[holder.check(entry, deep=arguments.deep) for entry in holder.entries()] for holder in holders]
        unsealed = [folder for holder in holders for folder in holder.without_manifest()]
    newest = {id(next((c for c in run if c.valid), None)) for run in checked}
    found = [checkpoint for run in checked for checkpoint in run]
    if arguments.json:
        records = [record_of(c, newest_valid=id(c) in newest) for c in found]
        print_json({"checked": _depth(arguments.deep), "checkpoints": records, "without_manifest": unsealed})
        return 0
    if not found and not unsealed:
        print(f"no checkpoint below {arguments.path}")
        return 0
    rows = [_row(c, newest=id(c) in newest) for c in found]
    print_table(("", "RUN", "ATTEMPT", "STEP", "SIZE", "METRICS", "STATUS"), rows, right=frozenset({2, 3, 4}))
    print(f"{_depth(arguments.deep)} checked; * marks the newest valid checkpoint of a run")
    for folder in unsealed:
        print(f"not a checkpoint, because it has no manifest: {folder}")
    return 0


def _row(checkpoint: ListedCheckpoint, *, newest: bool) -> tuple[str, ...]:
    status = checkpoint.status.value + (f": {checkpoint.reason}" if checkpoint.reason else "")
    if checkpoint.manifest and checkpoint.manifest.pinned:
        status += " (kept)"
    size = size_text(checkpoint.bytes) if checkpoint.manifest else "-"
    attempt = str(checkpoint.attempt) if checkpoint.attempt != sealing.SEALED_ATTEMPT else "sealed"
    metrics = metrics_text(checkpoint.metrics)
    return "*" if newest else "", name_of(checkpoint), attempt, str(checkpoint.step), size, metrics, status


def _depth(deep: bool) -> str:  # noqa: FBT001  one word for one switch
    return "digests" if deep else "sizes"


def _verify(arguments: argparse.Namespace) -> int:
    found: list[ListedCheckpoint] = []
    progress = VerifyProgress(sys.stderr)
    for holder, entry in _entries(arguments):
        progress.begin(entry)
        found.append(holder.check(entry, deep=True))
        if not arguments.json:
            c = found[-1]
            name = f"{name_of(c)} attempt {c.attempt} step {c.step}" if c.attempt else f"{name_of(c)} step {c.step}"
            print(
                f"{name}: {c.status.value}" + (f": {c.reason}" if c.reason else f", {size_text(c.bytes)}"), flush=True
            )
    if not found:
        raise FileNotFoundError(f"{arguments.path}: found no checkpoint")
    if arguments.json:
        newest = next((id(c) for c in found if c.valid), 0)
        print_json({"checked": "digests", "checkpoints": [record_of(c, newest_valid=id(c) == newest) for c in found]})
    if any(c.status is Validity.DAMAGED for c in found):
        return WRONG
    return 0 if all(c.valid for c in found) else int(ExitCode.STORAGE)


def _entries(arguments: argparse.Namespace) -> Any:
    if listing.is_step(arguments.path):
        yield listing.step_at(arguments.path)
        return
    for holder in listing.checkpoint_folders(arguments.path, run=arguments.run):
        for entry in holder.entries():
            yield holder, entry


def _diff(arguments: argparse.Namespace) -> int:
    from holdfast.catalog.diff import compare

    result = compare(arguments.first, arguments.second, values=not arguments.structure)
    if arguments.json:
        print_json(result.to_jsonable())
    else:
        for line in result.lines():
            print(line)
    return 0 if result.same else WRONG


def _seal(arguments: argparse.Namespace) -> int:
    if arguments.step is not None:
        _require_step(arguments.path, arguments.step)
    sealed = sealing.seal(arguments.path, arguments.step)
    if arguments.json:
        print_json({"sealed": [{"step": ref.step, "digest": ref.digest} for ref in sealed]})
        return 0
    for ref in sealed:
        print(f"sealed step {ref.step}, manifest {ref.digest}")
    if not sealed:
        print("nothing to seal: every finished step has a manifest")
    return 0


def _require_step(path: str, step: int) -> None:
    """Raise UsageError, which names the steps that exist, unless a manager's folder has this one."""
    folder = sealing.SealedFolder(Path(os.path.abspath(path)))
    steps = [number for number, _ in folder.steps()]
    if step in {*steps, *dict(folder.linked_steps())}:
        return
    allowed = ", ".join(map(str, steps[-_NAMED_STEPS:])) if steps else "none, because the folder has no step"
    earlier = f"; and {len(steps) - _NAMED_STEPS} earlier ones" if len(steps) > _NAMED_STEPS else ""
    raise UsageError(f"--step: found {step}, allowed in {path}: {allowed}{earlier}")
