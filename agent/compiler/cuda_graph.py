"""Replays a module as a manually captured CUDA graph: one launch per call instead of one per kernel.

If launches take longer than kernels, the reference as a graph is the best a user could get without new kernels, and every
candidate is timed against it. As a candidate it cannot be much faster than this baseline and serves as the fallback; a
candidate's own kernels in a graph can be faster.

A graph cannot replay inside another capture, under autograd, autocast or a tracer, for tensors that are not on the current
GPU, for a module that writes to its inputs or state, or if graphs would hold more than `MOST_BYTES`. The module's own `forward`
runs in these cases. Each thread and each stream has its own graphs, and one thread captures at a time.
"""

from __future__ import annotations

from agent.bundle.renaming import rename
from agent.compiler.forward import cut_apart, forward_of, joined, titled, without_docstring
from agent.compiler.modes import COPIED
from agent.errors import AssemblyError, ProposalFailed

LABEL = "CUDA graph"
#: The referee's name of this baseline.
BASELINE = "cuda_graph"
NOTE = "the reference's own kernels, replayed as a CUDA graph; inputs and outputs copied"
_OWN = frozenset(
    {
        "ModelNew", "Launched", "MOST_GRAPHS", "MOST_BYTES", "CAPTURING", "may_replay", "captured", "copied", "raw_stream",
        "tensors_in", "bytes_of", "versions",
    }
)  # fmt: skip


def cuda_graph_source(source: str, title: str, root: str = "Model") -> str:
    """Build a candidate file that replays a module as a CUDA graph.

    Args:
        source: the reference, or a candidate.
        title: for the docstring.
        root: the class to replay: "Model", or "ModelNew" of a candidate.

    Raises:
        ProposalFailed: if there is no such class with a plain forward, or it makes CUDA graphs itself.
    """
    section = cut_apart(source, _OWN, root)
    text, base = section.text, root
    if root == "ModelNew":
        base = "Launched"
        try:
            text = rename(text, {root: base})
        except AssemblyError as error:
            raise ProposalFailed(str(error)) from error
    if any(word in text for word in ("CUDAGraph", "cudagraph", "cuda.graph", "make_graphed_callables")):
        raise ProposalFailed("it makes CUDA graphs itself")
    forward = forward_of(text, base)
    if not forward.names:
        raise ProposalFailed("forward takes nothing")
    model = _MODEL.replace("BASE", base).replace("SIGNATURE", forward.signature)
    return joined(
        [
            titled(title, ", replayed as a CUDA graph for each set of sizes."),
            *([f"from __future__ import {', '.join(sorted(section.futures))}"] if section.futures else []),
            "import threading\n\nimport torch",
            without_docstring(text),
            _FUNCTIONS,
            COPIED,
            model.replace("NAMES", forward.call).replace("INPUTS", forward.items),
        ]
    )


_FUNCTIONS = '''\
# Of one module; a call with further sizes runs as it is.
MOST_GRAPHS = 32
# Of one module's graphs: inputs, outputs, and what lies between them. A call that does not fit runs as it is.
MOST_BYTES = 1 << 30
# Two captures at a time would share torch's stream for them.
CAPTURING = threading.Lock()
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
    if module._parts is None or any(part._modules != inner for part, inner in module._parts):
        # A part without tensors, such as an activation, may have been exchanged.
        module._graphs, module._bytes = {}, 0
        module._parts = [(part, dict(part._modules)) for part in module.modules()]
    held = [tensors for part, _ in module._parts for tensors in (part._parameters, part._buffers)]
    places = [tensor.data_ptr() for tensors in held for tensor in tensors.values() if tensor is not None]
    if module._places != places:
        module._graphs, module._bytes, module._places = {}, 0, places
    return True


def tensors_in(value):
    """The tensors of inputs or outputs."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, (list, tuple)):
        return []
    return [tensor for item in value for tensor in tensors_in(item)]


def bytes_of(value):
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors_in(value))


def versions(module, inputs):
    """What changes when a call writes into inputs, weights or buffers: replays would write, too, some of them into copies."""
    tensors = [*tensors_in(inputs), *module.parameters(), *module.buffers()]
    return [tensor._version for tensor in tensors if not tensor.is_inference()]


def captured(forward, inputs, most_bytes):
    """(tensors to copy inputs into, graph, what it writes, bytes that it holds); False where the call cannot be captured."""
    if bytes_of(inputs) > most_bytes:
        return False
    try:
        # Tensors of inference mode keep no versions. A capture that fails may leave its own stream as the current one; the outer
        # stream puts ours back.
        with torch.inference_mode(False), torch.no_grad(), torch.cuda.stream(torch.cuda.current_stream()):
            fixed = [value.clone() if isinstance(value, torch.Tensor) else value for value in inputs]
            targets = tensors_in(fixed)
            before = [target._version for target in targets]
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(2):
                    forward(*fixed)
            torch.cuda.current_stream().wait_stream(side)
            if [target._version for target in targets] != before:
                return False
            graph = torch.cuda.CUDAGraph()
            torch.cuda.empty_cache()  # as a capture does; what is reserved afterwards and was not before is the graph's
            reserved = torch.cuda.memory_reserved()
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                result = forward(*fixed)
            between = torch.cuda.memory_reserved() - reserved
    except Exception:  # whatever cannot be captured: it waits for the device, takes too much memory, or may not be captured
        return False
    held = bytes_of(fixed) + max(bytes_of(result), between)
    return (targets, graph, result, held) if held <= most_bytes else False

'''

_MODEL = '''\
class ModelNew(BASE):
    """The same module: same constructor, same weights."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._graphs, self._bytes, self._parts, self._places = {}, 0, None, None

    def forward(self, SIGNATURE):
        if torch.compiler.is_compiling() or not may_replay(self, INPUTS):
            return super().forward(NAMES)
        return self.forward_checked(NAMES)

    def forward_checked(self, SIGNATURE):
        """`forward` for a caller that knows that a graph may be replayed; inside a capture it is not."""
        return self.replayed(INPUTS)

    def replayed(self, inputs):
        """What `forward` gives, from a graph if there is one or may be."""
        if torch.cuda.is_current_stream_capturing():
            return super().forward(*inputs)
        # One thread or stream must not copy its inputs over another's.
        key = [threading.get_ident(), self.training]
        for value in inputs:
            if isinstance(value, torch.Tensor):
                index = value.get_device()
                key += (value.shape, value.stride(), value.dtype, index, raw_stream(index))
            else:
                key += (type(value), value)
        key = tuple(key)
        graphs = self._graphs
        found = graphs.get(key)
        if found is None:
            # The first call runs as it is: what comes once is not worth a capture, and it shows what the call writes into.
            if len(graphs) >= MOST_GRAPHS:
                return super().forward(*inputs)
            before = versions(self, inputs)
            result = super().forward(*inputs)
            graphs[key] = versions(self, inputs) == before
            return result
        if found is True:
            if not CAPTURING.acquire(blocking=False):
                return super().forward(*inputs)
            try:
                found = graphs[key] = captured(super().forward, inputs, MOST_BYTES - self._bytes)
                self._bytes += found[3] if found else 0
            finally:
                CAPTURING.release()
        if found is False:
            return super().forward(*inputs)
        targets, graph, result, _ = found
        for target, source in zip(targets, tensors_in(inputs)):
            target.copy_(source)
        graph.replay()
        return copied(result)

    def _apply(self, function, *rest, **named):
        self._graphs, self._bytes, self._parts = {}, 0, None
        return super()._apply(function, *rest, **named)

    def __getstate__(self):
        """Copies and pickles capture for themselves."""
        return {**self.__dict__, "_graphs": {}, "_bytes": 0, "_parts": None, "_places": None}
'''
