"""The contrastive prompt, and the parser for its answer.

The prompt is the agent's own (`agent.prompts`), so a model is trained on the prompts that it will get: the task, the rules, the
protection against untrusted text, earlier files with their speeds, and the form of the answer: analysis, design, code
(CUDA-L1, arXiv 2507.14111, table 3).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from agent.extraction import extract
from agent.languages import DEVICES
from agent.messages import Message
from agent.prompts import fill
from agent.prompts.markers import holds_markers
from agent.prompts.sizes import precision_text
from evaluator.devices import is_accelerator
from rl.errors import ConfigError
from rl.exemplars import Draw

_HEADINGS = ("analysis", "design", "code")
_HEADING = re.compile(r"^#{1,6}[ \t]*(analysis|design|code)[ \t]*:?[ \t]*$", re.IGNORECASE)
_FENCE = re.compile(r"^[ \t]*(`{3,}|~{3,})")


@dataclass(frozen=True)
class TaskText:
    """A prompt's description of a task.

    Attributes:
        source: the task file; untrusted.
        dims: its dimensions, one per line.
        shapes: visible shapes, one per line, with the time to beat if known.
        device: "cpu" or "cuda".
    """

    source: str
    dims: str
    shapes: str
    device: str


def contrastive_prompt(task: TaskText, draw: Draw, special_tokens: Iterable[str] = ()) -> list[Message]:
    """The initial messages for a task and the exemplars drawn for it.

    An exemplar that contains prompt markers (`agent.prompts.markers`) is not shown. The database accepts none, but another run's
    tokenizer may have other special tokens.

    Args:
        task: the task to make faster.
        draw: from `rl.exemplars`.
        special_tokens: the tokenizer's special tokens.

    Raises:
        ConfigError: the task itself contains such markers; it cannot be trained on.
    """
    tokens = tuple(special_tokens)
    for what in (task.source, task.dims, task.shapes):
        if holds_markers(what, tokens):
            raise ConfigError(
                "a task holds text that means something to the model's chat format; take it out"
            )
    shown = [
        {"speedup": one.speedup, "source": one.source}
        for one in draw.shown
        if not holds_markers(one.source, tokens)
    ]
    prompt = fill(
        "parts",
        device_name=DEVICES.get(task.device, task.device),
        task_source=task.source,
        dims=task.dims,
        shapes=task.shapes,
        precision=precision_text(task.source),
        device_notes=fill(
            "device_cuda" if is_accelerator(task.device) else "device_cpu",
            device_name=DEVICES.get(task.device, task.device),
        ),
        shown=shown,
    )
    return [Message("system", fill("system")), Message("user", prompt)]


def as_text(messages: Sequence[Message]) -> str:
    """The prompt for a model without a chat format."""
    return "\n\n".join(message.content for message in messages)


@dataclass(frozen=True)
class Answer:
    """A parsed answer.

    Attributes:
        analysis: its first part, "" if missing.
        design: its second part, "" if missing.
        source: the candidate file, or None.
        problem: why there is no file, see `agent.extraction.Extraction`.
        in_form: whether the answer has all three parts in order, with the code in the third.
    """

    analysis: str
    design: str
    source: str | None
    problem: str
    in_form: bool


def read_answer(text: str, *, finished: bool = True) -> Answer:
    """Parse an answer. The file may be anywhere; headings count only outside code blocks.

    Args:
        text: the model's answer.
        finished: whether it ended by itself and not at the token limit.
    """
    found = extract(text, "stop" if finished else "length")
    parts, order = _parts(text)
    in_form = order == _HEADINGS and found.source is not None and "class ModelNew" in parts["code"]
    return Answer(parts["analysis"], parts["design"], found.source, found.problem, in_form)


def _parts(text: str) -> tuple[dict[str, str], tuple[str, ...]]:
    """The text under each heading, and the headings in order of appearance."""
    parts: dict[str, list[str]] = {name: [] for name in _HEADINGS}
    order: list[str] = []
    fence = ""
    for line in text.rpartition("</think>")[2].replace("\r\n", "\n").split("\n"):
        mark = _FENCE.match(line)
        if mark and not fence:
            fence = mark[1]
        elif mark and line.strip().startswith(fence) and not line.strip().strip(fence[0]):
            fence = ""
        elif not fence and (heading := _HEADING.match(line)):
            order.append(heading[1].lower())
            continue
        if order:
            parts[order[-1]].append(line)
    return {name: "\n".join(lines).strip() for name, lines in parts.items()}, tuple(order)
