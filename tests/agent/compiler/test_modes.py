"""torch.compile's modes as candidate files."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from agent.bundle.sections import cut
from agent.compiler.modes import CPU_MODES, CUDA_MODES, Mode, baseline_name, mode_source, modes
from tests.agent.compiler.extraction import names_bound_in_calls, run_program, task_text

NAME = "matmul_bias_relu"

# Counts how often the compiler is asked, and for which sizes; its real work is another test's business.
COUNT = """
import json
import torch
import reference
real_compile, graphs, settings = torch.compile, [], []
def compile_without_code(function, *, dynamic, options=None):
    settings.append([dynamic, options])
    def backend(graph, inputs):
        graphs.append(1)
        return graph.forward
    return real_compile(function, dynamic=dynamic, backend=backend)
torch.compile = compile_without_code
import candidate
torch.set_grad_enabled(False)
model = reference.Model(16, 8).eval()
new = candidate.ModelNew(16, 8).eval()
new.load_state_dict(model.state_dict(), strict=True)
right = True
for _ in range(2):
    for rows in range(2, 14):
        x = torch.randn(rows, 16)
        right &= torch.allclose(new(x), model(x), atol=1e-6)
import copy
right &= torch.allclose(copy.deepcopy(new)(x), model(x), atol=1e-6)
print(json.dumps({"right": right, "graphs": len(graphs), "settings": settings, "keys": list(new.state_dict())}))
"""

RUN = """
import json, torch, reference, candidate
torch.set_grad_enabled(False)
torch.set_num_threads(2)
model = reference.Model(16, 8).eval()
new = candidate.ModelNew(16, 8).eval()
new.load_state_dict(model.state_dict(), strict=True)
x = torch.randn(5, 16)
right = torch.allclose(new(x), model(x), atol=1e-6)
import torch._inductor.config as config
print(json.dumps({"right": right, "threads": config.cpp.threads, "torch_threads": torch.get_num_threads()}))
"""


def write(folder: Path, mode_label: str) -> None:
    mode = next(mode for mode in CPU_MODES if mode.label == mode_label)
    (folder / "reference.py").write_text(task_text(NAME))
    (folder / "candidate.py").write_text(mode_source(mode, task_text(NAME), NAME))


@pytest.mark.parametrize("mode", [*CPU_MODES, *CUDA_MODES], ids=lambda mode: mode.label)
def test_each_mode_is_a_file_of_its_own(mode: Mode) -> None:
    source = mode_source(mode, task_text(NAME), NAME)
    ast.parse(source)
    assert "kernelbench_tasks" not in source
    assert source == mode_source(mode, task_text(NAME), NAME)
    assert cut(source, "ModelNew").text
    if mode.graphs:
        assert "return copied(self.compiled_for((x,))(self, x))" in source, (
            "a graph's outputs are overwritten by its next replay"
        )
        assert "is_current_stream_capturing():\n            return super().forward(x)" in source


@pytest.mark.parametrize("mode", [*CPU_MODES, *CUDA_MODES], ids=lambda mode: mode.label)
def test_arguments_keep_their_names(mode: Mode) -> None:
    """An attention's `key` was once what the compiled code was known by."""
    reference = task_text(NAME).replace("forward(self, x)", "forward(self, key)")
    assert not names_bound_in_calls(mode_source(mode, reference, NAME))


@pytest.mark.slow
def test_code_for_exact_sizes_survives_more_sizes_than_the_compilers_limit(tmp_path: Path) -> None:
    write(tmp_path, "compile default")
    answer = run_program(tmp_path, COUNT)
    assert answer["right"]
    assert answer["graphs"] == 12 + 1, "one for each of 12 sizes, one for the copy of the module"
    assert all(dynamic is False for dynamic, _ in answer["settings"])
    assert answer["keys"] == ["weight", "bias"]


@pytest.mark.parametrize(
    ("device", "names"),
    [
        ("cpu", ["compile_default/4t", "compile_default/1t", "compile_max_autotune/4t"]),
        ("cuda", ["compile_default", "compile_reduce_overhead", "compile_max_autotune"]),
    ],
)
def test_each_mode_is_a_baseline_with_the_settings_of_the_compilers_mode(
    device: str, names: list[str]
) -> None:
    """As `evaluator.roles.variants` compiles them: else the times of baselines say nothing of the members."""
    from torch._inductor import list_mode_options

    assert [baseline_name(mode, device, 4) for mode in modes(device)] == names
    for mode in modes(device):
        word = mode.baseline.removeprefix("compile_").replace("_", "-")
        expected = {} if word == "default" else dict(list_mode_options(word))
        if device == "cpu":
            expected.pop("triton.cudagraphs", None)
        assert {name: value for name, value in mode.options.items() if name != "cpp.threads"} == expected
        assert mode.graphs == ("triton.cudagraphs" in mode.options)


@pytest.mark.slow
def test_settings_do_not_leak(tmp_path: Path) -> None:
    write(tmp_path, "compile one thread")
    answer = run_program(tmp_path, RUN)
    assert answer == {"right": True, "threads": -1, "torch_threads": 2}
