"""`torch.compile` in its modes, each as a candidate source file.

The compiler's own settings are passed as `options`, so that nothing global changes. Every module and every set of input
sizes compiles its own copy of `forward`: torch.compile keeps its cache by code object, walks it one entry after the other on
each call, and gives up for good after eight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from agent.compiler.forward import Parameter, cut_apart, forward_parameters, without_docstring


@dataclass(frozen=True)
class Mode:
    """One way to call the compiler; code is made for exactly the sizes at hand.

    Attributes:
        label: for tables.
        baseline: what the referee calls the baseline that this is, see `baseline_name`.
        options: settings by Inductor's dotted names, those of the baseline.
        graphs: outputs live in a CUDA graph's memory and must be copied out.
        one_thread: on a CPU, code without threads.
        words: what a reader should know, one clause.
    """

    label: str
    baseline: str
    options: dict[str, bool | int | str] = field(default_factory=dict)
    graphs: bool = False
    one_thread: bool = False
    words: str = ""


_TUNED: dict[str, bool | int | str] = {"max_autotune": True, "coordinate_descent_tuning": True}

CPU_MODES = (
    Mode("compile default", "compile_default", words="code for exactly the sizes at hand"),
    Mode(
        "compile one thread",
        "compile_default",
        {"cpp.threads": 1},
        one_thread=True,
        words="for exactly the sizes at hand, without threads",
    ),
    Mode("compile max-autotune", "compile_max_autotune", _TUNED, words="kernels chosen by measurement"),
)

CUDA_MODES = (
    Mode("compile default", "compile_default", words="code for exactly the sizes at hand"),
    Mode(
        "compile reduce-overhead",
        "compile_reduce_overhead",
        {"triton.cudagraphs": True},
        graphs=True,
        words="replayed as a CUDA graph, outputs copied out of its memory",
    ),
    Mode(
        "compile max-autotune",
        "compile_max_autotune",
        {**_TUNED, "triton.cudagraphs": True},
        graphs=True,
        words="kernels and their launch settings chosen by measurement, replayed as a CUDA graph, outputs copied",
    ),
)


def modes(device: str) -> tuple[Mode, ...]:
    """The modes of "cpu" or "cuda", the default one first, and last what compiles longest."""
    return CUDA_MODES if device == "cuda" else CPU_MODES


def baseline_name(mode: Mode, device: str, threads: int) -> str:
    """The referee's name of the baseline that a mode is: on a CPU with its number of threads."""
    return mode.baseline if device == "cuda" else f"{mode.baseline}/{1 if mode.one_thread else threads}t"


def mode_source(mode: Mode, reference: str, title: str) -> str:
    """A candidate file that compiles the reference in one mode.

    Raises:
        ProposalFailed: if the reference does not define a class Model with a plain forward.
    """
    section = cut_apart(reference, {"ModelNew", "OPTIONS", "own_copy", "copied"})
    parameters = forward_parameters(section.text)
    parts = [
        f'"""{" ".join(title.split())[:60]}, compiled by torch.compile: {mode.words}."""'.replace("\\", ""),
        "import types\n\nimport torch",
        without_docstring(section.text),
        *_options(mode),
        OWN_COPY,
        *([COPIED] if mode.graphs else []),
        _model(mode, parameters),
    ]
    return "\n\n\n".join(part.strip("\n") for part in parts) + "\n"


OWN_COPY = '''\
def own_copy(function):
    """The same function with a code object of its own: torch.compile keeps its cache and its limits there."""
    code = getattr(function, "__code__", None)
    if code is None:
        return function
    copy = types.FunctionType(
        code.replace(), function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy
'''

COPIED = '''\
def copied(value):
    """The outputs in memory of their own: the next replay of the graph overwrites the graph's."""
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, (list, tuple)):
        items = [copied(item) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, dict):
        return {key: copied(item) for key, item in value.items()}
    return value
'''


def _options(mode: Mode) -> list[str]:
    if not mode.options:
        return []
    rows = "".join(f"    {name!r}: {value!r},\n" for name, value in mode.options.items()).replace("'", '"')
    return [f"OPTIONS = {{\n{rows}}}"]


def _model(mode: Mode, parameters: Sequence[Parameter]) -> str:
    signature = ", ".join(p.name + (f"={p.default}" if p.default else "") for p in parameters)
    names = [p.name for p in parameters]
    call = ", ".join(["self", *names])
    options = ", options=OPTIONS" if mode.options else ""
    result = f"compiled({call})"
    if mode.graphs:
        result = f"copied({result})"
    mark = ["        torch.compiler.cudagraph_mark_step_begin()"] if mode.graphs else []
    seen = ", ".join(names) + ("," if len(names) == 1 else "")
    lines = [
        "        key = tuple(",
        "            (value.shape, value.stride(), value.dtype) if isinstance(value, torch.Tensor) else repr(value)",
        f"            for value in ({seen})",
        "        )",
        "        compiled = self._compiled.get(key)",
        "        if compiled is None:",
        f"            compiled = torch.compile(own_copy(Model.forward), dynamic=False{options})",
        "            self._compiled[key] = compiled",
    ]
    if mode.graphs:  # it would capture a graph of its own, which ends the capture that is under way
        lines[:0] = [
            "        if torch.cuda.is_current_stream_capturing():",
            f"            return super().forward({', '.join(names)})",
        ]
    return "\n".join(
        [
            "class ModelNew(Model):",
            '    """The reference, compiled: same constructor, same weights."""',
            "",
            "    def __init__(self, *args, **kwargs):",
            "        super().__init__(*args, **kwargs)",
            "        self._compiled = {}",
            "",
            f"    def forward(self, {signature}):",
            *lines,
            *mark,
            f"        return {result}",
            "",
            "    def __getstate__(self):",
            '        """Copies and pickles compile for themselves."""',
            '        return {**self.__dict__, "_compiled": {}}',
        ]
    )
