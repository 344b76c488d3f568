"""A block of calls, as short as it can be between two calls: refresh the next input from the last output, call, keep."""

from __future__ import annotations

import ctypes
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
        device: where the module runs.
    """

    def __init__(
        self,
        arguments: list[Any],
        views: list[torch.Tensor],
        pools: list[tuple[int, torch.Tensor, int]],
        device: torch.device,
    ) -> None:
        self.arguments = arguments
        self.views = views
        self.tensors = [value for value in arguments if isinstance(value, torch.Tensor)]
        self.count = len(pools)
        self.entries = (Refresh * max(self.count, 1))()
        self.address = ctypes.addressof(self.entries)
        self.pools = pools
        self.on_device: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []
        for entry, (position, pool, stride) in zip(self.entries, pools, strict=False):
            view = views[position]
            entry.data, entry.pool = view.data_ptr(), pool.data_ptr()
            entry.item_bytes, entry.count = view.element_size(), view.numel()
            entry.pool_count, entry.stride = pool.numel(), stride
        if device.type == "cuda":
            for position, pool, stride in pools:
                target = self.tensors[position].view(-1)
                places = torch.arange(0, target.numel() - stride + 1, stride, device=device)
                self.on_device.append((target, places, pool.to(device)))

    def upload(self) -> None:
        """Copies the arena's contents to the device, and the pools with them."""
        for target, view in zip(self.tensors, self.views, strict=True):
            target.copy_(view, non_blocking=True)
        for (_, _, pool), (_, source, _) in zip(self.on_device, self.pools, strict=True):
            pool.copy_(source, non_blocking=True)


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
    """Calls ``forward`` once per slot. Returns the outputs of every call, all alive, and the chain's states."""
    if device.type == "cuda":
        return _run_on_gpu(forward, slots, state, chained)
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
    outputs: list[list[torch.Tensor]] = []
    words = []
    with torch.no_grad():
        word = torch.tensor(state & 0x7FFFFFFF, device="cuda", dtype=torch.int64)
        for slot in slots:
            if chained:
                for target, places, pool in slot.on_device:
                    order = (torch.arange(places.numel(), device="cuda") + word) % pool.numel()
                    target.index_copy_(0, places, pool.index_select(0, order))
            result = forward(*slot.arguments)
            row = [result] if type(result) is torch.Tensor else flatten(result)
            outputs.append(row)
            if chained:
                for tensor in row:
                    word = (word * 31 + _bit_sum(tensor)) & 0x7FFFFFFF
            words.append(word)
        claimed = torch.stack(words).tolist()
        torch.cuda.synchronize()
    return outputs, [int(value) for value in claimed]


def _bit_sum(tensor: torch.Tensor) -> torch.Tensor:
    """Sum of the raw bits: every element must have been computed, no algebra gives it more cheaply."""
    width = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[min(tensor.element_size(), 8)]
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
        width = {4: torch.int32, 8: torch.int64}[tensor.element_size()]
    return tensor.contiguous().view(width).sum(dtype=torch.int64)


def poison_allocations(byte: int) -> None:
    """Makes fresh heap memory start as garbage (0 switches it off), so that unwritten outputs cannot look right."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(_M_PERTURB, byte)
