"""Whole groups: completions of one prompt are compared with each other, so they must come together, on every rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rl.errors import GroupError


def check_groups(*, per_device: int, steps_per_generation: int, group: int) -> None:
    """Whether every rank generates whole groups; TRL does not look, and compares halves of different prompts.

    Raises:
        GroupError: it does not.
    """
    made = per_device * steps_per_generation
    if made % group:
        fitting = -(-made // group) * group
        raise GroupError(
            f"each rank generates {per_device} x {steps_per_generation} = {made} completions at a time, which is no multiple of "
            f"the group of {group}: a group would be spread over ranks; make it {fitting}"
        )


def check_group_order(prompts: Sequence[Any], tasks: Sequence[str], group: int) -> None:
    """Whether completions stand in whole groups of one prompt and one task each.

    Raises:
        GroupError: they do not.
    """
    if len(prompts) != len(tasks) or len(prompts) % group:
        raise GroupError(f"{len(prompts)} completions of {len(tasks)} tasks are not whole groups of {group}")
    for begin in range(0, len(prompts), group):
        block = slice(begin, begin + group)
        if any(one != prompts[begin] for one in prompts[block]) or len(set(tasks[block])) > 1:
            raise GroupError(
                f"completions {begin} to {begin + group - 1} are one group and have different prompts"
            )
