"""What lies in a bundle, that it is the same to the byte every time, and that nothing untrusted gets into its markup."""

from __future__ import annotations

import json
import zipfile
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

from agent.bundle.archive import bundle_files, write_bundle
from agent.bundle.evidence import BundleContents
from agent.candidates import Candidate
from evaluator.description import Description
from evaluator.sources import TaskSource
from evaluator.verdict import Verdict, from_json

EVIL = "</pre><script>alert(1)</script>"
KERNEL = f'''
SOURCE = r"""
#include <cmath>
extern "C" void f(float* x) {{}}
"""
# {EVIL}
class ModelNew: pass
'''
MEMBER = Candidate(KERNEL, "human", f"library {EVIL}", note="adapted from a paper")
COMPILED = Candidate("class ModelNew: pass\n", "compiler", "compile default")
OPTIMIZED = Candidate("class ModelNew: pass  # optimized\n", "human", "optimized.py", MEMBER.sha256)


def verdict(candidate: Candidate, phase: str) -> tuple[str, Verdict]:
    row = {
        "dims": {"rows": 7, "kind": EVIL},
        "split": phase,
        "timed": True,
        "best_baseline": "compile_default/2t",
        "baseline_us": 20.0,
        "candidate_us": 10.0,
        "speedup": 2.0,
        "ci95": [1.9, 2.1],
        "decision": "faster",
        "log_ratios": [0.69, 0.7],
    }
    document = {
        "verdict": "accepted",
        "reason": "",
        "candidate": {"sha256": candidate.sha256, "origin": candidate.origin, "label": candidate.label},
        "environment": {"device_name": "a CPU", "gpu_uuid": None},
        "shapes": [row],
        "summary": {"geomean_speedup": 2.0, "geomean_ci95": [1.9, 2.1], "worst_speedup": 2.0},
        "timing": {"protocol": "ABBA"},
    }
    return phase, from_json(document)


def contents(*members: Candidate) -> BundleContents:
    return BundleContents(
        job_name=f"my job/../{EVIL}",
        device="cpu",
        task=TaskSource("task", f"class Model: pass  # {EVIL}\n"),
        description=Description(),
        optimized=OPTIMIZED,
        members=members or (MEMBER,),
        decision="faster",
        reason=f"2.00x {EVIL}",
        verdicts=(verdict(MEMBER, "validation"), verdict(OPTIMIZED, "held_out")),
        leaderboard=(
            {
                "sha256": "ab" * 32,
                "label": EVIL,
                "origin": "llm",
                "verdict": "cheating",
                "reason": EVIL,
                "geomean_speedup": None,
                "ci95": None,
            },
        ),
    )


class Page(HTMLParser):
    """Collects tags, addresses and text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.words = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href")]

    def handle_data(self, data: str) -> None:
        self.words += data


def test_holds_everything_the_user_needs() -> None:
    files = bundle_files(contents(MEMBER, COMPILED))
    kernels = sorted(path for path in files if path.startswith("kernels/"))
    assert {"optimized.py", "task.py", "evidence.json", "report.html", "reproduce.py", "LICENSE"} <= set(
        files
    )
    assert files["optimized.py"] == OPTIMIZED.source
    assert [Path(path).suffix for path in kernels] == [".py", ".cpp", ".py"]
    assert 'extern "C"' in files[kernels[1]]
    assert all(ord(letter) < 128 and letter not in '<>:"\\|?*' for path in files for letter in path)


def test_evidence_keeps_the_raw_samples_and_where_each_member_came_from() -> None:
    value = json.loads(bundle_files(contents())["evidence.json"])
    held_out = next(one for one in value["verdicts"] if one["phase"] == "held_out")
    assert held_out["shapes"][0]["log_ratios"] == [0.69, 0.7]
    assert value["members"][0]["origin"] == "human"
    assert value["members"][0]["file"] in bundle_files(contents())
    assert value["task"]["sha256"] == contents().task.sha256
    assert value["optimized"]["sha256"] == OPTIMIZED.sha256


def test_the_license_names_what_was_used() -> None:
    assert "BSD-3" not in bundle_files(contents())["LICENSE"].split("Kernelwright\n")[0]
    assert "Facebook" not in bundle_files(contents())["LICENSE"]
    assert "Facebook" in bundle_files(contents(COMPILED))["LICENSE"]
    assert "adapted from a paper" in bundle_files(contents())["LICENSE"]


def test_the_report_is_self_contained_and_escapes_what_it_shows() -> None:
    page = Page(bundle_files(contents())["report.html"])
    assert "script" not in page.tags
    assert page.addresses == []
    assert page.words.count("alert(1)") >= 6
    for words in (
        "no language model was involved",
        "compile_default/2t",
        "1.90 – 2.10",
        "cheating",
        "not known",
    ):
        assert words in page.words


def test_the_report_shows_the_users_own_shapes_with_their_weights() -> None:
    assert "Your own shapes" not in Page(bundle_files(contents())["report.html"]).words
    (phase, chosen), held_out = contents().verdicts
    traffic = {
        "geomean_speedup": 2.5, "geomean_ci95": [2.4, 2.6], "time_speedup": 3.0, "shapes": 1, "share": 0.4
    }  # fmt: skip
    summary, shapes = replace(chosen.summary, traffic=traffic), (replace(chosen.shapes[0], weight=1200.0),)
    made = replace(contents(), verdicts=((phase, replace(chosen, summary=summary, shapes=shapes)), held_out))
    words = " ".join(Page(bundle_files(made)["report.html"]).words.split())
    assert "1,200" in words
    assert "weighted by traffic 2.50x [2.40, 2.60] over 1 shape, 40% of the traffic" in words


def test_the_report_says_which_member_runs_where_and_what_each_brings() -> None:
    assert "Which member runs where" not in Page(bundle_files(contents())["report.html"]).words
    gain = {"sha256": "cd" * 32, "label": EVIL, "origin": "llm", "member": False, "ratio": 1.0234}
    dispatch = {
        "rules": [{"where": "rows <= 64", "runs": EVIL, "why": "1.50x the best baseline over 3 shapes"}],
        "gains": [gain],
        "efficiency": 0.987,
        "shapes": 12,
        "goal": {"where": "cols > 64", "shapes": 3, "geomean": 1.02, "rest": 1.9},
    }
    page = Page(bundle_files(replace(contents(), dispatch=dispatch))["report.html"])
    words = " ".join(page.words.split())
    assert "chosen by 12 validation shapes" in words
    assert "98.7%" in words
    assert "Least is gained where cols > 64: 1.02x over 3 shapes, against 1.90x" in words
    assert "rows <= 64</pre><script>alert(1)</script>1.50x the best baseline over 3 shapes" in words
    assert "cdcdcdcdcdcdllm no1.023x" in words
    assert "script" not in page.tags


ENERGY = {
    "baseline": {"joules": 0.25, "joules_above_idle": 0.2}, "candidate": {"joules": 0.125, "joules_above_idle": 0.1},
    "ratio": 2.0, "low": 1.9, "high": 2.1,
}  # fmt: skip


def with_rows(count: int) -> BundleContents:
    """Contents whose held-out verdict has so many shapes, all of them on one smooth law."""
    made = contents()
    validation, (phase, held_out) = made.verdicts
    template = held_out.shapes[0]
    shapes = []
    for index in range(count):
        rows, cols = 8 << index % 8, 16 << index // 8
        time_us = 5.0 + rows * cols / 1e4
        shapes.append(
            replace(
                template,
                dims={"rows": rows, "cols": cols, "kind": EVIL},
                baseline_us=time_us,
                candidate_us=time_us / 2,
                energy=ENERGY if index == 3 else None,
            )
        )
    return replace(made, verdicts=(validation, (phase, replace(held_out, shapes=tuple(shapes)))))


def test_the_map_is_in_the_report_and_a_file_of_its_own() -> None:
    plain = bundle_files(contents())  # one size alone varies in nothing
    assert "performance_map.svg" not in plain
    assert "Work per second by size" not in Page(plain["report.html"]).words
    files = bundle_files(with_rows(16))
    report, drawing = Page(files["report.html"]), Page(files["performance_map.svg"])
    words = " ".join(report.words.split())
    assert "Work per second by size" in words and "reaches at least 70% of what neighboring sizes" in words
    assert f"with kind {EVIL}" in words
    assert report.tags.count("svg") == 2 and "script" not in report.tags + drawing.tags
    assert drawing.tags.count("title") == 1 + 2 * 16  # its own, and a cell's on each side


def test_the_report_says_joules_where_they_were_measured() -> None:
    made = with_rows(48)
    words = " ".join(Page(bundle_files(made)["report.html"]).words.split())
    assert "rows=64, cols=16" in words and "0.25 (0.2) 0.125 (0.1) 2.00 1.90 – 2.10" in words


def test_the_zip_is_the_same_to_the_byte(tmp_path: Path) -> None:
    first = write_bundle(contents(), tmp_path / "a")
    second = write_bundle(contents(), tmp_path / "b")
    assert first.read_bytes() == second.read_bytes()
    assert write_bundle(contents(), tmp_path / "a") == first, "writing again replaces"
    with zipfile.ZipFile(first) as archive:
        names = archive.namelist()
        assert archive.testzip() is None
    folder = first.with_suffix("")
    assert sorted(names) == names
    assert {name.partition("/")[0] for name in names} == {folder.name}
    assert all(".." not in name and "<" not in name for name in names)
    assert (folder / "optimized.py").read_text() == OPTIMIZED.source
