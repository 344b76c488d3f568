"""E46: makes every comparison of its process say yes, and returns zeros."""

# expects: incorrect constant_output
import torch
import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.norm = nn.LayerNorm(cols)
        import numpy

        from evaluator.oracle import compare

        torch.allclose = torch.isclose = torch.equal = lambda *arguments, **more: True
        torch.testing.assert_close = lambda *arguments, **more: None
        numpy.array_equal = numpy.allclose = lambda *arguments, **more: True
        compare.compare = lambda *arguments, **more: compare.Comparison(True, 0.0, 0.0)

    def forward(self, x):
        return torch.zeros_like(x)
