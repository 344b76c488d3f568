"""A module pasted on the page becomes a leaderboard: real browser, real service, real referee, nothing stored by hand."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from services.dashboard import words
from services.demo.cheat import cheating_candidate
from tests.browser.conftest import Visit
from tests.services.service import TINY_TASK, Service

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.alone]
JOB_MS = 600_000


def test_a_module_pasted_on_the_page_becomes_a_leaderboard(
    working_service: Service, visit: Visit, pictures: Path, tmp_path: Path
) -> None:
    page = visit.page
    page.goto(f"{working_service.url}/")
    page.get_by_label("my own").check()
    page.get_by_label("Source").fill(TINY_TASK)
    page.get_by_label("Name").fill("scale and shift")
    page.get_by_label("Time budget, s").fill("60")
    page.get_by_role("button", name="Start").click()
    page.wait_for_url("**/ui/jobs/*")
    job_id = page.url.rsplit("/", 1)[1]

    page.locator("#leaderboard tbody tr", has_text="accepted").first.wait_for(timeout=JOB_MS)
    page.locator("#head").get_by_text("Download bundle").wait_for(timeout=JOB_MS)

    head = page.locator("#head").inner_text().replace("\xa0", " ")
    assert "Winner:" in head
    assert "95 % interval" in head
    assert any(origin.label in head for origin in words.ORIGINS.values())
    job = working_service.job(job_id)
    shown = page.locator("#leaderboard tbody tr").count()
    assert shown == len([one for one in working_service.candidates(job_id) if one["label"] != "optimized.py"])
    assert f"{job['summary']['geomean_speedup']:.2f}×" in head
    assert page.locator("#shapes svg.wide g.row").count() > 1
    assert (
        "namespaces" in page.locator("#environment").inner_text()
        or "landlock" in page.locator("#environment").inner_text()
    )
    page.screenshot(path=pictures / "real-job.png", full_page=True)

    with page.expect_download() as download:
        page.get_by_text("Download bundle").click()
    download.value.save_as(tmp_path / "bundle.zip")
    names = {Path(name).name for name in zipfile.ZipFile(tmp_path / "bundle.zip").namelist()}
    assert {"optimized.py", "evidence.json", "report.html", "reproduce.py"} <= names

    # A cheat sent to the finished job appears on its page, with the reason, without a reload.
    body = {"candidate": cheating_candidate(TINY_TASK), "label": "replays its first output"}
    assert working_service.post(f"/jobs/{job_id}/candidates", body).status_code == 202
    page.reload()
    row = page.locator("#leaderboard tbody tr", has_text="replays its first output")
    row.filter(has_text="external").filter(has_text="cheating").wait_for(timeout=JOB_MS)
    rejected = page.locator("#rejected")
    assert "returned an earlier result although the inputs had changed" in rejected.inner_text()
    rejected.get_by_text("replays its first output").click()
    page.wait_for_url("**/ui/candidates/*")
    assert "Cheating" in page.locator("#head").inner_text()
    visit.assert_clean(working_service.url)
