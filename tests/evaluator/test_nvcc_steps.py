"""nvcc's steps as a graph: what a dry run becomes, what is left to nvcc, and that the result is nvcc's own."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from torch.utils import cpp_extension

from evaluator.building import nvcc_steps
from evaluator.building.compiler import LEAN_HEADERS
from evaluator.building.nvcc_steps import Step, UnexpectedDryRun, compile_unit, plan, run

DRY_RUNS = Path(__file__).with_name("dry_runs")
ONE_GPU = (DRY_RUNS / "one_gpu.txt").read_text()
TARGET = "cuda.cuda.o"
FLAGS = ["-gencode=arch=compute_90,code=sm_90", "--compiler-options", "-fPIC"]
SOURCE = """
static __device__ int counter = 3;
namespace { __device__ float table[4]; }
#ifdef __CUDA_ARCH__
#include "device_only.h"
#endif
template <typename T> __global__ void add(T* x) { x[threadIdx.x] += counter + table[1]; }
extern "C" void go(float* x) { add<float><<<1, 32>>>(x); }
"""


def kinds_before(steps: tuple[Step, ...]) -> list[tuple[str, list[str]]]:
    return [(step.kind, [steps[position].kind for position in step.after]) for step in steps]


def test_the_halves_wait_for_each_other_only_at_the_end() -> None:
    planned = plan(ONE_GPU, TARGET)
    shown = kinds_before(planned.steps)
    assert sorted(shown[:-1]) == [
        ("cicc", ["preprocess"]),
        ("cudafe++", ["preprocess"]),
        ("fatbinary", ["ptxas"]),
        ("preprocess", []),
        ("preprocess", []),
        ("ptxas", ["cicc"]),
    ]
    assert shown[-1] == ("compile", [kind for kind, _ in shown[:-1]])
    front_ends = [step for step in planned.steps if step.kind in ("cudafe++", "cicc")]
    assert front_ends[0].after != front_ends[1].after
    assert planned.variables["PATH"].startswith("/usr/local/cuda")
    assert next(step for step in planned.steps if step.kind == "cicc").words[0].startswith("/usr/local/cuda")


def test_both_front_ends_read_the_name_that_they_are_given() -> None:
    planned = plan(ONE_GPU, TARGET)
    for step in planned.steps:
        assert "--gen_module_id_file" not in step.words
        if step.kind in ("cudafe++", "cicc"):
            assert planned.unit_file in step.words


def test_a_branch_for_each_gpu() -> None:
    steps = plan((DRY_RUNS / "two_gpus.txt").read_text(), TARGET).steps
    cubins = {position: step for position, step in enumerate(steps) if step.kind == "ptxas"}
    assert len(cubins) == 2
    assert len({step.after for step in cubins.values()}) == 2
    fatbinary = next(step for step in steps if step.kind == "fatbinary")
    assert set(cubins) <= set(fatbinary.after)
    assert {steps[position].kind for position in fatbinary.after} == {"cicc", "ptxas"}  # PTX is put in, too


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("#$ ptxas", "nvcc warning : something\n#$ ptxas"),
        ("#$ ptxas", "#$ nvlink x.o -o y.o\n#$ ptxas"),
        ("#$ ptxas", "#$ rm cuda.fatbin\n#$ ptxas"),
        ("#$ ptxas", "#$ ptxas -m64 $(id)"),
        ("#$ ptxas", "#$ ptxas > x"),
        ("#$ fatbinary", "#$ : fatbinary"),
        ("--gen_module_id_file", ""),
        ('cuda.ptx"  -o', 'other.ptx"  -o'),
        ('cuda.cpp1.ii" -o "', 'cuda.cpp4.ii" -o "'),
        (f'-o "{TARGET}"', '-o "other.o"'),
        ('"cuda.cuda.o.steps/cuda.cudafe1.cpp" -o', '"other.cpp" -o'),
        (".module_id", ".first_id"),
    ],
)
def test_another_dry_run_is_left_to_nvcc(old: str, new: str) -> None:
    assert old in ONE_GPU
    with pytest.raises(UnexpectedDryRun):
        plan(ONE_GPU.replace(old, new, 1), TARGET)


def test_a_cut_dry_run_is_left_to_nvcc() -> None:
    lines = ONE_GPU.splitlines()
    for left_out in range(len(lines)):
        if not re.match(r"#\$ [A-Za-z_]\w*=", lines[left_out]):
            with pytest.raises(UnexpectedDryRun):
                plan("\n".join(lines[:left_out] + lines[left_out + 1 :]), TARGET)


def shell(text: str, *after: int) -> Step:
    return Step("compile", ("sh", "-c", text), after)


def test_a_step_starts_when_what_it_reads_is_there(tmp_path: Path) -> None:
    steps = (
        shell(f"sleep 0.2; echo one > {tmp_path}/1; echo first"),
        shell(f"while [ ! -e {tmp_path}/1 ]; do sleep 0.01; done; echo $TWO > {tmp_path}/2; echo second"),
        shell(f"cat {tmp_path}/1 {tmp_path}/2", 0, 1),
    )
    assert run(steps, {"TWO": "two"}, tmp_path) == (2, 0, b"first\nsecond\none\ntwo\n")


def test_the_first_failure_in_nvccs_order_decides(tmp_path: Path) -> None:
    steps = (
        shell("sleep 0.2; echo why; exit 3"),
        shell("echo early; exit 4"),
        shell("sleep 50"),
        shell("echo", 2),
    )
    started = time.monotonic()
    assert run(steps, {}, tmp_path) == (0, 3, b"why\n")
    assert time.monotonic() - started < 20


def test_a_step_that_a_signal_ends_has_failed(tmp_path: Path) -> None:
    assert run((shell("kill -9 $$"), shell("echo", 0)), {}, tmp_path)[:2] == (0, -9)


def test_what_nvcc_says_in_another_way_is_left_to_nvcc(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("cuda.cu").write_text(SOURCE)
    other = tmp_path / "nvcc"
    other.write_text("#!/bin/sh\necho '#$ something else'\n")
    other.chmod(0o700)
    assert compile_unit(str(other), ["-MD", "-MF", "x.d", "-c", "cuda.cu", "-o", "x.o"]) is None
    assert compile_unit(str(other), ["--version"]) is None


# -- with the compilers themselves -----------------------------------------------------------------------------------

NVCC = shutil.which("nvcc")
needs_nvcc = pytest.mark.skipif(
    NVCC is None, reason="no nvcc on this machine: the recorded dry runs are tested alone"
)


def compiled(folder: Path, text: str, *, in_steps: bool) -> tuple[int, str]:
    """Exit status and words of one compilation to ``x.o`` and ``x.d``."""
    assert NVCC is not None
    folder.mkdir()
    (folder / "cuda.cu").write_text(text)
    (folder / "device_only.h").touch()
    command = [NVCC, "-MD", "-MF", "x.d", *FLAGS, "-c", "cuda.cu", "-o", "x.o"]
    if in_steps:
        command = [sys.executable, "-I", "-S", nvcc_steps.__file__, *command]
    shown = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return shown.returncode, shown.stdout + shown.stderr


def symbols(library: Path) -> list[str]:
    """Names and sizes of everything in an object, without the unit's own name and that of nvcc's files."""
    shown = subprocess.run(["nm", "-S", library], capture_output=True, text=True, check=True).stdout
    shown = re.sub(r"\d*_GLOBAL__N__[0-9a-f]{8}_7_cuda_cu_(go|[0-9a-f]{8})", "UNIT", shown)
    return sorted(re.sub(r"tmpxft_[\w-]+?_(?=cuda)", "", line) for line in shown.splitlines())


@needs_nvcc
@pytest.mark.timeout(120)
def test_the_object_and_the_files_read_are_nvccs_own(tmp_path: Path) -> None:
    objects, files = [], []
    for in_steps in (False, True):
        folder = tmp_path / str(in_steps)
        assert compiled(folder, SOURCE, in_steps=in_steps) == (0, "")
        objects.append(symbols(folder / "x.o"))
        files.append(set(re.findall(r"[^\s\\:]+", (folder / "x.d").read_text())))
        assert not (folder / "x.o.steps").exists()
    assert objects[0] == objects[1]
    assert any("table" in symbol for symbol in objects[0])
    assert files[0] == files[1]
    assert "device_only.h" in files[1]  # by the device's preprocessor alone


@needs_nvcc
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "fault",
    [
        pytest.param("int f() { return nothing; }", id="host", marks=pytest.mark.slow),
        pytest.param("#ifdef __CUDA_ARCH__\n#error only on the device\n#endif", id="device"),
        pytest.param(
            '__global__ void wrong() { asm("bogus.u32 r1;"); }', id="assembler", marks=pytest.mark.slow
        ),
    ],
)
def test_errors_are_told_in_nvccs_words(tmp_path: Path, fault: str) -> None:
    (plain, words), (ours, our_words) = (
        compiled(tmp_path / str(in_steps), SOURCE + fault, in_steps=in_steps) for in_steps in (False, True)
    )
    assert plain
    assert ours
    assert "error" in our_words
    assert _without_temporary_names(our_words) == _without_temporary_names(words)


def _without_temporary_names(words: str) -> str:
    return re.sub(r"\S*/(tmpxft_[\w-]+?_)?(?=cuda\.)", "", words)


@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
@pytest.mark.parametrize(("text", "whole"), [("", False), ("#include <ATen/Context.h>", True)])
def test_the_short_header_reads_no_boxed_values(tmp_path: Path, text: str, whole: bool) -> None:
    """Half of what compilers spent on it came through two headers of every operator, which stay out until asked for."""
    source = tmp_path / "x.cpp"
    source.write_text(f"#include <torch/types.h>\n{text}\n")
    command = ["g++", "-std=c++17", "-M", f"-I{LEAN_HEADERS}", str(source)]
    for folder in cpp_extension.include_paths("cpu"):
        command += ["-isystem", folder]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "ATen/ops/empty.h" in shown
    assert "ATen/core/ivalue.h" not in shown
    assert ("ATen/detail/CUDAHooksInterface.h" in shown) == whole
