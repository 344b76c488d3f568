"""Counters in a handful of sentences per kernel: each names a cause and what it suggests."""

from __future__ import annotations

import re
from collections.abc import Iterator

from evaluator.profiling.counter_table import Counted

_MOST_SENTENCES = 4
#: Percent of what a unit can sustain, from which on it is what the kernel waits for; below the second none is.
_BUSY, _IDLE = 70.0, 60.0
_FEW_WAVES, _TAIL = 4.0, 0.5
_LOW_OCCUPANCY, _UNEVEN = 50.0, 0.6
#: A warp's request of 16 bytes per thread takes 16 sectors of 32 bytes if they lie beside each other.
_MOST_SECTORS, _CONFLICTS = 16.0, 0.25
_THREADS, _DIVERGED = 32, 24.0
_ISSUES_OFTEN, _STALL = 60.0, 1.0
_PLAIN_PRODUCT, _NO_TENSOR = 50.0, 1.0
_LONGEST_NAME = 60

_PIPE = {
    "fma": "multiply-adds: move products to tensor cores where the tier allows, or do fewer",
    "alu": "integer arithmetic, comparisons and conversions: hoist index arithmetic out of loops",
    "lsu": "loads and stores: make each of them wider (16 bytes a thread) and keep values in registers",
    "xu": "exponentials, roots, divisions and conversions: use fewer, or cheaper ones (exp2 with a folded factor)",
    "fp64": "float64 arithmetic: use float32 where the tolerance allows",
}
#: Not selected is no stall that hurts: another warp was ready.
_STALLED = {
    "long_scoreboard": "global memory: load earlier than needed (several stages, asynchronous copies), or have more warps",
    "short_scoreboard": "shared memory or special functions: read less often and wider, and keep values in registers",
    "barrier": "other warps at a barrier: synchronize less often, or smaller groups of threads",
    "membar": "a memory fence: use fewer fences, or narrower ones",
    "mio_throttle": "the queue to shared memory: use fewer and wider shared accesses",
    "lg_throttle": "the queue to global memory: use fewer and wider loads and stores",
    "tex_throttle": "the queue to the texture unit: use fewer requests",
    "math_pipe_throttle": "a busy arithmetic pipe: mix in other work, or use tensor cores",
    "wait": "the fixed latency of the instruction before: give each thread more independent work",
    "no_instruction": "instructions not yet fetched: make the code smaller, unroll less",
    "imc_miss": "constants not in their cache: read fewer of them, and the same one across a warp",
    "branch_resolving": "branches: unroll, or replace short branches by selects",
    "dispatch_stall": "the dispatcher: mix kinds of instructions",
    "drain": "stores to finish at the end: write earlier, and wider",
    "sleeping": "their own sleep: poll less",
    "gmma": "the matrix units' operands: deepen the pipeline that feeds them",
}
_LIMITED = {
    "registers": "use smaller tiles, or bound the registers (launch bounds, maxnreg, more warps per tile)",
    "shared memory": "use smaller tiles or fewer stages",
    "warps": "another block size divides the warps better",
    "blocks": "use larger blocks",
}


def short_name(name: str) -> str:
    """A demangled name without return type, template and parameters: what a sentence can bear of a stranger's text."""
    depth = 0
    plain: list[str] = []
    for letter in name.removeprefix("void ").replace("(anonymous namespace)::", ""):
        depth += (letter == "<") - (letter == ">" and depth > 0)
        if letter == "(" and not depth and plain:
            break
        if not depth and letter != ">":
            plain.append(letter)
    last = "".join(plain).split("::")[-1]
    return re.sub(r"[^A-Za-z0-9_]+", "_", last).strip("_")[:_LONGEST_NAME] or "kernel"


def sentences(kernel: Counted) -> tuple[str, ...]:
    """What the counters say of a kernel, the most telling first."""
    return tuple(said for _, said in zip(range(_MOST_SENTENCES), _all(kernel), strict=False))


def _all(kernel: Counted) -> Iterator[str]:
    seen = kernel.counters
    saturated, said = _limit(seen)
    if said:
        yield said
    yield from _access(seen)
    if not saturated:
        yield from _grid(seen)
        yield from _occupancy(kernel)
        yield from _stall(seen)
    threads = seen.get("threads_per_instruction", _THREADS)
    if threads < _DIVERGED:
        yield (
            f"Only {threads:.1f} of 32 threads work in an average instruction: branches or masks differ within a warp; "
            "make the condition the same for a whole warp, or sort the work."
        )
    if seen.get("pipe_fma_pct", 0.0) >= _PLAIN_PRODUCT and seen.get("tensor_pct", 100.0) < _NO_TENSOR:
        yield (
            f"Multiply-adds keep their pipe busy {seen['pipe_fma_pct']:.0f}% of the time and tensor cores stand still: "
            "if this is a product, use TF32 or 16-bit operands where the tier allows."
        )


def _limit(seen: dict[str, float]) -> tuple[bool, str]:
    """Whether a unit is saturated, and the sentence about which one, or that none is."""
    dram, l2, sm = (seen.get(name, 0.0) for name in ("dram_pct", "l2_pct", "sm_pct"))
    l1, tensor = seen.get("l1_pct", 0.0), seen.get("tensor_pct", 0.0)
    if dram >= _BUSY:
        return True, (
            f"DRAM is busy {dram:.0f}% of the time and limits it: only fewer bytes help (fuse it with its neighbors, read once, "
            "narrower numbers)."
        )
    if tensor >= _BUSY:
        return True, (
            f"Tensor cores are busy {tensor:.0f}% of the time: it is near their limit, and only less arithmetic or narrower "
            "operands help."
        )
    if l2 >= _BUSY and l2 >= sm:
        return True, (
            f"The L2 cache is busy {l2:.0f}% of the time and DRAM {dram:.0f}%: the same data is fetched again and again; use "
            "larger tiles in shared memory or registers."
        )
    pipes = {name[5:-4]: value for name, value in seen.items() if name.startswith("pipe_")}
    pipe = max(pipes, key=lambda name: pipes[name], default="")
    if pipe and pipes[pipe] >= _BUSY:
        return True, f"Its busiest pipe, at {pipes[pipe]:.0f}%, does {_PIPE[pipe]}."
    if l1 >= _BUSY:
        return True, (
            f"L1 and shared memory are busy {l1:.0f}% of the time: read wider, and reuse values from registers."
        )
    if "sm_pct" in seen and "dram_pct" in seen and max(dram, l2, sm) < _IDLE:
        return False, (
            f"Neither memory (DRAM {dram:.0f}%, L2 {l2:.0f}%) nor the multiprocessors ({sm:.0f}%) are near their limit: it waits "
            "for latencies, so more independent work in flight helps."
        )
    return False, ""


def _access(seen: dict[str, float]) -> Iterator[str]:
    for what in ("load", "store"):
        sectors = seen.get(f"{what}_sectors_per_request", 0.0)
        if sectors > _MOST_SECTORS:
            yield (
                f"A warp's {what} touches {sectors:.0f} sectors of 32 bytes on average (4 for neighboring floats, 32 if scattered): "
                "let neighboring threads take neighboring elements, or go through shared memory."
            )
    conflicts = seen.get("bank_conflicts_per_wavefront", 0.0)
    if conflicts >= _CONFLICTS:
        yield (
            f"{min(conflicts, 1.0):.0%} of what shared memory does is bank conflicts: pad rows by one element, or swizzle."
        )
    if seen.get("spill_sectors", 0.0) > 0:
        yield (
            f"It reads {seen['spill_sectors']:.0f} sectors of local memory: registers spill (it has "
            f"{seen.get('registers_per_thread', 0):.0f} a thread) or an array is indexed at run time; use smaller tiles or "
            "fixed indices."
        )


def _grid(seen: dict[str, float]) -> Iterator[str]:
    waves = seen.get("waves", 0.0)
    if 0 < waves < 1:
        yield (
            f"Its blocks fill {waves:.0%} of the places that the GPU has for them: use more and smaller ones, or split the "
            "reduced dimension."
        )
    elif 1 < waves < _FEW_WAVES and 0 < waves % 1 <= _TAIL:
        yield (
            f"Its blocks run in {waves:.1f} waves, the last of which is mostly empty: choose tiles that come out even, or let "
            "blocks that stay take work in turn."
        )


def _occupancy(kernel: Counted) -> Iterator[str]:
    seen = kernel.counters
    most, achieved = seen.get("most_occupancy_pct"), seen.get("occupancy_pct")
    if most is not None and most < _LOW_OCCUPANCY and kernel.limiter:
        amount = {
            "registers": f" ({seen.get('registers_per_thread', 0):.0f} a thread)",
            "shared memory": f" ({seen.get('shared_bytes_per_block', 0):.0f} bytes a block)",
        }.get(kernel.limiter, "")
        yield (
            f"At most {most:.0f}% of the warps fit a multiprocessor, because of {kernel.limiter}{amount}: "
            f"{_LIMITED[kernel.limiter]}, if its loads are not pipelined already."
        )
    elif most and achieved is not None and achieved < _UNEVEN * most and seen.get("waves", 1.0) >= 1:
        yield (
            f"{achieved:.0f}% of the warps are there on average where {most:.0f}% would fit: blocks differ in length; even them "
            "out, or begin with the longest."
        )


def _stall(seen: dict[str, float]) -> Iterator[str]:
    stalls = {name[6:]: value for name, value in seen.items() if name.startswith("stall_")}
    stalls = {reason: warps for reason, warps in stalls.items() if reason in _STALLED}
    reason = max(stalls, key=lambda name: stalls[name], default="")
    if reason and stalls[reason] >= _STALL and seen.get("issue_pct", 100.0) < _ISSUES_OFTEN:
        yield (
            f"An instruction is issued in {seen['issue_pct']:.0f}% of the cycles; for each, {stalls[reason]:.1f} warps wait for "
            f"{_STALLED[reason]}."
        )
