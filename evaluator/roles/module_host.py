"""Hosts the user's module inside a role: loads the file, builds the model per shape, binds inputs, runs blocks.

One class for the reference and the candidate, so that both pay exactly the same per call.
"""

from __future__ import annotations

import gc
import inspect
import json
import mmap
import os
import time
from types import ModuleType
from typing import Any

import torch
from torch import nn

from evaluator.roles import blocks, chain, frames, interpreted, torch_cpp, variants
from evaluator.roles.runner import NULL, BuildError, ContractError
from evaluator.roles.values import decode_value, encode_value

_REFERENCE, _CANDIDATE = "Model", "ModelNew"
_WARM_CALLS, _WARM_SECONDS = 16, 0.0005


def meta_of(tensor: torch.Tensor) -> frames.TensorMeta:
    """Description of a strided tensor; raises ContractError for anything that has no plain memory."""
    if tensor.layout is not torch.strided:
        raise ContractError(f"a tensor with layout {tensor.layout} is not supported")
    name = str(tensor.dtype).removeprefix("torch.")
    if name not in frames.DTYPES:
        raise ContractError(f"tensors of dtype {name} are not supported")
    if tensor.dim() > frames.MAX_DIMENSIONS:
        raise ContractError(f"tensors of more than {frames.MAX_DIMENSIONS} dimensions are not supported")
    return frames.TensorMeta(name, tuple(tensor.shape), tuple(tensor.stride()))


def meta_json(meta: frames.TensorMeta) -> dict[str, Any]:
    """JSON form of a tensor description."""
    return {"dtype": meta.dtype, "shape": list(meta.shape), "strides": list(meta.strides)}


def _form(tensor: torch.Tensor) -> tuple[Any, ...]:
    """What must be the same at every call of a block; quicker than a whole description, since the clock runs."""
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.layout


class Shape:
    """One open shape: a model instance, its arena and the arguments bound to each slot."""

    def __init__(self) -> None:
        self.arena: mmap.mmap | None = None
        self.model: nn.Module | None = None
        self.inputs: list[Any] = []
        self.forwards: dict[str, Any] = {}
        self.slots: list[blocks.Slot] = []
        self.outputs: list[list[torch.Tensor]] = []
        self.first_of_block = 0
        self.model64: nn.Module | None = None


class ModuleHost:
    """The operations of :mod:`evaluator.roles.runner` over one user file."""

    def __init__(self, settings: dict[str, Any], work: str) -> None:
        self.role: str = settings["role"]
        self.device = torch.device("cuda") if settings["gpu"] else torch.device("cpu")
        self.chain = chain.load(settings["chain_library"])
        self.cpp = torch_cpp.Builder(work, may_compile=bool(settings["may_compile"]))
        self.work = work
        self.module: ModuleType | None = None
        self.reference: ModuleType | None = None
        self.shapes: dict[int, Shape] = {}
        self._reference_text = b""
        self._draws: list[list[Any]] = []
        self._state: dict[str, torch.Tensor] = {}
        self._host_outputs: list[torch.Tensor] = []
        torch.set_num_threads(settings["threads"])
        torch.set_grad_enabled(False)
        self._headers: str = settings["headers_path"]

    # -- loading -----------------------------------------------------------------------------------------------

    def load(self, request: dict[str, Any], descriptors: list[int]) -> bytes:
        """Imports the user's file (text in the first descriptor, the reference's in the second for a candidate)."""
        texts = []
        for descriptor in descriptors:
            with os.fdopen(descriptor, "rb") as file:
                file.seek(0)
                texts.append(file.read())
        self.cpp.install()
        if self.role != "candidate" or b"torch.compile" in texts[0]:
            variants.raise_recompile_limit()
            if self.device.type == "cpu":
                variants.use_shared_headers(self._headers)
        if interpreted.VARIABLE in os.environ:
            interpreted.prepare()
        name = _CANDIDATE if self.role == "candidate" else _REFERENCE
        self.module = self._import(texts[0], "candidate" if self.role == "candidate" else "task")
        self._class_of(self.module, name)
        self._reference_text = texts[1] if len(texts) > 1 else b""
        return b""

    def _import(self, text: bytes, name: str) -> ModuleType:
        import importlib.util
        import sys

        # A real file: triton.jit and inspect read the source of what they compile.
        path = os.path.join(os.environ["TMPDIR"], f"{name}_file.py")
        with open(path, "wb") as file:
            file.write(text)
        try:
            compile(text, f"{name}.py", "exec")
        except (SyntaxError, ValueError) as error:
            raise ContractError(f"the file does not parse: {error}") from None
        spec = importlib.util.spec_from_file_location(f"{name}_file", path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        with torch.enable_grad():
            spec.loader.exec_module(module)
        return module

    @staticmethod
    def _class_of(module: ModuleType, name: str) -> type[nn.Module]:
        found = getattr(module, name, None)
        if not (isinstance(found, type) and issubclass(found, nn.Module)):
            raise ContractError(f"the file defines no class {name}(torch.nn.Module)")
        return found

    def describe(self, request: dict[str, Any], descriptors: list[int]) -> bytes:
        """DIMS, direction and which dimensions each function takes, as JSON (the referee validates it)."""
        assert self.module is not None
        dims = {}
        for name, dim in dict(getattr(self.module, "DIMS", {})).items():
            if hasattr(dim, "values"):
                dims[str(name)] = {"choices": list(dim.values), "default": dim.default}
            else:
                fields = ("min", "max", "multiple_of", "default")
                dims[str(name)] = {field: getattr(dim, field) for field in fields}
        for function in ("get_inputs", "get_init_inputs"):
            if not callable(getattr(self.module, function, None)):
                raise ContractError(f"the file defines no function {function}()")
        answer = {
            "dims": dims,
            "direction": str(getattr(self.module, "DIRECTION", "forward")),
            "input_dims": self._accepted("get_inputs", dims),
            "init_dims": self._accepted("get_init_inputs", dims),
        }
        return json.dumps(answer).encode()

    def sizes(self, request: dict[str, Any], descriptors: list[int]) -> bytes:
        """Bytes of all inputs at each of some shapes, without allocating them; null where that is not possible."""
        from torch._subclasses.fake_tensor import FakeTensorMode

        assert self.module is not None
        answers: list[int | None] = []
        for dims in request["shapes"]:
            try:
                with FakeTensorMode(allow_non_fake_inputs=True):
                    inputs = self.module.get_inputs(**{name: dims[name] for name in request["input_dims"]})
                answers.append(sum(value.nbytes for value in inputs if isinstance(value, torch.Tensor)))
            except Exception:
                # User code that numpy or plain Python feeds cannot run on fake tensors; the caller then draws smaller.
                answers.append(None)
        return json.dumps({"bytes": answers}).encode()

    def _accepted(self, function: str, dims: dict[str, Any]) -> list[str]:
        parameters = inspect.signature(getattr(self.module, function)).parameters
        if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
            return list(dims)
        return [name for name in dims if name in parameters]

    # -- building ----------------------------------------------------------------------------------------------

    def build(self, request: dict[str, Any], descriptors: list[int]) -> bytes:
        """Opens a shape. The reference draws its inputs and answers with descriptions; a candidate only builds."""
        shape = Shape()
        self.shapes[request["shape"]] = shape
        assert self.module is not None
        if self.role == "candidate":
            shape.inputs = [decode_value(value) for value in request["init"]]
            return b""
        dims = request["dims"]
        init = self.module.get_init_inputs(**{name: dims[name] for name in request["init_dims"]})
        shape.inputs = list(init)
        with torch.enable_grad():
            shape.model = self._class_of(self.module, _REFERENCE)(*init)
        redraw = getattr(self.module, "redraw", None)
        if callable(redraw):
            redraw(shape.model, torch.Generator().manual_seed(int.from_bytes(os.urandom(7), "little")))
        draws = []
        for _ in range(request["draws"]):
            torch.manual_seed(int.from_bytes(os.urandom(7), "little"))
            inputs = self.module.get_inputs(**{name: dims[name] for name in request["input_dims"]})
            if not isinstance(inputs, (list, tuple)):
                raise ContractError("get_inputs() must return a list")
            draws.append(list(inputs))
        # The referee copies these out of our memory; they stay alive until the next shape is built.
        self._draws = draws
        described: list[dict[str, Any]] = [
            {"tensor": meta_json(meta_of(value)), "addresses": []}
            if isinstance(value, torch.Tensor)
            else {"value": encode_value(value)}
            for value in draws[0]
        ]
        for other in draws:
            if len(other) != len(described):
                raise ContractError("get_inputs() returns different numbers of inputs from call to call")
            for entry, value in zip(described, other, strict=True):
                if "tensor" in entry:
                    if not isinstance(value, torch.Tensor) or meta_json(meta_of(value)) != entry["tensor"]:
                        raise ContractError(
                            "get_inputs() returns different shapes or dtypes from call to call"
                        )
                    entry["addresses"].append(value.data_ptr())
        parameters = dict(shape.model.named_parameters())
        self._state = shape.model.state_dict()
        state = [
            {
                "name": name,
                "meta": meta_json(meta_of(tensor)),
                "parameter": name in parameters,
                "address": tensor.data_ptr(),
            }
            for name, tensor in self._state.items()
        ]
        answer = {
            "init": [encode_value(value) for value in init],
            "inputs": described,
            "state": state,
            "redrawn": callable(redraw),
        }
        return json.dumps(answer).encode()

    def import_state(self, request: dict[str, Any], descriptors: list[int]) -> bytes:
        """Maps the shape's arena and loads the re-drawn weights from it; the candidate's class is constructed here."""
        shape = self.shapes[request["shape"]]
        with os.fdopen(descriptors[0], "rb") as file:
            shape.arena = mmap.mmap(file.fileno(), request["arena_bytes"])
        state = {
            entry["name"]: self._view(shape, entry["offset"], _meta(entry["meta"])).clone()
            for entry in request["state"]
        }
        if self.role == "candidate":
            with torch.enable_grad():
                shape.model = self._new_model(shape.inputs, state)
        else:
            assert shape.model is not None
            shape.model.load_state_dict(state)
        shape.model.eval().to(self.device)
        shape.forwards = {"eager": shape.model}
        return b""

    def _new_model(self, init: list[Any], state: dict[str, torch.Tensor]) -> nn.Module:
        assert self.module is not None
        new_class = self._class_of(self.module, _CANDIDATE)
        convert = getattr(new_class, "from_reference", None)
        if convert is not None:
            if self.reference is None:
                self.reference = self._import(self._reference_text, "task")
            reference = self._class_of(self.reference, _REFERENCE)(*init)
            reference.load_state_dict(state)
            model = convert(reference.eval().to(self.device))
            if not isinstance(model, nn.Module):
                raise ContractError("from_reference() must return a torch.nn.Module")
            return model
        model = new_class(*init)
        try:
            model.load_state_dict(state, strict=True)
        except RuntimeError as error:
            raise ContractError(
                "the reference's state_dict does not load strictly into ModelNew and it offers no "
                f"from_reference(cls, reference): {error}"
            ) from None
        return model

    # -- inputs and calls --------------------------------------------------------------------------------------

    def bind(self, request: dict[str, Any], descriptors: list[int]) -> bytes:
        """Creates the arguments of every slot as views of the arena (copies on the GPU, see upload)."""
        shape = self.shapes[request["shape"]]
        items = [
            (_meta(item["tensor"]), item["offset"]) if "tensor" in item else item["value"]
            for item in request["arguments"]
        ]
        pools = [
            (position, self._view(shape, offset, frames.TensorMeta(dtype, (count,), (1,))), stride)
            for position, offset, dtype, count, stride in request["refresh"]
        ]
        device_pools = [pool.to(self.device) for _, pool, _ in pools]
        shape.slots = []
        for start in range(0, request["slots"] * request["slot_bytes"], request["slot_bytes"]):
            views, arguments = [], []
            for item in items:
                if isinstance(item, tuple):
                    view = self._view(shape, item[1] + start, item[0])
                    views.append(view)
                    arguments.append(view if self.device.type == "cpu" else _like_on(view, self.device))
                else:
                    arguments.append(decode_value(item))
            shape.slots.append(blocks.Slot(arguments, views, pools, device_pools, self.device))
        return b""

    def upload(self, request: dict[str, Any], descriptors: list[int]) -> bytes:
        """GPU only: copies the referee's contents of some slots to the device, at unchanged addresses."""
        shape = self.shapes[request["shape"]]
        for index in request["slots"]:
            shape.slots[index].upload()
        torch.cuda.synchronize()
        return b""

    def ready(self, request: dict[str, Any], descriptors: list[int]) -> bytes:
        """What must not be on the clock: forgets the outputs of the last block, sets threads and poison, warms up.

        The referee fills the slots afterwards, so that nothing of the next block can be seen meanwhile.
        """
        shape = self.shapes[request["shape"]]
        threads = request["threads"]
        if threads and torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        if request["poison"] is not None:
            blocks.poison_allocations(request["poison"])
        shape.outputs = shape.outputs[-2:] if request["keep"] else []
        gc.collect(0)
        if request["warm"] == NULL and NULL not in shape.forwards:
            result = shape.forwards["eager"](*shape.slots[0].arguments)
            shape.forwards[NULL] = lambda *arguments: result
        if request["warm"] is not None:
            until = time.perf_counter() + _WARM_SECONDS
            for slot in shape.slots[:_WARM_CALLS]:
                shape.forwards[request["warm"]](*slot.arguments)
                if self.device.type == "cuda":
                    torch.cuda.synchronize()
                if time.perf_counter() > until:
                    break
        return b""

    def block(self, request: dict[str, Any], descriptors: list[int]) -> bytes:
        """Runs one block of calls and reports where the outputs are."""
        shape = self.shapes[request["shape"]]
        forward = shape.forwards[request.get("variant", "eager")]
        slots = [shape.slots[index] for index in request["slots"]]
        kept = shape.outputs
        outputs, states = blocks.run(
            forward, slots, self.chain, request["state"], bool(request["chain"]), self.device
        )
        shape.outputs = kept + outputs
        shape.first_of_block = len(kept)
        metas = tuple(meta_of(tensor) for tensor in outputs[0])
        first = [_form(tensor) for tensor in outputs[0]]
        for row in outputs:
            if [_form(tensor) for tensor in row] != first:
                raise ContractError("the outputs' shapes, dtypes or strides change from call to call")
        addresses = tuple(tuple(tensor.data_ptr() for tensor in row) for row in outputs)
        return frames.encode_report(frames.BlockReport(metas, addresses, tuple(states)))

    def fetch(self, request: dict[str, Any], descriptors: list[int]) -> bytes:
        """GPU only: copies the outputs of one call of the last block to the host and says where."""
        shape = self.shapes[request["shape"]]
        return self._on_host(shape.outputs[shape.first_of_block + request["call"]])

    def _on_host(self, outputs: list[torch.Tensor]) -> bytes:
        self._host_outputs = [tensor.detach().cpu() for tensor in outputs]
        metas = tuple(meta_of(tensor) for tensor in self._host_outputs)
        addresses = tuple(tensor.data_ptr() for tensor in self._host_outputs)
        return frames.encode_report(frames.BlockReport(metas, (addresses,), (0,)))

    def oracle(self, request: dict[str, Any], descriptors: list[int]) -> bytes:
        """Reference only: the float64 result of a slot's inputs, kept on the host; answers where."""
        shape = self.shapes[request["shape"]]
        slot = shape.slots[request["slot"]]
        return self._on_host(variants.float64_outputs(shape, slot.arguments))

    def variant(self, request: dict[str, Any], descriptors: list[int]) -> bytes:
        """Reference only: prepares a baseline (compiles it for exactly this shape and warms it up)."""
        shape = self.shapes[request["shape"]]
        torch.set_num_threads(request["threads"])
        variants.prepare(shape, request["variant"], request["mode"], request["threads"], self.device)
        return b""

    def close(self, request: dict[str, Any], descriptors: list[int]) -> bytes:
        """Forgets a shape and gives its memory back."""
        self.shapes.pop(request["shape"], None)
        self._draws, self._state, self._host_outputs = [], {}, []
        gc.collect()
        return b""

    def _view(self, shape: Shape, offset: int, meta: frames.TensorMeta) -> torch.Tensor:
        """A tensor over the arena's bytes."""
        dtype: torch.dtype = getattr(torch, meta.dtype)
        elements = meta.span_bytes // meta.item_bytes
        if elements == 0:
            return torch.empty_strided(meta.shape, meta.strides, dtype=dtype)
        assert shape.arena is not None
        flat = torch.frombuffer(shape.arena, dtype=dtype, count=elements, offset=offset)
        return flat.as_strided(meta.shape, meta.strides)


def _meta(fields: dict[str, Any]) -> frames.TensorMeta:
    return frames.TensorMeta(fields["dtype"], tuple(fields["shape"]), tuple(fields["strides"]))


def _like_on(view: torch.Tensor, device: torch.device) -> torch.Tensor:
    return torch.empty_strided(view.shape, view.stride(), dtype=view.dtype, device=device)


__all__ = ["BuildError", "ModuleHost", "Shape", "meta_of"]
