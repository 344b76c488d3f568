"""Is this the machine that it says it is? What it reaches at best must be near what others of its type have reached.

A name is what a driver, a hypervisor or a hostile worker says; the rate at which memory is copied is not so easily made up.
A slice of a card, a card that is held back, or another one by that name would put its figures among those of whole cards.
Types that this project has measured are in `measured_types.json`; for others the other workers' measurements stand in.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from evaluator.devices import is_accelerator

#: How far off a rate may be, by its kind. Memory's hardly varies between cards of a type (an H200 and an H100 are 1.4 apart);
#: products' goes with the power limit. What a CPU's neighbors leave of it varies by itself.
MEMORY_FACTOR, ARITHMETIC_FACTOR, CPU_FACTOR = 1.25, 1.6, 4.0
_RATES = {
    "dram_bytes_per_s": "copying memory",
    "dram_read_bytes_per_s": "reading memory",
    "float32_flops_per_s": "float32 products",
    "bfloat16_flops_per_s": "bfloat16 products",
    "float16_flops_per_s": "float16 products",
}


def doubt(
    device: str, type_name: str, rates: Mapping[str, Any], others: Sequence[Mapping[str, Any]]
) -> str | None:
    """Why a machine is not what it says, as a sentence; None where nothing speaks against it.

    Args:
        device: ``cpu`` or ``cuda``.
        type_name: what it says it is, as :func:`evaluator.fingerprint.type_of` names it.
        rates: its measured ceilings.
        others: those of other machines of that type; not needed where this project has measured the type.
    """
    known = _measured_types().get(type_name)
    for name, words in _RATES.items():
        seen = [known[name]] if known and name in known else [_rate(other.get(name)) for other in others]
        seen = [rate for rate in seen if rate]
        rate = _rate(rates.get(name))
        if not seen or rate is None:
            continue
        usual = statistics.median(seen)
        factor = MEMORY_FACTOR if name.endswith("_bytes_per_s") else ARITHMETIC_FACTOR
        factor = factor if is_accelerator(device) else CPU_FACTOR
        if max(rate / usual, usual / rate) > factor:
            whose = (
                "this project has measured" if known else f"{len(seen)} other worker(s) of it have measured"
            )
            return (
                f"it says that it is {type_name}, but {words} reaches {rate:.3g}/s here, {rate / usual:.2f} times what {whose} "
                f"for that type (at most {factor} times off is believed): is it a slice of a card, held back, or another one? "
                "`kernelwright device --fresh` measures again"
            )
    return None


@cache
def _measured_types() -> dict[str, dict[str, float]]:
    text = Path(__file__).with_name("measured_types.json").read_text(encoding="utf-8")
    return {name: one["rates"] for name, one in json.loads(text).items()}


def _rate(value: Any) -> float | None:
    """A rate that another worker's row may hold: any holder of the database's key may have written it."""
    usable = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if usable and value > 0 else None
