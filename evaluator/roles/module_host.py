"""Hosts the user's module inside a role: loads the file, describes a task, builds the model per shape."""

from __future__ import annotations

import copy
import gc
import inspect
import json
import mmap
import os
import time
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map

from evaluator.roles import (
    blocks,
    calls,
    compiled_files,
    device_memory,
    interpreted,
    rehearsal,
    shared_headers,
    torch_cpp,
    variants,
)
from evaluator.roles.open_shape import Shape, leaf, meta_json, meta_of, read_meta
from evaluator.roles.runner import ContractError
from evaluator.roles.turns import Turns
from evaluator.roles.values import decode_value, encode_value

_REFERENCE, _CANDIDATE = "Model", "ModelNew"
#: For telling what calls would take, and how many operations of one are followed.
_COST_SECONDS, _MOST_OPERATIONS = 3.0, 1024


class ModuleHost(Turns):
    """The operations of :mod:`evaluator.roles.runner` over one user file."""

    def __init__(self, settings: dict[str, Any]) -> None:
        device = torch.device("cuda") if settings["gpu"] else torch.device("cpu")
        super().__init__(device, settings["chain_library"])
        self.role: str = settings["role"]
        self.cpp = torch_cpp.Extensions(recording=settings["may_compile"] and self.role == "candidate")
        self.reference: ModuleType | None = None
        self._reference_text = b""
        self._draws: list[list[Any]] = []
        self._state: dict[str, torch.Tensor] = {}
        torch.set_num_threads(settings["threads"])
        torch.set_grad_enabled(False)
        self._headers: str = settings["headers_path"]
        self.watch: Any = None
        self._unpacked: frozenset[str] = frozenset()

    # -- loading -----------------------------------------------------------------------------------------------

    def load(self, request: dict[str, Any], descriptors: list[int]) -> bytes:
        """Imports the user's file (text in the first descriptor, the reference's in the second for a candidate).

        A candidate's third descriptor carries the extensions that were built for it, the fourth what the compilers made
        in an earlier process of it.
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
            # Not for everybody: torch's module takes 0.2 s to import.
            self.cpp.install()
        if request.get("watch"):
            from evaluator.roles.watch import Watch

            self.watch = Watch(self.cpp.folder)
            self.watch.install(texts[0], interpret=self.device.type == "cpu")
        # On a CPU the compiler is there already, and a module may be compiled by other names (`module.compile()`).
        words = b"compile" if self.device.type == "cpu" else b"torch.compile"
        if self.role != "candidate" or request.get("compiles") or words in texts[0]:
            variants.raise_recompile_limit()
            if self.device.type == "cpu":
                shared_headers.use(self._headers)
        if interpreted.VARIABLE in os.environ:
            interpreted.prepare()
        if request.get("rehearses"):
            rehearsal.prepare(request["rehearses"])
        name = _CANDIDATE if self.role == "candidate" else _REFERENCE
        self.module = self._import(texts[0], "candidate" if self.role == "candidate" else "task")
        self._class_of(self.module, name)
        self._reference_text = texts[1] if len(texts) > 1 else b""
        self.cpp.imported()
        return b""

    def variant(self, request: dict[str, Any], descriptors: list[int]) -> bytes:
        """See `Turns.variant`. The headers may have come since this process was started."""
        if self.device.type == "cpu":
            shared_headers.use(self._headers)
        return super().variant(request, descriptors)

    def asked(self, request: dict[str, Any], descriptors: list[int]) -> bytes:
        """Calls of `load_inline` that have not been built, as JSON (the referee validates it)."""
        return self.cpp.asked()

    def keep(self, request: dict[str, Any], descriptors: list[int]) -> bytes:
        """Writes what the compilers made here to the descriptor; answers with its size, 0 if nothing of it is new."""
        try:
            work = os.environ["KERNELWRIGHT_WORK"]
            length = compiled_files.pack(work, descriptors[0], request["most_bytes"], self._unpacked)
        finally:
            os.close(descriptors[0])
        return json.dumps({"bytes": length}).encode()

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
        declared = getattr(self.module, "DIMS", {})
        if not isinstance(declared, Mapping):
            raise ContractError(f"DIMS must be a dictionary of dimensions by name, not {declared!r}"[:300])
        dims = {str(name): _fields_of(str(name), dim) for name, dim in declared.items()}
        for function in ("get_inputs", "get_init_inputs"):
            if not callable(getattr(self.module, function, None)):
                raise ContractError(f"the file defines no function {function}()")
        answer = {
            "dims": dims,
            "direction": str(getattr(self.module, "DIRECTION", "forward")),
            "training": bool(getattr(self.module, "TRAINING", False)),
            "precision": str(getattr(self.module, "PRECISION", "fp32")),
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
                # User code that numpy or plain Python feeds cannot run on fake tensors; the caller then draws smaller.
                answers.append(None)
        return json.dumps({"shapes": answers}).encode()

    def costs(self, request: dict[str, Any], descriptors: list[int]) -> bytes:
        """What a call would take at each of some shapes, see :mod:`evaluator.roles.cost`; null where that is unknown."""
        until = time.monotonic() + _COST_SECONDS
        answers = [
            self._cost(
                {name: dims[name] for name in request["init_dims"]},
                {name: dims[name] for name in request["input_dims"]},
            )
            if time.monotonic() < until
            else None
            for dims in request["shapes"]
        ]
        return json.dumps({"shapes": answers}).encode()

    def _cost(self, init: dict[str, Any], given: dict[str, Any]) -> dict[str, int] | None:
        from evaluator.roles import cost

        module = self.module
        assert module is not None
        return cost.of_call(
            lambda: self._class_of(module, _REFERENCE)(*module.get_init_inputs(**init)),
            lambda: module.get_inputs(**given),
            _MOST_OPERATIONS,
        )

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
            entry["name"]: shape.view(entry["offset"], read_meta(entry["meta"])).clone()
            for entry in request["state"]
        }
        shape.spec = spec = calls.CallSpec.of(request["call"])
        metas = {entry["name"]: read_meta(entry["meta"]) for entry in request["state"]}
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

    def kernels(self, request: dict[str, Any], descriptors: list[int]) -> bytes:
        """Watched processes only: what ran in one call on slot 0, as JSON that decides nothing."""
        shape = self.shapes[request["shape"]]
        seen = self.watch.observe(shape.forwards["eager"], shape.slots[0].arguments, self.device)
        return json.dumps(seen).encode()

    def mute(self, request: dict[str, Any], descriptors: list[int]) -> bytes:
        """Watched processes only: puts nothing in the place of own kernels, or them back; answers with their calls."""
        return json.dumps({"calls": self.watch.mute(bool(request["muted"]))}).encode()

    def inspect(self, request: dict[str, Any], descriptors: list[int]) -> bytes:
        """Reference only: what of its operations and weights matters on slot 0, as JSON that describes."""
        from evaluator.roles import inspection

        shape = self.shapes[request["shape"]]
        seen = inspection.inspect(shape, shape.slots[0].arguments, request["seconds"])
        return json.dumps(seen).encode()

    def close(self, request: dict[str, Any], descriptors: list[int]) -> bytes:
        """Forgets a shape and gives its memory back."""
        self.shapes.pop(request["shape"], None)
        self._draws, self._state, self._exact_outputs = [], {}, []
        if request["collect"]:
            gc.collect()
        return b""


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


def _fields_of(name: str, dim: Any) -> dict[str, Any]:
    """What a dimension of DIMS says of itself."""
    try:
        if isinstance(getattr(dim, "values", None), tuple):
            return {"choices": list(dim.values), "default": dim.default}
        return {field: getattr(dim, field) for field in ("min", "max", "multiple_of", "default")}
    except AttributeError:
        sentence = f"DIMS[{name!r}] must be a Dim or a Choice of kernelbench_tasks, not {dim!r}"
        raise ContractError(sentence[:300]) from None
