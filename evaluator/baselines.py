"""The ways to run a reference that a candidate has to beat. A new one is an entry here and, if it is not torch.compile, a line in
:func:`evaluator.roles.variants.prepare`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mode:
    """One way to run a module.

    Attributes:
        name: in verdicts.
        compiler: the mode of torch.compile; empty where nothing is compiled.
        slow: compiles for long; a first look does without it.
        graph: replays a CUDA graph.
        autocast: computes products in the 16 bits that the task's tier allows; only for tasks of such a tier.
        devices: where it exists.
    """

    name: str
    compiler: str = ""
    slow: bool = False
    graph: bool = False
    autocast: bool = False
    devices: tuple[str, ...] = ("cpu", "cuda")


MODES = {
    mode.name: mode
    for mode in (
        Mode("eager"),
        Mode("compile_default", "default"),
        Mode("compile_max_autotune", "max-autotune", slow=True),
        # On a CPU, reduce-overhead is the default mode.
        Mode("compile_reduce_overhead", "reduce-overhead", slow=True, graph=True, devices=("cuda",)),
        Mode("cuda_graph", graph=True, devices=("cuda",)),
        Mode("eager_autocast", autocast=True),
        Mode("compile_autocast", "default", autocast=True),
    )
}


def modes_of(device: str, *, autocast: bool) -> tuple[str, ...]:
    """Names of the modes of a device ("cpu" or "cuda"): those with autocast, or those without."""
    return tuple(one.name for one in MODES.values() if device in one.devices and one.autocast == autocast)
