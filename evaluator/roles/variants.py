"""Forms of the reference: eager, the compiler's modes, a hand-captured CUDA graph, and the same under autocast."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from types import ModuleType
from typing import Any

import torch

from evaluator.baselines import MODES
from evaluator.devices.accelerator import on_gpu, torch_gpu
from evaluator.precision import TIERS
from evaluator.roles import calls
from evaluator.roles.blocks import map_tensors, tensors_in
from evaluator.roles.graph_breaks import rows_of
from evaluator.roles.protocol import NOTHING_COMPILED

#: Start of the line in generated code that contains its number within this process.
_NUMBER = "# AOT ID"
#: How many graphs torch.compile had compiled when the first variant was compiled in this process.
_graphs_before: list[int] = []
#: What it made of the module in this process, by mode: graphs, breaks between them, the first reasons, generated
#: kernels.
made: dict[str, dict[str, Any]] = {}
_MOST_REASONS = 3
#: The variables that tell Inductor and Triton where their caches are.
_CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")


def raise_recompile_limit() -> None:
    """One process serves many shapes, each compiled for exactly that shape."""
    import torch._dynamo.config as dynamo_config

    for name in (
        "recompile_limit",
        "cache_size_limit",
        "accumulated_recompile_limit",
        "accumulated_cache_size_limit",
    ):
        if hasattr(dynamo_config, name):
            setattr(dynamo_config, name, 4096)


def use_tier(tier: str) -> None:
    """Sets which of this process's float32 products a GPU may compute in TF32; the same for a reference and for a
    candidate.
    """
    _allow_tf32(TIERS[tier].matrix_tf32, TIERS[tier].cudnn_tf32)


def _allow_tf32(matrices: bool, cudnn: bool) -> None:
    torch.backends.cuda.matmul.allow_tf32 = matrices
    torch.backends.cudnn.allow_tf32 = cudnn


@contextmanager
def full_precision() -> Iterator[None]:
    """Products in full precision meanwhile: for the reference's own error, from which strict bounds follow."""
    allowed = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    use_tier("strict")
    try:
        yield
    finally:
        _allow_tf32(*allowed)


def prepare(
    shape: Any,
    name: str,
    mode: str,
    threads: int,
    device: torch.device,
    autocast: torch.dtype | None = None,
) -> str:
    """Adds the variant ``name`` to the shape's forwards and warms it up on slot 0 until nothing compiles any more.

    Args:
        shape: open in this process.
        name: of the variant.
        mode: one of :data:`evaluator.baselines.MODES`.
        threads: for the compiler (CPU only).
        device: where the module runs.
        autocast: dtype in which the autocast modes compute products.

    Returns:
        A digest of the code that Inductor loaded for it on a CPU; empty if it loaded none.

    Raises:
        NothingCompiled: it would be eager under another name.
        Exception: whatever the compiler raises; the referee then continues without this baseline.
    """
    if not MODES[mode].compiler:
        _make(shape, name, mode, threads, device, autocast)
        return ""
    generated: list[str] = []
    if not _graphs_before:
        _graphs_before.append(_graphs())
    path = getattr(sys.modules.get(type(shape.model).__module__), "__file__", None) or ""
    with _counted(mode, path), _generated_code(generated) if device.type == "cpu" else nullcontext():
        _make(shape, name, mode, threads, device, autocast)
    # What was compiled here before, for the same sizes, is neither reused nor loaded again.
    if not generated and _graphs() == _graphs_before[0]:
        raise NothingCompiled
    digest = hashlib.sha256()
    for path in generated:
        with open(path, encoding="utf-8") as file:
            digest.update("".join(line for line in file if not line.startswith(_NUMBER)).encode())
    return digest.hexdigest() if generated else ""


class NothingCompiled(Exception):
    """`torch.compile` compiled no part of a module: compilation is off, or the compiler skips all of it."""

    def __init__(self) -> None:
        super().__init__(NOTHING_COMPILED)


def _graphs() -> int:
    """How many graphs torch.compile has compiled in this process."""
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])


@contextmanager
def _counted(mode: str, path: str) -> Iterator[None]:
    """Records in :data:`made` what torch.compile makes meanwhile, by its own counts; ``path`` is the file of the
    module.
    """
    from torch._dynamo.utils import graph_break_reasons
    from torch._inductor import metrics

    graphs, kernels, breaks = _graphs(), metrics.generated_kernel_count, len(graph_break_reasons)
    yield
    if _graphs() > graphs:
        reasons = graph_break_reasons[breaks:]
        made[mode] = {
            "graphs": _graphs() - graphs,
            "graph_breaks": len(reasons),
            "reasons": rows_of(reasons, path)[:_MOST_REASONS],
            "kernels": metrics.generated_kernel_count - kernels,
        }


@contextmanager
def _generated_code(paths: list[str]) -> Iterator[None]:
    """Collects the files of code that Inductor loads meanwhile, compiled now or earlier."""
    from torch._inductor.codecache import PyCodeCache

    load = PyCodeCache.load_by_key_path

    def noted(key: str, path: str, *arguments: Any, **options: Any) -> ModuleType:
        paths.append(path)
        return load(key, path, *arguments, **options)

    PyCodeCache.load_by_key_path = noted  # type: ignore[method-assign]
    try:
        yield
    finally:
        PyCodeCache.load_by_key_path = load  # type: ignore[method-assign]


def _make(
    shape: Any, name: str, mode: str, threads: int, device: torch.device, autocast: torch.dtype | None
) -> None:
    if mode == "eager":
        shape.forwards[name] = shape.forwards["eager"]
    elif mode == "cuda_graph":
        shape.forwards[name] = _capture(shape.forwards["eager"], shape.slots[0].arguments)
    else:
        forward = shape.model
        if MODES[mode].autocast:
            assert autocast is not None
            forward = _under_autocast(shape, device, autocast)
        if mode == "eager_autocast":
            shape.forwards[name] = calls.make(forward, shape.model, shape.spec, shape.initial)
        else:
            shape.forwards[name] = _compile(shape, forward, mode, threads, device)
    with torch.no_grad():
        for _ in range(3 if on_gpu(device) else 2):
            shape.forwards[name](*shape.slots[0].arguments)
    if on_gpu(device):
        torch_gpu.synchronize()


def _under_autocast(shape: Any, device: torch.device, dtype: torch.dtype) -> calls.Forward:
    """The model under autocast.

    Its results are cast back to their dtypes without autocast, as its user needs them.
    """
    model = shape.model
    arguments = shape.slots[0].arguments
    with torch.no_grad():
        plain = model(*arguments[: len(arguments) - len(shape.spec.differentiable)])
    dtypes = map_tensors(plain, lambda tensor: tensor.dtype)

    def forward(*given: Any) -> Any:
        with torch.autocast(device.type, dtype=dtype):
            result = model(*given)
        return _cast(result, dtypes)

    return forward


def _cast(value: Any, dtypes: Any) -> Any:
    """Every tensor of a result in the corresponding dtype."""
    if isinstance(value, torch.Tensor):
        return value.to(dtypes)
    if isinstance(value, (list, tuple)):
        items = [_cast(item, wanted) for item, wanted in zip(value, dtypes, strict=True)]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, dict):
        return {key: _cast(item, dtypes[key]) for key, item in value.items()}
    return value


def _compile(shape: Any, forward: calls.Forward, mode: str, threads: int, device: torch.device) -> Any:
    import torch._inductor

    options = dict(torch._inductor.list_mode_options(MODES[mode].compiler))
    if device.type == "cpu":
        options.pop("triton.cudagraphs", None)
        options["cpp.threads"] = threads
    compiled = torch.compile(forward, dynamic=False, options=options or None)
    call = calls.make(compiled, shape.model, shape.spec, shape.initial)
    return _Cloned(call) if options.get("triton.cudagraphs") else call


class _Cloned:
    """CUDA-graph outputs are overwritten by the next replay, but outputs must survive two later calls.

    So graphs pay for clones.
    """

    def __init__(self, forward: Any) -> None:
        self.forward = forward

    def __call__(self, *arguments: Any) -> Any:
        torch.compiler.cudagraph_mark_step_begin()
        return map_tensors(self.forward(*arguments), torch.clone)


def _capture(call: calls.Forward, arguments: list[Any]) -> Any:
    """A graph of one call on copies of its arguments, including the backward if the call has one."""
    static = map_tensors(
        arguments, lambda tensor: tensor.detach().clone().requires_grad_(tensor.requires_grad)
    )
    targets = tensors_in(static)
    side = torch_gpu.Stream()
    side.wait_stream(torch_gpu.current_stream())
    with torch.no_grad(), torch_gpu.stream(side):
        for _ in range(3):
            call(*static)
    torch_gpu.current_stream().wait_stream(side)
    graph = torch_gpu.CUDAGraph()
    with torch.no_grad(), torch_gpu.graph(graph):
        result = call(*static)

    def replay(*given: Any) -> Any:
        for target, source in zip(targets, tensors_in(given), strict=True):
            target.copy_(source)
        graph.replay()
        return map_tensors(result, torch.clone)

    return replay


@contextmanager
def past_what_is_kept() -> Iterator[None]:
    """Hides the disk caches, so that compilers start over. The new files replace the old ones, unless an error is raised.

    A damaged file there would cost a baseline, and every candidate would look better. Inductor replaces a truncated
    library, but not a truncated Python file, nor a library of zeros. It is unknown which file is damaged, and file names depend on their folder, so all are replaced together.
    """
    from torch._inductor.utils import clear_caches

    clear_caches()
    kept = [os.environ[name] for name in _CACHES]
    aside = tempfile.mkdtemp(prefix="aside-", dir=os.environ["KERNELWRIGHT_WORK"])
    try:
        _move(kept, aside)
        yield
    except BaseException:
        for folder in kept:
            shutil.rmtree(folder, ignore_errors=True)
        _move([os.path.join(aside, os.path.basename(folder)) for folder in kept], os.path.dirname(kept[0]))
        raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)
        clear_caches()


def _move(folders: list[str], into: str) -> None:
    """Moves the folders that exist. Another process that compiles for this task may create one at any time."""
    for folder in folders:
        with suppress(OSError):
            os.rename(folder, os.path.join(into, os.path.basename(folder)))
