"""What writes answers when checkpoints are compared: a model through transformers, or anything else with the same method."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from agent.messages import Message
from rl.config import ModelPart
from rl.errors import ConfigError, NoRoom


class Policy(Protocol):
    """Writes answers to a prompt; the same ones for the same seed, on the same machine.

    Attributes:
        name: for people.
        identity: what the answers depend on besides: kept ones of another identity are not this one's.
    """

    name: str
    identity: str

    def sample(self, messages: Sequence[Message], count: int, seed: int) -> list[tuple[str, bool]]:
        """So many answers, each with whether it came to its end by itself."""
        ...


class Checkpoint:
    """A model's folder, or its name on a hub, asked as training asks it (`rl.models`).

    Args:
        path: what a stage left in `checkpoint/`, for example.
        max_tokens: of an answer.
        temperature: of sampling.
        batch: answers at a time, as memory allows.

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
        """See `Policy.sample`. A prompt that leaves no room for an answer gets empty ones."""
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
    """Of a checkpoint's files and of how it is asked; of a name on a hub the files are not known."""
    digest = hashlib.sha256(settings.encode())
    for path in sorted(folder.rglob("*") if folder.is_dir() else ()):
        if path.is_file():
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()
