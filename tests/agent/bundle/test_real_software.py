"""The delivered file among everything that a real program does to a module: right results, whatever it is."""

from __future__ import annotations

import copy
import io
import json
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad

from agent.candidates import Candidate
from tests.agent.bundle.building import MEMBER, TASK, imported, optimized_text

# Reads the memory of its weights as it lies, as a kernel does.
RAW = MEMBER.replace(
    "self.packed = self.weight * self.factor",
    "raw = torch.as_strided(self.weight.detach(), (self.weight.numel(),), (1,))\n            self.packed = raw * self.factor",
)


@pytest.fixture(scope="module")
def optimized(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    return imported(tmp_path_factory.mktemp("optimized"), optimized_text())


def inputs(rows: int = 32, cols: int = 64) -> list[torch.Tensor]:
    return [torch.randn(rows, cols), torch.randn(rows, cols)]


def ran(module: ModuleType, call: Callable[[], Any]) -> bool:
    before = len(module.calls)
    call()
    return len(module.calls) > before


def right(module: ModuleType, model: Any, *given: torch.Tensor) -> None:
    """The module's answer is the reference's."""
    torch.testing.assert_close(model(*given), module.Model.forward(model, *given))


# ------------------------------------------------------------------------------------------ compilers and exporters


def test_compiled_as_one_graph_it_gives_the_same_with_and_without_gradients(optimized: ModuleType) -> None:
    model = optimized.ModelNew(64)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    x, residual = inputs()
    with torch.no_grad():
        torch.testing.assert_close(compiled(x, residual), optimized.Model.forward(model, x, residual))
    compiled(x, residual).sum().backward()
    expected = torch.autograd.grad(optimized.Model.forward(model, x, residual).sum(), [model.weight])
    torch.testing.assert_close(model.weight.grad, expected[0])


def test_a_larger_model_around_it_compiles_as_one_graph(optimized: ModuleType) -> None:
    class Around(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before, self.inner = torch.nn.Linear(64, 64), optimized.ModelNew(64)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(self.before(x), x).relu()

    model = Around()
    x = inputs()[0]
    with torch.no_grad():
        expected = model(x)
        assert ran(optimized, lambda: model(x)), "outside of a compiler the member runs"
        torch.testing.assert_close(torch.compile(model, fullgraph=True, backend="aot_eager")(x), expected)


@pytest.mark.parametrize("strict", [False, True])
def test_it_can_be_exported_with_a_size_that_varies(optimized: ModuleType, strict: bool) -> None:
    model = optimized.ModelNew(64).eval()
    rows = torch.export.Dim("rows", min=2, max=4096)
    program = torch.export.export(
        model, tuple(inputs()), dynamic_shapes=({0: rows}, {0: rows}), strict=strict
    )
    given = inputs(77)
    torch.testing.assert_close(program.module()(*given), optimized.Model.forward(model, *given))
    assert sorted(program.state_dict) == sorted(model.state_dict())


def test_it_can_be_traced(optimized: ModuleType) -> None:
    model = optimized.ModelNew(64).requires_grad_(False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(model, tuple(inputs()))
    given = inputs(5)
    torch.testing.assert_close(traced(*given), optimized.Model.forward(model, *given))


# -------------------------------------------------------------------------------------------------- differentiation


def test_a_step_between_forward_and_backward_leaves_the_graph_alone(tmp_path: Path) -> None:
    """A look at the validation set may not touch parameters that an earlier graph still needs."""
    compiled = MEMBER.replace("calls = []", "calls = []\n# torch.compile( says that nothing is packed")
    compiled = compiled.replace("if self.packed is None", "if True")
    module = imported(tmp_path, optimized_text([Candidate(compiled, "compiler", "kept")]))
    assert module.KEEPS_NO_WEIGHTS == [True]
    model = module.ModelNew(64)
    x, residual = inputs()
    with torch.no_grad():
        model(x, residual)
        model.weight.mul_(2.0)  # an optimizer's step
    loss = (model(x, residual) * model.weight).square().sum()
    with torch.no_grad():
        versions = [tensor._version for tensor in (model.weight, model.shift)]
        assert ran(module, lambda: model(x, residual))
        right(module, model, x, residual)
        assert [tensor._version for tensor in (model.weight, model.shift)] == versions
    loss.backward()
    assert model.weight.grad is not None


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is:DeprecationWarning")  # torch itself uses it
def test_forward_mode_differentiation_comes_from_the_reference(tmp_path: Path) -> None:
    kernel = MEMBER.replace("self.shift + residual, x,", "self.shift + residual.detach(), x.detach(),")
    optimized = imported(tmp_path, optimized_text([Candidate(kernel, "llm", "knows no tangents")]))
    model = optimized.ModelNew(64).requires_grad_(False)
    x, residual = inputs()
    tangent = torch.randn_like(x)
    model(x, residual)
    with torch.no_grad(), forward_ad.dual_level():
        _, found = forward_ad.unpack_dual(model(forward_ad.make_dual(x, tangent), residual))
        assert found is not None
        torch.testing.assert_close(found, tangent * model.weight * model.factor)
    _, also = torch.func.jvp(lambda value: model(value, residual), (x,), (tangent,))
    torch.testing.assert_close(also, found)
    assert ran(optimized, lambda: model(x, residual))


def test_functional_calls_see_the_parameters_that_they_are_given(optimized: ModuleType) -> None:
    model = optimized.ModelNew(64)
    x, residual = inputs()
    other = {"weight": torch.randn(64), "shift": torch.randn(64)}

    def call(given: dict[str, torch.Tensor]) -> torch.Tensor:
        return torch.func.functional_call(model, given, (x, residual))  # type: ignore[no-any-return]

    with torch.no_grad():
        model(x, residual)
        torch.testing.assert_close(call(other), x * other["weight"] * 2.0 + other["shift"] + residual)
        several = {name: torch.stack([value, value + 1]) for name, value in other.items()}
        assert torch.vmap(call)(several).shape == (2, 32, 64)
        right(optimized, model, x, residual)
    gradients = torch.func.grad(lambda given: call(given).sum())(other)
    torch.testing.assert_close(gradients["weight"], 2.0 * x.sum(0))
    with torch.no_grad():
        assert ran(optimized, lambda: model(x, residual)), "none of it takes the member away"


# ------------------------------------------------------------------------------------------- what lies in memory how


@pytest.mark.parametrize(
    "make",
    [
        lambda: [torch.randn(1, 64).expand(32, 64), torch.randn(32, 64)],
        lambda: [torch.randn(64, 32).t(), torch.randn(32, 64)],
        lambda: [torch.randn(32 * 64).as_strided((32, 64), (32, 1)), torch.randn(32, 64)],
        lambda: [torch.randn(32, 128)[:, ::2], torch.randn(32, 64)],
        lambda: [torch.randn(64, 64)[::2], torch.randn(64, 64)[1::2]],
        lambda: [value[3:35].view(32, 64) for value in (torch.randn(40, 64), torch.randn(40, 64))],
        lambda: [torch.randn(1, 64), torch.randn(1, 64)],
        lambda: [torch.randn(0, 64), torch.randn(0, 64)],
        lambda: [torch.randn(32, 64), torch.randn(1, 64)],
        lambda: [torch.randn(64), torch.randn(32, 64)],
    ],
    ids="expanded transposed overlapping every-second rows-apart slices one none broadcast vector".split(),
)
def test_views_and_tiny_sizes_give_what_the_reference_gives(
    optimized: ModuleType, make: Callable[[], list[torch.Tensor]]
) -> None:
    model = optimized.ModelNew(64)
    with torch.no_grad():
        right(optimized, model, *make())
        same = make()[0]
        right(optimized, model, same, same)


def test_more_elements_than_32_bits_can_count_are_outside(optimized: ModuleType) -> None:
    """On the meta device: the guards read sizes alone, and answer before any memory is asked for."""
    dims = {
        "rows": {"min": 1, "max": 1 << 20, "multiple_of": 1, "default": 32},
        "cols": {"min": 8, "max": 8192, "multiple_of": 1, "default": 64},
    }
    text = optimized_text(dims=dims).replace("not x.is_cpu", "False").replace("not residual.is_cpu", "False")
    folder = Path(str(optimized.__file__)).parent
    module = imported(folder, text)
    model = module.ModelNew(8192)
    for rows, inside in ((1 << 18, True), ((1 << 20) + 1, False)):
        x = torch.empty(rows, 8192, device="meta")
        said = module._outside(model._kw_dispatch.fixed, x, x)
        assert (said is None) is inside, said
    assert x.numel() > 2**31


def test_conjugated_inputs_are_not_read_as_they_lie(tmp_path: Path) -> None:
    task = TASK.replace('Choice("float32", "float64")', 'Choice("complex64")').replace(
        'dtype="float32"', 'dtype="complex64"'
    )
    dims = {
        "rows": {"min": 1, "max": 4096, "multiple_of": 1, "default": 32},
        "cols": {"min": 8, "max": 1024, "multiple_of": 8, "default": 64},
        "dtype": {"choices": ["complex64"], "default": "complex64"},
    }
    module = imported(tmp_path, optimized_text(task=task, dims=dims))
    model = module.ModelNew(64)
    x = torch.randn(32, 64, dtype=torch.complex64)
    with torch.no_grad():
        assert ran(module, lambda: model(x, x))
        assert not ran(module, lambda: model(x.conj(), x))
        assert "conjugated" in model.kernelwright_explain(x.conj(), x)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.randn(128)[::2],
        lambda: torch.randn(65)[1:],
        lambda: torch.randn(1).expand(64),
    ],
    ids=["every second", "unaligned", "expanded"],
)
def test_parameters_that_lie_otherwise_are_copied_for_the_kernels(
    tmp_path: Path, make: Callable[[], torch.Tensor]
) -> None:
    module = imported(tmp_path, optimized_text([Candidate(RAW, "llm", "reads raw memory")]))
    model = module.ModelNew(64)
    x, residual = inputs()
    with torch.no_grad():
        model.weight = torch.nn.Parameter(make())
        assert ran(module, lambda: model(x, residual))
        right(module, model, x, residual)


def test_a_member_that_packs_weights_itself_gets_none_that_lie_otherwise(tmp_path: Path) -> None:
    packs = RAW + (
        "\n    @classmethod\n    def from_reference(cls, reference):\n"
        "        made = cls(reference.weight.numel())\n"
        "        made.packed = torch.as_strided(reference.weight.detach(), (reference.weight.numel(),), (1,)) * 2.0\n"
        "        made.shift = reference.shift\n        return made\n"
    )
    module = imported(tmp_path, optimized_text([Candidate(packs, "llm", "packs raw memory")]))
    model = module.ModelNew(64)
    x, residual = inputs()
    with torch.no_grad():
        assert ran(module, lambda: model(x, residual))
        right(module, model, x, residual)
        model.weight = torch.nn.Parameter(torch.randn(128)[::2])
        assert not ran(module, lambda: model(x, residual))
        right(module, model, x, residual)


# --------------------------------------------------------------------------------------------- what people change


def test_a_submodule_that_is_replaced_or_watched_is_noticed(tmp_path: Path) -> None:
    task = TASK.replace(
        "self.factor = factor", "self.factor = factor\n        self.act = nn.Sequential(nn.ReLU())"
    )
    task = task.replace("+ residual\n", "+ self.act(residual)\n")
    member = MEMBER.replace("self.shift + residual", "self.shift + torch.relu(residual)")
    module = imported(tmp_path, optimized_text([Candidate(member, "llm", "fused")], task=task))
    x, residual = inputs()
    seen: list[int] = []
    with torch.no_grad():
        model = module.ModelNew(64)
        assert ran(module, lambda: model(x, residual))
        model.act[0] = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Linear(64, 64))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # its weights have no place in the member
            right(module, model, x, residual)
        watched = module.ModelNew(64)
        watched.act.register_forward_hook(lambda *_: seen.append(1))
        watched.eval()
        watched(x, residual)
        assert seen == [1]
        right(module, watched, x, residual)


def test_parametrized_weights_are_the_reference_s(optimized: ModuleType) -> None:
    class Twice(torch.nn.Module):
        def forward(self, weight: torch.Tensor) -> torch.Tensor:
            return 2.0 * weight

    model = optimized.ModelNew(64)
    x, residual = inputs()
    with torch.no_grad():
        before = model(x, residual)
        torch.nn.utils.parametrize.register_parametrization(model, "weight", Twice())
        said = warned(lambda: model(x, residual))
        assert len(said) <= 1
        right(optimized, model, x, residual)
        assert not torch.allclose(model(x, residual), before)


def test_a_model_made_without_memory_gets_its_weights_later(optimized: ModuleType) -> None:
    with torch.device("meta"):
        model = optimized.ModelNew(64)
    model = model.to_empty(device="cpu")
    model.load_state_dict(optimized.Model(64).state_dict())
    with torch.no_grad():
        assert ran(optimized, lambda: model(*inputs()))
        right(optimized, model, *inputs())


def test_a_saved_module_and_a_saved_state_come_back(optimized: ModuleType) -> None:
    model, x = optimized.ModelNew(64), inputs()
    with torch.no_grad():
        expected = model(*x)
        for saved in (model, model.state_dict()):
            file = io.BytesIO()
            torch.save(saved, file)
            file.seek(0)
            loaded = torch.load(file, weights_only=saved is not model)
            if saved is not model:
                state, loaded = loaded, optimized.ModelNew(64)
                assert list(state) == list(optimized.Model(64).state_dict())
                loaded.load_state_dict(state, strict=True)
            assert ran(optimized, lambda loaded=loaded: loaded(*x))
            torch.testing.assert_close(loaded(*x), expected)
        reference = optimized.Model(64)
        reference.load_state_dict(model.state_dict(), strict=True)
        torch.testing.assert_close(reference(*x), expected)


def test_threads_may_share_it_while_another_changes_the_weights(tmp_path: Path) -> None:
    """Every answer is that of the old weights or of the new ones, and the members are built once for each."""
    builds = MEMBER.replace("calls = []", "import time\n\ncalls = []\nbuilds = []\npause_s = 0.0").replace(
        "self.packed = None", "self.packed = None\n        builds.append(1)\n        time.sleep(pause_s)", 1
    )
    module = imported(tmp_path, optimized_text([Candidate(builds, "human", "counts")]))
    model = module.ModelNew(64)
    x, residual = inputs()
    wrong: list[str] = []
    start, changes = threading.Barrier(5), 20
    with torch.no_grad():
        model.weight.fill_(0.0)
        allowed = [x * (2.0 * step) + model.shift + residual for step in range(changes + 1)]

    def use() -> None:
        start.wait()
        with torch.no_grad():
            for _ in range(300):
                found = model(x, residual)
                if not any(torch.allclose(found, one, atol=1e-4) for one in allowed):
                    wrong.append("neither old nor new")
                    return

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    start.wait()
    for step in range(1, changes + 1):
        with torch.no_grad():
            model.weight = torch.nn.Parameter(torch.full((64,), float(step)))
    for thread in threads:
        thread.join()
    assert not wrong
    with torch.no_grad():
        right(module, model, x, residual)
    module.pause_s = 0.2  # long enough for all four to find it stale
    built = len(module.builds)
    with torch.no_grad():
        model.weight.add_(1.0)

    def use_once() -> None:
        with torch.no_grad():
            model(x, residual)

    threads = [threading.Thread(target=use_once) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(module.builds) == built + 1, "four threads that find it stale build it once"


def test_weights_that_change_while_a_member_is_built_for_the_old_ones_are_noticed(tmp_path: Path) -> None:
    meanwhile = MEMBER.replace("calls = []", "calls = []\nmeanwhile = []") + (
        "\n    def train(self, mode=True):\n        if meanwhile:\n            meanwhile.pop()()\n        return super().train(mode)\n"
    )
    module = imported(tmp_path, optimized_text([Candidate(meanwhile, "human", "slow to build")]))
    model = module.ModelNew(64)
    x, residual = inputs()

    def replace() -> None:
        model.weight = torch.nn.Parameter(torch.randn(64))

    with torch.no_grad():
        model.weight.add_(1.0)
        module.meanwhile.append(replace)
        model(x, residual)
        assert not module.meanwhile
        right(module, model, x, residual)


def test_a_member_that_calls_the_module_while_it_is_built_does_not_hang(tmp_path: Path) -> None:
    member = MEMBER + (
        "\n    @classmethod\n    def from_reference(cls, reference):\n"
        "        made = cls(reference.weight.numel())\n        made.load_state_dict(reference.state_dict())\n"
        "        reference(torch.zeros(1, reference.weight.numel()), torch.zeros(1, reference.weight.numel()))\n"
        "        return made\n"
    )
    module = imported(tmp_path, optimized_text([Candidate(member, "llm", "calls back")]))
    with torch.no_grad():
        model = module.ModelNew(64)
        assert ran(module, lambda: model(*inputs()))
        right(module, model, *inputs())


# ------------------------------------------------------------------------------------------- where it was not judged


def warned(call: Callable[[], Any]) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return [str(one.message) for one in caught]


def test_a_gpu_s_bundle_without_a_gpu_says_so_once(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    module = imported(tmp_path, optimized_text(device="cuda"))
    models: list[Any] = []
    said = warned(lambda: models.extend([module.ModelNew(64), copy.deepcopy(module.ModelNew(64))]))
    assert len(said) == 1
    assert "no GPU that torch can use" in said[0]
    assert "kernelwright verify" in said[0]
    with torch.no_grad():
        assert not warned(lambda: right(module, models[0], *inputs()))
    assert not module.calls


def judged_with(folder: Path, version: str) -> ModuleType:
    text = optimized_text().replace("JUDGED_WITH = {}", f"JUDGED_WITH = {{'torch': {version!r}}}")
    assert version in text
    return imported(folder, text)


def test_another_torch_is_named_once(tmp_path: Path) -> None:
    module = judged_with(tmp_path, "1.13.1")
    said = warned(lambda: (module.ModelNew(64), module.ModelNew(64)))
    assert len(said) == 1
    assert "judged with torch 1.13.1" in said[0]
    assert not warned(lambda: judged_with(tmp_path, torch.__version__).ModelNew(64))


def test_another_gpu_is_named_once(tmp_path: Path) -> None:
    module = judged_with(tmp_path, torch.__version__)
    module.JUDGED_WITH["device_name"] = "NVIDIA H200"
    said = warned(lambda: [module._tell_where(name) for name in ("NVIDIA H200", "NVIDIA L4", "NVIDIA L4")])
    assert len(said) == 1
    assert "NVIDIA H200, and this is NVIDIA L4" in said[0]


PROGRAM = """
import json, sys, torch
before = set(sys.modules)
import optimized
loaded = set(sys.modules) - before
with torch.no_grad():
    model = optimized.ModelNew(64)
    x = torch.randn(4, 64)
    same = torch.allclose(model(x, x), optimized.Model.forward(model, x, x))
print(json.dumps({"loaded": sorted(loaded), "same": same, "member": len(optimized.calls)}))
"""


def test_alone_in_a_folder_it_works_and_loads_next_to_nothing_beside_torch(tmp_path: Path) -> None:
    """What takes long to import would show among the modules: torch's compiler alone takes seconds."""
    (tmp_path / "optimized.py").write_text(optimized_text())
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-s", "-c", PROGRAM],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    found = json.loads(done.stdout)
    assert found["same"]
    assert found["member"] > 0
    assert [name for name in found["loaded"] if name.startswith("torch._")] == []
    assert len(found["loaded"]) <= 3, found["loaded"]


# ------------------------------------------------------------------------------------------------------------ GPUs

GPU_MEMBER = """
import torch
import torch.nn as nn

calls = []


class ModelNew(nn.Module):
    def __init__(self, cols: int, factor: float = 2.0):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(cols))
        self.register_buffer("shift", torch.zeros(cols))
        self.factor = factor

    def forward(self, x, residual):
        calls.append(tuple(x.shape))
        return torch.addcmul(self.shift + residual, x, self.weight * self.factor)
"""


@pytest.fixture
def on_gpu(tmp_path: Path) -> ModuleType:
    return imported(tmp_path, optimized_text([Candidate(GPU_MEMBER, "human", "on a GPU")], device="cuda"))


def gpu_inputs(rows: int = 32, device: str = "cuda") -> list[torch.Tensor]:
    return [value.to(device) for value in inputs(rows)]


@pytest.mark.gpu
def test_a_captured_graph_holds_the_member_and_sees_new_inputs(on_gpu: ModuleType) -> None:
    model = on_gpu.ModelNew(64).cuda()
    x, residual = gpu_inputs()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.no_grad(), torch.cuda.stream(stream):
        model(x, residual)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        before = len(on_gpu.calls)
        out = model(x, residual)
        assert len(on_gpu.calls) == before + 1
    x.copy_(torch.randn_like(x))
    graph.replay()
    torch.testing.assert_close(out, on_gpu.Model.forward(model, x, residual))


@pytest.mark.gpu
def test_a_first_call_inside_a_capture_takes_the_reference_and_the_next_one_the_member(
    on_gpu: ModuleType,
) -> None:
    model = on_gpu.ModelNew(64).cuda()
    x, residual = gpu_inputs()
    with torch.no_grad():
        on_gpu.Model.forward(model, x, residual)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = model(x, residual)
        assert not on_gpu.calls
        graph.replay()
        torch.testing.assert_close(out, on_gpu.Model.forward(model, x, residual))
        assert ran(on_gpu, lambda: model(x, residual))


@pytest.mark.gpu
def test_it_follows_the_current_stream_in_several_threads(on_gpu: ModuleType) -> None:
    model = on_gpu.ModelNew(64).cuda()
    wrong: list[int] = []

    def use(number: int) -> None:
        stream = torch.cuda.Stream()
        with torch.no_grad(), torch.cuda.stream(stream):
            for _ in range(200):
                x = torch.full((512, 64), float(number), device="cuda")
                torch.cuda._sleep(
                    20_000
                )  # the input is late: whoever does not wait for this stream reads something else
                x.add_(1.0)
                found = model(x, x)
                expected = on_gpu.Model.forward(model, x, x)
                if not torch.allclose(found, expected, rtol=1e-4, atol=1e-4):
                    wrong.append(number)

    threads = [threading.Thread(target=use, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.gpu
def test_inputs_on_another_device_are_the_reference_s_to_refuse(on_gpu: ModuleType) -> None:
    model = on_gpu.ModelNew(64).cuda()
    with torch.no_grad():
        assert ran(on_gpu, lambda: model(*gpu_inputs()))
        with pytest.raises(RuntimeError, match="device"):
            model(*inputs())
        assert ran(on_gpu, lambda: model(*gpu_inputs()))
        if torch.cuda.device_count() < 2:
            return
        other = copy.deepcopy(model).to("cuda:1")
        right(on_gpu, other, *gpu_inputs(device="cuda:1"))
        with torch.cuda.device(1):
            assert ran(on_gpu, lambda: other(*gpu_inputs(device="cuda:1")))
            with pytest.raises(RuntimeError, match="device"):
                model(*gpu_inputs(device="cuda:1"))


@pytest.mark.gpu
def test_on_a_gpu_it_compiles_as_one_graph_and_can_be_exported(on_gpu: ModuleType) -> None:
    model, given = on_gpu.ModelNew(64).cuda(), gpu_inputs()
    with torch.no_grad():
        expected = on_gpu.Model.forward(model, *given)
        compiled = torch.compile(model, fullgraph=True, mode="reduce-overhead")
        for _ in range(3):
            torch.testing.assert_close(compiled(*given).clone(), expected)
        torch.testing.assert_close(torch.export.export(model, tuple(given)).module()(*given), expected)
