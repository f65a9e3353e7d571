"""``holdfast checkpoints adopt``: the checkpoints of a run whose folder was renamed become valid under the new name."""

from __future__ import annotations

import argparse
from typing import Any, Final

from holdfast.catalog.adopting import plan_adoption
from holdfast.cli.printing import print_json
from holdfast.cli.usage import UsageError

_DESCRIPTION: Final = """\
Adopt the checkpoints of a run whose folder was renamed. A manifest names its run, so a checkpoint in a renamed folder is
refused. This command writes each manifest again with the folder's name, the oldest first, and leaves all other files as they
are. A command that was cut off is completed by the next one.

No job may use the run meanwhile. The command cannot find that out, so it needs --yes. Pins with the digests of former
manifests do not find them any more.
"""


def add_to(commands: Any, output: argparse.ArgumentParser) -> None:
    """Add the command to the group's parsers."""
    parser = commands.add_parser(
        "adopt",
        parents=[output],
        help="make the checkpoints of a renamed run folder valid again",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("path", metavar="RUN_FOLDER")
    parser.add_argument("--yes", action="store_true", help="no job uses the run")
    parser.add_argument("--dry-run", action="store_true", help="print what would be adopted, and write nothing")
    parser.set_defaults(command=_adopt)


def _adopt(arguments: argparse.Namespace) -> int:
    if not arguments.yes and not arguments.dry_run:
        raise UsageError("`--yes` is required but not set: it says that no job uses the run; --dry-run only looks")
    plan = plan_adoption(arguments.path)
    if not arguments.dry_run:
        plan.publish()
    if arguments.json:
        adopted = [{"attempt": m.key.attempt, "step": m.key.step} for m in plan.manifests]
        refused = [{"attempt": r.attempt, "step": r.step, "reason": r.reason} for r in plan.refused]
        names = {"run": plan.run, "former": plan.former}
        print_json({**names, "adopted": adopted, "refused": refused, "dry_run": arguments.dry_run})
        return 1 if plan.refused else 0
    verb = "would adopt" if arguments.dry_run else "adopted"
    for each in plan.manifests:
        print(f"{verb} attempt {each.key.attempt} step {each.key.step} of {plan.former!r} as {plan.run!r}")
    for entry in plan.refused:
        print(f"refused attempt {entry.attempt} step {entry.step}: {entry.reason}")
    if not plan.manifests:
        print(f"nothing to adopt: no readable checkpoint names another run than {plan.run!r}")
    return 1 if plan.refused else 0
