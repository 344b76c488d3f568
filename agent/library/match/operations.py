"""What each operation of a graph means for a row."""

from __future__ import annotations

import math
from collections.abc import Callable

from agent.library.match.graph import Node, Ref
from agent.library.match.reader import Handler, NotRowwise, Reader, Value, broadcast, number
from agent.library.match.terms import Algebra, Linear, constant, number_of

_MASK = "mask "
_FLOAT32_EPSILON = 2.0**-23  # torch's eps of an RMSNorm that names none


def _add(sign: float) -> Handler:
    def handle(reader: Reader, node: Node) -> Value:
        alpha = number(node.keywords.get("alpha", 1)) * sign
        algebra = reader.algebra
        return reader.combine(reader.tensors(node)[:2], lambda a, b: algebra.add(a, algebra.scale(b, alpha)))

    return handle


def _add_in_place(reader: Reader, node: Node) -> Value:
    """An addition into a tensor that nothing else sees, as torch's own RMSNorm does it."""
    target = node.arguments[0]
    if not isinstance(target, Ref) or reader.uses[target.node] != 1:
        raise NotRowwise("a tensor is changed that is used elsewhere")
    source = reader.trace.nodes[target.node]
    if source.is_leaf or HANDLERS.get(source.op) in (_view, _expand, _same, _getitem):
        raise NotRowwise("a tensor is changed that may be used elsewhere")
    return _add(1.0)(reader, node)


def _multiply(reader: Reader, node: Node) -> Value:
    return reader.combine(reader.tensors(node)[:2], reader.algebra.multiply)


def _divide(reader: Reader, node: Node) -> Value:
    if node.keywords.get("rounding_mode") is not None:
        raise NotRowwise("a division rounds")
    algebra = reader.algebra
    return reader.combine(reader.tensors(node)[:2], lambda a, b: algebra.multiply(a, algebra.power(b, -1.0)))


def _power(exponent: float | None = None) -> Handler:
    def handle(reader: Reader, node: Node) -> Value:
        value = reader.operand(node.arguments[0])
        chosen = number(node.arguments[1]) if exponent is None else exponent
        return Value(reader.algebra.power(value.form, chosen), value.shape)

    return handle


def _function(name: str) -> Handler:
    def handle(reader: Reader, node: Node) -> Value:
        value = reader.operand(node.arguments[0])
        return Value(reader.algebra.call(name, value.form), value.shape)

    return handle


def _negative(reader: Reader, node: Node) -> Value:
    value = reader.operand(node.arguments[0])
    return Value(reader.algebra.scale(value.form, -1.0), value.shape)


def _clamp(reader: Reader, node: Node) -> Value:
    """A clamp from below at zero is a relu."""
    low = node.arguments[1] if len(node.arguments) > 1 else node.keywords.get("min")
    high = node.arguments[2] if len(node.arguments) > 2 else node.keywords.get("max")
    if high is not None or low is None or number_of(reader.operand(low).form) != 0.0:
        raise NotRowwise("a clamp is no relu")
    value = reader.operand(node.arguments[0])
    return Value(reader.algebra.call("relu", value.form), value.shape)


def _maximum(reader: Reader, node: Node) -> Value:
    """The maximum with zero is a relu."""
    left, right = reader.tensors(node)
    value, other = (right, left) if number_of(left.form) == 0.0 else (left, right)
    if number_of(other.form) != 0.0:
        raise NotRowwise("a maximum is no relu")
    return Value(reader.algebra.call("relu", value.form), broadcast(left.shape, right.shape))


def _compare(kind: str) -> Handler:
    def handle(reader: Reader, node: Node) -> Value:
        value, other = reader.tensors(node)
        if number_of(other.form) != 0.0:
            raise NotRowwise("a comparison with something else than zero")
        return Value(reader.algebra.call(_MASK + kind, value.form), value.shape)

    return handle


def _where(reader: Reader, node: Node) -> Value:
    """x where x > 0, else 0, is a relu."""
    mask, chosen, other = reader.tensors(node)
    algebra = reader.algebra
    for kind in ("positive", "negative"):
        keep, drop = (chosen, other) if kind == "positive" else (other, chosen)
        if number_of(drop.form) == 0.0 and mask.form == algebra.call(_MASK + kind, keep.form):
            return Value(algebra.call("relu", keep.form), keep.shape)
    raise NotRowwise("a choice is no relu")


def _gelu(reader: Reader, node: Node) -> Value:
    value = reader.operand(node.arguments[0])
    approximate = node.keywords.get("approximate", node.arguments[1] if len(node.arguments) > 1 else "none")
    return Value(gelu(reader.algebra, value.form, approximate == "tanh"), value.shape)


def gelu(algebra: Algebra, x: Linear, tanh: bool) -> Linear:
    """x * P(normal <= x), exactly or by the usual approximation with tanh."""
    if tanh:
        inner = algebra.add(x, algebra.scale(algebra.power(x, 3.0), 0.044715))
        bell = algebra.call("tanh", algebra.scale(inner, math.sqrt(2.0 / math.pi)))
    else:
        bell = algebra.call("erf", algebra.scale(x, math.sqrt(0.5)))
    return algebra.scale(algebra.multiply(x, algebra.add(constant(1.0), bell)), 0.5)


def _reduction(build: Callable[[Algebra, Linear], Linear]) -> Handler:
    def handle(reader: Reader, node: Node) -> Value:
        if node.keywords.get("dtype") not in (None, "torch.float32"):
            raise NotRowwise("a reduction changes the dtype")
        dims = node.arguments[1] if len(node.arguments) > 1 else node.keywords.get("dim")
        keep = node.arguments[2] if len(node.arguments) > 2 else node.keywords.get("keepdim", False)
        return reader.reduced(
            reader.operand(node.arguments[0]), dims, keep is True, lambda form: build(reader.algebra, form)
        )

    return handle


def _variance(reader: Reader, node: Node) -> Value:
    correction = node.keywords.get("correction")
    bias = 1.0 if correction is None else number(correction)
    dims = node.arguments[1] if len(node.arguments) > 1 else node.keywords.get("dim")
    keep = node.keywords.get("keepdim", False) is True
    value = reader.operand(node.arguments[0])
    return reader.reduced(value, dims, keep, lambda form: reader.algebra.variance(form, bias))


def _softmax(logarithm: bool) -> Handler:
    def handle(reader: Reader, node: Node) -> Value:
        value = reader.operand(node.arguments[0])
        algebra = reader.algebra
        if node.arguments[2] is not False:
            raise NotRowwise("a softmax changes the dtype")
        reader.reduced(value, node.arguments[1], True, algebra.mean)  # only to check the dimension
        found = algebra.softmax(value.form)
        return Value(algebra.call("log", found) if logarithm else found, value.shape)

    return handle


def _layer_norm(reader: Reader, node: Node) -> Value:
    source, normalized, weight, bias, eps = node.arguments
    value, algebra = reader.operand(source), reader.algebra
    if not isinstance(normalized, tuple) or len(normalized) != 1 or value.shape[-1:] != normalized:
        raise NotRowwise("a LayerNorm runs over more than the last dimension")
    deviation = algebra.add(value.form, algebra.scale(algebra.mean(value.form), -1.0))
    spread = algebra.power(algebra.add(algebra.variance(value.form), constant(number(eps))), -0.5)
    form = algebra.multiply(deviation, spread)
    if weight is not None:
        form = algebra.multiply(form, reader.operand(weight).form)
    if bias is not None:
        form = algebra.add(form, reader.operand(bias).form)
    return Value(form, value.shape)


def _rms_norm(reader: Reader, node: Node) -> Value:
    source, normalized, weight, eps = node.arguments
    value, algebra = reader.operand(source), reader.algebra
    if not isinstance(normalized, tuple) or len(normalized) != 1 or value.shape[-1:] != normalized:
        raise NotRowwise("an RMSNorm runs over more than the last dimension")
    small = constant(_FLOAT32_EPSILON if eps is None else number(eps))
    spread = algebra.power(algebra.add(algebra.mean(algebra.power(value.form, 2.0)), small), -0.5)
    form = algebra.multiply(value.form, spread)
    return Value(form if weight is None else algebra.multiply(form, reader.operand(weight).form), value.shape)


def _getitem(reader: Reader, node: Node) -> Value:
    """The first result of an operation with several; the others are not known here."""
    if node.arguments[1] != 0:
        raise NotRowwise("a second result is used")
    return reader.operand(node.arguments[0])


def _same(reader: Reader, node: Node) -> Value:
    """Copies, and casts that change nothing."""
    value = reader.operand(node.arguments[0])
    source = reader.trace.nodes[node.arguments[0].node] if isinstance(node.arguments[0], Ref) else node
    if source.dtype != node.dtype:
        raise NotRowwise("a dtype changes")
    return value


def _view(reader: Reader, node: Node) -> Value:
    """Views that keep every row as it is, and those that only add or drop dimensions of one."""
    value = reader.operand(node.arguments[0])
    assert node.shape is not None
    kind = reader.algebra.form_kind(value.form)
    same_rows = bool(value.shape) and bool(node.shape) and value.shape[-1] == node.shape[-1]
    squeezed = tuple(size for size in value.shape if size != 1) == tuple(
        size for size in node.shape if size != 1
    )
    steady = kind == "row" and value.shape[-1:] != reader.full_shape[-1:]
    allowed = squeezed if kind in ("col", "number") or steady else same_rows
    if kind == "full" and squeezed and not same_rows:
        allowed = False
    if math.prod(value.shape) != math.prod(node.shape) or not allowed:
        raise NotRowwise("a view mixes rows")
    return Value(value.form, node.shape)


def _expand(reader: Reader, node: Node) -> Value:
    value = reader.operand(node.arguments[0])
    assert node.shape is not None
    if broadcast(value.shape, node.shape) != node.shape:
        raise NotRowwise("an expansion changes the shape")
    if (
        reader.algebra.form_kind(value.form) == "row"
        and value.shape[-1:] != (1,)
        and value.shape != node.shape
    ):
        raise NotRowwise("a row statistic meets the columns")
    return Value(value.form, node.shape)


def _full(reader: Reader, node: Node) -> Value:
    value = node.arguments[0] if node.op == "aten.scalar_tensor.default" else node.arguments[1]
    assert node.shape is not None
    return Value(constant(number(value)), node.shape)


HANDLERS: dict[str, Handler] = {
    "aten.add.Tensor": _add(1.0),
    "aten.add.Scalar": _add(1.0),
    "aten.add_.Tensor": _add_in_place,
    "aten.add_.Scalar": _add_in_place,
    "aten.sub.Tensor": _add(-1.0),
    "aten.sub.Scalar": _add(-1.0),
    "aten.mul.Tensor": _multiply,
    "aten.mul.Scalar": _multiply,
    "aten.div.Tensor": _divide,
    "aten.div.Scalar": _divide,
    "aten.neg.default": _negative,
    "aten.reciprocal.default": _power(-1.0),
    "aten.sqrt.default": _power(0.5),
    "aten.rsqrt.default": _power(-0.5),
    "aten.square.default": _power(2.0),
    "aten.pow.Tensor_Scalar": _power(),
    "aten.exp.default": _function("exp"),
    "aten.log.default": _function("log"),
    "aten.tanh.default": _function("tanh"),
    "aten.sigmoid.default": _function("sigmoid"),
    "aten.erf.default": _function("erf"),
    "aten.abs.default": _function("abs"),
    "aten.relu.default": _function("relu"),
    "aten.clamp.default": _clamp,
    "aten.clamp_min.default": _clamp,
    "aten.maximum.default": _maximum,
    "aten.gt.Scalar": _compare("positive"),
    "aten.ge.Scalar": _compare("positive"),
    "aten.lt.Scalar": _compare("negative"),
    "aten.le.Scalar": _compare("negative"),
    "aten.where.self": _where,
    "aten.gelu.default": _gelu,
    "aten.mean.dim": _reduction(Algebra.mean),
    "aten.sum.dim_IntList": _reduction(Algebra.sum),
    "aten.amax.default": _reduction(lambda algebra, form: algebra.call("max", form)),
    "aten.var.correction": _variance,
    "aten._softmax.default": _softmax(logarithm=False),
    "aten._log_softmax.default": _softmax(logarithm=True),
    "aten.native_layer_norm.default": _layer_norm,
    "aten._fused_rms_norm.default": _rms_norm,
    "getitem": _getitem,
    "aten.clone.default": _same,
    "aten.alias.default": _same,
    "aten.detach.default": _same,
    "aten._to_copy.default": _same,
    "aten.lift_fresh_copy.default": _same,
    "aten.view.default": _view,
    "aten._unsafe_view.default": _view,
    "aten.reshape.default": _view,
    "aten.unsqueeze.default": _view,
    "aten.squeeze.dim": _view,
    "aten.squeeze.dims": _view,
    "aten.expand.default": _expand,
    "aten.full.default": _full,
    "aten.full_like.default": _full,
    "aten.scalar_tensor.default": _full,
}

#: Operations with several results, of which the first is meant.
SEVERAL_RESULTS = (_getitem, _layer_norm, _rms_norm)
