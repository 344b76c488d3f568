"""Runs one of our checkpoints on this machine, in this process, with transformers.

Intended for one or two jobs at a time and for machines without a server; the same checkpoint behind vLLM is a model of
provider "openai" with origin "policy". A checkpoint is data: only safetensors are loaded, and code that ships with it is
never run.

Generation uses the device that candidates are timed on, so it holds the referee's lock of that device in shared mode.
Between tokens, it synchronizes the device and releases the lock if a timing run is waiting.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from agent.errors import ProviderError
from agent.messages import Message, Reply
from agent.redaction import known_secrets, redact
from agent.spec import ModelChoice
from evaluator.counting import counted
from evaluator.devices import open_device
from evaluator.timing.exclusive import DeviceLock, Hold

_LOADED: dict[str, tuple[Any, Any]] = {}
_LOADING = threading.Lock()
_GENERATING = threading.Lock()  # one device: a second generation would only compete for it


class LocalPolicy:
    """`agent.providers.registry.Provider` for a checkpoint in a folder.

    Args:
        choice: its `model` is the folder, with `config.json`, safetensors and a tokenizer. `timeout_s` limits a
            generation; at the limit, the answer is cut off as at the token limit.

    Raises:
        ProviderError: if transformers is not installed or the folder contains no checkpoint.
    """

    def __init__(self, choice: ModelChoice) -> None:
        self._choice = choice
        self._secrets = known_secrets()
        self._closing = threading.Event()
        self._tokenizer, self._model = _load(choice.model)

    def complete(
        self, messages: Sequence[Message], *, max_tokens: int | None = None, key: str | None = None
    ) -> Reply:
        """See `Provider.complete`."""
        import torch
        from transformers import StoppingCriteria, StoppingCriteriaList

        closing, timeout_s = self._closing, self._choice.timeout_s

        class BetweenTokens(StoppingCriteria):
            """Ends a generation at its deadline and pauses it for timing runs; pauses extend the deadline."""

            def __init__(self, hold: Hold) -> None:
                self.hold = hold
                self.ends_s = time.monotonic() + timeout_s

            def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
                if self.hold.wanted():
                    paused_s = time.monotonic()
                    if input_ids.is_cuda:
                        torch.cuda.synchronize(input_ids.device)
                    self.hold.give_way()
                    self.ends_s += time.monotonic() - paused_s
                over = closing.is_set() or time.monotonic() > self.ends_s
                return torch.full((input_ids.shape[0],), over, dtype=torch.bool, device=input_ids.device)

        options: dict[str, Any] = {"do_sample": False}
        if self._choice.temperature:
            options = {"do_sample": True, "temperature": self._choice.temperature}
        limit = max_tokens or self._choice.max_tokens
        with _GENERATING, torch.inference_mode(), _device_lock().shared() as hold:
            began_s = time.monotonic()
            inputs = self._encode(messages)
            given = inputs["input_ids"].shape[1]
            room = self._context_tokens() - given
            if room < 1:
                text = f"the prompt has {counted(given, 'token')}, more than the checkpoint can read"
                raise ProviderError(text, "no_room")
            made = self._model.generate(
                **inputs,
                max_new_tokens=min(limit, room),
                use_cache=True,  # training with reduced memory may have disabled it in the checkpoint's config
                pad_token_id=self._tokenizer.pad_token_id or self._tokenizer.eos_token_id,
                stopping_criteria=StoppingCriteriaList([BetweenTokens(hold)]),
                **options,
            )[0, given:]
        if self._closing.is_set():
            raise ProviderError("the job ended while the answer was made", "request")
        ended = made.numel() > 0 and int(made[-1]) in _end_tokens(self._model, self._tokenizer)
        text = redact(self._tokenizer.decode(made, skip_special_tokens=True), self._secrets)
        name = f"policy:{Path(self._choice.model).name}"
        finish = "stop" if ended else "length"
        return Reply(text, finish, given, int(made.numel()), False, name, time.monotonic() - began_s)

    def close(self) -> None:
        """See `Provider.close`. The checkpoint stays loaded for the process's next job."""
        self._closing.set()

    def _encode(self, messages: Sequence[Message]) -> Any:
        turns = [
            {"role": message.role, "content": redact(message.content, self._secrets)} for message in messages
        ]
        if self._tokenizer.chat_template:
            encoded = self._tokenizer.apply_chat_template(
                turns, add_generation_prompt=True, return_tensors="pt", return_dict=True
            )
        else:  # a base checkpoint, not trained on chat turns
            encoded = self._tokenizer("\n\n".join(turn["content"] for turn in turns), return_tensors="pt")
        kept = {name: encoded[name] for name in ("input_ids", "attention_mask")}
        return {name: tensor.to(self._model.device) for name, tensor in kept.items()}

    def _context_tokens(self) -> int:
        return int(getattr(self._model.config, "max_position_embeddings", None) or 2**20)


def _load(folder: str) -> tuple[Any, Any]:
    """Tokenizer and model of a checkpoint, loaded once per process."""
    path = Path(folder)
    if not path.is_dir():
        raise ProviderError(f"the model's folder {folder} does not exist", "request")
    if not (path / "config.json").is_file():
        raise ProviderError(f"{folder} holds no checkpoint: there is no config.json in it", "request")
    try:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer
    except ImportError as error:
        text = (
            f"a local checkpoint needs transformers, which is not installed (kernelwright[rl]): {error.name}"
        )
        raise ProviderError(text, "request") from None
    known = str(path.resolve())
    with _LOADING:
        if known not in _LOADED:
            cuda = torch.cuda.is_available()
            try:
                tokenizer = AutoTokenizer.from_pretrained(
                    known, local_files_only=True, trust_remote_code=False
                )
                model = AutoModelForCausalLM.from_pretrained(
                    known,
                    local_files_only=True,
                    trust_remote_code=False,
                    use_safetensors=True,
                    dtype=torch.bfloat16 if cuda else torch.float32,
                )
            except (OSError, ValueError, KeyError) as error:
                text = f"the checkpoint in {folder} cannot be loaded: {str(error)[:300]}"
                raise ProviderError(text, "request") from None
            with _device_lock().shared():
                model.to(torch.device("cuda" if cuda else "cpu"))  # type: ignore[arg-type]  # wrapped: `self` is not seen
                _LOADED[known] = (tokenizer, model.eval())
        return _LOADED[known]


@cache
def _device_lock() -> DeviceLock:
    """The lock of the device that checkpoints run on, under the referee's device name."""
    import torch

    if not torch.cuda.is_available():
        return DeviceLock("cpu")
    return DeviceLock(str(open_device("cuda").facts()["gpu_uuid"]))


def _end_tokens(model: Any, tokenizer: Any) -> set[int]:
    ends = model.generation_config.eos_token_id
    found = set(ends) if isinstance(ends, list | tuple) else {ends}
    return {one for one in (*found, tokenizer.eos_token_id) if one is not None}
