"""Draws a task's inputs, on the device if there is one, and measures how much memory one call takes.

Runs in the reference's process. Each tensor is drawn a few times, so that the referee can mix contents that were
never used before. Tensors of gigabytes are kept once. It also reports what all draws share
(:mod:`evaluator.roles.structures`) and what the task declares.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, TypeVar

import torch
from torch.utils._pytree import tree_map

from evaluator.devices.accelerator import on_gpu, torch_gpu
from evaluator.input_structure import DOMAINS
from evaluator.roles import structures
from evaluator.roles.blocks import tensors_in
from evaluator.roles.exchange import span_elements
from evaluator.roles.open_shape import meta_json, meta_of
from evaluator.roles.protocol import ContractError
from evaluator.roles.values import encode_value

#: Inputs with more bytes are drawn once. Of larger floating tensors only a part is kept, from which contents are
#: mixed.
_HEAVY_BYTES, _KEPT_BYTES = 1 << 30, 256 << 20
_Made = TypeVar("_Made")


@dataclass
class Drawn:
    """What was drawn at one shape.

    Attributes:
        described: per argument of ``forward`` its encoded form and its tensors, each with the addresses of its
            draws (on the host), whether all draws are the same, its structure and its domain.
        tensors: every draw of every tensor, in the order of their descriptions, each with how many of its bytes
            are kept.
        first: the arguments of the first draw.
        spare: GPU only: one more draw for calling the module, which may change its inputs.
    """

    described: list[dict[str, Any]]
    tensors: list[tuple[torch.Tensor, int]]
    first: list[Any]
    spare: list[Any] = field(default_factory=list)


@dataclass
class Peak:
    """Device memory that a call took beyond what was allocated before, in bytes."""

    bytes: int = 0


@contextmanager
def measured(device: torch.device) -> Iterator[Peak]:
    """Measures the device's memory peak over the body; 0 on a CPU."""
    peak = Peak()
    if not on_gpu(device):
        yield peak
        return
    torch_gpu.synchronize()
    before = torch_gpu.memory_allocated()
    torch_gpu.reset_peak_memory_stats()
    yield peak
    torch_gpu.synchronize()
    peak.bytes = torch_gpu.max_memory_allocated() - before
    torch_gpu.empty_cache()


def on_device(device: torch.device, make: Callable[[], _Made]) -> _Made:
    """The result of ``make`` with its tensors on the device; on the host if the code cannot do that (it uses
    numpy, say).
    """
    if on_gpu(device):
        try:
            with device:
                return make()
        except torch.OutOfMemoryError:
            raise
        except Exception:
            torch_gpu.empty_cache()
    return make()


def draw(
    module: ModuleType,
    forward: Callable[..., Any],
    given: dict[str, Any],
    draws: int,
    device: torch.device,
) -> Drawn:
    """Draws all inputs ``draws`` times, once if they are large, and once more for calling the module.

    Args:
        module: the task's, with ``get_inputs`` and perhaps a ``DOMAIN``.
        forward: what gets the inputs.
        given: arguments of ``get_inputs``.
        draws: how many.
        device: where.

    Raises:
        ContractError: ``get_inputs`` does not return a list of the same form each time, or contradicts ``DOMAIN``.
    """
    get_inputs, declared = module.get_inputs, getattr(module, "DOMAIN", {})
    names = list(inspect.signature(forward).parameters) if declared else []
    domains = _domains(declared, names)
    kept = [_once(get_inputs, given, device)]
    heavy = on_gpu(device) and sum(t.nbytes for t in tensors_in(kept[0])) > _HEAVY_BYTES
    for _ in range(0 if heavy else draws - 1):
        kept.append(_once(get_inputs, given, device))
    spare = _once(get_inputs, given, device) if on_gpu(device) else []
    every = [*kept, spare] if heavy else kept
    if any(len(inputs) != len(kept[0]) for inputs in every):
        raise ContractError("get_inputs() returns different numbers of inputs from call to call")
    # A seed inside get_inputs() makes every draw the same, integers too. Then equal draws say nothing about one
    # input.
    rows = zip(*(tensors_in(inputs) for inputs in every), strict=False)
    seeded = all(one.shape == row[0].shape and torch.equal(one, row[0]) for row in rows for one in row[1:])
    described, tensors = [], []
    for position in range(len(kept[0])):
        name = names[position] if position < len(names) else ""
        one, found = _described(
            [inputs[position] for inputs in every], len(kept), seeded, domains.get(name, "")
        )
        described.append(one)
        tensors += found
    return Drawn(described, tensors, kept[0], spare)


def _domains(declared: Any, names: Sequence[str]) -> dict[str, str]:
    """A task's ``DOMAIN``, checked.

    Raises:
        ContractError: it is not a dictionary of words for arguments of ``forward``.
    """
    if not isinstance(declared, Mapping):
        raise ContractError(f"DOMAIN must be a dictionary of words by input, not {declared!r}"[:300])
    for name, word in declared.items():
        if name not in names:
            known = ", ".join(names)
            raise ContractError(
                f"DOMAIN names {name!r}, which forward() does not take (it takes {known})"[:300]
            )
        if word not in DOMAINS:
            raise ContractError(f"DOMAIN[{name!r}] = {word!r} is not one of {', '.join(DOMAINS)}"[:300])
    return {str(name): str(word) for name, word in declared.items()}


def _once(get_inputs: Callable[..., Any], given: dict[str, Any], device: torch.device) -> list[Any]:
    torch.manual_seed(int.from_bytes(os.urandom(7), "little"))
    inputs = on_device(device, lambda: get_inputs(**given))
    if not isinstance(inputs, (list, tuple)):
        raise ContractError("get_inputs() must return a list")
    if on_gpu(device):
        inputs = tree_map(
            lambda value: value.to(device) if isinstance(value, torch.Tensor) else value, inputs
        )
    return list(inputs)


def _described(
    values: list[Any], kept: int, seeded: bool, domain: str
) -> tuple[dict[str, Any], list[tuple[torch.Tensor, int]]]:
    """One argument of ``forward`` in all draws, and its kept tensors, draw by draw of the first, then of the next."""
    rows: list[list[torch.Tensor]] = []
    forms, metas = [], []
    for value in values:
        found: list[torch.Tensor] = []
        forms.append(encode_value(value, found))
        rows.append(found)
        metas.append([meta_json(meta_of(tensor)) for tensor in found])
    if any(one != metas[0] for one in metas[1:]):
        raise ContractError("get_inputs() returns different shapes or dtypes from call to call")
    tensors: list[dict[str, Any]] = []
    for number, meta in enumerate(metas[0]):
        draws = [row[number] for row in rows]
        if domain in ("non_negative", "positive"):
            _check_domain(draws, domain)
        structure = structures.find(draws, seeded=seeded)
        tensors.append(
            {
                "meta": meta,
                "addresses": [draw.data_ptr() for draw in draws[:kept]],
                "kept_bytes": _kept_bytes(draws[0], meta, whole=bool(structure or domain == "as_drawn")),
                "same": all(torch.equal(one, draws[0]) for one in draws[1:]) if _exact(meta) else None,
                "structure": structure,
                "domain": domain,
            }
        )
    return {"value": forms[0], "tensors": tensors}, [
        (row[number], tensors[number]["kept_bytes"]) for number in range(len(metas[0])) for row in rows[:kept]
    ]


def _check_domain(drawn: list[torch.Tensor], domain: str) -> None:
    for tensor in drawn:
        if tensor.numel() and not bool((tensor > 0).all() if domain == "positive" else (tensor >= 0).all()):
            raise ContractError(
                f"DOMAIN says {domain} for an input, but get_inputs() draws other values for it"
            )


def _kept_bytes(tensor: torch.Tensor, meta: dict[str, Any], *, whole: bool) -> int:
    """How many bytes of a draw the referee gets, from the start of its span.

    It gets all of a tensor that is small, exact, non-contiguous or structured.
    """
    span_bytes = span_elements(tensor) * tensor.element_size()
    is_part = span_bytes > 2 * _KEPT_BYTES and not _exact(meta) and not whole and span_bytes == tensor.nbytes
    return _KEPT_BYTES if is_part and tensor.is_cuda else span_bytes


def _exact(meta: dict[str, Any]) -> bool:
    """Whether a tensor holds integers or booleans. Only then does it matter that all draws are the same."""
    return not meta["dtype"].startswith(("float", "bfloat", "complex"))
