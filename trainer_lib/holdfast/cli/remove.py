"""``holdfast checkpoints rm``: remove Holdfast's own steps and attempts, as safely as retention does."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any, Final

from holdfast.catalog.listing import CheckpointFolder
from holdfast.cli.printing import print_json
from holdfast.store.claim import PROBE_PREFIX
from holdfast.store.format import fs
from holdfast_contract.keys import MANIFEST_FILE, PARTIAL_FILE, RESTORED_FILE, TRASH_PREFIX
from holdfast_contract.runfolder import Found, RunFolder

ALWAYS_KEPT: Final = 2
"""How many of a run's newest valid checkpoints are removed only with --force."""
_DESCRIPTION: Final = """\
Remove the folders of steps, or of attempts with all their steps. Each is renamed first, so no reader ever sees half of it.

The command refuses the newest two valid checkpoints of a run, checkpoints that the program asked to keep, and folders
without a manifest, which may be a save in progress, and the newest attempt of a run. --force removes these too, perhaps including the checkpoint that a
running job would restore; make sure that no job uses the run. Files that Holdfast did not write are never removed, even
with --force; remove the steps of an Orbax manager with that manager.
"""


class RemovalRefused(Exception):
    """The folder may not be removed; the text gives the reason."""


def add_to(commands: Any, output: argparse.ArgumentParser) -> None:
    """Add the command to the group's parsers."""
    parser = commands.add_parser(
        "rm",
        parents=[output],
        help="remove steps and attempts",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folders", metavar="FOLDER", nargs="+", help="the folder of a step or of an attempt")
    parser.add_argument("--force", action="store_true", help="also remove what is refused for safety; see above")
    parser.add_argument("--dry-run", action="store_true", help="print what would be removed, and remove nothing")
    parser.set_defaults(command=_remove)


def _remove(arguments: argparse.Namespace) -> int:
    removed, refused = [], []
    for name in arguments.folders:
        folder = Path(os.path.abspath(name))
        try:
            parts = _parts(folder, force=arguments.force)
        except RemovalRefused as reason:
            refused.append({"folder": folder, "reason": str(reason)})
            continue
        for part in parts if not arguments.dry_run else ():
            fs.discard_folder(part)
        removed.append(folder)
    if arguments.json:
        print_json({"removed": removed, "refused": refused, "dry_run": arguments.dry_run})
    else:
        for folder in removed:
            print(f"{'would remove' if arguments.dry_run else 'removed'} {folder}")
        for entry in refused:
            print(f"refused {entry['folder']}: {entry['reason']}")
    return 1 if refused else 0


def _parts(folder: Path, *, force: bool) -> tuple[Path, ...]:
    """What to remove, in order: the step, or the attempt's steps and then the attempt. Raises as ``require_removable``."""
    run = RunFolder(folder.parent)
    if not _is_attempt(run, folder):
        require_removable(folder, force=force)
        return (folder,)
    if not force and int(folder.name) == run.newest_attempt():
        raise RemovalRefused(
            "it is the newest attempt of its run, which may be training (--force if no job uses the run)"
        )
    steps = sorted(path for path in folder.iterdir() if not _is_note(path))
    for step in steps:
        try:
            require_removable(step, force=force)
        except RemovalRefused as reason:
            raise RemovalRefused(f"{step.name}: {reason}") from None
    return (*steps, folder)


def _is_attempt(run: RunFolder, folder: Path) -> bool:
    return os.path.lexists(run.owner_file) and folder.name in {str(attempt) for attempt in run.attempts()}


def _is_note(path: Path) -> bool:
    """Whether Holdfast wrote it beside the steps: what the attempt restored, a probe of storage, or a deletion cut off."""
    return path.name.startswith((RESTORED_FILE, PROBE_PREFIX, TRASH_PREFIX))


def require_removable(folder: Path, *, force: bool) -> None:
    """Raise RemovalRefused with the reason, FileNotFoundError if the folder does not exist, or OSError."""
    if not os.path.lexists(folder):
        raise FileNotFoundError(f"{folder}: no such folder")
    run = RunFolder(folder.parent.parent)
    if not _is_ours(run, folder):
        raise RemovalRefused("Holdfast did not write it")
    if force:
        return
    entry = run.look(int(folder.parent.name), int(folder.name))
    if entry is None:
        raise RemovalRefused("it has no manifest and may be a save in progress (--force if no job uses the run)")
    if isinstance(entry, Found):
        if entry.manifest.pinned:
            raise RemovalRefused("the program asked to keep it (--force)")
        _require_two_newer(run, entry)


def _is_ours(run: RunFolder, folder: Path) -> bool:
    """Whether it is a real step folder below a real attempt of a run with an owner record, with one of Holdfast's files."""
    real = not folder.is_symlink() and folder.is_dir() and not folder.parent.is_symlink()
    named = all(name.isdecimal() and str(int(name)) == name for name in (folder.name, folder.parent.name))
    marked = any(os.path.lexists(folder / name) for name in (MANIFEST_FILE, PARTIAL_FILE))
    return real and named and marked and os.path.lexists(run.owner_file)


def _require_two_newer(run: RunFolder, entry: Found) -> None:
    """Every byte of what would remain is read, because a damaged checkpoint must not count as a valid one."""
    holder = CheckpointFolder(run)
    if not holder.check(entry, deep=True).valid:
        return
    newer = 0
    for other in holder.entries():
        if isinstance(other, Found) and other.ref > entry.ref and holder.check(other, deep=True).valid:
            newer += 1
            if newer >= ALWAYS_KEPT:
                return
    raise RemovalRefused(f"it is one of the newest {ALWAYS_KEPT} valid checkpoints of its run (--force)")
