"""Honest candidates in many styles: none may be rejected.

Each task of the catalogue has several right formulas, and each formula is put into several styles of writing: what
honest people do and a jealous referee might mistake for cheating. Hand-written ones lie in `controls/`.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, field

from tests.corpus.corpus import HERE, Entry, read
from tests.corpus.triton_controls import triton_variants


@dataclass(frozen=True)
class Operation:
    """A task's right answers.

    Attributes:
        inputs: names of forward's arguments; rows come first in all of them.
        constructor: body of ``__init__``, after ``super()``, with the parameters of its signature.
        parameters: expressions for what the formulas take besides the inputs, by name.
        formulas: bodies of ``compute(inputs..., parameters...)``.
    """

    inputs: tuple[str, ...]
    formulas: dict[str, str]
    signature: str = "self"
    constructor: str = "pass"
    parameters: dict[str, str] = field(default_factory=dict)


_LAYERNORM_END = "return torch.relu(y * weight + bias) + residual"
OPERATIONS = {
    "row_sum": Operation(
        ("x",),
        {
            "dot": "return x @ torch.ones(x.shape[1], dtype=x.dtype, device=x.device)",
            "split": "return torch.stack([part.sum(-1) for part in x.split(256, dim=-1)]).sum(0)",
            "pairs": """
                while x.shape[-1] > 64:
                    if x.shape[-1] % 2:
                        x = F.pad(x, (0, 1))
                    half = x.shape[-1] // 2
                    x = x[:, :half] + x[:, half:]
                return x.sum(-1)
            """,
        },
    ),
    "softmax": Operation(
        ("x",),
        {
            "two_pass": """
                powers = (x - x.amax(-1, keepdim=True)).exp()
                return powers / powers.sum(-1, keepdim=True)
            """,
            "reciprocal": """
                powers = torch.exp(x - x.max(dim=-1, keepdim=True).values)
                return powers * powers.sum(-1, keepdim=True).reciprocal()
            """,
            "online": """
                top = torch.full_like(x[:, :1], float("-inf"))
                total = torch.zeros_like(top)
                for part in x.split(512, dim=-1):
                    new_top = torch.maximum(top, part.amax(-1, keepdim=True))
                    total = total * (top - new_top).exp() + (part - new_top).exp().sum(-1, keepdim=True)
                    top = new_top
                return (x - top).exp() / total
            """,
        },
    ),
    "rmsnorm": Operation(
        ("x",),
        {
            "direct": "return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps) * weight",
            "norm": """
                length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
                return x / torch.sqrt(length * length / x.shape[-1] + eps) * weight
            """,
            "library": "return F.rms_norm(x, (x.shape[-1],), weight, eps)",
        },
        "self, cols, eps=1e-6",
        "self.weight = nn.Parameter(torch.ones(cols))\nself.eps = eps",
        {"weight": "self.weight", "eps": "self.eps"},
    ),
    "residual_add_rmsnorm": Operation(
        ("x", "residual"),
        {
            "direct": """
                h = x + residual
                return h * torch.rsqrt(h.square().mean(-1, keepdim=True) + eps) * weight
            """,
            "split": """
                h = x + residual
                squares = torch.stack([part.square().sum(-1, keepdim=True) for part in h.split(256, dim=-1)]).sum(0)
                return h * torch.rsqrt(squares / h.shape[-1] + eps) * weight
            """,
        },
        "self, cols, eps=1e-6",
        "self.norm = nn.RMSNorm(cols, eps=eps)",
        {"weight": "self.norm.weight", "eps": "self.norm.eps"},
    ),
    "layernorm_relu_add": Operation(
        ("x", "residual"),
        {
            "two_pass": f"""
                centered = x - x.mean(-1, keepdim=True)
                y = centered * torch.rsqrt(centered.square().mean(-1, keepdim=True) + eps)
                {_LAYERNORM_END}
            """,
            "welford": f"""
                count, mean, squares = 0, torch.zeros_like(x[:, :1]), torch.zeros_like(x[:, :1])
                for part in x.split(128, dim=-1):
                    size = part.shape[-1]
                    own = part.mean(-1, keepdim=True)
                    step = own - mean
                    whole = count + size
                    squares = squares + (part - own).square().sum(-1, keepdim=True) + step * step * (count * size / whole)
                    mean = mean + step * (size / whole)
                    count = whole
                y = (x - mean) * torch.rsqrt(squares / count + eps)
                {_LAYERNORM_END}
            """,
            "var_mean": f"""
                var, mean = torch.var_mean(x, dim=-1, keepdim=True, correction=0)
                y = (x - mean) / torch.sqrt(var + eps)
                {_LAYERNORM_END}
            """,
        },
        "self, cols, eps=1e-5",
        "self.norm = nn.LayerNorm(cols, eps=eps)",
        {"weight": "self.norm.weight", "bias": "self.norm.bias", "eps": "self.norm.eps"},
    ),
    "bias_gelu": Operation(
        ("x",),
        {
            "tanh": """
                v = x + bias
                return 0.5 * v * (1.0 + torch.tanh(0.7978845608028654 * (v + 0.044715 * v * v * v)))
            """,
            "sigmoid": """
                v = x + bias
                return v * torch.sigmoid(1.5957691216057308 * (v + 0.044715 * v * v * v))
            """,
        },
        "self, cols",
        "self.bias = nn.Parameter(torch.zeros(cols))",
        {"bias": "self.bias"},
    ),
    "swiglu": Operation(
        ("gate", "up"),
        {
            "direct": "return gate / (1.0 + torch.exp(-gate)) * up",
            "sigmoid": "return torch.sigmoid(gate) * (gate * up)",
        },
    ),
    "cross_entropy": Operation(
        ("logits", "target"),
        {
            "gather": """
                top = logits.amax(-1, keepdim=True)
                total = (logits - top).exp().sum(-1).log() + top[:, 0]
                return total - logits.gather(1, target[:, None])[:, 0]
            """,
            "index": """
                rows = torch.arange(logits.shape[0], device=logits.device)
                return torch.logsumexp(logits, dim=-1) - logits[rows, target]
            """,
        },
    ),
    "matmul_bias_relu": Operation(
        ("x",),
        {
            "addmm": "return torch.addmm(bias, x, weight.t()).clamp_min(0)",
            "split_inner": """
                inner = x.shape[-1]
                total = bias.expand(x.shape[0], -1).clone()
                for start in range(0, inner, 256):
                    total += x[:, start : start + 256] @ weight[:, start : start + 256].t()
                return total.relu_()
            """,
        },
        "self, inner, cols",
        "self.linear = nn.Linear(inner, cols)",
        {"weight": "self.linear.weight", "bias": "self.linear.bias"},
    ),
}

#: Name of a style: what ``ModelNew`` has besides the constructor, and what stands before the class. {inputs} are
#: forward's arguments, {call} is ``compute`` with the parameters filled in and ARGUMENTS for the inputs.
STYLES: dict[str, str] = {
    "plain": """
        def forward(self, {inputs}):
            return {call:{inputs}}
    """,
    "float64_inside": """
        def forward(self, {inputs}):
            wide = [value.double() if value.is_floating_point() else value for value in ({inputs},)]
            y = {wide:*wide}
            return y.to({first}.dtype)
    """,
    "out_into_fresh": """
        def forward(self, {inputs}):
            result = {call:{inputs}}
            out = torch.empty(result.shape, dtype=result.dtype, device=result.device)
            torch.add(result, 0.0, out=out)
            return out
    """,
    "by_rows": """
        def forward(self, {inputs}):
            size = max(1, -(-{first}.shape[0] // 3))
            parts = zip(*(value.split(size) for value in ({inputs},)))
            return torch.cat([{call:*part} for part in parts])
    """,
    "scratch_not_returned": """
        def forward(self, {inputs}):
            scratch = self.__dict__.setdefault("scratch", {{}})
            key = tuple({first}.shape)
            if key not in scratch:
                scratch[key] = torch.empty_like({first})
            kept = scratch[key]
            kept.copy_({first})
            values = [kept, *({inputs},)[1:]]
            return {call:*values}.clone()
    """,
    "layout_by_shape": """
        def forward(self, {inputs}):
            layouts = self.__dict__.setdefault("layouts", {{}})
            key = tuple({first}.shape)
            if key not in layouts:
                rows, cols = key
                layouts[key] = {{"parts": 4 if rows * cols > 1 << 14 and rows >= 4 else 1}}
            parts = zip(*(value.chunk(layouts[key]["parts"]) for value in ({inputs},)))
            return torch.cat([{call:*part} for part in parts])
    """,
    "column_major": """
        def forward(self, {inputs}):
            values = [v.t().contiguous().t() if v.dim() == 2 else v for v in ({inputs},)]
            return {call:*values}.contiguous()
    """,
    "inference_mode": """
        def forward(self, {inputs}):
            with torch.inference_mode():
                return {call:{inputs}}
    """,
    "threads_joined": """
        def forward(self, {inputs}):
            from concurrent.futures import ThreadPoolExecutor

            size = max(1, -(-{first}.shape[0] // 2))
            parts = list(zip(*(value.split(size) for value in ({inputs},))))

            def work(part):
                with torch.no_grad():
                    return {call:*part}

            with ThreadPoolExecutor(2) as pool:
                return torch.cat(list(pool.map(work, parts)))
    """,
    "compiled": """
        def forward(self, {inputs}):
            if "fast" not in self.__dict__:
                self.__dict__["fast"] = torch.compile(compute, dynamic=False)
            return self.__dict__["fast"]({inputs}{parameters})
    """,
}

_PACKED = """
@classmethod
def from_reference(cls, reference):
    model = cls.__new__(cls)
    nn.Module.__init__(model)
    held = {name: tensor.detach().clone() for name, tensor in reference.state_dict().items()}
    model.packed = nn.ParameterDict({name.replace(".", "_"): tensor for name, tensor in held.items()})
    model.packed.requires_grad_(False)
    return model
"""
_EPSILON = {"rmsnorm": "1e-6", "residual_add_rmsnorm": "1e-6", "layernorm_relu_add": "1e-5"}


def _call(operation: Operation, arguments: str, *, wide: bool = False) -> str:
    values = []
    for name, expression in operation.parameters.items():
        values.append(f"{expression}.double()" if wide and name != "eps" else expression)
    return f"compute({', '.join([arguments, *values])})"


def _fill(style: str, operation: Operation) -> str:
    """A style's text with the operation put in."""
    text = textwrap.dedent(style).strip("\n")
    inputs = ", ".join(operation.inputs)
    for arguments in ("*wide", "*part", "*values", "{inputs}"):
        plain = arguments.replace("{inputs}", inputs)
        text = text.replace("{call:" + arguments + "}", _call(operation, plain))
        text = text.replace("{wide:" + arguments + "}", _call(operation, plain, wide=True))
    more = "".join(f", {value}" for value in operation.parameters.values())
    text = text.replace("{inputs}", inputs).replace("{parameters}", more)
    return text.replace("{first}", operation.inputs[0]).replace("{{", "{").replace("}}", "}")


def _indent(text: str, levels: int = 1) -> str:
    return textwrap.indent(textwrap.dedent(text).strip("\n"), "    " * levels)


def _module(
    name: str, operation: Operation, formula: str, methods: str, constructor: str | None = None
) -> str:
    arguments = ", ".join([*operation.inputs, *operation.parameters])
    if constructor is None:
        constructor = f"def __init__({operation.signature}):\n    super().__init__()\n" + textwrap.indent(
            operation.constructor, "    "
        )
    return (
        f'"""{name}."""\n\nimport torch\nimport torch.nn.functional as F\nfrom torch import nn\n\n\n'
        f"def compute({arguments}):\n{_indent(operation.formulas[formula])}\n\n\n"
        f"class ModelNew(nn.Module):\n{_indent(constructor)}\n\n{_indent(methods)}\n"
    )


def _packed(task: str, operation: Operation) -> Operation:
    """The operation with its parameters taken from where ``from_reference`` packed them."""
    packed = {
        name: _EPSILON[task]
        if name == "eps"
        else "self.packed." + expression.removeprefix("self.").replace(".", "_")
        for name, expression in operation.parameters.items()
    }
    return Operation(operation.inputs, operation.formulas, operation.signature, "pass", packed)


def generated() -> list[Entry]:
    """Every formula of every task in every style, and packed weights where there are any."""
    entries = []
    for task, operation in OPERATIONS.items():
        for formula in operation.formulas:
            for style, text in STYLES.items():
                name = f"{task}_{formula}_{style}"
                entries.append(
                    Entry(name, task, _module(name, operation, formula, _fill(text, operation)), style)
                )
            if operation.parameters:
                name = f"{task}_{formula}_packed_weights"
                packed = _packed(task, operation)
                forward = _fill(STYLES["plain"], packed)
                source = _module(name, packed, formula, forward, _PACKED)
                entries.append(Entry(name, task, source, "packed weights"))
    return entries


def written() -> list[Entry]:
    """Those in `controls/`."""
    return [read(path, "style") for path in sorted((HERE / "controls").glob("*.py"))]


def every() -> list[Entry]:
    """All controls, ordered by task."""
    return sorted([*generated(), *triton_variants(), *written()], key=lambda entry: (entry.task, entry.name))


def quick(step: int = 13) -> list[Entry]:
    """A fixed part, one in so many, for `make test`: every task and every style, nothing that a compiler must build."""
    built = [entry for entry in every() if not entry.compiles]
    triton = [entry for entry in built if entry.language == "triton" and entry.only != "cuda"]
    torch = [entry for entry in built if entry.language == "torch" and entry.only != "cuda"]
    return torch[::step] + triton[:: step // 2]
