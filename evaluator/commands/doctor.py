"""`doctor`: what this machine can judge, what prevents the rest, and what to do about it."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from evaluator.commands.options import MinimumTier, WorkDir
from evaluator.devices import BACKENDS, open_device
from evaluator.doctor import isolation, machine, toolchain
from evaluator.doctor.findings import BAD, DOUBTFUL, GOOD, Section
from evaluator.errors import EvaluatorError
from evaluator.folders import default_work_dir
from evaluator.referee.processes.fleet import TIERS

_MARKS = {GOOD: "[green]ok[/]", DOUBTFUL: "[yellow]![/]", BAD: "[red]no[/]"}


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Everything as JSON on standard output.")] = False,
    minimum_tier: MinimumTier = "landlock",
    work_dir: WorkDir = None,
) -> None:
    """Say what this machine can judge. Exit status: 0 something can be judged, 2 nothing can."""
    if minimum_tier not in TIERS:
        tell(f"--minimum-tier {minimum_tier}: known are {', '.join(TIERS)}")
        raise typer.Exit(2)
    sections, judgeable = examine(work_dir or default_work_dir(), minimum_tier)
    show(sections, judgeable, as_json=as_json)
    raise typer.Exit(0 if judgeable else 2)


def tell(text: str) -> None:
    """Prints one line for the user on standard error."""
    Console(stderr=True).print(text, style="dim", markup=False, highlight=False)


def examine(work_dir: Path, minimum_tier: str) -> tuple[list[Section], list[str]]:
    """Examines everything.

    Args:
        work_dir: where the referee would work.
        minimum_tier: the weakest sandbox in which something may be judged.

    Returns:
        The sections, and the devices on which something can be judged.
    """
    # The clock first: the other examinations would disturb it.
    clock = machine.examine_timing()
    devices = machine.examine_devices()
    gpu = bool(devices.facts["gpus"])
    tools = toolchain.examine(gpu=gpu)
    resources = machine.examine_resources(work_dir)
    sections = [devices, tools, clock, resources]
    broken = any(line.state == BAD for section in (tools, resources) for line in section.lines)
    judgeable = []
    for name in [name for name, one in BACKENDS.items() if gpu or not one.is_accelerator]:
        try:
            device = open_device(name)
        except EvaluatorError:
            continue  # the device's line has said so
        tell(f"testing every sandbox for {name} with attacks from inside; this takes some seconds")
        section = isolation.examine(device, minimum_tier)
        sections.insert(0, section)
        able = name == "cpu" or tools.facts.get("torch_cuda") is not None
        if section.facts["in_force"] is not None and not broken and able:
            judgeable.append(name)
    return sections, judgeable


def show(sections: list[Section], judgeable: list[str], *, as_json: bool) -> None:
    """Prints an examination."""
    if as_json:
        plain: dict[str, Any] = {
            "can_judge": judgeable,
            "sections": [asdict(section) for section in sections],
        }
        typer.echo(json.dumps(plain, indent=2))
        return
    console = Console()
    for section in sections:
        table = Table("", "what", "found", title=section.title, title_justify="left", expand=True)
        for line in section.lines:
            advice = f"\n[bold]{escape(line.advice)}[/]" if line.advice else ""
            table.add_row(_MARKS[line.state], escape(line.name), escape(line.found) + advice)
        console.print(table)
        for tier, report in section.facts.get("tiers", {}).items():
            if report["attacks"]:
                console.print(_attack_table(tier, report["attacks"]))
    words = f"can be judged here: {', '.join(judgeable)}" if judgeable else "nothing can be judged here"
    console.print(words, style="green" if judgeable else "red", highlight=False)


def _attack_table(tier: str, attacks: list[dict[str, Any]]) -> Table:
    table = Table("", "attack", "how it ended", title=f"Attacks on {tier}", title_justify="left", expand=True)
    for attack in attacks:
        mark = _MARKS[GOOD if attack["blocked"] else BAD]
        table.add_row(mark, escape(attack["name"].replace("_", " ")), escape(attack["how"]))
    return table
