"""Makes fresh contents for every call at low cost: rolled, mixed windows over a few secret draws of
``get_inputs``.

Drawing millions of random numbers per call would take longer than the calls. A tensor is rolled by a secret offset
that is not a multiple of its rows, so that rows, tiles and sums differ from call to call, while the distribution
and the legal range stay the task's own. Tensors whose order has a meaning (sorted indices, masks) are never
rolled, and those with a structure keep it (:mod:`evaluator.input_structure`).

A tensor is carried as its span of memory, so a channels_last one is rolled in memory order and an expanded one has
as many values as it has memory.
"""

from __future__ import annotations

import ctypes
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from evaluator.input_structure import FEW_VALUES, FREE, PLACED, TURNED, Structure
from evaluator.oracle.numbers import is_inexact, to_float64
from evaluator.roles.arena import carrier
from evaluator.roles.chain import Chain, Windows, mask_words
from evaluator.roles.frames import TensorMeta

Array = np.ndarray[Any, Any]
_POOL_ELEMENTS = 4096
#: One element in this many changes in a slightly changed content.
_PART_CHANGED = 64


class Mixed(NamedTuple):
    """Contents as indices of draws and offsets in elements, one of each per content, and what is mixed into them.

    Attributes:
        others: draws that supply the chunks whose bit is set; None if nothing is mixed.
        other_offsets: their offsets.
        masks: words of one bit per chunk, a row per content; on the host, or int64 on a GPU.
    """

    draws: Array
    offsets: Array
    others: Array | None = None
    other_offsets: Array | None = None
    masks: Any = None

    def only(self, index: int) -> Mixed:
        """The same for a single content."""
        return Mixed(*(None if part is None else part[index : index + 1] for part in self))  # type: ignore[arg-type]


@dataclass
class TensorInput:
    """One tensor argument: its description and the referee's private draws of it.

    Attributes:
        meta: its form.
        draws: flat, in the carrier dtype, on the host; or flat bytes on a GPU, for large tensors a part that is
            reused.
        same: whether ``get_inputs`` gives the same values each time; None means to compare the draws.
        structure: kept by every content.
        rollable: whether single elements may be replaced by others of its values.
        signed: whether there are negative and positive values.
    """

    meta: TensorMeta
    draws: list[Any]
    same: bool | None = None
    structure: Structure = field(default_factory=Structure)
    rollable: bool = False
    signed: bool = False
    #: Whether the chain replaces every element; see :meth:`ShapeInputs.renew_small`.
    renewed: bool = False
    pool: Array = field(default_factory=lambda: np.empty(0))

    def __post_init__(self) -> None:
        if not self.meta.contiguous:
            self.draws = _without_gaps(self.draws, self.meta)
        first = self.draws[0]
        if not self.on_device:
            self._addresses = np.array([draw.ctypes.data for draw in self.draws], dtype=np.uint64)
        if self.size < 2:
            return
        sample = self._taken(first, slice(0, 1 << 16))
        if is_inexact(self.meta.dtype):
            if self.keeps_zeros:
                sample = self._nonzero_sample()
            values = to_float64(sample, self.meta.dtype)
            self.rollable = self.structure.way in (FREE, PLACED) and bool(
                values.size and np.isfinite(values).all() and (values != values[0]).any()
            )
            self.signed = self.rollable and bool((values.real < 0).any() and (values.real > 0).any())
        elif self._is_same():
            # A table, positions, a causal mask: values that are the same in every draw are part of the task.
            return
        elif self.meta.dtype == "bool":
            self.rollable = _looks_random(sample)
        else:
            # Unsigned numbers wrap around, so compare instead of subtracting.
            self.rollable = bool((sample[1:] < sample[:-1]).any() and (sample[1:] > sample[:-1]).any())
        if self.rollable:
            places = np.random.default_rng(secrets.randbits(128)).integers(
                0, self.source_size, _POOL_ELEMENTS
            )
            self.pool = self._taken(self.draws[secrets.randbelow(len(self.draws))], places)
            if self.keeps_zeros:
                self.pool = np.resize(self._nonzero_sample(), _POOL_ELEMENTS)

    @property
    def keeps_zeros(self) -> bool:
        """Whether zeros keep their places."""
        return self.structure.way == PLACED

    @property
    def turned(self) -> bool:
        """Whether contents are draws with permuted lines."""
        whole = self.meta.contiguous and self.source_size == self.size
        return self.structure.way == TURNED and whole and bool(self.structure.turns(len(self.meta.shape)))

    @property
    def transformable(self) -> bool:
        """Whether it may have values other than the task's own.

        Not if it has few distinct values, or structure beyond zeros.
        """
        return is_inexact(self.meta.dtype) and self.rollable and FEW_VALUES not in self.structure.found

    @property
    def may_be_negative(self) -> bool:
        """Whether negative values are tried although no draw has any."""
        return self.transformable and not self.signed and not self.structure.domain

    def _nonzero_sample(self) -> Array:
        """Some nonzero values, from random places; empty if they are too rare."""
        places = np.random.default_rng(secrets.randbits(128)).integers(
            0, self.source_size, 16 * _POOL_ELEMENTS
        )
        sample = self._taken(self.draws[0], places)
        nonzero = sample[to_float64(sample, self.meta.dtype) != 0.0]
        return np.asarray(nonzero[:_POOL_ELEMENTS])

    @property
    def on_device(self) -> bool:
        """Whether the draws are on a GPU."""
        return not isinstance(self.draws[0], np.ndarray)

    def on_host(self) -> TensorInput:
        """The same with a draw in the host's memory."""
        if not self.on_device:
            return self
        draw = self.draws[0].cpu().numpy().view(carrier(self.meta.dtype))
        return TensorInput(self.meta, [np.resize(draw, self.size)], self.same, self.structure)

    @property
    def size(self) -> int:
        """Elements of its span of memory."""
        return self.meta.span_bytes // self.meta.item_bytes

    @property
    def source_size(self) -> int:
        """Elements of each draw."""
        return len(self.draws[0]) // (self.meta.item_bytes if self.on_device else 1)

    def _taken(self, draw: Any, places: Any) -> Array:
        """Some elements of a draw, on the host, in the carrier dtype."""
        if not self.on_device:
            taken: Array = draw[places]
            return taken
        import torch

        rows = draw.view(-1, self.meta.item_bytes)
        if isinstance(places, np.ndarray):
            places = torch.from_numpy(places).to(draw.device)
        return np.asarray(rows[places].cpu().numpy().reshape(-1).view(carrier(self.meta.dtype)))

    def _is_same(self) -> bool:
        if self.same is not None:
            return self.same
        first = self.draws[0]
        if not self.on_device:
            return all(np.array_equal(draw, first) for draw in self.draws[1:])
        return all(bool((draw == first).all()) for draw in self.draws[1:])

    @property
    def refresh_stride(self) -> int:
        """The distance between elements that the chain replaces: 1 if :attr:`renewed`, otherwise at most about
        2048 places per call.
        """
        return 1 if self.renewed else max(61, self.size // 2048) | 1

    def draw(
        self, count: int, generator: np.random.Generator, common: Array | None = None
    ) -> tuple[Array, Array]:
        """Contents never used before, as indices of draws and offsets in elements (or seeds, for turned ones), one
        of each per content.

        Args:
            count: how many.
            generator: seeded from the operating system's randomness, and known only to the referee.
            common: random numbers for all inputs of a call; inputs that stay as drawn come from one call of
                ``get_inputs``.
        """
        draws = generator.integers(0, len(self.draws), count)
        if self.turned:
            return draws, generator.integers(0, 1 << 62, count)
        if not self.rollable or self.keeps_zeros:
            if common is not None and not self.rollable:
                draws = common % len(self.draws)
            return draws, np.zeros(count, dtype=np.int64)
        offsets = generator.integers(0, self.source_size, count)
        row = self.meta.shape[-1] if len(self.meta.shape) > 1 else 0
        if row > 1:
            offsets += offsets % row == 0
        return draws, offsets

    def draw_mixed(
        self,
        count: int,
        generator: np.random.Generator,
        draw_bits: Callable[[int, int], Any] | None = None,
        common: Array | None = None,
    ) -> Mixed:
        """Contents that are each mixed from two windows, chunk by chunk at random.

        With a single window, a few elements identify it, and code that has seen it before would know all the
        others.

        Args:
            count: how many.
            generator: as in :meth:`draw`.
            draw_bits: makes rows of words of random bits where they are used; uses the generator if None.
            common: as in :meth:`draw`.
        """
        one = self.draw(count, generator, common)
        if not self.rollable:
            return Mixed(*one)
        words = mask_words(self.meta.span_bytes)
        if draw_bits is not None:
            masks = draw_bits(count, words)
        else:
            masks = np.frombuffer(generator.bytes(8 * words * count), dtype=np.uint64).reshape(count, words)
        return Mixed(*one, *self.draw(count, generator), masks)

    def write_all(self, chain: Chain, address: int, stride_bytes: int, drawn: Mixed) -> None:
        """Writes drawn contents to this process's memory, the first at ``address``, ``stride_bytes`` apart."""
        if self.turned:
            for index, (draw, seed) in enumerate(zip(drawn.draws, drawn.offsets, strict=True)):
                content = self.rebuild(int(draw), int(seed))
                ctypes.memmove(address + index * stride_bytes, content.ctypes.data, content.nbytes)
            return
        others = None
        if drawn.others is not None and drawn.other_offsets is not None:
            others = self._windows(drawn.others, drawn.other_offsets)
        windows = self._windows(drawn.draws, drawn.offsets)
        chain.fill(address, stride_bytes, windows, others, drawn.masks, self.draws[0].nbytes)

    def _windows(self, draws: Array, offsets: Array) -> Windows:
        rolls_bytes = (offsets * self.draws[0].itemsize).astype(np.uint64)
        return Windows(self._addresses[draws], rolls_bytes)

    def rebuild_mixed(self, chain: Chain, drawn: Mixed, index: int) -> Array:
        """One content of :meth:`draw_mixed`, in private memory."""
        content: Array = np.empty_like(self.draws[0])
        self.write_all(chain, content.ctypes.data, content.nbytes, drawn.only(index))
        return content

    def rebuild(self, draw: int, offset: int) -> Array:
        """One drawn content, in private memory."""
        if self.turned:
            return self._turned(self.draws[draw], offset)
        return np.roll(self.draws[draw], -offset)

    def slightly_changed(self, content: Any) -> Any:
        """A copy of a content (a span: host values, or bytes on a GPU) with one in 64 elements replaced by others
        of its values.
        """
        if not self.rollable:
            return content
        if not isinstance(content, np.ndarray) and not self.keeps_zeros:
            return self._slightly_changed_on_device(content)
        generator = np.random.default_rng(secrets.randbits(128))
        on_device = not isinstance(content, np.ndarray)
        changed = (content.cpu().numpy().view(carrier(self.meta.dtype)) if on_device else content).copy()
        able = np.flatnonzero(to_float64(changed, self.meta.dtype)) if self.keeps_zeros else None
        count = changed.size if able is None else able.size
        # Anywhere: were there one in each 64, a key of so many neighbors would always see a change.
        places = generator.integers(0, max(count, 1), -(-count // _PART_CHANGED))
        changed[places if able is None else able[places]] = generator.choice(self.pool, places.size)
        if not on_device:
            return changed
        import torch

        return torch.from_numpy(changed.view(np.uint8)).to(content.device)

    def _slightly_changed_on_device(self, content: Any) -> Any:
        """The same without a way over the host, where it took up to two fifths of an evaluation."""
        import torch

        device = content.device
        generator = torch.Generator(device=device).manual_seed(secrets.randbits(63))
        changed = content.clone().view(-1, self.meta.item_bytes)
        pool = torch.from_numpy(self.pool.view(np.uint8)).to(device).view(-1, self.meta.item_bytes)
        count = -(-len(changed) // _PART_CHANGED)
        places, values = (
            torch.randint(length, (count,), generator=generator, device=device)
            for length in (len(changed), len(pool))
        )
        changed[places] = pool[values]
        return changed.view(-1)

    def turned_on_device(self, draw: Any, seed: int) -> Any:
        """Flat bytes on a GPU of a draw there with permuted lines."""
        import torch

        generator = torch.Generator(device=draw.device).manual_seed(seed)
        rows = draw.view(*self.meta.shape, self.meta.item_bytes)
        for group in self.structure.turns(len(self.meta.shape)):
            order = torch.randperm(self.meta.shape[group[0]], generator=generator, device=draw.device)
            for dimension in group:
                rows = rows.index_select(dimension, order)
        return rows.reshape(-1)

    def _turned(self, draw: Array, seed: int) -> Array:
        generator = np.random.default_rng(seed)
        values = draw.reshape(self.meta.shape)
        for group in self.structure.turns(len(self.meta.shape)):
            order = generator.permutation(self.meta.shape[group[0]])
            for dimension in group:
                values = values.take(order, axis=dimension)
        return np.ascontiguousarray(values).reshape(-1)


def _without_gaps(draws: list[Any], meta: TensorMeta) -> list[Any]:
    """Fills the gaps in spans of strided tensors with legal values, because rolling moves them into elements."""
    if meta.span_bytes == meta.elements * meta.item_bytes:
        return draws  # a permuted tensor has none
    if not isinstance(draws[0], np.ndarray):
        return [_without_gaps_on_device(draw, meta) for draw in draws]
    used = np.zeros(draws[0].size, dtype=bool)
    logical(used, meta)[...] = True
    gaps = np.flatnonzero(~used)
    if gaps.size == 0 or not used.any():
        return draws
    generator = np.random.default_rng(secrets.randbits(128))
    filled = []
    for draw in draws:
        draw = draw.copy()
        draw[gaps] = generator.choice(draw[used], gaps.size)
        filled.append(draw)
    return filled


def _without_gaps_on_device(draw: Any, meta: TensorMeta) -> Any:
    import torch

    rows = draw.view(-1, meta.item_bytes)
    used = torch.zeros(len(rows), dtype=torch.bool, device=draw.device)
    used.as_strided(meta.shape, meta.strides).fill_(True)
    gaps, legal = (~used).nonzero().flatten(), used.nonzero().flatten()
    if gaps.numel() and legal.numel():
        rows[gaps] = rows[legal[torch.randint(legal.numel(), gaps.shape, device=draw.device)]]
    return draw


def logical(span: Array, meta: TensorMeta) -> Array:
    """The elements of a tensor in logical order, as a view that writes into its span of memory."""
    if meta.elements == 0:
        return np.empty(meta.shape, span.dtype)
    return np.lib.stride_tricks.as_strided(
        span, meta.shape, tuple(stride * span.itemsize for stride in meta.strides)
    )


def _looks_random(flags: Array) -> bool:
    """Whether booleans change from place to place as often as independent ones would.

    In a mask they come in runs.
    """
    share = float(flags.mean())
    changes = float((flags[1:] != flags[:-1]).mean())
    return changes > share * (1.0 - share) > 0.0
