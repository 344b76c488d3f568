"""Writes optimized.py: the reference, the members of the portfolio and a dispatcher, as one readable module."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from string import Template
from typing import Any

from agent.bundle.guards import internal_names, write_guards
from agent.bundle.sections import Section, cut, indented, rename_collisions, with_types_of
from agent.candidates import Candidate
from agent.dispatch.domain import Domain
from agent.dispatch.tree import Node, python_lines
from agent.errors import AssemblyError
from evaluator.precision import DEFAULT, declared

_RULE = "# " + "-" * 117
_TEMPLATES = Path(__file__).parent / "templates"
_MODULES = ("collections", "contextlib", "functools", "inspect", "threading", "time", "warnings")
_IMPORTS = {name: name for name in [*_MODULES, "torch"]}
# Marks of a module that computes differently in training mode and in eval mode; the referee judges most tasks in eval mode.
_MODE_DEPENDENT = re.compile(
    r"training|[Dd]ropout|BatchNorm|batch_norm|InstanceNorm|instance_norm|RReLU|rrelu|LSTM|GRU|RNN|Multihead"
    r"|Transformer|FractionalMaxPool|running_"
)
#: 2 x 4 unit roundoffs of each tier (`evaluator.oracle.tolerance`), relative to the size and root mean square of a row.
_TIER_SHARES = {"tf32": 8 * 2.0**-11, "fp16": 8 * 2.0**-11, "bf16": 8 * 2.0**-8, "fp8": 8 * 2.0**-4}
#: Operators that cuDNN computes in TF32 in the default tier.
_CUDNN = re.compile(r"conv\w*\dd|convolution|lstm|gru|rnn", re.IGNORECASE)


@dataclass(frozen=True)
class Call:
    """How `forward` is called.

    Attributes:
        signature: text after `self` in the definition, with its leading comma.
        names: the arguments after `self`, in order; ("inputs",) if `generic`.
        forwarded: the text that passes every argument on.
        defaults: text of each argument's default, None where it has none.
        generic: whether the definition is rewritten as `*inputs, **named`.
    """

    signature: str
    names: tuple[str, ...]
    forwarded: str
    defaults: tuple[str | None, ...]
    generic: bool


def read_call(task_source: str) -> Call:
    """Parse how the reference's `forward` takes its inputs, without importing it.

    Raises:
        AssemblyError: if the source does not parse or has no class Model.
    """
    try:
        tree = ast.parse(task_source)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise AssemblyError(f"the reference does not parse: {error}") from error
    model = next(
        (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Model"), None
    )
    if model is None:
        raise AssemblyError("the reference does not define class Model at its top level")
    forward = next(
        (node for node in model.body if isinstance(node, ast.FunctionDef) and node.name == "forward"), None
    )
    generic = Call(", *inputs, **named", ("inputs",), "*inputs, **named", (None,), generic=True)
    if forward is None:
        return generic
    arguments = forward.args
    if arguments.vararg or arguments.kwarg or arguments.kwonlyargs:
        return generic
    named = [*arguments.posonlyargs, *arguments.args]
    if not named or len(named) == 1:
        return generic
    names = [argument.arg for argument in named[1:]]
    missing: list[str | None] = [None] * (len(named) - len(arguments.defaults))
    defaults = (missing + [ast.unparse(default) for default in arguments.defaults])[1:]
    text = ast.unparse(arguments)
    return Call(
        signature=text[len(ast.unparse(ast.arguments([], [named[0]], None, [], [], None, []))) :],
        names=tuple(names),
        forwarded=", ".join(names),
        defaults=tuple(defaults),
        generic=False,
    )


def internal_places(call: Call, dims: Mapping[str, Any]) -> list[str]:
    """Names of the inputs inside the dispatcher; they avoid its own names and the dimensions' names."""
    return ["inputs"] if call.generic else internal_names(call.names, dims)


def input_places(call: Call, names: Sequence[str]) -> list[str]:
    """Python expressions for the inputs inside the dispatcher, over `internal_places`."""
    return [f"inputs[{index}]" for index in range(64)] if call.generic else list(names)


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
        domain: what the members were judged on; its places are `input_places(call)`.
        call: from `read_call`.
        device: "cpu" or "cuda".
        environment: of the verdicts; lets the file report when it runs on another platform.

    Raises:
        AssemblyError: if the parts cannot be put into one module.
    """
    taken: dict[str, str | None] = {**_IMPORTS, **dict.fromkeys(_own_names())}
    for index in range(len(members)):
        taken[f"Member{index + 1}"] = None
        taken[f"_member{index + 1}_error"] = None
    reference = rename_collisions(cut(task_source, "Model"), taken, "_reference", {})
    taken.update(reference.names)
    sections: list[Section] = []
    for index, member in enumerate(members, start=1):
        section = with_types_of(reference, cut(member.source, "ModelNew"))
        section = rename_collisions(section, taken, f"_{index}", {"ModelNew": f"Member{index}"})
        taken.update(section.names)
        sections.append(section)
    futures = sorted(reference.futures.union(*(section.futures for section in sections)))
    parts = [
        _heading(task_name, members, domain, device),
        *([f"from __future__ import {', '.join(futures)}\n"] if futures else []),
        "".join(f"import {name}\n" for name in _MODULES) + "\nimport torch\nimport torch.utils.checkpoint\n",
        _banner("1. The reference as it was given: the fall-back, and the owner of all parameters"),
        reference.text,
    ]
    for index, (member, section) in enumerate(zip(members, sections, strict=True), start=1):
        parts += [
            _banner(f"{index + 1}. Member {index}: {_one_line(member.label)} (origin: {member.origin})")
        ]
        parts += [_member_text(index, section)]
    parts += [
        _tables(members, sections),
        _banner(f"{len(members) + 2}. The dispatcher: picks a member for a call, or the reference"),
        _dispatcher(members, reference.text, tree, domain, call, device, environment or {}, task_source),
    ]
    number = len(members) + 2
    if domain.training or domain.backward:
        parts += [
            _banner(
                f"{number + 1}. Training: how members are called that were judged with gradients or in training mode"
            )
        ]
        parts += [_template("gradients")]
    else:
        parts += [
            _template("forward_only"),
            _banner(f"{number + 1}. The verified mode: members are timed beside the reference"),
        ]
        parts += [_template("verified")]
    text = "\n".join(part.rstrip("\n") + "\n" for part in parts)
    try:
        compile(text, "optimized.py", "exec", dont_inherit=True, flags=ast.PyCF_ONLY_AST)
    except (SyntaxError, ValueError) as error:
        raise AssemblyError(f"the parts do not make one valid module: {error}") from error
    return text


def _with_or_without(domain: Domain) -> str:
    """Describe the mode and gradients of the judged calls, for the file's users."""
    mode = " in training mode" if domain.training else ""
    if domain.backward:
        return f"{mode} and gradients of all its parameters are asked for"
    return f"{mode} and no gradient is asked for (torch.inference_mode() or torch.no_grad())"


def _heading(task_name: str, members: Sequence[Candidate], domain: Domain, device: str) -> str:
    lines = [
        f"{_docstring_safe(task_name)}: a drop-in replacement for the reference module. Needs torch, and what the member needs.",
        "",
        "    from optimized import ModelNew      # same constructor arguments and state_dict as the reference's Model",
        "",
        f"Judged on {device}. Members and where they come from:",
        *(
            f"    {index}. {_docstring_safe(_one_line(member.label))} (origin: {member.origin}, sha256 {member.sha256[:16]})"
            for index, member in enumerate(members, start=1)
        ),
        "A member runs where a call lies in the judged domain (devices, dtypes, layouts, sizes)",
        f"{_with_or_without(domain).lstrip()}; all else runs the",
        "reference. The measurements are in evidence.json and report.html beside this file; reproduce.py re-checks.",
    ]
    return '"""' + "\n".join(lines) + '\n"""\n'


def _banner(title: str) -> str:
    return f"\n{_RULE}\n# {title}\n{_RULE}\n"


def _member_text(index: int, section: Section) -> str:
    """Wrap a member in try/except: if it cannot be loaded (no Triton, no compiler), the reference must still work."""
    return (
        "try:\n"
        f"{indented(section.text)}\n\n"
        f"    _member{index}_error = None\n"
        f"except Exception as error:\n"
        f"    Member{index} = None\n"
        f"    _member{index}_error = error\n"
        f'    warnings.warn(f"kernelwright: member {index} cannot be loaded here ({{error}}); the reference is used in its '
        f'place. Install what it needs, or find out more with `kernelwright verify`", RuntimeWarning)\n'
    )


def _tables(members: Sequence[Candidate], sections: Sequence[Section]) -> str:
    numbers = range(1, len(members) + 1)
    names = ", ".join(repr(f"{_one_line(member.label)} ({member.origin})") for member in members)
    # A torch.compile wrapper reads the parameters on every call; rebuilding it would only recompile it. This is known only for
    # the wrappers that this project writes: other code that calls `torch.compile(` may also pack weights.
    keeps = ", ".join(
        str(member.origin == "compiler" and "torch.compile(" in section.text)
        for member, section in zip(members, sections, strict=True)
    )
    return (
        f"MEMBERS = [{', '.join(f'Member{number}' for number in numbers)}]\n"
        f"MEMBER_NAMES = [{names}]\n"
        f"KEEPS_NO_WEIGHTS = [{keeps}]  # members that need not be built anew when parameters change\n"
    )


def _dispatcher(
    members: Sequence[Candidate],
    reference_text: str,
    tree: Node,
    domain: Domain,
    call: Call,
    device: str,
    environment: Mapping[str, Any],
    task_source: str,
) -> str:
    internal = internal_places(call, domain.dims)
    renamed = dict(zip(call.names, internal, strict=True))
    guards = write_guards(domain, device)
    extra = [] if call.generic else _extra_guards(call, domain, internal)
    if call.generic:
        extra = [f"if len(inputs) != {domain.inputs}:", "    return 'an input has another structure'"]
    passed = "() if named else inputs" if call.generic else call.forwarded
    run = "*inputs" if call.generic else ", ".join(call.names[: domain.inputs])
    places = guards.tensor_places
    lines = python_lines(
        tree, guards.dims, [tensor.place for tensor in domain.tensors], lambda index: _remark(members, index)
    )
    outer_places = places if call.generic else _places_outside(domain, renamed)
    return Template(_template("drop_in")).substitute(
        device=device,
        alignment_bytes=guards.alignment_bytes,
        dtypes=guards.dtypes,
        judged_with=_judged_with(environment, device),
        by_mode=domain.training or bool(_MODE_DEPENDENT.search(_code(reference_text))),
        in_training=domain.training,
        with_gradients=domain.backward,
        with_or_without=_with_or_without(domain),
        constructor_names=guards.constructor_names,
        constructor_guard=guards.constructor_body,
        input_guard="\n".join([*(f"    {line}" for line in extra), guards.input_body]),
        input_names=", ".join(internal),
        tree="\n".join(f"    {line}" for line in lines),
        signature=call.signature,
        forward_input_names=passed,
        forward_tensor_places=outer_places,
        call_names=call.forwarded,
        run_names=run,
        tier_share=_tier_share(task_source, device),
    )


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
    if tier == DEFAULT and device == "cuda" and _CUDNN.search(task_source):
        tier = "tf32"
    return _TIER_SHARES.get(tier, 0.0)


@cache
def _template(name: str) -> str:
    return (_TEMPLATES / f"{name}.py.template").read_text()


@cache
def _own_names() -> tuple[str, ...]:
    """Names that the dispatcher binds; members must not redefine them."""
    texts = [_template(name) for name in ("drop_in", "forward_only", "gradients", "verified")]
    bound = re.findall(r"^(?:def |class )?(\w+)(?=\(| = |:$)", "\n".join(texts), re.MULTILINE)
    return (*dict.fromkeys(bound), "MEMBERS", "MEMBER_NAMES", "KEEPS_NO_WEIGHTS")


def _judged_with(environment: Mapping[str, Any], device: str) -> str:
    """The judged platform as the text of a Python dictionary.

    The file compares it with the current platform. CPUs have no device name here, because it changes with the virtual machine.
    """
    names = ("torch", "device_name") if device == "cuda" else ("torch", "threads")
    return repr({name: _one_line(str(environment[name])) for name in names if environment.get(name)})


def _extra_guards(call: Call, domain: Domain, internal: Sequence[str]) -> list[str]:
    """Guards that refuse a call if an argument that get_inputs leaves at its default has another value."""
    lines = []
    for name, default in list(zip(internal, call.defaults, strict=True))[domain.inputs :]:
        if default is None:
            raise AssemblyError(f"get_inputs gives no value for forward's argument {name}")
        try:
            value = ast.literal_eval(default)
        except ValueError as error:
            raise AssemblyError(f"the default of forward's argument {name} is not a plain value") from error
        same = (
            f"{name} is not None"
            if value is None
            else f"type({name}) is not {type(value).__name__} or {name} != {value!r}"
        )
        lines += [f"if {same}:", f"    return {f'argument {name} is not at its default'!r}"]
    return lines


def _places_outside(domain: Domain, renamed: dict[str, str]) -> str:
    """The tensor inputs under the argument names of `forward`."""
    back = {inner: outer for outer, inner in renamed.items()}
    places = []
    for tensor in domain.tensors:
        name, bracket, rest = tensor.place.partition("[")
        places.append(f"{back[name]}{bracket}{rest}")
    return ", ".join(places)


def _remark(members: Sequence[Candidate], index: int | None) -> str:
    return "the reference" if index is None else _one_line(members[index].label)


def _one_line(text: str) -> str:
    return " ".join(text.split())[:80].encode("ascii", "replace").decode()


def _docstring_safe(text: str) -> str:
    return _one_line(text).replace("\\", "/").replace('"', "'")
