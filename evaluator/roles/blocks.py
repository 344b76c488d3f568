"""A block of calls, as short as it can be between two calls: refresh the next input from the last output, call, keep."""

from __future__ import annotations

import ctypes
import gc
from typing import Any

import torch

from evaluator.roles.chain import Chain, Refresh
from evaluator.roles.runner import ContractError

_M_PERTURB = -6


class Slot:
    """The arguments of one call at fixed addresses, and what the chain may replace in them.

    Args:
        arguments: what ``forward`` gets.
        views: the arena's tensors behind the tensor arguments, in order.
        pools: (position among the tensor arguments, pool of legal values, stride) per refreshed tensor.
        device_pools: the same pools on the device.
        device: where the module runs.
    """

    def __init__(
        self,
        arguments: list[Any],
        views: list[torch.Tensor],
        pools: list[tuple[int, torch.Tensor, int]],
        device_pools: list[torch.Tensor],
        device: torch.device,
    ) -> None:
        self.arguments = arguments
        self.views = views
        self.tensors = [value for value in arguments if isinstance(value, torch.Tensor)]
        self.count = len(pools)
        self.entries = (Refresh * max(self.count, 1))()
        self.address = ctypes.addressof(self.entries)
        self.pools = pools
        self.device_pools = device_pools
        for entry, (position, pool, stride) in zip(self.entries, pools, strict=False):
            view = views[position]
            entry.data, entry.pool = view.data_ptr(), pool.data_ptr()
            entry.item_bytes, entry.count = view.element_size(), view.numel()
            entry.pool_count, entry.stride = pool.numel(), stride
        if device.type == "cuda":
            from evaluator.roles.device_chain import Table

            self.table = Table(
                [
                    (self.tensors[position], on_device, stride)
                    for (position, _, stride), on_device in zip(pools, device_pools, strict=True)
                ]
            )

    def upload(self) -> None:
        """Copies the arena's contents to the device."""
        for target, view in zip(self.tensors, self.views, strict=True):
            target.copy_(view, non_blocking=True)


def flatten(result: Any) -> list[torch.Tensor]:
    """The output tensors of a call, in order; plain tensors in plain containers only."""
    if type(result) is torch.Tensor or type(result) is torch.nn.Parameter:
        return [result]
    if isinstance(result, (tuple, list)) and result:
        return [tensor for item in result for tensor in flatten(item)]
    if isinstance(result, dict) and result:
        return [tensor for item in result.values() for tensor in flatten(item)]
    raise ContractError(f"forward() returned {type(result).__name__}, not a tensor or a sequence of tensors")


def run(
    forward: Any, slots: list[Slot], chain: Chain, state: int, chained: bool, device: torch.device
) -> tuple[list[list[torch.Tensor]], list[int]]:
    """Calls ``forward`` once per slot. Returns the outputs of every call, all alive, and the chain's states.

    No garbage is collected meanwhile: the process that holds the compiler has many more objects to walk.
    """
    gc.disable()
    try:
        if device.type == "cuda":
            return _run_on_gpu(forward, slots, state, chained)
        return _run_on_cpu(forward, slots, chain, state, chained)
    finally:
        gc.enable()


def _run_on_cpu(
    forward: Any, slots: list[Slot], chain: Chain, state: int, chained: bool
) -> tuple[list[list[torch.Tensor]], list[int]]:
    outputs: list[list[torch.Tensor]] = []
    states: list[int] = []
    digest, refresh = chain.digest, chain.refresh
    with torch.no_grad():
        for slot in slots:
            if chained:
                refresh(slot.address, slot.count, state)
            result = forward(*slot.arguments)
            row = [result] if type(result) is torch.Tensor else flatten(result)
            outputs.append(row)
            if chained:
                for tensor in row:
                    state = digest(tensor.data_ptr(), _span_bytes(tensor), state)
            states.append(state)
    return outputs, states


def _span_bytes(tensor: torch.Tensor) -> int:
    if tensor.is_contiguous():
        return tensor.nbytes
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (reach + 1) * tensor.element_size()


def _run_on_gpu(
    forward: Any, slots: list[Slot], state: int, chained: bool
) -> tuple[list[list[torch.Tensor]], list[int]]:
    """The same on the device: digest and refresh are device work, so the host never waits inside the block."""
    from evaluator.roles.device_chain import States

    outputs: list[list[torch.Tensor]] = []
    chain = States(len(slots), state) if chained else None
    with torch.no_grad():
        for call, slot in enumerate(slots):
            if chain is not None:
                chain.refresh(slot.table, call)
            result = forward(*slot.arguments)
            row = [result] if type(result) is torch.Tensor else flatten(result)
            outputs.append(row)
            if chain is not None:
                for index, tensor in enumerate(row):
                    chain.digest(tensor, _span_bytes(tensor), call, first=index == 0)
        states = chain.read() if chain is not None else [0] * len(slots)
        torch.cuda.synchronize()
    return outputs, states


def poison_allocations(byte: int) -> None:
    """Makes fresh heap memory start as garbage (0 switches it off), so that unwritten outputs cannot look right."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(_M_PERTURB, byte)
