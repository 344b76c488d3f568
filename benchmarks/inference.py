"""Does inference find what the catalogue declares? Hides `DIMS` of every task and compares axes, ties and divisibility.

    python -m benchmarks.inference --out inference.json [--form parameters|constants|literals] [--direct]

Three forms of each file: as it is (sizes are keyword parameters), with the sizes as constants of the file (KernelBench's
form), and with bare numbers in the two functions, where names no longer say what is tied. A declared rule that the module
does not need (it ran for real at sizes that break it) is counted apart from a rule that was missed. Times are the search's
own, in a confined process; `--direct` runs it in this process instead, for debugging trusted files.
"""

from __future__ import annotations

import ast
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.exemplars_cpu import environment
from evaluator.client import Referee
from evaluator.shapes.inference import program
from evaluator.shapes.inference.result import Inferred, from_json, infer
from evaluator.shapes.space import ChoiceDim, IntegerDim
from kernelbench_tasks import Choice, Dim, catalog

FORMS = ("parameters", "constants", "literals")
_FUNCTIONS = ("get_inputs", "get_init_inputs")


def hidden(source: str, form: str) -> str:
    """A task's file without `DIMS`, in one of :data:`FORMS`."""
    tree = ast.parse(source)
    tree.body = [node for node in tree.body if "DIMS" not in _bound(node)]
    if form == "parameters":
        return ast.unparse(tree)
    constants: dict[str, ast.expr] = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name in _FUNCTIONS:
            defaults = dict(
                zip((argument.arg for argument in node.args.args), node.args.defaults, strict=True)
            )
            node.args = ast.arguments([], [], None, [], [], None, [])
            if form == "literals":
                node.body = [_Inlined(defaults).visit(statement) for statement in node.body]
            constants |= defaults
    if form == "constants":
        place = next(index for index, node in enumerate(tree.body) if isinstance(node, ast.ClassDef))
        tree.body[place:place] = [
            ast.Assign([ast.Name(name, ast.Store())], value) for name, value in constants.items()
        ]
    return ast.unparse(ast.fix_missing_locations(tree))


def declared(source: str) -> dict[str, Dim | Choice]:
    """What a file of the catalogue declares."""
    node = next(node for node in ast.parse(source).body if "DIMS" in _bound(node))
    assert isinstance(node, ast.Assign)
    dims: dict[str, Dim | Choice] = eval(ast.unparse(node.value), {"Dim": Dim, "Choice": Choice})
    return dims


def _bound(node: ast.stmt) -> list[str]:
    targets = node.targets if isinstance(node, ast.Assign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]


class _Inlined(ast.NodeTransformer):
    def __init__(self, values: dict[str, ast.expr]) -> None:
        self._values = values

    def visit_Name(self, node: ast.Name) -> ast.AST:
        """A parameter becomes its default."""
        return self._values.get(node.id, node) if isinstance(node.ctx, ast.Load) else node


def compare(dims: dict[str, Any], inferred: Inferred) -> dict[str, dict[str, Any]]:
    """For each declared dimension: ``same``, or in what it differs."""
    answer: dict[str, dict[str, Any]] = {}
    owner = {name: axis for axis, names in inferred.tied.items() for name in names}
    for name, dim in dims.items():
        found = inferred.space.get(owner.get(name, ""))
        if isinstance(dim, Choice):
            # What does not vary has one value, which is what a choice of one declares.
            values = found.values if isinstance(found, ChoiceDim) else (dim.default,)
            answer[name] = {
                "result": _of_choice(set(dim.values), set(values), varied=found is not None),
                "declared": list(dim.values),
                "inferred": list(values),
                "reason": inferred.fixed.get(name, ""),
            }
            continue
        entry: dict[str, Any] = {"declared": [dim.smallest, dim.multiple_of]}
        if not isinstance(found, IntegerDim):
            result = "choice" if isinstance(found, ChoiceDim) else "not varied"
            entry |= {"result": result, "reason": inferred.fixed.get(name, "")}
        else:
            entry["inferred"] = [found.low, found.multiple_of]
            partners = [other for other in inferred.tied[owner[name]] if other != name and other in dims]
            if partners:
                entry |= {"result": "tied", "reason": f"moves with {', '.join(partners)}"}
            elif found.multiple_of == dim.multiple_of:
                entry["result"] = "same"
            elif dim.multiple_of % found.multiple_of == 0:
                entry["result"] = "wider"
                entry["reason"] = (
                    f"the module ran at multiples of {found.multiple_of}; the declared rule is a choice"
                )
            else:
                entry |= {"result": "narrower", "reason": "a rule that the declaration does not have"}
        answer[name] = entry
    for axis in inferred.space:
        if not any(name in dims for name in inferred.tied[axis]):
            answer[axis] = {"result": "extra", "reason": "free, but not declared"}
    return answer


def _of_choice(declared: set[Any], found: set[Any], *, varied: bool) -> str:
    if found == declared:
        return "same"
    if found > declared:
        return "wider"
    return "narrower" if varied else "not varied"


def counted(inferred: Inferred, dims: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Bare numbers have no names: are there as many axes as are declared, with these defaults and rules?"""
    wanted = sorted((d.default, d.multiple_of) for d in dims.values() if not isinstance(d, Choice))
    found = sorted((d.default, d.multiple_of) for d in inferred.space.values() if isinstance(d, IntegerDim))
    sizes = sorted(default for default, _ in wanted) == sorted(default for default, _ in found)
    result = "same" if wanted == found else "wider" if sizes else "differs"
    return {
        "all": {"result": result, "declared": wanted, "inferred": found, "reason": "; ".join(inferred.fixed)}
    }


def main(
    out: Annotated[Path, typer.Option(help="JSON file to write.")] = Path("inference.json"),
    form: Annotated[str, typer.Option(help="parameters, constants or literals.")] = "parameters",
    direct: Annotated[
        bool, typer.Option("--direct", help="In this process; the catalogue is trusted.")
    ] = False,
    only: Annotated[str, typer.Option(help="Comma-separated names of tasks.")] = "",
) -> None:
    """Compares all tasks and prints what differs."""
    console = Console()
    out = out.resolve()
    names = [name for name in only.split(",") if name] or [task.name for task in catalog.list_tasks()]
    rows: dict[str, Any] = {}
    table = Table("task", "s", "export", "difference")
    folder = tempfile.TemporaryDirectory()
    os.chdir(folder.name)
    referee = None if direct else Referee("cpu", work_dir=Path(folder.name))
    try:
        for name in names:
            source = catalog.load(name).source
            dims, text = declared(source), hidden(source, form)
            started = time.monotonic()
            if referee is None:
                answer = program.infer(text, started + 20.0)
                inferred = from_json({**answer, "elapsed_s": time.monotonic() - started})
            else:
                inferred = infer(referee, text)
            result = counted(inferred, dims) if form == "literals" else compare(dims, inferred)
            rows[name] = {
                "seconds": time.monotonic() - started,
                "ok": inferred.ok,
                "reason": inferred.reason,
                "export": inferred.export,
                "dims": result,
                "sentences": inferred.sentences,
            }
            odd = [
                f"{dim}: {e['result']} {e.get('inferred', '')} {e.get('reason', '')}"
                for dim, e in result.items()
                if e["result"] != "same"
            ]
            if odd or not inferred.ok:
                table.add_row(
                    name, f"{rows[name]['seconds']:.1f}", inferred.export, inferred.reason + "\n".join(odd)
                )
    finally:
        if referee is not None:
            referee.close()
        os.chdir("/")
        folder.cleanup()
    console.print(table)
    results = [entry["result"] for row in rows.values() for entry in row["dims"].values()]
    seconds = sorted(row["seconds"] for row in rows.values())
    summary = {
        "form": form,
        "tasks": len(rows),
        "refused": sum(not row["ok"] for row in rows.values()),
        "dimensions": {word: results.count(word) for word in sorted(set(results))},
        "tasks_same": sum(all(e["result"] == "same" for e in row["dims"].values()) for row in rows.values()),
        "tasks_same_or_wider": sum(
            all(e["result"] in ("same", "wider") for e in row["dims"].values()) for row in rows.values()
        ),
        "median_s": statistics.median(seconds),
        "p95_s": seconds[int(0.95 * (len(seconds) - 1))],
        "worst_s": seconds[-1],
        "export": {word: sum(row["export"] == word for row in rows.values()) for word in ("confirmed", "partly", "not exported")},
    }  # fmt: skip
    console.print_json(data=summary)
    document = {
        "environment": environment(),
        "summary": summary,
        "tasks": rows,
    }
    out.write_text(json.dumps(document, indent=1), encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
