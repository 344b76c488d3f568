"""The map of a job's page, and what calls cost: only what was measured, at prices that somebody set."""

from __future__ import annotations

from agent.performance.money import Prices
from services.dashboard import contexts
from services.dashboard.rendering import render
from tests.browser import stored
from tests.browser.markup import Element, parse
from tests.browser.test_pages_rendered import job_page, story


def test_the_map_shows_every_timed_shape_of_what_is_delivered_and_needs_two_sizes() -> None:
    job, candidates = story()
    page = job_page(
        job, candidates, held_out=stored.verdict([1.4, 1.6, 0.9, 2.0, 1.5, 1.6], split="held_out")
    )
    section = page.find("section", id="map")[0]
    drawn = section.find("svg")[0]
    assert len(drawn.find("rect", class_="frame")) == 2
    assert "best baseline of the reference: 1 × 10⁶ points per second at rows 1, cols 8, dtype float32" in [
        title.text for title in drawn.find("title")
    ]
    assert "6 timed shapes are too few to tell a bad size from its neighbors (7 would do)." in section.text
    alone = stored.candidate("one", "human", validation=stored.verdict([1.5]))
    assert not job_page(stored.job(best=stored.best_of(alone)), [alone]).find("section", id="map")


def priced_page(prices: Prices) -> Element:
    job, candidates = story()
    held_out = stored.verdict([2.0, 2.0], split="held_out")
    context = contexts.job_context(job, candidates, stored.REFERENCE, [], held_out, prices)
    return parse(bytes(render("job.html", **context).body).decode())


def test_calls_per_dollar_are_shown_where_a_price_is_set_and_nowhere_else() -> None:
    assert not priced_page(Prices()).find("section", id="costs")
    assert not priced_page(Prices({"Some other GPU": 2.0})).find("section", id="costs")
    section = priced_page(Prices({"Test CPU, 2 cores": 3.6})).find("section", id="costs")[0]
    cells = [[cell.text for cell in row.children] for row in section.find("tbody")[0].find("tr")]
    # 3.6 dollars an hour are 0.001 a second; calls take 8.004 and 8.1155 us, half of that when optimized.
    assert [row[:2] for row in cells] == [
        ["optimized", "Test CPU, 2 cores"],
        ["reference", "Test CPU, 2 cores"],
    ]
    assert [row[3] for row in cells] == ["not measured", "not measured"]
    reference, optimized = (float(row[4].replace(",", "")) for row in reversed(cells))
    assert round(optimized / reference, 6) == 2.0
    assert 1.2e8 < reference < 1.25e8
