"""Write docs/catalogue.md, which is not committed, from the task files: `make catalogue`. Task files are read as text, none is imported."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator
from pathlib import Path

from kernelbench_tasks import Choice, Dim, catalog
from kernelbench_tasks.catalog import CatalogTask

PAGE = Path(__file__).resolve().parent.parent / "docs" / "catalogue.md"
_LEVELS = {1: "single operations", 2: "fusions of a few", 3: "blocks and small modules"}
#: How the docstring of every task begins the paragraph about eager and the compiler.
LOST = "Where time is lost:"
_SOURCE = "Source:"

_INTRODUCTION = """\
# Catalogue of tasks

Written by `make catalogue` from the files in `kernelbench_tasks/`; edit those. {tasks} tasks, {backward} of them with gradients as a part of
what is judged. Sizes are inclusive; the task's own size, at which and near which it is timed, stands in brackets. `kernelwright optimize NAME` takes the names.
"""


def page() -> str:
    """The whole page."""
    tasks = catalog.list_tasks()
    texts = {task.name: _section(task) for task in tasks}
    backward = sum("forward_backward" in _setting(ast.parse(task.source), "DIRECTION") for task in tasks)
    parts = [_INTRODUCTION.format(tasks=len(tasks), backward=backward)]
    for level, words in _LEVELS.items():
        names = [task.name for task in tasks if task.level == level]
        links = ", ".join(f"[{name}](#{name})" for name in names)
        parts.append(f"\n## Level {level}: {words}\n\n{len(names)} tasks: {links}\n")
        parts += [f"\n{texts[name]}" for name in names]
    return "".join(parts)


def _section(task: CatalogTask) -> str:
    """One task: what it is, its sizes, and why eager and the compiler leave time on the table."""
    tree = ast.parse(task.source)
    paragraphs = (ast.get_docstring(tree) or "").split("\n\n")
    place = next((i for i, text in enumerate(paragraphs) if text.startswith(LOST)), None)
    if place is None:
        raise ValueError(f"{task.path}: no paragraph of its docstring begins with {LOST!r}")
    about = [_written(text) for text in paragraphs[1:place]]
    end = next((i for i, text in enumerate(paragraphs) if _SOURCE in text), len(paragraphs))
    lost = " ".join(_flat(text) for text in paragraphs[place:end])
    settings = [
        f"`{name} = {value}`"
        for name in ("DIRECTION", "TRAINING", "PRECISION")
        if (value := _setting(tree, name))
    ]
    lines = [
        f"### {task.name}\n",
        f"{paragraphs[0].strip().rstrip('.')}.\n",
        *(f"{text}\n" for text in about),
    ]
    lines.append(
        f"- sizes: {'; '.join(_sizes(tree))}" + (f"; {', '.join(settings)}" if settings else "") + "\n"
    )
    rest = lost.removeprefix(LOST).strip()
    return "\n".join(lines) + f"- {LOST.lower()} {rest}\n"


def _written(paragraph: str) -> str:
    """A formula stays as it is set, anything else becomes one line."""
    if all(line.startswith("    ") for line in paragraph.splitlines()):
        return f"```\n{textwrap.dedent(paragraph)}\n```"
    return _flat(paragraph)


def _flat(paragraph: str) -> str:
    return " ".join(paragraph.split())


def _setting(tree: ast.Module, name: str) -> str:
    """A setting of the file as it is written there, empty where it is not."""
    node = _assigned(tree, name)
    return ast.unparse(node) if node is not None else ""


def _assigned(tree: ast.Module, name: str) -> ast.expr | None:
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(
            isinstance(t, ast.Name) and t.id == name for t in node.targets
        ):
            return node.value
    return None


def _sizes(tree: ast.Module) -> Iterator[str]:
    node = _assigned(tree, "DIMS")
    if not isinstance(node, ast.Dict):
        raise ValueError("DIMS is no dictionary that could be read without running the file")
    for key, value in zip(node.keys, node.values, strict=True):
        assert isinstance(key, ast.expr)
        yield f"`{ast.literal_eval(key)}` {_range(_dim(value))}"


def _dim(node: ast.expr) -> Dim | Choice:
    assert isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    arguments = [ast.literal_eval(argument) for argument in node.args]
    named = {keyword.arg: ast.literal_eval(keyword.value) for keyword in node.keywords if keyword.arg}
    return {"Dim": Dim, "Choice": Choice}[node.func.id](*arguments, **named)


def _range(dim: Dim | Choice) -> str:
    if isinstance(dim, Choice):
        return " or ".join(str(value) for value in dim.values)
    words = f"{dim.min} to {dim.max}" if dim.min != dim.max else f"{dim.min}"
    words += f" in steps of {dim.multiple_of}" if dim.multiple_of > 1 else ""
    return words + (
        f" ({dim.default}, on a GPU {dim.gpu})" if dim.gpu != dim.default else f" ({dim.default})"
    )


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
