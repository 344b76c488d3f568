"""Turns a job's events into sentences, for the log and the current activity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from evaluator.profiling.bottleneck import ceilings_told
from services.dashboard import formats, words
from services.jobs.views import EventView

Data = Mapping[str, Any]

# Sent several times a second while a candidate is judged: shown as the current activity, never in the log.
PROGRESS_EVENT = "candidate.progress"
PHASES = {"screen": "Screening", "validation": "Validating", "held_out": "Held-out check of"}


@dataclass(frozen=True)
class Said:
    """One event in words; `tone` is as in `words.Word`."""

    what: str
    detail: str = ""
    tone: str = "idle"


def say(name: str, data: Data) -> Said:
    """Describe one event in words.

    Args:
        name: An event name such as ``candidate.judged``; unknown names are shown unchanged.
        data: The event's stored data; any key may be missing.
    """
    label, origin, reason = _label(data) or "a candidate", _origin(data), _text(data, "reason")
    match name:
        case "job.queued":
            return Said("Queued")
        case "job.started":
            return Said("Started", _resumed(data), "busy")
        case "job.progress":
            return Said(_text(data, "text")[:1].upper() + _text(data, "text")[1:])
        case "job.waiting":
            return Said("Waiting for answers", reason)
        case "job.finished":
            return Said("Finished", reason, "good")
        case "job.failed" if data.get("verdict") == "no_improvement":
            return Said("No improvement", reason.removeprefix("no improvement: "), "warn")
        case "job.failed":
            return Said("Failed", reason, "bad")
        case "job.cancelled":
            return Said("Cancelled", reason, "warn")
        case "task.inferred":
            return Said("Sizes that can vary", _text(data, "text").replace("\n", "; "))
        case "task.profiled":
            return Said("What holds the module back", _text(data, "text").replace("\n", " "))
        case "candidate.proposed" if data.get("skipped"):
            return Said(f"Not tried: {label}", _joined(origin, _text(data, "skipped")))
        case "candidate.proposed":
            return Said(f"Proposed: {label}", origin)
        case "candidate.compiled":
            return Said(f"Compiled: {label}", origin)
        case "candidate.retried":
            return Said(f"Judging again: {label}", reason, "warn")
        case "candidate.judged":
            return Said(f"Judged: {label}", _judgement(data), words.verdict(_text(data, "verdict")).tone)
        case "portfolio.changed" if data.get("provisional"):
            when = f"after {formats.seconds(data.get('seconds'))}"
            told = _joined(origin, _speedup(data), when, "provisional: not validated yet")
            return Said(f"First accepted candidate: {label}", told, "good")
        case "portfolio.changed":
            return Said(f"New best: {label}", _joined(origin, _speedup(data)), "good")
        case "proposer.failed":
            return Said("A proposer gave up", _joined(origin, reason), "warn")
        case "proposer.finished":
            return Said("A proposer is done", _joined(origin, _text(data, "text")))
        case "budget.spent" if "tokens" in data:
            cost = f"{formats.counted(data['tokens'], 'token')}, {formats.dollars(data.get('usd'))}"
            return Said("Asked a model", _joined(_text(data, "model"), cost))
        case "budget.spent":
            return Said("Budget spent", _text(data, "text") or reason, "warn")
        case _:
            return Said(words.spaced(name.replace(".", " ")), _text(data, "text") or reason)


def progress(data: Data) -> str:
    """The referee's current activity: `Screening one pass: checking rows=512 (3 of 16)`."""
    said = f"{PHASES.get(_text(data, 'phase'), 'Judging')} {_label(data) or 'a candidate'}"
    text = _text(data, "text") or _text(data, "stage")
    done, total = data.get("done"), data.get("total")
    if isinstance(done, int) and isinstance(total, int) and total > 1:
        text += f" ({min(done + 1, total)} of {total})"
    return f"{said}: {text}" if text else said


def activity(events: Sequence[EventView]) -> str:
    """The job's current activity, according to its events."""
    name, data = (events[-1].name, events[-1].data) if events else ("job.queued", {})
    label = _label(data)
    match name:
        case "job.queued":
            return "Waiting for a worker"
        case "job.waiting":
            return "Waiting for answers to its requests"
        case "job.started":
            return "Reading the module and looking for candidates"
        case "job.progress" if data.get("text"):
            return say(name, data).what
        case "candidate.progress":
            return progress(data)
        case "candidate.proposed" | "candidate.compiled" if label and not data.get("skipped"):
            return f"Judging {label}"
        case "candidate.judged" if data.get("phase") == "held_out":
            return "Writing the bundle"
        case _:
            return "Looking for the next candidate"


def profile(events: Sequence[EventView]) -> list[str]:
    """Sentences on where the reference spends its time; empty if it was not profiled."""
    return [line for line in _text(_profiled(events), "text").splitlines() if line.strip()]


def ceilings(events: Sequence[EventView]) -> str:
    """The measured ceilings behind the profile's roofline; empty if unknown."""
    return ceilings_told(_profiled(events).get("ceilings") or {})


def _profiled(events: Sequence[EventView]) -> Data:
    """The data of the last profile."""
    return next((event.data for event in reversed(events) if event.name == "task.profiled"), {})


def timeline(events: Sequence[EventView], created_at: datetime) -> list[dict[str, Any]]:
    """Events in words, newest first, each with the time since the job was created."""
    return [
        {
            "time": event.time.isoformat(),
            "offset": formats.offset((event.time - created_at).total_seconds()),
            "said": say(event.name, event.data),
        }
        for event in reversed(events)
    ]


def _text(data: Data, key: str) -> str:
    value = data.get(key)
    return "" if value is None else str(value)


def _label(data: Data) -> str:
    return _text(data, "label") or _text(data, "sha256")[:12]


def _origin(data: Data) -> str:
    return words.origin(_text(data, "origin")).label if data.get("origin") else ""


def _speedup(data: Data) -> str:
    return formats.speedup(data.get("geomean_speedup")) if data.get("geomean_speedup") is not None else ""


def _judgement(data: Data) -> str:
    word, phase = _text(data, "verdict"), _text(data, "phase")
    where = words.split(phase).label if phase not in ("", "screen") else ""
    return _joined(
        words.verdict(word).label, where, _speedup(data), _text(data, "reason") if word != "accepted" else ""
    )


def _resumed(data: Data) -> str:
    attempt = data.get("attempt")
    again = isinstance(attempt, int) and attempt > 1
    return f"attempt {attempt}, resuming from what is stored" if again else ""


def _joined(*parts: str) -> str:
    return " · ".join(part for part in parts if part)
