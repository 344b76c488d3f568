"""The map of a job's page: work per second at every timed shape of what is delivered."""

from __future__ import annotations

from tests.browser import stored
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
