"""Models in GGUF files: unpacked with their own weights, tokens and ends, and refused in a sentence where that cannot be."""

from __future__ import annotations

import logging
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from tokenizers.pre_tokenizers import ByteLevel

from rl.checkpoints import BASE
from rl.config import SftStage
from rl.errors import ConfigError
from rl.gguf_models import unpack
from rl.train import main
from tests.rl.test_train_command import config, rows

SIZE, HEADS, LAYERS, INNER = 32, 4, 2, 64
TOKENS = ["<|first|>", "<|begin|>", "<|end|>", "<|fill|>", *sorted(ByteLevel.alphabet()), "ab", "abc"]
TEMPLATE = "{% for one in messages %}{{ one['content'] }}<|end|>{% endfor %}"


def write(file: Path, *, architecture: str = "llama", ends: bool = True) -> dict[str, np.ndarray]:
    """A model of two layers, and its weights as the file has them."""
    writer = gguf.GGUFWriter(file, architecture)
    writer.add_context_length(128)
    writer.add_embedding_length(SIZE)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(TOKENS))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(TOKENS)
    writer.add_token_types([gguf.TokenType.CONTROL] * 4 + [gguf.TokenType.NORMAL] * 258)
    writer.add_token_merges(["a b", "ab c"])
    writer.add_bos_token_id(1)
    if ends:
        writer.add_eos_token_id(2)
    writer.add_pad_token_id(3)
    writer.add_chat_template(TEMPLATE)
    draw = np.random.default_rng(0)
    shapes = {"token_embd": (len(TOKENS), SIZE), "output_norm": (SIZE,), "output": (len(TOKENS), SIZE)}
    for layer in range(LAYERS):
        shapes |= {
            f"blk.{layer}.{name}": (SIZE, SIZE) for name in ("attn_q", "attn_k", "attn_v", "attn_output")
        }
        shapes |= {f"blk.{layer}.{name}": (SIZE,) for name in ("attn_norm", "ffn_norm")}
        shapes |= {f"blk.{layer}.{name}": (INNER, SIZE) for name in ("ffn_gate", "ffn_up")}
        shapes[f"blk.{layer}.ffn_down"] = (SIZE, INNER)
    weights = {f"{name}.weight": draw.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    for name, weight in weights.items():
        writer.add_tensor(name, weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return weights


def stage(folder: Path, file: Path) -> SftStage:
    data = folder / "pairs.jsonl"
    return SftStage.model_validate(
        {
            "stage": "sft",
            "name": "x",
            "output": folder / "out",
            "data": data,
            "steps": 1,
            "held_out": ["rmsnorm"],
            "model": {"path": str(file)},
        }
    )


def test_a_file_becomes_a_folder_with_its_weights_and_its_own_ends(tmp_path: Path) -> None:
    from rl import models  # loads transformers, for which collecting the tests need not wait

    weights = write(tmp_path / "tiny.gguf")
    asked = stage(tmp_path, tmp_path / "tiny.gguf")
    folder = unpack(asked)
    assert folder == asked.output / BASE
    tokenizer, model = models.load_tokenizer(str(folder)), models.load_model(str(folder), asked.model)
    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token) == (
        "<|begin|>",
        "<|end|>",
        "<|fill|>",
    )
    assert tokenizer.chat_template == TEMPLATE and tokenizer.model_max_length == 128
    assert model.config.eos_token_id == model.generation_config.eos_token_id == 2
    assert torch.equal(
        model.model.embed_tokens.weight.float(),
        torch.from_numpy(weights["token_embd.weight"]).bfloat16().float(),
    )
    found = models.sample(
        model.eval(), tokenizer, [{"role": "user", "content": "ab"}], count=2, temperature=1.0, most=5, seed=0
    )
    assert len(found) == 2
    before = (folder / "model.safetensors").stat().st_mtime_ns
    assert unpack(asked) == folder and (folder / "model.safetensors").stat().st_mtime_ns == before
    with pytest.raises(ConfigError, match="unpacks one into OUTPUT/base"):
        models.load_tokenizer(str(tmp_path / "tiny.gguf"))


def test_what_cannot_be_unpacked_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path / "whole.gguf")
    content = (tmp_path / "whole.gguf").read_bytes()
    (tmp_path / "half.gguf").write_bytes(content[: len(content) // 2])
    (tmp_path / "text.gguf").write_text("a model\n")
    write(tmp_path / "other.gguf", architecture="nothing")
    write(tmp_path / "endless.gguf", ends=False)
    sentences = {
        "half": "is damaged or holds a model that transformers cannot read",
        "other": "is damaged or holds a model that transformers cannot read",
        "endless": "it names no token that ends a text",
    }
    for name, sentence in sentences.items():
        with pytest.raises(ConfigError, match=sentence):
            unpack(stage(tmp_path, tmp_path / f"{name}.gguf"))
        assert not (tmp_path / "out" / BASE).exists()
    rows(tmp_path)
    for name, sentence in {"text": "is not a GGUF file", "nowhere": "cannot be read: No such file"}.items():
        with caplog.at_level(logging.ERROR):
            given = config(tmp_path, model={"path": str(tmp_path / f"{name}.gguf")})
            assert main([given, "--check"]) == 2 and sentence in caplog.text
