"""Loads or creates models and tokenizers to train, and saves the finished model as a folder.

A fresh model needs no download. Its tokenizer is a byte-level BPE whose tokens may be whole lines: prompts are mostly boilerplate, and
a tiny model with a short context reads a boilerplate line as one token. Any other text falls back to bytes.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

# Set before transformers and TRL are imported: otherwise each trainer reports its creation.
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch
from tokenizers import Regex, Tokenizer, decoders
from tokenizers import models as tokenizer_models
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split
from tokenizers.trainers import BpeTrainer
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from agent.messages import Message
from rl.checkpoints import BASE, FINAL, replaced, unwritable
from rl.config import ModelPart, Stage
from rl.errors import ConfigError, NoRoom
from rl.gguf_models import is_gguf
from rl.prompts import as_text

#: They look like chat markers, so untrusted text that contains them is never shown or taught (`agent.prompts.markers`).
PAD, END = "<|pad|>", "<|end|>"
_CONTEXT = 4096
_SPARING = "FSDP_CPU_RAM_EFFICIENT_LOADING"


def fresh_tokenizer(texts: Iterable[str], vocabulary: int) -> PreTrainedTokenizerFast:
    """Train a tokenizer on these texts; the result is deterministic."""
    tokenizer = Tokenizer(tokenizer_models.BPE())
    # Treat a line with its newline as one word, which may then become one token.
    lines = Split(Regex("\n"), behavior="merged_with_previous")
    tokenizer.pre_tokenizer = Sequence([lines, ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=vocabulary,
        min_frequency=2,
        special_tokens=[PAD, END],
        initial_alphabet=sorted(ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(list(texts), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )


def make_fresh(stage: Stage, texts: Iterable[str]) -> Path:
    """Make a fresh model from the config, its seed and the texts, unless it exists, and return its folder.

    Raises:
        ConfigError: transformers does not know the model type, or rejects the settings.
        CheckpointError: the disk is full.
    """
    folder = stage.output / BASE
    if (folder / "run.json").exists():
        return folder
    tokenizer = fresh_tokenizer(texts, stage.model.vocabulary)
    given = dict(stage.model.fresh or {})
    kind = str(given.pop("model_type", ""))
    given = {"max_position_embeddings": _CONTEXT, "tie_word_embeddings": True, **given}
    given |= {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id}
    given |= {"eos_token_id": tokenizer.eos_token_id, "bos_token_id": None}
    try:
        config = AutoConfig.for_model(kind, **given)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(stage.seed)
            model = AutoModelForCausalLM.from_config(config)
    except Exception as error:  # noqa: BLE001 - each model type validates its settings in its own way
        raise ConfigError(f"`model.fresh` makes no model: {' '.join(str(error).split())[:300]}") from None
    tokenizer.model_max_length = int(getattr(config, "max_position_embeddings", _CONTEXT))
    with replaced(folder) as part:
        model.save_pretrained(part)
        tokenizer.save_pretrained(part)
    return folder


def load_tokenizer(path: str) -> Any:
    """Load the tokenizer of a checkpoint or a hub name, with left padding for generation.

    Raises:
        ConfigError: it cannot be loaded.
    """
    if is_gguf(path):
        raise ConfigError(
            f"{path} is a GGUF file; `python -m rl.train` unpacks one into OUTPUT/{BASE}, a folder to name here"
        )
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            path, trust_remote_code=False, local_files_only=_is_local(path)
        )
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(
            f"`model.path` {path}: holds no tokenizer ({' '.join(str(error).split())[:200]})"
        ) from None
    tokenizer.padding_side = "left"
    if not _is_local(path) or (Path(path) / "config.json").is_file():
        # A tokenizer may not know its model's context length.
        config = AutoConfig.from_pretrained(path, trust_remote_code=False, local_files_only=_is_local(path))
        reads = int(getattr(config, "max_position_embeddings", None) or tokenizer.model_max_length)
        tokenizer.model_max_length = min(tokenizer.model_max_length, reads)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def load_model(path: str, part: ModelPart, *, whole: bool = False) -> Any:
    """Load the model of a checkpoint or a hub name, from safetensors only and without running code that comes with it.

    Args:
        path: its folder or hub name.
        part: how it is trained.
        whole: whether each rank needs all weights. If not, under FSDP, only a machine's first rank may load them; the others get
            zeros, and the trainer broadcasts the weights.

    Raises:
        ConfigError: it cannot be loaded.
    """
    # Trained weights are kept in float32; frozen weights below adapters need not be.
    frozen = part.train == "lora" and part.precision == "bf16"
    try:
        with _on_every_rank() if whole else nullcontext():
            return AutoModelForCausalLM.from_pretrained(
                path,
                trust_remote_code=False,
                local_files_only=_is_local(path),
                use_safetensors=True,
                dtype=torch.bfloat16 if frozen else torch.float32,
            )
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(
            f"`model.path` {path}: holds no model ({' '.join(str(error).split())[:200]})"
        ) from None


@contextmanager
def _on_every_rank() -> Iterator[None]:
    """Disable accelerate's RAM-efficient FSDP loading, which transformers reads from this environment variable."""
    before = os.environ.pop(_SPARING, None)
    try:
        yield
    finally:
        if before is not None:
            os.environ[_SPARING] = before


def adapters(part: ModelPart) -> Any:
    """The `peft_config` for TRL's trainers; None if all weights are trained."""
    if part.train == "full":
        return None
    from peft import LoraConfig

    return LoraConfig(
        r=part.lora_rank, lora_alpha=2 * part.lora_rank, target_modules="all-linear", task_type="CAUSAL_LM"
    )


def special_tokens(tokenizer: Any) -> tuple[str, ...]:
    """The tokenizer's special tokens, which it recognizes anywhere in a text."""
    return tuple(str(token) for token in tokenizer.all_special_tokens)


def prompt_value(tokenizer: Any, messages: list[Message]) -> Any:
    """A prompt for the trainers: chat turns if the tokenizer has a chat template, else text. The agent's policy does the same."""
    if tokenizer.chat_template:
        return [{"role": one.role, "content": one.content} for one in messages]
    return as_text(messages)


def completion_value(tokenizer: Any, answer: str) -> Any:
    """An answer for `SFTTrainer`, in the form of `prompt_value`."""
    return [{"role": "assistant", "content": answer}] if tokenizer.chat_template else answer


def token_count(tokenizer: Any, prompt: Any, completion: Any = None) -> int:
    """Number of tokens of a prompt, plus a completion with its end token if given."""
    if isinstance(prompt, str):
        given = prompt if completion is None else prompt + completion
        return len(tokenizer(given)["input_ids"]) + (completion is not None)
    turns = prompt if completion is None else [*prompt, *completion]
    return len(
        tokenizer.apply_chat_template(turns, add_generation_prompt=completion is None, return_dict=True)[
            "input_ids"
        ]
    )


@torch.no_grad()
def sample(
    model: Any,
    tokenizer: Any,
    prompt: Any,
    *,
    count: int,
    temperature: float,
    most: int,
    seed: int,
    at_once: int | None = None,
) -> list[tuple[str, bool]]:
    """Sample completions of one prompt without truncating the distribution; each comes with whether it ended by itself.

    Args:
        model: a causal model in evaluation mode.
        tokenizer: the model's tokenizer.
        prompt: see `prompt_value`.
        count: number of completions.
        temperature: sampling temperature.
        most: maximum tokens of a completion.
        seed: the samples depend only on it, the weights, the prompt and `at_once`.
        at_once: completions per batch, as memory allows; all by default.

    Raises:
        NoRoom: the prompt leaves no room in the model's context.
    """
    if isinstance(prompt, str):
        given = tokenizer(prompt, return_tensors="pt")
    else:
        given = tokenizer.apply_chat_template(
            prompt, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
    ids = given["input_ids"].to(model.device)
    reads = int(getattr(model.config, "max_position_embeddings", None) or 2**20)
    if ids.shape[1] >= reads:
        raise NoRoom(f"a prompt has {ids.shape[1]} tokens, and the model reads no more than {reads}")
    found: list[tuple[str, bool]] = []
    with torch.random.fork_rng(devices=[ids.device] if ids.device.type == "cuda" else []):
        torch.manual_seed(seed)
        while len(found) < count:
            made = model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                do_sample=True,
                temperature=temperature,
                top_k=0,
                top_p=1.0,
                num_return_sequences=min(at_once or count, count - len(found)),
                max_new_tokens=min(most, reads - ids.shape[1]),
                use_cache=True,  # a checkpoint from training with gradient checkpointing may turn it off
                pad_token_id=tokenizer.pad_token_id,
            )[:, ids.shape[1] :]
            texts = tokenizer.batch_decode(made, skip_special_tokens=True)
            ended = (made == tokenizer.eos_token_id).any(1).tolist()
            found += zip(map(str, texts), ended, strict=True)
    return found


def save_final(trainer: Any, base: str, tokenizer: Any, part: ModelPart, folder: Path) -> Path:
    """Save a stage's result as one model with merged adapters, for the next stage and the agent's `policy`.

    All ranks call it; the trainer gathers sharded weights.

    Raises:
        CheckpointError: the disk is full.
    """
    final, gathered = folder / FINAL, folder / f"{FINAL}.gathered"
    _with_cache(trainer.accelerator.unwrap_model(trainer.model))
    try:
        trainer.save_model(str(gathered))
    except Exception as error:  # a full disk raises many kinds of errors, see `replaced`
        raise unwritable(gathered, error) from error
    trainer.accelerator.wait_for_everyone()
    if trainer.is_world_process_zero():
        with replaced(final) as part_folder:
            if part.train == "lora":
                from peft import PeftModel

                model = PeftModel.from_pretrained(load_model(base, part), str(gathered)).merge_and_unload()
                _with_cache(model)
                model.save_pretrained(part_folder)
            else:
                for file in gathered.iterdir():
                    if file.name != "training_args.bin" and file.is_file():
                        shutil.move(file, part_folder / file.name)
            tokenizer.save_pretrained(part_folder)
        shutil.rmtree(gathered, ignore_errors=True)
    trainer.accelerator.wait_for_everyone()
    return final


def _with_cache(model: Any) -> None:
    """Turn the KV cache on in the saved config, since trainers turn it off for training."""
    model.config.use_cache = True
    if getattr(model, "generation_config", None) is not None:
        model.generation_config.use_cache = True


def _is_local(path: str) -> bool:
    return Path(path).is_dir()
