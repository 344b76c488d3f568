"""Contents on a GPU are those that the host would make of the same draws, and small inputs are replaced as a whole."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from evaluator.content.pools import TensorInput
from evaluator.roles import chain, device_chain
from evaluator.roles.frames import TensorMeta

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
    device_chain.fill(
        target.data_ptr(), target[0].nbytes, sources, rows, masks, 37 * 53, draws[0].itemsize, stream
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
    from evaluator.referee.keeper import Keeper

    keeper = Keeper(None)
    words = keeper.draw_bits(4, 4096)
    assert words.shape == (4, 4096)
    shares = [float(((words >> place) & 1).double().mean()) for place in range(64)]
    assert all(0.45 < share < 0.55 for share in shares), shares
    assert not torch.equal(words, keeper.draw_bits(4, 4096))
    assert not torch.equal(words, Keeper(None).draw_bits(4, 4096))
