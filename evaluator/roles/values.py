"""Plain Python values across processes: a tagged JSON form of numbers, texts, None, dtypes and nested containers."""

from __future__ import annotations

from typing import Any


def encode_value(value: Any) -> Any:
    """JSON form of a plain value.

    Raises:
        evaluator.roles.runner.ContractError: the value is none of the supported types.
    """
    import torch

    from evaluator.roles.runner import ContractError

    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return {"int": str(int(value))}
    if isinstance(value, float):
        return {"float": float(value).hex()}
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    if isinstance(value, (list, tuple, torch.Size)):
        return {"list" if isinstance(value, list) else "tuple": [encode_value(item) for item in value]}
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {"dict": {key: encode_value(item) for key, item in value.items()}}
    raise ContractError(
        f"an argument of type {type(value).__name__} is not supported (tensor or plain value expected)"
    )


def decode_value(value: Any) -> Any:
    """Inverse of :func:`encode_value`."""
    if value is None or isinstance(value, (bool, str)):
        return value
    ((tag, content),) = value.items()
    if tag == "int":
        return int(content)
    if tag == "float":
        return float.fromhex(content)
    if tag == "dtype":
        import torch

        return getattr(torch, content)
    if tag == "list":
        return [decode_value(item) for item in content]
    if tag == "tuple":
        return tuple(decode_value(item) for item in content)
    if tag == "dict":
        return {key: decode_value(item) for key, item in content.items()}
    raise ValueError(f"unknown tag {tag}")


def is_encoded(value: Any, depth: int = 0) -> bool:
    """True when ``value`` has the form :func:`encode_value` makes; used on what an untrusted role sends."""
    if depth > 8:
        return False
    if value is None or isinstance(value, (bool, str)):
        return True
    if not isinstance(value, dict) or len(value) != 1:
        return False
    ((tag, content),) = value.items()
    if tag in ("list", "tuple"):
        return isinstance(content, list) and all(is_encoded(item, depth + 1) for item in content)
    if tag == "dict":
        return isinstance(content, dict) and all(is_encoded(item, depth + 1) for item in content.values())
    if tag == "int":
        return isinstance(content, str) and len(content) < 40 and content.lstrip("-").isdigit()
    if tag == "float":
        return isinstance(content, str) and len(content) < 40
    return tag == "dtype" and isinstance(content, str) and content.isidentifier()
