"""The command line, `kernelwright`. Commands for people print tables, `--json` prints JSON on stdout; nothing here imports torch."""

from __future__ import annotations

import typer

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
from services.commands.optimize import optimize
from services.commands.replay import replay
from services.commands.resume import resume
from services.commands.serve import serve
from services.commands.verify import verify
from services.commands.worker import worker

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Kernelwright: a reference PyTorch module in, a faster drop-in module out, with evidence.\n\n"
    "Begin with `kernelwright doctor`, then `kernelwright optimize layernorm_relu_add`, or `kernelwright serve` for "
    "the API and the dashboard.",
)

app.command()(optimize)
app.command()(resume)
app.command()(replay)
app.command()(evaluator_cli.evaluate)
app.command()(evaluate_batch)
app.command()(lint)
app.command()(shapes)
app.command()(profile)
app.command()(verify)
app.command()(apply)
app.command()(serve)
app.command()(worker)
app.add_typer(keys.app, name="keys")
app.add_typer(tasks.app, name="tasks")
app.command()(doctor)
app.command("device")(ceilings)
app.command()(cost)
app.command()(backfill_leaderboard)
app.command()(remote.submit)
app.command()(remote.jobs)
app.command()(remote.watch)
app.command()(remote.fetch)
app.command()(remote.batch)
app.command()(mcp)


def main() -> None:
    """Entry point of the console script."""
    guarded(_commands)


def _commands() -> None:
    """Runs a command; a database that does not answer is its user's to start."""
    try:
        app()
    except Exception as error:
        from services.db.outages import is_outage

        if not is_outage(error) or "sqlite" in type(getattr(error, "orig", None)).__module__:
            raise
        first = str(getattr(error, "orig", None) or error).strip().partition("\n")[0]
        typer.echo(
            f"the database does not answer: {first}. Start it, or set KERNELWRIGHT_DATABASE_URL to one that does.",
            err=True,
        )
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
