"""The reference replayed as a CUDA graph that is captured by hand: one launch a call instead of one for each kernel.

Where launches take longer than kernels do, that is the best that a user could have had without any new kernel, and what every
candidate is timed against. As a candidate it cannot be much faster than that; it is delivered where nothing else is either.
"""

from __future__ import annotations

from agent.bundle.sections import cut
from agent.compiler.forward import forward_parameters, without_docstring
from agent.compiler.modes import COPIED
from agent.errors import AssemblyError, ProposalFailed

LABEL = "CUDA graph"
#: As the referee calls it.
BASELINE = "cuda_graph"
NOTE = "the reference's own kernels, replayed as a CUDA graph; inputs and outputs copied"
_OWN_NAMES = frozenset({"ModelNew", "MOST_GRAPHS", "copied", "tensors_in", "form_of"})


def cuda_graph_source(reference: str, title: str) -> str:
    """A candidate file that captures the reference once for each set of input sizes and replays it.

    Raises:
        ProposalFailed: if the reference does not define a class Model with a plain forward.
    """
    try:
        section = cut(reference, "Model")
    except AssemblyError as error:
        raise ProposalFailed(str(error)) from error
    parameters = forward_parameters(section.text)
    taken = set(section.names) & _OWN_NAMES
    if taken:
        raise ProposalFailed(f"the reference uses the name {sorted(taken)[0]} itself")
    signature = ", ".join(p.name + (f"={p.default}" if p.default else "") for p in parameters)
    values = "(" + ", ".join(p.name for p in parameters) + ("," if len(parameters) == 1 else "") + ")"
    parts = [
        f'"""{" ".join(title.split())[:60]}, replayed as a CUDA graph."""'.replace("\\", ""),
        "import torch",
        without_docstring(section.text),
        _FUNCTIONS,
        COPIED,
        _MODEL.format(signature=signature, values=values),
    ]
    return "\n\n\n".join(part.strip("\n") for part in parts) + "\n"


_FUNCTIONS = '''\
MOST_GRAPHS = 64  # each holds memory; beyond so many sets of sizes the oldest one goes


def tensors_in(value):
    """All tensors of nested lists, tuples and dictionaries, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [tensor for item in value for tensor in tensors_in(item)] if isinstance(value, (list, tuple)) else []


def form_of(value):
    """What a graph is captured for: sizes, strides and dtypes, and everything that is no tensor."""
    if isinstance(value, torch.Tensor):
        return value.shape, value.stride(), value.dtype, value.device
    if isinstance(value, dict):
        return tuple((key, form_of(item)) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return type(value), tuple(form_of(item) for item in value)
    return repr(value)
'''

_MODEL = '''\
class ModelNew(Model):
    """The reference as a CUDA graph: same constructor, same weights."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._graphs = {{}}

    def forward(self, {signature}):
        values = {values}
        inputs = tensors_in(values)
        if not inputs or not all(tensor.is_cuda for tensor in inputs) or torch.cuda.is_current_stream_capturing():
            return Model.forward(self, *values)
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (*inputs, *self.parameters())):
            return Model.forward(self, *values)
        key = form_of(values), self.training
        weights = [tensor.data_ptr() for tensor in (*self.parameters(), *self.buffers())]
        known = self._graphs.get(key)
        if known is None or known[0] != weights:
            self._graphs.pop(key, None)
            if len(self._graphs) == MOST_GRAPHS:
                self._graphs.pop(next(iter(self._graphs)))
            known = self._graphs[key] = weights, *self._captured(values)
        _, graph, own_inputs, result = known
        if graph is None:
            return Model.forward(self, *values)
        for own, given in zip(own_inputs, inputs):
            own.copy_(given)
        graph.replay()
        return copied(result)

    def _captured(self, values):
        """A graph of one call on copies of the inputs; none where a call cannot be captured."""
        own = copied(values)
        here, side = torch.cuda.current_stream(), torch.cuda.Stream()
        side.wait_stream(here)
        with torch.no_grad(), torch.cuda.stream(side):
            for _ in range(3):
                Model.forward(self, *own)
        here.wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.no_grad(), torch.cuda.graph(graph):
                result = Model.forward(self, *own)
        except RuntimeError:  # it waits for the device, for example
            torch.cuda.synchronize()
            return None, [], None
        return graph, tensors_in(own), result

    def __getstate__(self):
        """Copies and pickles capture for themselves."""
        return {{**self.__dict__, "_graphs": {{}}}}
'''
