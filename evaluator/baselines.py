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
        accelerator_only: there is none on a CPU.
    """

    name: str
    compiler: str = ""
    slow: bool = False
    graph: bool = False
    autocast: bool = False
    accelerator_only: bool = False


MODES = {
    mode.name: mode
    for mode in (
        Mode("eager"),
        Mode("compile_default", "default"),
        Mode("compile_max_autotune", "max-autotune", slow=True),
        # On a CPU, reduce-overhead is the default mode.
        Mode("compile_reduce_overhead", "reduce-overhead", slow=True, graph=True, accelerator_only=True),
        Mode("cuda_graph", graph=True, accelerator_only=True),
        Mode("eager_autocast", autocast=True),
        Mode("compile_autocast", "default", autocast=True),
    )
}


def modes_of(*, accelerator: bool, autocast: bool) -> tuple[str, ...]:
    """Names of the modes of a CPU or an accelerator: those with autocast, or those without."""
    found = (one for one in MODES.values() if accelerator or not one.accelerator_only)
    return tuple(one.name for one in found if one.autocast == autocast)
