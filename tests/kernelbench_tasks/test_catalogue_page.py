"""docs/catalogue.md says what the task files say."""

from __future__ import annotations

from kernelbench_tasks import catalog
from scripts.catalogue import LOST, PAGE, page


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run `make catalogue`"


def test_every_task_is_there_with_its_sizes_and_its_reason() -> None:
    sections = page().split("\n### ")[1:]
    assert [section.split("\n")[0] for section in sections] == [task.name for task in catalog.list_tasks()]
    for section in sections:
        assert "- sizes: `" in section and len(section.split(f"- {LOST.lower()} ")[1]) > 80
