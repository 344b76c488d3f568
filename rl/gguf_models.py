"""Unpacks a model in a GGUF file into a folder of safetensors, once for each stage that begins with one.

Trainers, adapters and the agent's policy read such folders alone. Quantized weights become float32.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from rl.checkpoints import BASE, replaced, whole
from rl.config import Stage
from rl.errors import ConfigError

_MAGIC = b"GGUF"
_log = logging.getLogger("rl.train")


def is_gguf(path: str | None) -> bool:
    """Whether a model's path names a GGUF file."""
    return path is not None and path.endswith(".gguf")


def check_gguf(file: Path) -> None:
    """Check that a file is there and begins as a GGUF file does.

    Raises:
        ConfigError: it is not, or does not.
    """
    try:
        with file.open("rb") as opened:
            begins = opened.read(len(_MAGIC))
    except OSError as error:
        raise ConfigError(f"`model.path` {file} cannot be read: {error.strerror}") from None
    if begins != _MAGIC:
        raise ConfigError(f"`model.path` {file} is not a GGUF file")


def unpack(stage: Stage) -> Path:
    """Unpack the stage's GGUF file into its folder, unless that is done, and return the model's folder.

    Raises:
        ConfigError: the file is damaged, or holds a model or tokenizer that transformers cannot read.
        CheckpointError: the disk is full.
    """
    file, folder = Path(str(stage.model.path)), stage.output / BASE
    if whole(folder) is not None:
        return folder
    check_gguf(file)
    _log.info("unpacking %s into %s, which takes half a minute for 0.1 billion weights", file, folder)
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    given: dict[str, Any] = {
        "gguf_file": file.name,
        "local_files_only": True,
        "trust_remote_code": False,
    }
    try:
        special = _special_tokens(file)
        tokenizer = AutoTokenizer.from_pretrained(file.parent, **given)
        read = AutoModelForCausalLM.from_pretrained(file.parent, dtype=torch.float32, **given)
        # What was read counts as quantized, which is not saved; its weights are not.
        settings = {name: one for name, one in read.config.to_dict().items() if name != "quantization_config"}
        model = AutoModelForCausalLM.from_config(type(read.config).from_dict(settings), dtype=torch.float32)
        model.load_state_dict(read.state_dict())
        _mend_ends(tokenizer, model, special)
    except Exception as error:  # noqa: BLE001 - readers of damaged files fail in many ways
        why = " ".join(str(error).split())[:300] or type(error).__name__
        raise ConfigError(
            f"`model.path` {file} is damaged or holds a model that transformers cannot read ({why})"
        ) from None
    with replaced(folder) as part:
        model.save_pretrained(part)
        tokenizer.save_pretrained(part)
    return folder


def _special_tokens(file: Path) -> dict[str, int]:
    """The file's own numbers of the tokens that begin, end and fill texts."""
    from gguf import GGUFReader

    fields = GGUFReader(file).fields
    return {
        name: int(field.contents())
        for name, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"))
        if (field := fields.get(f"tokenizer.ggml.{key}_token_id")) is not None
    }


def _mend_ends(tokenizer: Any, model: Any, special: dict[str, int]) -> None:
    """Give tokenizer and model the file's special tokens: transformers 5.17 ends SmolLM2's texts with the token that begins a turn."""
    if "eos" not in special:
        raise ValueError("it names no token that ends a text")
    for name, number in special.items():
        setattr(tokenizer, f"{name}_token", tokenizer.convert_ids_to_tokens(number))
        for settings in (model.config, model.generation_config):
            setattr(settings, f"{name}_token_id", number)
