"""Checks a task before a job starts: ``POST /ui/check`` queues the check, ``/ui/checks/{check_id}`` shows the result.

The task runs in a worker's sandbox and never here. The result page repeats the filled-in form, so one more click starts the
checked task.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Response
from fastapi.responses import RedirectResponse

from evaluator.description import Description
from evaluator.shapes.inference.declaring import told
from kernelbench_tasks import catalog
from services.api.deps import Route, SessionDep, SettingsDep
from services.dashboard import formats, pages, words
from services.dashboard.pages import JobFormDep
from services.dashboard.rendering import page, render
from services.dashboard.words import Word
from services.db.models import FINAL_STATES
from services.jobs import read, submit

_SIZES_SHOWN = 8
SEVERITIES = {
    "error": Word("error", "bad", "The task is refused for this."),
    "warning": Word("warning", "warn", "The task is judged, and marked with this."),
}

router = APIRouter(route_class=Route, include_in_schema=False)
Text = Annotated[str, Query(max_length=400)]


@router.post("/ui/check")
def check_form(session: SessionDep, settings: SettingsDep, form: JobFormDep) -> Response:
    """The form's other button: 303 to the page of the look, or the form again with what is wrong."""
    made = pages.accepted(session, settings, form, submit.make_look)
    if isinstance(made, Response):
        return made
    carried = urlencode({name: form[name].strip() for name in ("name", "seconds") if form[name].strip()})
    return RedirectResponse(f"/ui/checks/{made}{'?' if carried else ''}{carried}", status_code=303)


@router.get("/ui/checks/{check_id}")
@page
def check_page(
    session: SessionDep, settings: SettingsDep, check_id: str, name: Text = "", seconds: Text = ""
) -> Response:
    """What was found, and the form to start the job."""
    row = read.look_row(session, check_id)
    from_catalog = catalog.find_by_sha256(row.task_sha256)
    form = {
        **pages.blank_form(),
        "kind": "source" if from_catalog is None else "task",
        "source": row.task_source if from_catalog is None else "",
        "task": row.task_name if from_catalog is None else from_catalog.name,
        "device": row.device,
        "name": name,
        "seconds": seconds,
    }
    return render(
        "check.html",
        look=row,
        task_name=name or form["task"],
        is_final=row.state in FINAL_STATES,
        report=_report(row.result) if row.result else None,
        severities=SEVERITIES,
        **pages.form_context(settings, form),
    )


def _report(result: Mapping[str, Any]) -> dict[str, Any]:
    """Describe the result of `Referee.describe` in words."""
    found = Description.from_json(result)
    sizes = found.shapes.get("visible") or []
    return {
        "ok": found.ok,
        "verdict": words.verdict(found.verdict or "accepted"),
        "reason": found.reason,
        "detail": found.detail,
        "findings": found.lint.findings if found.lint else (),
        "inferred": found.inferred is not None,
        "space": told(found.inferred) if found.inferred else [_dim(*one) for one in found.dims.items()],
        "sizes": [formats.dims(one) for one in sizes[:_SIZES_SHOWN]],
        "more_sizes": max(0, len(sizes) - _SIZES_SHOWN),
        "inputs": [_tensor(one) for one in found.inputs],
        "outputs": [_tensor(one) for one in found.outputs],
        "parameters": found.parameters,
        "direction": found.direction,
    }


def _dim(name: str, dim: Mapping[str, Any]) -> str:
    if "choices" in dim:
        return f"{name} is one of {', '.join(map(str, dim['choices']))}"
    step = dim.get("multiple_of") or 1
    return f"{name} is {dim.get('min')} to {dim.get('max')}" + (f", multiples of {step}" if step > 1 else "")


def _tensor(one: Mapping[str, Any]) -> str:
    if "shape" in one:
        return f"{one.get('dtype')} {' × '.join(map(str, one['shape'])) or 'scalar'}"
    return "a value that is no tensor"
