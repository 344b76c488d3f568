"""An inferred space after validation: the disposable process that found it is untrusted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from evaluator.errors import RoleFailure
from evaluator.integrity.static import clean
from evaluator.roles.tool_run import RunsTools
from evaluator.shapes.inference.program import PROGRAM
from evaluator.shapes.space import Space, as_fields, parse_space

DEADLINE_S = 20.0
#: Most seconds between the program's own deadline and the one at which its process is killed.
_GRACE_S = 20.0
#: Why there is no space if the machine, not the file, may be the cause.
TOO_LATE = "the task did not answer in time while its sizes were tried"
_MOST_AXES = 12
_MOST_SENTENCES = 60
_MOST_SOURCE = 1 << 20


@dataclass(frozen=True)
class Inferred:
    """What could be inferred about the sizes of a task.

    Attributes:
        ok: whether there is a space at all.
        reason: why not.
        space: the dimensions, in the form of :mod:`evaluator.shapes.space`.
        tied: names that move with a dimension, by its name (including itself).
        fixed: what cannot be varied, and why.
        sentences: what the user should know beyond the space.
        regimes: sizes at which the module's own code takes another path, by dimension.
        export: ``confirmed``, ``partly`` or ``not exported``.
        source: the task file with these sizes as keyword arguments, without `DIMS`; as untrusted as the task.
        probes: how many sizes were tried.
        elapsed_s: seconds that the search took.
    """

    ok: bool
    reason: str
    space: Space
    tied: dict[str, tuple[str, ...]]
    fixed: dict[str, str]
    sentences: tuple[str, ...]
    regimes: dict[str, tuple[int, ...]]
    export: str
    source: str
    probes: int
    elapsed_s: float

    def as_json(self) -> dict[str, Any]:
        """Plain values without ``source``, the space as in a task's description (and in a POST body)."""
        plain = {**asdict(self), "space": as_fields(self.space)}
        del plain["source"]
        return plain

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Inferred:
        """The inverse of :meth:`as_json`.

        Raises:
            KeyError, TypeError, RoleFailure: it has another form.
        """
        tied = {name: tuple(names) for name, names in plain["tied"].items()}
        regimes = {name: tuple(sizes) for name, sizes in plain["regimes"].items()}
        read = {"space": parse_space(plain["space"]), "tied": tied, "regimes": regimes, "source": ""}
        return cls(**{**plain, **read, "sentences": tuple(plain["sentences"])})


def infer(tools: RunsTools, text: str, deadline_s: float = DEADLINE_S) -> Inferred:
    """The space of a task file. Its code runs only in a disposable sandboxed process.

    Args:
        tools: what runs it.
        text: the task file, untrusted.
        deadline_s: seconds for the search; after that, bounds stay as tight as they are.
    """
    program = PROGRAM.format(deadline_s=deadline_s)
    result = tools.run_tool(program, {"task.py": text}, deadline_s=deadline_s + min(_GRACE_S, 2 * deadline_s))
    if result.status == "timeout":
        return refused(TOO_LATE)
    if result.status == "out_of_memory":
        return refused("the task needs more memory than inference allows at the sizes in its file")
    try:
        return validated(json.loads(result.outputs["space.json"]))
    except (KeyError, ValueError, RecursionError):
        last = result.stdout.strip().splitlines()[-1:]
        return refused(f"inference ended without an answer: {clean(' '.join(last), 200)}")


def refused(reason: str) -> Inferred:
    """No space, for a reason."""
    return Inferred(False, reason, {}, {}, {}, (), {}, "not exported", "", 0, 0.0)


def validated(plain: Any) -> Inferred:
    """Validates an answer of the disposable process, which also runs the task's code.

    Raises:
        ValueError: it has another form.
    """
    try:
        if plain["ok"] is not True:
            fixed = _sentences_by_name(plain.get("fixed", {}))
            return Inferred(
                False, clean(plain["reason"], 600), {}, {}, fixed, (), {}, "not exported", "", 0, 0.0
            )
        dims: dict[str, Any] = {}
        tied: dict[str, tuple[str, ...]] = {}
        dropped = {}
        for axis in plain["axes"]:
            names = tuple(_name(name) for name in axis["names"][:_MOST_AXES])
            if len(dims) + len(plain["choices"]) >= _MOST_AXES:
                dropped[names[0]] = f"a space has at most {_MOST_AXES} dimensions"
                continue
            dims[names[0]] = {field: axis[field] for field in ("min", "max", "multiple_of", "default")}
            tied[names[0]] = names
        for name, values in list(plain["choices"].items())[:_MOST_AXES]:
            dims[_name(name)] = {"choices": values[:32], "default": values[0]}
            tied[name] = (name,)
        regimes = {
            _name(name): tuple(int(size) for size in sizes[:16])
            for name, sizes in list(plain["regimes"].items())[:_MOST_AXES]
        }
        return Inferred(
            True,
            "",
            parse_space(dims),
            tied,
            {**_sentences_by_name(plain["fixed"]), **dropped},
            tuple(clean(sentence, 600) for sentence in plain["sentences"][:_MOST_SENTENCES]),
            regimes,
            {"confirmed": "confirmed", "partly": "partly"}.get(plain["export"], "not exported"),
            str(plain["source"])[:_MOST_SOURCE],
            int(plain["probes"]),
            float(plain["elapsed_s"]),
        )
    except (KeyError, TypeError, AttributeError, IndexError, OverflowError) as error:
        raise ValueError(f"not the form of a space: {type(error).__name__}") from None
    except RoleFailure as failure:
        raise ValueError(failure.sentence) from None


def _name(name: Any) -> str:
    if not (isinstance(name, str) and name.isidentifier() and len(name) <= 80):
        raise TypeError("not a name")
    return name


def _sentences_by_name(plain: Any) -> dict[str, str]:
    return {_name(name): clean(sentence, 600) for name, sentence in list(plain.items())[:64]}
