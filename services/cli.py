"""The command line, `kernelwright`. Commands for people print tables, `--json` prints JSON on stdout; nothing here imports torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperGroup

from evaluator import cli as evaluator_cli
from evaluator.commands.ceilings import ceilings
from evaluator.commands.evaluate_batch import evaluate_batch
from evaluator.commands.lint import lint
from evaluator.commands.profile import profile
from evaluator.commands.shapes import shapes
from evaluator.faults import guarded
from services.commands import keys, remote, tasks
from services.commands.apply import apply
from services.commands.backfill import backfill_leaderboard
from services.commands.cost import cost
from services.commands.doctor import doctor
from services.commands.mcp import mcp
from services.commands.optimize import optimize, resume
from services.commands.replay import replay
from services.commands.serve import serve
from services.commands.verify import verify
from services.commands.worker import worker

#: Commands by heading, in the order of `--help`; the three that a new user needs come first.
_GROUPS: dict[str, dict[str, Callable[..., Any] | typer.Typer]] = {
    "Begin": {"doctor": doctor, "optimize": optimize, "serve": serve},
    "Judge": {
        "evaluate": evaluator_cli.evaluate,
        "evaluate-batch": evaluate_batch,
        "verify": verify,
        "lint": lint,
        "shapes": shapes,
        "tasks": tasks.app,
    },
    "Understand": {"profile": profile, "device": ceilings, "cost": cost},
    "Go on with a job": {"resume": resume, "replay": replay, "apply": apply},
    "Use a service elsewhere": {
        "submit": remote.submit,
        "jobs": remote.jobs,
        "watch": remote.watch,
        "fetch": remote.fetch,
        "batch": remote.batch,
        "mcp": mcp,
    },
    "Operate a service": {"worker": worker, "keys": keys.app, "backfill-leaderboard": backfill_leaderboard},
}


class _Grouped(TyperGroup):
    """Group that lists commands under headings."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        longest = max(map(len, self.commands))
        for heading, names in _GROUPS.items():
            with formatter.section(heading):
                limit = formatter.width - 6 - longest
                rows = [
                    (name.ljust(longest), self.commands[name].get_short_help_str(limit)) for name in names
                ]
                formatter.write_dl(rows)


app = typer.Typer(
    cls=_Grouped,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Kernelwright: a reference PyTorch module in, a faster drop-in module out, with evidence.\n\n"
    "Begin with `kernelwright doctor`, then `kernelwright optimize layernorm_relu_add`, or `kernelwright serve` for "
    "the API and the dashboard.",
)
for _commands_of_group in _GROUPS.values():
    for _name, _command in _commands_of_group.items():
        if isinstance(_command, typer.Typer):
            app.add_typer(_command, name=_name)
        else:
            app.command(_name)(_command)


def main() -> None:
    """Entry point of the console script."""
    guarded(_commands)


def _commands() -> None:
    """Run a command; report storage trouble or an unavailable database in one sentence, with exit status 1."""
    try:
        app()
    except Exception as error:
        from services.db.outages import is_outage
        from services.db.trouble import trouble

        if not is_outage(error) or "sqlite" in type(getattr(error, "orig", None)).__module__:
            told = trouble(error)
            if told is None:
                raise
            typer.echo(f"this cannot be done: {told}", err=True)
            raise SystemExit(1) from None
        first = str(getattr(error, "orig", None) or error).strip().partition("\n")[0]
        typer.echo(
            f"the database does not answer: {first}. Start it, or set KERNELWRIGHT_DATABASE_URL to one that does.",
            err=True,
        )
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
