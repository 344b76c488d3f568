"""Small modules with the defects that were found in public task sets, and what lint must say of each.

Only the kind of defect is anybody else's; the modules are our own. Sizes are free unless a defect hides at one shape alone.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

_HEAD = """
import torch
import torch.nn as nn
import torch.nn.functional as F
from kernelbench_tasks import Dim
"""
_SIZES = """
DIMS = {"rows": Dim(1, 4096), "columns": Dim(2, 4096)}

def get_inputs(rows=64, columns=128):
    return [torch.randn(rows, columns)]

def get_init_inputs():
    return []
"""


@dataclass(frozen=True)
class Defect:
    """A task file, the rule that must find it, how severe that is, and words that its sentence must contain."""

    source: str
    rule: str
    severity: str
    words: str


def _plain(forward: str, rule: str, severity: str, words: str, tail: str = _SIZES) -> Defect:
    body = textwrap.indent(textwrap.dedent(forward).strip(), "        ")
    model = f"\nclass Model(nn.Module):\n    def forward(self, x):\n{body}\n"
    return Defect(_HEAD + model + tail, rule, severity, words)


def _whole(text: str, rule: str, severity: str, words: str) -> Defect:
    return Defect(_HEAD + textwrap.dedent(text), rule, severity, words)


DEFECTS = {
    "maximum_minus_its_mean": _plain(
        """
        top = x.max(dim=1, keepdim=True).values
        return F.gelu(top - top.mean(dim=1, keepdim=True))
        """,
        "zeros_pass", "error", "zeros is right",
    ),
    "clamped_to_nothing": _plain(
        "return torch.clamp(torch.minimum(x, torch.zeros_like(x)), 0.0, 1.0)", "zeros_pass", "error", "zeros is right"
    ),
    "relu_far_below_zero": _plain("return F.relu(torch.sigmoid(x) - 2.0)", "zeros_pass", "error", "zeros is right"),
    "mean_of_a_normalized_row": _plain(
        "return F.layer_norm(x, x.shape[1:]).mean(dim=1)", "zeros_pass", "error", "zeros is right"
    ),
    "mean_of_a_softmax": _plain(
        "return torch.softmax(x, dim=1).sum(dim=1)", "constant_passes", "error", "one constant"
    ),
    "softmax_of_one_element": _plain(
        "return torch.softmax(x.sum(dim=1, keepdim=True), dim=1)", "constant_passes", "error", "one constant"
    ),
    "table_instead_of_input": _whole(
        """
        class Model(nn.Module):
            def __init__(self, columns):
                super().__init__()
                self.table = nn.Parameter(torch.randn(columns))
            def forward(self, x):
                return torch.sin(self.table).expand(x.shape) + 0.0 * x
        DIMS = {"rows": Dim(2, 512), "columns": Dim(4, 512)}
        def get_inputs(rows=16, columns=64):
            return [torch.randn(rows, columns)]
        def get_init_inputs(columns=64):
            return [columns]
        """,
        "replay_passes", "error", "right for others",
    ),
    "one_input_ignored": _whole(
        """
        class Model(nn.Module):
            def forward(self, x, y):
                return torch.tanh(x) + 0.0 * y
        DIMS = {"rows": Dim(2, 512), "columns": Dim(4, 512)}
        def get_inputs(rows=16, columns=64):
            return [torch.randn(rows, columns), torch.randn(rows, columns)]
        def get_init_inputs():
            return []
        """,
        "input_unused", "error", "input 2",
    ),
    "image_that_nobody_sees": _whole(
        """
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.token = nn.Parameter(torch.randn(1, 1, 16))
                self.patch = nn.Linear(4, 16)
                self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0)
                self.head = nn.Linear(16, 10)
            def forward(self, x):
                patches = self.patch(x)
                tokens = torch.cat([self.token.expand(x.shape[0], 1, 16), patches], dim=1)
                return self.head(self.layer(tokens)[:, 0])
        DIMS = {"batch": Dim(2, 64), "patches": Dim(2, 64)}
        def get_inputs(batch=4, patches=16):
            return [torch.randn(batch, patches, 4)]
        def get_init_inputs():
            return []
        """,
        "constant_along_axis", "error", "dimension 0",
    ),
    "attention_across_the_batch": _whole(
        """
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.attention = nn.MultiheadAttention(16, 2)
            def forward(self, x):
                return self.attention(x, x, x, need_weights=False)[0]
        DIMS = {"images": Dim(2, 64), "tokens": Dim(2, 64)}
        def get_inputs(images=4, tokens=16):
            return [torch.randn(images, tokens, 16)]
        def get_init_inputs():
            return []
        """,
        "batch_mixed", "warning", "uses that dimension as the sequence",
    ),
    "softmax_over_the_batch": _whole(
        """
        class Model(nn.Module):
            def forward(self, x):
                return torch.softmax(x, dim=0)
        DIMS = {"batch": Dim(2, 512), "features": Dim(4, 512)}
        def get_inputs(batch=16, features=64):
            return [torch.randn(batch, features)]
        def get_init_inputs():
            return []
        """,
        "batch_mixed", "warning", "influence each other",
    ),
    "hinge_against_columns": _whole(
        """
        class Model(nn.Module):
            def forward(self, x, targets):
                return torch.clamp(1.0 - x * targets, min=0.0).mean()
        def get_inputs():
            return [torch.randn(48, 48), torch.randint(0, 2, (48,)).float() * 2 - 1]
        def get_init_inputs():
            return []
        """,
        "accidental_broadcast", "warning", "broadcast along the rows",
    ),
    "column_minus_vector": _whole(
        """
        class Model(nn.Module):
            def forward(self, x, targets):
                return ((x.sum(dim=1, keepdim=True) - targets) ** 2).mean()
        DIMS = {"rows": Dim(2, 512), "columns": Dim(4, 512)}
        def get_inputs(rows=16, columns=64):
            return [torch.randn(rows, columns), torch.randn(rows)]
        def get_init_inputs():
            return []
        """,
        "accidental_broadcast", "warning", "broadcast along the rows",
    ),
    "hinge_that_cannot_be_resized": _whole(
        """
        class Model(nn.Module):
            def forward(self, x, targets):
                return torch.clamp(1.0 - x * targets, min=0.0).mean()
        DIMS = {"batch": Dim(2, 512, default=64), "features": Dim(4, 512, default=64)}
        def get_inputs(batch=64, features=64):
            return [torch.randn(batch, features), torch.randn(batch)]
        def get_init_inputs():
            return []
        """,
        "dims_lie", "error", "must match",
    ),
    "branch_times_zero": _whole(
        """
        class Model(nn.Module):
            def forward(self, x):
                attention = torch.softmax(x @ x.T, dim=1) @ x
                return torch.tanh(x) + 0.0 * attention.clamp(-1.0, 1.0)
        DIMS = {"rows": Dim(2, 512), "columns": Dim(4, 512)}
        def get_inputs(rows=16, columns=64):
            return [torch.randn(rows, columns)]
        def get_init_inputs():
            return []
        """,
        "dead_branch", "warning", "mm",
    ),
    "not_to_be_compiled": _whole(
        """
        class Model(nn.Module):
            @torch._dynamo.disable
            def forward(self, x):
                return torch.softmax(x * 0.5, dim=1)
        DIMS = {"rows": Dim(2, 512), "columns": Dim(4, 512)}
        def get_inputs(rows=16, columns=64):
            return [torch.randn(rows, columns)]
        def get_init_inputs():
            return []
        """,
        "compilation_off", "warning", "torch._dynamo.disable",
    ),
    "branch_that_never_runs": _whole(
        """
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.used, self.other = nn.Linear(16, 16), nn.Linear(16, 16)
            def forward(self, x):
                return self.other(x) if x.abs().max() > 1e30 else self.used(x)
        DIMS = {"rows": Dim(2, 512)}
        def get_inputs(rows=16):
            return [torch.randn(rows, 16)]
        def get_init_inputs():
            return []
        """,
        "weight_unused", "warning", "other.weight",
    ),
    "scale_that_nobody_draws": _whole(
        """
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("scale", torch.ones(16))
                self.gain = nn.Parameter(torch.ones(1))
            def forward(self, x):
                return torch.tanh(x) * self.scale * self.gain
        DIMS = {"rows": Dim(2, 512)}
        def get_inputs(rows=16):
            return [torch.randn(rows, 16)]
        def get_init_inputs():
            return []
        """,
        "constant_buffer", "warning", "buffer scale",
    ),
    "saturated": _plain("return torch.clamp(1e6 * x, -1.0, 1.0)", "saturated", "warning", "one or two values"),
    "same_in_every_column": _plain(
        "return x.sum(dim=1, keepdim=True).expand(x.shape).contiguous()",
        "constant_along_axis", "error", "dimension 1",
    ),
    "nothing_finite": _plain("return torch.log(-x.abs() - 1.0)", "not_finite", "error", "NaN"),
    "hardly_moves": _plain("return 1000.0 + 0.5 * x.mean(dim=1)", "hardly_varies", "warning", "differ by only"),
    "random_of_its_own": _plain("return x + torch.rand_like(x)", "not_deterministic", "error", "different results"),
    "same_inputs_each_time": _plain(
        "return torch.sin(x)",
        "inputs_never_vary", "error", "same tensors each time",
        """
DIMS = {"n": Dim(8, 4096)}
def get_inputs(n=64):
    return [torch.arange(n)]
def get_init_inputs():
    return []
""",
    ),
    "range_with_a_hole": _plain(
        "return torch.tanh(x.reshape(x.shape[0] // 2, 2, -1)).reshape(x.shape)", "dims_lie", "error", "DIMS allows"
    ),
    "dimension_that_does_nothing": _plain(
        "return torch.tanh(x)",
        "fixed_shape", "error", "same shapes",
        """
DIMS = {"n": Dim(8, 4096)}
def get_inputs(n=64):
    return [torch.randn(64, 64)]
def get_init_inputs():
    return []
""",
    ),
    "dimension_nobody_takes": _plain(
        "return torch.tanh(x)",
        "dimension_unused", "error", "names m",
        """
DIMS = {"n": Dim(8, 4096), "m": Dim(8, 4096)}
def get_inputs(n=64):
    return [torch.randn(n, 64)]
def get_init_inputs():
    return []
""",
    ),
    "one_shape_only": _plain(
        "return torch.tanh(x.view(64, 64))",
        "fixed_shape", "warning", "one shape only",
        "\ndef get_inputs():\n    return [torch.randn(64, 64)]\ndef get_init_inputs():\n    return []\n",
    ),
    "empty_space": _plain(
        "return torch.tanh(x)",
        "empty_space", "error", "no multiple of 8",
        """
class Range:
    min, max, multiple_of, default = 9, 15, 8, 12
DIMS = {"n": Range()}
def get_inputs(n=12):
    return [torch.randn(n, 64)]
def get_init_inputs():
    return []
""",
    ),
    "download": _whole(
        """
        import urllib.request
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                urllib.request.urlopen("http://127.0.0.1:9/weights.bin", timeout=2).read()
            def forward(self, x):
                return x + 1
        def get_inputs():
            return [torch.randn(4, 4)]
        def get_init_inputs():
            return []
        """,
        "needs_network", "error", "network",
    ),
    "weights_in_a_file": _whole(
        """
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.weight = nn.Parameter(torch.load("weights.pt"))
            def forward(self, x):
                return x * self.weight
        def get_inputs():
            return [torch.randn(4, 4)]
        def get_init_inputs():
            return []
        """,
        "needs_files", "error", "files",
    ),
    "inputs_on_a_gpu": _whole(
        """
        class Model(nn.Module):
            def forward(self, x):
                return x.square()
        def get_inputs():
            return [torch.randn(6, 5, device="cuda")]
        def get_init_inputs():
            return []
        """,
        "needs_gpu", "error", "asks for a GPU",
    ),
    "package_that_is_not_there": _whole(
        "from no_such_package_anywhere import Model\n", "needs_package", "error", "package"
    ),
    # The first of a running sum is the first element. Once disturbed it is not, and a place outside of the row is read.
    "dead_product_beside_a_place": _plain(
        """
        ordered = x.sort(dim=1, descending=True).values
        other = ordered.cumsum(dim=1)[:, :1] != ordered[:, :1]
        dropped = x @ x.t()
        return x - ordered.gather(1, other * 1_000_000)
        """,
        "dead_branch", "warning", "operation mm",
    ),
    "syntax": Defect("class Model(:\n", "syntax_error", "error", "not valid Python"),
    "no_model": Defect("import torch\n", "contract", "error", "no class Model"),
}  # fmt: skip

#: Looks like a defect and is none.
SOUND = {
    # The weights are drawn anew, so that the mean over channels depends on the input after all.
    "group_norm_then_mean": _HEAD
    + textwrap.dedent(
        """
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.norm = nn.GroupNorm(1, 8)
            def forward(self, x):
                return self.norm(x).mean(dim=(1, 2))
        DIMS = {"rows": Dim(1, 512), "length": Dim(4, 512)}
        def get_inputs(rows=16, length=64):
            return [torch.randn(rows, 8, length)]
        def get_init_inputs():
            return []
        """
    ),
    # Rows meet, but nothing says that they should not.
    "softmax_down_the_columns": _HEAD
    + textwrap.dedent(
        """
        class Model(nn.Module):
            def forward(self, x):
                return torch.softmax(x, dim=0)
        """
    )
    + _SIZES,
    # A vector against square rows, which other sizes show to be meant.
    "scaled_columns": _HEAD
    + textwrap.dedent(
        """
        class Model(nn.Module):
            def forward(self, x, scale):
                return x * scale
        DIMS = {"rows": Dim(2, 512), "columns": Dim(2, 512)}
        def get_inputs(rows=64, columns=64):
            return [torch.randn(rows, columns), torch.randn(columns)]
        def get_init_inputs():
            return []
        """
    ),
    # Half of the elements are zero.
    "rectified": _HEAD
    + "\nclass Model(nn.Module):\n    def forward(self, x):\n        return F.relu(x)\n"
    + _SIZES,
}
