"""What comes out of the sandbox is checked before it is used."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rl.data.graph import BadGraph, read_graphs
from rl.data.meaning import meaning_of


def leaf(op: str, name: str, shape: list[int]) -> dict[str, Any]:
    return {"op": op, "name": name, "args": [], "kwargs": {}, "shape": shape, "dtype": "float32"}


def report(**changes: Any) -> dict[str, Any]:
    """A module that multiplies silu(x) with r."""
    shape = [3, 8]
    nodes = [
        leaf("input", "0", shape),
        leaf("input", "1", shape),
        {
            "op": "aten.sigmoid.default",
            "args": [{"node": 0}],
            "kwargs": {},
            "shape": shape,
            "dtype": "float32",
        },
        {
            "op": "aten.mul.Tensor",
            "args": [{"node": 0}, {"node": 2}],
            "kwargs": {},
            "shape": shape,
            "dtype": "float32",
        },
        {
            "op": "aten.mul.Tensor",
            "args": [{"node": 3}, {"node": 1}],
            "kwargs": {},
            "shape": shape,
            "dtype": "float32",
        },
    ]
    return {
        "traces": [{"nodes": nodes, "output": 4}],
        "arguments": ["x", "r"],
        "open_ended": False,
        **changes,
    }


def with_node(position: int, **changes: Any) -> dict[str, Any]:
    found = report()
    found["traces"][0]["nodes"][position].update(changes)
    return found


def test_a_sound_report_is_read() -> None:
    traced = read_graphs(json.dumps(report()))
    assert traced.arguments == ("x", "r")
    assert [node.op for node in traced.traces[0].nodes][:3] == ["input", "input", "aten.sigmoid.default"]


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param([], id="no object"),
        pytest.param(report(arguments=["x", "x"]), id="argument repeated"),
        pytest.param(report(arguments=["x; import os", "r"]), id="argument is code"),
        pytest.param(report(arguments=["ｘ", "r"]), id="argument is no ASCII"),
        pytest.param(report(traces=[]), id="no trace"),
        pytest.param(report(traces=[{"nodes": [], "output": 0}]), id="no node"),
        pytest.param(
            report(traces=[{"nodes": report()["traces"][0]["nodes"], "output": 5}]),
            id="output beyond the end",
        ),
        pytest.param(
            report(traces=[{"nodes": [leaf("input", "0", [1])] * 2001, "output": 0}]), id="too many nodes"
        ),
        pytest.param(with_node(2, args=[{"node": 2}]), id="a node of itself"),
        pytest.param(with_node(2, args=[{"node": 4}]), id="a later node"),
        pytest.param(with_node(2, args=[{"node": True}]), id="a boolean as node"),
        pytest.param(with_node(2, args=[[[[[[[[1]]]]]]]]), id="nested"),
        pytest.param(with_node(2, op="aten.relu\nimport os"), id="operation is code"),
        pytest.param(with_node(0, op="parameter", name="w'] or exit("), id="parameter is code"),
        pytest.param(with_node(0, op="parameter", name="a..b"), id="parameter is no path"),
        pytest.param(with_node(0, name="-1"), id="input is no position"),
        pytest.param(with_node(1, name="7"), id="input without argument"),
        pytest.param(with_node(0, shape=[-3, 8]), id="negative size"),
        pytest.param(with_node(0, shape=[3.5, 8]), id="fractional size"),
        pytest.param(with_node(0, dtype="float32; x"), id="dtype is code"),
        pytest.param(with_node(0, op="constant", value=1e999), id="infinite constant"),
    ],
)
def test_a_bad_report_is_refused(bad: object) -> None:
    with pytest.raises(BadGraph):
        read_graphs(json.dumps(bad))


def test_no_json_is_refused() -> None:
    for text in ("", "{", "[" * 100_000, '"' + "x" * 5_000_000 + '"'):
        with pytest.raises(BadGraph):
            read_graphs(text)


def test_what_a_module_computes_does_not_depend_on_names_numbers_and_order() -> None:
    def meaning(**changes: Any) -> str:
        return meaning_of(json.dumps(with_node(3, **changes)).encode())

    usual = meaning()
    assert usual
    assert meaning(args=[{"node": 2}, {"node": 0}]) == usual, "the order of factors"
    assert meaning(args=[{"node": 1}, {"node": 2}]) == usual, "which tensor"
    assert meaning(op="aten.add.Tensor") != usual
    assert meaning(op="aten.sub.Tensor") != meaning(op="aten.sub.Tensor", args=[{"node": 2}, {"node": 0}])
    assert meaning(args=[{"node": 0}, 2.0]) != usual, "an operation fewer"
    assert meaning_of(b"{") == ""


def test_the_same_arithmetic_written_in_another_way_means_the_same() -> None:
    def node(op: str, *args: Any) -> dict[str, Any]:
        given = [{"node": one} if isinstance(one, int) else one for one in args]
        return {
            "op": f"aten.{op}",
            "args": given,
            "kwargs": {},
            "shape": [3, 8],
            "dtype": "float32",
        }

    def meaning(*nodes: dict[str, Any]) -> str:
        leaves = [leaf("input", "0", [3, 8]), leaf("input", "1", [3, 8])]
        every = [*leaves, *nodes]
        found = meaning_of(json.dumps(report(traces=[{"nodes": every, "output": len(every) - 1}])).encode())
        assert found
        return found

    squares = [node("pow.Tensor_Scalar", 0, 2.0), node("mul.Tensor", 0, 0)]
    assert meaning(squares[0]) == meaning(squares[1]) != meaning(node("pow.Tensor_Scalar", 0, 3.0))
    # (x * s) * r and x * (s * r), x / s and x * (1 / s), mean(x) and sum(x) / n
    scale = node("rsqrt.default", 0)
    assert meaning(scale, node("mul.Tensor", 0, 2), node("mul.Tensor", 3, 1)) == meaning(
        scale, node("mul.Tensor", 2, 1), node("mul.Tensor", 0, 3)
    )
    exp = node("exp.default", 1)
    assert meaning(exp, node("div.Tensor", 0, 2)) == meaning(
        exp, node("reciprocal.default", 2), node("mul.Tensor", 0, 3)
    )
    assert meaning(node("mean.dim", 0, [1.0])) == meaning(
        node("sum.dim_IntList", 0, [1.0]), node("div.Tensor", 2, 8.0)
    )
    assert meaning(exp, node("div.Tensor", 0, 2)) != meaning(exp, node("div.Tensor", 2, 0))


def test_a_graph_that_doubles_when_it_is_written_out_ends_quickly() -> None:
    shape = [3, 8]
    nodes: list[dict[str, Any]] = [leaf("input", "0", shape)]
    for number in range(600):
        arguments = [{"node": number}, {"node": number}]
        nodes.append(
            {"op": "aten.sub.Tensor", "args": arguments, "kwargs": {}, "shape": shape, "dtype": "float32"}
        )
    assert meaning_of(json.dumps(report(traces=[{"nodes": nodes, "output": 600}])).encode())
