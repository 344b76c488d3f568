"""Derives a job page's data from its candidates: ranks, decisive verdicts, rejections, baselines.

Works on the API's plain JSON objects, so stored verdicts can be rendered without a server.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from evaluator.fingerprint import platform, type_of
from evaluator.sources import lines_of_code
from services.dashboard import formats, words

Json = Mapping[str, Any]
_ROUND, _FOLLOWS = re.compile(r" round (\d{1,3})\b"), re.compile(r" #\d+ (repaired|again)\b")

# Most informative phase first: held-out shapes report, validation shapes choose, visible shapes screen.
PHASES = ("held_out", "validation", "screen")


@dataclass
class Row:
    """One line of the leaderboard. Speedups are against the best baseline at each shape.

    `by_traffic` is the weighted mean over the user's own shapes, ``None`` if there are none. Properties compute values that
    only displayed lines need: there are hundreds of rows, and a page shows thirty.
    """

    candidate: Json
    verdict_word: str | None
    geomean: float | None
    by_traffic: float | None
    measured_on: str
    is_winner: bool
    summary: Json
    rank: int | None = None
    #: Its standing when the winner was chosen (`services.jobs.views.ChoiceView`); empty if it did not take part in that choice.
    choice: Json = field(default_factory=dict)
    #: Validated, but it took no part in the choice of the winner.
    after_choice: bool = False
    #: Its machine, if it was measured on another platform than the ranked rows; otherwise empty.
    elsewhere: str = ""

    @property
    def ci95(self) -> tuple[float, float] | None:
        """The 95 % interval of `geomean`."""
        return formats.interval_bounds(self.summary.get("geomean_ci95"))

    @property
    def traffic_ci95(self) -> tuple[float, float] | None:
        """The 95 % interval of `by_traffic`."""
        return formats.interval_bounds(traffic_of(self.summary).get("geomean_ci95"))

    @property
    def worst(self) -> float | None:
        """The speedup at the worst shape."""
        return formats.finite(self.summary.get("worst_speedup"))

    @property
    def lines(self) -> int | None:
        """Lines of code; precounted in candidate lists without sources."""
        counted = self.candidate.get("lines")
        return counted if isinstance(counted, int) else lines_of_code(self.candidate.get("source"))


@dataclass(frozen=True)
class Reason:
    """Why one candidate was rejected."""

    candidate: Json
    verdict_word: str
    sentence: str
    findings: tuple[Json, ...]


def verdict_in(candidate: Json, phase: str) -> Json | None:
    """The stored verdict of one phase, if there is one."""
    found = candidate.get(phase)
    return found if isinstance(found, Mapping) and found else None


def best_verdict(candidate: Json, phases: Sequence[str] = PHASES) -> tuple[str, Json] | None:
    """(phase, verdict) of the first of `phases` that has a verdict."""
    for phase in phases:
        found = verdict_in(candidate, phase)
        if found is not None:
            return phase, found
    return None


def summary_of(verdict: Json | None) -> Json:
    """A verdict's summary; empty if nothing was measured."""
    found = (verdict or {}).get("summary")
    return found if isinstance(found, Mapping) else {}


def traffic_of(summary: Json) -> Json:
    """A summary's traffic-weighted figures over the user's own shapes; empty if none was timed."""
    found = summary.get("traffic")
    return found if isinstance(found, Mapping) else {}


def weighted_verdict(candidate: Json | None) -> tuple[str, Json] | None:
    """(phase, verdict) of the most informative phase that timed traffic shapes."""
    for phase in ("validation", "screen"):
        found = verdict_in(candidate or {}, phase)
        if found is not None and traffic_of(summary_of(found)):
            return phase, found
    return None


def chosen_by(summary: Json) -> float | None:
    """The ranking figure: the traffic-weighted mean if known, else the plain mean."""
    weighted = formats.finite(traffic_of(summary).get("geomean_speedup"))
    return weighted if weighted is not None else formats.finite(summary.get("geomean_speedup"))


def speedup_of(candidate: Json) -> float | None:
    """An accepted candidate's speedup at validation shapes, else at the first ones; ``None`` if it was not timed."""
    if candidate.get("verdict") != "accepted":
        return None
    for phase in ("validation", "screen"):
        value = chosen_by((candidate.get(phase) or {}).get("summary") or {})
        if value is not None and value > 0:
            return value
    return None


@dataclass
class Stage:
    """What one stage of a job's search brought. Speedups are `speedup_of` the fastest candidate.

    Attributes:
        name: for readers.
        judged, accepted: candidates.
        before: of those that came before its first one.
        best: of its own.
    """

    name: str
    before: float | None
    judged: int = 0
    accepted: int = 0
    best: float | None = None


def stages(candidates: Iterable[Json]) -> list[Stage]:
    """The stages of a search, in order of their first candidate; candidates are in order of arrival."""
    found: dict[str, Stage] = {}
    so_far: float | None = None
    for candidate in candidates:
        if candidate.get("verdict") in (None, "pending"):
            continue
        name, speedup = _stage(candidate), speedup_of(candidate)
        if name not in found:
            found[name] = Stage(name, so_far)
        stage = found[name]
        stage.judged += 1
        stage.accepted += candidate.get("verdict") == "accepted"
        stage.best = max(filter(None, (stage.best, speedup)), default=None)
        so_far = max(filter(None, (so_far, speedup)), default=None)
    return list(found.values())


def _stage(candidate: Json) -> str:
    """The stage that a candidate's origin and label name, as `agent.proposers.llm` and `agent.strategy` write them."""
    label = str(candidate.get("label"))
    if candidate.get("origin") not in ("llm", "policy"):
        return "without a model"
    if found := _ROUND.search(label):
        return f"round {found[1]}"
    return "follow-ups" if _FOLLOWS.search(label) else "first attempts"


def is_delivery(candidate: Json) -> bool:
    """Whether this is the `optimized.py` assembled around the winner, not a proposal.

    Only the agent can set a parent, so an external file of that name is still an ordinary candidate.
    """
    return candidate.get("label") == "optimized.py" and bool(candidate.get("parent_sha256"))


def leaderboard(candidates: Iterable[Json], winner_sha256: str | None) -> list[Row]:
    """Rank a job's candidates.

    Only accepted candidates have a rank. Once the winner is chosen, the candidates of that choice keep its order and its figures
    over all validation shapes. The others, and before the choice all of them, are ordered by the geometric mean over the first
    validation shapes, weighted by traffic if known; held-out shapes do not affect the order. Candidates without a validation
    figure follow, then those measured on another platform (the job was resumed elsewhere), which have no rank, since speedups of
    two machines are not comparable; then those still being judged, then the rejected ones.
    """
    rows = [_row(candidate, winner_sha256) for candidate in candidates if not is_delivery(candidate)]
    _name_where_elsewhere(rows)
    is_chosen = any(row.choice for row in rows)
    for row in rows:
        row.after_choice = is_chosen and not row.choice and row.measured_on == "validation"
    rows.sort(key=_order)
    rank = 0
    for row in rows:
        if row.verdict_word == "accepted" and row.geomean is not None and not row.elsewhere:
            rank += 1
            row.rank = rank
    return rows


def _name_where_elsewhere(rows: Sequence[Row]) -> None:
    """Set `elsewhere` on rows measured on another platform than the winner's, or without a winner than the most common one."""
    where: dict[int, Json] = {}
    for index, row in enumerate(rows):
        found = verdict_in(row.candidate, row.measured_on) if row.measured_on else None
        environment = (found or {}).get("environment")
        if row.geomean is not None and isinstance(environment, Mapping) and environment:
            where[index] = environment
    if all(environment == next(iter(where.values())) for environment in where.values()):
        return  # the common case, cheap to detect
    keys = {index: platform(environment) for index, environment in where.items()}
    if len(set(keys.values())) < 2:
        return
    counts = Counter(keys.values())
    main = next(
        (keys[index] for index, row in enumerate(rows) if row.is_winner and index in keys),
        max(counts, key=lambda key: counts[key]),
    )
    for index, environment in where.items():
        if keys[index] != main:
            rows[index].elsewhere = type_of(environment) or "another platform"


def _row(candidate: Json, winner_sha256: str | None) -> Row:
    found = best_verdict(candidate, ("validation", "screen"))
    phase, verdict = found if found else ("", {})
    choice: Json = candidate.get("choice") or {}
    summary = _as_chosen(summary_of(verdict), choice)
    return Row(
        candidate=candidate,
        verdict_word=candidate.get("verdict"),
        geomean=formats.finite(summary.get("geomean_speedup")),
        by_traffic=formats.finite(traffic_of(summary).get("geomean_speedup")),
        measured_on=phase,
        is_winner=bool(winner_sha256) and candidate.get("sha256") == winner_sha256,
        summary=summary,
        choice=choice,
    )


def _as_chosen(summary: Json, choice: Json) -> Json:
    """Replace the summary's figures with those of the choice; traffic-weighted ones if traffic is known."""
    if not choice:
        return summary
    figures = {name: choice[name] for name in ("geomean_speedup", "ci95")}
    figures["geomean_ci95"] = figures.pop("ci95")
    if traffic := traffic_of(summary):
        return {**summary, "traffic": {**traffic, **figures}}
    return {**summary, **figures, "worst_speedup": choice["worst_speedup"]}


def _order(row: Row) -> tuple[int, bool, int, float, str]:
    group = {"accepted": 0, None: 1, "pending": 1}.get(row.verdict_word, 2)
    if group == 0 and row.choice:
        return group, bool(row.elsewhere), -1, row.choice["place"], ""
    phase = {"validation": 0, "screen": 1}.get(row.measured_on, 2) if group == 0 else 0
    return (
        group,
        bool(row.elsewhere),
        phase,
        -(row.by_traffic or row.geomean or 0.0),
        str(row.candidate.get("created_at") or ""),
    )


def rejections(candidates: Iterable[Json]) -> list[Reason]:
    """The rejected candidates, with the reason in words."""
    turned_down = []
    for candidate in candidates:
        word = candidate.get("verdict")
        if word in (None, "accepted", "pending"):
            continue
        found = best_verdict(candidate)
        findings = candidate.get("findings") or (found[1].get("findings") if found else None) or []
        turned_down.append(
            Reason(
                candidate=candidate,
                verdict_word=str(word),
                sentence=str(candidate.get("reason") or words.verdict(word).sentence),
                findings=tuple(finding for finding in findings if isinstance(finding, Mapping)),
            )
        )
    return turned_down


def shapes_of(verdict: Json | None) -> list[Json]:
    """A verdict's shapes, sorted by split and then by the best baseline's time, fastest first.

    Shapes without a time come last in their split, in their original order.
    """
    order = {name: index for index, name in enumerate(words.SPLIT_ORDER)}

    def size(shape: Json) -> tuple[int, float]:
        return order.get(str(shape.get("split")), len(order)), formats.finite(
            shape.get("baseline_us")
        ) or math.inf

    return sorted(
        (shape for shape in (verdict or {}).get("shapes") or [] if isinstance(shape, Mapping)), key=size
    )


def timed_shapes(verdict: Json | None) -> list[Json]:
    """The timed shapes, in the order of `shapes_of`."""
    return [shape for shape in shapes_of(verdict) if shape.get("timed")]


def baseline_names(shapes: Iterable[Json]) -> list[str]:
    """Every baseline that was timed at any of the shapes, in order of appearance."""
    names: dict[str, None] = {}
    for shape in shapes:
        for name in shape.get("baselines") or {}:
            names.setdefault(str(name))
    return list(names)


def delivered(
    job: Json, candidates: Sequence[Json], held_out: Json | None = None
) -> tuple[Json | None, str, Json | None]:
    """The result to show for the job: (candidate, phase, verdict).

    The winner with the held-out verdict of the module built around it; before that verdict exists, the winner or leading
    candidate with its own most informative verdict.
    """
    for shown in (job.get("winner"), job.get("best")):
        sha256 = (shown or {}).get("sha256")
        candidate = next((one for one in candidates if sha256 and one.get("sha256") == sha256), None)
        if candidate is None:
            continue
        if held_out:
            return candidate, "held_out", held_out
        found = best_verdict(candidate)
        return candidate, *(found if found else ("", None))
    return None, "", None


def overfit_index(candidates: Sequence[Json], held_out: Json | None) -> float | None:
    """The delivered module's visible over held-out geometric mean; above 1 suggests overfitting to visible shapes.

    The two splits are judged at different times, so it combines two verdicts. If the delivered file was not timed at the
    visible shapes, the figure of the winner it was built around is used.
    """
    stated = formats.finite(summary_of(held_out).get("overfit_index"))
    if stated is not None:
        return stated
    module: Json = next((one for one in reversed(candidates) if is_delivery(one)), {})
    winner: Json = next((one for one in candidates if one.get("sha256") == module.get("parent_sha256")), {})
    unseen = formats.finite(summary_of(held_out).get("geomean_speedup"))
    for candidate in (module, winner):
        visible = formats.finite(summary_of(verdict_in(candidate, "screen")).get("geomean_speedup"))
        if visible and unseen:
            return visible / unseen
    return None


def environment_of(candidates: Iterable[Json]) -> Json:
    """The measurement environment, from the newest candidate whose verdict records one."""
    for candidate in reversed(list(candidates)):
        found = best_verdict(candidate)
        if found is not None and (environment := how_measured(found[1])):
            return environment
    return {}


def how_measured(verdict: Json | None) -> Json:
    """A verdict's environment and the precision it was judged in."""
    found = (verdict or {}).get("environment")
    if not isinstance(found, Mapping) or not found:
        return {}
    return {**found, "precision": (verdict or {}).get("precision") or None}
