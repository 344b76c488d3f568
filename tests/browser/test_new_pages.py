"""The pages of problems, workers, comparisons and checks in a real browser: at every size, in both themes, without script."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import delete

from services.db.models import Evaluation, Worker
from services.db.types import epoch_seconds
from services.jobs.endings import end_evaluation
from tests.browser import stored
from tests.browser.conftest import Visit
from tests.browser.shelf import Shelf
from tests.browser.test_in_browser import told_story
from tests.rl.run_folders import COMPARISON, make_run
from tests.services.service import TINY_TASK
from tests.services.test_workers_page import HOST, PROBLEM, check_of

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.browser
FOUND = {
    "ok": True,
    "verdict": None,
    "lint": {
        "findings": [
            {
                "rule": "one_size",
                "severity": "warning",
                "sentence": "rows has one size",
                "mending": "declare DIMS",
            }
        ]
    },
    "dims": {"rows": {"min": 1, "max": 64, "default": 8}},
    "shapes": {"visible": [{"rows": 8, "dtype": "float32"}]},
    "inputs": [{"dtype": "float32", "shape": [8, 32]}],
    "outputs": [{"dtype": "float32", "shape": [8, 32]}],
    "parameters": 32,
    "direction": "forward",
}


@pytest.fixture(scope="module")
def pages(shelf: Shelf) -> Iterator[dict[str, str]]:
    with workers(shelf):
        yield addresses(shelf)


@contextmanager
def workers(shelf: Shelf) -> Iterator[None]:
    """One that could take work and one that has fallen silent; other tests mean a service without any."""
    with shelf.database.write() as session:
        session.add(
            Worker(id=HOST, device="cuda", tier="namespaces", self_check=check_of(), seen_at=epoch_seconds())
        )
        session.add(
            Worker(
                id="b/2", device="cuda", problem=PROBLEM, self_check=check_of(), seen_at=epoch_seconds() - 99
            )
        )
    try:
        yield
    finally:
        with shelf.database.write() as session:
            session.execute(delete(Worker))


@cache
def addresses(shelf: Shelf) -> dict[str, str]:
    """Addresses of the pages by name, with something on each."""
    job_id, cheat_id = told_story(shelf)
    ids = [f"{job_id}.{stored.candidate(label, origin)['sha256'][:12]}" for label, origin in (
        ("one pass, streaming stores", "human"), ("torch.compile max-autotune, 2 threads", "compiler"))]  # fmt: skip
    run = shelf.service.data_dir / "runs" / "cpu" / "contrastive"
    make_run(run)
    (run / "comparison.json").write_text(json.dumps(COMPARISON))
    form = {"kind": "source", "source": TINY_TASK, "name": "looked at"}
    look = shelf.service.client.post(f"{shelf.url}/ui/check", data=form).headers["location"]
    with shelf.database.write() as session:
        row = session.get_one(Evaluation, look.partition("?")[0].rpartition("/")[2])
        end_evaluation(session, row, "succeeded", "", FOUND)
    return {
        "problems": "/problems",
        "problem": "/problems/too-many",
        "workers": "/ui/workers",
        "compare": "/ui/compare?" + "&".join(f"candidate={one}" for one in [*ids, cheat_id]),
        "check": look,
        "runs": "/ui/runs",
        "run": "/ui/runs/cpu~contrastive",
        "job": f"/ui/jobs/{job_id}",
    }


def test_new_pages_fit_their_window(shelf: Shelf, visit: Visit, pages: dict[str, str]) -> None:
    page = visit.page
    for title, path in pages.items():
        page.goto(shelf.url + path)
        for width, theme in ((1280, "light"), (1280, "dark"), (390, "light")):
            page.set_viewport_size({"width": width, "height": 900})
            page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
            wide = page.evaluate(
                "document.documentElement.scrollWidth - document.documentElement.clientWidth"
            )
            assert wide <= 0, f"{title} is wider than a window of {width} px"
        page.set_viewport_size({"width": 1280, "height": 900})
    visit.assert_clean(shelf.url)


def test_ticking_candidates_and_checking_a_module_need_no_script(
    shelf: Shelf, chromium: Browser, pages: dict[str, str]
) -> None:
    context = chromium.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(shelf.url + pages["job"])
    page.get_by_label("Compare one pass, streaming stores").check()
    page.get_by_label("Compare torch.compile max-autotune, 2 threads").check()
    page.get_by_role("button", name="Compare what is ticked").click()
    page.wait_for_url("**/ui/compare?**")
    assert page.locator("#facts tbody tr").count() > 3
    page.goto(f"{shelf.url}/")
    page.get_by_label("my own").check()
    page.get_by_label("Source").fill(TINY_TASK)
    page.get_by_label("Name").fill("checked first")
    page.get_by_role("button", name="Check first").click()
    page.wait_for_url("**/ui/checks/**")
    page.get_by_text("Waiting for a worker").wait_for()
    page.get_by_role("button", name="Start").click()
    page.wait_for_url("**/ui/jobs/*")
    assert page.locator("h1").inner_text() == "checked first"
    context.close()
