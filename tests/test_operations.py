"""docs/operations.md and what Prometheus and Grafana are given: whatever is named there exists, and runs where it can."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
import yaml
from typer.testing import CliRunner

from services.cli import app
from services.db.models import Bundle, Job, Verdict, Worker
from services.db.session import Database
from services.db.types import epoch_seconds
from services.db.upgrade import upgrade
from services.observing.metrics import Metrics
from tests import servers
from tests.services.databases import new_job, new_sqlite
from tests.test_compose import REPOSITORY, compose

PAGE = (REPOSITORY / "docs/operations.md").read_text(encoding="utf-8")
DASHBOARD: dict[str, Any] = json.loads((REPOSITORY / "deploy/grafana/kernelwright.json").read_text())
ALERTS = [
    rule
    for group in yaml.safe_load((REPOSITORY / "deploy/alerts.yml").read_text())["groups"]
    for rule in group["rules"]
]
COMPOSE_COMMANDS = {"build", "exec", "logs", "ps", "run", "stop", "up"}


def commands(page: str = PAGE) -> list[str]:
    """Every line of the page's shell blocks."""
    return [
        line for block in re.findall(r"```sh\n(.*?)```", page, flags=re.DOTALL) for line in block.splitlines()
    ]


def within_database(line: str) -> str | None:
    """What a line runs beside the database, without the words that lead there."""
    prefix = "docker compose exec -T db "
    return line.removeprefix(prefix) if line.startswith(prefix) else None


@cache
def help_of(*words: str) -> str:
    """What a command says of itself."""
    plain = {"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}
    if words[0] == "services.cli":
        return CliRunner().invoke(app, [*words[1:], "--help"], env=plain).output
    environment = {**os.environ, **plain}
    command = [sys.executable, "-m", *words, "--help"]
    return subprocess.run(
        command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=True
    ).stdout


def paths() -> set[str]:
    """Paths of the API, templates filled with an id."""
    from services.application import create_app
    from services.settings import Settings

    found = create_app(Settings(data_dir=Path("/nowhere"), database_url="sqlite://")).openapi()["paths"]
    return {re.sub(r"\{\w+\}", "01h00000000000000000000000", path) for path in found}


def problems_of(line: str) -> Iterator[str]:
    """What a line of the page names and does not exist."""
    words = shlex.split(line)
    options = [word.partition("=")[0] for word in words if word.startswith("--")]
    match words:
        case ["docker", "compose", *rest]:
            yield from compose_problems(rest)
        case ["kernelwright", command, *_]:
            if command not in help_of("services.cli"):
                yield f"no command {command}"
            else:
                yield from (
                    f"no option {one}" for one in options if one not in help_of("services.cli", command)
                )
        case ["python3", script, *_] | ["cp", script, ".env"]:
            if not (REPOSITORY / script).is_file():
                yield f"no file {script}"
        case ["curl", *_]:
            (url,) = [word for word in words if word.startswith("http://127.0.0.1:8000/")]
            if url.removeprefix("http://127.0.0.1:8000") not in paths():
                yield f"no path {url}"
        case ["alembic", "-c", config, "upgrade" | "current", *_]:
            if not (REPOSITORY / config).is_file():
                yield f"no file {config}"
        case ["celery", "-A", "services.worker.app", "worker", *_]:
            yield from (f"no option {one}" for one in options if one not in help_of("celery", "worker"))
        case ["sqlite3" | "rm" | "cp", *_]:
            pass  # run below
        case _:
            yield "a command that this test does not know"


def compose_problems(words: list[str]) -> Iterator[str]:
    document = compose()
    profiles = {one for service in document["services"].values() for one in service.get("profiles", [])}
    while words[0] == "--profile":
        if words[1] not in profiles:
            yield f"no profile {words[1]}"
        words = words[2:]
    command, *rest = words
    if command not in COMPOSE_COMMANDS:
        yield f"no subcommand {command} that this page should use"
    within = [one for one in rest if one != "-T"]
    if command == "exec" and within[1] == "kernelwright":
        known = help_of("services.cli", *within[2:4])
        options = [one for one in within if one.startswith("--")]
        yield from (f"no option {one}" for one in options if one not in known)
    if command == "exec" and within[1:3] == ["python", "-m"] and importlib.util.find_spec(within[3]) is None:
        yield f"no module {within[3]}"
    named = [word for word in rest if not word.startswith("-") and word not in ("1h", ">", "<")]
    if command in ("exec", "run"):
        named = named[:1]
    yield from (f"no service {one}" for one in named if one not in document["services"])


CLIENTS_PAGE = (REPOSITORY / "docs/clients.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("line", [*commands(), *commands(CLIENTS_PAGE)])
def test_command_exists(line: str) -> None:
    assert list(problems_of(line)) == []


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("docker compose stop worker", "no service worker"),
        ("docker compose --profile watch up", "no profile watch"),
        ("docker compose restart api", "no subcommand restart that this page should use"),
        ("kernelwright jobs --last 3", "no option --last"),
        ("kernelwright restart", "no command restart"),
        ("curl http://127.0.0.1:8000/ready", "no path http://127.0.0.1:8000/ready"),
        ("python3 scripts/secrets.py", "no file scripts/secrets.py"),
        ("make restore", "a command that this test does not know"),
    ],
)
def test_what_does_not_exist_is_named(line: str, problem: str) -> None:
    assert list(problems_of(line)) == [problem]


def populated(base: Database, folder: Path) -> str:
    """Fill a database with a row of each kind that metrics tell of; the job's id."""
    job_id = new_job(base, folder)
    with base.write() as session:
        session.add(Bundle(job_id=job_id, file_name="b.zip", content=bytes(range(256)) * 100))
        body = {"findings": [{"rule": "outputs_differ"}]}
        session.add(
            Verdict(job_id=job_id, sha256="0", phase="screen", word="incorrect", reason="", body=body)
        )
        check = {"device": {"device": "cuda", "device_name": "NVIDIA H200"}, "busy_share": 0.5}
        session.add(Worker(id="w", device="cuda", tier="landlock", self_check=check, seen_at=epoch_seconds()))
    return job_id


def kept(base: Database, job_id: str) -> tuple[str, bytes, int]:
    """What must survive a restore."""
    with base.read() as session:
        job, bundle = session.get(Job, job_id), session.get(Bundle, job_id)
        assert job is not None
        assert bundle is not None
        return job.name, bundle.content, session.query(Verdict).count()


def shell(line: str, folder: Path, **environment: str) -> str:
    """Run a line of the page as a shell would."""
    done = subprocess.run(
        ["bash", "-euc", line],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.services("postgres")
def test_a_dump_of_postgresql_is_restored(postgres_url: str, tmp_path: Path) -> None:
    programs = servers.postgres_programs()
    place = sqlalchemy.make_url(postgres_url)
    environment = {
        "PATH": f"{programs}:{os.environ['PATH']}", "PGHOST": str(place.host), "PGPORT": str(place.port),
        "PGUSER": str(place.username),
    }  # fmt: skip
    assert place.username == "kernelwright"
    lines = [found for line in commands() if (found := within_database(line)) is not None]
    dump, drop, create, restore, sizes = lines
    shell(create, tmp_path, **environment)
    base = Database(place.set(database="kernelwright").render_as_string(hide_password=False))
    try:
        upgrade(base)
        job_id = populated(base, tmp_path)
        before = kept(base, job_id)
        assert "bundles" in shell(sizes, tmp_path, **environment)
        for line in (dump, drop, create, restore):
            shell(line, tmp_path, **environment)
        base.close()
        upgrade(base)
        assert kept(base, job_id) == before
    finally:
        base.close()
        shell(drop, tmp_path, **environment)


@pytest.mark.skipif(
    shutil.which("sqlite3") is None, reason="no sqlite3 on PATH (Debian: apt-get install sqlite3)"
)
def test_a_copy_of_sqlite_is_restored_while_the_service_writes(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    base = Database(f"sqlite:///{data / 'kernelwright.db'}")
    upgrade(base)
    job_id = populated(base, tmp_path)
    before = kept(base, job_id)
    environment = {"KERNELWRIGHT_DATA_DIR": str(data)}
    backup, remove, copy, check = [
        line for line in commands() if line.startswith(("sqlite3", 'rm -f "', "cp kernelwright-backup"))
    ]
    with base.uncommitted() as writer:
        writer.execute(sqlalchemy.text("DELETE FROM bundles"))
        shell(backup, tmp_path, **environment)
        writer.commit()
    base.close()
    for line in (remove, copy):
        shell(line, tmp_path, **environment)
    assert shell(check, tmp_path, **environment) == "ok\n"
    assert kept(base, job_id) == before
    base.close()


def test_the_schema_is_taken_forward_by_hand(tmp_path: Path) -> None:
    lines = [line for line in commands() if line.startswith("alembic")]
    environment = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "KERNELWRIGHT_DATABASE_URL": f"sqlite:///{tmp_path / 'by-hand.db'}",
        "PYTHONPATH": f"{REPOSITORY}:{os.environ.get('PYTHONPATH', '')}",
    }
    for line in lines:
        said = shell(line, REPOSITORY, **environment)
    assert "(head)" in said


def names_in(expression: str) -> set[str]:
    return set(re.findall(r"\b(?:kernelwright|process)_\w+", expression))


@pytest.fixture(scope="module")
def exposed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A scrape in which every metric has a sample."""
    folder = tmp_path_factory.mktemp("metrics")
    base = new_sqlite(folder)
    populated(base, folder)
    with base.write() as session:
        session.execute(sqlalchemy.update(Job).values(device="cuda"))
        session.add(Job(id="2", name="n", device="cpu", task_name="t", task_sha256="", task_source="", request={},
                        state="succeeded"))  # fmt: skip
        session.add(
            Worker(
                id="sick", device="cuda", seen_at=time.time(), self_check={"health": [{"rule": "gpu_ecc"}]}
            )
        )
    metrics = Metrics(base)
    metrics.latency.labels("GET", "/jobs", "200").observe(0.01)
    base.close()
    return metrics.text().decode()


def test_dashboard_and_alerts_ask_for_metrics_and_labels_that_exist(exposed: str) -> None:
    have = {
        name: set(re.findall(r'(\w+)="', labels))
        for name, labels in re.findall(r"^(\w+)(?:\{(.*)\})? \S+$", exposed, flags=re.MULTILINE)
    }
    asked = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    assert len(asked) > 10
    for expression in [*asked, *(rule["expr"] for rule in ALERTS)]:
        unknown = names_in(expression) - set(have)
        assert not unknown, f"{expression}: nobody offers {unknown}"
        grouped = {
            one.strip() for group in re.findall(r"by \(([^)]*)\)", expression) for one in group.split(",")
        }
        for name in names_in(expression):
            assert grouped <= have[name], f"{expression}: {name} has no {grouped - have[name]}"
        for name, selector in re.findall(r"\b(kernelwright_\w+)\{([^}]*)\}", expression):
            picked = set(re.findall(r"(\w+)=~?\"", selector))
            assert picked <= have[name], f"{expression}: {name} has no {picked - have[name]}"
        assert expression.count("(") == expression.count(")")
    documented = set(re.findall(r"`(kernelwright_\w+)", PAGE.split("## Metrics")[1].split("## Incidents")[0]))
    families = {
        re.sub(r"_(?:bucket|count|sum|created)$", "", name)
        for name in have
        if name.startswith("kernelwright_")
    }
    assert documented == families


def test_what_grafana_and_prometheus_are_given_fits_together() -> None:
    scrape = yaml.safe_load((REPOSITORY / "deploy/prometheus.yml").read_text())
    (job,) = scrape["scrape_configs"]
    host, _, port = job["static_configs"][0]["targets"][0].partition(":")
    served = compose()["services"][host]["command"]
    assert served[served.index("--port") + 1] == port
    assert job["metrics_path"] in paths()
    secret = Path(job["authorization"]["credentials_file"])
    assert secret.parent == Path("/run/secrets")
    assert secret.name in compose()["services"]["prometheus"]["secrets"]
    mounted = {
        entry["source"]: entry["target"]
        for name in ("prometheus", "grafana")
        for entry in compose()["services"][name]["configs"]
    }
    assert scrape["rule_files"] == [mounted["alerts"]]
    provider = yaml.safe_load((REPOSITORY / "deploy/grafana/provider.yml").read_text())
    assert provider["providers"][0]["options"]["path"] == str(Path(mounted["grafana_dashboard"]).parent)
    source = yaml.safe_load((REPOSITORY / "deploy/grafana/datasource.yml").read_text())["datasources"][0]
    assert {panel["datasource"]["uid"] for panel in DASHBOARD["panels"]} == {source["uid"]}
    assert source["url"] == "http://prometheus:9090"
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


def test_each_alert_says_what_to_do() -> None:
    headings = set(re.findall(r"^### (\w+)$", PAGE, flags=re.MULTILINE))
    assert {rule["alert"] for rule in ALERTS} == headings
