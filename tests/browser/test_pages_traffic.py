"""Pages show the user's own shapes: a weight beside each, and the weighted figure beside the plain one."""

from __future__ import annotations

from typing import Any

from tests.browser import stored
from tests.browser.test_pages_rendered import candidate_page, job_page, rows, story


def trafficked() -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A finished job with traffic: what is best on average is not what is best where the user calls it."""
    average = stored.candidate(
        "best on average", "human", validation=stored.verdict([1.2, 1.9, 1.9], weights=[40.0, 10.0, None])
    )
    usual = stored.candidate(
        "best by traffic", "compiler", validation=stored.verdict([1.6, 1.6, 1.1], weights=[40.0, 10.0, None])
    )
    figures = usual["validation"]["summary"]["traffic"]
    held_out = stored.verdict([1.4, 1.6], split="held_out")["summary"]
    job = stored.job(
        winner=stored.best_of(usual), best=stored.best_of(usual), summary={**held_out, "traffic": figures}
    )
    return job, [average, usual]


def test_traffic_ranks_and_stands_beside_the_plain_figure() -> None:
    job, candidates = trafficked()
    page = job_page(job, candidates, held_out=stored.verdict([1.4, 1.6], split="held_out"))
    board = rows(page, "leaderboard")
    assert [row[1] for row in board] == ["best by traffic winner", "best on average"]
    assert [(row[3], row[5], row[6]) for row in board] == [
        ("1.41×", "1.60×", "1.55 to 1.65"),
        ("1.63×", "1.32×", "1.28 to 1.35"),
    ]
    head = next(one for one in page.every() if one.attributes.get("id") == "head").text
    assert "1.50× 95 % interval 1.47 to 1.53" in head
    assert "1.60× weighted by traffic 1.55 to 1.65 over 2 of your own shapes, 75 % of the traffic" in head
    own = next(one for one in page.every() if one.attributes.get("id") == "own")
    shown = [[cell.text for cell in row.children][:2] for row in own.find("tbody")[0].find("tr")]
    assert shown == [["rows 1 · cols 8 · float32", "40"], ["rows 7 · cols 33 · float32", "10"]]
    assert "Ranked by the geometric mean over validation shapes, weighted by your traffic" in page.text


def test_a_candidates_page_shows_the_weight_of_each_shape() -> None:
    _, candidates = trafficked()
    page = candidate_page(candidates[1])
    assert "by traffic 1.60× 1.55 to 1.65 2 of your shapes, 75 % of the traffic" in page.text
    table = page.find("table", class_="numbers")[0]
    weights = [[cell.text for cell in row.children][1] for row in table.find("tbody")[0].find("tr")]
    assert weights == ["40", "10", "not in the traffic"]


def test_nothing_is_said_of_traffic_that_nobody_gave() -> None:
    job, candidates = story()
    for page in (job_page(job, candidates), candidate_page(candidates[1])):
        assert "traffic" not in page.text
        assert "weight" not in [cell.text for cell in page.find("th")]
