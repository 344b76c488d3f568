"""Tasks of the catalogue for which the library has a kernel, with variants of that kernel, for the study of dispatchers.

A job's portfolio holds candidates that differ in how they divide the work. Here they are made from one text: on a GPU the library's
Triton kernel with a quarter to four times its warps, on a CPU its C++ kernel at each number of threads. Beside them is what anybody
could have: eager and the compiler. Everything is replayed as a CUDA graph on a GPU, so that kernels are compared and not
their launches. Only our own tasks and kernels run here, outside the sandbox.
"""

from __future__ import annotations

import ast
import math
import random
from collections.abc import Mapping, Sequence
from functools import cached_property
from types import ModuleType
from typing import Any

import torch
from torch import nn

from agent.library.by_task import list_task_kernels
from benchmarks.dispatch_variants import Call, Variant, on_one_thread
from benchmarks.exemplars_cpu import library_candidate, module_from, named
from kernelbench_tasks import Choice, catalog

#: Tasks whose forward neither writes to its inputs nor waits for the device.
TASKS = {
    "cuda": (
        "rmsnorm", "softmax", "swiglu", "bias_gelu", "residual_add_rmsnorm", "layernorm_relu_add", "row_sum",
        "row_moments", "sparsemax", "logsumexp_difference", "dual_gate_residual", "segmented_cumsum",
        "gated_linear_recurrence", "rms_norm_quantize_fp8", "mx_quantize", "int4_matmul",
    ),
    "cpu": ("rmsnorm", "softmax", "layernorm_relu_add", "row_moments", "segmented_cumsum", "gated_linear_recurrence"),
}  # fmt: skip
#: Calls in one graph.
_INSIDE = 20
_WARPS = (0.25, 0.5, 1.0, 2.0, 4.0)
_MOST_ELEMENTS = {"cpu": 4 << 20, "cuda": 64 << 20}
_TIERS = (1, 2, 4, 8, 16, 64, 128)


class TaskOperation:
    """A task with the library's kernel; see `benchmarks.dispatch_matrix.Timed`.

    Args:
        name: of the task.
        device: cpu or cuda.
    """

    inputs: Sequence[tuple[str, ...]] = ()
    tolerance = 2e-2

    def __init__(self, name: str, device: str) -> None:
        self.name = name
        self.inside = _INSIDE if device == "cuda" else 1
        self._device = device

    @cached_property
    def _task(self) -> ModuleType:
        return module_from(catalog.load(self.name).source, f"task_{self.name}")

    @cached_property
    def _own(self) -> dict[str, ModuleType]:
        """The kernel's variants by name, each as a module."""
        kernels = {(one.task, one.device): one for one in list_task_kernels()}
        found = kernels.get((self.name, self._device))
        source = found.source if found else library_candidate(catalog.load(self.name).source, self._device)
        if self._device == "cpu":
            return {"own": module_from(source, f"{self.name}_own")}
        texts = {f"own, warps x {factor:g}": with_warps(source, factor) for factor in _WARPS}
        modules = [module_from(text, f"{self.name}_own_{place}") for place, text in enumerate(texts.values())]
        return dict(zip(texts, modules, strict=True))

    @cached_property
    def _compiled(self) -> Call:
        """One code for all sizes and for all modules of the task, where loops over sizes do not ask for several."""
        config = torch._dynamo.config
        config.force_parameter_static_shapes = False
        config.recompile_limit = config.accumulated_recompile_limit = 1000
        return torch.compile(lambda model, *inputs: model(*inputs), dynamic=True)

    def draw(self, count: int, seed: int) -> list[dict[str, Any]]:
        """Log-uniform sizes of the declared range, each on an alignment tier where the range allows it; choices at their defaults."""
        generator = random.Random(seed)
        shapes: list[dict[str, Any]] = []
        while len(shapes) < count:
            shape: dict[str, Any] = {}
            for name, dim in self._task.DIMS.items():
                if isinstance(dim, Choice):
                    shape[name] = dim.default
                    continue
                size = math.exp(generator.uniform(math.log(max(dim.min, 1)), math.log(dim.max)))
                tier = generator.choice(_TIERS)
                shape[name] = dim.nearest(max(round(size / tier) * tier, 1))
            elements = math.prod(size for size in shape.values() if isinstance(size, int))
            if elements <= _MOST_ELEMENTS[self._device] and shape not in shapes:
                shapes.append(shape)
        return shapes

    def make(self, shape: Mapping[str, Any], device: str) -> list[Any]:
        """Inputs of a shape, those that are tensors on the device."""
        return [_moved(value, device) for value in named(self._task.get_inputs, dict(shape))]

    def variants_at(self, shape: Mapping[str, Any], device: str) -> list[Variant]:
        """The variants, with weights of this shape."""
        init = named(self._task.get_init_inputs, dict(shape))
        reference = self._task.Model(*init).to(device).eval()
        models = {name: _built(module, init, reference, device) for name, module in self._own.items()}
        compiled: Call = lambda *inputs: self._compiled(reference, *inputs)  # noqa: E731
        if device == "cuda":
            from benchmarks.dispatch_variants_cuda import replayed

            return [
                Variant("eager", replayed(reference), baseline=True, reference=True),
                Variant("compile dynamic", replayed(compiled), baseline=True),
                *(Variant(name, replayed(model)) for name, model in models.items()),
            ]
        return [
            Variant("eager", reference, baseline=True, reference=True),
            Variant("eager 1t", on_one_thread(reference), baseline=True),
            Variant("compile dynamic", compiled, baseline=True),
            *(Variant(name, model) for name, model in models.items()),
            *(Variant(f"{name} 1t", on_one_thread(model)) for name, model in models.items()),
        ]


def task_operations(device: str) -> list[TaskOperation]:
    """Every task that is measured on a device."""
    return [TaskOperation(name, device) for name in TASKS[device]]


def _moved(value: Any, device: str) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(device)
    return type(value)(_moved(item, device) for item in value) if isinstance(value, (list, tuple)) else value


def _built(module: ModuleType, init: Sequence[Any], reference: nn.Module, device: str) -> nn.Module:
    model: nn.Module
    if hasattr(module.ModelNew, "from_reference"):
        model = module.ModelNew.from_reference(reference)
    else:
        model = module.ModelNew(*init)
        model.load_state_dict(reference.state_dict())
    return model.to(device).eval()


def with_warps(source: str, factor: float) -> str:
    """A Triton kernel's text with so many times the warps in each of its launches, 1 to 32."""
    tree = _MoreWarps(factor).visit(ast.parse(source))
    return ast.unparse(ast.fix_missing_locations(tree))


class _MoreWarps(ast.NodeTransformer):
    def __init__(self, factor: float) -> None:
        self._factor = factor

    def visit_keyword(self, node: ast.keyword) -> ast.keyword:
        self.generic_visit(node)
        if node.arg == "num_warps":
            node.value = self._scaled(node.value)
        return node

    def visit_Dict(self, node: ast.Dict) -> ast.Dict:
        self.generic_visit(node)
        for place, key in enumerate(node.keys):
            if isinstance(key, ast.Constant) and key.value == "num_warps":
                node.values[place] = self._scaled(node.values[place])
        return node

    def _scaled(self, value: ast.expr) -> ast.expr:
        text = f"min(max(int(({ast.unparse(value)}) * {self._factor!r}), 1), 32)"
        return ast.parse(text, mode="eval").body
