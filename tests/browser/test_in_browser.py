"""The pages in a real browser: live without reload, clean console, nobody else asked, readable at every size."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.browser import stored
from tests.browser.conftest import Visit, watch
from tests.browser.shelf import Shelf
from tests.variants import some

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.browser
SOON_MS = 15_000


def told_story(shelf: Shelf) -> tuple[str, str]:
    """A finished job with a winner, a rival and a cheat; (job id, the cheat's id)."""
    job_id = shelf.start_job("layernorm_relu_add")
    winner = stored.candidate("one pass, streaming stores", "human")
    rival = stored.candidate("torch.compile max-autotune, 2 threads", "compiler")
    cheat = stored.candidate("replays its first output", "external")
    for made in (winner, rival, cheat):
        shelf.propose(job_id, made)
    finding = {
        "rule": "stale_output",
        "severity": "cheat",
        "evidence": "call 3 equals call 1 to the last bit",
    }
    caught = stored.verdict([], word="cheating", reason="Returned an earlier result.", findings=[finding])
    shelf.judge(job_id, winner, "screen", stored.verdict([1.5, 1.9, 1.4], split="visible"))
    shelf.judge(job_id, winner, "validation", stored.verdict([1.4, 1.8, 0.9, 1.6, 2.2, 1.01]))
    shelf.judge(job_id, rival, "validation", stored.verdict([1.0, 1.05, 1.02, 0.99]))
    shelf.judge(job_id, cheat, "screen", caught)
    held_out = stored.verdict([1.4, 1.9, 0.93, 1.6, 2.2, 1.01], split="held_out")
    shelf.judge(job_id, winner, "held_out", held_out)
    shelf.finish(job_id, winner, held_out["summary"])
    return job_id, f"{job_id}.{cheat['sha256'][:12]}"


def test_a_running_job_fills_its_page_without_a_reload(shelf: Shelf, visit: Visit) -> None:
    job_id = shelf.start_job("watched")
    page = visit.page
    page.goto(f"{shelf.url}/ui/jobs/{job_id}")
    page.get_by_text("No candidate yet.").wait_for(timeout=SOON_MS)
    page.evaluate("window.untouched = true")

    made = stored.candidate("one pass", "human")
    shelf.propose(job_id, made)
    page.locator("#leaderboard tbody tr").filter(has_text="one pass").filter(has_text="in progress").wait_for(
        timeout=SOON_MS
    )

    page.locator("#log").scroll_into_view_if_needed()
    shelf.judge(job_id, made, "screen", stored.verdict([1.6, 1.7], split="visible"))
    shelf.judge(job_id, made, "validation", stored.verdict([1.5, 1.8]))
    page.locator("#leaderboard tbody tr").filter(has_text="1.64×").filter(has_text="accepted").wait_for(
        timeout=SOON_MS
    )
    page.locator("#shapes svg.wide").wait_for(timeout=SOON_MS)

    shelf.finish(job_id, made, stored.verdict([1.5], split="held_out")["summary"])
    page.locator("#head").get_by_text("Download bundle").wait_for(timeout=SOON_MS)
    page.locator("#connection").filter(has_text="finished").wait_for(timeout=SOON_MS)
    assert page.title().startswith("watched · succeeded")
    assert page.evaluate("window.untouched") is True, "the page was swapped in place, not reloaded"
    visit.assert_clean(shelf.url)


def test_what_a_reader_opened_stays_open_when_the_page_changes(shelf: Shelf, visit: Visit) -> None:
    job_id = shelf.start_job("opened")
    made = stored.candidate("one pass", "human")
    shelf.propose(job_id, made)
    shelf.judge(job_id, made, "validation", stored.verdict([1.5, 1.8]))
    page = visit.page
    page.goto(f"{shelf.url}/ui/jobs/{job_id}")
    page.locator("#baselines summary").click()
    page.locator("#baselines table").wait_for(state="visible", timeout=SOON_MS)
    better = stored.candidate("two passes", "human")
    shelf.propose(job_id, better)
    shelf.judge(job_id, better, "validation", stored.verdict([2.5, 2.8]))
    page.locator("#shapes svg.wide text.value", has_text="2.65×").wait_for(timeout=SOON_MS)
    assert page.locator("#baselines table").is_visible()
    visit.assert_clean(shelf.url)


def test_the_form_shows_only_what_belongs_to_the_choice(shelf: Shelf, visit: Visit) -> None:
    page = visit.page
    page.goto(f"{shelf.url}/")
    assert page.get_by_label("Catalogue task").is_visible()
    assert not page.get_by_label("Source").is_visible()
    page.get_by_label("my own").check()
    assert page.get_by_label("Source").is_visible()
    assert not page.get_by_label("Catalogue task").is_visible()
    page.get_by_label("Source").fill(stored.REFERENCE)
    page.get_by_label("Name").fill("pasted")
    page.get_by_role("button", name="Start").click()
    page.wait_for_url("**/ui/jobs/*")
    assert page.locator("h1").inner_text() == "pasted"
    visit.assert_clean(shelf.url)


def test_the_pages_work_without_script_and_reload_themselves(shelf: Shelf, chromium: Browser) -> None:
    context = chromium.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{shelf.url}/")
    page.get_by_label("Name").fill("no script")
    page.get_by_role("button", name="Start").click()
    page.wait_for_url("**/ui/jobs/*")
    assert page.locator("h1").inner_text() == "no script"
    job_id = page.url.rsplit("/", 1)[1]
    with page.expect_navigation(timeout=SOON_MS):
        shelf.service.post(f"/jobs/{job_id}/cancel")
    page.locator("h1 ~ .chip", has_text="cancelled").first.wait_for(timeout=SOON_MS)
    context.close()


@pytest.mark.parametrize(
    ("name", "width", "theme"),
    some([("light", 1280, "light"), ("dark", 1280, "dark"), ("narrow", 390, "light")]),
)
def test_pages_fit_their_window_and_their_charts_do_not_collide(
    shelf: Shelf, chromium: Browser, name: str, width: int, theme: str
) -> None:
    job_id, cheat_id = told_story(shelf)
    context = chromium.new_context(viewport={"width": width, "height": 900}, color_scheme=theme)  # type: ignore[arg-type]
    visit = Visit(context.new_page())
    watch(visit)
    for title, path in (
        ("index", "/"),
        ("job", f"/ui/jobs/{job_id}"),
        ("candidate", f"/ui/candidates/{cheat_id}"),
    ):
        visit.page.goto(shelf.url + path)
        overflow = visit.page.evaluate(
            "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )
        assert overflow <= 0, f"{title} is wider than a window of {width} px"
        assert visit.page.evaluate(COLLISIONS) == []
    visit.assert_clean(shelf.url)
    context.close()


# Pairs of visible texts of one chart whose boxes overlap by more than a hair.
COLLISIONS = """() => {
  const found = [];
  for (const svg of document.querySelectorAll("svg.chart")) {
    if (!svg.getClientRects().length) continue;
    const boxes = [...svg.querySelectorAll("text")].map((node) => [node.textContent, node.getBoundingClientRect()]);
    for (let i = 0; i < boxes.length; i++) for (let j = i + 1; j < boxes.length; j++) {
      const [a, b] = [boxes[i][1], boxes[j][1]];
      const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (wide > 1 && high > 3) found.push([boxes[i][0], boxes[j][0]]);
    }
  }
  return found;
}"""
