"""Which notes fit a diagnosis."""

from __future__ import annotations

from collections.abc import Sequence

from agent.knowledge.architectures import ARCHITECTURES
from agent.knowledge.reading import BOTTLENECKS, Note, all_notes
from agent.languages import LANGUAGES

DEFAULT_LIMIT = 4
# How profiles and critics call it. The more particular words stand first: "launch_latency" is about launches.
_WORDS = (
    ("launch", ("launch", "overhead", "python", "dispatch", "host")),
    ("sync", ("sync", "barrier", "wait", "contention", "atomic")),
    ("memory", ("memory", "bandwidth", "traffic", "cache", "latency", "transfer")),
    (
        "compute",
        ("compute", "arithmetic", "occupancy", "tensor_core", "instruction", "parallelism", "vector"),
    ),
)


def bottleneck_of(word: str) -> str | None:
    """The bottleneck that a diagnosis means by a word such as "synchronization" or "launch overhead"; None if none."""
    plain = word.lower().replace(" ", "_")
    return next((name for name, parts in _WORDS if any(part in plain for part in parts)), None)


def notes_for(
    bottleneck: str,
    architecture: str,
    language: str | None = None,
    limit: int = DEFAULT_LIMIT,
    notes: Sequence[Note] | None = None,
) -> tuple[Note, ...]:
    """At most `limit` notes for a diagnosis; the same question always has the same answer.

    A note must name the bottleneck and the architecture, and the language where one is given. First come those whose main
    (first named) bottleneck it is, among these the ones for the fewest architectures (what only Hopper has says more on a Hopper
    than what holds everywhere), and then by name.

    Args:
        bottleneck: one of `BOTTLENECKS`.
        architecture: one of `ARCHITECTURES`.
        language: a key of `agent.languages`, or None for any.
        limit: how many at most.
        notes: the notes to choose from; None takes all.

    Raises:
        ValueError: an unknown word, which would otherwise look like "nothing is known".
    """
    for word, known in (
        (bottleneck, BOTTLENECKS),
        (architecture, ARCHITECTURES),
        (language, (None, *(one.key for one in LANGUAGES))),
    ):
        if word not in known:
            raise ValueError(f"{word!r} is unknown; known are {', '.join(filter(None, known))}")
    fitting = [
        note
        for note in (all_notes() if notes is None else notes)
        if bottleneck in note.bottlenecks
        and architecture in note.architectures
        and (language is None or language in note.languages)
    ]
    fitting.sort(key=lambda note: (note.bottlenecks[0] != bottleneck, len(note.architectures), note.name))
    return tuple(fitting[: max(limit, 0)])
