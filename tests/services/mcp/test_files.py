"""Which files a coding agent may read through us."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from services.mcp import files
from services.mcp.files import Folder, Refused


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with a file in it, and a secret beside it."""
    (tmp_path / "secret.py").write_text("password")
    root = tmp_path / "project"
    (root / "sub").mkdir(parents=True)
    (root / "sub" / "task.py").write_text("class Model: ...")
    return root


def test_files_below_the_folder_are_read(root: Path) -> None:
    (root / "link.py").symlink_to(root / "sub" / "task.py")
    for name in ("sub/task.py", "./sub/../sub/task.py", "link.py", str(root / "sub" / "task.py")):
        assert Folder(root).text_of(name) == "class Model: ..."


@pytest.mark.parametrize(
    "name",
    [
        "../secret.py",
        "sub/../../secret.py",
        "out.py",
        "outer/secret.py",
        "/etc/passwd",
        "a\x00.py",
        "no.py",
        "",
    ],
)
def test_nothing_else_is(root: Path, name: str) -> None:
    (root / "out.py").symlink_to(root.parent / "secret.py")
    (root / "outer").symlink_to(root.parent)
    with pytest.raises(Refused):
        Folder(root).text_of(name)


def test_a_file_elsewhere_is_refused_whether_it_exists_or_not(root: Path) -> None:
    said = []
    for name in ("../secret.py", "../absent.py"):
        with pytest.raises(Refused) as refused:
            Folder(root).text_of(name)
        said.append(str(refused.value).replace(name, ""))
    assert said[0] == said[1]


def test_only_plain_files_of_text_are_read(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(root / "pipe.py")
    (root / "binary.py").write_bytes(b"\xff\xfe")
    (root / "large.py").write_text("x" * 101)
    monkeypatch.setattr(files, "MOST_BYTES", 100)
    for name, why in (("pipe.py", "plain"), ("binary.py", "UTF-8"), ("large.py", "larger"), ("sub", "plain")):
        with pytest.raises(Refused, match=why):
            Folder(root).text_of(name)


def test_a_task_is_a_file_a_name_or_a_text(root: Path) -> None:
    folder = Folder(root)
    assert folder.task("sub/task.py", None) == ("task", "class Model: ...")
    assert "class Model" in folder.task("layernorm_relu_add", None)[1]
    assert folder.task(None, "x = 1") == ("task", "x = 1")
    for both in ((None, None), ("a.py", "x = 1"), ("no_such_task", None)):
        with pytest.raises(Refused):
            folder.task(*both)


def test_the_file_with_the_service_s_key_is_not_there(root: Path) -> None:
    (root / "key").write_text("kw_aaaaaaaa_A")
    (root / "link").symlink_to(root / "key")
    folder = Folder(root, hidden=root / "sub" / ".." / "key")
    for name in ("key", "./sub/../key", "link"):
        with pytest.raises(Refused, match="there is no file"):
            folder.text_of(name)
    assert Folder(root).text_of("key") == "kw_aaaaaaaa_A"
