"""What models cost and what was found out for them, on a job's page."""

from __future__ import annotations

import pytest

from services.dashboard import formats
from tests.browser import stored
from tests.browser.test_pages_rendered import HOSTILE, job_page


@pytest.mark.parametrize("state", ["running", "failed"])
def test_what_models_cost_is_shown_before_anything_is_right(state: str) -> None:
    spend = {"usd": 0.25, "tokens": 12_345, "seconds": 9.0, "usd_cap": 2.0}
    page = job_page({**stored.job(state), "spend": spend}, [])
    assert f"Spent: {formats.dollars(0.25)} of at most {formats.dollars(2.0)} · 12,345 tokens" in page.text
    assert "Spent:" not in job_page(stored.job(state), []).text


def test_what_holds_the_module_back_is_a_list_of_its_own() -> None:
    told = stored.event(2, "task.profiled", 3, text=f"It waits for memory.\n{HOSTILE}", label="memory")
    page = job_page(stored.job("running"), [], events=[stored.event(1, "job.started", 1), told])
    lines = page.find("section", id_="profile")[0].find("li")
    assert [line.text for line in lines][:1] == ["It waits for memory."]
    assert len(lines) == 2
    assert not page.find("img")
    assert not job_page(stored.job("running"), []).find("section", id_="profile")


def test_the_ceilings_behind_the_roofline_stand_below_it() -> None:
    rates = {
        "memory_bytes_per_s": 4.012e12,
        "bfloat16_flops_per_s": 7.1e14,
        "item_s": 1e-5,
        "cache_bytes_per_s": None,
    }
    told = stored.event(1, "task.profiled", 3, text="It waits.", label="memory", ceilings=rates)
    section = job_page(stored.job("running"), [], events=[told]).find("section", id_="profile")[0]
    assert "Ceilings measured on this device: memory 4.01 TB/s, bfloat16 710 TFLOP/s." in section.text
    # A job of an earlier version stored none.
    before = stored.event(1, "task.profiled", 3, text="It waits.", label="memory")
    assert "Ceilings" not in job_page(stored.job("running"), [], events=[before]).text
