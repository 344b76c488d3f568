"""A job from POST to bundle, and the referee by itself, over real HTTP; what a verdict decides is judged by the real referee."""

from __future__ import annotations

import io
import zipfile
from typing import Any

import pytest

from tests.evaluator.judging import UNTIMED
from tests.services.scripted_service import proposal
from tests.services.service import (
    ENDLESS,
    FEW_SHAPES,
    OFTEN_TASK,
    ONCE,
    TINY_TASK,
    UNPARSABLE,
    WRONG,
    Service,
    wait_until,
)


def ended(service: Service, evaluation: dict[str, Any]) -> dict[str, Any]:
    """An evaluation once it has ended."""
    view = evaluation

    def look() -> bool:
        nonlocal view
        view = service.get(evaluation["urls"]["self"]).json()
        return view["state"] in ("succeeded", "failed", "cancelled")

    wait_until(look, 120, lambda: f"{view}\n{service.log_tail()}")
    return view


def is_voided(service: Service, job_id: str) -> bool:
    """Whether the machine was too noisy to time on."""
    return any(
        view["verdict"] == "not_judged" and UNTIMED in view["reason"] for view in service.candidates(job_id)
    )


@pytest.fixture(
    params=["recorded", pytest.param("ahead", marks=[pytest.mark.alone, pytest.mark.slow])],
    ids=["recorded verdicts", "real verdicts"],
)
def worked(request: pytest.FixtureRequest) -> Service:
    """A service that accepts what is faster: at night because it has timed it."""
    found: Service = request.getfixturevalue(request.param)
    return found


def test_a_job_runs_from_post_to_bundle_and_tells_its_story_once(worked: Service) -> None:
    service = worked
    body = {
        "source": OFTEN_TASK,
        "name": "tiny",
        "origins": ["human"],
        "start_from": ONCE,
        "shapes": FEW_SHAPES,
    }
    for _ in range(3):
        response = service.post("/optimize", body)
        assert response.status_code == 202
        queued = response.json()
        assert response.headers["Location"] == queued["urls"]["self"] == f"/jobs/{queued['id']}"
        assert queued["state"] == "queued"
        assert queued["task"]["catalog"] is False

        told = list(service.stream(queued["id"]))
        if not is_voided(service, queued["id"]):
            break
    job = service.job(queued["id"])
    assert job["state"] == "succeeded", job

    names = [event["name"] for event in told]
    assert names[0] == "job.queued"
    assert names[-1] == "job.finished"
    assert names.count("job.started") == 1
    ids = [event["id"] for event in told]
    assert ids == sorted(set(ids))
    assert told == service.events(queued["id"])

    assert job["attempt"] == 1
    assert job["counts"]["candidates"] == len(service.candidates(job["id"]))
    assert job["counts"]["pending"] == 0
    assert job["summary"]["geomean_speedup"] > 1
    judged = [
        (event["data"]["sha256"], event["data"]["phase"])
        for event in told
        if event["name"] == "candidate.judged"
    ]
    assert len(judged) == len(set(judged)) >= 2

    bundle = service.get(job["urls"]["bundle"])
    assert bundle.headers["content-type"] == "application/zip"
    files = {name.rsplit("/", 1)[-1] for name in zipfile.ZipFile(io.BytesIO(bundle.content)).namelist()}
    assert files >= {"optimized.py", "evidence.json", "report.html", "reproduce.py"}


def test_a_stream_resumes_after_the_last_event_seen(recorded: Service) -> None:
    service = recorded
    job_id = service.submit(source=TINY_TASK, origins=["human"], start_from=WRONG)
    whole = list(service.stream(job_id))
    assert list(service.stream(job_id, last_event_id=whole[1]["id"])) == whole[2:]
    # a browser's EventSource reconnects for ever unless it is told that nothing more will come
    headers = {"Accept": "text/event-stream", "Last-Event-ID": str(whole[-1]["id"])}
    assert service.get(f"/jobs/{job_id}/events", headers=headers).status_code == 204


def test_an_external_candidate_joins_a_job_that_has_ended(recorded: Service) -> None:
    service = recorded
    job_id = service.submit(source=TINY_TASK, origins=["human"], start_from=WRONG)
    before = service.wait_for(job_id)
    mine = proposal("wrong", 1)

    response = service.post(f"/jobs/{job_id}/candidates", {"candidate": mine, "label": "mine"})
    assert response.status_code == 202
    first = response.json()
    assert (first["origin"], first["label"], first["state"]) == ("external", "mine", "pending")
    told = list(service.stream(job_id, last_event_id=service.events(job_id)[-1]["id"]))

    view = service.get(response.headers["Location"]).json()
    assert view["verdict"] == "incorrect", view
    assert view["state"] == "judged"
    assert view["reason"]
    assert [event["name"] for event in told if event["name"] != "candidate.progress"] == ["candidate.judged"]
    again = service.post(f"/jobs/{job_id}/candidates", {"candidate": mine}).json()
    assert (again["id"], again["verdict"]) == (first["id"], "incorrect")
    after = service.job(job_id)
    assert (after["state"], after["reason"]) == (before["state"], before["reason"])
    assert after["counts"] == {"candidates": 2, "accepted": 0, "rejected": 2, "pending": 0}


def test_a_task_that_is_no_task_ends_its_job_with_a_named_verdict(service: Service) -> None:
    job = service.wait_for(service.submit(source="x = 1\n", origins=["human"]))
    assert (job["state"], job["verdict"]) == ("failed", "task_rejected"), job
    assert "Model" in job["reason"]
    response = service.get(job["urls"]["bundle"])
    assert response.status_code == 409
    assert response.headers["content-type"] == "application/problem+json"


def test_evaluate_answers_with_the_verdict_when_asked_to_wait(service: Service) -> None:
    response = service.post(
        "/evaluate", {"source": TINY_TASK, "candidate": WRONG}, headers={"Prefer": "wait=300"}, timeout=70
    )
    assert response.status_code == 200, response.text
    assert response.headers["Preference-Applied"] == "wait=60", "what is waited at most"
    view = response.json()
    assert view["verdict"] == "incorrect", view
    assert view["result"]["schema"] == "kernelwright.verdict/1"
    assert view["result"]["candidate"]["sha256"] == view["candidate"]["sha256"]
    assert view["result"]["reason"] == view["reason"]
    assert service.get(view["urls"]["self"]).json() == view


def test_evaluate_judges_at_the_shapes_that_are_asked_for(service: Service) -> None:
    shapes = {"visible": [{"rows": 3, "cols": 24}], "adversarial": [{"rows": 5, "cols": 8}]}
    response = service.post(
        "/evaluate",
        {"source": TINY_TASK, "candidate": WRONG, "shapes": shapes},
        headers={"Prefer": "wait=60"},
        timeout=70,
    )
    result = response.json()["result"]
    assert result["verdict"] == "incorrect", response.text
    assert "rows=3, cols=24" in result["reason"] or "rows=5, cols=8" in result["reason"]


def test_evaluate_answers_at_once_when_not(service: Service) -> None:
    response = service.post("/evaluate", {"source": TINY_TASK, "candidate": UNPARSABLE})
    assert response.status_code == 202
    assert response.headers["Location"] == response.json()["urls"]["self"]
    view = ended(service, response.json())
    assert view["verdict"] in ("compile_error", "contract_violation"), view


@pytest.mark.slow
def test_the_next_evaluation_runs_after_one_that_hangs(service: Service) -> None:
    hangs = service.post("/evaluate", {"source": TINY_TASK, "candidate": ENDLESS, "deadline_s": 20}).json()
    after = service.post("/evaluate", {"source": TINY_TASK, "candidate": WRONG}).json()
    assert ended(service, hangs)["verdict"] == "timeout"
    assert ended(service, after)["verdict"] == "incorrect"


def test_one_idempotency_key_makes_one_job(door: Service) -> None:
    body = {"source": "y = 2\n", "origins": ["human"]}
    key = {"Idempotency-Key": "the-first-of-its-kind"}
    first = door.post("/optimize", body, headers=key).json()
    assert door.post("/optimize", body, headers=key).json()["id"] == first["id"]
    assert door.post("/optimize", {**body, "name": "other"}, headers=key).status_code == 409
    assert door.post("/optimize", body).json()["id"] != first["id"]


def test_lists_are_paged_newest_first(door: Service) -> None:
    made = [door.submit(source=f"z = {number}\n", origins=["human"]) for number in range(3)]
    page = door.get("/jobs?limit=2").json()
    assert [job["id"] for job in page["data"]] == [made[2], made[1]]
    assert page["has_more"] is True
    rest = door.get(f"/jobs?limit=1&after={page['last_id']}").json()
    assert [job["id"] for job in rest["data"]] == [made[0]]


def test_readiness_says_which_sandbox_held(service: Service) -> None:
    checks = service.wait_until_ready()["checks"]
    assert checks["sandbox"]["tier"] in ("namespaces", "landlock")
    assert service.get("/healthz").json() == {"status": "alive"}
