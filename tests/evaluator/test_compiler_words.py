"""The first line of a compile error: the compiler's own message with its line, whatever the compiler prints around it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import torch

from evaluator.client import Referee
from evaluator.compiler_words import headline, printable
from evaluator.errors import RoleFailure
from evaluator.roles import protocol, runner
from evaluator.verdict import Verdict
from tests.evaluator.judging import candidate, judge, task

_KERNELS = """
import triton
import triton.language as tl

@triton.jit
def helper(x):
    y = x * 2
    return tl.missing(y)

@triton.jit
def unknown_function(x, y, BLOCK: tl.constexpr):
    places = tl.arange(0, BLOCK)
    tl.store(y + places, tl.softplus(tl.load(x + places)))

@triton.jit
def calls_a_helper(x, y, BLOCK: tl.constexpr):
    places = tl.arange(0, BLOCK)
    tl.store(y + places, helper(tl.load(x + places)))

@triton.jit
def asserts(x, y, BLOCK: tl.constexpr):
    tl.static_assert(BLOCK == 3, "blocks of three")

@triton.jit
def shapes_differ(x, y, BLOCK: tl.constexpr):
    places = tl.arange(0, BLOCK)
    tl.store(y + places, tl.load(x + places) + tl.zeros((2 * BLOCK,), tl.float32))

@triton.jit
def long_and_wrong(x, y, BLOCK: tl.constexpr):
    a = 1
    b = 2
    c = 3
    d = 4
    e = 5
    f = 6
    g = 7
    h = 8
    i = 9
    j = 10
    k = 11
    tl.store(y + tl.arange(0, 3), a)
"""


def _of_triton(name: str, folder: Path) -> BaseException:
    """What Triton's front end raises for one of the kernels; it needs no device."""
    triton = pytest.importorskip("triton")
    import importlib.util

    from triton.backends.compiler import GPUTarget

    path = folder / "kernels.py"
    path.write_text(_KERNELS)
    spec = importlib.util.spec_from_file_location("kernels", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    signature = {"x": "*fp32", "y": "*fp32", "BLOCK": "constexpr"}
    source = triton.compiler.ASTSource(getattr(module, name), signature, {(2,): 64})
    with pytest.raises(triton.compiler.errors.CompilationError) as raised:
        triton.compile(source, target=GPUTarget("cuda", 90, 32))
    return raised.value


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "unknown_function",
            ("line 3 of unknown_function: AttributeError(\"module 'triton.language' has no attribute 'softplus'\") "
            "(`tl.store(y + places, tl.softplus(tl.load(x + places)))`)"),
        ),
        (
            "calls_a_helper",
            "line 3 of helper: AttributeError(\"module 'triton.language' has no attribute 'missing'\") (`return tl.missing(y)`)",
        ),
        ("asserts", 'line 2 of asserts: blocks of three (`tl.static_assert(BLOCK == 3, "blocks of three")`)'),
        (
            "shapes_differ",
            ("line 3 of shapes_differ: ValueError('Cannot make_shape_compatible: incompatible dimensions at index 0: 64 and 128') "
            "(`tl.store(y + places, tl.load(x + places) + tl.zeros((2 * BLOCK,), tl.float32))`)"),
        ),
        (
            "long_and_wrong",
            "line 13 of the kernel: arange's range must be a power of 2 (`tl.store(y + tl.arange(0, 3), a)`)",
        ),
    ],
)  # fmt: skip
def test_tritons_message_comes_before_the_lines_of_the_kernel(name: str, words: str, tmp_path: Path) -> None:
    error = _of_triton(name, tmp_path)
    assert str(error).startswith("at "), "what Triton puts first helps nobody"
    payload = runner._describe(error)
    assert payload[0] == protocol.COMPILE
    first, _, rest = payload[1:].decode().partition("\n")
    assert first == words
    assert str(error).splitlines()[1] in rest, "the whole of it is the detail"


_NVCC = """\
[1/3] /usr/local/cuda/bin/nvcc -ccbin g++ -DTORCH_API_INCLUDE_EXTENSION_H -I/usr/include -c /tmp/b/cuda.cu -o cuda.cuda.o
FAILED: cuda.cuda.o
/tmp/b/cuda.cu(14): warning #177-D: variable "unused" was declared but never referenced
/tmp/b/cuda.cu(21): error: identifier "blockIdxx" is undefined
      int row = blockIdxx.x;
                ^

1 error detected in the compilation of "/tmp/b/cuda.cu".
"""
_NVRTC = """\
Kernel compilation failed:
row_sum.cu(9): error: expected a ";"
  float total = 0.f
                   ^

1 error detected in the compilation of "row_sum.cu".
"""
_INDUCTOR_CPP = """\
CppCompileError: C++ compile error

Command:
g++ /tmp/torchinductor_root/ab/cabc.main.cpp -D TORCH_INDUCTOR_CPP_WRAPPER -o /tmp/torchinductor_root/ab/cabc.main.so

Output:
/tmp/torchinductor_root/ab/cabc.main.cpp: In function 'void kernel(const float*, float*)':
/tmp/torchinductor_root/ab/cabc.main.cpp:12:30: error: 'tmp7' was not declared in this scope; did you mean 'tmp'?
   12 |                 out_ptr0[0] = tmp7;
"""
_INDUCTOR_TRITON = """\
CompilationError: at 9:15:
def triton_poi_fused_user(in_ptr0, out_ptr0, xnumel, XBLOCK : tl.constexpr):
    xoffset = tl.program_id(0) * XBLOCK
    tmp1 = helper(tmp0)
               ^
NameError('helper is not defined')

Set TORCHDYNAMO_VERBOSE=1 for the internal stack trace
"""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (_NVCC, 'cuda.cu(21): error: identifier "blockIdxx" is undefined'),
        (_NVRTC, 'row_sum.cu(9): error: expected a ";"'),
        (_INDUCTOR_CPP, "cabc.main.cpp:12:30: error: 'tmp7' was not declared in this scope; did you mean 'tmp'?"),
        (_INDUCTOR_TRITON, "line 9 of triton_poi_fused_user: NameError('helper is not defined') (`tmp1 = helper(tmp0)`)"),
        ("backend='inductor' raised:\nLoweringException: AssertionError: sizes differ\n  target: aten.add", "LoweringException: AssertionError: sizes differ"),
        ("the extension does not compile: /tmp/x/main.cpp:3:1: error: 'nothing' does not name a type", "main.cpp:3:1: error: 'nothing' does not name a type"),
        ("/usr/bin/ld: main.o: in function `f':\nmain.cpp:(.text+0x12): undefined reference to `missing(int)'", "main.cpp:(.text+0x12): undefined reference to `missing(int)'"),
        ("PTXAS error: Internal Triton PTX codegen error\n`ptxas` stderr:\nptxas /tmp/k.ptx, line 41; error   : Unknown symbol 'q'", "ptxas /tmp/k.ptx, line 41; error   : Unknown symbol 'q'"),
        ("at 7:4:", "at 7:4:"),
        ("", ""),
    ],
)  # fmt: skip
def test_the_line_that_helps_is_found(text: str, words: str) -> None:
    assert headline(text) == words


def test_what_gpp_prints(tmp_path: Path) -> None:
    (tmp_path / "main.cpp").write_text(
        "#include <vector>\nint main() {\n  std::vector<int> v;\n  return v.syze();\n}\n"
    )
    ran = subprocess.run(
        ["g++", "-c", str(tmp_path / "main.cpp")], capture_output=True, text=True, cwd=tmp_path
    )
    assert ran.returncode
    assert headline(ran.stderr).startswith("main.cpp:4:12: error: ") and "syze" in headline(ran.stderr)


def test_compilers_of_other_kinds_are_known_by_what_they_raise() -> None:
    class InductorError(torch._dynamo.exc.BackendCompilerFailed):
        def __init__(self, words: str) -> None:
            Exception.__init__(self, words)
            self.msg = words

        def __str__(self) -> str:
            return self.msg

    def told(error: BaseException) -> tuple[int, str]:
        payload = runner._describe(error)
        return payload[0], payload[1:].decode().partition("\n")[0]

    assert told(InductorError(_INDUCTOR_TRITON))[0] == protocol.COMPILE
    assert told(RuntimeError(_NVRTC)) == (protocol.COMPILE, 'row_sum.cu(9): error: expected a ";"')
    assert told(InductorError("OutOfMemoryError: CUDA out of memory."))[0] == protocol.MEMORY
    assert told(RuntimeError("no compiler is meant")) == (
        protocol.RUNTIME,
        "RuntimeError: no compiler is meant",
    )


def test_a_compilers_text_is_cut_and_steers_no_terminal() -> None:
    evil = "main.cpp:1:1: error: \x1b[31mred\x1b[0m \x1b]0;title\x07 \u202eback " + "x" * 10_000
    found = headline(evil)
    assert found.startswith("main.cpp:1:1: error: red ?]0;title? ?back") and len(found) <= 400
    assert printable("a\tb\nc\rd\x00") == "a\tb\nc?d?"
    failure = RoleFailure("compile_error", "a\x1b[2Jb", "c\x08\nd")
    assert (failure.sentence, failure.detail) == ("ab", "c?\nd")


# -- through a referee --------------------------------------------------------------------------------------------


_TASK = task("""
    class Model(nn.Module):
        def forward(self, x):
            return x * 2

    def get_inputs():
        return [torch.randn(4, 8)]

    def get_init_inputs():
        return []
    """)
_RAISES = """
    class BuildError(Exception):
        pass

    class ModelNew(nn.Module):
        def forward(self, x):
            raise BuildError("g++ -c main.cpp\\n/tmp/main.cpp:7:3: error: 'y' was not declared in this scope\\n" + "z" * 9000)
    """


@pytest.mark.parametrize(
    ("source", "word", "reason"),
    [
        (_RAISES, "compile_error", "main.cpp:7:3: error: 'y' was not declared in this scope"),
        ("def f(:\n    pass\n", "contract_violation", "the file does not parse: line 4: invalid syntax (`def f(:`)"),
    ],
    ids=["compiler", "python"],
)  # fmt: skip
def test_a_verdicts_reason_is_the_message(referee: Referee, source: str, word: str, reason: str) -> None:
    verdict: Verdict = judge(referee, _TASK, candidate(source))
    assert (verdict.verdict, verdict.reason) == (word, reason)
