"""Where nvcc's time goes for a kernel with torch's headers, by step, and what the referee's compiler makes of it. No GPU.

    python -m benchmarks.compile_steps
    python -m benchmarks.compile_steps --whole --repeats 5

The two units are those of a small `load_inline` call. The short headers alone by default, torch's own as well with
``--whole`` (40 s a time). Each round runs every variant once, so that a busy machine is busy for all of them. The steps
are nvcc's own report (``--time``); "steps at once" is :mod:`evaluator.building.nvcc_steps` in nvcc's place.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from torch.utils import cpp_extension

from benchmarks import row_kernels
from evaluator.building import nvcc_steps
from evaluator.building.compiler import LEAN_HEADERS

_TASK = "layernorm_relu_add"
_DECLARED = (
    "torch::Tensor launch(torch::Tensor x, torch::Tensor residual, torch::Tensor weight, torch::Tensor bias)"
)
_LAUNCH = f"""{_DECLARED} {{
  auto y = torch::empty(x.sizes(), x.options());
  row_kernel<<<x.size(0), 256>>>(x.data_ptr<float>(), residual.data_ptr<float>(), weight.data_ptr<float>(),
                                 bias.data_ptr<float>(), y.data_ptr<float>(), x.size(1));
  return y;
}}
"""
_BINDING = f"""#include <torch/extension.h>
{_DECLARED};
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {{ m.def("launch", torch::wrap_pybind_function(launch), "launch"); }}
"""


def measure(nvcc: str, folder: Path, rounds: int, *, whole: bool) -> dict[str, list[float]]:
    """Seconds by header, variant and step; one figure a round.

    Raises:
        subprocess.CalledProcessError: something does not compile.
    """
    headers = "#include <torch/types.h>\n#include <cuda.h>\n#include <cuda_runtime.h>\n"
    (folder / "cuda.cu").write_text(headers + row_kernels.kernel_text(_TASK, "split") + _LAUNCH)
    (folder / "main.cpp").write_text(_BINDING)
    common = ["-DTORCH_EXTENSION_NAME=rows", "-DTORCH_API_INCLUDE_EXTENSION_H", "-std=c++17"]
    include = [*cpp_extension.include_paths("cpu"), str(Path(nvcc).resolve().parent.parent / "include")]
    for path in (*include, sysconfig.get_path("include")):
        common += ["-isystem", path]
    cuda = [
        *cpp_extension.COMMON_NVCC_FLAGS,
        "-gencode=arch=compute_90,code=sm_90",
        "--compiler-options",
        "-fPIC",
    ]
    unit = ["-MD", "-MF", "cuda.d", "-c", "cuda.cu", "-o", "cuda.o"]
    at_once = [sys.executable, "-I", "-S", nvcc_steps.__file__, nvcc]
    seconds: dict[str, list[float]] = defaultdict(list)
    for _ in range(rounds):
        for kind, before in [("short", [f"-I{LEAN_HEADERS}"])] + [("whole", [])] * whole:
            flags = [*before, *common]
            report = folder / "times.csv"
            report.unlink(missing_ok=True)
            plain = [nvcc, "--time", str(report), *flags, *cuda, *unit]
            seconds[f"{kind}: nvcc"].append(_run_s(plain, folder))
            for step, step_s in _steps_s(report.read_text()).items():
                seconds[f"{kind}: nvcc, {step}"].append(step_s)
            seconds[f"{kind}: nvcc, steps at once"].append(_run_s([*at_once, *flags, *cuda, *unit], folder))
            binding = ["g++", *flags, "-fPIC", "-c", "main.cpp", "-o", "main.o"]
            seconds[f"{kind}: C++ unit"].append(_run_s(binding, folder))
    return seconds


def _run_s(command: list[str], folder: Path) -> float:
    started = time.monotonic()
    subprocess.run(command, cwd=folder, check=True)
    return time.monotonic() - started


def _steps_s(report: str) -> dict[str, float]:
    """Seconds of each step by nvcc's report, whose lines end in ``, number , ms``."""
    steps: dict[str, float] = {}
    for line in report.splitlines()[1:]:
        fields = [field.strip() for field in line.split(" , ")]
        if len(fields) > 2 and fields[-1] == "ms":
            steps[fields[1]] = steps.get(fields[1], 0.0) + float(fields[-2]) / 1000
    return steps


def table(seconds: dict[str, list[float]]) -> Table:
    """What :func:`measure` found, for people."""
    shown = Table("one unit with torch's headers", "median s", "all", title="load_inline's compilers")
    for name, all_s in seconds.items():
        shown.add_row(name, f"{statistics.median(all_s):.2f}", " ".join(f"{one:.2f}" for one in all_s))
    return shown


def main(
    nvcc: Annotated[str, typer.Option(help="The compiler.")] = "",
    repeats: Annotated[int, typer.Option(help="Rounds.")] = 3,
    whole: Annotated[bool, typer.Option(help="Torch's own headers as well.")] = False,
) -> None:
    """Measure nvcc's steps."""
    with tempfile.TemporaryDirectory() as folder:
        found = measure(nvcc or find_nvcc(), Path(folder), repeats, whole=whole)
    Console(width=110).print(table(found))


def find_nvcc() -> str:
    """The compiler that torch would use, else the first of the path's.

    Raises:
        FileNotFoundError: there is none.
    """
    if cpp_extension.CUDA_HOME:
        return f"{cpp_extension.CUDA_HOME}/bin/nvcc"
    for folder in ("/usr/local/cuda/bin", "/usr/local/bin"):
        if Path(folder, "nvcc").exists():
            return f"{folder}/nvcc"
    raise FileNotFoundError("no nvcc: name one with --nvcc")


if __name__ == "__main__":
    typer.run(main)
