"""Display text for machine words in verdicts, origins and events.

Unknown words are shown with underscores as spaces, never hidden, so a newer evaluator can add a rule without breaking an
older page.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from evaluator.counting import prefixed

NOT_MEASURED = "not measured"


@dataclass(frozen=True)
class Word:
    """The display form of a machine word.

    Attributes:
        label: Two or three words, for tables.
        tone: ``good``, ``bad``, ``warn``, ``idle`` or ``busy``; chooses color and mark.
        sentence: One self-contained sentence.
    """

    label: str
    tone: str
    sentence: str


ORIGINS: dict[str, Word] = {
    "human": Word(
        "human: kernel library",
        "human",
        "Hand-written kernel from this project's kernel library, matched to the module; no language model took part.",
    ),
    "compiler": Word(
        "compiler",
        "compiler",
        "Made by torch.compile or from the code that its Inductor back end generated; no language model took part.",
    ),
    "llm": Word("LLM", "llm", "Written by a language model through the configured API."),
    "policy": Word("policy: fine-tuned model", "llm", "Written by this project's own fine-tuned model."),
    "external": Word("external", "external", "Sent in through the API by a person or another tool."),
}

STATES: dict[str, Word] = {
    "queued": Word("queued", "idle", "Waiting for a worker."),
    "running": Word("running", "busy", "A worker is on it; this page follows along."),
    "waiting": Word(
        "waiting", "idle", "Its requests to models wait for answers; hand them in and it goes on."
    ),
    "cancelling": Word("cancelling", "warn", "Asked to stop; it stops after the step in progress."),
    "succeeded": Word("succeeded", "good", "Done, with a bundle to download."),
    "failed": Word("failed", "bad", "Ended without a result; the reason is below."),
    "cancelled": Word("cancelled", "idle", "Stopped on request; what was judged so far is kept."),
}

VERDICTS: dict[str, Word] = {
    "accepted": Word("accepted", "good", "Same results as the reference on every shape that was checked."),
    "incorrect": Word(
        "incorrect", "bad", "Its results differ from the float64 reference by more than the tolerance."
    ),
    "compile_error": Word("compile error", "bad", "It did not load or compile."),
    "runtime_error": Word("runtime error", "bad", "It raised an error or its process died while running."),
    "timeout": Word("timeout", "bad", "It did not finish before its deadline and was stopped."),
    "out_of_memory": Word("out of memory", "bad", "It asked for more memory than it may use."),
    "cheating": Word("cheating", "cheat", "It did not do the work that it claims to do faster."),
    "contract_violation": Word(
        "contract violation", "bad", "It is not a drop-in replacement for the reference."
    ),
    "task_rejected": Word("task rejected", "bad", "The reference module itself cannot be judged."),
    "not_judged": Word(
        "not judged", "warn", "The referee failed, not the candidate; it says nothing about it."
    ),
    "no_improvement": Word(
        "no improvement",
        "warn",
        "Nothing that was found is faster than the best baseline, so nothing is delivered.",
    ),
    "pending": Word("in progress", "busy", "Not judged yet."),
}

RULES: dict[str, str] = {
    "stale_weights": "computed with weights from before they changed",
    "stale_output": "returned an earlier result although the inputs had changed",
    "broken_chain": "did not compute its calls one after the other",
    "input_tampered": "tampered with its inputs while the clock ran",
    "background_process": "left a process of its own running",
    "constant_output": "returned the same value in every element",
    "wrong_result": "computed different values from the reference",
    "input_mutated": "changed its inputs",
    "output_count": "returns another number of tensors",
    "output_contract": "returned a tensor of another kind than the reference",
    "output_aliases_input": "returned a view of its input's memory",
    "output_overwritten": "overwrote a result that it had returned earlier",
    "baseline_unavailable": "some baselines could not be made on this machine",
    "decoy_kernel": "brings kernels that do not matter to its result",
    "fallback_ran": "brings kernels that did not run at every shape",
    "not_replaced": "launches kernels in a way that leaves untested whether they matter",
    "not_observed": "could not be watched, so it is not known which kernels run",
    "not_analyzed": "has a text that could not be analyzed",
    "no_float64_oracle": "the reference does not run in float64, so its own precision was used",
}

SPLITS: dict[str, Word] = {
    "held_out": Word(
        "held out", "idle", "Shapes that no proposer ever saw; run once, on the delivered module."
    ),
    "validation": Word("validation", "idle", "Shapes that choose the winner; proposers do not see them."),
    "visible": Word("visible", "idle", "Shapes that proposers may tune on."),
    "adversarial": Word(
        "adversarial", "idle", "Awkward shapes and values, checked for correct results only."
    ),
}
SPLIT_ORDER = ("held_out", "validation", "visible", "adversarial")

DECISIONS: dict[str, Word] = {
    "faster": Word("faster", "good", "The whole interval lies above 1.0×."),
    "same": Word("same", "idle", "The interval is narrow and contains 1.0×."),
    "slower": Word("slower", "bad", "The whole interval lies below 1.0×."),
    "undecided": Word("undecided", "warn", "The interval is too wide to say."),
}


def spaced(word: str) -> str:
    """A machine word with spaces instead of underscores."""
    return word.replace("_", " ")


def _look_up(table: Mapping[str, Word], word: str | None, fallback_tone: str = "idle") -> Word:
    if not word:
        return Word(NOT_MEASURED, "idle", "")
    return table.get(word) or Word(spaced(word), fallback_tone, "")


def origin(word: str | None) -> Word:
    """The display form of a candidate's origin."""
    return _look_up(ORIGINS, word) if word else Word("unknown origin", "idle", "")


def state(word: str | None) -> Word:
    """The display form of a job's state."""
    return _look_up(STATES, word)


def verdict(word: str | None) -> Word:
    """The display form of a verdict; ``None`` means not judged yet."""
    return _look_up(VERDICTS, word or "pending", "bad")


def split(word: str | None) -> Word:
    """The display form of a split, the set that a shape belongs to."""
    return _look_up(SPLITS, word)


def decision(word: str | None) -> Word:
    """The display form of the decision from one shape's interval."""
    return _look_up(DECISIONS, word)


def rule(word: str | None) -> str:
    """A finding's rule in a few words."""
    return RULES.get(word or "", spaced(word or "unnamed rule"))


def baseline(name: str) -> tuple[str, str]:
    """A baseline's name for a table header: (what, how), from names such as ``compile_default/2t``."""
    what, _, how = name.partition("/")
    if how.endswith("t") and how[:-1].isdigit():
        how = "1 thread" if how == "1t" else f"{how[:-1]} threads"
    return spaced(what), how


_UNITS = (("_bytes_per_s", "B/s"), ("_flops_per_s", "FLOP/s"), ("_per_s", "/s"))


def ceiling(name: str, value: float) -> tuple[str, str]:
    """A measured ceiling as (what, how much): ``("dram", "4.26 TB/s")`` from ``dram_bytes_per_s``."""
    for ending, unit in _UNITS:
        if name.endswith(ending):
            return spaced(name.removesuffix(ending)), prefixed(value, unit)
    if name.endswith("_s"):
        return spaced(name.removesuffix("_s")), f"{value * 1e6:.3g} µs"
    return spaced(name), f"{value:,.6g}"


def reading(bounds: tuple[float, float] | None) -> Word:
    """The overall conclusion from the speedup interval over the best baseline."""
    if bounds is None:
        return Word(NOT_MEASURED, "plain", "")
    if bounds[0] > 1.0:
        return Word("faster than the best baseline", "good", "The whole interval lies above 1.0×.")
    if bounds[1] < 1.0:
        return Word("slower than the best baseline", "bad", "The whole interval lies below 1.0×.")
    return Word("not confidently faster than the best baseline", "plain", "The interval contains 1.0×.")
