"""The delivered file on a GPU: captures, streams, threads, devices, compilers."""

from __future__ import annotations

import copy
import threading
from pathlib import Path
from types import ModuleType

import pytest
import torch

from agent.candidates import Candidate
from tests.agent.bundle.building import imported, inputs, optimized_text, ran, right
from tests.agent.bundle.modal import SLOW_TASK

pytestmark = pytest.mark.gpu

GPU_MEMBER = """
import torch
import torch.nn as nn

calls = []


class ModelNew(nn.Module):
    def __init__(self, cols: int, factor: float = 2.0):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(cols))
        self.register_buffer("shift", torch.zeros(cols))
        self.factor = factor

    def forward(self, x, residual):
        calls.append(tuple(x.shape))
        return torch.addcmul(self.shift + residual, x, self.weight * self.factor)
"""


@pytest.fixture
def on_gpu(tmp_path: Path) -> ModuleType:
    return imported(tmp_path, optimized_text([Candidate(GPU_MEMBER, "human", "on a GPU")], device="cuda"))


def gpu_inputs(rows: int = 32, device: str = "cuda") -> list[torch.Tensor]:
    return [value.to(device) for value in inputs(rows)]


def test_a_captured_graph_holds_the_member_and_sees_new_inputs(on_gpu: ModuleType) -> None:
    model = on_gpu.ModelNew(64).cuda()
    x, residual = gpu_inputs()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.no_grad(), torch.cuda.stream(stream):
        model(x, residual)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        before = len(on_gpu.calls)
        out = model(x, residual)
        assert len(on_gpu.calls) == before + 1
    x.copy_(torch.randn_like(x))
    graph.replay()
    torch.testing.assert_close(out, on_gpu.Model.forward(model, x, residual))


def test_a_first_call_inside_a_capture_takes_the_reference_and_the_next_one_the_member(
    on_gpu: ModuleType,
) -> None:
    model = on_gpu.ModelNew(64).cuda()
    x, residual = gpu_inputs()
    with torch.no_grad():
        on_gpu.Model.forward(model, x, residual)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = model(x, residual)
        assert not on_gpu.calls
        graph.replay()
        torch.testing.assert_close(out, on_gpu.Model.forward(model, x, residual))
        assert ran(on_gpu, lambda: model(x, residual))


def test_it_follows_the_current_stream_in_several_threads(on_gpu: ModuleType) -> None:
    model = on_gpu.ModelNew(64).cuda()
    torch.cuda.synchronize()
    wrong: list[int] = []

    def use(number: int) -> None:
        stream = torch.cuda.Stream()
        with torch.no_grad(), torch.cuda.stream(stream):
            for _ in range(200):
                x = torch.full((512, 64), float(number), device="cuda")
                torch.cuda._sleep(
                    20_000
                )  # the input is late: whoever does not wait for this stream reads something else
                x.add_(1.0)
                found = model(x, x)
                expected = on_gpu.Model.forward(model, x, x)
                if not torch.allclose(found, expected, rtol=1e-4, atol=1e-4):
                    wrong.append(number)

    threads = [threading.Thread(target=use, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_second_call_is_captured_and_autocast_is_seen(on_gpu: ModuleType) -> None:
    model, given = on_gpu.ModelNew(64).cuda(), gpu_inputs()
    with torch.no_grad():
        right(on_gpu, model, *given)
        with torch.autocast("cuda"):
            assert not ran(on_gpu, lambda: right(on_gpu, model, *given))
        right(on_gpu, model, *given)
        assert ran(on_gpu, lambda: right(on_gpu, model, *given))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = model(*given)
        given[0].copy_(torch.randn_like(given[0]))
        graph.replay()
        torch.testing.assert_close(out, on_gpu.Model.forward(model, *given))


def test_inputs_on_another_device_are_the_reference_s_to_refuse(on_gpu: ModuleType) -> None:
    model = on_gpu.ModelNew(64).cuda()
    with torch.no_grad():
        assert ran(on_gpu, lambda: model(*gpu_inputs()))
        with pytest.raises(RuntimeError, match="device"):
            model(*inputs())
        assert ran(on_gpu, lambda: model(*gpu_inputs()))
        if torch.cuda.device_count() < 2:
            return
        other = copy.deepcopy(model).to("cuda:1")
        right(on_gpu, other, *gpu_inputs(device="cuda:1"))
        with torch.cuda.device(1):
            assert ran(on_gpu, lambda: other(*gpu_inputs(device="cuda:1")))
            with pytest.raises(RuntimeError, match="device"):
                model(*gpu_inputs(device="cuda:1"))


# The compiler's own graph trees begin with an empty capture, of which torch warns.
@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")
def test_on_a_gpu_it_compiles_as_one_graph_and_can_be_exported(on_gpu: ModuleType) -> None:
    model, given = on_gpu.ModelNew(64).cuda(), gpu_inputs()
    with torch.no_grad():
        expected = on_gpu.Model.forward(model, *given)
        compiled = torch.compile(model, fullgraph=True, mode="reduce-overhead")
        for _ in range(3):
            torch.testing.assert_close(compiled(*given).clone(), expected)
        torch.testing.assert_close(torch.export.export(model, tuple(given)).module()(*given), expected)


def test_verified_times_on_the_gpu_and_never_inside_a_capture(tmp_path: Path) -> None:
    """A member that is several times slower at many rows is not taken there; what a capture sees first is not timed."""
    sluggish = GPU_MEMBER.replace(
        "calls.append", "for _ in range(60 * (x.shape[0] >= 512)): x * 1.0\n        calls.append"
    )
    module = imported(
        tmp_path, optimized_text([Candidate(sluggish, "llm", "sluggish")], task=SLOW_TASK, device="cuda")
    )
    model = module.ModelNew(64).cuda().kernelwright_use("verified")
    with torch.no_grad():
        for rows, words in (
            (32, "sluggish (llm); verified: timed"),
            (1024, "reference: verified: timed, and no"),
        ):
            given = gpu_inputs(rows)
            right(module, model, *given)
            right(module, model, *given)
            assert model.kernelwright_explain(*given).startswith(words)
        given = gpu_inputs(48)
        stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, stream=stream):
            out = model(*given)
        assert "not seen yet" in model.kernelwright_explain(*given)
        graph.replay()
        torch.testing.assert_close(out, module.Model.forward(model, *given))
