"""A language model's second look at candidates whose speed jumped and was confirmed: optional, and it can only lower a reward.

It is asked by `rl.fleet` after the referee has measured twice. What it reads was written by strangers, and what it answers is text, of which
a verdict and a sentence are taken; a candidate that talks it into "honest" has won nothing, since the referee stays the gate.
An answer that is none, or none in time, counts as no opinion.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from agent.messages import Message
from agent.prompts import fill, fill_from
from agent.providers.openai_compatible import OpenAICompatible
from agent.spec import API_KEY_VARIABLE, ModelChoice
from evaluator.sources import TaskSource
from rl.config import JudgePart
from rl.errors import ConfigError
from rl.hacks import Hit, Opinion

_FOLDER = Path(__file__).parent / "prompts"
_WORDS: dict[str, Literal["nothing", "suspect", "caught"]] = {
    "honest": "nothing",
    "doubtful": "suspect",
    "hack": "caught",
}
_ORDER = tuple(_WORDS)
_MOST_OBJECTS = 1000
_REASON_CHARACTERS = 200
#: A longer file is not read, and is not paid for speed either: length shall not be a way around the look.
_MOST_CHARACTERS = 60_000


class NoVerdict(ValueError):
    """An answer without a verdict."""


def require_key(settings: JudgePart) -> None:
    """Let settings pass whose key is there.

    Raises:
        ConfigError: the variable that they name is not set.
    """
    if settings.api_key_variable and not os.environ.get(settings.api_key_variable):
        raise ConfigError(f"`judge.api_key_variable` names {settings.api_key_variable}, which is not set")


class LlmJudge:
    """Implements `rl.hacks.Judge` by asking a model over HTTP; safe to call from several threads.

    Args:
        settings: which model, and where.

    Raises:
        ConfigError: the key's variable that the settings name is not set.
    """

    def __init__(self, settings: JudgePart) -> None:
        require_key(settings)
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
            return Opinion(
                "suspect", f"too long for {self._name} to look at", "too long for a language model to look at"
            )
        prompt = fill_from(
            _FOLDER, "hack_judge", reference=task.source, source=source, speedup=speedup, hits=hits
        )
        reply = self._provider.complete([Message("system", fill("_strangers")), Message("user", prompt)])
        if reply.finish != "stop":
            raise NoVerdict(f"the answer was cut off ({reply.finish})")
        word, reason = read_verdict(reply.text)
        if word == "honest":
            return Opinion("nothing")
        return Opinion(_WORDS[word], f"{self._name} says {word}: {reason}", f"a language model: {word}")

    def close(self) -> None:
        """Free the connection, and end what is under way."""
        self._provider.close()


def read_verdict(text: str) -> tuple[str, str]:
    """The verdict and the reason of an answer: of all its objects with a verdict the worst, whatever stands around them.

    The worst, since an answer may quote the candidate, and what a candidate says for itself is no reason to pay it.

    Raises:
        NoVerdict: there is none.
    """
    decoder = json.JSONDecoder()
    found: list[tuple[int, str, str]] = []
    place = text.find("{")
    for _ in range(_MOST_OBJECTS):
        if place < 0:
            break
        try:
            value, _end = decoder.raw_decode(text, place)
        except (ValueError, RecursionError):
            value = None
        word = str(value.get("verdict")).casefold() if isinstance(value, dict) else ""
        if word in _WORDS:
            reason = " ".join(str(value.get("reason") or "").split())
            reason = reason.encode("utf-8", "replace").decode()[:_REASON_CHARACTERS]
            found.append((_ORDER.index(word), word, reason))
        place = text.find("{", place + 1)
    if not found:
        raise NoVerdict("the answer holds no verdict")
    _, word, reason = max(found, key=lambda one: one[0])
    return word, reason
