"""Rewriting a kernel's spelling must not touch its arithmetic."""

from __future__ import annotations

import pytest

from agent.compiler.cpp_text import tidy
from agent.compiler.layout import evaluate, is_contiguous, is_transposed
from agent.errors import ProposalFailed

KERNEL = """
#include <torch/csrc/inductor/cpp_prefix.h>
extern "C"  void  kernel(const float* in_ptr0,
                       float* out_ptr0,
                       const int64_t ks0)
{
    #pragma omp parallel
    {
        int tid = omp_get_thread_num();
        {
            #pragma omp for
            for(int64_t x0=static_cast<int64_t>(0L); x0<static_cast<int64_t>(ks0); x0+=static_cast<int64_t>(16L))
            {
                {
                    if(C10_LIKELY(x0 >= static_cast<int64_t>(0) && x0 < BOUND))
                    {
                        auto tmp0 = at::vec::Vectorized<float>::loadu(in_ptr0 + static_cast<int64_t>(x0), static_cast<int64_t>(16));
                        auto tmp1 = static_cast<int64_t>(-100);
                        auto tmp2 = out_ptr0[static_cast<int64_t>(tmp1 + x0)];
                        auto tmp3 = x0*static_cast<int64_t>(ks0 + 4096000L);
                        tmp0.store(out_ptr0 + static_cast<int64_t>(x0));
                    }
                }
            }
        }
    }
}
""".replace(
    "BOUND",
    "static_cast<int64_t>(16L*(c10::div_floor_integer(static_cast<int64_t>(ks0), static_cast<int64_t>(16L))))",
)


def test_index_arithmetic_loses_its_casts() -> None:
    text = tidy("scale", KERNEL, {"in_ptr0": "x", "ks0": "rows"}).text
    assert 'extern "C" void scale(const float* x, float* out_ptr0, const int64_t rows) {' in text
    assert "for(int64_t x0=0; x0<rows; x0+=16) {" in text
    assert "if(x0 >= 0 && x0 < whole<16>(rows)) {" in text
    assert "loadu(x + x0, 16)" in text


def test_casts_that_decide_a_type_stay() -> None:
    text = tidy("scale", KERNEL, {"ks0": "rows"}).text
    assert "auto tmp1 = static_cast<int64_t>(-100);" in text
    assert "out_ptr0[static_cast<int64_t>(tmp1 + x0)]" in text
    assert "x0*(rows + 4096000L)" in text, "parentheses and wide literals are needed"


def test_threads_start_only_where_there_is_work() -> None:
    assert "#pragma omp parallel if (rows >= 32768)" in tidy("scale", KERNEL, {"ks0": "rows"}).text
    heavy = KERNEL.replace("tmp0.store(", "tmp0.exp().store(")
    assert "#pragma omp parallel if (rows >= 8192)" in tidy("scale", heavy, {"ks0": "rows"}).text


def test_a_name_that_the_body_uses_is_not_taken() -> None:
    assert "const float* x0_" in tidy("scale", KERNEL, {"in_ptr0": "x0"}).text
    assert "const float* float_" in tidy("scale", KERNEL, {"in_ptr0": "float"}).text


def test_scratch_becomes_the_kernels_own() -> None:
    kernel = tidy("scale", KERNEL, {"out_ptr0": "buf0", "ks0": "rows"}, scratch={1: ("rows", "1")})
    assert [name for _, name in kernel.parameters] == ["in_ptr0", "rows"]
    assert "const std::unique_ptr<float[]> buf0_memory(new float[rows]);" in kernel.text
    # A length that the kernel does not know stays with the caller.
    assert tidy("scale", KERNEL, {}, scratch={1: ("cols",)}).own == frozenset()


@pytest.mark.parametrize(
    "broken", ["", KERNEL.replace("kernel(", "other("), KERNEL.rstrip().removesuffix("}")]
)
def test_another_form_is_refused(broken: str) -> None:
    with pytest.raises(ProposalFailed):
        tidy("scale", broken, {})


def test_layouts_are_told_apart_whatever_the_spelling() -> None:
    assert is_contiguous(("batch", "rows", "4*cols"), ("4*rows*cols", "4*cols", "1"))
    assert is_contiguous(("rows", "1"), ("1", "rows"))
    assert not is_contiguous(("rows", "cols"), ("1", "rows"))
    assert is_transposed(("rows", "cols"), ("1", "rows"))
    assert evaluate("max(7 // n, n % 2)", {"n": 3}) == 2
    with pytest.raises(ProposalFailed):
        evaluate("n.__class__", {"n": 3})
