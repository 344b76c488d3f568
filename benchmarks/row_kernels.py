"""CUDA candidates for tasks over rows, through NVRTC or `load_inline`: one block a row, the row read again for each pass.

They are what a first honest attempt looks like; the throughput benchmark needs right ones, many, and no two alike.
"""

from __future__ import annotations

from dataclasses import dataclass

_HEAD = """
import torch
from torch import nn
"""
_SUM = """
__device__ float block_sum(float value) {
  __shared__ float parts[32];
  for (int offset = 16; offset; offset >>= 1) value += __shfl_xor_sync(0xffffffffu, value, offset);
  __syncthreads();
  if ((threadIdx.x & 31) == 0) parts[threadIdx.x >> 5] = value;
  __syncthreads();
  float total = 0.f;
  for (int warp = 0; warp < blockDim.x / 32; ++warp) total += parts[warp];
  return total;
}
"""
_KERNEL = """
extern "C" __global__ void row_kernel(PARAMETERS, float* y, int cols) {
  const long long start = (long long)blockIdx.x * cols;
  BODY
}
"""
_EACH = "for (int col = threadIdx.x; col < cols; col += blockDim.x)"
_NVRTC = """
SOURCE = r'''TEXT'''
kernel = torch.cuda._compile_kernel(SOURCE, "row_kernel")


class ModelNew(nn.Module):
CONSTRUCTOR
    def forward(self, INPUTS):
        y = torch.empty(OUTPUT, device=x.device)
        kernel(grid=(x.shape[0], 1, 1), block=(THREADS, 1, 1), args=[ARGUMENTS, y, x.shape[1]])
        return y
"""
_INLINE = """
from torch.utils.cpp_extension import load_inline

SOURCE = r'''TEXT
torch::Tensor launch(DECLARED) {
  auto y = torch::empty(LIKE, x.options());
  row_kernel<<<x.size(0), THREADS>>>(POINTERS, y.data_ptr<float>(), x.size(1));
  return y;
}
'''
extension = load_inline("rows", cpp_sources="torch::Tensor launch(DECLARED);", cuda_sources=SOURCE, functions=["launch"])


class ModelNew(nn.Module):
CONSTRUCTOR
    def forward(self, INPUTS):
        return extension.launch(ARGUMENTS)
"""


@dataclass(frozen=True)
class _Task:
    """What a kernel reads besides its rows' length, and its body."""

    inputs: tuple[str, ...]
    parameters: dict[str, str]
    constructor: str
    body: str
    reduces: bool = False


_TASKS = {
    "layernorm_relu_add": _Task(
        ("x", "residual"),
        {"weight": "self.norm.weight", "bias": "self.norm.bias"},
        "    def __init__(self, cols, eps=1e-5):\n        super().__init__()\n        self.norm = nn.LayerNorm(cols, eps=eps)\n",
        """float sum = 0.f, rest = 0.f, squares = 0.f;
  EACH sum += x[start + col];
  float mean = block_sum(sum) / cols;
  EACH rest += x[start + col] - mean;
  mean += block_sum(rest) / cols;
  EACH { const float off = x[start + col] - mean; squares += off * off; }
  const float scale = 1.f / sqrtf(block_sum(squares) / cols + 1e-5f);
  EACH {
    const float value = (x[start + col] - mean) * scale * weight[col] + bias[col];
    y[start + col] = (value < 0.f ? 0.f : value) + residual[start + col];
  }""",
    ),
    "rmsnorm": _Task(
        ("x",),
        {"weight": "self.weight"},
        "    def __init__(self, cols, eps=1e-6):\n        super().__init__()\n"
        "        self.weight = nn.Parameter(torch.ones(cols))\n",
        """float squares = 0.f;
  EACH squares += x[start + col] * x[start + col];
  const float scale = 1.f / sqrtf(block_sum(squares) / cols + 1e-6f);
  EACH y[start + col] = x[start + col] * scale * weight[col];""",
    ),
    "row_sum": _Task(
        ("x",),
        {},
        "",
        """float sum = 0.f;
  EACH sum += x[start + col];
  sum = block_sum(sum);
  if (threadIdx.x == 0) y[blockIdx.x] = sum;""",
        reduces=True,
    ),
}
TASKS = tuple(_TASKS)


def kernel_text(task: str, mark: str) -> str:
    """The CUDA source for a task; another mark is another text."""
    one = _TASKS[task]
    parameters = ", ".join(f"const float* {name}" for name in (*one.inputs, *one.parameters))
    body = one.body.replace("EACH", _EACH)
    return f"// {mark}" + _SUM + _KERNEL.replace("PARAMETERS", parameters).replace("BODY", body)


def nvrtc(task: str, mark: str, threads: int = 256) -> str:
    """A candidate that compiles its kernel when it is imported."""
    one = _TASKS[task]
    output = "x.shape[0]" if one.reduces else "x.shape"
    return _filled(_NVRTC, task, mark, threads).replace("OUTPUT", output)


def inline(task: str, mark: str, threads: int = 256) -> str:
    """A candidate that asks `load_inline` for its kernel, with torch's headers."""
    one = _TASKS[task]
    names = (*one.inputs, *one.parameters)
    text = _filled(_INLINE, task, mark, threads)
    text = text.replace("DECLARED", ", ".join(f"torch::Tensor {name}" for name in names))
    text = text.replace("POINTERS", ", ".join(f"{name}.data_ptr<float>()" for name in names))
    return text.replace("LIKE", "{x.size(0)}" if one.reduces else "x.sizes()")


def _filled(template: str, task: str, mark: str, threads: int) -> str:
    one = _TASKS[task]
    text = _HEAD + template.replace("TEXT", kernel_text(task, mark)).replace("CONSTRUCTOR", one.constructor)
    text = text.replace("ARGUMENTS", ", ".join((*one.inputs, *one.parameters.values())))
    return text.replace("INPUTS", ", ".join(one.inputs)).replace("THREADS", str(threads))
