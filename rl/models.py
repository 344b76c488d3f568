"""Models and tokenizers to train: from a checkpoint, or made here from nothing, without a download; and the finished model as a folder.

A fresh model's tokenizer is a byte-level BPE whose pieces may be whole lines: prompts are mostly standing text, and a tiny model with a
short context reads a standing line as one token. Any other text is bytes.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

# Before transformers and TRL are loaded: each trainer would report that it was made.
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
from rl.prompts import as_text

#: In the form of a chat's joints, so that no stranger's text with them is ever shown or taught (`agent.prompts.markers`).
PAD, END = "<|pad|>", "<|end|>"
_CONTEXT = 4096
_SPARING = "FSDP_CPU_RAM_EFFICIENT_LOADING"


def fresh_tokenizer(texts: Iterable[str], vocabulary: int) -> PreTrainedTokenizerFast:
    """A tokenizer for texts like these, the same for the same texts."""
    tokenizer = Tokenizer(tokenizer_models.BPE())
    # A line with its end is one word, so that it may become one token.
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
    """The folder of a fresh model that is a function of the config, its seed and the texts; made once, then kept.

    Raises:
        ConfigError: transformers knows no such model, or takes no such settings.
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
    except Exception as error:  # noqa: BLE001 - each kind of model checks its settings in its own way
        raise ConfigError(f"`model.fresh` makes no model: {' '.join(str(error).split())[:300]}") from None
    tokenizer.model_max_length = int(getattr(config, "max_position_embeddings", _CONTEXT))
    with replaced(folder) as part:
        model.save_pretrained(part)
        tokenizer.save_pretrained(part)
    return folder


def load_tokenizer(path: str) -> Any:
    """The tokenizer of a checkpoint or of a name on a hub, padding on the left as generation needs it.

    Raises:
        ConfigError: there is none.
    """
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
        # A tokenizer may not know how much its model reads.
        config = AutoConfig.from_pretrained(path, trust_remote_code=False, local_files_only=_is_local(path))
        reads = int(getattr(config, "max_position_embeddings", None) or tokenizer.model_max_length)
        tokenizer.model_max_length = min(tokenizer.model_max_length, reads)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def load_model(path: str, part: ModelPart, *, whole: bool = False) -> Any:
    """The model of a checkpoint or of a name on a hub; no code that comes with it is run, and only safetensors are read.

    Args:
        path: where it is.
        part: how it is trained.
        whole: each rank is to have all weights. Else, under FSDP, ranks but a machine's first may get zeros, into which the
            trainer brings the first one's weights.

    Raises:
        ConfigError: there is none.
    """
    # Weights that are trained are kept in float32; frozen ones below adapters need not be.
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
    """Without the sparing way to load of accelerate's FSDP settings, which transformers follows by this variable."""
    before = os.environ.pop(_SPARING, None)
    try:
        yield
    finally:
        if before is not None:
            os.environ[_SPARING] = before


def adapters(part: ModelPart) -> Any:
    """What TRL's trainers take as `peft_config`; None where all weights are trained."""
    if part.train == "full":
        return None
    from peft import LoraConfig

    return LoraConfig(
        r=part.lora_rank, lora_alpha=2 * part.lora_rank, target_modules="all-linear", task_type="CAUSAL_LM"
    )


def special_tokens(tokenizer: Any) -> tuple[str, ...]:
    """Texts that the tokenizer reads as such wherever they stand."""
    return tuple(str(token) for token in tokenizer.all_special_tokens)


def prompt_value(tokenizer: Any, messages: list[Message]) -> Any:
    """A prompt as trainers take it: turns for a model that was taught turns, else text. The agent's policy asks alike."""
    if tokenizer.chat_template:
        return [{"role": one.role, "content": one.content} for one in messages]
    return as_text(messages)


def completion_value(tokenizer: Any, answer: str) -> Any:
    """An answer as `SFTTrainer` takes it beside `prompt_value`."""
    return [{"role": "assistant", "content": answer}] if tokenizer.chat_template else answer


def token_count(tokenizer: Any, prompt: Any, completion: Any = None) -> int:
    """Tokens of a prompt, and of a completion with its end."""
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
    """Completions of one prompt, from the whole distribution, each with whether it came to its end by itself.

    Args:
        model: a causal model in evaluation mode.
        tokenizer: its own.
        prompt: see `prompt_value`.
        count: how many.
        temperature: of the draw.
        most: tokens of a completion.
        seed: what is drawn depends on it, the weights, the prompt and `at_once` alone.
        at_once: completions at a time, as memory allows; all by default.

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
                use_cache=True,  # a checkpoint of a training that spared memory may say otherwise
                pad_token_id=tokenizer.pad_token_id,
            )[:, ids.shape[1] :]
            texts = tokenizer.batch_decode(made, skip_special_tokens=True)
            ended = (made == tokenizer.eos_token_id).any(1).tolist()
            found += zip(map(str, texts), ended, strict=True)
    return found


def save_final(trainer: Any, base: str, tokenizer: Any, part: ModelPart, folder: Path) -> Path:
    """Write what a stage made as one whole model, adapters merged: what the next stage and the agent's `policy` load.

    All ranks call it; sharded weights are gathered by the trainer.

    Raises:
        CheckpointError: the disk is full.
    """
    final, gathered = folder / FINAL, folder / f"{FINAL}.gathered"
    _with_cache(trainer.accelerator.unwrap_model(trainer.model))
    try:
        trainer.save_model(str(gathered))
    except Exception as error:  # a full disk has many names, see `replaced`
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
    """Say in what is saved that sampling keeps keys and values of earlier tokens, which trainers turn off for themselves."""
    model.config.use_cache = True
    if getattr(model, "generation_config", None) is not None:
        model.generation_config.use_cache = True


def _is_local(path: str) -> bool:
    return Path(path).is_dir()
