"""A line of a manifest that is of no use says why, and spoils no other line."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from evaluator.batch import manifest
from evaluator.batch.manifest import BadLine, Entry, ManifestUnreadable, read_manifest


def written(tmp_path: Path, *lines: bytes | str | dict[str, Any]) -> Path:
    """A manifest of these lines beside a task and a candidate."""
    (tmp_path / "task.py").write_text("the task")
    (tmp_path / "fast.py").write_text("the candidate")
    path = tmp_path / "manifest.jsonl"
    raw = [
        line if isinstance(line, bytes) else (line if isinstance(line, str) else json.dumps(line)).encode()
        for line in lines
    ]
    path.write_bytes(b"\n".join(raw) + b"\n")
    return path


def line(**fields: Any) -> dict[str, Any]:
    return {"id": "a", "task": "task.py", "candidate": "fast.py", **fields}


def read(tmp_path: Path, *lines: bytes | str | dict[str, Any]) -> list[Entry | BadLine]:
    return read_manifest(written(tmp_path, *lines), "cpu")


def test_paths_are_relative_to_the_manifest_and_sources_may_be_inline(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        line(),
        line(id="b", task={"source": "x = 1"}, candidate="import torch\ny = 1\n"),
        "",
        line(id="c", device="cuda", effort="confirm", splits="visible, held_out", deadline_s=5),
    )
    assert [entry for entry in found if not isinstance(entry, Entry)] == []
    first, second, third = (entry for entry in found if isinstance(entry, Entry))
    assert (first.request.task.name, first.request.task.source) == ("task", "the task")
    assert (first.request.candidate.label, first.request.candidate.source) == ("fast.py", "the candidate")
    assert (first.device, first.request.effort, first.request.splits) == (
        "cpu",
        "screen",
        ("visible", "adversarial"),
    )
    assert (second.request.task.source, second.request.candidate.source) == ("x = 1", "import torch\ny = 1\n")
    assert second.request.candidate.label == "b"
    assert (third.line, third.device, third.request.effort) == (4, "cuda", "confirm")
    assert (third.request.splits, third.request.deadline_s) == (("visible", "held_out"), 5.0)


def test_the_digest_changes_with_what_is_asked_and_not_with_the_name(tmp_path: Path) -> None:
    def digest(**fields: Any) -> str:
        return read(tmp_path, line(**fields))[0].digest

    assert digest() == digest(id="another") == digest(splits=["adversarial", "visible"])
    others = [
        digest(**fields)
        for fields in (
            {"candidate": "other\n"}, {"task": "other\n"}, {"device": "cuda"}, {"effort": "confirm"},
            {"splits": ["visible"]}, {"shapes": {"visible": [{"n": 1}]}}, {"deadline_s": 1}, {"precision": "strict"},
        )
    ]  # fmt: skip
    assert len({digest(), *others}) == 9
    assert digest(precision="default") == digest()


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (b"{not json", "not valid JSON"),
        (line(precision="fp32"), "precision: 'fp32' is not a precision; use one of default, strict"),
        (line(precision=1), "precision must be one of default, strict"),
        (b"[1, 2]", "must be a JSON object"),
        (b'{"id": "a\xff"}', "not UTF-8: invalid start byte at byte 10"),
        (b"[" * 200_000, "nested too deep"),
        (b'{"id": "a", "deadline_s": NaN}', "NaN is not a JSON number"),
        (b'{"id": ' + b"9" * 5000 + b"}", "not valid JSON"),
        (line(id=7), "id must be a text"),
        (line(id=""), "id must be a text"),
        (line(id="x" * 501), "id must be a text"),
        (line(colour="red", efort="screen"), "unknown key 'colour', 'efort'; known: id, task, candidate, device"),
        (line(task={"source": "x", "path": "y"}), "unknown key 'path' in task; known: source"),
        (line(task={"source": 3}), "task.source must be a text"),
        (line(task=3), "task must be a path"),
        ({"id": "a", "task": "task.py"}, "the key 'candidate' is missing"),
        (line(candidate="absent.py"), "cannot read candidate absent.py: No such file"),
        (line(candidate="."), "it is not a regular file"),
        (line(candidate="/dev/zero"), "it is not a regular file"),
        (line(candidate="pipe"), "it is not a regular file"),
        (line(candidate="a\0b"), "cannot read candidate"),
        (line(candidate="binary.py"), "candidate binary.py is not UTF-8"),
        (line(candidate="huge.py"), "candidate huge.py is larger than 4 MiB"),
        (line(device="tpu"), "device must be one of cpu, cuda"),
        (line(effort=["screen"]), "effort must be one of screen, confirm"),
        (line(splits=["visible", "secret"]), "splits must be a list out of visible"),
        (line(splits=[]), "splits must be a list"),
        (line(splits=[["visible"]]), "splits must be a list"),
        (line(shapes=[1]), "shapes must map splits"),
        (line(shapes={"visible": [1]}), "shapes.visible must be a list of objects"),
        (line(deadline_s=-1), "deadline_s must be above 0"),
        (line(deadline_s=True), "deadline_s must be a number"),
        (line(deadline_s=1e9), "at most 86400"),
    ],
    ids=lambda value: None if isinstance(value, bytes | dict) else value[:40],
)  # fmt: skip
def test_a_bad_line_says_why_and_the_next_one_counts(tmp_path: Path, bad: Any, words: str) -> None:
    (tmp_path / "binary.py").write_bytes(b"x = '\x80'")
    (tmp_path / "huge.py").write_bytes(b"#" * (manifest.MAX_SOURCE_BYTES + 1))
    os.mkfifo(tmp_path / "pipe")
    found = read(tmp_path, bad, line(id="good"))
    assert isinstance(found[0], BadLine)
    assert found[0].line == 1
    assert words in found[0].reason
    assert len(found[0].reason) < 600
    assert isinstance(found[1], Entry)


def test_a_line_without_end_is_skipped_and_not_read_into_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest, "MAX_LINE_BYTES", 1 << 20)
    found = read(tmp_path, b"{" + b" " * (5 << 20) + b"}", line())
    assert [type(entry) for entry in found] == [BadLine, Entry]
    assert "longer than 1 MiB" in found[0].reason  # type: ignore[union-attr]
    assert found[1].line == 2


def test_a_name_that_is_used_twice_is_refused_the_second_time(tmp_path: Path) -> None:
    found = read(tmp_path, line(), line(candidate="other\n"))
    assert isinstance(found[0], Entry)
    assert isinstance(found[1], BadLine)
    # no name of its own: it must not stand in the results for the first line
    assert (found[1].id, found[1].reason) == (None, "id 'a' was used on line 1 already")


@pytest.mark.parametrize("name", ["absent.jsonl", ".", "pipe"])
def test_a_manifest_that_cannot_be_read_is_one_sentence(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ManifestUnreadable, match="cannot read the manifest"):
        read_manifest(tmp_path / name, "cpu")
