"""From accepted candidates to a bundle: choose, assemble optimized.py, judge it, pack it with its evidence."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent.bundle.archive import write_bundle
from agent.bundle.assembly import assemble
from agent.bundle.evidence import BundleContents
from agent.bundle.guards import read_call, write_guards
from agent.candidates import Candidate
from agent.clock import OutOfTime
from agent.dispatch.domain import dims_key, probe_domain
from agent.errors import AssemblyError
from agent.judging import further_verdicts, judge_phase, raise_if_stopped
from agent.portfolio import Entry, Portfolio, build_portfolio, choose_winner, rank, timed_rows
from agent.portfolio.baselines import baseline_entries
from agent.portfolio.cover import MOST_MEMBERS
from agent.portfolio.entries import of_one_platform, speed_text
from agent.portfolio.ranking import RANKING_STEPS, last_ranking, ranking
from agent.records import account
from agent.spec import JobOutcome, JobSpec
from agent.store import PLAN_STEPS, JobStore
from evaluator.counting import counted
from evaluator.description import Description
from evaluator.devices import is_accelerator
from evaluator.verdict import Summary, Verdict, by_size, ran_no_kernel

if TYPE_CHECKING:
    from evaluator.client import Referee

_log = logging.getLogger(__name__)
_ATTEMPTS = 4  # plans tried until one is accepted as a single file
_ONE_MEMBER = 2  # one member plus the reference
NO_IMPROVEMENT = "no_improvement"
"""Verdict word when no candidate is faster than the best baseline; nothing is delivered."""


def deliver(
    spec: JobSpec,
    store: JobStore,
    referee: Referee,
    description: Description,
    entries: Sequence[Entry],
    out_dir: Path,
) -> JobOutcome:
    """Deliver the best plan that passes: assemble it, screen it as one file, and judge it once on held-out shapes.

    Raises:
        agent.judging.JobStopped: if a stop was requested.
        agent.clock.OutOfTime: if the budget has no time to judge optimized.py at adversarial shapes.
    """
    if not entries:
        return JobOutcome(
            "failed", None, "no candidate was accepted and validated, so there is nothing to deliver"
        )
    left, most = of_one_platform(entries), MOST_MEMBERS
    if len(left) < len(entries):
        _log.warning("%s: %d verdicts of another platform are left out", spec.name, len(entries) - len(left))
    judged = {one.sha256 for one in store.candidates() if store.verdict(one.sha256, "screen") is not None}
    nothing = JobOutcome("failed", NO_IMPROVEMENT, _none_faster(left))
    candidates, refused = left, set[str]()
    left = [*left, *baseline_entries(spec.task, spec.device, left, judged)]
    for attempt in range(1, _ATTEMPTS + 1):
        raise_if_stopped(store)
        step = f"{PLAN_STEPS}{attempt}"
        plan = store.step(step)
        if not isinstance(plan, dict):
            plan = _plan(spec, referee, description, left, most)
            if plan is None:
                return nothing
            store.finish_step(f"{RANKING_STEPS}{attempt}", ranking(candidates, plan["members"], refused))
            store.finish_step(step, plan)
        winner_sha256 = plan["members"][0]
        delivered = Candidate(plan["source"], plan["origin"], "optimized.py", winner_sha256, plan["decision"])
        store.add_candidate(delivered)
        screened = judge_phase(spec, store, referee, delivered, "screen", ("adversarial",))
        if screened.verdict == "accepted":
            return _finish(spec, store, referee, description, plan, delivered, out_dir)
        reason = f"optimized.py was not accepted: {screened.verdict}: {screened.reason}"
        if screened.verdict == "not_judged":
            return JobOutcome("failed", "not_judged", reason, winner_sha256)
        nothing = JobOutcome("failed", None, reason)
        if len(plan["members"]) > 1:
            most = _ONE_MEMBER  # the faulty member is unknown; try the best one alone
            continue
        refused.update(plan["members"])
        left = [entry for entry in left if entry.candidate.sha256 not in plan["members"]]
    return nothing


def _none_faster(entries: Sequence[Entry]) -> str:
    """Why nothing is delivered, with the best speed reached."""
    best = rank(entries)[0]
    what = f"{best.candidate.label} (origin {best.candidate.origin})"
    return (
        "no improvement: nothing is confidently faster than the best baseline at any size; the best candidate, "
        f"{what}, reached {speed_text(best)} of its speed on the validation shapes"
    )


def _plan(
    spec: JobSpec, referee: Referee, description: Description, entries: Sequence[Entry], most: int
) -> dict[str, Any] | None:
    """Choose and assemble; returns a JSON value so a resumed job delivers the same file."""
    try:
        portfolio, source = _assembled(spec, referee, description, entries, most)
    except AssemblyError as error:
        chosen = choose_winner([entry for entry in entries if not entry.baseline])
        if chosen is None or chosen[1] == "slower":
            return None
        _log.warning("%s is delivered without a fall-back: %s", spec.name, error)
        winner, decision, reason = chosen
        return {
            "source": _without_fallback(winner.candidate, str(error)),
            "members": [winner.candidate.sha256],
            "origin": winner.candidate.origin,
            "decision": decision,
            "reason": reason,
            "no_fallback": str(error),
        }
    if portfolio is None or portfolio.decision == "slower" or portfolio.winner.baseline:
        return None  # a baseline is the best option
    return {
        "source": source,
        "members": [member.candidate.sha256 for member in portfolio.delivered],
        "baselines": [asdict(member.candidate) for member in portfolio.delivered if member.baseline],
        "origin": portfolio.winner.candidate.origin,
        "decision": portfolio.decision,
        "reason": portfolio.reason,
        "no_fallback": "",
        "dispatch": portfolio.told(),
    }


def _assembled(
    spec: JobSpec, referee: Referee, description: Description, entries: Sequence[Entry], most: int
) -> tuple[Portfolio | None, str]:
    """The portfolio and optimized.py; falls back to the best member alone if several do not fit into one module.

    Raises:
        AssemblyError: if a dispatcher cannot distinguish the calls, or not even one member fits beside the reference.
    """
    call = read_call(spec.task.source)
    places = call.places(description.dims)
    timed = {dims_key(row.dims): row.dims for entry in entries for row in timed_rows(entry.verdict)}
    shapes = spec.shapes or description.shapes
    known = [dims for split in ("visible", "validation") for dims in shapes.get(split) or []]
    domain = probe_domain(spec.task, description, [*known, *timed.values()], places, referee)
    dims = list(write_guards(domain, call, spec.device).dims)
    processors = description.processors if is_accelerator(spec.device) else 0
    failure: AssemblyError | None = None
    for limit in sorted({most, _ONE_MEMBER}, reverse=True):
        portfolio = build_portfolio(
            entries, domain, dims, processors, most=limit, batch_invariant=spec.batch_invariant
        )
        if portfolio is None:
            return None, ""
        members = [member.candidate for member in portfolio.delivered]
        try:
            where = portfolio.winner.verdict.environment
            text = assemble(
                spec.task.name,
                spec.task.source,
                members,
                portfolio.tree,
                domain,
                call,
                spec.device,
                where,
            )
        except AssemblyError as error:
            _log.warning("%s: %d members do not make one module: %s", spec.name, len(members), error)
            failure = error
        else:
            return portfolio, text
    assert failure is not None
    raise failure


def _without_fallback(winner: Candidate, why: str) -> str:
    """The winner alone, for a task whose calls a dispatcher cannot distinguish."""
    comment = (
        "# The winning candidate as it is. It has NO fall-back to the reference: use it only for inputs like those it\n"
        f"# was judged on (evidence.json). Why: {' '.join(why.split())[:300].encode('ascii', 'replace').decode()}\n"
    )
    return comment + winner.source


def _finish(
    spec: JobSpec,
    store: JobStore,
    referee: Referee,
    description: Description,
    plan: dict[str, Any],
    delivered: Candidate,
    out_dir: Path,
) -> JobOutcome:
    """Judge once on the held-out shapes and write the bundle; skip the judging if the budget has no time for it."""
    winner_sha256 = plan["members"][0]
    try:
        verdict = judge_phase(spec, store, referee, delivered, "held_out")
    except OutOfTime as late:
        store.event("budget.spent", {"reason": f"{spec.budget.seconds:g} s", "text": str(late)})
        reason = _sentence_by_validation(store, plan, str(late))
        if plan["decision"] != "faster":
            return JobOutcome("failed", NO_IMPROVEMENT, f"no improvement: {reason}")
        path = _bundle(spec, store, description, plan, delivered, reason, out_dir)
        return JobOutcome("succeeded", "accepted", reason, winner_sha256, path)
    summary = verdict.summary
    screen, validation = (store.verdict(winner_sha256, phase) for phase in ("screen", "validation"))
    visible = screen.summary.by_split.get("visible", {}).get("geomean_speedup") if screen else None
    if visible and summary.geomean_speedup:
        summary = replace(summary, overfit_index=visible / summary.geomean_speedup)
    # Held-out shapes differ from the user's own shapes, on which the winner was measured during validation.
    weighed = [
        one.summary.traffic for one in (verdict, validation) if one is not None and one.summary.traffic
    ]
    summary = replace(summary, traffic=max(weighed, key=lambda figures: figures["share"], default=None))
    if verdict.verdict != "accepted":
        reason = f"optimized.py failed on held-out shapes: {verdict.verdict}: {verdict.reason}"
        return JobOutcome("failed", verdict.verdict, reason, winner_sha256, None, summary)
    reason = _sentence(_members(store, plan)[0], plan, summary, verdict)
    if ran_no_kernel(verdict) and not any(row.decision == "faster" for row in verdict.shapes):
        why = "no improvement: optimized.py ran the reference and none of its kernels at every held-out shape that was watched"
        return JobOutcome("failed", NO_IMPROVEMENT, f"{why}; {reason}", summary=summary)
    if not is_improvement(summary):
        return JobOutcome("failed", NO_IMPROVEMENT, f"no improvement: {reason}", summary=summary)
    path = _bundle(spec, store, description, plan, delivered, reason, out_dir)
    return JobOutcome("succeeded", "accepted", reason, winner_sha256, path, summary)


def _members(store: JobStore, plan: Mapping[str, Any]) -> tuple[Candidate, ...]:
    """The members of a plan in order; baselines come from the plan, since the store does not contain them."""
    by_sha256 = {one.sha256: one for one in (Candidate(**one) for one in plan.get("baselines") or ())}
    by_sha256 |= {candidate.sha256: candidate for candidate in store.candidates()}
    return tuple(by_sha256[sha256] for sha256 in plan["members"])


def _bundle(
    spec: JobSpec,
    store: JobStore,
    description: Description,
    plan: Mapping[str, Any],
    delivered: Candidate,
    reason: str,
    out_dir: Path,
) -> Path:
    members = _members(store, plan)
    contents = BundleContents(
        job_name=spec.name,
        device=spec.device,
        task=spec.task,
        description=description,
        optimized=delivered,
        members=members,
        decision=plan["decision"],
        reason=reason,
        verdicts=_verdicts(store, [*members, delivered]),
        leaderboard=tuple(_leaderboard(store, delivered)),
        no_fallback=plan["no_fallback"],
        models=account(store),
        dispatch=plan.get("dispatch") or {},
    )
    return write_bundle(contents, out_dir)


def _verdicts(store: JobStore, candidates: Sequence[Candidate]) -> tuple[tuple[str, Verdict], ...]:
    """All verdicts of the given candidates, each with its phase."""
    found: list[tuple[str, Verdict]] = []
    for candidate in candidates:
        for phase in ("screen", "validation", "held_out"):
            verdict = store.verdict(candidate.sha256, phase)
            if verdict is not None:
                found.append((phase, verdict))
        found += [("further", one.verdict) for one in further_verdicts(store, candidate.sha256)]
    return tuple(found)


def _leaderboard(store: JobStore, delivered: Candidate) -> list[dict[str, Any]]:
    """One row per judged candidate, including rejected ones; the ranked candidates come first, in rank order."""
    chosen = last_ranking(store.steps(RANKING_STEPS))
    rows = []
    for candidate in store.candidates():
        screen = store.verdict(candidate.sha256, "screen")
        if screen is None or candidate.sha256 == delivered.sha256:
            continue
        last = store.verdict(candidate.sha256, "validation") or screen
        summary = last.summary
        ranked = chosen.get(candidate.sha256, {})
        rows.append(
            {
                "sha256": candidate.sha256,
                "label": candidate.label,
                "origin": candidate.origin,
                "verdict": last.verdict,
                "reason": last.reason,
                "geomean_speedup": ranked.get("geomean_speedup", summary.geomean_speedup),
                "ci95": ranked.get("ci95", summary.geomean_ci95),
                "traffic_speedup": (summary.traffic or {}).get("geomean_speedup"),
                "ranked": ranked or None,
            }
        )
    return sorted(
        rows,
        key=lambda row: (
            (row["ranked"] or {}).get("place", len(rows) + 1),
            -(row["traffic_speedup"] or row["geomean_speedup"] or 0.0),
        ),
    )


def is_improvement(summary: Summary) -> bool:
    """Whether a held-out summary permits delivery: the headline, and the user's traffic if known, reach at least 1.0x."""
    headline = summary.geomean_speedup
    by_traffic: float = (summary.traffic or {}).get("geomean_speedup", 1.0)
    return headline is not None and headline >= 1.0 and by_traffic >= 1.0


def _sentence(
    winner: Candidate,
    plan: Mapping[str, Any],
    summary: Summary,
    verdict: Verdict,
    split: str = "held-out",
) -> str:
    """One sentence with the result of optimized.py on the shapes of `split`."""
    what = f"optimized.py ({winner.label}, origin {winner.origin})"
    speed = summary.geomean_speedup
    if speed is None:
        return f"{what} was accepted, and its speed was not measured"
    ci95 = summary.geomean_ci95
    interval = f" [{ci95[0]:.2f}, {ci95[1]:.2f}]" if ci95 else ""
    count = summary.shapes or sum(row.timed for row in verdict.shapes)
    text = f"{what}: {speed:.2f}x{interval} against the best baseline over {counted(count, f'{split} shape')}"
    if strata := by_size(summary.by_stratum):
        text += f" ({strata})"
    traffic = summary.traffic
    if traffic:
        text += (
            f"; {traffic['geomean_speedup']:.2f}x weighted over {traffic['shapes']} of your own shapes "
            f"({traffic['share']:.0%} of the traffic)"
        )
    if ci95 and ci95[0] <= 1.0 <= ci95[1]:
        text += "; not confidently faster than the best baseline, since the interval holds 1.00x"
    if plan["no_fallback"]:
        text += f"; without a fall-back to the reference, because {plan['no_fallback']}"
    return text


def _sentence_by_validation(store: JobStore, plan: Mapping[str, Any], why: str) -> str:
    """Like `_sentence`, without a held-out judging: reports the validation result of the first member."""
    winner = _members(store, plan)[0]
    validation = store.verdict(winner.sha256, "validation")
    assert validation is not None  # the choice was based on it
    summary = replace(validation.summary, traffic=None)
    text = _sentence(winner, plan, summary, validation, "validation")
    return f"{text}; not measured at held-out shapes: {why}"
