"""Rows, figures, bars and tables of :mod:`benchmarks.real_modules`."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from evaluator.batch.run import UNJUDGED

STRATA = ("own", "near", "small")
#: A row that this program could not bring to a verdict.
CRASHED = "crashed"
_DIGITS = 6
_DETAIL_CHARACTERS = 1500
#: How far the first quad may lie outside the range of the others, as a log ratio: that of two quads of one kind differs by less.
_EDGE = 0.01
_LEAST_QUADS = 4


@dataclass(frozen=True)
class Bar:
    """One figure beside what it must reach.

    Attributes:
        name: what is measured.
        found: the figure, in words.
        wanted: the bar, in words.
        held: None where nothing was measured.
    """

    name: str
    found: str
    wanted: str
    held: bool | None


def row_of(verdict: dict[str, Any]) -> dict[str, Any]:
    """What is kept of a verdict, as JSON: lines of a batch hold them, too."""
    shapes = verdict.get("shapes") or []
    summary = verdict.get("summary") or {}
    accepted = verdict["verdict"] == "accepted"
    return {
        "verdict": verdict["verdict"],
        "reason": str(verdict.get("reason") or ""),
        "detail": "" if accepted else str(verdict.get("detail") or "")[-_DETAIL_CHARACTERS:],
        "findings": [one["rule"] for one in verdict.get("findings") or []],
        "elapsed_s": verdict.get("elapsed_s"),
        "stages_s": {name: round(seconds, 3) for name, seconds in (verdict.get("stages_s") or {}).items()},
        **{name: verdict.get(name) for name in ("setup_s", "first_call_s", "compile_s")},
        "aa": (verdict.get("timing") or {}).get("aa"),
        "geomean_speedup": summary.get("geomean_speedup"),
        "by_stratum": {
            name: one.get("geomean_speedup") for name, one in (summary.get("by_stratum") or {}).items()
        },
        "checked": len(shapes),
        "shapes": [
            {
                **{
                    name: one.get(name)
                    for name in ("dims", "split", "stratum", "speedup", "ci95", "decision")
                },
                **{name: one.get(name) for name in ("best_baseline", "baseline_us", "candidate_us")},
                "log_ratios": rounded(one["log_ratios"]),
            }
            for one in shapes
            if one.get("timed")
        ],
    }


def crashed(reason: str) -> dict[str, Any]:
    """The row of what never came to a verdict."""
    return row_of({"verdict": CRASHED, "reason": reason})


def rounded(log_ratios: Iterable[float]) -> list[float]:
    """Log ratios with as many digits as they are worth."""
    return [round(value, _DIGITS) for value in log_ratios]


def is_judged(row: dict[str, Any]) -> bool:
    """Whether the referee said something of the candidate."""
    return row["verdict"] not in (*UNJUDGED, CRASHED)


# -- single figures ----------------------------------------------------------------------------------------------------


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which that share lies (nearest rank)."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def edge_quads(rows: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """How often the first quad of a timing, and for comparison the last one, lies in the range of the others.

    Any one of n like values is the lowest or the highest in 2 of n cases, so ``strict`` alone says little; ``by_chance`` is what to
    expect of it.
    """
    timings = [one["log_ratios"] for row in rows for one in row["shapes"]]
    timings = [quads for quads in timings if len(quads) >= _LEAST_QUADS]
    found: dict[str, Any] = {"timings": len(timings)}
    if not timings:
        return found
    for name, place in (("first", 0), ("last", -1)):
        outside = []
        for quads in timings:
            others = [value for at, value in enumerate(quads) if at != place % len(quads)]
            outside.append(max(min(others) - quads[place], quads[place] - max(others), 0.0))
        found[name] = {
            "strict": _share(value == 0 for value in outside),
            "within_1_percent": _share(value <= _EDGE for value in outside),
            "worst": max(outside),
        }
    found["by_chance"] = statistics.fmean(1 - 2 / len(quads) for quads in timings)
    return found


def agreement(runs: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The reference against itself at the file's own sizes: median, worst, and the share within 1 %."""
    ratios = [math.exp(statistics.median(run["log_ratios"])) for run in runs if run.get("log_ratios")]
    if not ratios:
        return {"modules": 0}
    return {
        "modules": len(ratios),
        "median": statistics.median(ratios),
        "worst": max(ratios, key=lambda ratio: abs(math.log(ratio))),
        "within_1_percent": _share(abs(ratio - 1) <= 0.01 for ratio in ratios),
    }


def seconds(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Count, median, 95th percentile and longest of the wall-clock seconds of rows."""
    walls = [row["wall_s"] for row in rows]
    if not walls:
        return {"rows": 0}
    return {
        "rows": len(walls),
        "median": statistics.median(walls),
        "p95": percentile(walls, 0.95),
        "longest": max(walls),
    }


def stage_shares(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Share of the wall-clock time by stage, the largest first; ``other`` is what no stage of the verdict has."""
    total = sum(row["wall_s"] for row in rows)
    spent: Counter[str] = Counter()
    for row in rows:
        spent.update(row["stages_s"])
        spent["other"] += max(row["wall_s"] - sum(row["stages_s"].values()), 0.0)
    return {name: value / total for name, value in spent.most_common()} if total else {}


def figures(content: dict[str, Any]) -> dict[str, Any]:
    """Everything that is said of the rows."""
    modules, rows = content["modules"], list(content["rows"].values())
    runnable = {name for name, one in modules.items() if one["fits"]}
    own = [row for row in rows if row["kind"] == "own"]
    due = [row for row in rows if row["module"] in runnable]
    ours = [row for row in due if not is_judged(row)]
    judged = [row for row in rows if is_judged(row)]
    batch = content["batch"].get("rows") or {}
    batch_refused = [
        f"{name}: {row['verdict']}, {row['reason']}" for name, row in batch.items() if not is_judged(row)
    ]
    kept, first = ([row for row in judged if row["first_look"] == first_look] for first_look in (False, True))
    return {
        "modules": len(modules),
        "fit_in_half": len(runnable),
        "not_due": {
            name: one["error"] or "needs more than half" for name, one in modules.items() if not one["fits"]
        },
        "own_judged": [sum(is_judged(row) for row in own if row["module"] in runnable), len(runnable)],
        "own_accepted": [
            sum(row["verdict"] == "accepted" for row in own if row["module"] in runnable),
            len(runnable),
        ],
        "rows_judged": [len(due) - len(ours), len(due)],
        "refused": [f"{row['module']} {row['kind']}: {row['verdict']}, {row['reason']}" for row in ours],
        "memory": [
            f"{row['module']} {row['kind']}: {row['reason']}"
            for row in due
            if row["verdict"] == "out_of_memory" or (not is_judged(row) and "memory" in row["reason"])
        ],
        "tracebacks": [
            f"{row['module']} {row['kind']}"
            for row in rows
            if row["verdict"] == CRASHED or any(word in row["reason"] for word in ("Traceback", "Bug:"))
        ],
        "verdicts": dict(Counter(f"{row['kind']}: {row['verdict']}" for row in rows)),
        "kept_s": seconds(kept),
        "first_look_s": seconds(first),
        "per_minute_one_referee": 60 * len(rows) / sum(row["wall_s"] for row in rows) if rows else None,
        "batch_per_minute": batch_rate(content),
        "batch_judged": [len(batch) - len(batch_refused), len(batch)],
        "batch_refused": batch_refused,
        "aa": agreement(content["aa"].values()),
        "quads": edge_quads(judged),
        "stage_shares": {"kept": stage_shares(kept), "first look": stage_shares(first)},
    }


def batch_rate(content: dict[str, Any]) -> float | None:
    """Candidates a minute over all runs of the batch, starts of referees included."""
    runs = content["batch"].get("runs") or []
    judged, elapsed_s = sum(run["judged"] for run in runs), sum(run["elapsed_s"] for run in runs)
    return 60 * judged / elapsed_s if judged else None


def bars(found: dict[str, Any]) -> list[Bar]:
    """The bars that these figures can be held against."""
    kept, first, aa, quads = found["kept_s"], found["first_look_s"], found["aa"], found["quads"]
    rate = found["batch_per_minute"]
    return [
        _of("modules that fit in half of the memory: judged", found["own_judged"]),
        _of("the reference accepted as its own candidate", found["own_accepted"]),
        _of("candidates of these modules: judged", found["rows_judged"]),
        Bar("rows with a traceback", str(len(found["tracebacks"])), "0", not found["tracebacks"] if kept["rows"] or first["rows"] else None),
        _seconds("a verdict, baselines kept: median", kept, "median", 8.0),
        _seconds("a verdict, baselines kept: 95th percentile", kept, "p95", 20.0),
        _seconds("first look at a module: longest", first, "longest", 25.0),
        Bar("candidates a minute, batch", f"{rate:.1f}" if rate else "", ">= 12", None if rate is None else rate >= 12),
        _of("candidates of the batch: judged", found["batch_judged"]),
        Bar(
            "A/A at own, median over modules",
            f"{aa['median']:.4f} ({aa['modules']} modules)" if aa["modules"] else "",
            "1 +- 0.003",
            abs(aa["median"] - 1) <= 0.003 if aa["modules"] else None,
        ),
        _share_bar("A/A at own within 1 %", aa.get("within_1_percent")),
        _share_bar(
            "first quad inside the others' range, or within 1 % of it",
            quads["first"]["within_1_percent"] if quads["timings"] else None,
        ),
    ]  # fmt: skip


def _of(name: str, counts: Sequence[int]) -> Bar:
    part, whole = counts
    return Bar(name, f"{part} of {whole}", "all", part == whole if whole else None)


def _seconds(name: str, found: dict[str, Any], field: str, most: float) -> Bar:
    if not found["rows"]:
        return Bar(name, "", f"<= {most:.0f} s", None)
    return Bar(name, f"{found[field]:.1f} s ({found['rows']} rows)", f"<= {most:.0f} s", found[field] <= most)


def _share_bar(name: str, share: float | None) -> Bar:
    return Bar(
        name,
        "" if share is None else f"{100 * share:.1f} %",
        ">= 95 %",
        None if share is None else share >= 0.95,
    )


def _share(flags: Iterable[bool]) -> float:
    values = list(flags)
    return sum(values) / len(values)


# -- tables ------------------------------------------------------------------------------------------------------------


def show(content: dict[str, Any], console: Console) -> None:
    """Prints the modules, the time by stage, what was refused, and the bars; puts figures and bars into ``content``."""
    found = figures(content)
    held = bars(found)
    content["figures"], content["bars"] = found, [asdict(bar) for bar in held]
    console.print(_modules(content))
    stages = Table("stage", *found["stage_shares"], title="where the time goes, share of all seconds")
    for name in dict.fromkeys(name for shares in found["stage_shares"].values() for name in shares):
        stages.add_row(
            name, *(f"{100 * shares.get(name, 0.0):.1f} %" for shares in found["stage_shares"].values())
        )
    console.print(stages)
    for title in ("not_due", "refused", "memory", "batch_refused"):
        lines = found[title].items() if isinstance(found[title], dict) else found[title]
        for line in lines:
            words = ": ".join(line) if isinstance(line, tuple) else line
            console.print(f"{title.replace('_', ' ')}: {words}", highlight=False, markup=False)
    if found["quads"]["timings"]:
        console.print(f"quads: {found['quads']}", highlight=False, markup=False)
    table = Table("bar", "found", "wanted", "", title="bars")
    for bar in held:
        table.add_row(
            bar.name, bar.found, bar.wanted, {True: "held", False: "MISSED", None: "not measured"}[bar.held]
        )
    console.print(table)


def _modules(content: dict[str, Any]) -> Table:
    kinds = list(dict.fromkeys(row["kind"] for row in content["rows"].values()))
    table = Table(
        "module", "first look s", *(f"{kind} at own" for kind in kinds), *(f"best {name}" for name in STRATA)
    )
    table.title = "speedup over the best baseline at the file's own sizes, seconds of the verdict"
    for name in content["modules"]:
        rows = {kind: content["rows"].get(f"{name}/{kind}") for kind in kinds}
        looked = [row["wall_s"] for row in rows.values() if row and row["first_look"]]
        shapes = [shape for row in rows.values() if row for shape in row["shapes"]]
        best = [
            ", ".join(dict.fromkeys(one["best_baseline"] for one in shapes if one["stratum"] == stratum))
            for stratum in STRATA
        ]
        table.add_row(
            name[:40], f"{looked[0]:.0f}" if looked else "", *(_cell(rows[kind]) for kind in kinds), *best
        )
    return table


def _cell(row: dict[str, Any] | None) -> str:
    if row is None:
        return ""
    at_own = own_speedup(row)
    return f"{f'{at_own:.2f}x' if at_own else row['verdict']} {row['wall_s']:.0f} s"


def own_speedup(row: dict[str, Any]) -> float | None:
    """The speedup at the file's own sizes, None where that was not timed."""
    return next((one["speedup"] for one in row["shapes"] if one["stratum"] == "own"), None)
