"""A job's first request to a language model, as a file for each module, and candidates from the files with the answers.

    python -m benchmarks.model_requests write --kernelbench PATH --out requests
    python -m benchmarks.model_requests read --answers answers --out candidates

``write`` makes what :mod:`agent.proposers.llm` would send first for a job with nothing measured: a text file ``NAME.txt`` for
a person or a chat window, and ``NAME.json`` with the messages. Sizes are inferred with fake tensors, so no GPU is
needed. ``read`` takes each answer ``NAME.txt`` through the product's own extraction; ``benchmarks.real_modules --candidates``
judges what comes out.
"""

from __future__ import annotations

import ast
import json
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from agent.extraction import extract
from agent.proposers.llm import opening
from agent.proposing import ProposalContext
from agent.stores.folder import FolderStore
from benchmarks.kernelbench_sample import sample
from evaluator.client import Referee
from evaluator.description import Description
from evaluator.shapes.space import IntegerDim, Space, as_fields, defaults
from evaluator.sources import TaskSource
from evaluator.submission import Submissions

app = typer.Typer(add_completion=False, help=__doc__)


def visible_shapes(source: str, space: Space) -> list[dict[str, Any]]:
    """The file's own sizes and two near them: half of what varies at run time, and a quarter more, one off the even size."""
    own = defaults(space)
    configuration = _arguments(source, "get_init_inputs")
    shapes = [own]
    for numerator, denominator, off in ((1, 2, 0), (5, 4, 1)):
        near = dict(own)
        for name, dim in space.items():
            if isinstance(dim, IntegerDim) and name not in configuration:
                steps = dim.default * numerator // (denominator * dim.multiple_of) + off
                near[name] = min(max(steps * dim.multiple_of, dim.low), dim.high)
        if near not in shapes:
            shapes.append(near)
    return shapes


def _arguments(source: str, function: str) -> set[str]:
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef) and node.name == function:
            return {argument.arg for argument in (*node.args.args, *node.args.kwonlyargs)}
    return set()


@app.command()
def write(
    kernelbench: Annotated[Path, typer.Option(help="A copy of KernelBench.")],
    out: Annotated[Path, typer.Option(help="Folder of the requests.")],
    count: Annotated[int, typer.Option(help="Modules drawn, as in benchmarks.real_modules.")] = 60,
    first: Annotated[int, typer.Option(help="So many of them get a request.")] = 20,
    seed: Annotated[int, typer.Option(help="Of the draw.")] = 7,
    device: Annotated[str, typer.Option(help="What the candidate is for: cuda or cpu.")] = "cuda",
) -> None:
    """Write the first request for each module."""
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, Referee("cpu", work_dir=Path(folder)) as referee:
        submissions = Submissions(Path(folder) / "submissions")
        for module in sample(kernelbench, count, seed)[:first]:
            submission = submissions.read(TaskSource(module.name, module.source), {}, referee)
            inferred = submission.inferred
            space = inferred.space if inferred else {}
            shapes = visible_shapes(submission.task.source, space) if space else []
            description = Description(dims=as_fields(space), shapes={"visible": shapes})
            store = FolderStore(Path(folder) / "jobs" / module.name)
            context = ProposalContext(submission.task, description, device, referee, store)
            messages = [{"role": one.role, "content": one.content} for one in opening(context, {}, None)]
            text = "\n\n".join(f"# {one['role']}\n\n{one['content']}" for one in messages)
            (out / f"{module.name}.txt").write_text(text, encoding="utf-8")
            (out / f"{module.name}.json").write_text(json.dumps(messages, indent=1) + "\n", encoding="utf-8")
            print(f"{module.name}: {', '.join(space) or (inferred.reason if inferred else '')}", flush=True)


@app.command()
def read(
    answers: Annotated[Path, typer.Option(help="Folder with an answer NAME.txt for each module.")],
    out: Annotated[Path, typer.Option(help="Folder of the candidates.")],
) -> None:
    """Extract a candidate file from each answer; exit 1 where an answer holds none."""
    out.mkdir(parents=True, exist_ok=True)
    missing = 0
    for path in sorted(answers.glob("*.txt")):
        found = extract(path.read_text(encoding="utf-8"))
        if found.source is None:
            missing += 1
            print(f"{path.stem}: no candidate ({found.problem})")
            continue
        (out / f"{path.stem}.py").write_text(found.source, encoding="utf-8")
    raise typer.Exit(1 if missing else 0)


if __name__ == "__main__":
    app()
