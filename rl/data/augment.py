"""Changes of generated modules: each gives a module that is sound again and computes something else, from a seed alone.

Half of a data set is made this way, so that a model sees neighbors: the same module with one operation more, fewer or another one,
or over another space, and what that changes in the kernel.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from rl.data.modules import BY_KIND, OPERATIONS, VERSION, Module, generate, node_of, sound, space_of

_TRIES = 50


def module_at(seed: int, index: int) -> Module:
    """The index-th module of a seed: even ones are new, odd ones are the one before, changed."""
    if index % 2 == 0:
        return generate(seed, index // 2)
    generator = random.Random(f"kernelwright.augmented/{VERSION}/{seed}/{index}")  # noqa: S311
    return augment(generate(seed, index // 2), generator)


def augment(module: Module, generator: random.Random) -> Module:
    """One change; the module itself with another space where none of those tried is sound."""
    for _ in range(_TRIES):
        change = generator.choice(_CHANGES)
        changed = change(module, generator)
        if changed != module and sound(changed):
            return replace(
                changed, lineage=f"{module.lineage}, {change.__name__.strip('_').replace('_', ' ')}"
            )
    return replace(_another_space(module, generator), lineage=f"{module.lineage}, another space")


def _another_operation(module: Module, generator: random.Random) -> Module:
    place = generator.randrange(len(module.nodes))
    node = module.nodes[place]
    name = generator.choice(BY_KIND[OPERATIONS[node.operation].kind])
    nodes = list(module.nodes)
    nodes[place] = node_of(name, node.reads, generator)
    return replace(module, nodes=tuple(nodes))


def _one_more(module: Module, generator: random.Random) -> Module:
    """An operation on one value, behind one of the nodes; whoever read that one reads the new one."""
    place = generator.randrange(len(module.nodes))
    name = generator.choice([*BY_KIND["pointwise"], *BY_KIND["number"], *BY_KIND["parameter"]])
    number = module.inputs + place
    moved = [
        replace(node, reads=tuple(one + (one >= number) for one in node.reads))
        for node in module.nodes[place + 1 :]
    ]
    nodes = [*module.nodes[: place + 1], node_of(name, (number,), generator), *moved]
    return replace(module, nodes=tuple(nodes))


def _one_fewer(module: Module, generator: random.Random) -> Module:
    """Without one of the nodes; whoever read it reads what it read first."""
    place = generator.randrange(len(module.nodes))
    gone = module.inputs + place
    instead = module.nodes[place].reads[0]

    def moved(one: int) -> int:
        return instead if one == gone else one - (one > gone)

    nodes = [
        replace(node, reads=tuple(map(moved, node.reads)))
        for node in module.nodes
        if node is not module.nodes[place]
    ]
    return replace(module, nodes=tuple(nodes))


def _another_space(module: Module, generator: random.Random) -> Module:
    leading, dims = space_of(generator, module.nodes)
    return replace(module, leading=leading, dims=dims)


_CHANGES: tuple[Callable[[Module, random.Random], Module], ...] = (
    _another_operation,
    _one_more,
    _one_fewer,
    _another_space,
)
