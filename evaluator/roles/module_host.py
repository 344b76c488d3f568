"""Hosts the user's module inside a role: loads the file, describes a task, builds the model per shape."""

from __future__ import annotations

import copy
import gc
import inspect
import json
import mmap
import os
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map

from evaluator.devices.accelerator import GPU_TYPE, device_memory, on_gpu, torch_gpu
from evaluator.precision import DEFAULT
from evaluator.roles import (
    blocks,
    calls,
    compiled_files,
    dispatch,
    frames,
    interpreted,
    rehearsal,
    shared_headers,
    torch_cpp,
    variants,
)
from evaluator.roles.drawing import Drawn, draw, measured, on_device
from evaluator.roles.exchange import span_elements
from evaluator.roles.open_shape import Shape, leaf, meta_json, meta_of, read_meta, renew, typed
from evaluator.roles.protocol import RENEWED, ContractError
from evaluator.roles.turns import Turns
from evaluator.roles.values import decode_value, encode_value

_REFERENCE, _CANDIDATE = "Model", "ModelNew"


class ModuleHost(Turns):
    """The operations of :mod:`evaluator.roles.runner` over one user file."""

    def __init__(self, settings: dict[str, Any]) -> None:
        device = torch.device(GPU_TYPE) if settings["gpu"] else torch.device("cpu")
        super().__init__(device, settings["chain_library"])
        self.role: str = settings["role"]
        self.cpp = torch_cpp.Extensions(recording=settings["may_compile"] and self.role == "candidate")
        self.reference: ModuleType | None = None
        self._reference_text = b""
        self._drawn: Drawn | None = None
        self._state: dict[str, torch.Tensor] = {}
        torch.set_num_threads(settings["threads"])
        torch.set_grad_enabled(False)
        self._headers: str = settings["headers_path"]
        self.watch: Any = None
        #: torch's word for the tier's precision of float32 matrix products on a GPU.
        self._products = "highest"
        self._unpacked: frozenset[str] = frozenset()
        self._delivered = False

    # -- loading -----------------------------------------------------------------------------------------------

    def load(self, request: dict[str, Any], descriptors: list[int]) -> bytes:
        """Imports the user's file (source in the first descriptor, for a candidate the reference's in the second).

        A candidate's third descriptor carries the extensions that were built for it, the fourth the files that
        compilers made in an earlier process of it.
        """
        texts = []
        for descriptor in descriptors[:3]:
            with os.fdopen(descriptor, "rb") as file:
                file.seek(0)
                texts.append(file.read())
        for descriptor in descriptors[3:]:
            self._unpacked = compiled_files.unpack(descriptor, os.environ["KERNELWRIGHT_WORK"])
            os.close(descriptor)
        self.cpp.give(texts[2] if len(texts) > 2 else b"")
        if any(b"cpp_extension" in text for text in texts[:2]):
            # Only if needed: torch's module takes 0.2 s to import.
            self.cpp.install()
        if request.get("watch"):
            from evaluator.roles.watch import Watch

            self.watch = Watch(self.cpp.folder)
            self.watch.install(texts[0], interpret=self.device.type == "cpu")
        # On a CPU a module may be compiled under other names (`module.compile()`).
        words = b"compile" if self.device.type == "cpu" else b"torch.compile"
        has_compiler = "torch._inductor.compile_fx" in sys.modules
        if (self.role != "candidate" and has_compiler) or request.get("compiles") or words in texts[0]:
            variants.raise_recompile_limit()
            if self.device.type == "cpu":
                shared_headers.use(self._headers)
        if interpreted.VARIABLE in os.environ:
            interpreted.prepare()
        if request.get("rehearses"):
            rehearsal.prepare(request["rehearses"])
        self._delivered = bool(request.get("delivered"))
        self.module = self._import(texts[0], "candidate" if self.role == "candidate" else "task")
        self._class_of(self.module, _CANDIDATE if self.role == "candidate" else _REFERENCE)
        self._reference_text = texts[1] if len(texts) > 1 else b""
        self.cpp.imported()
        return b""

    def variant(self, request: dict[str, Any], descriptors: list[int]) -> bytes:
        """See `Turns.variant`. The headers may have been built after this process was started."""
        variants.raise_recompile_limit()
        with variants.past_what_is_kept() if request["anew"] else nullcontext():
            if self.device.type == "cpu":
                shared_headers.use(self._headers)
            return super().variant(request, descriptors)

    def asked(self, request: dict[str, Any], descriptors: list[int]) -> bytes:
        """Calls of `load_inline` that have not been built, as JSON (the referee validates it)."""
        return self.cpp.asked()

    def keep(self, request: dict[str, Any], descriptors: list[int]) -> bytes:
        """Writes what the compilers made here to the descriptor.

        Answers with its size, 0 if there is nothing new.
        """
        try:
            work = os.environ["KERNELWRIGHT_WORK"]
            length = compiled_files.pack(work, descriptors[0], request["most_bytes"], self._unpacked)
        finally:
            os.close(descriptors[0])
        return json.dumps({"bytes": length}).encode()

    def _import(self, text: bytes, name: str) -> ModuleType:
        import importlib.util

        # A real file: triton.jit and inspect read the source of what they compile.
        path = os.path.join(os.environ["TMPDIR"], f"{name}_file.py")
        with open(path, "wb") as file:
            file.write(text)
        try:
            compile(text, f"{name}.py", "exec")
        except SyntaxError as error:
            shown = f" (`{error.text.strip()}`)" if error.text else ""
            raise ContractError(f"the file does not parse: line {error.lineno}: {error.msg}{shown}") from None
        except ValueError as error:
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
        declared = getattr(self.module, "DIMS", {})
        if not isinstance(declared, Mapping):
            raise ContractError(f"DIMS must be a dictionary of dimensions by name, not {declared!r}"[:300])
        gpu = on_gpu(self.device)
        dims = {str(name): _fields_of(str(name), dim, gpu=gpu) for name, dim in declared.items()}
        for function in ("get_inputs", "get_init_inputs"):
            if not callable(getattr(self.module, function, None)):
                raise ContractError(f"the file defines no function {function}()")
        answer = {
            "dims": dims,
            "direction": str(getattr(self.module, "DIRECTION", "forward")),
            "training": bool(getattr(self.module, "TRAINING", False)),
            "precision": str(getattr(self.module, "PRECISION", DEFAULT)),
            "varies": [str(name) for name in getattr(self.module, "VARIES", ())],
            "traffic": [list(row) for row in getattr(self.module, "TRAFFIC", ())],
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
                # User code that uses numpy or plain Python cannot run on fake tensors; the caller then draws
                # smaller.
                answers.append(None)
        return json.dumps({"shapes": answers}).encode()

    def costs(self, request: dict[str, Any], descriptors: list[int]) -> bytes:
        """See :func:`evaluator.roles.cost.answer`."""
        from evaluator.roles import cost

        assert self.module is not None
        return cost.answer(self._class_of(self.module, _REFERENCE), self.module, request)

    def _accepted(self, function: str, dims: dict[str, Any]) -> list[str]:
        parameters = inspect.signature(getattr(self.module, function)).parameters
        if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
            return list(dims)
        return [name for name in dims if name in parameters]

    # -- building ----------------------------------------------------------------------------------------------

    def build(self, request: dict[str, Any], descriptors: list[int]) -> bytes:
        """Opens a shape. The reference draws its inputs and answers with descriptions; a candidate only builds.

        On a GPU the reference draws and builds there: tensors of gigabytes take seconds on the host.
        """
        shape = Shape()
        self.shapes[request["shape"]] = shape
        assert self.module is not None
        if on_gpu(self.device):
            # Restore what the file set at import. What it sets later shows as an error.
            variants.use_tier(request["precision"])
            self._products = torch.get_float32_matmul_precision()
        if self.role == "candidate":
            shape.inputs = [decode_value(value) for value in request["init"]]
            return b""
        dims = request["dims"]
        init = self.module.get_init_inputs(**{name: dims[name] for name in request["init_dims"]})
        shape.inputs = list(init)
        encoded = [encode_value(value) for value in init]
        shape.configuration = json.dumps(encoded)
        like = next(
            (
                key
                for key, other in self.shapes.items()
                if other is not shape and other.configuration == shape.configuration and other.is_heavy
            ),
            None,
        )
        redraw = getattr(self.module, "redraw", None)
        if like is not None:
            shape.share(self.shapes[like])
        else:
            shape.model = self._new_reference(init, redraw)
        assert shape.model is not None
        given = {name: dims[name] for name in request["input_dims"]}
        self._drawn = drawn = draw(self.module, shape.model.forward, given, request["draws"], self.device)
        parameters = dict(shape.model.named_parameters(remove_duplicate=False))
        trained = {name for name, tensor in shape.model.named_parameters() if tensor.requires_grad}
        self._state = shape.model.state_dict() if like is None else {}
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
        upstream: list[dict[str, Any]] = []
        outputs_bytes = 0
        with measured(self.device) as peak:
            if request["backward"]:
                upstream, outputs_bytes = self._upstream(
                    shape.model, drawn.spare or drawn.first, request["training"]
                )
            elif on_gpu(self.device):
                outputs_bytes = self._call_once(shape.model, drawn.spare, request["training"])
        drawn.spare = []
        answer = {
            "init": encoded,
            "like": like,
            "inputs": drawn.described,
            "state": state,
            "redrawn": callable(redraw),
            "upstream": upstream,
            "peak_bytes": peak.bytes,
            "outputs_bytes": outputs_bytes,
        }
        return json.dumps(answer).encode()

    def _new_reference(self, init: list[Any], redraw: Any) -> nn.Module:
        """The reference's module, constructed where it will run if possible.

        A task's own ``redraw`` draws on the host.
        """
        assert self.module is not None
        new_class = self._class_of(self.module, _REFERENCE)
        with torch.enable_grad():
            if callable(redraw):
                model = new_class(*init)
                redraw(model, torch.Generator().manual_seed(int.from_bytes(os.urandom(7), "little")))
                return model
            return on_device(self.device, lambda: new_class(*init))

    def _call_once(self, model: nn.Module, inputs: list[Any], training: bool) -> int:
        """GPU only: one call, to measure the memory peak. Returns bytes of its outputs and restores buffers."""
        kept = {name: buffer.clone() for name, buffer in model.named_buffers()} if training else {}
        model.train(training).to(self.device)
        with torch.no_grad():
            outputs = blocks.flatten(model(*inputs))
            for name, buffer in model.named_buffers():
                if name in kept:
                    buffer.copy_(kept[name])
        return _bytes_of(outputs)

    def hand_over(self, request: dict[str, Any], descriptors: list[int]) -> bytes:
        """GPU only: copies what was drawn, then the state, to the referee's memory (two descriptors), and releases
        both.
        """
        torch_gpu.current_stream().synchronize()
        assert self._drawn is not None
        state = [(t, span_elements(t) * t.element_size()) for t in self._state.values()]
        for descriptor, length_bytes, part in zip(
            descriptors, request["bytes"], (self._drawn.tensors, state), strict=True
        ):
            if length_bytes:
                handle = device_memory.adopt(descriptor)
                address = device_memory.attach(handle, length_bytes)
                memory, at = device_memory.as_bytes(address, length_bytes), 0
                for tensor, kept_bytes in part:
                    span = tensor.detach().as_strided((kept_bytes // tensor.element_size(),), (1,))
                    if kept_bytes:
                        memory[at : at + kept_bytes].view(tensor.dtype).copy_(span)
                    at += -(-kept_bytes // device_memory.ALIGNMENT) * device_memory.ALIGNMENT
                torch_gpu.synchronize()
                del memory
                device_memory.detach(address, handle, length_bytes)
            os.close(descriptor)
        self._drawn, self._state = None, {}
        torch_gpu.empty_cache()
        return b""

    def _upstream(
        self, model: nn.Module, inputs: list[Any], training: bool
    ) -> tuple[list[dict[str, Any]], int]:
        """Which outputs carry a gradient, found by one forward of a copy, and the form of their upstream
        gradients; and on a GPU the bytes of all outputs.
        """
        model = copy.deepcopy(model).train(training).to(self.device)
        given = tree_map(
            lambda value: leaf(value.detach().to(self.device)) if isinstance(value, torch.Tensor) else value,
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
                "DIRECTION is forward_backward, but no output depends on a floating input or a parameter: use forward"
            )
        return upstream, _bytes_of(outputs) if on_gpu(self.device) else 0

    def import_state(self, request: dict[str, Any], descriptors: list[int]) -> bytes:
        """Maps the shape's arena and loads the redrawn weights from it.

        The candidate's class is constructed here.
        """
        shape = self.shapes[request["shape"]]
        if on_gpu(self.device):
            # The driver's own functions need a context.
            torch_gpu.init()
            torch_gpu.current_stream().synchronize()
            address = device_memory.attach(device_memory.adopt(descriptors[0]), request["arena_bytes"])
            os.close(descriptors[0])
            shape.arena = device_memory.as_bytes(address, request["arena_bytes"])
        else:
            with os.fdopen(descriptors[0], "rb") as file:
                shape.arena = mmap.mmap(file.fileno(), request["arena_bytes"])
        if request["like"] is not None:
            if self.role == "candidate":
                shape.share(self.shapes[request["like"]])
            return b""
        state = self._state_from(shape, request["state"], descriptors[1:], request.get("state_bytes", 0))
        shape.spec = spec = frames.CallSpec.of(request["call"])
        metas = {entry["name"]: read_meta(entry["meta"]) for entry in request["state"]}
        if self.role == "candidate":
            with torch.enable_grad():
                shape.model = self._new_model(shape.inputs, state, training=spec.training)
        else:
            assert shape.model is not None
            shape.model.load_state_dict(state)
        shape.model.train(spec.training).to(self.device)
        shape.initial = [tensor.clone() for tensor in calls.members(shape.model, spec, metas)[1]]
        call = dispatch.caller(shape.model, own=self.role != "candidate" or self._delivered)
        shape.forwards = {"eager": calls.make(call, shape.model, spec, shape.initial)}
        if on_gpu(self.device):
            del state
            torch_gpu.empty_cache()
        return b""

    @staticmethod
    def _state_from(
        shape: Shape, entries: list[dict[str, Any]], descriptors: list[int], length_bytes: int
    ) -> dict[str, torch.Tensor]:
        """Copies of the weights: from the shape's arena, or from device memory of their own, which is then
        released.
        """
        if not length_bytes:
            return {
                entry["name"]: shape.view(entry["offset"], read_meta(entry["meta"])).clone()
                for entry in entries
            }
        handle = device_memory.adopt(descriptors[0])
        address = device_memory.attach(handle, length_bytes)
        os.close(descriptors[0])
        memory = device_memory.as_bytes(address, length_bytes)
        state = {
            entry["name"]: typed(memory, entry["offset"], read_meta(entry["meta"])).clone()
            for entry in entries
        }
        torch_gpu.synchronize()
        del memory
        device_memory.detach(address, handle, length_bytes)
        return state

    def _new_model(self, init: list[Any], state: dict[str, torch.Tensor], *, training: bool) -> nn.Module:
        assert self.module is not None
        new_class = self._class_of(self.module, _CANDIDATE)
        convert = getattr(new_class, "from_reference", None)
        if convert is not None:
            if self.reference is None:
                self.reference = self._import(self._reference_text, "task")
            reference_class = self._class_of(self.reference, _REFERENCE)
            reference = on_device(self.device, lambda: reference_class(*init))
            reference.load_state_dict(state)
            model = convert(reference.train(training).to(self.device))
            if not isinstance(model, nn.Module):
                raise ContractError("from_reference() must return a torch.nn.Module")
            return model
        model = on_device(self.device, lambda: new_class(*init))
        try:
            model.load_state_dict(state, strict=True)
        except RuntimeError as error:
            if "CUDA error" in str(error):  # left behind by the constructor; the weights are not the cause
                raise
            raise ContractError(
                "the reference's state_dict does not load strictly into ModelNew and it has no "
                f"from_reference(cls, reference); keep the reference's names and shapes of weights, or define it: {error}"
            ) from None
        return model

    def renew(self, request: dict[str, Any], descriptors: list[int]) -> bytes:
        """Changes weights in place, or restores them; empty if the module was made from the reference's."""
        if self.role == "candidate":
            assert self.module is not None
            if getattr(self._class_of(self.module, _CANDIDATE), "from_reference", None) is not None:
                return b""
        how = {name: request[name] for name in ("names", "seed", "quietly", "one_row")}
        renew(self.shapes[request["shape"]], **how)
        return RENEWED

    def kernels(self, request: dict[str, Any], descriptors: list[int]) -> bytes:
        """Watched processes only: what ran in one call on slot 0, as JSON that decides nothing."""
        shape = self.shapes[request["shape"]]
        seen = self.watch.observe(shape.forwards["eager"], shape.slots[0].arguments, self.device)
        if on_gpu(self.device):
            seen["narrow"] = seen["narrow"] or torch.get_float32_matmul_precision() != self._products
        return json.dumps(seen).encode()

    def mute(self, request: dict[str, Any], descriptors: list[int]) -> bytes:
        """Watched processes only: replaces own kernels by nothing, or restores them.

        Answers with their call counts.
        """
        return json.dumps({"calls": self.watch.mute(bool(request["muted"]))}).encode()

    def inspect(self, request: dict[str, Any], descriptors: list[int]) -> bytes:
        """Reference only: which of its operations and weights matter on slot 0, as JSON that describes."""
        from evaluator.roles import inspection

        shape = self.shapes[request["shape"]]
        seen = inspection.inspect(shape, shape.slots[0].arguments, request["seconds"])
        return json.dumps(seen).encode()

    def close(self, request: dict[str, Any], descriptors: list[int]) -> bytes:
        """Closes a shape and releases its memory."""
        self.shapes.pop(request["shape"], None)
        self._drawn, self._state, self._exact_outputs = None, {}, []
        if request["collect"]:
            gc.collect()
        return b""


def _bytes_of(tensors: list[torch.Tensor]) -> int:
    return sum(span_elements(tensor) * tensor.element_size() for tensor in tensors)


def _fields_of(name: str, dim: Any, *, gpu: bool) -> dict[str, Any]:
    """A dimension of DIMS as declared, with its own size on this kind of device as the default."""
    try:
        if isinstance(getattr(dim, "values", None), tuple):
            return {"choices": list(dim.values), "default": dim.default}
        fields = {field: getattr(dim, field) for field in ("min", "max", "multiple_of", "default")}
        return {**fields, "default": getattr(dim, "gpu", dim.default)} if gpu else fields
    except AttributeError:
        sentence = f"DIMS[{name!r}] must be a Dim or a Choice of kernelbench_tasks, not {dim!r}"
        raise ContractError(sentence[:300]) from None
