"""`torch.compile` in its modes, each as a candidate source file.

The compiler's own settings are passed as `options`, so that nothing global changes. Every module and, where code is made
for exact sizes, every set of input sizes compiles its own copy of `forward`: torch.compile keeps its cache by code
object, walks it one entry after the other on each call, and gives up for good after eight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from agent.bundle.sections import cut
from agent.compiler.forward import Parameter, forward_parameters, without_docstring
from agent.errors import AssemblyError, ProposalFailed


@dataclass(frozen=True)
class Mode:
    """One way to call the compiler.

    Attributes:
        label: for tables.
        dynamic: one code for all sizes, or one for each set of sizes.
        options: settings by Inductor's dotted names.
        graphs: outputs live in a CUDA graph's memory and must be copied out.
        words: what a reader should know, one clause.
        baseline: how the referee's names of baselines begin that this is the same as.
    """

    label: str
    dynamic: bool
    options: dict[str, bool | int | str] = field(default_factory=dict)
    graphs: bool = False
    words: str = ""
    baseline: str = "compile_"


CPU_MODES = (
    Mode("compile dynamic", True, words="one code for all sizes"),
    Mode("compile default", False, words="code for exactly the sizes at hand"),
    Mode(
        "compile one thread",
        False,
        {"cpp.threads": 1},
        words="for exactly the sizes at hand, without threads",
    ),
)

CUDA_MODES = (
    Mode("compile dynamic", True, words="one code for all sizes"),
    Mode("compile default", False, words="code for exactly the sizes at hand", baseline="compile_default"),
    Mode(
        "compile max-autotune",
        False,
        {"max_autotune": True, "coordinate_descent_tuning": True},
        words="kernels and their launch settings chosen by measurement",
        baseline="compile_max_autotune",
    ),
    Mode(
        "compile reduce-overhead",
        False,
        {"triton.cudagraphs": True},
        graphs=True,
        words="replayed as a CUDA graph, outputs copied out of its memory",
        baseline="compile_reduce_overhead",
    ),
)


def modes(device: str) -> tuple[Mode, ...]:
    """The modes worth a try on "cpu" or "cuda"."""
    return CUDA_MODES if device == "cuda" else CPU_MODES


def mode_source(mode: Mode, reference: str, title: str) -> str:
    """A candidate file that compiles the reference in one mode.

    Raises:
        ProposalFailed: if the reference does not define a class Model with a plain forward.
    """
    try:
        section = cut(reference, "Model")
    except AssemblyError as error:
        raise ProposalFailed(str(error)) from error
    parameters = forward_parameters(section.text)
    taken = set(section.names) & {"ModelNew", "OPTIONS", "own_copy", "copied"}
    if taken:
        raise ProposalFailed(f"the reference uses the name {sorted(taken)[0]} itself")
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
        return type(value)(copied(item) for item in value)
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
    if mode.dynamic:
        lines = [
            "        if self._compiled is None:",
            f"            self._compiled = torch.compile(own_copy(Model.forward), dynamic=True{options})",
            "        compiled = self._compiled",
        ]
    else:
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
    return "\n".join(
        [
            "class ModelNew(Model):",
            '    """The reference, compiled: same constructor, same weights."""',
            "",
            "    def __init__(self, *args, **kwargs):",
            "        super().__init__(*args, **kwargs)",
            f"        self._compiled = {'None' if mode.dynamic else '{}'}",
            "",
            f"    def forward(self, {signature}):",
            *lines,
            *mark,
            f"        return {result}",
            "",
            "    def __getstate__(self):",
            '        """Copies and pickles compile for themselves."""',
            f'        return {{**self.__dict__, "_compiled": {"None" if mode.dynamic else "{}"}}}',
        ]
    )
