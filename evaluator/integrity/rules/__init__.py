"""The rules of the static analysis, one file per family; this list is the registry."""

from __future__ import annotations

from evaluator.integrity.rules import (
    caching,
    concurrency,
    fallback,
    harness,
    obfuscation,
    precision,
    structure,
)
from evaluator.integrity.rules.base import Hit, Rule

ALL: tuple[Rule, ...] = (
    *fallback.RULES,
    *caching.RULES,
    *concurrency.RULES,
    *precision.RULES,
    *harness.RULES,
    *obfuscation.RULES,
    *structure.RULES,
)

__all__ = ["ALL", "Hit", "Rule"]
