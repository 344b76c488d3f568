"""The pages say what is known, call the rest not measured, and never let foreign text become markup."""

from __future__ import annotations

import re
from itertools import product
from typing import Any

import pytest

from services.dashboard import contexts, formats, listing, ranking, words
from services.dashboard.rendering import PAGE_HEADERS, render, static_file
from services.jobs.views import EventView
from tests.browser import stored
from tests.browser.markup import Element, parse

HOSTILE = "</td></script><script>alert('x')</script><img src=x onerror=alert(1)>&\"'"


def job_page(
    job: dict[str, Any],
    candidates: list[dict[str, Any]],
    *,
    reference: str = stored.REFERENCE,
    events: list[EventView] | None = None,
    held_out: dict[str, Any] | None = None,
) -> Element:
    context = contexts.job_context(job, candidates, reference, events or [], held_out)
    return parse(bytes(render("job.html", **context).body).decode())


def candidate_page(
    one: dict[str, Any], parent: dict[str, Any] | None = None, against: str = "reference"
) -> Element:
    context = contexts.candidate_context(stored.job(), one, stored.REFERENCE, parent, against)
    return parse(bytes(render("candidate.html", **context).body).decode())


def index_page(jobs: list[dict[str, Any]], **form: Any) -> Element:
    blank = {
        "kind": "task",
        "task": "",
        "source": "",
        "device": "cpu",
        "seconds": "",
        "priority": "",
        "name": "",
        "errors": [],
    }
    page = render(
        "index.html",
        jobs=jobs,
        older=None,
        any_running=False,
        catalogue=(),
        devices=("cpu", "cuda"),
        form={**blank, **form},
    )
    return parse(bytes(page.body).decode())


def story() -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A finished job with one candidate of each kind."""
    human = stored.candidate(
        "one pass",
        "human",
        screen=stored.verdict([1.6, 1.7], split="visible"),
        validation=stored.verdict([1.5, 1.8]),
    )
    compiler = stored.candidate("torch.compile default", "compiler", validation=stored.verdict([1.0, 1.01]))
    screened = stored.candidate("attempt 2", "llm", screen=stored.verdict([2.5, 2.5], split="visible"))
    finding = {"rule": "stale_output", "severity": "cheat", "evidence": "call 3 equals call 1"}
    cheat = stored.candidate(
        "replays",
        "external",
        screen=stored.verdict([], word="cheating", reason="Returned an earlier result.", findings=[finding]),
    )
    waiting = stored.candidate("attempt 3", "llm")
    held_out = stored.verdict([1.4, 1.6], split="held_out")
    job = stored.job(
        winner=stored.best_of(human),
        best=stored.best_of(human),
        summary=held_out["summary"],
        counts={"candidates": 5, "accepted": 3, "rejected": 1, "pending": 1},
    )
    return job, [compiler, human, screened, cheat, waiting]


def rows(page: Element, table_id: str) -> list[list[str]]:
    table = page.find("table", id=table_id)[0]
    return [[cell.text for cell in row.children] for row in table.find("tbody")[0].find("tr")]


def test_the_leaderboard_ranks_by_validation_and_says_every_origin_plainly() -> None:
    job, candidates = story()
    board = rows(job_page(job, candidates), "leaderboard")
    shown = [(row[0], row[1], row[2]) for row in board]
    assert shown == [
        ("1", "one pass winner", "human: kernel library"),
        ("2", "torch.compile default", "compiler"),
        ("3", "attempt 2", "LLM"),  # only screened: visible shapes do not choose, so it ranks below
        ("unranked", "attempt 3", "LLM"),
        ("unranked", "replays", "external"),
    ]
    assert board[0][3:] == ["1.64×", "1.61 to 1.68", "1.50×", "validation shapes", "9", "accepted"]
    assert board[2][6] == "visible shapes"
    assert board[4][3:] == ["not measured", "9", "cheating"]


def test_the_delivered_file_is_no_rival_of_its_own_winner() -> None:
    job, candidates = story()
    delivered = stored.candidate(
        "optimized.py",
        "human",
        screen=stored.verdict([9.0], split="visible"),
        parent_sha256=job["winner"]["sha256"],
    )
    intruder = stored.candidate("optimized.py", "external", source="x = 1", screen=stored.verdict([1.1]))
    page = job_page(job, [*candidates, delivered, intruder])
    named = [row[:3] for row in rows(page, "leaderboard") if row[1] == "optimized.py"]
    assert named == [["4", "optimized.py", "external"]]
    assert page.find("a", href=f"/ui/candidates/{delivered['id']}")


def test_findings_in_the_delivered_file_are_told_apart_from_the_winner_s() -> None:
    finding = {"rule": "uses_try_fallback", "severity": "warning", "evidence": "line 9"}
    screen = stored.verdict([1.2], split="visible", findings=[finding])
    for parent, said in ((None, False), ("0" * 64, True)):
        one = stored.candidate("optimized.py", "human", screen=screen, parent_sha256=parent)
        page = candidate_page({**one, "findings": [finding]})
        assert ("may be of the dispatcher in it" in page.text) is said


@pytest.mark.parametrize(
    ("speedups", "tone", "said"),
    [
        ([1.4, 1.6], "good", "faster than the best baseline"),
        ([1.0, 1.01], "plain", "not confidently faster than the best baseline"),
        ([0.8, 0.9], "bad", "slower than the best baseline"),
    ],
)
def test_the_headline_claims_no_more_than_its_interval(speedups: list[float], tone: str, said: str) -> None:
    job, candidates = story()
    page = job_page({**job, "summary": stored.verdict(speedups)["summary"]}, candidates)
    card = page.find("div", class_=f"result {tone}")
    assert len(card) == 1
    assert f" {said} over held-out shapes" in card[0].text


def test_overfitting_is_visible_over_held_out_of_the_delivered_module() -> None:
    job, candidates = story()
    delivered = stored.candidate(
        "optimized.py", "human", screen=stored.verdict([2.0], split="visible"), parent_sha256="a" * 64
    )
    page = job_page(job, [*candidates, delivered], held_out=stored.verdict([1.6], split="held_out"))
    assert "visible ÷ held out 1.250" in page.text
    untimed = {**delivered, "screen": stored.verdict([]), "parent_sha256": job["winner"]["sha256"]}
    page = job_page(job, [*candidates, untimed], held_out=stored.verdict([1.6], split="held_out"))
    assert "visible ÷ held out 1.031" in page.text, "the winner's visible figure, 1.65, stands in"
    assert "visible ÷ held out not measured" in job_page(job, candidates).text


def test_the_result_is_the_held_out_figure_with_its_interval_and_the_winners_origin() -> None:
    job, candidates = story()
    page = job_page(job, candidates, held_out=stored.verdict([1.4, 1.6], split="held_out"))
    head = next(one for one in page.every() if one.attributes.get("id") == "head").text
    assert "1.50× 95 % interval 1.47 to 1.53" in head
    assert "faster than the best baseline over held-out shapes that no proposer saw" in head
    assert "Winner: one pass human: kernel library" in head
    assert "no language model took part" in head
    assert "held out shapes" in page.text


def test_a_rejection_is_told_in_words_with_rule_and_evidence() -> None:
    job, candidates = story()
    section = next(
        one for one in job_page(job, candidates).every() if one.attributes.get("id") == "rejected"
    ).text
    assert "cheating replays external Returned an earlier result." in section
    assert (
        "returned an earlier result although the inputs had changed stale_output call 3 equals call 1"
        in section
    )


def test_what_was_not_measured_is_never_shown_as_a_number() -> None:
    nothing = {
        "verdict": "accepted",
        "reason": "Correct; timing was void.",
        "findings": [],
        "environment": {},
        "shapes": [stored.shape(1, 8, "validation", None, None, "undecided"), stored.adversarial_shape(3, 5)],
        "summary": {"geomean_speedup": None},
    }
    one = stored.candidate("untimed", "compiler", validation=nothing)
    for page in (job_page(stored.job(best=stored.best_of(one)), [one]), candidate_page(one)):
        assert "not measured" in page.text
        assert not re.search(r"(?<![\d.])0(\.0+)?×", page.text)
        assert "nan" not in page.text.lower()
        assert "None" not in page.text
        assert re.search(r"adversarial\s*prime", page.text)


@pytest.mark.parametrize("state", ["queued", "running", "cancelling", "succeeded", "failed", "cancelled"])
def test_every_state_has_a_page_even_when_nothing_is_known(state: str) -> None:
    reason = "The module does not parse: line 3." if state == "failed" else None
    page = job_page(stored.job(state, reason=reason, verdict="task_rejected" if reason else None), [])
    assert words.state(state).label in page.text
    if reason:
        assert "Task rejected" in page.text
        assert reason in page.text
    is_running = state in ("queued", "running", "cancelling")
    assert ("data-events" in page.find("body")[0].attributes) == is_running
    assert bool(page.find("noscript")) == is_running, "without script a running page reloads itself"


def test_a_running_job_says_what_it_is_doing() -> None:
    events = [
        stored.event(1, "job.queued", 0),
        stored.event(2, "job.started", 1, attempt=2),
        stored.event(3, "candidate.proposed", 12, label="one pass", origin="human", sha256="a" * 64),
    ]
    page = job_page(stored.job("running"), [stored.candidate("one pass", "human")], events=events)
    assert "Judging one pass" in page.text
    assert "+0:12.0 Proposed: one pass human: kernel library" in page.text
    assert "attempt 2, resuming from what is stored" in page.text
    assert page.find("body")[0].attributes["data-after"] == "3"


def test_progress_is_what_happens_now_and_no_line_of_the_log() -> None:
    data = {
        "label": "one pass",
        "phase": "screen",
        "stage": "correctness",
        "done": 2,
        "total": 16,
        "text": "checking rows=7",
    }
    events = [
        stored.event(1, "job.started", 1),
        *(stored.event(n, "candidate.progress", n, **data) for n in range(2, 400)),
    ]
    page = job_page(stored.job("running"), [stored.candidate("one pass", "human")], events=events)
    assert "Screening one pass: checking rows=7 (3 of 16)" in page.text
    assert len(page.find("ol", class_="timeline")[0].find("li")) == 1
    assert page.find("body")[0].attributes["data-after"] == "399"


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        (
            "candidate.proposed",
            {"label": "mode x", "origin": "compiler", "skipped": "no triton"},
            "Not tried: mode x compiler · no triton",
        ),
        ("candidate.retried", {"label": "one", "reason": "too noisy"}, "Judging again: one too noisy"),
        (
            "portfolio.changed",
            {"label": "one", "origin": "human", "geomean_speedup": 1.5},
            "New best: one human: kernel library · 1.50×",
        ),
        ("proposer.failed", {"origin": "llm", "reason": "no answer"}, "A proposer gave up LLM · no answer"),
        ("budget.spent", {"model": "m", "tokens": 1200, "usd": 0.5}, "Asked a model m · 1,200 tokens, $0.50"),
        (
            "budget.spent",
            {"reason": "seconds", "text": "the budget is spent: seconds"},
            "Budget spent the budget is spent: seconds",
        ),
        ("something.new", {"text": "happened"}, "something new happened"),
        ("candidate.judged", {"sha256": 5, "verdict": None, "phase": 7}, "Judged: 5 in progress · 7"),
    ],
)
def test_events_are_told_in_words(name: str, data: dict[str, Any], said: str) -> None:
    page = job_page(stored.job("running"), [], events=[stored.event(1, name, 65, **data)])
    assert page.find("ol", class_="timeline")[0].text == f"+1:05.0 {said}"


def hostile_pages() -> list[Element]:
    finding = {"rule": HOSTILE, "severity": HOSTILE, "evidence": HOSTILE}
    bad = stored.verdict([1.5], word=HOSTILE, reason=HOSTILE, findings=[finding])
    bad["detail"] = HOSTILE
    bad["environment"] = dict.fromkeys(stored.ENVIRONMENT, HOSTILE)
    bad["shapes"][0]["dims"] = {HOSTILE: HOSTILE}
    bad["shapes"][0]["baselines"] = {HOSTILE: {"median_us": HOSTILE}}
    good = {**bad, "verdict": "accepted"}
    one = stored.candidate(HOSTILE, HOSTILE, source=HOSTILE, screen=bad)
    two = stored.candidate(
        HOSTILE, "llm", source=f"x = '''\n{HOSTILE}\n'''", validation=good, parent_sha256=one["sha256"]
    )
    two["note"] = HOSTILE
    job = stored.job(
        name=HOSTILE,
        reason=HOSTILE,
        verdict=HOSTILE,
        winner=stored.best_of(two),
        task={"name": HOSTILE, "sha256": HOSTILE, "catalog": False},
    )
    event = stored.event(1, HOSTILE, 1, label=HOSTILE, reason=HOSTILE, text=HOSTILE)
    judged = stored.event(
        2, "candidate.judged", 2, label=HOSTILE, verdict=HOSTILE, reason=HOSTILE, phase=HOSTILE
    )
    progress = stored.event(3, "candidate.progress", 3, label=HOSTILE, phase=HOSTILE, text=HOSTILE)
    return [
        job_page(job, [one, two], reference=HOSTILE, events=[event, judged]),
        job_page({**job, "state": "running"}, [one], reference=HOSTILE, events=[progress]),
        job_page({**job, "state": "failed", "winner": None}, [], reference=HOSTILE),
        candidate_page(one),
        candidate_page(two, parent=one, against="parent"),
        index_page([job], source=HOSTILE, name=HOSTILE, seconds=HOSTILE, errors=[(HOSTILE, HOSTILE)]),
        parse(bytes(render("error.html", title=HOSTILE, detail=HOSTILE).body).decode()),
    ]


def test_text_from_outside_never_becomes_markup() -> None:
    for page in hostile_pages():
        assert "<script>alert('x')</script>" in page.text
        for element in page.every():
            assert element.tag != "img"
            assert not any(name.startswith("on") for name in element.attributes), element
            if element.tag == "script":
                assert (element.attributes["src"] or "").startswith("/ui/static/live.js")
                assert element.text == ""


def every_page() -> list[Element]:
    job, candidates = story()
    return [
        index_page([job, stored.job("running")]),
        index_page([]),
        job_page(job, candidates),
        job_page(stored.job("running"), []),
        candidate_page(candidates[1]),
        candidate_page(candidates[3]),
        *hostile_pages(),
    ]


def test_pages_need_neither_inline_style_nor_another_host() -> None:
    policy = PAGE_HEADERS["Content-Security-Policy"]
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy
    for page in every_page():
        assert not page.find("style")
        for element in page.every():
            assert "style" not in element.attributes, element
            for name in ("src", "href", "action"):
                address = element.attributes.get(name)
                assert address is None or address.startswith(("/", "#", "?")), address
    sheet = (static_file("style.css") or b"").decode()
    assert "url(" not in sheet
    assert "@import" not in sheet


def test_pages_can_be_read_by_a_screen_reader() -> None:
    for page in every_page():
        assert page.find("html")[0].attributes["lang"] == "en"
        assert len(page.find("h1")) == 1
        ids = [element.attributes["id"] for element in page.every() if element.attributes.get("id")]
        assert len(ids) == len(set(ids)), "ids are unique"
        labelled = {label.attributes.get("for") for label in page.find("label")}
        for control in (*page.find("select"), *page.find("textarea"), *page.find("input")):
            is_wrapped = control.attributes.get("type") == "radio"
            is_named = is_wrapped or bool(control.attributes.get("aria-label"))
            assert is_named or control.attributes.get("id") in labelled, control.attributes
        for table in page.find("table"):
            assert all(head.attributes.get("scope") in ("col", "row") for head in table.find("th"))
            assert table.find("th"), "every table has heads"
        for picture in page.find("svg"):
            assert picture.attributes.get("aria-hidden") == "true" or (
                picture.find("title") and picture.find("desc")
            )
        for element in page.every():
            for name in ("aria-labelledby", "aria-describedby"):
                assert set((element.attributes.get(name) or "").split()) <= set(ids)


def luminance(color: str) -> float:
    channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    """Contrast ratio as WCAG 2 defines it."""
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_has_the_contrast_that_wcag_asks_for(theme: str) -> None:
    sheet = (static_file("style.css") or b"").decode()
    light, dark = re.findall(r":root\s*\{(.*?)\}", sheet, re.DOTALL)[:2]
    colors = dict(re.findall(r"--([a-z-]+):\s*(#[0-9a-f]{6})", light))
    if theme == "dark":
        colors |= dict(re.findall(r"--([a-z-]+):\s*(#[0-9a-f]{6})", dark))
    grounds = ("paper", "panel", "sunken")
    pairs = list(product(("ink", "soft", "faint", "link", "human", "compiler", "llm", "external"), grounds))
    pairs += [(word, f"{word}-bg") for word in ("good", "bad", "warn", "busy", "idle", "cheat")]
    pairs += [("on-accent", "accent"), ("good", "panel"), ("bad", "panel"), ("cheat", "panel")]
    pairs += list(product(("code", "t-k", "t-s", "t-n", "t-c", "t-f", "faint"), ("panel", "add", "del")))
    pairs += [(word, "good-bg") for word in ("human", "compiler", "llm", "external", "link", "ink")]
    weak = {pair: round(contrast(colors[pair[0]], colors[pair[1]]), 2) for pair in pairs}
    assert {pair: ratio for pair, ratio in weak.items() if ratio < 4.5} == {}


def test_a_diff_has_both_line_numbers_and_skips_what_is_equal() -> None:
    old = "\n".join(f"line {index}" for index in range(40))
    lines = listing.unified(old, old.replace("line 20", "line twenty"))
    assert lines is not None
    assert [(line.kind, line.old, line.new) for line in lines if line.kind in ("added", "removed")] == [
        ("removed", 21, None),
        ("added", None, 21),
    ]
    assert lines[0].kind == "gap"
    assert len(lines) == 1 + 3 + 2 + 3


def test_a_source_too_long_to_compare_is_said_to_be_so() -> None:
    long = "x = 1\n" * (listing.DIFF_LIMIT_LINES + 1)
    assert listing.unified(long, "x = 1\n") is None
    one = stored.candidate("long", "llm", source=long)
    assert "Too long to compare" in candidate_page(one).text


@pytest.mark.parametrize("source", ["", "\n", "a\r\nb\r", "\x0cform feed", "'''open", "\u2028", "é" * 9])
def test_any_text_can_be_listed_line_by_line(source: str) -> None:
    assert (
        len(listing.highlighted_lines(source))
        == source.replace("\r\n", "\n").replace("\r", "\n").rstrip("\n").count("\n") + 1
    )


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "not measured"),
        (float("nan"), "not measured"),
        (0, "0.0 s"),
        (42.4, "42 s"),
        (125, "2 min 05 s"),
        (3725, "1 h 02 min"),
    ],
)
def test_durations(value: object, shown: str) -> None:
    assert formats.seconds(value) == shown


def test_an_unknown_word_of_a_newer_referee_is_shown_as_it_is() -> None:
    assert words.verdict("power_limited").label == "power limited"
    assert words.rule("brand_new_rule") == "brand new rule"
    assert words.origin("robot").label == "robot"


def test_ranks_are_given_only_to_accepted_and_measured_candidates() -> None:
    _, candidates = story()
    board = ranking.leaderboard(candidates, None)
    assert [row.rank for row in board] == [1, 2, 3, None, None]
    assert not any(row.is_winner for row in board)
