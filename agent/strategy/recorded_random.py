"""Reproducible random draws: the seed is stored with its step before it is used."""

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
    """The generator of a step, and the candidates known when the step first ran.

    A resumed or replayed job finds more candidates in its store than it had at that moment; with the stored list and seed it
    repeats the same decisions and requests.

    Args:
        store: stores both under the name `step`.
        step: for example "search/3".
        known: sha256 of the candidates to decide among, in order of arrival.
        seed: makes draws repeatable across jobs (combined with the step's name); None takes a seed from the system.

    Returns:
        The generator, and the stored list.
    """
    stored = store.step(step)
    if not isinstance(stored, dict):
        # `random` hashes a string seed with SHA-512, so it gives the same sequence in every process.
        text = f"{seed}/{step}" if seed is not None else secrets.token_hex(16)
        store.finish_step(step, {"seed": text, "known": list(known)})
        stored = store.step(step)
    if not isinstance(stored, dict):
        raise TypeError(f"the store did not keep the step {step!r}")
    return random.Random(str(stored["seed"])), [str(one) for one in stored["known"]]  # noqa: S311
