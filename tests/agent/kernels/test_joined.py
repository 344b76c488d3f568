"""Convolutions whose results lie side by side, and operations in place as new tensors: what is rewritten, to the same result."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tests.agent.kernels.rewritten import rewritten

MODULE = """
import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.near, self.wide = nn.Conv2d(3, 4, 1), nn.Conv2d(3, 6, 3, padding=1)
        self.far = nn.Conv2d(4, 5, 3, padding=2, dilation=2, bias=False)
        self.groups = nn.Conv2d(3, 6, 3, padding=1, groups=3)
        self.same = nn.Conv2d(3, 6, 3, padding="same")
        self.line, self.lines = nn.Conv1d(3, 4, 3), nn.Conv1d(3, 2, 3)
        self.square = nn.Conv2d(3, 3, 3, padding=1)
        self.doubled = nn.Parameter(torch.randn(3, 1, 1, dtype=torch.float64))

    def forward(self, *given):
        return tuple(one for part in self.parts for one in part(self, *given))

    parts = []


def get_inputs():
    return [torch.randn(2, 3, 9, 8), torch.randn(2, 4, 9, 8), torch.randn(2, 3, 11)]


def get_init_inputs():
    return []
"""


def of(folder: Path, bodies: Iterable[str]) -> tuple[list[str], list[str]]:
    """What the library is called for in one module of all bodies, and which pointwise operations join convolutions."""
    parts = "".join(
        f"\n\ndef part(self, x, y, line):\n    {body}\n\n\nModel.parts.append(part)\n" for body in bodies
    )
    found = rewritten(folder, MODULE + parts)
    assert found["same"] and all(found["same"])
    return found["library"], found["after"]


def test_convolutions_side_by_side_are_one_operation(tmp_path: Path) -> None:
    joined = [
        "return (torch.cat([self.near(x), self.wide(x)], 1),)",
        "return (torch.cat([F.relu(self.near(x), inplace=True), self.wide(x).relu_(), F.relu(self.far(y))], -3) * 2,)",
        "return (torch.cat([self.lines(line).sigmoid(), self.line(line).sigmoid()], 1),)",
    ]
    assert of(tmp_path, joined) == (["convolutions"] * 3, [])


def test_what_is_not_side_by_side_stays_apart(tmp_path: Path) -> None:
    apart = [
        "return (torch.cat([self.near(x), self.wide(x).relu()], 1),)",  # not the same behind each
        "return (torch.cat([self.near(x), y], 1),)",  # no convolution
        "near = self.near(x); return (torch.cat([near, self.wide(x)], 1), near)",  # used elsewhere, too
        "return (torch.cat([self.square(x), self.square(x)], 2),)",  # rows
        "return (torch.cat([F.gelu(self.near(x)), F.gelu(self.wide(x))], 1),)",  # too costly in a tile
        "return (torch.cat([self.near(x) * y, self.near(x) * y], 1),)",  # another operand
        "return (torch.cat([self.near(x)], 1),)",
        "return (torch.cat([self.near(x), self.groups(x)], 1),)",
        "return (torch.cat([self.near(x), self.same(x)], 1),)",
        "return (torch.cat([self.near(x.transpose(2, 3)).transpose(2, 3), y], 1),)",
        "near = self.near(x); return (torch.cat([near, near], 1),)",
        # A write between them, which the first must not see: dropout gives its argument in evaluation mode.
        "x = F.dropout(x + 1, training=False); near = self.near(x); x.relu_(); return (torch.cat([near, self.wide(x)], 1),)",
        "x = x.clone(); near = self.near(x); x[:, 0] = 0; return (torch.cat([near, self.wide(x)], 1),)",
    ]
    assert set(of(tmp_path, apart)[0]) == {"convolution"}


def test_operations_in_place_join_a_convolution(tmp_path: Path) -> None:
    relu = "t0 = tl.where(x < 0.0, 0.0, x); t0"
    bodies = {
        "return (self.square(x).relu_() * 1,)": "t0 = tl.where(x < 0.0, 0.0, x); t1 = t0 * 1.0; t1",
        "made = self.square(x); made.relu_(); return (made,)": relu,
        "made = self.square(x); made += x; made.relu_(); return (made,)": "t0 = x + a; t1 = tl.where(t0 < 0.0, 0.0, t0); t1",
        # What the convolution gave before is used, too: of these nothing joins it.
        "made = self.square(x); before = made * 2; made.relu_(); return (made + before,)": "t0 = x * 2.0; t1 = tl.where(x < 0.0, 0.0, x); t2 = t1 + t0; t2",
        # A view sees the write, and so does what dropout gives in evaluation.
        "made = self.square(x); seen = made.view(-1); made.relu_(); return (seen,)": "",
        "made = self.square(x); F.dropout(made, training=False).relu_(); return (made,)": "",
        "made = self.square(x); seen = F.dropout(made, training=False); made.relu_(); return (seen,)": "",
        "made = self.square(x); made[:, 0].relu_(); return (made,)": "",
        # What is written is another tensor than the first.
        "made = self.square(x); to = made.sigmoid(); twice = made * 2; torch.add(twice, 1.0, out=to); return (to + twice,)": "",
        # In place, the result stays float32.
        "return (self.square(x).mul_(self.doubled),)": "",
    }
    assert of(tmp_path, bodies) == (["convolution"] * len(bodies), list(bodies.values()))


NORMED = """
import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 40, 3, padding=1), nn.Conv2d(40, 4, 1)
        self.norm, self.plain = nn.BatchNorm2d(40), nn.BatchNorm2d(40, affine=False)
        self.alone = nn.BatchNorm2d(3)
        for norm in (self.norm, self.plain, self.alone):
            norm.running_mean.normal_()
            norm.running_var.uniform_(0.5, 2.0)
        self.norm.weight.data.normal_()
        self.norm.bias.data.normal_()

    def forward(self, x):
        few = self.norm(self.first(x[:1, :, :9, :9].contiguous()))
        return (
            self.second(F.relu(self.norm(self.first(x)), inplace=True)), self.second(self.plain(self.first(x))),
            self.norm(self.first(x)) + 1.0, self.alone(x), few,
        )


def get_inputs():
    return [torch.randn(2, 3, 120, 120)]


def get_init_inputs():
    return []
"""


def test_a_fixed_batch_norm_joins_the_convolution_before_it(tmp_path: Path) -> None:
    found = rewritten(tmp_path, NORMED)
    assert found["same"] == [True] * 5
    scaled = "t0 = x * a; t1 = t0 + b"
    relu = "t2 = tl.where(t1 < 0.0, 0.0, t1)"
    texts = [f"{scaled}; {relu}; t2", "", f"{scaled}; t1", "", f"{scaled}; t2 = t1 + 1.0; t2", ""]
    assert sorted(found["after"]) == sorted(texts)
