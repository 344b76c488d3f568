"""What the library's kernels compute: the formula by which a user's module is recognized, and the roles in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from evaluator.devices import is_accelerator

_FOLDER = Path(__file__).resolve().parent / "exemplars"


@dataclass(frozen=True)
class Exemplar:
    """One operation that the library knows.

    Attributes:
        name: of the operation, of its function and of its files.
        formula: what it computes for a row, in the words of `agent.library.match.formula`.
        roles: kind of each name in the formula; the function takes them in this order.
        output: "full" when the output is as large as x, "row" for one number per row.
        devices: where there is a kernel.
        task: the task of the catalogue that is exactly this operation.
    """

    name: str
    formula: str
    roles: Mapping[str, str]
    task: str
    output: str = "full"
    devices: tuple[str, ...] = ("cpu", "cuda")

    def path(self, device: str) -> Path:
        """The Python file of the kernel for a device."""
        return _FOLDER / ("gpu" if is_accelerator(device) else "cpu") / f"{self.name}.py"


EXEMPLARS: tuple[Exemplar, ...] = (
    Exemplar(
        "layernorm_relu_add",
        "relu((x - mean(x)) * rsqrt(var(x) + eps) * weight + bias) + residual",
        {"x": "full", "residual": "full", "weight": "col", "bias": "col", "eps": "constant"},
        task="layernorm_relu_add",
    ),
    Exemplar(
        "residual_add_rmsnorm",
        "(x + residual) * rsqrt(mean(square(x + residual)) + eps) * weight",
        {"x": "full", "residual": "full", "weight": "col", "eps": "constant"},
        task="residual_add_rmsnorm",
    ),
    Exemplar(
        "rmsnorm",
        "x * rsqrt(mean(square(x)) + eps) * weight",
        {"x": "full", "weight": "col", "eps": "constant"},
        task="rmsnorm",
    ),
    Exemplar("softmax", "softmax(x)", {"x": "full"}, task="softmax"),
    Exemplar("swiglu", "silu(gate) * up", {"gate": "full", "up": "full"}, task="swiglu"),
    Exemplar("bias_gelu", "gelu_tanh(x + bias)", {"x": "full", "bias": "col"}, task="bias_gelu"),
    Exemplar("row_sum", "sum(x)", {"x": "full"}, task="row_sum", output="row"),
)
