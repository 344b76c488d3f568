"""Encodes plain Python values for other processes: a tagged JSON form of numbers, strings, None, dtypes and nested
containers.

Tensors are sent separately. Inside a container, the form holds a tensor's number.
"""

from __future__ import annotations

from typing import Any

_MAX_DEPTH = 8


def encode_value(value: Any, tensors: list[Any] | None = None) -> Any:
    """JSON form of a plain value.

    Args:
        value: what is encoded.
        tensors: takes the tensors that are found, in order; without it they are refused.

    Raises:
        evaluator.roles.protocol.ContractError: the value is none of the supported types.
    """
    import torch

    from evaluator.roles.protocol import ContractError

    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, torch.Tensor) and tensors is not None:
        tensors.append(value)
        return {"tensor": len(tensors) - 1}
    if isinstance(value, int):
        return {"int": str(int(value))}
    if isinstance(value, float):
        return {"float": float(value).hex()}
    if isinstance(value, complex):
        return {"complex": [value.real.hex(), value.imag.hex()]}
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    if isinstance(value, (list, tuple, torch.Size)):
        tag = "list" if isinstance(value, list) else "tuple"
        return {tag: [encode_value(item, tensors) for item in value]}
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {"dict": {key: encode_value(item, tensors) for key, item in value.items()}}
    raise ContractError(
        f"an argument of type {type(value).__name__} is not supported (tensor or plain value expected)"
    )


def decode_value(value: Any, tensors: list[Any] | None = None) -> Any:
    """Inverse of :func:`encode_value`."""
    if value is None or isinstance(value, (bool, str)):
        return value
    ((tag, content),) = value.items()
    if tag == "tensor" and tensors is not None:
        return tensors[content]
    if tag == "int":
        return int(content)
    if tag == "float":
        return float.fromhex(content)
    if tag == "complex":
        return complex(*(float.fromhex(part) for part in content))
    if tag == "dtype":
        import torch

        return getattr(torch, content)
    if tag == "list":
        return [decode_value(item, tensors) for item in content]
    if tag == "tuple":
        return tuple(decode_value(item, tensors) for item in content)
    if tag == "dict":
        return {key: decode_value(item, tensors) for key, item in content.items()}
    raise ValueError(f"unknown tag {tag}")


def is_encoded(value: Any, tensors: int = 0, depth: int = 0) -> bool:
    """Whether ``value`` has the form that :func:`encode_value` makes of a value with ``tensors`` tensors inside.

    Used on data from an untrusted role.
    """
    if depth > _MAX_DEPTH:
        return False
    if value is None or isinstance(value, (bool, str)):
        return True
    if not isinstance(value, dict) or len(value) != 1:
        return False
    ((tag, content),) = value.items()
    if tag in ("list", "tuple"):
        return isinstance(content, list) and all(is_encoded(item, tensors, depth + 1) for item in content)
    if tag == "dict":
        return isinstance(content, dict) and all(
            is_encoded(item, tensors, depth + 1) for item in content.values()
        )
    if tag == "tensor":
        return isinstance(content, int) and not isinstance(content, bool) and 0 <= content < tensors
    if tag == "int":
        return isinstance(content, str) and len(content) < 40 and content.lstrip("-").isdigit()
    if tag == "complex":
        return (
            isinstance(content, list)
            and len(content) == 2
            and all(isinstance(part, str) and len(part) < 40 for part in content)
        )
    if tag == "float":
        return isinstance(content, str) and len(content) < 40
    return tag == "dtype" and isinstance(content, str) and content.isidentifier()
