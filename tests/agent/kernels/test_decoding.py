"""Attention of few queries over keys that a kernel computes: which are found in a graph, and that the generated functions compute them."""

from __future__ import annotations

from pathlib import Path

from tests.agent.compiler.extraction import run_program
from tests.agent.kernels.test_rewriting import INTERPRETED

PROGRAM = """
import json, torch, torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx
from torch._subclasses.fake_tensor import FakeTensorMode
from agent.kernels.gpu import calls, streamed
from agent.kernels.rewriting import decoding, operations, rewrite
from agent.kernels.writing import function_text
torch.manual_seed(0)
decoding.LEAST_KEYS = 1
streamed._chunks = lambda *_: 2
pool = torch.randint(-128, 128, (2, 9, 16, 2, 64), dtype=torch.int8)
scale = torch.rand(2, 9, 16, 2) / 100
table = torch.randint(0, 9, (3, 4))
lengths = torch.tensor([64, 1, 30])
q = torch.randn(3, 4, 64)

def attend(q, keys, values, lengths, **more):
    seen = (torch.arange(keys.shape[2]) < lengths.unsqueeze(1)).view(-1, 1, 1, keys.shape[2])
    return F.scaled_dot_product_attention(q.unsqueeze(2), keys, values, attn_mask=seen, enable_gqa=True, **more).squeeze(2)

def paged(q, pool, scale, table, lengths):
    keys = (pool[0][table] * scale[0][table].unsqueeze(-1)).flatten(1, 2).transpose(1, 2)
    values = (pool[1][table] * scale[1][table].unsqueeze(-1)).flatten(1, 2).transpose(1, 2)
    return attend(q, keys, values, lengths)

def flat(q, pool, scale, lengths):
    keys, values = (pool.float() * scale.unsqueeze(-1)).unbind(0)
    return attend(q, keys, values, lengths)

def in_half(q, keys, values, lengths):
    return attend(q, keys.float(), values.transpose(1, 2).float(), lengths, scale=0.3)

def written(q, keys, values, lengths):
    keys.add_(1)
    return attend(q, keys.float(), values.float(), lengths)

cached = torch.randint(-128, 128, (2, 3, 2, 70, 64), dtype=torch.int8)
rows = torch.rand(2, 3, 2, 70) / 100
halves = torch.randn(2, 3, 2, 70, 64).half()
cases = {
    "paged": (paged, (pool, scale, table, lengths)),
    "from the end": (paged, (pool, scale, table - 9, lengths)),
    "beyond the pool": (paged, (pool, scale, torch.where(table == table[0, 0], 9, table), lengths)),
    "in half": (in_half, (halves[0], halves[1].transpose(1, 2).contiguous(), lengths)),
    "flat": (flat, (cached, rows, lengths)),
    "an infinite scale": (flat, (cached, rows.clone().index_fill_(3, torch.tensor([0]), torch.inf), lengths)),
    "written": (written, (halves[0].clone(), halves[1], lengths)),
}
found = {}
for name, (run, given) in cases.items():
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(one) for one in (q, *given)]
        graph = make_fx(run, pre_dispatch=True)(*fakes)
    rewrite.rewrite(graph)
    [node] = [node for node in graph.graph.nodes if "decoding" in str(node.target)]
    texts = node.args[8:10]
    file = f"elements_{len(found)}"
    parts = [function_text(part, text, "") for part, text in zip(("key", "value"), texts) if text]
    open(file + ".py", "w").write("import triton\\nimport triton.language as tl\\n" + "".join(parts))
    made = __import__(file)
    def decoded(q, keys, values, excluded, bias, scale, safe, change, key, value, sizes):
        if not key:
            return calls.library_decoding(q, keys, values, excluded, bias, scale, safe, None)
        keys, values = (
            streamed.Computed(some, one, torch.Size(sizes)) for some, one in ((keys, made.key), (values, made.value))
        )
        apart = calls.library_decoding(q, keys.sources, values.sources, excluded, bias, scale, safe, None, made.key, made.value, sizes)
        scale = q.shape[3] ** -0.5 if scale is None else scale
        out = streamed.streamed_attention(q, [keys], [values], excluded, bias, scale, safe, None, torch.full(q.shape, 7.0))
        assert torch.allclose(out, apart, rtol=1e-4, atol=1e-4, equal_nan=True)
        return out

    node.target = decoded
    graph.recompile()
    try:
        wanted = run(q, *(one.clone() for one in given))
    except IndexError:
        wanted = "refused"
    got = graph(q, *given)
    if isinstance(wanted, str):
        reached = (given[2] == 9).any(1)
        found[name] = [bool(texts[0]), bool(got[reached].isnan().all() and got[~reached].isfinite().all())]
    else:
        found[name] = [bool(texts[0]), torch.allclose(got, wanted, rtol=1e-4, atol=1e-4, equal_nan=True)]
with FakeTensorMode():  # one layer of a cache, whose places would not fit in 32 bits
    far = torch.empty_strided((1, 1, 18000, 64), (64, 64, 131072, 1), dtype=torch.int8)
    given = torch.empty(1, 2, 64), far, torch.ones(1, dtype=torch.int64)
    graph = make_fx(lambda q, k, lengths: attend(q, k.float(), k.float(), lengths), pre_dispatch=True)(*given)
rewrite.rewrite(graph)
[node] = [node for node in graph.graph.nodes if "decoding" in str(node.target)]
found["far"] = [bool(node.args[8])]
print(json.dumps(found))
"""


def test_keys_that_are_unpacked_or_lie_in_pages_are_computed_where_they_are_needed(tmp_path: Path) -> None:
    """An index beyond the pool, which torch refuses, gives NaN, as in the library's other gathers."""
    found = run_program(tmp_path, INTERPRETED + PROGRAM)
    assert found.pop("written") == [False, True] and found.pop("far") == [False]
    assert {name: result for name, result in found.items() if result != [True, True]} == {} and len(
        found
    ) == 6
