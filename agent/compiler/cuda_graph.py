"""A module replayed as a CUDA graph that is captured by hand: one launch a call instead of one for each kernel.

Where launches take longer than kernels do, the reference as a graph is the best that a user could have had without any new
kernel, and what every candidate is timed against: a bundle of Inductor's kernels came out at 0.6 to 0.8 of it on an H200. As a
candidate it cannot be much faster than that; it stands in where nothing else is. Kernels of one's own in a graph can be.

A graph is no answer inside somebody else's capture, under autograd, autocast or a tracer, or for inputs that are not
tensors on the current GPU: there the module's own `forward` runs.
"""

from __future__ import annotations

import ast

from agent.bundle.renaming import rename
from agent.bundle.sections import cut
from agent.compiler.forward import forward_parameters, without_docstring
from agent.compiler.modes import COPIED
from agent.errors import AssemblyError, ProposalFailed

LABEL = "CUDA graph"
#: As the referee calls it.
BASELINE = "cuda_graph"
NOTE = "the reference's own kernels, replayed as a CUDA graph; inputs and outputs copied"
_OWN = frozenset({"ModelNew", "Launched", "MOST_GRAPHS", "may_replay", "captured", "copied", "raw_stream"})


def cuda_graph_source(source: str, title: str, root: str = "Model") -> str:
    """A candidate file that replays a module.

    Args:
        source: the reference, or a candidate.
        title: for the docstring.
        root: the class to replay: "Model", or "ModelNew" of a candidate.

    Raises:
        ProposalFailed: if there is no such class with a plain forward, or it has graphs of its own.
    """
    try:
        section = cut(source, root)
        text = section.text
        if root == "ModelNew":
            text = rename(text, {"ModelNew": "Launched"})
    except AssemblyError as error:
        raise ProposalFailed(str(error)) from error
    base = "Launched" if root == "ModelNew" else root
    taken = set(section.names) & (_OWN - {root})
    if taken:
        raise ProposalFailed(f"the source uses the name {sorted(taken)[0]} itself")
    if any(word in text for word in ("CUDAGraph", "cudagraph", "cuda.graph", "make_graphed_callables")):
        raise ProposalFailed("it makes CUDA graphs itself")
    parameters = forward_parameters(text, base)
    if not parameters:
        raise ProposalFailed("forward takes nothing")
    futures = [f"from __future__ import {', '.join(sorted(section.futures))}"] if section.futures else []
    names = ", ".join(parameter.name for parameter in parameters)
    signature = ", ".join(p.name + (f"={p.default}" if p.default else "") for p in parameters)
    tuple_text = names + ("," if len(parameters) == 1 else "")
    parts = [
        f'"""{" ".join(title.split())[:80]}, replayed as a CUDA graph for each set of sizes."""'.replace(
            "\\", ""
        ),
        *futures,
        "import threading\n\nimport torch",
        without_docstring(text),
        _FUNCTIONS,
        COPIED,
        _MODEL.replace("BASE", base)
        .replace("SIGNATURE", signature)
        .replace("NAMES", names)
        .replace("INPUTS", f"({tuple_text})"),
    ]
    found = "\n\n\n".join(part.strip("\n") for part in parts) + "\n"
    try:
        ast.parse(found)
    except SyntaxError as error:
        raise ProposalFailed(f"the parts do not make one file: {error}") from error
    return found


_FUNCTIONS = '''\
# Of one module; a call with further sizes runs as it is. A graph holds the memory of what lies between input and output.
MOST_GRAPHS = 32
raw_stream = getattr(
    torch._C, "_cuda_getCurrentRawStream", lambda index: torch.cuda.current_stream(index).cuda_stream
)


def may_replay(module, inputs):
    """Whether a graph computes what `forward` would for these inputs, and its weights are where they were."""
    if torch.is_grad_enabled() or torch.is_autocast_enabled("cuda"):
        return False
    for value in inputs:
        if type(value) is torch.Tensor:
            if not value.is_cuda or value.get_device() != torch.cuda.current_device():
                return False
        elif not isinstance(value, (bool, int, float, str, type(None))):
            return False
    if module._parts is None:
        module._parts = [held for part in module.modules() for held in (part._parameters, part._buffers)]
    places = [tensor.data_ptr() for held in module._parts for tensor in held.values() if tensor is not None]
    if module._places != places:
        module._graphs, module._places = {}, places
    return True


def captured(forward, inputs):
    """(tensors to copy inputs into, graph, what it writes); False where the call cannot be captured."""
    try:
        # Tensors of inference mode keep no versions. A capture that fails may leave its own stream as the current one; the outer
        # stream puts ours back.
        with torch.inference_mode(False), torch.no_grad(), torch.cuda.stream(torch.cuda.current_stream()):
            fixed = [value.clone() if isinstance(value, torch.Tensor) else value for value in inputs]
            targets = [value for value in fixed if isinstance(value, torch.Tensor)]
            before = [target._version for target in targets]
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(2):
                    forward(*fixed)
            torch.cuda.current_stream().wait_stream(side)
            if [target._version for target in targets] != before:
                return False  # it writes into its inputs, and a replay would write into copies of them
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                result = forward(*fixed)
    except torch.OutOfMemoryError:
        raise
    except Exception:
        return False
    return targets, graph, result

'''

_MODEL = '''\
class ModelNew(BASE):
    """The same module: same constructor, same weights."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._graphs, self._parts, self._places = {}, None, None

    def forward(self, SIGNATURE):
        if torch.compiler.is_compiling() or not may_replay(self, INPUTS):
            return super().forward(NAMES)
        return self.forward_checked(NAMES)

    def forward_checked(self, SIGNATURE):
        """`forward` for a caller that knows that a graph may be replayed; inside a capture it is not."""
        if torch.cuda.is_current_stream_capturing():
            return super().forward(NAMES)
        inputs = INPUTS
        # One thread or stream must not copy its inputs over another's.
        key = [threading.get_ident(), self.training]
        for value in inputs:
            if isinstance(value, torch.Tensor):
                index = value.get_device()
                key += (value.shape, value.stride(), value.dtype, index, raw_stream(index))
            else:
                key += (type(value), value)
        key = tuple(key)
        found = self._graphs.get(key)
        if found is None:
            # The first call runs as it is: what comes once is not worth a capture.
            if len(self._graphs) < MOST_GRAPHS:
                self._graphs[key] = True
            return super().forward(NAMES)
        if found is True:
            found = self._graphs[key] = captured(super().forward, inputs)
        if found is False:
            return super().forward(NAMES)
        targets, graph, result = found
        sources = [value for value in inputs if isinstance(value, torch.Tensor)]
        for target, source in zip(targets, sources):
            target.copy_(source)
        graph.replay()
        return copied(result)

    def _apply(self, function, *rest, **named):
        self._graphs, self._parts = {}, None
        return super()._apply(function, *rest, **named)

    def __getstate__(self):
        """Copies and pickles capture for themselves."""
        return {**self.__dict__, "_graphs": {}, "_parts": None, "_places": None}
'''
