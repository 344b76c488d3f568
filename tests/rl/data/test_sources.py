"""Where proposals come from besides generated modules: the library, a service."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from kernelbench_tasks import catalog
from rl.data.__main__ import app
from rl.data.accepted import ServiceSilent, client_of, from_service, tasks_by_digest
from rl.data.proposals import from_library
from rl.errors import ConfigError
from services.client import ClientError
from services.client.sending import KEY_VARIABLE
from tests.services import service as services
from tests.services.databases import new_sqlite
from tests.services.ranked import confirmed, ended_job


def test_the_library_gives_each_of_its_kernels_with_its_task() -> None:
    for device, word in (("cpu", "load_inline"), ("cuda", "triton")):
        found = list(from_library(device))
        assert len(found) >= 10
        assert all("class ModelNew" in one.make() for one in found)
        assert any(word in one.make() for one in found)
        assert all(one.task.source == catalog.load(one.task.name).source for one in found)


def candidate(number: int, verdict: str = "accepted", origin: str = "llm") -> Any:
    return SimpleNamespace(
        id=f"c{number}",
        job_id="j",
        verdict=verdict,
        origin=origin,
        label="m",
        source=f"class ModelNew: n = {number}",
    )


class Service:
    """A client of a service that was not asked anything over a network."""

    def __init__(self, *jobs: tuple[str, str, list[Any]], fails: bool = False) -> None:
        self.kept, self.fails = jobs, fails

    def jobs(self) -> Any:
        for number, (sha256, device, found) in enumerate(self.kept):
            yield SimpleNamespace(
                id=str(number),
                task=SimpleNamespace(sha256=sha256),
                device=device,
                counts=SimpleNamespace(accepted=sum(one.verdict == "accepted" for one in found)),
            )
        if self.fails:
            raise ClientError("the service went away")

    def candidates(self, job_id: str) -> Any:
        yield from self.kept[int(job_id)][2]


def test_a_service_gives_what_it_accepted_of_tasks_that_are_known(tmp_path: Path) -> None:
    own = tmp_path / "mine.py"
    own.write_text("class Model: pass\n")
    tasks = tasks_by_digest([own])
    softmax = catalog.load("softmax").sha256
    mine = next(digest for digest, task in tasks.items() if task.name == "mine")
    service: Any = Service(
        (softmax, "cpu", [candidate(1), candidate(2, "incorrect"), candidate(3, origin="imported")]),
        (softmax, "cuda", [candidate(4)]),
        ("0" * 64, "cpu", [candidate(5)]),
        (mine, "cpu", [candidate(6)]),
    )
    found = list(from_service(service, "cpu", tasks, 10))
    assert [(one.id, one.task.name, one.origin) for one in found] == [
        ("service/cpu/c1", "softmax", "llm"),
        ("service/cpu/c3", "softmax", "external"),
        ("service/cpu/c6", "mine", "llm"),
    ]
    assert len(list(from_service(service, "cpu", tasks, 2))) == 2
    failing: Any = Service((softmax, "cpu", [candidate(1)]), fails=True)
    with pytest.raises(ServiceSilent, match="went away"):
        list(itertools.islice(from_service(failing, "cpu", tasks, 10), 5))
    with pytest.raises(ServiceSilent, match="cannot be read"):
        tasks_by_digest([tmp_path / "none.py"])


def test_what_a_real_service_shows_of_its_jobs_is_what_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    base = new_sqlite(tmp_path)
    mine = tmp_path / "mine.py"
    mine.write_text(services.TINY_TASK)
    for task, text, word in (
        ("softmax", None, "accepted"),
        ("softmax", None, "incorrect"),
        ("mine", services.TINY_TASK, "accepted"),
        ("unknown", services.OFTEN_TASK, "accepted"),
    ):
        screen = {**confirmed(1.5, "0" * 64), "verdict": word}
        source = f"# {task}, {word}\n"
        # What is delivered of a job is a candidate of its own, with a verdict of its own.
        ended_job(base, 1.5, task=task, task_source=text, source=source, screen=screen, verdict=word)
    url = base.engine.url.render_as_string(hide_password=False)
    base.close()
    with services.Service(
        tmp_path / "data", "--no-worker", environment={"KERNELWRIGHT_DATABASE_URL": url}
    ) as running:
        with client_of(running.url) as client:
            tasks = tasks_by_digest([mine])
            found = list(from_service(client, "cuda", tasks, 10))
            # Newest first, and nothing of tasks that nobody here knows.
            assert [(one.task.name, one.make(), one.origin) for one in found] == [
                ("mine", "# mine, accepted\n", "llm"),
                ("mine", "optimized # mine, accepted\n", "llm"),
                ("softmax", "# softmax, accepted\n", "llm"),
                ("softmax", "optimized # softmax, accepted\n", "llm"),
            ]
            assert len({one.id for one in found}) == 4
            assert {one.about["job"] for one in found} <= {job.id for job in client.jobs()}
            assert not list(from_service(client, "cpu", tasks, 10))
            running.kill()
            with pytest.raises(ServiceSilent, match="could not be read"):
                list(from_service(client, "cuda", tasks, 10))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "no task to evaluate on is named"),
        (["--held-out", "sofmax"], "sofmax"),
        (["--held-out", "softmax", "--device", "tpu"], "must be cpu or cuda"),
        (["--held-out", "nowhere.py"], "nowhere.py"),
    ],
)
def test_mistakes_are_told_before_anything_is_started(
    tmp_path: Path, arguments: list[str], said: str
) -> None:
    found = CliRunner().invoke(app, ["build", "--out", str(tmp_path / "rows.jsonl"), *arguments])
    assert found.exit_code == 2
    assert said in " ".join(found.output.split())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("url", ["ftp://x", "kernels.example.org", "http://me@x"])
def test_a_service_that_cannot_be_asked_is_a_wrong_setting(url: str) -> None:
    with pytest.raises(ConfigError, match=r"^`--service` cannot be asked: "):
        client_of(url)
