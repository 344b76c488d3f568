"""Rows of the long tables and lists of pages, written by functions: a template takes a step for each cell, and a page has hundreds.

Whatever is not a word or number of ours goes through `escape`, or is markup that did already.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from markupsafe import Markup, escape

from evaluator.verdict import by_size
from services.dashboard import formats, words
from services.dashboard.listing import DiffLine
from services.dashboard.pieces import chip, figure, origin
from services.dashboard.ranking import Row

Json = Mapping[str, Any]

_SIGNS = {"added": "+", "removed": "−"}
_NOT_TIMED = '<td class="n"><span class="unmeasured">not timed</span></td>'


def ranked(rows: Sequence[Row], *, has_traffic: bool, tickable: bool) -> Markup:
    """The leaderboard of a job.

    Args:
        rows: of the candidates that are shown.
        has_traffic: whether the table has the columns for the user's own shapes.
        tickable: whether candidates can be chosen, to be compared.
    """
    return _joined(_ranked(row, has_traffic, tickable) for row in rows)


def _ranked(row: Row, has_traffic: bool, tickable: bool) -> str:
    name = escape(row.candidate.get("label") or row.candidate["sha256"][:12])
    number = escape(row.candidate["id"])
    if row.rank:
        place = str(row.rank)
    else:
        why = (
            f"Measured on {escape(row.elsewhere)}: speedups of two machines are not put in one order"
            if row.elsewhere
            else "Only accepted, measured candidates are ranked"
        )
        place = f'<span class="unmeasured" title="{why}">unranked</span>'
    tick = ""
    if tickable:
        tick = f'<input type="checkbox" name="candidate" value="{number}" form="compare" aria-label="Compare {name}"> '
    crown = ' <span class="crown">winner</span>' if row.is_winner else ""
    crown += _under(row.choice.get("why") or "")
    css = f"{'winner' if row.is_winner else ''}{' out' if row.rank is None and row.verdict_word else ''}"
    if row.geomean is None:
        figures = (
            f'<td colspan="{6 if has_traffic else 4}" class="none">'
            f'<span class="unmeasured">{words.NOT_MEASURED}</span></td>'
        )
    else:
        figures = (
            f'<td class="n"><b>{formats.speedup(row.geomean)}</b>{_under(by_size(row.summary))}</td>\n'
            f'<td class="n">{figure(formats.interval(row.ci95))}</td>\n'
        )
        if has_traffic:
            figures += (
                f'<td class="n"><b>{figure(formats.speedup(row.by_traffic))}</b></td>'
                f'<td class="n">{figure(formats.interval(row.traffic_ci95))}</td>\n'
            )
        elsewhere = f", on another platform ({escape(row.elsewhere)})" if row.elsewhere else ""
        figures += (
            f'<td class="n">{figure(formats.speedup(row.worst))}</td>\n<td>{_where(row)}{elsewhere}</td>'
        )
    return (
        f'<tr class="{css}">\n<td class="n">{place}</td>\n'
        f'<th scope="row">{tick}<a href="/ui/candidates/{number}">{name}</a>{crown}</th>\n'
        f"<td>{origin(row.candidate.get('origin'))}</td>\n{figures}\n"
        f'<td class="n">{formats.count(row.lines)}</td>\n<td>{chip(words.verdict(row.verdict_word))}</td>\n</tr>\n'
    )


def _where(row: Row) -> str:
    where = "visible" if row.measured_on == "screen" else escape(words.split(row.measured_on).label)
    if row.choice:
        return f"{row.choice['shapes']} of {row.choice['of_shapes']} {where} shapes"
    return f"{where} shapes" + _under("the winner was chosen without it" if row.after_choice else "")


def _under(words: str) -> str:
    return f'<span class="under">{escape(words)}</span>' if words else ""


def shapes(found: Sequence[Json], names: Sequence[str], *, has_weights: bool) -> Markup:
    """Times and speedups at each shape.

    Args:
        found: entries of a verdict.
        names: the baselines that have a column.
        has_weights: whether the table has a column for weights.
    """
    return _joined(_shape(shape, names, has_weights) for shape in found)


def _shape(shape: Json, names: Sequence[str], has_weights: bool) -> str:
    weight = ""
    if has_weights:
        given = shape.get("weight")
        said = (
            '<span class="unmeasured">not in the traffic</span>'
            if given is None
            else figure(formats.weight(given))
        )
        weight = f'<td class="n">{said}</td>\n'
    stratum = f'<span class="under">{escape(shape["stratum"])}</span>' if shape.get("stratum") else ""
    correct = shape.get("correct")
    if correct is None:
        verdict = '<span class="unmeasured">not checked</span>'
    else:
        verdict = "yes" if correct else '<span class="chip bad">wrong</span>'
    times = "".join(_baseline(shape, name) for name in names)
    if shape.get("timed"):
        measured = (
            f'<td class="n">{figure(formats.microseconds(shape.get("candidate_us")))}</td>\n'
            f'<td class="n"><b>{figure(formats.speedup(shape.get("speedup")))}</b></td>\n'
            f'<td class="n">{figure(formats.interval(shape.get("ci95")))}</td>\n'
            f"<td>{chip(words.decision(shape.get('decision')))}</td>"
        )
    else:
        measured = f'{_NOT_TIMED * 3}<td><span class="unmeasured">correctness only</span></td>'
    return (
        f'<tr>\n<th scope="row">{escape(formats.dims(shape.get("dims")))}</th>\n{weight}'
        f"<td>{escape(words.split(shape.get('split')).label)}{stratum}</td>\n<td>{verdict}</td>\n{times}{measured}\n</tr>\n"
    )


def _baseline(shape: Json, name: str) -> str:
    baseline = (shape.get("baselines") or {}).get(name)
    best = " best" if name == shape.get("best_baseline") else ""
    if baseline:
        said = figure(formats.microseconds(baseline.get("median_us")))
    else:
        said = f'<span class="unmeasured">{words.NOT_MEASURED if shape.get("timed") else "not timed"}</span>'
    return f'<td class="n{best}">{said}</td>\n'


def differences(lines: Iterable[DiffLine]) -> Markup:
    """Lines of a difference between two sources, which are markup already."""
    return _joined(map(_difference, lines))


def _difference(line: DiffLine) -> str:
    if line.kind == "gap":
        return (
            '<tr class="gap"><td class="ln">⋯</td><td class="ln">⋯</td><td></td>'
            f"<td>continues at line {line.new}</td></tr>\n"
        )
    return (
        f'<tr class="{line.kind}"><td class="ln">{line.old or ""}</td><td class="ln">{line.new or ""}</td>'
        f'<td class="sign">{_SIGNS.get(line.kind, "")}</td><td class="src">{escape(line.html)}</td></tr>\n'
    )


def numbered(lines: Iterable[str]) -> Markup:
    """Lines of a source, which are markup already; what is not is escaped."""
    return _joined(
        f'<tr><td class="ln">{number}</td><td class="src">{escape(line)}</td></tr>\n'
        for number, line in enumerate(lines, 1)
    )


def events(told: Iterable[Json]) -> Markup:
    """A job's log, from `story.timeline`."""
    return _joined(map(_event, told))


def _event(item: Json) -> str:
    said = item["said"]
    detail = f' <span class="detail">{escape(said.detail)}</span>' if said.detail else ""
    return (
        f'<li class="{escape(said.tone)}"><time datetime="{escape(item["time"])}">{escape(item["offset"])}</time> '
        f"<span><b>{escape(said.what)}</b>{detail}</span></li>\n"
    )


def _joined(parts: Iterable[str]) -> Markup:
    return Markup("".join(parts))  # noqa: S704 - every text in them was escaped
