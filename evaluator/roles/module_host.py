"""Hosts the user's module inside a role: loads the file, builds the model per shape, binds inputs, runs blocks.

One class for the reference and the candidate, so that both pay exactly the same per call.
"""

from __future__ import annotations

import copy
import gc
import hashlib
import inspect
import json
import mmap
import os
import time
from contextlib import AbstractContextManager, nullcontext
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map

from evaluator.roles import (
    blocks,
    calls,
    chain,
    device_memory,
    exact,
    frames,
    interpreted,
    torch_cpp,
    variants,
)
from evaluator.roles.exchange import INPUT_MEMORY, Exchange
from evaluator.roles.runner import LEAST, NULL, BuildError, ContractError
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
    if tensor.is_conj() or tensor.is_neg():
        raise ContractError("a lazily conjugated or negated tensor is not supported: return x.resolve_conj()")
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
        #: What the referee shares: host memory, or bytes on the device.
        self.arena: mmap.mmap | torch.Tensor | None = None
        self.model: nn.Module | None = None
        self.inputs: list[Any] = []
        self.forwards: dict[str, Any] = {}
        self.slots: list[blocks.Slot] = []
        self.outputs: list[list[torch.Tensor]] = []
        self.captured: dict[str, blocks.Captured] = {}
        self.spec = calls.CallSpec()
        self.initial: list[torch.Tensor] = []
        self.exact_model: nn.Module | None = None
        self.exact_initial: list[torch.Tensor] = []


class _Least(nn.Module):
    """Returns new tensors like the given ones, with nothing in them."""

    def __init__(self, outputs: list[torch.Tensor]) -> None:
        super().__init__()
        self._forms = [
            (tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype, tensor.device) for tensor in outputs
        ]

    def forward(self, *arguments: Any) -> Any:
        outputs = [
            torch.empty_strided(shape, strides, dtype=dtype, device=device)
            for shape, strides, dtype, device in self._forms
        ]
        return outputs[0] if len(outputs) == 1 else outputs


class ModuleHost:
    """The operations of :mod:`evaluator.roles.runner` over one user file."""

    def __init__(self, settings: dict[str, Any], work: str) -> None:
        self.role: str = settings["role"]
        self.device = torch.device("cuda") if settings["gpu"] else torch.device("cpu")
        self.chain = chain.load(settings["chain_library"])
        self.cpp = torch_cpp.Extensions(recording=settings["may_compile"] and self.role == "candidate")
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
        self._exchange: Exchange | None = None
        #: GPU only: where the slots of all shapes lie.
        self._slots: torch.Tensor | None = None
        self.watch: Any = None

    # -- loading -----------------------------------------------------------------------------------------------

    def load(self, request: dict[str, Any], descriptors: list[int]) -> bytes:
        """Imports the user's file (text in the first descriptor, the reference's in the second for a candidate).

        A candidate's third descriptor carries the extensions that were built for it.
        """
        texts = []
        for descriptor in descriptors:
            with os.fdopen(descriptor, "rb") as file:
                file.seek(0)
                texts.append(file.read())
        self.cpp.give(texts[2] if len(texts) > 2 else b"")
        self.cpp.install()
        if request.get("watch"):
            from evaluator.roles.watch import Watch

            self.watch = Watch(self.work)
            self.watch.install(texts[0], interpret=self.device.type == "cpu")
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
        self.cpp.imported()
        return b""

    def asked(self, request: dict[str, Any], descriptors: list[int]) -> bytes:
        """Calls of `load_inline` that have not been built, as JSON (the referee validates it)."""
        return self.cpp.asked()

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
        """DIMS, what a call is and which dimensions each function takes, as JSON (the referee validates it)."""
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
            "training": bool(getattr(self.module, "TRAINING", False)),
            "precision": str(getattr(self.module, "PRECISION", "fp32")),
            "oracle": callable(getattr(self.module, "oracle", None)),
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
                answers.append(sum(value.nbytes for value in blocks.tensors_in(inputs)))
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
        if self.device.type == "cuda":
            # Never in a candidate's process unless the reference itself is timed in it.
            variants.allow_tf32(request["tf32"])
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
        draws: list[list[Any]] = []
        for _ in range(request["draws"]):
            torch.manual_seed(int.from_bytes(os.urandom(7), "little"))
            inputs = self.module.get_inputs(**{name: dims[name] for name in request["input_dims"]})
            if not isinstance(inputs, (list, tuple)):
                raise ContractError("get_inputs() must return a list")
            if draws and len(inputs) != len(draws[0]):
                raise ContractError("get_inputs() returns different numbers of inputs from call to call")
            draws.append(list(inputs))
        # The referee copies these out of our memory; they stay alive until the next shape is built.
        self._draws = draws
        described = [_described([inputs[position] for inputs in draws]) for position in range(len(draws[0]))]
        parameters = dict(shape.model.named_parameters(remove_duplicate=False))
        trained = {name for name, tensor in shape.model.named_parameters() if tensor.requires_grad}
        self._state = shape.model.state_dict()
        state = [
            {
                "name": name,
                "meta": meta_json(meta_of(tensor)),
                "parameter": name in parameters,
                "trained": name in trained,
                "address": tensor.data_ptr(),
            }
            for name, tensor in self._state.items()
        ]
        answer = {
            "init": [encode_value(value) for value in init],
            "inputs": described,
            "state": state,
            "redrawn": callable(redraw),
            "upstream": self._upstream(shape.model, draws[0], request["training"])
            if request["backward"]
            else [],
        }
        return json.dumps(answer).encode()

    def _upstream(self, model: nn.Module, inputs: list[Any], training: bool) -> list[dict[str, Any]]:
        """Which outputs carry a gradient, found by one forward of a copy, and what their upstream gradients look like."""
        model = copy.deepcopy(model).train(training).to(self.device)
        given = tree_map(
            lambda value: _leaf(value.detach().to(self.device)) if isinstance(value, torch.Tensor) else value,
            inputs,
        )
        with torch.enable_grad():
            outputs = blocks.flatten(model(*given))
        upstream = [
            {"output": index, "meta": meta_json(meta_of(torch.empty_like(output, device="cpu")))}
            for index, output in enumerate(outputs)
            if output.requires_grad
        ]
        if not upstream:
            raise ContractError(
                "DIRECTION is forward_backward, but no output depends on a floating input or a parameter"
            )
        return upstream

    def import_state(self, request: dict[str, Any], descriptors: list[int]) -> bytes:
        """Maps the shape's arena and loads the re-drawn weights from it; the candidate's class is constructed here."""
        shape = self.shapes[request["shape"]]
        if self.device.type == "cuda":
            # Somebody must have made a context for the driver's own functions.
            torch.cuda.init()
            torch.cuda.current_stream().synchronize()
            address = device_memory.attach(device_memory.adopt(descriptors[0]), request["arena_bytes"])
            os.close(descriptors[0])
            shape.arena = device_memory.as_bytes(address, request["arena_bytes"])
        else:
            with os.fdopen(descriptors[0], "rb") as file:
                shape.arena = mmap.mmap(file.fileno(), request["arena_bytes"])
        state = {
            entry["name"]: self._view(shape, entry["offset"], _meta(entry["meta"])).clone()
            for entry in request["state"]
        }
        shape.spec = spec = calls.CallSpec.of(request["call"])
        metas = {entry["name"]: _meta(entry["meta"]) for entry in request["state"]}
        if self.role == "candidate":
            with torch.enable_grad():
                shape.model = self._new_model(shape.inputs, state, training=spec.training)
        else:
            assert shape.model is not None
            shape.model.load_state_dict(state)
        shape.model.train(spec.training).to(self.device)
        shape.initial = [tensor.clone() for tensor in calls.members(shape.model, spec, metas)[1]]
        shape.forwards = {"eager": calls.make(shape.model, shape.model, spec, shape.initial)}
        return b""

    def _new_model(self, init: list[Any], state: dict[str, torch.Tensor], *, training: bool) -> nn.Module:
        assert self.module is not None
        new_class = self._class_of(self.module, _CANDIDATE)
        convert = getattr(new_class, "from_reference", None)
        if convert is not None:
            if self.reference is None:
                self.reference = self._import(self._reference_text, "task")
            reference = self._class_of(self.reference, _REFERENCE)(*init)
            reference.load_state_dict(state)
            model = convert(reference.train(training).to(self.device))
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
        """Creates the arguments of every slot as views of the arena."""
        shape = self.shapes[request["shape"]]
        metas = [_meta(item["meta"]) for item in request["tensors"]]
        pools = [
            (position, self._view(shape, offset, frames.TensorMeta(dtype, (count,), (1,))), stride)
            for position, offset, dtype, count, stride in request["refresh"]
        ]
        shape.slots = []
        for start in range(0, request["slots"] * request["slot_bytes"], request["slot_bytes"]):
            views, tensors = [], []
            for item, meta in zip(request["tensors"], metas, strict=True):
                view = self._slot_view(shape, item["offset"] + start, request["slots_from"], meta)
                views.append(view)
                tensors.append(_leaf(view) if item["leaf"] else view)
            arguments = [decode_value(item, tensors) for item in request["arguments"]]
            shape.slots.append(blocks.Slot(arguments, views, pools, self.device))
        return b""

    def exchange(self, request: dict[str, Any], descriptors: list[int]) -> bytes:
        """GPU only: takes the memory in which the referee will read this process's outputs."""
        torch.cuda.init()
        torch.cuda.current_stream().synchronize()
        self._exchange = Exchange(
            descriptors[0], request["outputs_bytes"], request["pool_bytes"], request["library"]
        )
        address = device_memory.attach(device_memory.adopt(descriptors[1]), request["inputs_bytes"])
        os.close(descriptors[1])
        self._slots = device_memory.as_bytes(address, request["inputs_bytes"])
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
        if request["poison"] and self._exchange is not None:
            blocks.poison_device_memory([tensor for row in shape.outputs[-1:] for tensor in row])
        shape.outputs = shape.outputs[-2:] if request["keep"] else []
        if self._exchange is not None:
            self._exchange.forget()
        gc.collect(0)
        warm = request["warm"]
        with self._pool(timed=warm is not None):
            if warm == NULL:
                self._make_null(shape)
            elif warm == LEAST:
                self._make_least(shape)
            if warm is not None and request["captured"]:
                shape.captured[warm].run(0)
            elif warm is not None:
                self._warm_up(shape, shape.forwards[warm])
        return b""

    @staticmethod
    def _make_least(shape: Shape) -> None:
        """Adds the variant that only makes its outputs."""
        if LEAST not in shape.forwards:
            outputs = blocks.flatten(shape.forwards["eager"](*shape.slots[0].arguments))
            shape.forwards[LEAST] = _Least(outputs)

    @staticmethod
    def _make_null(shape: Shape) -> None:
        """Adds the variant that returns an output made before."""
        if NULL not in shape.forwards:
            result = shape.forwards["eager"](*shape.slots[0].arguments)
            eager = shape.forwards["eager"]
            shape.forwards[NULL] = (
                eager.null(result) if isinstance(eager, calls.Call) else lambda *arguments: result
            )

    def _warm_up(self, shape: Shape, forward: Any) -> None:
        until = time.perf_counter() + _WARM_SECONDS
        for slot in shape.slots[:_WARM_CALLS]:
            forward(*slot.arguments)
            if self.device.type == "cuda":
                torch.cuda.synchronize()
            if time.perf_counter() > until:
                break

    def _pool(self, *, timed: bool) -> AbstractContextManager[Any]:
        """Where a timed call's outputs are allocated. Not that of a first call, which may capture a graph of its own."""
        return self._exchange.pool() if timed and self._exchange is not None else nullcontext()

    def capture(self, request: dict[str, Any], descriptors: list[int]) -> bytes:
        """GPU only: records so many chained calls of a variant as one CUDA graph, in place of an earlier one."""
        assert self._exchange is not None
        shape, variant = self.shapes[request["shape"]], request["variant"]
        shape.captured.pop(variant, None)
        shape.outputs = []
        slots = shape.slots[: request["calls"]]
        if variant == NULL:
            with self._exchange.pool():
                self._make_null(shape)
        shape.captured[variant] = blocks.Captured(shape.forwards[variant], slots, self._exchange.pool_id)
        return b""

    def block(self, request: dict[str, Any], descriptors: list[int]) -> bytes:
        """Runs one block of calls and reports where the outputs are."""
        shape = self.shapes[request["shape"]]
        variant = request["variant"]
        results: list[Any] = []
        if request["captured"]:
            outputs, states = shape.captured[variant].run(request["state"])
        else:
            slots = shape.slots[: request["calls"]]
            chained = bool(request["chain"])
            forward = shape.forwards[variant]
            if not chained:
                forward = _recording(forward, results)
            strict = request["strict"] and self.device.type == "cuda"
            with self._pool(timed=chained), variants.full_precision() if strict else nullcontext():
                outputs, states = blocks.run(
                    forward, slots, self.chain, request["state"], chained, self.device
                )
        shape.outputs = shape.outputs + outputs
        structure = blocks.structure(results[0]).encode() if results else b""
        digest = int.from_bytes(hashlib.sha256(structure).digest()[:8], "little") if results else 0
        return self._report(shape, outputs, states, digest)

    def _report(
        self, shape: Shape, outputs: list[list[torch.Tensor]], states: list[int], structure: int = 0
    ) -> bytes:
        """Where outputs are. The clock runs, so of all rows only the last is compared with the first."""
        addresses = [[tensor.data_ptr() for tensor in row] for row in outputs]
        metas = tuple(meta_of(tensor) for tensor in outputs[0])
        if [_form(tensor) for tensor in outputs[-1]] != [_form(tensor) for tensor in outputs[0]]:
            raise ContractError("the outputs' shapes, dtypes or strides change from call to call")
        if self._exchange is not None:
            if not self._exchange.holds_all(addresses):
                placed = [[self._exchange.place(tensor) for tensor in row] for row in outputs]
                torch.cuda.synchronize()
                addresses = [
                    [self._offset(tensor, at) for tensor, at in zip(row, placed_row, strict=True)]
                    for row, placed_row in zip(outputs, placed, strict=True)
                ]
            else:
                addresses = self._exchange.offsets(addresses)
        return frames.encode_report(metas, addresses, states, structure)

    def _offset(self, tensor: torch.Tensor, placed: torch.Tensor) -> int:
        """Where the copy of an output is, or that the output lies in the memory of the inputs."""
        assert self._exchange is not None and self._slots is not None
        inside = tensor.data_ptr() - self._slots.data_ptr()
        if tensor.numel() and 0 <= inside < self._slots.numel():
            return INPUT_MEMORY + inside
        return self._exchange.offset(placed)

    def fetch(self, request: dict[str, Any], descriptors: list[int]) -> bytes:
        """GPU only: says again where the outputs of an earlier call are, as they are now (-1 is the last call)."""
        shape = self.shapes[request["shape"]]
        return self._report(shape, [shape.outputs[request["call"]]], [0])

    def _on_host(self, outputs: list[torch.Tensor]) -> bytes:
        self._host_outputs = [tensor.detach().cpu() for tensor in outputs]
        metas = tuple(meta_of(tensor) for tensor in self._host_outputs)
        return frames.encode_report(metas, [[tensor.data_ptr() for tensor in self._host_outputs]], [0])

    def oracle(self, request: dict[str, Any], descriptors: list[int]) -> bytes:
        """Reference only: the result of a slot's inputs as exactly as it is known, kept on the host; answers where."""
        shape = self.shapes[request["shape"]]
        slot = shape.slots[request["slot"]]
        own = getattr(self.module, "oracle", None)
        own = own if callable(own) else None
        move = exact.Move(**request["move"]) if request["move"] else None
        return self._on_host(exact.outputs(shape, slot.arguments, own, request["tier"], move))

    def variant(self, request: dict[str, Any], descriptors: list[int]) -> bytes:
        """Reference only: prepares a baseline (compiles it for exactly this shape and warms it up)."""
        shape = self.shapes[request["shape"]]
        torch.set_num_threads(request["threads"])
        variants.prepare(shape, request["variant"], request["mode"], request["threads"], self.device)
        return b""

    def kernels(self, request: dict[str, Any], descriptors: list[int]) -> bytes:
        """Watched processes only: what ran in one call on slot 0, as JSON that decides nothing."""
        shape = self.shapes[request["shape"]]
        seen = self.watch.observe(shape.forwards["eager"], shape.slots[0].arguments, self.device)
        return json.dumps(seen).encode()

    def mute(self, request: dict[str, Any], descriptors: list[int]) -> bytes:
        """Watched processes only: puts nothing in the place of own kernels, or them back; answers with their calls."""
        return json.dumps({"calls": self.watch.mute(bool(request["muted"]))}).encode()

    def close(self, request: dict[str, Any], descriptors: list[int]) -> bytes:
        """Forgets a shape and gives its memory back."""
        self.shapes.pop(request["shape"], None)
        self._draws, self._state, self._host_outputs = [], {}, []
        gc.collect()
        return b""

    def _slot_view(self, shape: Shape, offset: int, slots_from: int, meta: frames.TensorMeta) -> torch.Tensor:
        if self._slots is None:
            return self._view(shape, offset, meta)
        return _typed(self._slots, offset - slots_from, meta)

    def _view(self, shape: Shape, offset: int, meta: frames.TensorMeta) -> torch.Tensor:
        """A tensor over the arena's bytes."""
        dtype: torch.dtype = getattr(torch, meta.dtype)
        elements = meta.span_bytes // meta.item_bytes
        if elements == 0:
            return torch.empty_strided(meta.shape, meta.strides, dtype=dtype)
        assert shape.arena is not None
        if isinstance(shape.arena, torch.Tensor):
            return _typed(shape.arena, offset, meta)
        flat = torch.frombuffer(shape.arena, dtype=dtype, count=elements, offset=offset)
        return flat.as_strided(meta.shape, meta.strides)


def _typed(memory: torch.Tensor, offset: int, meta: frames.TensorMeta) -> torch.Tensor:
    """A tensor over bytes on the device."""
    dtype: torch.dtype = getattr(torch, meta.dtype)
    flat = memory[offset : offset + meta.span_bytes].view(dtype)
    return flat.as_strided(meta.shape, meta.strides)


def _meta(fields: dict[str, Any]) -> frames.TensorMeta:
    return frames.TensorMeta(fields["dtype"], tuple(fields["shape"]), tuple(fields["strides"]))


def _leaf(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor with its gradient wanted, where its dtype can have one."""
    return tensor.requires_grad_(tensor.is_floating_point() or tensor.is_complex())


def _recording(forward: Any, results: list[Any]) -> Any:
    """``forward``, which also keeps what it returned (in blocks that no clock is looking at)."""

    def call(*arguments: Any) -> Any:
        result = forward(*arguments)
        results.append(result)
        return result

    return call


def _described(draws: list[Any]) -> dict[str, Any]:
    """One argument of ``forward``: its encoded form, and the tensors in it with their addresses in every draw."""
    tensors: list[dict[str, Any]] = []
    for number, value in enumerate(draws):
        found: list[torch.Tensor] = []
        encoded = encode_value(value, found)
        metas = [meta_json(meta_of(tensor)) for tensor in found]
        if number == 0:
            form, tensors = encoded, [{"meta": meta, "addresses": []} for meta in metas]
        if metas != [entry["meta"] for entry in tensors]:
            raise ContractError("get_inputs() returns different shapes or dtypes from call to call")
        for entry, tensor in zip(tensors, found, strict=True):
            entry["addresses"].append(tensor.data_ptr())
    return {"value": form, "tensors": tensors}


__all__ = ["BuildError", "ModuleHost", "Shape", "meta_of"]
