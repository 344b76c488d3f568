"""The part of a candidate around Inductor's code: which calls reach it, and how autograd calls its backward."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from agent.compiler.forward import Forward

#: What a candidate binds besides Inductor's module and the reference, and the built-in names that its text relies on.
OWN_NAMES = (
    *("any", "dict", "len", "list", "map", "super", "tuple", "type", "zip"),
    "_kw_items",
    "_kw_kind",
    "_kw_result",
    "_kw_run",
    "ModelNew",
    "STATE",
    "STATES",
    "WRITTEN",
    "WithBackward",
    "applies",
    "attrgetter",
    "state_of",
    "weakref",
    "inspect",
)


def model_text(found: Mapping[str, Any], forward: Forward, *, repeats: bool = False) -> str:
    """`ModelNew`, what it needs, and with a backward the autograd function in between.

    Args:
        found: what the capture program wrote, untrusted.
        forward: the reference's.
        repeats: the module has a `_kw_call` that repeats what it noted of earlier calls; not used with a backward.

    Raises:
        AttributeError, KeyError, TypeError, ValueError: it has another form.
    """
    backward, written = found["backward"], [str(path) for path in found["written"]]
    text, gradients, run = "", _WITHOUT_GRADIENTS, "call(given)"
    if backward:
        results = int(backward["results"])
        constant = f"        ctx.mark_non_differentiable(*out[{results - len(written)}:{results}])\n"
        lists = {name: ", ".join(map(str, backward[name])) for name in ("sizes", "tensors", "takes")}
        text = _WITH_BACKWARD.format(results=results, constant=constant if written else "", **lists)
        gradients = _WITH_GRADIENTS.format(list(map(bool, backward["wanted"])))
        run = "WithBackward.apply(*given)"
    elif repeats:
        run = "_kw_call(given)"
    if any("_kw_items(" in one for one in found["tensors"]):
        text += _LISTS
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
    for find, new in zip(WRITTEN, out[-{}:]):
        find(module).copy_(new)
"""

_LISTS = """\
def _kw_items(value):
    return value if type(value) in (list, tuple) else ()


def _kw_kind(value):
    \"\"\"Of a list of tensors its class and how many there are.\"\"\"
    return type(value).__name__, len(_kw_items(value))


"""

_MODEL = '''\
# The tensors of the module that the code takes after those of the call.
STATE = [{state}]
# Of each module the parts that have them, how they are reached, and where each tensor is.
STATES = weakref.WeakKeyDictionary()
{written}

def state_of(module):
    """These tensors, or None if one is missing. A look at `module.part.weight` takes 3 us, so the parts are remembered."""
    inner, links, places = STATES.get(module, ((), (), ()))
    parts = [module, *inner]
    if not places or any(parts[at]._modules.get(name) is not part for part, (at, name) in zip(inner, links)):
        parts, links, places, known = [module], [], [], {{}}
        for path in STATE:
            *names, last = path.split(".")
            at, above = 0, ""
            for name in names:
                above += name + "."
                if above not in known:
                    part = parts[at]._modules.get(name)
                    if part is None:
                        return None
                    known[above] = len(parts)
                    parts.append(part)
                    links.append((at, name))
                at = known[above]
            places.append((at, last))
        STATES[module] = parts[1:], links, places
    state = [parts[at]._parameters.get(name, parts[at]._buffers.get(name)) for at, name in places]
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


def _kw_run(module, given, others):
    """What the compiler's code gives for a call; None where it does not apply."""
    if {{*map(type, given)}} != {{torch.Tensor}} or {{*map(attrgetter("layout"), given)}} != {{torch.strided}}:
        return None
    if True in map(attrgetter("is_nested"), given):  # neither it nor a sparse one has sizes and strides
        return None
    if True in map(torch.Tensor.is_neg, given) or True in map(torch.Tensor.is_conj, given):  # memory holds other numbers
        return None
    state = state_of(module)
    if state is None:
        return None
    given += state
    if not applies(given, others, module._made_with, module.training):
        return None
    out = {run}
{write}    return out


def _kw_result(out):
    return {result}


class ModelNew(Model):
    """The reference: same constructor, same weights. Where the compiler's code applies, that is what runs."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        bound = inspect.signature(Model).bind(*args, **kwargs)
        bound.apply_defaults()
        self._made_with = dict(bound.arguments)

    def forward(self, {signature}):
        # Arguments may have any name, that of a function among them.
        _kw_out = _kw_run(self, [{tensors}], ({others}))
        if _kw_out is not None:
            return _kw_result(_kw_out)
        return super().forward({names})
'''
