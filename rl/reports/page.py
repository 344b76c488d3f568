"""Fills the report's template. What the run's files hold is untrusted, and escaped by the template engine."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from agent.pages import environment
from agent.runs import curves, story
from agent.runs.files import Run, number, text
from agent.runs.story import Pair, Ratio

_FOLDER = Path(__file__).parent
_LINES = 300
_MOST_ARMS = 40
_NONE = "not measured"


@dataclass(frozen=True)
class Arm:
    """A line of the ablation table: an arm's figures with their intervals."""

    name: str
    mean: tuple[float | None, float | None, float | None]
    best: tuple[float | None, float | None, float | None]
    accepted: float | None
    judged: float | None


def html(run: Run, ablation: Mapping[str, Any], hacks: Sequence[tuple[str, str, int]]) -> str:
    """The report.

    Args:
        run: what its folder holds.
        ablation: figures by arm, as a replay of the demonstration has them or as `arms_of` makes them of comparisons.
        hacks: of the database of hacks: kind, rule, how many files.
    """
    engine = environment(_FOLDER, {"figure": _figure, "percent": _percent})
    return engine.get_template("report.html.j2").render(
        run=run,
        facts=facts(run),
        curves=[(one, Markup(one.svg)) for one in curves.curves(run.steps)],  # noqa: S704 - made of numbers and escaped words
        ratios=story.ratios(run.comparison),
        arms=arms(ablation),
        claims=_claims(ablation),
        pairs=[(pair, changes(pair)) for pair in story.pairs(run)],
        catches=story.catches(run.samples),
        words=story.words(run.samples),
        hacks=hacks,
        style=Markup((_FOLDER / "report.css").read_text(encoding="utf-8")),  # noqa: S704 - our own file
    )


def facts(run: Run) -> list[tuple[str, str]]:
    """What a reader asks first."""
    config = run.config
    model = story.mapping(config.get("model"))
    kind = story.mapping(model.get("fresh")).get("model_type")
    listed = [
        ("Stage", run.overview.stage),
        (
            "Steps",
            f"{run.overview.steps:,} of {run.overview.planned:,}"
            if run.overview.planned
            else f"{run.overview.steps:,}",
        ),
        ("Seed", _plain(config.get("seed"))),
        ("Model", text(model.get("path"), 200) or (f"fresh, {text(kind, 60)}" if kind else "")),
        ("Trained", {"full": "all weights", "lora": "adapters"}.get(str(model.get("train")), "")),
        ("Trained on", _names(config.get("tasks")) or text(config.get("data"), 200)),
        ("Held out", _names(config.get("held_out"))),
        ("Compared on", text(run.comparison.get("machine"), 200)),
    ]
    return [(name, said) for name, said in listed if said]


def _plain(value: Any) -> str:
    found = number(value)
    return "" if found is None else f"{found:.12g}"


def _names(value: Any) -> str:
    listed = [text(one, 80) for one in value[:20]] if isinstance(value, list) else []
    more = f" and {len(value) - 20} more" if isinstance(value, list) and len(value) > 20 else ""
    return ", ".join(filter(None, listed)) + more


def arms_of(comparisons: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Comparisons of several runs as one table; each run's name with what its model reached, and where on several types of machine."""
    found: dict[str, Any] = {}
    listed = list(comparisons.items())[:_MOST_ARMS]
    types = {text(one.get("machine"), 200) for _, one in listed if one}
    for name, comparison in listed:
        where = f" ({text(comparison.get('machine'), 200) or 'machine not known'})" if len(types) > 1 else ""
        if comparison.get("after"):
            found[f"{name}{where}"] = comparison["after"]
        if comparison.get("before"):
            found.setdefault(f"before training{where}", comparison["before"])
    return {"arms": found}


def arms(ablation: Mapping[str, Any]) -> list[Arm]:
    """The lines of the table."""
    found = []
    for name, value in list(story.mapping(ablation.get("arms")).items())[:_MOST_ARMS]:
        row = story.mapping(value)
        accepted = row.get("accepted", row.get("accepted_share"))
        found.append(
            Arm(
                text(name, 300),
                _interval(row.get("mean")),
                _interval(row.get("best")),
                number(accepted),
                number(row.get("judged")),
            )
        )
    return found


def _interval(value: Any) -> tuple[float | None, float | None, float | None]:
    said = story.mapping(value)
    return number(said.get("value")), number(said.get("low")), number(said.get("high"))


def _claims(ablation: Mapping[str, Any]) -> list[tuple[str, Ratio]]:
    listed = ablation.get("claims")
    found = []
    for one in listed[:_MOST_ARMS] if isinstance(listed, list) else []:
        row = story.mapping(one)
        value, low, high = (number(row.get(name)) for name in ("value", "low", "high"))
        word = "holds" if row.get("holds") is True else "does not hold"
        found.append(
            (
                text(row.get("name"), 20),
                Ratio(text(row.get("measure"), 200), None, None, value, low, high, word),
            )
        )
    return found


def changes(pair: Pair) -> list[tuple[str, str]]:
    """Lines of the file after, with what was there before: ("same" | "added" | "removed", line)."""
    before, after = pair.before.splitlines()[:_LINES], pair.after.splitlines()[:_LINES]
    if not before or not after:
        return [("same", line) for line in before or after]
    kinds = {" ": "same", "+": "added", "-": "removed"}
    return [
        (kinds[line[0]], line[2:]) for line in difflib.Differ().compare(before, after) if line[0] in kinds
    ]


def _figure(value: Any) -> str:
    found = number(value)
    return _NONE if found is None else curves.shown(found)


def _percent(value: Any) -> str:
    found = number(value)
    return _NONE if found is None else f"{100 * found:.0f} %"
