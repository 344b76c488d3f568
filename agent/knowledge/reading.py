"""The notes on techniques, and which of them fit a diagnosis. A note is Markdown with a front matter.

    ---
    title: Convolutions as products
    bottleneck: compute, memory
    architectures: ampere, ada, hopper, blackwell
    languages: triton, cuda
    operators: convolution
    dtypes: float32
    ---

Fields are lists of known words except the title. The last two may be missing: then a note fits every module, else those with one
of these operators and of these dtypes, as `agent.memory.features` names them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from agent.knowledge.architectures import ARCHITECTURES
from agent.languages import LANGUAGES
from agent.memory.features import Features

BOTTLENECKS = ("compute", "memory", "launch", "sync")
NOTES = Path(__file__).resolve().parent / "notes"
DEFAULT_LIMIT = 4
#: More operators than a note names: notes for all modules come after those for some.
_MANY = 99
# How profiles and critics call it. The more particular words stand first: "launch_latency" is about launches.
_CALLED = (
    ("launch", ("launch", "overhead", "python", "dispatch", "host")),
    ("sync", ("sync", "barrier", "wait", "contention", "atomic")),
    ("memory", ("memory", "bandwidth", "traffic", "cache", "latency", "transfer")),
    (
        "compute",
        ("compute", "arithmetic", "occupancy", "tensor_core", "instruction", "parallelism", "vector"),
    ),
)


@dataclass(frozen=True)
class Note:
    """One technique.

    Attributes:
        name: the file's name without its ending.
        title: in a few words.
        bottlenecks: what it helps against, most first.
        architectures: where it applies.
        languages: in which it can be written.
        operators, dtypes: of the modules that it is for; empty for all.
        text: the Markdown below the front matter, without a heading.
    """

    name: str
    title: str
    bottlenecks: tuple[str, ...]
    architectures: frozenset[str]
    languages: frozenset[str]
    operators: frozenset[str]
    dtypes: frozenset[str]
    text: str

    def fits(self, features: Features) -> bool:
        """Whether it is for a module with these features."""
        return (not self.operators or not self.operators.isdisjoint(features.operators)) and (
            not self.dtypes or not self.dtypes.isdisjoint(features.dtypes)
        )


@cache
def all_notes() -> tuple[Note, ...]:
    """Every note, by name."""
    return tuple(_note(path) for path in sorted(NOTES.glob("*.md")))


def _note(path: Path) -> Note:
    _, head, body = path.read_text(encoding="utf-8").split("---\n", 2)
    fields = dict(line.split(": ", 1) for line in head.splitlines())
    words = {key: tuple(value.split(", ")) for key, value in fields.items()}
    return Note(
        path.stem,
        fields["title"],
        words["bottleneck"],
        frozenset(words["architectures"]),
        frozenset(words["languages"]),
        frozenset(words.get("operators", ())),
        frozenset(words.get("dtypes", ())),
        body.strip(),
    )


def bottleneck_of(word: str) -> str | None:
    """The bottleneck that a diagnosis means by a word such as "synchronization" or "launch overhead"; None if none."""
    plain = word.lower().replace(" ", "_")
    return next((name for name, parts in _CALLED if any(part in plain for part in parts)), None)


def notes_for(
    bottleneck: str,
    architecture: str,
    language: str | None = None,
    limit: int = DEFAULT_LIMIT,
    features: Features | None = None,
) -> tuple[Note, ...]:
    """At most `limit` notes for a diagnosis; the same question always has the same answer.

    A note must name the bottleneck and the architecture, and the language where one is given. First come those for the module's dtypes,
    then those for its operators (the fewest first), then those whose main (first named) bottleneck it is. Among these, the ones for the
    fewest architectures come first (what only Hopper has says more on a Hopper than what holds everywhere), and then it goes by name.

    Args:
        bottleneck: one of `BOTTLENECKS`.
        architecture: one of `ARCHITECTURES`.
        language: a key of `agent.languages`, or None for any.
        limit: how many at most.
        features: of the module; None leaves out what is for certain modules.

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
        for note in all_notes()
        if bottleneck in note.bottlenecks
        and architecture in note.architectures
        and (language is None or language in note.languages)
        and note.fits(features or Features())
    ]
    fitting.sort(
        key=lambda note: (
            not note.dtypes,
            len(note.operators) or _MANY,
            note.bottlenecks[0] != bottleneck,
            len(note.architectures),
            note.name,
        )
    )
    return tuple(fitting[: max(limit, 0)])
