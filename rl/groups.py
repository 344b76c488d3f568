"""Checks that GRPO groups are whole: completions of one prompt are compared, so they must be together on one rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rl.errors import GroupError


def check_groups(*, per_device: int, steps_per_generation: int, group: int) -> None:
    """Check that every rank generates whole groups; TRL does not check, and would compare parts of different groups.

    Raises:
        GroupError: a group would be spread over ranks.
    """
    made = per_device * steps_per_generation
    if made % group:
        fitting = -(-made // group) * group
        raise GroupError(
            f"each rank generates {per_device} x {steps_per_generation} = {made} completions at a time, which is no multiple of "
            f"the group of {group}: a group would be spread over ranks; make it {fitting}"
        )


def check_group_order(prompts: Sequence[Any], tasks: Sequence[str], group: int) -> None:
    """Check that completions are ordered in whole groups of one prompt and one task each.

    Raises:
        GroupError: they are not.
    """
    if len(prompts) != len(tasks) or len(prompts) % group:
        raise GroupError(f"{len(prompts)} completions of {len(tasks)} tasks are not whole groups of {group}")
    for begin in range(0, len(prompts), group):
        block = slice(begin, begin + group)
        if any(one != prompts[begin] for one in prompts[block]) or len(set(tasks[block])) > 1:
            raise GroupError(
                f"completions {begin} to {begin + group - 1} are one group and have different prompts"
            )
