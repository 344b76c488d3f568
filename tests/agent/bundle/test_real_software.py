"""The delivered file among compilers, gradients, threads and all that people change about a module: right results."""

from __future__ import annotations

import io
import threading
import warnings
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch.autograd import forward_ad

from agent.candidates import Candidate
from tests.agent.bundle.building import MEMBER, TASK, imported, inputs, optimized_text, ran, right, warned


@pytest.fixture(scope="module")
def optimized(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    return imported(tmp_path_factory.mktemp("optimized"), optimized_text())


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


def test_a_step_between_forward_and_backward_leaves_the_graph_alone(tmp_path: Path) -> None:
    """A look at the validation set may not touch parameters that an earlier graph still needs."""
    compiled = MEMBER.replace("calls = []", "calls = []\n# torch.compile( says that nothing is packed")
    compiled = compiled.replace("if self.packed is None", "if True")
    module = imported(tmp_path, optimized_text([Candidate(compiled, "compiler", "kept")]))
    assert [reads_weights for _, _, reads_weights in module.MEMBERS] == [True]
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
        for before in (True, False):
            model = module.ModelNew(64)
            assert not before or ran(module, lambda: model(x, residual))  # noqa: B023 - called at once
            model.act[0] = torch.nn.GELU()  # has no weights at all
            assert not ran(module, lambda: model(x, residual))  # noqa: B023
            right(module, model, x, residual)
            assert "another kind" in model.kernelwright_explain(x, residual)
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


def test_what_a_thread_makes_of_earlier_weights_serves_no_later_call(tmp_path: Path) -> None:
    """A thread is in a member when the weights change, and keeps there what it has made of them before."""
    slow = MEMBER.replace("calls = []", "calls = []\nbetween = []").replace(
        "self.packed = self.weight * self.factor",
        "packed = self.weight * self.factor\n            [one() for one in between]\n            self.packed = packed",
    )
    module = imported(tmp_path, optimized_text([Candidate(slow, "human", "packs")]))
    model = module.ModelNew(64)
    x, residual = inputs()
    is_in, may_go_on = threading.Event(), threading.Event()

    def wait() -> None:
        is_in.set()
        may_go_on.wait()

    def use() -> None:
        with torch.no_grad():
            model(x, residual)

    module.between.append(wait)
    thread = threading.Thread(target=use)
    thread.start()
    is_in.wait()
    module.between.clear()
    with torch.no_grad():
        model.weight.add_(1.0)
        model._kw_dispatch.runs_for(model)  # built for the new weights, and not called yet
        may_go_on.set()
        thread.join()
        assert ran(module, lambda: right(module, model, x, residual))


def test_threads_may_share_it_while_another_changes_the_weights(tmp_path: Path) -> None:
    """Every answer is that of the old weights or of the new ones, and the members are built once for each."""
    builds = MEMBER.replace("calls = []", "import time\n\ncalls = []\nbuilds = []\npause_s = 0.0") + (
        "\n    def train(self, mode=True):\n        builds.append(1)\n        time.sleep(pause_s)\n        return super().train(mode)\n"
    )
    module = imported(tmp_path, optimized_text([Candidate(builds, "human", "counts")]))
    model = module.ModelNew(64)
    x, residual = inputs()
    wrong: list[str] = []
    start, changes = threading.Barrier(5), 20
    with torch.no_grad():
        model.weight.fill_(0.0)
        allowed = torch.stack([x * (2.0 * step) + model.shift + residual for step in range(changes + 1)])

    def use() -> None:
        start.wait()
        with torch.no_grad():
            for _ in range(300):
                found = model(x, residual)
                if (allowed - found).abs().amax((1, 2)).min() > 1e-3:
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
