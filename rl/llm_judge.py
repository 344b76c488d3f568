"""A language model's second look at candidates whose speed jumped and was confirmed: optional, and it can only lower a reward.

It is asked by `rl.fleet` after the referee has measured twice. What it reads was written by strangers, and what it answers is text, of which
a verdict and a sentence are taken; a candidate that talks it into "honest" has won nothing, since the referee stays the gate.
An answer that is none, or none in time, counts as no opinion.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from agent.prompts import fill, fill_from
from agent.providers.base import Message
from agent.providers.openai_compatible import OpenAICompatible
from agent.spec import API_KEY_VARIABLE, ModelChoice
from evaluator.sources import TaskSource
from rl.config import JudgePart
from rl.hacks import Hit, Opinion

_FOLDER = Path(__file__).parent / "prompts"
_OBJECT = re.compile(r"\{[^{}]*\}")
_WORDS: dict[str, Literal["nothing", "suspect", "caught"]] = {
    "honest": "nothing",
    "doubtful": "suspect",
    "hack": "caught",
}
_REASON_CHARACTERS = 200
#: A longer file is not read, and is not paid for speed either: length shall not be a way around the look.
_MOST_CHARACTERS = 60_000


class NoVerdict(ValueError):
    """An answer without a verdict."""


class LlmJudge:
    """Implements `rl.hacks.Judge` by asking a model over HTTP; safe to call from several threads.

    Args:
        settings: which model, and where.

    Raises:
        ProviderError: the settings cannot be used.
    """

    def __init__(self, settings: JudgePart) -> None:
        choice = ModelChoice(
            settings.model,
            base_url=settings.url,
            temperature=settings.temperature,
            max_tokens=settings.max_tokens,
            timeout_s=settings.timeout_s,
            api_key_variable=settings.api_key_variable or API_KEY_VARIABLE,
        )
        self._provider = OpenAICompatible(choice)
        self._name = settings.model

    def __call__(self, task: TaskSource, source: str, speedup: float, hits: Sequence[Hit]) -> Opinion:
        """What the model thinks.

        Raises:
            ProviderError: it cannot be asked.
            NoVerdict: it said something else.
        """
        if len(source) > _MOST_CHARACTERS:
            return Opinion("suspect", f"too long for {self._name} to look at")
        prompt = fill_from(
            _FOLDER, "hack_judge", reference=task.source, source=source, speedup=speedup, hits=hits
        )
        reply = self._provider.complete([Message("system", fill("_strangers")), Message("user", prompt)])
        word, reason = read_verdict(reply.text)
        return Opinion(_WORDS[word], "" if word == "honest" else f"{self._name} says {word}: {reason}")

    def close(self) -> None:
        """Free the connection, and end what is under way."""
        self._provider.close()


def read_verdict(text: str) -> tuple[str, str]:
    """The verdict and the reason of an answer: those of its last object that has a verdict, whatever stands around it.

    Raises:
        NoVerdict: there is none.
    """
    for found in reversed(_OBJECT.findall(text)):
        try:
            value: Any = json.loads(found)
        except (ValueError, RecursionError):
            continue
        word = value.get("verdict")
        if isinstance(word, str) and word in _WORDS:
            reason = " ".join(str(value.get("reason") or "").split())
            return word, reason.encode("utf-8", "replace").decode()[:_REASON_CHARACTERS]
    raise NoVerdict("the answer holds no verdict")
