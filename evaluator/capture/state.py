"""Text of a task's `__init__`: weights redrawn with recorded shapes and dtypes, and small tables kept as they are."""

from __future__ import annotations

import base64
import textwrap
import zlib

import torch

from evaluator.capture.inputs import dtype_text, number, scaled
from evaluator.capture.signature import values_of

#: A table longer than this when compressed is redrawn within its range.
_TABLE_BYTES = 64 << 10
_KEPT_ELEMENTS = 4096

TABLE_HELPER = '''
def _table(text, shape, dtype):
    """A small table of constants, as it was in the captured module."""
    return torch.frombuffer(bytearray(zlib.decompress(base64.b85decode(text))), dtype=dtype).reshape(shape)
'''


def state_text(name: str, tensor: torch.Tensor, *, parameter: bool, notes: list[str]) -> str:
    """The statement that makes one parameter or buffer of the task's `Model`."""
    made = _weights(tensor) if parameter or _is_statistic(name) else _buffer(name, tensor, notes)
    if not parameter:
        return f'self.register_buffer("{name}", {made})'
    trained = tensor.is_floating_point() or tensor.is_complex()
    frozen = "" if trained and tensor.requires_grad else ", requires_grad=False"
    return f"self.{name} = nn.Parameter({made}{frozen})"


def _is_statistic(name: str) -> bool:
    return name.endswith(("running_mean", "running_var"))


def _weights(tensor: torch.Tensor) -> str:
    """Matches the recorded mean and spread; positive if those were."""
    shape, dtype = tuple(tensor.shape), str(tensor.dtype)
    if not (tensor.is_floating_point() or tensor.is_complex()):
        seen = values_of(tensor)
        if tensor.dtype == torch.bool:
            return f"torch.rand({shape}) >= {number(seen.zeros)}"
        return f"torch.randint({int(seen.low)}, {int(seen.high) + 1}, {shape}, dtype={dtype})"
    if not tensor.numel():
        return f"torch.empty({shape}, dtype={dtype})"
    seen = values_of(tensor)
    if seen.low == seen.high:
        return f"torch.full({shape}, {number(seen.low)}, dtype={dtype})"
    made = f"{shape}{dtype_text(tensor.dtype)}"
    if seen.low > 0:
        text = f"torch.rand({made})" + scaled(seen.high - seen.low, seen.low)
    else:
        factor, offset = seen.spread, seen.mean if abs(seen.mean) > 0.1 * seen.spread else 0.0
        text = f"torch.randn({made}) * {number(factor)}" + (f" + {number(offset)}" if offset else "")
    return text if tensor.dtype.itemsize > 1 else f"({text}).to({dtype})"


def _buffer(name: str, tensor: torch.Tensor, notes: list[str]) -> str:
    kept = tensor.detach().cpu().contiguous()
    shape, dtype = tuple(kept.shape), str(kept.dtype)
    if kept.numel() and kept.dtype.itemsize > 1 and bool((kept == kept.reshape(-1)[0]).all()):
        value = kept.reshape(-1)[0].item()
        return f"torch.full({shape}, {value if isinstance(value, int) else number(value)}, dtype={dtype})"
    if kept.ndim == 1 and torch.equal(kept, torch.arange(len(kept)).to(kept.dtype)):
        return f"torch.arange({len(kept)}, dtype={dtype})"
    floating = kept.is_floating_point() or kept.is_complex()
    # Floating ones may be weights under another name, unless they are as short as tables of frequencies.
    if not floating or kept.numel() <= _KEPT_ELEMENTS:
        raw = kept.reshape(-1).view(torch.uint8).numpy().tobytes() if kept.numel() else b""
        packed = zlib.compress(raw, 9)
        if kept.numel() and len(packed) <= _TABLE_BYTES:
            lines = textwrap.wrap(base64.b85encode(packed).decode(), 96)
            text = "(\n" + "\n".join(f"                {line!r}" for line in lines) + "\n            )"
            return f"_table({text}, {shape}, {dtype})"
    if not floating:
        notes.append(f"the table {name} is too long to be kept; it is drawn within its range")
    return _weights(kept)
