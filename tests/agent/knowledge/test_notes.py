"""Every note parses, and every diagnosis gets some."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from agent.knowledge.architectures import (
    ARCHITECTURES,
    architecture_of_cpu,
    architecture_of_gpu,
)
from agent.knowledge.reading import BOTTLENECKS, NOTES, all_notes, notes_for
from agent.languages import LANGUAGES
from agent.memory.features import Features, features_of
from evaluator.description import Description

CPU = [name for name in ARCHITECTURES if name.startswith("cpu-")]


def test_every_file_is_a_note() -> None:
    notes = all_notes()
    assert {note.name for note in notes} == {path.stem for path in NOTES.iterdir()}
    assert len({note.title for note in notes}) == len(notes) >= 25
    for note in notes:
        assert all(line == line.rstrip() and len(line) <= 150 for line in note.text.splitlines()), note.name
        assert note.text.isascii(), note.name
        assert 8 <= len(note.text.splitlines()) <= 25, note.name
        assert note.bottlenecks and set(note.bottlenecks) <= set(BOTTLENECKS), note.name
        assert note.architectures and note.architectures <= set(ARCHITECTURES), note.name
        assert note.languages and note.languages <= {one.key for one in LANGUAGES}, note.name


@pytest.mark.parametrize(("bottleneck", "architecture"), list(itertools.product(BOTTLENECKS, ARCHITECTURES)))
def test_every_diagnosis_gets_a_note_in_every_language_of_the_device(
    bottleneck: str, architecture: str
) -> None:
    for language in ("cpp",) if architecture in CPU else ("triton", "cuda"):
        found = notes_for(bottleneck, architecture, language)
        assert 1 <= len(found) <= 4
        assert all(bottleneck in n.bottlenecks and architecture in n.architectures for n in found)
        assert all(language in n.languages for n in found)


#: A module with products in bfloat16.
PRODUCT = Features({"matmul": 1}, dtypes=frozenset({"bfloat16"}))


def test_a_cpu_is_never_told_of_tensor_memory_nor_a_gpu_of_avx() -> None:
    told = {
        arch: {n.name for b in BOTTLENECKS for n in notes_for(b, arch, limit=99, features=PRODUCT)}
        for arch in ARCHITECTURES
    }
    assert all(name.startswith("cpu_") for name in told["cpu-amx"] - told["hopper"])
    assert "hopper_wgmma" in told["hopper"] and "hopper_wgmma" not in told["blackwell"] | told["ada"]
    assert "blackwell_tensor_memory" in told["blackwell"] and "blackwell_tensor_memory" not in told["hopper"]
    assert "cpu_amx" in told["cpu-amx"] and "cpu_amx" not in told["cpu-avx512"]


def test_what_only_one_architecture_has_comes_first() -> None:
    assert notes_for("compute", "hopper", limit=1, features=PRODUCT)[0].name == "hopper_wgmma"
    assert notes_for("compute", "cpu-amx", limit=1)[0].name == "cpu_amx"
    assert notes_for("sync", "ampere", "triton", limit=1)[0].name == "hidden_syncs"


def test_notes_for_certain_modules_are_told_for_those_alone_and_first() -> None:
    product = Features({"matmul": 1}, dtypes=frozenset({"float32"}))
    convolution = Features({"convolution": 2, "relu": 1}, dtypes=frozenset({"float32"}))

    def told(features: Features | None, limit: int = 99) -> list[str]:
        return [note.name for note in notes_for("compute", "hopper", "triton", limit, features)]

    assert told(product, 1) == ["compensated_products"]
    assert told(convolution, 2) == ["compensated_products", "convolution_products"]
    of_tiles = {"hopper_wgmma", "hopper_tma", "split_k", "l2_reuse"}
    assert set(told(PRODUCT)) - set(told(None)) == of_tiles
    assert set(told(product)) - set(told(PRODUCT)) == {"compensated_products"}
    assert "fp8_scaling" not in told(product)
    assert told(Features({"amax": 1}, dtypes=frozenset({"float8_e4m3fn"})), 1) == ["fp8_scaling"]


def test_operators_that_notes_name_are_those_of_modules() -> None:
    text = """
class Model(nn.Module):
    def __init__(self):
        self.a, self.b, self.c = nn.Linear(2, 2), nn.ConvTranspose2d(2, 2, 3), nn.MultiheadAttention(2, 1)
        self.d, self.e, self.f = nn.GRU(2, 2), nn.LSTM(2, 2), nn.RNN(2, 2)
        self.g, self.h = nn.GRUCell(2, 2), nn.LSTMCell(2, 2)
    def forward(self, x):
        x = F.scaled_dot_product_attention(x, x, x)
        x = torch.logcumsumexp(x.cumprod(1), 1).flip(1)
        x = x.softmax(1) + x.log_softmax(1) + x.logsumexp(1, True)
        return torch.cumsum(x, 1) + x.cummax(1).values + x.cummin(1).values
"""
    known = set(features_of(text, Description()).operators)
    assert set().union(*(note.operators for note in all_notes())) <= known


def test_the_answer_has_its_limit_and_an_order_of_its_own() -> None:
    everything = notes_for("memory", "hopper", "cuda", limit=99)
    assert len(everything) > 4
    assert notes_for("memory", "hopper", "cuda", limit=2) == everything[:2]
    assert notes_for("memory", "hopper", "cuda", limit=0) == ()


@pytest.mark.parametrize(
    "words", [("speed", "ada", None), ("memory", "volta", None), ("memory", "ada", "rust")]
)
def test_unknown_words_are_errors_and_not_empty_answers(words: tuple[str, str, str | None]) -> None:
    with pytest.raises(ValueError, match="is unknown"):
        notes_for(*words)


def test_architectures_are_found() -> None:
    by_name = {
        "NVIDIA H200": "hopper",
        "NVIDIA H100 80GB HBM3": "hopper",
        "NVIDIA GH200 480GB": "hopper",
        "NVIDIA A100-SXM4-80GB": "ampere",
        "NVIDIA RTX A6000": "ampere",
        "NVIDIA GeForce RTX 3090": "ampere",
        "NVIDIA L40S": "ada",
        "NVIDIA L4": "ada",
        "NVIDIA RTX 6000 Ada Generation": "ada",
        "NVIDIA GeForce RTX 4090": "ada",
        "NVIDIA B200": "blackwell",
        "NVIDIA RTX PRO 6000 Blackwell Workstation Edition": "blackwell",
        "NVIDIA GeForce RTX 5090": "blackwell",
        "Tesla T4": "",
        "Tesla V100-SXM2-16GB": "",
    }
    assert {name: architecture_of_gpu(name) for name in by_name} == by_name


@pytest.mark.parametrize(
    ("flags", "architecture"),
    [
        ("fma avx2 avx512f avx512bw avx512vl amx_tile amx_bf16", "cpu-amx"),
        ("fma avx2 avx512f avx512bw avx512vl amx_tile", "cpu-avx512"),
        ("fma avx2 avx512f", "cpu-avx2"),
        ("sse4_2", ""),
    ],
)
def test_a_cpu_is_known_by_its_flags(tmp_path: Path, flags: str, architecture: str) -> None:
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\nflags\t\t: {flags}\nbugs\t\t:\n")
    assert architecture_of_cpu(tmp_path / "cpuinfo") == architecture
    assert architecture_of_cpu(tmp_path / "none") == ""


def test_languages_are_all_used() -> None:
    assert {language for note in all_notes() for language in note.languages} == {one.key for one in LANGUAGES}
