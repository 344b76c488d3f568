"""What counts as tried already."""

from __future__ import annotations

from agent.strategy.novelty import fingerprint, likeness, normalized
from tests.agent import small_job

KERNEL = '''
import torch
import triton
import triton.language as tl

BLOCK = 128


@triton.jit
def scale(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    """Doubles."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)  # where
    mask = offsets < n
    values = tl.load(x_ptr + offsets, mask=mask, other=0.0)
    tl.store(y_ptr + offsets, 2 * values, mask=mask)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        scale[(triton.cdiv(x.numel(), BLOCK),)](x, y, x.numel(), BLOCK=BLOCK, num_warps=4)
        return y
'''


def tried(source: str = KERNEL) -> dict[str, str]:
    return {"first": source}


def test_names_comments_docstrings_and_layout_make_nothing_new() -> None:
    same = KERNEL.replace("offsets", "places").replace("  # where", "").replace('    """Doubles."""\n', "")
    same = same.replace("2 * values", "2  *  values").replace("\n\n\n", "\n\n")
    assert same != KERNEL
    assert normalized(same) == normalized(KERNEL)
    assert fingerprint(same) == fingerprint(KERNEL)
    assert likeness(same, tried()).repeats("repair")


def test_a_keyword_is_not_a_name_of_the_file_s_own() -> None:
    assert fingerprint(KERNEL.replace("num_warps=4", "num_stages=4")) != fingerprint(KERNEL)


def test_another_number_is_no_new_idea_but_may_be_a_repair() -> None:
    other = likeness(small_job.GOOD.replace("dim=1", "dim=0"), {"first": small_job.GOOD})
    assert not other.repeats("repair")
    long = KERNEL + "\n".join(
        f"def part_{n}(x):\n    return torch.relu(x) + {n} * torch.exp(x)\n" for n in range(20)
    )
    long = long.replace("return y", "return " + " + ".join(f"part_{n}(y)" for n in range(20)))
    swept = likeness(long.replace("BLOCK = 128", "BLOCK = 256"), {"first": long})
    assert swept.repeats("speed")
    assert not swept.repeats("repair")


def test_another_structure_is_new() -> None:
    other = KERNEL.replace("2 * values", "values + values").replace(
        "        return y", "        torch.cuda.synchronize()\n        return y.view_as(x).clone()"
    )
    found = likeness(other, tried())
    assert not found.repeats("speed")
    assert found.sha256 == "first"


def test_comments_inside_a_kernel_s_text_make_nothing_new_and_pragmas_do() -> None:
    text = 'import torch\nSOURCE = r"""\n#pragma omp parallel for\nfor (;;) x[i] = 1; // set\n"""\n'
    assert fingerprint(text.replace(" // set", "")) == fingerprint(text)
    assert fingerprint(text.replace("parallel for", "parallel for simd")) != fingerprint(text)


def test_what_does_not_parse_is_compared_all_the_same() -> None:
    assert likeness("class ModelNew(:\n  x = [", {"a": "class ModelNew(:\n  x = ["}).share == 1.0
    assert likeness("x = 1", {}).share == 0.0
