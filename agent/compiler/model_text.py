"""The part of a candidate around Inductor's code: which calls reach it, and how autograd calls its backward."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from agent.compiler.forward import Forward

#: What a candidate binds besides Inductor's module and the reference.
OWN_NAMES = (
    "ModelNew",
    "STATE",
    "WRITTEN",
    "WithBackward",
    "applies",
    "attrgetter",
    "state_of",
    "inspect",
)


def model_text(found: Mapping[str, Any], forward: Forward) -> str:
    """`ModelNew`, what it needs, and with a backward the autograd function in between.

    Args:
        found: what the capture program wrote, untrusted.
        forward: the reference's.

    Raises:
        AttributeError, KeyError, TypeError, ValueError: it has another form.
    """
    backward, written = found["backward"], [str(path) for path in found["written"]]
    text, gradients, run = "", _WITHOUT_GRADIENTS, "call(_given)"
    if backward:
        results = int(backward["results"])
        constant = f"        ctx.mark_non_differentiable(*out[{results - len(written)}:{results}])\n"
        lists = {name: ", ".join(map(str, backward[name])) for name in ("sizes", "tensors", "takes")}
        text = _WITH_BACKWARD.format(results=results, constant=constant if written else "", **lists)
        gradients = _WITH_GRADIENTS.format(list(map(bool, backward["wanted"])))
        run = "WithBackward.apply(*_given)"
    return text + _MODEL.format(
        state=", ".join(repr(str(path)) for path in found["state"]),
        written=_WRITTEN.format(_places(written)) if written else "",
        dimensions=found["dimensions"],
        gradients=gradients,
        sizes="".join(f"    {line}\n" for line in found["sizes"]),
        shapes=", ".join(found["shapes"]),
        strides=", ".join(found["strides"]),
        dtypes=_several(found["dtypes"]),
        devices=_several([_DEVICES[name] for name in found["devices"]]),
        conditions=" and ".join(f"({one})" for one in found["conditions"]),
        signature=forward.signature,
        names=forward.call,
        tensors=", ".join(found["tensors"]),
        others="".join(f"{name}, " for name in found["others"]),
        run=run,
        write=_WRITE.format(len(written)) if written else "",
        result=found["result"],
    )


def _several(items: list[str]) -> str:
    """A list as Python text, short where all items are alike."""
    return f"[{items[0]}] * {len(items)}" if len({*items}) == 1 else f"[{', '.join(items)}]"


def _places(paths: Iterable[Any]) -> str:
    return ", ".join(f"attrgetter({str(path)!r})" for path in paths)


_DEVICES = {"cpu": 'torch.device("cpu")', "cuda": 'torch.device("cuda", 0)'}

_WITHOUT_GRADIENTS = "torch.is_grad_enabled() and any(one.requires_grad for one in given)"
_WITH_GRADIENTS = "not torch.is_grad_enabled() or [one.requires_grad for one in given] != {}"

_WITH_BACKWARD = '''\
class WithBackward(torch.autograd.Function):
    """The compiler's code, forward and backward."""

    @staticmethod
    def forward(ctx, *given):
        out = call(list(given))
        ctx.save_for_backward({tensors})
        ctx.sizes = [{sizes}]
{constant}        return tuple(out[:{results}])

    @staticmethod
    def backward(ctx, *gradients):
        if torch.is_grad_enabled():
            raise RuntimeError("the compiler's code has no second derivative; call the reference for create_graph=True")
        tensors, sizes = ctx.saved_tensors, ctx.sizes
        return tuple(call_backward([{takes}]))


'''

_WRITTEN = """\
# The buffers that a call writes to; the code returns what they hold then as its last results.
WRITTEN = [{}]
"""
_WRITE = """\
                for _find, _new in zip(WRITTEN, out[-{}:]):
                    _find(self).copy_(_new)
"""

_MODEL = '''\
# The tensors of the module that the code takes after those of the call.
STATE = [{state}]
{written}

def state_of(module):
    """These tensors, or None if one is missing. A look at `module.part.weight` takes 3 us, so dictionaries are remembered."""
    found = module.__dict__.get("_state_found")
    if found is None or any(parts.get(name) is not part for parts, name, part in found[0]):
        links, places = {{}}, []
        for path in STATE:
            *names, last = path.split(".")
            part = module
            for name in names:
                inner = part._modules.get(name)
                if inner is None:
                    return None
                links[id(part), name] = part._modules, name, inner
                part = inner
            places.append((part._parameters if last in part._parameters else part._buffers, last))
        found = module.__dict__["_state_found"] = [*links.values()], places
    state = [tensors.get(name) for tensors, name in found[1]]
    return None if type(None) in map(type, state) else state


def applies(given, others, made_with, training):
    """Whether the code was made for these tensors, what else `forward` was given, and this module."""
    # It runs at each call, so that nothing is looked up one tensor after the other in Python.
    shapes = [*map(torch.Tensor.size, given)]
    if [*map(len, shapes)] != {dimensions} or {gradients}:
        return False
{sizes}    return (
        shapes == [{shapes}]
        and [*map(torch.Tensor.stride, given)] == [{strides}]
        and [*map(attrgetter("dtype"), given)] == {dtypes}
        and [*map(attrgetter("device"), given)] == {devices}
        and {conditions}
    )


class ModelNew(Model):
    """The reference: same constructor, same weights. Where the compiler's code applies, that is what runs."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        bound = inspect.signature(Model).bind(*args, **kwargs)
        bound.apply_defaults()
        self._made_with = dict(bound.arguments)

    def forward(self, {signature}):
        _given = [{tensors}]
        if {{*map(type, _given)}} == {{torch.Tensor}}:
            _state = state_of(self)
            _given += _state or ()
            if _state is not None and applies(_given, ({others}), self._made_with, self.training):
                out = {run}
{write}                return {result}
        return super().forward({names})
'''
