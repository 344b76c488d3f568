"""A bundle comes from anywhere: whole ones are read, others are refused in a sentence, and nothing is unpacked."""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.errors import UnreadableBundle
from agent.upkeep.reading import read_bundle
from tests.agent.upkeep.bundles import SHAPES, write
from tests.services.service import CORRECT


def rewritten(path: Path, name: str, change: Callable[[bytes], bytes | None]) -> Path:
    """The archive with one file changed, or without it."""
    other = path.with_name("other.zip")
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(other, "w", zipfile.ZIP_DEFLATED) as new:
        for entry in old.infolist():
            content = old.read(entry)
            if entry.filename.endswith(f"/{name}"):
                changed = change(content)
                if changed is None:
                    continue
                content = changed
            new.writestr(entry.filename, content)
    return other


def test_zip_and_folder_say_the_same(tmp_path: Path) -> None:
    path = write(tmp_path, (2.0, 0.5))
    read = read_bundle(path)
    assert read == read_bundle(path.with_suffix(""))
    assert read.optimized == CORRECT
    assert [shape.dims for shape in read.recorded] == list(SHAPES)
    assert [shape.speedup for shape in read.recorded] == [2.0, 0.5]
    assert read.environment["device"] == "cpu"


def test_kernels_that_were_deleted_are_not_missed(tmp_path: Path) -> None:
    folder = write(tmp_path).with_suffix("")
    shutil.rmtree(folder / "kernels")
    assert read_bundle(folder).recorded


@pytest.mark.parametrize("name", ["optimized.py", "task.py", "evidence.json"])
def test_what_is_missing_is_named(tmp_path: Path, name: str) -> None:
    path = write(tmp_path)
    with pytest.raises(UnreadableBundle, match=name):
        read_bundle(rewritten(path, name, lambda _: None))
    (path.with_suffix("") / name).unlink()
    with pytest.raises(UnreadableBundle, match=name):
        read_bundle(path.with_suffix(""))


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("optimized.py", lambda text: text + b"# edited\n", "not the file that the evidence is about"),
        ("task.py", lambda text: text + b"# edited\n", "not the file that the evidence is about"),
        ("optimized.py", lambda _: b"\xff\xfe\x00", "not text"),
        ("evidence.json", lambda text: text[:200], "not JSON"),
        ("evidence.json", lambda _: b"[" * 200_000, "not JSON"),
        ("evidence.json", lambda _: b"[]", "not of the form"),
        ("evidence.json", lambda text: text.replace(b"evidence/1", b"evidence/9"), "not of the form"),
    ],
)
def test_what_is_damaged_is_refused(
    tmp_path: Path, name: str, change: Callable[[bytes], bytes], words: str
) -> None:
    with pytest.raises(UnreadableBundle, match=words):
        read_bundle(rewritten(write(tmp_path), name, change))


def test_a_damaged_archive_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path)
    content = bytearray(path.read_bytes())
    with pytest.raises(UnreadableBundle, match="cannot read"):
        read_bundle(tmp_path / "nowhere.zip")
    for start in range(0, len(content), 997):
        damaged = (
            content[:start]
            + bytes(byte ^ 0xFF for byte in content[start : start + 40])
            + content[start + 40 :]
        )
        path.write_bytes(damaged)
        try:
            read_bundle(path)  # what lies outside of the three files may be damaged
        except UnreadableBundle:
            continue
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(UnreadableBundle, match="no archive"):
        read_bundle(path)


def test_an_entry_that_grows_without_end_is_not_read_to_its_end(tmp_path: Path) -> None:
    huge = rewritten(write(tmp_path), "task.py", lambda _: b" " * (64 << 20))
    assert huge.stat().st_size < 1 << 20
    with pytest.raises(UnreadableBundle, match="larger than any"):
        read_bundle(huge)


def test_figures_that_are_none_are_left_out(tmp_path: Path) -> None:
    def spoil(text: bytes) -> bytes:
        evidence = json.loads(text)
        good = evidence["verdicts"][0]["shapes"][0]
        bad = [
            {**good, "speedup": None},
            {**good, "speedup": float("nan")},
            {**good, "speedup": -1.0},
            {**good, "speedup": True},
            {**good, "ci95": [1.0]},
            {**good, "ci95": [5.0, 6.0]},
            {**good, "ci95": "no"},
            {**good, "dims": {"rows": {"nested": 1}}},
            {**good, "dims": None},
            "no row",
        ]
        evidence["verdicts"][0]["shapes"] = [*bad, good]
        return json.dumps(evidence).encode()

    read = read_bundle(rewritten(write(tmp_path), "evidence.json", spoil))
    assert [shape.dims for shape in read.recorded] == [SHAPES[0]]
