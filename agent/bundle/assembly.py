"""Writes optimized.py: the reference, the members of the portfolio and a dispatcher, as one readable module."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from agent.bundle.guards import Call, write_guards
from agent.bundle.sections import Section, cut, indented, rename_collisions, with_types_of
from agent.candidates import Candidate
from agent.dispatch.domain import Domain
from agent.dispatch.tree import Node, python_lines
from agent.errors import AssemblyError
from evaluator.devices import is_accelerator
from evaluator.precision import DEFAULT, declared

_TEMPLATES = Path(__file__).parent / "templates"
_IMPORTS = ("collections", "contextlib", "functools", "inspect", "threading", "time", "torch", "warnings")
# Marks of a module that computes differently in training mode and in eval mode; the referee judges most tasks in eval mode.
_MODE_DEPENDENT = re.compile(
    r"training|[Dd]ropout|BatchNorm|batch_norm|InstanceNorm|instance_norm|RReLU|rrelu|LSTM|GRU|RNN|Multihead"
    r"|Transformer|FractionalMaxPool|running_"
)
#: How far a member's result may be from the reference's in the verified mode, by dtype.
_SHARES = {
    "float64": 1e-9,
    "complex128": 1e-9,
    "float32": 1e-3,
    "complex64": 1e-3,
    "float16": 2e-2,
    "bfloat16": 6e-2,
}
#: 2 x 4 unit roundoffs of each tier (`evaluator.oracle.tolerance`), relative to the size and root mean square of a row.
_TIER_SHARES = {"tf32": 8 * 2.0**-11, "fp16": 8 * 2.0**-11, "bf16": 8 * 2.0**-8, "fp8": 8 * 2.0**-4}
#: Operators that cuDNN computes in TF32 in the default tier.
_CUDNN = re.compile(r"conv\w*\dd|convolution|lstm|gru|rnn", re.IGNORECASE)


def assemble(
    task_name: str,
    task_source: str,
    members: Sequence[Candidate],
    tree: Node,
    domain: Domain,
    call: Call,
    device: str,
    environment: Mapping[str, Any] | None = None,
) -> str:
    """Build the text of optimized.py.

    Args:
        task_name: for the heading.
        task_source: the reference; its class Model becomes the base class of ModelNew.
        members: accepted candidates, at least one.
        tree: picks the member for a call.
        domain: what the members were judged on; its places are `call.places`.
        call: from `read_call`.
        device: "cpu" or "cuda".
        environment: of the verdicts; lets the file report when it runs on another platform.

    Raises:
        AssemblyError: if the parts cannot be put into one module.
    """
    taken: dict[str, str | None] = {name: name for name in _IMPORTS} | dict.fromkeys(_own_names())
    taken |= dict.fromkeys(f"Member{number}" for number in range(1, len(members) + 1))
    reference = rename_collisions(cut(task_source, "Model"), taken, "_reference", {})
    taken.update(reference.names)
    sections: list[Section] = []
    for number, member in enumerate(members, start=1):
        section = with_types_of(reference, cut(member.source, "ModelNew"))
        section = rename_collisions(section, taken, f"_{number}", {"ModelNew": f"Member{number}"})
        taken.update(section.names)
        sections.append(section)
    guards = write_guards(domain, call, device)
    places = [tensor.place for tensor in domain.tensors]
    lines = python_lines(
        tree,
        guards.dims,
        places,
        lambda index: "the reference" if index is None else _one_line(members[index].label),
    )
    least = _tier_share(task_source, device)
    text = (
        _templates()
        .get_template("optimized.py.j2")
        .render(
            task_name=_docstring_safe(task_name),
            futures=sorted(reference.futures.union(*(section.futures for section in sections))),
            reference=reference.text.rstrip("\n"),
            members=[_described(*pair) for pair in zip(members, sections, strict=True)],
            tree="\n".join(f"    {line}" for line in lines),
            guards=guards,
            call=call,
            places=call.outside(places, domain.dims),
            given="() if named else inputs" if call.generic else call.forwarded,
            run="*inputs" if call.generic else ", ".join(call.names[: domain.inputs]),
            device=device,
            judged_with=_judged_with(environment or {}, device),
            training=domain.training,
            backward=domain.backward,
            by_mode=domain.training or bool(_MODE_DEPENDENT.search(_code(reference.text))),
            shares={dtype: max(share, least) for dtype, share in _SHARES.items()},
        )
    )
    try:
        compile(text, "optimized.py", "exec", dont_inherit=True, flags=ast.PyCF_ONLY_AST)
    except (SyntaxError, ValueError) as error:
        raise AssemblyError(f"the parts do not make one valid module: {error}") from error
    return text


def _described(member: Candidate, section: Section) -> dict[str, Any]:
    """A member as the template shows it."""
    return {
        "label": _docstring_safe(member.label),
        "origin": member.origin,
        "sha256": member.sha256[:16],
        "name": repr(f"{_one_line(member.label)} ({member.origin})"),
        "text": indented(section.text),
        # A torch.compile wrapper reads the parameters on every call; rebuilding it would only recompile it. This is known only
        # for the wrappers that this project writes: other code that calls `torch.compile(` may also pack weights.
        "reads_weights": member.origin == "compiler" and "torch.compile(" in section.text,
    }


def _code(text: str) -> str:
    """The source without comments and docstrings, since these may mention training."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
            and ast.get_docstring(node) is not None
        ):
            node.body[0] = ast.Pass()
    return ast.unparse(tree)


def _tier_share(task_source: str, device: str) -> float:
    """Tolerance of the task's precision tier: twice the referee's allowance for rounding the operands of products."""
    tier = declared(task_source)
    if tier == DEFAULT and is_accelerator(device) and _CUDNN.search(task_source):
        tier = "tf32"
    return _TIER_SHARES.get(tier, 0.0)


@cache
def _templates() -> Environment:
    return Environment(
        loader=FileSystemLoader(_TEMPLATES),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,  # noqa: S701  # it writes Python
    )


@cache
def _own_names() -> tuple[str, ...]:
    """Names that the dispatcher binds; members must not redefine them."""
    texts = [(_TEMPLATES / f"{name}.py.j2").read_text() for name in ("optimized", "gradients", "verified")]
    return tuple(re.findall(r"^(?:def |class )?(\w+)(?=\(| = |:$)", "\n".join(texts), re.MULTILINE))


def _judged_with(environment: Mapping[str, Any], device: str) -> str:
    """The judged platform as the text of a Python dictionary.

    The file compares it with the current platform. CPUs have no device name here, because it changes with the virtual machine.
    """
    names = ("torch", "device_name") if is_accelerator(device) else ("torch", "threads")
    return repr({name: _one_line(str(environment[name])) for name in names if environment.get(name)})


def _one_line(text: str) -> str:
    return " ".join(text.split())[:80].encode("ascii", "replace").decode()


def _docstring_safe(text: str) -> str:
    return _one_line(text).replace("\\", "/").replace('"', "'")
