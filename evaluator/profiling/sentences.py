"""A diagnosis in short sentences, for people and for prompts."""

from __future__ import annotations

from evaluator.counting import counted
from evaluator.profiling.bottleneck import Diagnosis
from evaluator.profiling.measured import Measured

_WHY = {
    "memory": "memory: most of the time goes to operations that move bytes faster than they could compute with them",
    "compute": "compute: most of the time goes to operations whose arithmetic takes longer than their bytes",
    "launch": "launch overhead: starting operations takes longer than doing them",
    "synchronization": "synchronization: the host waits for the device in the midst of a call, and the device then waits for the host",
}
_CURE = {
    "memory": "Fuse passes, read and write each tensor once, use wide aligned loads, or store narrower numbers.",
    "compute": "Use matrix units and the widest tiles that fit, skip redundant arithmetic, or lower the precision where the tier allows.",
    "launch": "Make one kernel of many, or replay the call as a CUDA graph.",
    "synchronization": "Decide on the device what the host asks for: sizes known ahead, masks in place of indices, loops inside a kernel.",
}
_SHOWN = 4
_WORTH_FUSING = 1.5
_FUSES = ("memory", "launch")


def sentences(found: Diagnosis, seen: Measured, *, gpu: bool) -> tuple[str, ...]:
    """The bottleneck, what showed it, and what else stands in the way."""
    said = [f"The bottleneck is {_WHY[found.label]} ({found.share:.0%} of the time).", _CURE[found.label]]
    if not gpu and found.label == "launch":
        said[1] = "Do in one compiled loop what many operations do now."
    said += _shown_by(seen, gpu=gpu)
    if found.confirmed is False:
        said.append("The experiments do not all agree with this: take it as a guess.")
    said.append(
        f"A call takes {_time(found.steady_s)}; at this device's measured ceilings it could not take less than "
        f"{_time(found.least_s)}: {found.roofline:.0%} of the roofline."
    )
    if found.fusion_gain >= _WORTH_FUSING and found.label in _FUSES:
        said.append(
            f"Its operations move {found.fusion_gain:.1f} times what inputs, weights and outputs take: that is what fusing all of it saves."
        )
    for line, what, count in found.waits[:_SHOWN]:
        verb = "waits" if gpu else "would wait, on a GPU,"
        said.append(f"Line {line}: the host {verb} for the device ({what}), {counted(count, 'time')} a call.")
    for line, way, size in found.transfers[:_SHOWN]:
        said.append(f"Line {line}: a call copies {counted(size, 'byte')} {way}.")
    for line, reason in found.breaks[:_SHOWN]:
        where = f"Line {line}" if line else "Outside the file"
        said.append(f"{where}: torch.compile breaks the graph here ({reason}).")
    if seen.compile_problem:
        said.append(f"torch.compile could not trace it: {seen.compile_problem}")
    return tuple(said)


def _shown_by(seen: Measured, *, gpu: bool) -> list[str]:
    """The experiments and what came out."""
    said = []
    if seen.replay_s is not None:
        said.append(
            f"Replayed as a CUDA graph it takes {_time(seen.replay_s)} instead of {_time(seen.steady_s)}: launching costs "
            f"{max(1 - seen.replay_s / seen.steady_s, 0):.0%}."
        )
    elif gpu and seen.capture_problem:
        said.append(f"It cannot be captured as a CUDA graph: {seen.capture_problem}")
    if seen.narrow_s is not None and seen.replay_s is not None:
        said.append(
            f"With bfloat16 for float32 (half the bytes) it takes {seen.narrow_s / seen.replay_s:.2f} of the time."
        )
    if seen.cold_s is not None and seen.warm_s is not None:
        said.append(
            f"With cold caches it takes {seen.cold_s / seen.warm_s:.2f} times what it takes with warm ones."
        )
    for size in seen.sizes:
        said.append(
            f"With {size.bytes_factor:.2g} times the input ({size.dim}) it takes {size.steady_s / seen.steady_s:.2f} of the time."
        )
    return said


def _time(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} us" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms"
