"""The module of a task that is called forward and backward runs its kernel there, and its gradients are the reference's."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from agent.candidates import Candidate
from tests.agent.bundle.building import imported, optimized_text

_FOLDER = Path(__file__).parent
TASK, KERNEL = ((_FOLDER / f"gradients_{part}.py").read_text() for part in ("task", "candidate"))
NAME = "the kernel (external)"
BACK = f"{NAME}: backward"


@pytest.fixture(scope="module")
def optimized(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """The delivered file; its kernel is built by torch once for this module."""
    members = [Candidate(KERNEL, "external", "the kernel")]
    return imported(tmp_path_factory.mktemp("gradients"), optimized_text(members, task=TASK, dims={}))


def pair(optimized: ModuleType) -> tuple[Any, nn.Module]:
    """The delivered module and a reference with the same weights, which are not those that it was made with."""
    model, reference = optimized.ModelNew(384), optimized.Model(384)
    with torch.no_grad():
        reference.gain.normal_()
    model.load_state_dict(reference.state_dict())
    return model, reference


def x_of(*, wanted: bool = True) -> torch.Tensor:
    return torch.randn(192, 384, requires_grad=wanted)


def gradients(
    module: Any, x: torch.Tensor, loss: Callable[[torch.Tensor], torch.Tensor]
) -> list[torch.Tensor | None]:
    """Of the input and the weight, from one call."""
    x = x.detach().requires_grad_(x.requires_grad)
    module.zero_grad()
    loss(module(x)).backward()
    return [x.grad, module.gain.grad]


LOSSES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "contiguous": lambda y: y.square().sum(),
    "expanded": lambda y: y.sum(),
    "transposed": lambda y: (torch.arange(384.0 * 192).view(384, 192) / 7e4 * y.t()).sum(),
    "unaligned": lambda y: torch.cat([torch.ones(1), y.reshape(-1)]).square().sum(),
    "sliced": lambda y: y[::2].square().sum() + y[:, 3].sum(),
}


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("wanted", [True, False])
def test_the_kernel_runs_and_gradients_are_right(optimized: ModuleType, loss: str, wanted: bool) -> None:
    model, reference = pair(optimized)
    x = x_of(wanted=wanted)
    with model.kernelwright_trace() as ran:
        found = gradients(model, x, LOSSES[loss])
    assert ran == {NAME: 1, BACK: 1}
    torch.testing.assert_close(found, gradients(reference, x, LOSSES[loss]))
    assert (found[0] is not None) is wanted


def test_the_kernel_itself_is_wrong_without_the_guard(optimized: ModuleType) -> None:
    """So that the tests above mean something."""
    _, reference = pair(optimized)
    member = optimized.Member1(384)
    member.load_state_dict(reference.state_dict())
    x = x_of()
    right = gradients(reference, x, LOSSES["transposed"])
    assert not torch.allclose(gradients(member, x, LOSSES["transposed"])[0], right[0])  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", [True, False])
def test_it_trains_as_the_reference_does(optimized: ModuleType, mode: bool) -> None:
    """Weights change in place after each call; the task's text does not depend on the mode."""
    model, reference = pair(optimized)
    steps = {one: torch.optim.Adam(one.train(mode).parameters(), lr=0.05) for one in (model, reference)}
    batches = [x_of(wanted=False) for _ in range(4)]
    with model.kernelwright_trace() as ran:
        for one, step in steps.items():
            for batch in batches:
                step.zero_grad()
                (one(batch) - 1.0).square().mean().backward()
                step.step()
    assert ran == {NAME: 4, BACK: 4}
    torch.testing.assert_close(model.gain, reference.gain)


def test_frozen_weights_and_calls_without_gradients_take_the_reference(optimized: ModuleType) -> None:
    model, reference = pair(optimized)
    x = x_of()
    with model.kernelwright_trace() as ran:
        with torch.no_grad():
            assert "no gradient is asked for" in model.kernelwright_explain(x)
            torch.testing.assert_close(model(x), reference(x))
        model.gain.requires_grad_(False)
        assert "frozen" in model.kernelwright_explain(x)
        model(x).sum().backward()
        model(x.detach())
        model.gain.requires_grad_(True)
        assert not ran
        assert model.kernelwright_explain(x) == NAME
        model(x)
    assert ran == {NAME: 1}
    right = x_of()
    right.data.copy_(x.data)
    reference(right).sum().backward()
    torch.testing.assert_close(x.grad, right.grad)


def test_derivatives_of_gradients_are_refused(optimized: ModuleType) -> None:
    model, reference = pair(optimized)
    x = x_of()
    with pytest.raises(RuntimeError, match=r"derivatives of gradients .* class Model of this file"):
        torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="no plain tensors"):
        torch.autograd.grad(model(x), x, torch.ones(2, 192, 384), is_grads_batched=True)
    own = optimized.Model(384)
    own.load_state_dict(model.state_dict())
    (first,) = torch.autograd.grad(own(x).square().sum(), x, create_graph=True)
    (expected,) = torch.autograd.grad(reference(x).square().sum(), x, create_graph=True)
    torch.testing.assert_close(torch.autograd.grad(first.sum(), x), torch.autograd.grad(expected.sum(), x))


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
def test_transforms_and_autocast_take_the_reference(optimized: ModuleType) -> None:
    model, reference = pair(optimized)
    x = x_of(wanted=False)
    calls: list[Callable[[Any], Any]] = [
        lambda one: torch.func.grad(lambda value: one(value).square().sum())(x),
        lambda one: torch.vmap(one)(torch.stack([x, x])),
        lambda one: torch.func.jvp(one, (x,), (torch.ones_like(x),)),
        lambda one: torch.func.grad(
            lambda weights: torch.func.functional_call(one, weights, x).square().sum()
        )({"gain": one.gain.detach()}),
    ]
    with model.kernelwright_trace() as ran:
        for call in calls:
            torch.testing.assert_close(call(model), call(reference))
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
            found, expected = (torch.autograd.forward_ad.unpack_dual(one(dual)) for one in (model, reference))
            torch.testing.assert_close(found.tangent, expected.tangent)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            torch.testing.assert_close(model(x), reference(x))
    assert not ran


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoints(optimized: ModuleType, reentrant: bool) -> None:
    model, reference = pair(optimized)
    x = x_of()
    with model.kernelwright_trace() as ran:
        found = gradients(lambda_module(model, reentrant), x, LOSSES["expanded"])
    assert ran == {NAME: 1 if reentrant else 2, BACK: 1}
    torch.testing.assert_close(found, gradients(reference, x, LOSSES["expanded"]))


def lambda_module(model: Any, reentrant: bool) -> Any:
    class Checkpointed:
        gain, zero_grad = model.gain, model.zero_grad

        def __call__(self, x: torch.Tensor) -> Any:
            return checkpoint(model, x, use_reentrant=reentrant)

    return Checkpointed()


def test_hooks_of_gradients_see_what_they_saw(optimized: ModuleType) -> None:
    """What wrappers for several processes hang on parameters, and what a module's own backward hooks are given."""
    model, reference = pair(optimized)
    x, seen = x_of(), []
    for one in (model, reference):
        one.gain.register_post_accumulate_grad_hook(lambda weight: seen.append(weight.grad.clone()))
        one.register_full_backward_hook(lambda _, inner, outer: seen.extend([inner[0], outer[0]]))
    with model.kernelwright_trace() as ran:
        gradients(model, x, LOSSES["expanded"])
    assert ran == {NAME: 1, BACK: 1}
    gradients(reference, x, LOSSES["expanded"])
    assert len(seen) == 6
    torch.testing.assert_close(seen[:3], seen[3:])


def test_results_may_be_changed_in_place_and_gone_through_twice(optimized: ModuleType) -> None:
    model, reference = pair(optimized)
    x = x_of()
    found = []
    for one in (model, reference):
        y = one(x)
        y.add_(1.0).mul_(2.0)
        total = y.sum()
        first = torch.autograd.grad(total, [x, one.gain], retain_graph=True)
        found.append([*first, *torch.autograd.grad(total, [x, one.gain])])
    # A weight's gradient sums 192 products, here in another order: 1.2e-5 of 0.2 was seen.
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-4)


def test_copies_run_their_own_kernel(optimized: ModuleType) -> None:
    model, _ = pair(optimized)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        twin.gain.mul_(2.0)
    x = x_of(wanted=False)
    with twin.kernelwright_trace() as ran:
        twin(x).sum().backward()
    assert ran == {NAME: 1, BACK: 1}
    assert model.gain.grad is None and twin.gain.grad is not None


def test_the_mode_that_times_forward_calls_is_refused(optimized: ModuleType) -> None:
    model, _ = pair(optimized)
    with pytest.raises(ValueError, match="judged forward and backward"):
        model.kernelwright_use("verified")
