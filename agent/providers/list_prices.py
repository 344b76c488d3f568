"""List prices of some hosted models, from `list_prices.json`, which says when and where each was read."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from importlib.resources import files
from typing import Any


@dataclass(frozen=True)
class ListPrice:
    """What a model's tokens cost, without discounts for batches and caches.

    Attributes:
        usd_per_million_tokens: of prompts and of answers.
        read_on: date on which the source said so.
        source: where it was read.
    """

    usd_per_million_tokens: tuple[float, float]
    read_on: str
    source: str


def list_price(model: str) -> ListPrice | None:
    """The price of a model by its API name; None for one that is not listed."""
    found = _listed().get(model)
    if found is None:
        return None
    given, made = found["usd_per_million_tokens"]
    return ListPrice((given, made), found["read_on"], found["source"])


@functools.cache
def _listed() -> dict[str, Any]:
    text = files(__package__).joinpath("list_prices.json").read_text(encoding="utf-8")
    listed: dict[str, Any] = json.loads(text)
    return listed
