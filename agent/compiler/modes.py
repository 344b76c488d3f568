"""The modes of `torch.compile`, each as a candidate source file.

Compiler settings are passed as `options`, which leaves global state unchanged. Every module and every set of input sizes
compiles its own copy of `forward`: torch.compile caches by code object, searches the cache linearly on each call, and stops
compiling after eight entries.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from agent.compiler.forward import cut_apart, forward_of, joined, titled, without_docstring
from evaluator.devices import is_accelerator


@dataclass(frozen=True)
class Mode:
    """One way to call the compiler; it generates code for exactly the given sizes.

    Attributes:
        label: name for tables.
        baseline: the referee's name of the equivalent baseline, see `baseline_name`.
        options: settings by Inductor's dotted names, equal to the baseline's.
        graphs: whether outputs live in a CUDA graph's memory and must be copied out.
        one_thread: whether to generate single-threaded code, on a CPU.
        words: a description for readers, one clause.
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
    """The modes of "cpu" or "cuda": the default mode first, the slowest to compile last."""
    return CUDA_MODES if is_accelerator(device) else CPU_MODES


def baseline_name(mode: Mode, device: str, threads: int) -> str:
    """The referee's name of the baseline equivalent to a mode; on a CPU it includes the number of threads."""
    return (
        mode.baseline if is_accelerator(device) else f"{mode.baseline}/{1 if mode.one_thread else threads}t"
    )


def mode_source(mode: Mode, reference: str, title: str) -> str:
    """Build a candidate file that compiles the reference in one mode.

    Raises:
        ProposalFailed: if the reference does not define a class Model with a plain forward.
    """
    section = cut_apart(reference, {"ModelNew", "OPTIONS", "own_copy", "copied"})
    forward = forward_of(section.text)
    model = _MODEL.replace("SIGNATURE", forward.signature)
    model = model.replace("RESULT", "copied(RESULT)" if mode.graphs else "RESULT")
    model = model.replace(
        "RESULT", f"self.compiled_for({forward.items})({', '.join(['self', *forward.names])})"
    )
    model = model.replace("OPTIONS", ", options=OPTIONS" if mode.options else "")
    model = model.replace("CAPTURING\n", _CAPTURING.replace("CALL", forward.call) if mode.graphs else "")
    model = model.replace("MARK\n", _MARK if mode.graphs else "")
    return joined(
        [
            titled(title, f", compiled by torch.compile: {mode.words}."),
            "import types\n\nimport torch",
            without_docstring(section.text),
            *([f"OPTIONS = {mode.options}"] if mode.options else []),
            OWN_COPY,
            *([COPIED] if mode.graphs else []),
            model,
        ]
    )


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


_MODEL = '''\
class ModelNew(Model):
    """The reference, compiled: same constructor, same weights."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._compiled = {}

    def forward(self, SIGNATURE):
CAPTURING
MARK
        return RESULT

    def compiled_for(self, values):
        """What was compiled for these sizes."""
        key = tuple(
            (value.shape, value.stride(), value.dtype) if isinstance(value, torch.Tensor) else repr(value)
            for value in values
        )
        compiled = self._compiled.get(key)
        if compiled is None:
            compiled = torch.compile(own_copy(Model.forward), dynamic=FalseOPTIONS)
            self._compiled[key] = compiled
        return compiled

    def __getstate__(self):
        """Copies and pickles compile for themselves."""
        return {**self.__dict__, "_compiled": {}}
'''
# Starting a graph here would invalidate a capture in progress.
_CAPTURING = """\
        if torch.cuda.is_current_stream_capturing():
            return super().forward(CALL)
"""
_MARK = """\
        torch.compiler.cudagraph_mark_step_begin()
"""
