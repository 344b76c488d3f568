"""`kernelwright apply`: puts a bundle back into the model that its module was taken from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from services.commands.terminal import AsJson, Bundle, give_up, print_json, print_line

EXIT_UNSOUND, EXIT_CANNOT = 1, 2


def apply(
    bundle: Bundle,
    model: Annotated[
        str, typer.Option(help="FILE.py:NAME, a class or function that makes your model without arguments.")
    ],
    module: Annotated[
        str, typer.Option(help="The submodule's path, as `capture` prints it; empty for the model itself.")
    ],
    inputs: Annotated[
        str, typer.Option(help="Function in the same file that makes the model's arguments.")
    ] = "get_inputs",
    out: Annotated[
        Path | None, typer.Option(help="Folder to write; default: the bundle's name with -applied.")
    ] = None,
    arguments: Annotated[
        str | None, typer.Option(help="Of ModelNew's constructor as a JSON list, where they are not found.")
    ] = None,
    max_slowdown: Annotated[
        str, typer.Option(help="A step that is confidently slower by this share fails, such as 2%.")
    ] = "2%",
    processes: Annotated[int, typer.Option(min=2, max=20, help="How many processes time.")] = 4,
    seconds: Annotated[float, typer.Option(min=0.1, help="How long each times.")] = 3.0,
    as_json: AsJson = False,
) -> None:
    """Put a bundle into your model: writes splice.py and a test, compares results, times whole steps before and after.

    Your model and the bundle's code run as your program would run them: outside the sandbox. Exit status: 0 the results are
    the same and a step is not slower, 1 they differ or it is slower, 2 it could not be tried.

    Example: kernelwright apply attention-kernelwright.zip --model serve.py:make_model --module layers.0.attention
    """
    from agent.errors import AgentError
    from agent.upkeep.applying import apply as splice
    from agent.upkeep.reading import read_bundle
    from evaluator.errors import EvaluatorError
    from services.commands.verify import share

    file, colon, name = model.rpartition(":")
    if not colon or not name.isidentifier() or not inputs.isidentifier():
        raise typer.BadParameter(f"{model!r} is not FILE.py:NAME")
    if not Path(file).is_file():
        raise typer.BadParameter(f"there is no file {file}")
    folder = out or Path(f"{bundle.name.removesuffix('.zip')}-applied")
    allowed, given = share(max_slowdown), _listed(arguments)
    try:
        read = read_bundle(bundle)
        print_line(
            "your model and the bundle run outside the sandbox, as your own program would run them",
            Console(stderr=True),
        )
        found = splice(
            read,
            file=Path(file),
            model=name,
            module=module,
            folder=folder,
            inputs=inputs,
            arguments=given,
            max_slowdown=allowed,
            processes=processes,
            seconds=seconds,
        )
    except (AgentError, EvaluatorError, OSError) as error:
        give_up(f"could not be applied: {error}", EXIT_CANNOT)
    if as_json:
        print_json(found.as_json(), indent=2)
    else:
        usage = f"{folder}/splice.py: `from splice import splice; splice(model)`; its test: {folder}/test_splice.py"
        for sentence in (*found.sentences, usage):
            print_line(sentence)
    raise typer.Exit(0 if found.sound else EXIT_UNSOUND)


def _listed(text: str | None) -> list[Any] | None:
    if text is None:
        return None
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, list):
        raise typer.BadParameter(f"{text!r} is not a JSON list")
    return value
