"""Policies that write answers in a comparison of checkpoints: a transformers model, or any object with the same method."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from agent.messages import Message
from rl.config import ModelPart
from rl.errors import ConfigError, NoRoom


class Policy(Protocol):
    """Writes answers to a prompt; deterministic for a seed on one machine.

    Attributes:
        name: for people.
        identity: digest of everything else the answers depend on; stored answers are reused only under the same identity.
    """

    name: str
    identity: str

    def sample(self, messages: Sequence[Message], count: int, seed: int) -> list[tuple[str, bool]]:
        """Write `count` answers, each with whether it ended by itself."""
        ...


class Checkpoint:
    """A model from a folder or a hub, prompted as in training (`rl.models`).

    Args:
        path: a folder, for example a stage's `checkpoint/`, or a hub name.
        max_tokens: maximum tokens of an answer.
        temperature: sampling temperature.
        batch: answers per batch, as memory allows.

    Raises:
        ConfigError: it cannot be loaded; the message says why.
    """

    def __init__(
        self, path: str, *, max_tokens: int = 4096, temperature: float = 1.0, batch: int = 8
    ) -> None:
        try:
            from rl import models
        except ImportError as error:
            raise ConfigError(
                f"sampling needs kernelwright[rl], which is not installed: {error.name}"
            ) from None
        import torch

        self.name = path
        self.identity = _digest(Path(path), f"{max_tokens}/{temperature}/{batch}")
        self._max_tokens, self._temperature, self._batch = max_tokens, temperature, batch
        self._models = models
        self._tokenizer = models.load_tokenizer(path)
        cuda = torch.cuda.is_available()
        part = ModelPart(path=path, train="lora", precision="bf16" if cuda else "fp32")
        self._model: Any = models.load_model(path, part).to("cuda" if cuda else "cpu").eval()

    def sample(self, messages: Sequence[Message], count: int, seed: int) -> list[tuple[str, bool]]:
        """See `Policy.sample`; if the prompt leaves no room for an answer, the answers are empty."""
        prompt = self._models.prompt_value(self._tokenizer, list(messages))
        try:
            return self._models.sample(
                self._model,
                self._tokenizer,
                prompt,
                count=count,
                temperature=self._temperature,
                most=self._max_tokens,
                seed=seed,
                at_once=self._batch,
            )
        except NoRoom:
            return [("", False)] * count


def _digest(folder: Path, settings: str) -> str:
    """Digest of a checkpoint's files and its sampling settings; for a hub name, of the settings only."""
    digest = hashlib.sha256(settings.encode())
    for path in sorted(folder.rglob("*") if folder.is_dir() else ()):
        if path.is_file():
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()
