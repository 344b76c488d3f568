"""Pages of fine-tuning runs: what they show to whom, and that a run's folder is a stranger's."""

from __future__ import annotations

import csv
import io
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from services.dashboard import run_files as files
from tests.browser.markup import parse
from tests.rl.run_folders import COMPARISON, NASTY, make_run
from tests.services.keyed import Keyed


@pytest.fixture
def keyed(tmp_path: Path) -> Iterator[Keyed]:
    made = Keyed(tmp_path, runs_dir=tmp_path / "elsewhere")
    run = make_run(tmp_path / "elsewhere" / "cpu" / "contrastive")
    (run / "comparison.json").write_text(json.dumps(COMPARISON))
    make_run(tmp_path / "elsewhere" / "alone")
    make_run(tmp_path / "runs" / "not-here")
    yield made
    made.close()


def test_the_list_says_where_each_run_stands(keyed: Keyed) -> None:
    answer = keyed.client().get("/runs", follow_redirects=True)
    assert answer.url.path == "/ui/runs"
    rows = [[cell.text for cell in row.children] for row in parse(answer.text).find("tbody")[0].find("tr")]
    assert sorted(row[0] for row in rows) == ["alone", "cpu/contrastive"]
    assert rows[0][1:4] == ["contrastive", "12 of 12", "0.167"]
    assert rows[0][4] == "1.70×"


def test_a_run_has_curves_its_comparison_and_what_was_caught(keyed: Keyed) -> None:
    answer = keyed.client().get("/runs/cpu~contrastive", follow_redirects=True)
    assert answer.url.path == "/ui/runs/cpu~contrastive"
    page = parse(answer.text)
    assert len([one for one in page.find("svg") if "curve" in (one.attributes.get("class") or "")]) == 3
    for words in (
        "2.000",
        "1.600 to 2.400",
        "gain",
        "no success before",
        "NVIDIA H200",
        "the referee: cheating",
    ):
        assert words in page.text, words
    assert NASTY in page.text
    assert all((one.attributes["src"] or "").startswith("/ui/static/") for one in page.find("script"))
    assert not page.find("img")


def test_tables_are_there_as_data(keyed: Keyed) -> None:
    client = keyed.client()
    for path, count in (
        ("tables/runs", 2),
        ("cpu~contrastive/tables/steps", 12),
        ("cpu~contrastive/tables/caught", 1),
    ):
        rows = list(csv.DictReader(io.StringIO(client.get(f"/ui/runs/{path}.csv").text)))
        same = client.get(f"/ui/runs/{path}.json").json()
        assert len(rows) == len(same["data"]) == count
        assert list(rows[0]) == same["columns"]
    assert client.get("/ui/runs/cpu~contrastive/tables/steps.json").json()["data"][1]["loss"] == 1.0
    for path in ("tables/secrets.csv", "alone/tables/config.json", "nobody", "nobody/tables/steps.csv"):
        assert client.get(f"/ui/runs/{path}").status_code == 404


def test_samples_and_the_model_s_path_are_for_admins(keyed: Keyed) -> None:
    clients = [keyed.client(keyed.key(name, scope)) for name, scope in (("root", "admin"), ("ada", "read"))]
    admin, reader = (client.get("/ui/runs/alone").text for client in clients)
    assert "Samples before and after" in admin
    assert "Samples before and after" not in reader
    assert "rmsnorm" in admin
    assert "rmsnorm" not in reader
    assert keyed.client().get("/ui/runs/alone").status_code == 401


@pytest.mark.parametrize(
    "name", ["%2e%2e", "..%2Fruns%2Fnot-here", "cpu", "linked", "cpu~..", "~", "a" * 301]
)
def test_no_name_leads_elsewhere(keyed: Keyed, name: str) -> None:
    (keyed.settings.runs / "linked").symlink_to(keyed.settings.data_dir / "runs" / "not-here")
    for path in (f"/ui/runs/{name}", f"/runs/{name}"):
        answer = keyed.client().get(path, headers={"Accept": "application/json"}, follow_redirects=False)
        assert answer.status_code in (404, 422), path
        assert "not-here" not in answer.text


def test_steps_beyond_all_reckoning_cost_no_page(keyed: Keyed) -> None:
    lines = [
        {"step": step, "task": "t", "source": "x", "word": "accepted", "speedup": 2.0}
        for step in (1.7e308, -1.7e308)
    ]
    file = keyed.settings.runs / "alone" / "samples.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert keyed.client().get("/ui/runs/alone").status_code == 200


def test_a_run_that_is_asked_for_again_is_read_once_until_it_changes(
    keyed: Keyed, monkeypatch: pytest.MonkeyPatch
) -> None:
    together, most, reads = [0], [0], [0]
    read = files.run_in

    def counted(folder: Path, name: str) -> files.Run:
        together[0] += 1
        reads[0] += 1
        most[0] = max(most[0], together[0])
        time.sleep(0.05)
        together[0] -= 1
        return read(folder, name)

    monkeypatch.setattr(files, "run_in", counted)
    client = keyed.client()
    names = ["alone"] * 6 + ["cpu~contrastive"] * 2
    with ThreadPoolExecutor(len(names)) as pool:
        answers = list(pool.map(lambda name: client.get(f"/ui/runs/{name}"), names))
    assert [answer.status_code for answer in answers] == [200] * len(names)
    assert most == [1]
    for name in ("alone", "cpu~contrastive", "cpu~contrastive"):
        assert client.get(f"/ui/runs/{name}").status_code == 200
    before = reads[0]
    assert client.get("/ui/runs/cpu~contrastive/tables/steps.csv").text.count("\r\n") == 13
    assert reads[0] == before
    with (keyed.settings.runs / "cpu" / "contrastive" / "metrics.jsonl").open("a") as file:
        file.write("\n" + json.dumps({"step": 13, "loss": 0.1}) + "\n")
    assert client.get("/ui/runs/cpu~contrastive/tables/steps.csv").text.count("\r\n") == 14
    assert reads[0] == before + 1


def test_a_folder_that_is_not_there_holds_no_runs(tmp_path: Path) -> None:
    keyed = Keyed(tmp_path)
    answer = keyed.client().get("/ui/runs")
    assert answer.status_code == 200
    assert "KERNELWRIGHT_RUNS_DIR" in answer.text
    keyed.close()
