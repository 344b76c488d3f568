"""The reference on channels-last images: where it is proposed, and that its outputs lie as the reference's do."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.compiler.channels_last import channels_last_source, holds_images
from evaluator.client import Referee
from evaluator.sources import CandidateSource, TaskSource
from kernelbench_tasks import catalog
from tests.agent.compiler.extraction import run_program

pytestmark = pytest.mark.alone

IMAGES = {
    "conv_hardswish_pool",
    "depthwise_mlp_block",
    "diffusion_attention_block",
    "dilated_conv3d",
    "grouped_conv_small_groups",
    "im2win_conv2d",
}

# What a reference may return: contiguous, permuted, expanded, with a gap, its weight's shape, an index, in a tuple and a dict.
LAYOUTS = """
import torch, torch.nn.functional as F
from torch import nn

class Model(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv = nn.Conv2d(channels, 6, 3, padding=1)
        self.table = nn.Parameter(torch.randn(1, 6, 5, 4).to(memory_format=torch.channels_last))
        self.deep = nn.Conv3d(2, 3, 1)

    def forward(self, x, volume, scale: float = 2.0, flag=None):
        y = F.relu(self.conv(x)) * scale
        values, places = F.max_pool2d(y, 2, return_indices=True)
        parts = {"nhwc": y.permute(0, 2, 3, 1), "mean": y.mean((2, 3), keepdim=True).expand(-1, -1, 3, 3), "places": places}
        return y, (values[:, ::2], self.table + y[:, :, :5, :4]), parts, self.deep(volume)
"""

COMPARE = """
import copy, json, sys, torch, reference, candidate
torch.manual_seed(0)
def flat(value):
    if isinstance(value, torch.Tensor):
        return [value]
    return [leaf for item in (value.values() if isinstance(value, dict) else value) for leaf in flat(item)]
def dense(value):
    return 1 + sum((n - 1) * s for n, s in zip(value.shape, value.stride())) == value.numel()
torch.set_grad_enabled(False)
model, new = reference.Model(4).eval(), candidate.ModelNew(4).eval()
new.load_state_dict(model.state_dict(), strict=True)
right, layouts, types = True, [], []
for x in (torch.randn(2, 4, 8, 6), torch.randn(1, 4, 9, 7).to(memory_format=torch.channels_last)):
    volume = torch.randn(2, 2, 3, 4, 5)
    expected = flat(model(x, volume))
    for one in (new, copy.deepcopy(new)):
        for _ in range(2):
            got = flat(one(x, volume))
            right &= all(torch.allclose(a, b, atol=1e-5) for a, b in zip(got, expected, strict=True))
            layouts += [a.stride() == b.stride() if dense(b) else a.is_contiguous() for a, b in zip(got, expected)]
print(json.dumps({"right": bool(right), "layouts": layouts, "weight": new.conv.weight.is_contiguous(),
                  "turned": new._turned}))
"""


def test_it_is_proposed_for_convolutions_poolings_and_batch_norms_alone() -> None:
    assert {task.name for task in catalog.list_tasks() if holds_images(task.source)} == IMAGES


@pytest.mark.parametrize(
    ("call", "images"),
    [
        ("F.conv2d(x, self.w)", True),
        ("torch.conv_transpose3d(x, self.w)", True),
        ("F.adaptive_avg_pool2d(x, 1)", True),
        ("nn.MaxUnpool2d(2)(x)", True),
        ("nn.BatchNorm2d(3)(x)", True),
        ("F.conv1d(x, self.w)", False),
        ("nn.BatchNorm1d(3)(x)", False),
        ("x.deform_conv2d_like", False),
        ('print("conv2d")', False),
        ("x", False),
    ],
)
def test_by_the_names_that_the_module_reads(call: str, images: bool) -> None:
    text = (
        "import torch\nfrom torch import nn\nimport torch.nn.functional as F\n"
        f"class Model(nn.Module):\n    def forward(self, x):\n        return {call}\n"
        "def get_inputs():\n    return [F.conv2d]\n"
    )
    assert holds_images(text) is images


@pytest.mark.parametrize(
    "compiled", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["eager", "compiled"]
)
def test_outputs_lie_as_the_reference_lays_them_out(compiled: bool, tmp_path: Path) -> None:
    (tmp_path / "reference.py").write_text(LAYOUTS)
    (tmp_path / "candidate.py").write_text(channels_last_source(LAYOUTS, "layouts", compiled=compiled))
    answer = run_program(tmp_path, COMPARE)
    assert answer["right"]
    assert all(answer["layouts"]), answer["layouts"]
    assert answer["weight"] is False
    assert answer["turned"] == ["conv.weight", "deep.weight"]


@pytest.mark.parametrize(
    "compiled", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["eager", "compiled"]
)
def test_the_referee_accepts_it(compiled: bool, tmp_path: Path) -> None:
    text = catalog.load("conv_hardswish_pool").source
    proposal = CandidateSource(
        channels_last_source(text, "conv_hardswish_pool", compiled=compiled), "compiler", "channels-last"
    )
    shape = {"batch": 1, "channels": 3, "filters": 5, "height": 9, "width": 12}
    with Referee("cpu", work_dir=tmp_path) as referee:
        verdict = referee.evaluate(
            TaskSource("conv_hardswish_pool", text),
            proposal,
            splits=["adversarial"],
            shapes={"adversarial": [shape]},
            deadline_s=120.0,
        )
    assert verdict["verdict"] == "accepted", (verdict["reason"], verdict["detail"])
