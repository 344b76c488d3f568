"""A referee that lacks memory for its own looks accuses nobody."""

from __future__ import annotations

from typing import Any

import pytest

from evaluator.errors import RoleExited, RoleFailure, RoleReported, RoleTimeout
from evaluator.referee.judging.core import RefereeCore
from evaluator.referee.session.control import twin
from evaluator.referee.session.outcome import Rejected
from evaluator.referee.sides.side import Side
from evaluator.roles.protocol import TOO_SMALL
from tests.evaluator.checked import checked
from tests.evaluator.test_fresh_processes import TASK

_FULL = RoleReported("out_of_memory", f"it asked for more: {TOO_SMALL} for the outputs of one block")


def look_again_fails(monkeypatch: pytest.MonkeyPatch, core: RefereeCore, failure: RoleFailure) -> None:
    """An honest candidate is checked, and the process cannot say what its earlier outputs hold."""

    def refused(*_: Any) -> Any:
        raise failure

    session = core.session(TASK)
    shape = session.open({})
    monkeypatch.setattr(Side, "outputs_later", refused)
    with checked(session, shape, twin(TASK), calls=4):
        pass


@pytest.mark.parametrize(
    "failure", [_FULL, RoleTimeout("timeout", "60 s passed"), RoleExited("runtime_error", "it was killed")]
)
def test_what_ails_the_look_at_earlier_outputs_is_called_by_its_name(
    core: RefereeCore, monkeypatch: pytest.MonkeyPatch, failure: RoleFailure
) -> None:
    with pytest.raises(type(failure)) as raised:
        look_again_fails(monkeypatch, core, failure)
    assert raised.value is failure


def test_outputs_that_cannot_be_found_any_more_are_overwritten(
    core: RefereeCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who gave their memory back has them no more, and a driver's error about it is no excuse."""
    with pytest.raises(Rejected) as rejected:
        look_again_fails(monkeypatch, core, RoleReported("runtime_error", "an illegal memory access"))
    assert [rejected.value.finding.rule] == ["output_overwritten"]
