"""The page of workers and devices: what each says of itself, who may see what of it, and that a row is only a claim."""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from services.db.models import Worker
from tests.browser.markup import parse
from tests.services.keyed import Keyed
from tests.services.ranked import H200

HOST = "secret-host.example/1234-5/678-9"
PROBLEM = "it says that it is an H200, but copying memory reaches a third"
HOSTILE = "<script>alert('x')</script>"
RATES = {
    "dram_bytes_per_s": 4.264e12,
    "bfloat16_flops_per_s": 7.98e14,
    "exp_per_s": 5.1e12,
    "operation_s": 2.5e-6,
}


def check_of(**changes: Any) -> dict[str, Any]:
    attacks = [{"name": "reads a file", "blocked": True}, {"name": "opens a socket", "blocked": True}]
    check = {"tier": "namespaces", "attacks": attacks, "device": H200, "ceilings": RATES, "busy_share": 0.75}
    return {**check, **changes}


@pytest.fixture
def keyed(tmp_path: Path) -> Iterator[Keyed]:
    made = Keyed(tmp_path)
    now = time.time()
    cpu = {"device": "cpu", "device_name": "Test CPU", "threads": 2, "torch": "2.13.0"}
    with made.base.write() as session:
        for row in (
            Worker(id=HOST, device="cuda", tier="namespaces", self_check=check_of(), seen_at=now),
            Worker(id="two/2", device="cuda", self_check=check_of(), problem=PROBLEM, seen_at=now - 3),
            Worker(id="three/3", device="cpu", self_check=None, seen_at=now - 1),
            Worker(id="four/4", device="cpu", tier="landlock", self_check=check_of(device=cpu, ceilings=None), seen_at=now - 3600),
        ):  # fmt: skip
            session.add(row)
    yield made
    made.close()


def table(page: Any, name: str) -> list[list[str]]:
    part = next(one for one in page.every() if one.attributes.get("id") == name)
    return [[cell.text for cell in row.children] for row in part.find("tbody")[0].find("tr")]


def test_the_page_says_who_judges_what_and_in_which_state(keyed: Keyed) -> None:
    page = parse(keyed.client().get("/ui/workers").text)
    rows = {row[2].removesuffix(PROBLEM): row for row in table(page, "workers")}
    assert set(rows) == {"ready", "refusing", "checking", "silent"}
    assert "NVIDIA H200" in rows["ready"][1]
    assert rows["ready"][4:] == ["namespaces", "2 of 2", "75 %"]
    assert rows["refusing"][2].endswith(PROBLEM)
    assert rows["checking"][4:6] == ["none held", "not tried"]
    assert rows["silent"][3] == "1 h 00 min ago"
    tiles = next(one for one in page.every() if one.attributes.get("id") == "capabilities").text
    assert "1 ready, 1 refusing" in tiles
    devices = next(one for one in page.every() if one.attributes.get("id") == "devices").text
    for said in (
        "dram 4.26 TB/s",
        "bfloat16 798 TFLOP/s",
        "exp 5.1 T/s",
        "operation 2.5 µs",
        "driver 580.1",
        "2 workers now",
    ):
        assert said in devices
    assert "Test CPU, 2 threads" in devices
    assert "Ceilings: not measured" in devices


def test_both_tables_are_there_as_data(keyed: Keyed) -> None:
    client = keyed.client()
    for name, count in (("workers", 4), ("devices", 2)):
        rows = list(csv.DictReader(io.StringIO(client.get(f"/ui/workers/tables/{name}.csv").text)))
        same = client.get(f"/ui/workers/tables/{name}.json").json()
        assert len(rows) == len(same["data"]) == count
        assert list(rows[0]) == same["columns"]
    gpu = next(one for one in same["data"] if one["device"] == "cuda")
    assert gpu["dram_bytes_per_s"] == RATES["dram_bytes_per_s"]
    assert gpu["workers"] == 2
    assert client.get("/ui/workers/tables/secrets.csv").status_code == 404


def test_names_of_hosts_are_for_admins(keyed: Keyed) -> None:
    admin, reader = (
        keyed.client(keyed.key(name, scope)) for name, scope in (("root", "admin"), ("ada", "read"))
    )
    for path in ("/ui/workers", "/ui/workers/tables/workers.csv", "/ui/workers/tables/workers.json"):
        assert "secret-host" in admin.get(path).text, path
        assert "secret-host" not in reader.get(path).text, path
        assert reader.get(path).status_code == 200
        assert keyed.client().get(path).status_code == 401


@pytest.mark.parametrize(
    "check",
    [
        {"device": HOSTILE, "attacks": HOSTILE, "ceilings": HOSTILE},
        {"device": {"device_name": HOSTILE, "torch": HOSTILE, "driver": [HOSTILE]}, "ceilings": {HOSTILE: 1e12, "x_s": HOSTILE}},
        {"device": {"device_name": "x" * 10**6}, "ceilings": {"a_per_s": -1, "b_per_s": True}, "attacks": [1, None]},
    ],
)  # fmt: skip
def test_what_a_worker_says_is_text_or_missing(keyed: Keyed, check: dict[str, Any]) -> None:
    with keyed.base.write() as session:
        session.add(
            Worker(id=HOSTILE, device="cuda", problem=HOSTILE, self_check={**check, "busy_share": HOSTILE}, seen_at=time.time())
        )  # fmt: skip
    client = keyed.client()
    answer = client.get("/ui/workers")
    assert answer.status_code == 200
    page = parse(answer.text)
    assert HOSTILE in page.text
    assert all((one.attributes["src"] or "").startswith("/ui/static/") for one in page.find("script"))
    assert len(answer.text) < 40_000
    for name in ("workers", "devices"):
        for ending in ("csv", "json"):
            assert client.get(f"/ui/workers/tables/{name}.{ending}").status_code == 200
