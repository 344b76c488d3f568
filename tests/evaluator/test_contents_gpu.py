"""Contents on a GPU are those that the host would make of the same draws, and small inputs are replaced as a whole."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from evaluator.content.pools import TensorInput
from evaluator.devices.cuda import chain as device_chain
from evaluator.input_structure import Structure
from evaluator.roles import chain
from evaluator.roles.frames import TensorMeta
from tests.evaluator.test_device_link import expected

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def _kernels() -> None:
    torch.cuda.init()
    torch.zeros(1, device="cuda")
    device_chain.load(device_chain.compiled())


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_mixed_contents_are_the_hosts(tmp_path: Path, dtype: str) -> None:
    generator = np.random.default_rng(4)
    draws = [generator.normal(size=37 * 53).astype(dtype) for _ in range(3)]
    tensor = TensorInput(TensorMeta(dtype, (37, 53), (53, 1)), draws)
    drawn = tensor.draw_mixed(9, generator)
    assert drawn.masks is not None
    on_device = [torch.from_numpy(draw.copy()).cuda() for draw in draws]
    sources = torch.tensor([draw.data_ptr() for draw in on_device], device="cuda")
    rows = torch.from_numpy(np.array(drawn[:4], dtype=np.int64)).cuda()
    masks = torch.from_numpy(drawn.masks.view(np.int64).copy()).cuda()
    target = torch.zeros(9, 40 * 53, dtype=getattr(torch, dtype), device="cuda")
    stream = torch.cuda.current_stream().cuda_stream
    items = 37 * 53
    device_chain.fill(
        target.data_ptr(), target[0].nbytes, sources, rows, masks, items, items, draws[0].itemsize, stream
    )
    torch.cuda.synchronize()
    library = chain.load(chain.build(tmp_path))
    for index in range(9):
        expected = tensor.rebuild_mixed(library, drawn, index)
        assert np.array_equal(target[index, : 37 * 53].cpu().numpy(), expected)
        assert not target[index, 37 * 53 :].any()


def test_a_link_replaces_all_of_a_small_input() -> None:
    pool = torch.arange(300, dtype=torch.float32, device="cuda")
    seen = []
    for state in (5, 6):
        data = torch.full((70_000,), -1.0, device="cuda")
        table = device_chain.tables([[device_chain.row_of(data, pool, 1)]])[0]
        device_chain.States(1).replay([state], table, torch.cuda.current_stream().cuda_stream)
        torch.cuda.synchronize()
        assert data.min() >= 0 and data.unique().numel() > 200
        seen.append(data)
    assert (seen[0] != seen[1]).float().mean() > 0.9


def test_bits_are_even_and_never_the_same() -> None:
    from evaluator.referee.memory.device_work import Keeper

    keeper = Keeper(None)
    words = keeper.draw_bits(4, 4096)
    assert words.shape == (4, 4096)
    shares = [float(((words >> place) & 1).double().mean()) for place in range(64)]
    assert all(0.45 < share < 0.55 for share in shares), shares
    assert not torch.equal(words, keeper.draw_bits(4, 4096))
    assert not torch.equal(words, Keeper(None).draw_bits(4, 4096))


def _spans(outputs: list[torch.Tensor]) -> list[tuple[int, int]]:
    return [(output.data_ptr(), output.numel()) for output in outputs]


def _bytes(*lengths: int) -> list[torch.Tensor]:
    return [torch.randint(0, 256, (length,), dtype=torch.uint8, device="cuda") for length in lengths]


@pytest.mark.parametrize("count", [1, 3, 8, 9, 20])
def test_a_link_is_that_of_the_hosts_words_and_the_referee_can_repeat_it(count: int) -> None:
    """More than eight outputs take several kernels, which began at one time."""
    from evaluator.referee.memory.device_work import Keeper

    keeper, states = Keeper(None), device_chain.States(1)
    outputs = _bytes(*[(70_001, 1 << 20, 12)[place % 3] for place in range(count)])
    for first in (3 << 40, 5 << 50):
        states.begin(first)
        states.link(0, _spans(outputs), None, torch.cuda.current_stream().cuda_stream)
        (after,) = states.read(1)
        when = chain.when_of(after)
        assert keeper.digest(outputs, first, when) == after
        assert keeper.digest(outputs, first, when ^ 1) != after
        state, goes_on = first, False
        for start in range(0, count, 8):
            host = [output.cpu().numpy() for output in outputs[start : start + 8]]
            state, goes_on = expected(host, state, when, goes_on=goes_on), True
        assert state == after


def test_all_blocks_of_a_link_refresh_by_one_time_and_replays_by_others() -> None:
    """The same graph with the same outputs: what differs is the first state, and when each link began."""
    from evaluator.referee.memory.device_work import Keeper

    calls = 64
    keeper, states = Keeper(None), device_chain.States(calls)
    pool = torch.arange(1, 778, dtype=torch.float32, device="cuda")
    slots = [torch.zeros(1 << 18, device="cuda") for _ in range(calls)]
    rows = [[device_chain.row_of(slot, pool, 61)] for slot in slots]
    tables = device_chain.tables(rows)
    outputs = _bytes(1 << 20)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        stream = torch.cuda.current_stream().cuda_stream
        for call in range(calls):
            following = tables[call + 1] if call + 1 < calls else None
            states.link(call, _spans(outputs), following, stream)
    whens: list[int] = []
    for first in (7 << 33, 9 << 44, 9 << 44):
        for slot in slots:
            slot.zero_()
        states.begin(first)
        graph.replay()
        torch.cuda.synchronize()
        after = states.read(calls)
        for call in (0, 1, 30, calls - 1):
            before = after[call - 1] if call else first
            assert keeper.digest(outputs, before, chain.when_of(after[call])) == after[call]
        for call in (0, 5, calls - 2):
            again = torch.zeros_like(slots[call + 1])
            keeper.refresh([device_chain.row_of(again, pool, 61)], [after[call]])
            assert torch.equal(again, slots[call + 1])
        whens += [chain.when_of(state) for state in after]
    assert len(set(whens)) > 2 * calls


def test_zeros_that_stay_are_left_by_a_link_and_others_replaced() -> None:
    """As the host leaves them."""
    pool = np.arange(1, 301, dtype=np.float32)
    base = np.tril(np.full((300, 300), -1.0, dtype=np.float32)).reshape(-1)
    base[5:9] = -0.0
    on_device = torch.from_numpy(pool).cuda()
    for stride in (1, 61):
        data = torch.from_numpy(base.copy()).cuda()
        table = device_chain.tables([[device_chain.row_of(data, on_device, stride, 1)]])[0]
        device_chain.States(1).replay([5], table, torch.cuda.current_stream().cuda_stream)
        torch.cuda.synchronize()
        found = data.cpu().numpy()
        assert (found[base == 0.0] == 0.0).all()
        replaced = (found[base != 0.0] > 0.0).mean()
        assert replaced == 1.0 if stride == 1 else 0.005 < replaced < 0.05


def test_turned_contents_can_be_made_again_and_keep_their_structure() -> None:
    from evaluator.referee.memory.device_work import Keeper

    half = torch.randn(64, 64, dtype=torch.float64)
    matrix = (half @ half.mT).float()
    meta = TensorMeta("float32", (64, 64), (64, 1))
    draw = ((matrix + matrix.mT) / 2).numpy().reshape(-1)
    tensor = TensorInput(meta, [draw], structure=Structure(("symmetric", "positive_definite")))
    assert tensor.turned
    keeper = Keeper(None)
    drawn = tensor.draw_mixed(7, np.random.default_rng())
    held = torch.zeros(7, 64, 64, device="cuda")
    keeper.fill([(tensor, held.data_ptr())], held[0].nbytes, [drawn])
    again = torch.zeros(64, 64, device="cuda")
    keeper.fill([(tensor, again.data_ptr())], 0, [drawn.only(3)])
    torch.cuda.synchronize()
    assert torch.equal(held[3], again) and not torch.equal(held[3], held[4])
    assert torch.equal(held, held.mT)
    assert bool((torch.linalg.cholesky_ex(held.double()).info == 0).all())
    values = torch.from_numpy(draw).sort().values
    assert all(torch.equal(one.cpu().reshape(-1).sort().values, values) for one in held)


def test_one_element_in_64_changes_on_the_device() -> None:
    values = torch.randn(3 * 12_345, device="cuda")
    tensor = TensorInput(TensorMeta("float32", (3, 12_345), (12_345, 1)), [values.view(torch.uint8)])
    first, second = (tensor.slightly_changed(tensor.draws[0]).view(torch.float32) for _ in range(2))
    blocks = -(-len(values) // 64)
    for changed in (first, second):
        places = (changed != values).nonzero().view(-1)
        assert 0.9 * blocks < len(places) <= blocks
        assert 0.5 * blocks < len((places // 64).unique()) < 0.75 * blocks  # anywhere
        assert torch.isin(changed, values).all()
    assert int((first != second).sum()) > blocks
