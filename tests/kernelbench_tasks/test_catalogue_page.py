"""`make catalogue` writes a page with every task."""

from __future__ import annotations

from kernelbench_tasks import catalog
from scripts.catalogue import LOST, page


def test_every_task_is_there_with_its_sizes_and_its_reason() -> None:
    sections = page().split("\n### ")[1:]
    assert [section.split("\n")[0] for section in sections] == [task.name for task in catalog.list_tasks()]
    for section in sections:
        assert "- sizes: `" in section and len(section.split(f"- {LOST.lower()} ")[1]) > 80
