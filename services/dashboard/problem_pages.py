"""`/problems` and `/problems/{kind}`: what the `type` of a problem document leads to. They need no key: who lacks one meets the first."""

from __future__ import annotations

from fastapi import APIRouter, Response

from services.api.problem_kinds import KINDS, OF_NAME
from services.dashboard.rendering import render

router = APIRouter(include_in_schema=False)


@router.get("/problems")
def problems_page() -> Response:
    """Every kind of problem."""
    return render("problems.html", kinds=KINDS, one=False)


@router.get("/problems/{kind}")
def problem_page(kind: str) -> Response:
    """One kind of problem."""
    found = OF_NAME.get(kind)
    if found is None:
        return render(
            "error.html", status=404, title="Not found", detail="No problem of that name is answered here."
        )
    return render("problems.html", kinds=(found,), one=True)
