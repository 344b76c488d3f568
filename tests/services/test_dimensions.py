"""Names of sizes that a request may use, as far as a task's text tells them."""

from __future__ import annotations

import pytest

from kernelbench_tasks import catalog
from services.jobs.dimensions import declared, name_errors

_DIMS = 'DIMS = {"rows": Dim(1, 64), "cols": Dim(1, 64)}'


@pytest.mark.parametrize(
    ("source", "names"),
    [
        (_DIMS, ("rows", "cols")),
        (_DIMS.replace("DIMS =", "DIMS: dict[str, Dim] ="), ("rows", "cols")),
        ("x = 1", None),
        (f"{_DIMS}\nDIMS['more'] = Dim(1, 2)", None),
        (f"{_DIMS}\nif True:\n    DIMS = {{}}", None),
        ("DIMS = {**OTHERS, 'rows': Dim(1, 64)}", None),
        ("DIMS = made()", None),
        ("def f():\n    DIMS = {'rows': 1}", None),
        ("DIMS = {", None),
    ],
)
def test_names_are_told_only_where_the_text_alone_tells_them(
    source: str, names: tuple[str, ...] | None
) -> None:
    assert declared(source) == names


def test_the_error_says_which_names_there_are() -> None:
    (error,) = name_errors(_DIMS, {"visible": [{"rows": 4}, {"row": 4}]})
    assert (error.field, error.message) == (
        "shapes.visible.1",
        "the task has no dimension 'row'; it has: rows, cols",
    )


def test_every_task_of_the_catalogue_tells_its_names() -> None:
    untold = [one.name for one in catalog.list_tasks() if not declared(catalog.load(one.name).source)]
    assert not untold
