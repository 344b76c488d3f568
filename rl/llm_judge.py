"""An optional language-model review of candidates with a confirmed jump in speed; it can only lower a reward.

`rl.fleet` calls it after the referee has measured twice. Its input is untrusted, and only a verdict and a sentence are taken from its
answer. A candidate that talks it into "honest" gains nothing, since the referee still decides acceptance. An invalid or late answer
counts as no opinion.
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
#: A longer file is not reviewed and gets no reward for speed: length must not be a way around the review.
_MOST_CHARACTERS = 60_000


class NoVerdict(ValueError):
    """The model's answer contains no verdict."""


def require_key(settings: JudgePart) -> None:
    """Check that the key's environment variable is set.

    Raises:
        ConfigError: the variable that the settings name is not set.
    """
    if settings.api_key_variable and not os.environ.get(settings.api_key_variable):
        raise ConfigError(f"`judge.api_key_variable` names {settings.api_key_variable}, which is not set")


class LlmJudge:
    """Implements `rl.hacks.Reviewer` by asking a model over HTTP; safe to call from several threads.

    Args:
        settings: the model and its server.

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
        """Ask the model for its opinion of a candidate.

        Raises:
            ProviderError: the request failed.
            NoVerdict: the answer contains no verdict or was cut off.
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
        """Close the connection and abort requests in flight."""
        self._provider.close()


def read_verdict(text: str) -> tuple[str, str]:
    """Extract the verdict and reason from an answer: the worst of all JSON objects with a verdict, ignoring other text.

    The worst one counts because an answer may quote the candidate, whose own claims must not raise its reward.

    Raises:
        NoVerdict: the answer contains none.
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
