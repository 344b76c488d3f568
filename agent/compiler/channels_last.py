"""The reference with its images channels-last: the same operations, other strides, outputs laid out as the reference's.

Convolution libraries have kernels for channels innermost that are often faster: on two AVX-512 cores diffusion_attention_block
took 2.5 ms instead of 8.0, compiled besides 1.6 instead of 7.4. torch.compile leaves the layout as it comes on a CPU.
Conversions of inputs and outputs are part of the call. What a reference returns need not be contiguous, so the first call at
a set of inputs asks the reference itself, with its weights as they came.
"""

from __future__ import annotations

import ast
import re

from agent.bundle.sections import cut
from agent.compiler.forward import forward_parameters, without_docstring
from agent.compiler.modes import OWN_COPY
from agent.errors import AssemblyError, ProposalFailed

LABELS = {False: "channels-last", True: "channels-last, compiled"}
NOTE = "images and weights of convolutions channels-last, outputs as the reference lays them out"
#: Layers and functions, as torch.nn and torch.nn.functional call them; of one dimension there is no such format.
_OF_IMAGES = re.compile(
    r"(lazy)?(conv|conv_?transpose|(adaptive_?|fractional_?)?(max|avg)_?(un)?pool|lp_?pool|batch_?norm)[23]d(_with_indices)?",
    re.IGNORECASE,
)
_OWN_NAMES = frozenset(
    {"ModelNew", "FORMATS", "channels_last", "layout", "laid_out", "own_copy", "copy", "torch", "types"}
)


def holds_images(reference: str) -> bool:
    """Whether class Model, or what it uses, names a convolution, a pooling or a batch norm of two or three dimensions."""
    try:
        tree = ast.parse(cut(reference, "Model").text)
    except AssemblyError:
        return False
    names = (
        node.attr if isinstance(node, ast.Attribute) else node.id
        for node in ast.walk(tree)
        if isinstance(node, (ast.Attribute, ast.Name)) and isinstance(node.ctx, ast.Load)
    )
    return any(_OF_IMAGES.fullmatch(name) for name in names)


def channels_last_source(reference: str, title: str, *, compiled: bool) -> str:
    """A candidate file that runs the reference on channels-last images, through torch.compile for exact sizes if asked to.

    Raises:
        ProposalFailed: if the reference does not define a class Model with a plain forward.
    """
    try:
        section = cut(reference, "Model")
    except AssemblyError as error:
        raise ProposalFailed(str(error)) from error
    parameters = forward_parameters(section.text)
    taken = {name for name in section.names if name in _OWN_NAMES and section.names[name] != name}
    if taken:
        raise ProposalFailed(f"the reference uses the name {sorted(taken)[0]} itself")
    signature = ", ".join(p.name + (f"={p.default}" if p.default else "") for p in parameters)
    arguments = (
        "(" + "".join(f"{p.name}, " for p in parameters).rstrip(" " if len(parameters) == 1 else ", ") + ")"
    )
    function, imported = "Model.forward", ""
    if compiled:
        function, imported = "torch.compile(own_copy(Model.forward), dynamic=False)", "import types\n"
    parts = [
        f'"""{" ".join(title.split())[:60]}, on channels-last images."""'.replace("\\", ""),
        f"import copy\n{imported}\nimport torch",
        without_docstring(section.text),
        *([OWN_COPY] if compiled else []),
        _FUNCTIONS,
        _MODEL.format(signature=signature, arguments=arguments, function=function),
    ]
    return "\n\n\n".join(part.strip("\n") for part in parts) + "\n"


_FUNCTIONS = '''\
FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


def channels_last(value):
    """Images and volumes with their channels innermost, anything else as it is."""
    if isinstance(value, torch.Tensor) and value.dim() in FORMATS and value.is_floating_point():
        return value.contiguous(memory_format=FORMATS[value.dim()])
    return value


def layout(value):
    """Shape and strides of each tensor; strides are None where elements overlap or have gaps between them."""
    if isinstance(value, torch.Tensor):
        last = sum((size - 1) * step for size, step in zip(value.shape, value.stride()))
        dense = value.numel() == 0 or last + 1 == value.numel()
        return value.shape, value.stride() if dense else None
    if isinstance(value, (list, tuple)):
        return [layout(item) for item in value]
    if isinstance(value, dict):
        return {key: layout(item) for key, item in value.items()}
    return None


def laid_out(value, wanted):
    """The same values in memory as wanted; contiguous where a tensor cannot be laid out so."""
    if isinstance(value, torch.Tensor):
        shape, strides = wanted
        if strides is None or value.shape != shape:
            return value.contiguous()
        if all(size < 2 or mine == step for size, mine, step in zip(shape, value.stride(), strides)):
            return value
        return torch.empty_strided(shape, strides, dtype=value.dtype, device=value.device).copy_(value)
    if isinstance(value, (list, tuple)):
        items = [laid_out(item, one) for item, one in zip(value, wanted)]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, dict):
        return {key: laid_out(item, wanted[key]) for key, item in value.items()}
    return value
'''

_MODEL = '''\
class ModelNew(Model):
    """The reference on channels-last images: same constructor, same weights."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._known = {{}}
        self._turned = []
        for name, weight in [*self.named_parameters(), *self.named_buffers()]:
            if weight.dim() in FORMATS and weight.is_floating_point() and weight.is_contiguous():
                weight.data = channels_last(weight.data)
                self._turned.append(name)

    def forward(self, {signature}):
        values = {arguments}
        key = tuple(
            (value.shape, value.stride(), value.dtype) if isinstance(value, torch.Tensor) else repr(value)
            for value in values
        )
        if key not in self._known:
            self._known[key] = self._reference_layout(values), {function}
        wanted, function = self._known[key]
        return laid_out(function(self, *map(channels_last, values)), wanted)

    def _reference_layout(self, values):
        """How the reference lays its outputs out: asked once for each set of inputs, on copies of everything."""
        model = copy.deepcopy(self)
        for name, weight in [*model.named_parameters(), *model.named_buffers()]:
            if name in self._turned:
                weight.data = weight.data.contiguous()
        copies = [value.detach().clone() if isinstance(value, torch.Tensor) else copy.deepcopy(value) for value in values]
        with torch.no_grad(), torch.random.fork_rng(enabled=model.training):
            return layout(Model.forward(model, *copies))

    def __getstate__(self):
        """Copies and pickles find out for themselves."""
        return {{**self.__dict__, "_known": {{}}}}
'''
