"""Random draws that a job repeats exactly: the seed is stored with the step that used it, before it is used."""

from __future__ import annotations

import random
import secrets
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent.store import JobStore


def recorded(
    store: JobStore, step: str, known: Sequence[str], seed: int | None = None
) -> tuple[random.Random, list[str]]:
    """The generator of a step, and what was known when it was first taken.

    A job that is resumed or replayed finds more candidates in its store than it had at that moment; with what was known
    then and the same seed it decides, and asks, the same again.

    Args:
        store: keeps both under the name `step`.
        step: for example "search/3".
        known: sha256 of the candidates to decide among, in order of arrival.
        seed: makes a first draw repeatable across jobs (the step's name is mixed in); None draws from the system.

    Returns:
        The generator, and the stored list.
    """
    stored = store.step(step)
    if not isinstance(stored, dict):
        # A string seed goes through SHA-512 in `random`, so that it means the same in every process.
        text = f"{seed}/{step}" if seed is not None else secrets.token_hex(16)
        store.finish_step(step, {"seed": text, "known": list(known)})
        stored = store.step(step)
    if not isinstance(stored, dict):
        raise TypeError(f"the store did not keep the step {step!r}")
    return random.Random(str(stored["seed"])), [str(one) for one in stored["known"]]  # noqa: S311
