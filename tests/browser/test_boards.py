"""The leaderboard's pages, and tables and plots as files: over HTTP, and in a browser at every size."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import pytest

from services.db.models import FINAL_STATES
from services.jobs import read
from tests.browser import stored
from tests.browser.conftest import Visit, watch
from tests.browser.markup import parse
from tests.browser.shelf import Shelf
from tests.browser.test_in_browser import COLLISIONS, told_story
from tests.services.ranked import H200, ended_job
from tests.variants import some

if TYPE_CHECKING:
    from playwright.sync_api import Browser

TASK = "rmsnorm"
HOSTILE = "<script>alert('x')</script>"
FORMULA = '=HYPERLINK("http://evil.example","x")'


@pytest.fixture(scope="module")
def ranked(shelf: Shelf) -> list[str]:
    """Jobs on one board, and one on another type of machine."""
    made = [
        ended_job(shelf.database, 1.21, task=TASK, origin="compiler", label="compile max-autotune", usd=0.0),
        ended_job(
            shelf.database, 1.62, task=TASK, origin="human", label="one pass, streaming stores", usd=0.0
        ),
        ended_job(shelf.database, 1.5, task=TASK, label=HOSTILE),
        ended_job(shelf.database, 2.31, task=TASK, label="m-1 round 3", usd=4.2),
        ended_job(shelf.database, 2.4, task=TASK, model="m-2", label="m-2 round 1", usd=11.0),
        ended_job(shelf.database, 0.97, task=TASK, origin="external", label=FORMULA),
    ]
    ended_job(
        shelf.database, 3.5, task=TASK, environment={**H200, "device_name": "NVIDIA H100", "driver": "570"}
    )
    ended_job(shelf.database, 1.1, task="swiglu", origin="human", label="library")
    return made


def rows(shelf: Shelf, path: str) -> list[dict[str, Any]]:
    """A CSV as a program reads it; its JSON must hold the same rows."""
    answer = shelf.client.get(f"{shelf.url}{path}.csv")
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/csv")
    assert "attachment" in answer.headers["content-disposition"]
    found = list(csv.DictReader(io.StringIO(answer.text)))
    same = shelf.client.get(f"{shelf.url}{path}.json").json()
    assert list(found[0]) == same["columns"]
    assert len(found) == len(same["data"])
    for row, twin in zip(found, same["data"], strict=True):
        for name, value in twin.items():
            if name == "seconds" and twin.get("state") not in FINAL_STATES:
                assert float(row[name]) <= value  # it went on between the two requests
            elif isinstance(value, float):
                assert float(row[name]) == value
            elif value is None:
                assert row[name] == ""
    return found


def test_a_board_is_a_page_of_its_figures_with_its_history(shelf: Shelf, ranked: list[str]) -> None:
    page = parse(shelf.client.get(f"{shelf.url}/ui/leaderboard/{TASK}?gpu=NVIDIA%20H200").text)
    body = page.find("table", id="leaderboard")[0].find("tbody")[0]
    shown = [row.find("th")[0].text for row in body.find("tr")]
    assert shown == ["m-2 round 1m-2", "m-1 round 3m-1", "one pass, streaming stores", f"{HOSTILE}m-1",
                     "compile max-autotune", FORMULA]  # fmt: skip
    assert "2.40× 2.35 to 2.45 1.92× not measured $11.00" in body.text
    chart = next(one for one in page.find("svg") if one.attributes.get("class") == "chart history")
    assert len(chart.find("circle")) == 4
    assert "First place was taken 4 times; from 1.21× to 2.40×." in chart.text
    assert "NVIDIA H100" in page.text
    assert "a private name" not in page.text
    assert page.find("a", href=f"/ui/jobs/{ranked[3]}")
    llm = parse(
        shelf.client.get(f"{shelf.url}/ui/leaderboard/{TASK}?gpu=NVIDIA%20H200&origin=human&model=").text
    )
    assert len(llm.find("table", id="leaderboard")[0].find("tbody")[0].find("tr")) == 1
    overview = parse(shelf.client.get(f"{shelf.url}/ui/leaderboard").text)
    assert [one.text for one in overview.find("table")[0].find("tbody")[0].find("th")].count("rmsnorm") == 2
    assert parse(shelf.client.get(shelf.url).text).find("a", href="/ui/leaderboard"), (
        "it is in the navigation"
    )


def test_the_page_of_a_job_says_what_the_board_says(shelf: Shelf, ranked: list[str]) -> None:
    for job_id, rank in ((ranked[4], 1), (ranked[0], 5)):
        told = shelf.client.get(f"{shelf.url}/jobs/{job_id}/place").json()
        assert (told["state"], told["rank"], told["entries"]) == ("ranked", rank, 6)
        assert (
            f"place {rank} of 6 at rmsnorm on NVIDIA H200"
            in parse(shelf.client.get(f"{shelf.url}/ui/jobs/{job_id}").text).text
        )
    job_id, _ = told_story(shelf)
    told = shelf.client.get(f"{shelf.url}/jobs/{job_id}/place").json()
    assert told["reason"] in parse(shelf.client.get(f"{shelf.url}/ui/jobs/{job_id}").text).text


def test_every_table_of_the_leaderboard_is_there_as_data(shelf: Shelf, ranked: list[str]) -> None:
    entries = rows(shelf, f"/ui/leaderboard/{TASK}/tables/entries")
    assert len(entries) == 1  # the type that changed last
    answer = shelf.client.get(
        f"{shelf.url}/ui/leaderboard/{TASK}/tables/entries.csv?gpu=NVIDIA%20H200&limit=4"
    )
    assert [row["job_id"] for row in csv.DictReader(io.StringIO(answer.text))][:2] == [ranked[4], ranked[3]]
    following = answer.headers["link"].split(">")[0].strip("<")
    rest = list(csv.DictReader(io.StringIO(shelf.client.get(shelf.url + following).text)))
    assert [row["rank"] for row in rest] == ["5", "6"]
    assert rest[1]["label"] == "'" + FORMULA
    history = shelf.client.get(
        f"{shelf.url}/ui/leaderboard/{TASK}/tables/history.json?gpu=NVIDIA%20H200"
    ).json()["data"]
    assert [row["speedup"] for row in history] == [1.21, 1.62, 2.31, 2.4]
    boards = rows(shelf, "/ui/leaderboard/tables/boards")
    assert {(row["task"], row["gpu"]) for row in boards} >= {(TASK, "NVIDIA H100"), ("swiglu", "NVIDIA H200")}


def test_every_table_of_a_job_is_there_as_data_and_no_cell_is_a_formula(shelf: Shelf) -> None:
    job_id = shelf.start_job("tables")
    finding = {"rule": "=1+1", "severity": "error", "evidence": "@SUM(A1)"}
    good = stored.candidate("-2+3", "external", source="x = 1\ny = 2\n")
    bad = stored.candidate("\tx", "external")
    for made in (good, bad):
        shelf.propose(job_id, made)
    shelf.judge(job_id, good, "validation", stored.verdict([1.5, 0.9], weights=[3.0, 1.0]))
    shelf.judge(
        job_id, bad, "screen", stored.verdict([], word="incorrect", reason="+cmd", findings=[finding])
    )
    shelf.finish(job_id, good, stored.verdict([1.5])["summary"])
    base = f"/ui/jobs/{job_id}/tables"
    ranking = rows(shelf, f"{base}/candidates")
    assert [(row["rank"], row["label"], row["lines"]) for row in ranking] == [
        ("1", "'-2+3", "2"),
        ("", "'\tx", ranking[1]["lines"]),
    ]
    assert [row["reason"] for row in rows(shelf, f"{base}/rejected")] == ["'+cmd"]
    shapes = rows(shelf, f"{base}/shapes")
    assert [(row["dim_rows"], float(row["speedup"])) for row in shapes] == [("1", 1.5), ("7", 0.9)]
    assert float(shapes[0]["compile_default/2t_us"]) > 0
    assert [row["weight"] for row in rows(shelf, f"{base}/own_shapes")] == ["3.0", "1.0"]
    names = [row["name"] for row in rows(shelf, f"{base}/events")]
    assert names[0] == "job.started"
    assert names[-1] == "job.finished"
    candidate = f"/ui/candidates/{job_id}.{bad['sha256'][:12]}/tables"
    assert [(row["rule"], row["evidence"]) for row in rows(shelf, f"{candidate}/findings")] == [
        ("'=1+1", "'@SUM(A1)")
    ]
    assert len(rows(shelf, f"/ui/candidates/{job_id}.{good['sha256'][:12]}/tables/validation")) == 2
    assert any(row["id"] == job_id for row in rows(shelf, "/ui/tables/jobs"))
    for path in (
        f"{base}/secrets.csv",
        f"{base}/shapes.xlsx",
        "/ui/tables/users.csv",
        f"{candidate}/source.csv",
    ):
        assert shelf.client.get(shelf.url + path).status_code == 404
    page = parse(shelf.client.get(f"{shelf.url}/ui/jobs/{job_id}").text)
    links = {one.attributes["href"] for one in page.find("a")}
    assert {
        f"{base}/{name}.csv" for name in ("candidates", "rejected", "shapes", "own_shapes", "events")
    } <= links


def test_every_plot_is_an_svg_that_runs_and_loads_nothing(shelf: Shelf, ranked: list[str]) -> None:
    job_id, _ = told_story(shelf)
    winner = stored.candidate("one pass, streaming stores", "human")
    for path in (
        f"/ui/jobs/{job_id}/plots/search.svg",
        f"/ui/jobs/{job_id}/plots/shapes.svg",
        f"/ui/jobs/{job_id}/plots/map.svg",
        f"/ui/candidates/{job_id}.{winner['sha256'][:12]}/plots/validation.svg",
        f"/ui/leaderboard/{TASK}/plots/history.svg?gpu=NVIDIA%20H200",
    ):
        answer = shelf.client.get(shelf.url + path)
        assert answer.status_code == 200, path
        assert answer.headers["content-type"] == "image/svg+xml"
        assert answer.headers["content-security-policy"].startswith("default-src 'none'")
        root = ElementTree.fromstring(answer.text)
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        names = {one.tag.rpartition("}")[2] for one in root.iter()}
        assert "style" in names
        assert not names & {"script", "image", "foreignObject", "use", "a"}
        assert len(names & {"path", "circle", "rect", "polygon"}) >= 1
        assert "url(" not in answer.text
        assert "@import" not in answer.text


@pytest.mark.browser
@pytest.mark.parametrize(
    ("name", "width", "theme"),
    some([("light", 1280, "light"), ("dark", 1280, "dark"), ("narrow", 390, "light")]),
)
def test_boards_fit_their_window_without_script(
    shelf: Shelf, chromium: Browser, ranked: list[str], name: str, width: int, theme: str
) -> None:
    context = chromium.new_context(
        viewport={"width": width, "height": 900},
        color_scheme=theme,
        java_script_enabled=name != "dark",  # type: ignore[arg-type]
    )
    visit = Visit(context.new_page())
    watch(visit)
    visit.page.goto(f"{shelf.url}/")
    visit.page.get_by_role("link", name="Leaderboard").click()
    for title, path in (
        ("leaderboard", "/ui/leaderboard"),
        ("board", f"/ui/leaderboard/{TASK}?gpu=NVIDIA+H200"),
        ("job-ranked", f"/ui/jobs/{ranked[4]}"),
    ):
        visit.page.goto(shelf.url + path)
        if name != "dark":
            wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
            assert visit.page.evaluate(wide) <= 0, f"{title} is wider than a window of {width} px"
            assert visit.page.evaluate(COLLISIONS) == []
    visit.page.goto(f"{shelf.url}/ui/leaderboard/{TASK}/plots/history.svg?gpu=NVIDIA+H200")
    visit.page.goto(f"{shelf.url}/ui/leaderboard/{TASK}?gpu=NVIDIA+H200")
    visit.page.get_by_label("Origin").select_option("human")
    visit.page.get_by_role("button", name="Show").click()
    visit.page.wait_for_url("**origin=human**")
    assert visit.page.locator("#leaderboard tbody tr").count() == 1
    visit.assert_clean(shelf.url)
    context.close()


def test_of_very_many_candidates_a_page_reads_the_fastest_and_the_newest(shelf: Shelf) -> None:
    job_id = shelf.start_job("many")
    speeds = [1.0 + (37 * number % 40) / 20 for number in range(40)]
    made = [stored.candidate(f"number {number}", "llm", offset_s=number) for number in range(40)]
    for one, speed in zip(made, speeds, strict=True):
        shelf.propose(job_id, one)
        shelf.judge(job_id, one, "screen", stored.verdict([speed], split="visible"))
        shelf.judge(job_id, one, "validation", stored.verdict([speed]))
    with shelf.database.read() as session:
        found = read.judged_candidates(session, job_id, (made[3]["sha256"],), most=10)[0]
        every = read.judged_candidates(session, job_id, most=40)[0]
    fastest = sorted(range(40), key=lambda number: -speeds[number])[:5]
    assert {one["label"] for one in found} == {f"number {number}" for number in {3, *fastest, *range(35, 40)}}
    assert [one["label"] for one in every] == [f"number {number}" for number in range(40)]
    whole = next(one for one in found if one["sha256"] == made[3]["sha256"])
    assert (len(whole["validation"]["shapes"]), whole["source"]) == (1, made[3]["source"])
    assert not any(one["source"] or one["validation"].get("shapes") for one in found if one is not whole)
