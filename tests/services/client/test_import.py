"""What a program loads that imports `kernelwright`."""

from __future__ import annotations

import ast
import re
import subprocess
import sys

import pytest

import kernelwright
from tests.services.service import ROOT


@pytest.mark.parametrize("module", ["kernelwright", "kernelwright.client"])
def test_neither_torch_nor_the_server_is_loaded(module: str) -> None:
    program = (
        f"import sys, {module}\n"
        "print([one for one in ('torch', 'fastapi', 'sqlalchemy', 'celery', 'evaluator') if one in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert done.stdout.strip() == "[]"


def test_names_are_there_when_they_are_used() -> None:
    from evaluator.capture.session import capture

    assert kernelwright.capture is capture
    assert set(kernelwright.__all__) <= set(dir(kernelwright))
    with pytest.raises(AttributeError, match="no attribute 'capture_all'"):
        kernelwright.capture_all  # noqa: B018


def test_the_docs_name_what_there_is() -> None:
    from kernelwright import client

    page = (ROOT / "docs" / "clients.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    tree = ast.parse(shown)
    imported = [one.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for one in node.names]
    called = re.findall(r"client\.(\w+)\(", shown)
    table = page.split("| method | what |")[1].split("\n\n")[0]
    methods = [
        one
        for row in re.findall(r"^\| (`.*?) \|", table, flags=re.MULTILINE)
        for one in re.findall(r"`(\w+)`", row)
    ]
    errors = re.findall(r"`([A-Z]\w+)`", page.split("Errors are below")[1].split("##")[0])
    assert imported
    assert len(methods) > 10
    assert len(errors) > 10
    assert set(imported) | set(errors) <= set(client.__all__)
    public = {name for name in vars(client.Client) if not name.startswith("_")} - {"close"}
    assert set(called) <= set(methods) == public
