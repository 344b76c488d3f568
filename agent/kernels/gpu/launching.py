"""Launches of compiled kernels past Triton's own look-ups; operations, and whole calls of generated code, that are noted once and repeated.

Triton compiles a kernel for its tensors' types and alignment and for properties of its numbers, and looks all of them up at each
launch. Around the launches an operation works out sizes, allocates memory and describes tiles. On a slow host a product of four
launches took 190 us that way, ten times as long as `torch.mm`.
"""

import contextlib
import functools
import threading
import types

import torch
import triton
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

#: Of Triton, whose inner calls `_Notes` takes over; with another version operations run as they are written.
NOTED_VERSION = "3.6."
_MOST_KNOWN = 4096
_known = {}
_noting = threading.Lock()


def launch(kernel, grid, tensors, numbers, **constants):
    """`kernel[grid](*tensors, *numbers, **constants)`.

    A launch with the same numbers goes straight to what was compiled, and with addresses in place of tensors. Of descriptors the
    constants say enough.
    """
    kinds, places = [], []
    for one in tensors:
        if isinstance(one, torch.Tensor):
            place = one.data_ptr()
            kinds += one.dtype, place % 16
            places.append(place)
        else:
            places.append(one)
    key = kernel.__name__, tensors[-1].get_device(), tuple(numbers), tuple(constants.values()), tuple(kinds)
    found = _known.get(key)
    if found is not None:
        compiled, more = found
        compiled[(*grid, 1, 1)[:3]](*places, *numbers, *more)
    else:
        compiled = kernel[grid](*tensors, *numbers, **constants)
        more = [constants[name] for name in kernel.arg_names[len(tensors) + len(numbers) :]]
        if compiled is not None:  # None where it is interpreted
            if len(_known) > _MOST_KNOWN:
                _known.clear()
            _known[key] = compiled, more
    notes = _get_current_dispatch_mode()
    if isinstance(notes, _Notes):
        notes.add(compiled, (*grid, 1, 1)[:3], tensors, [*numbers, *more])


def repeated(operation):
    """An operation whose launches are noted at the second call with tensors of such layouts, and repeated at later ones.

    Noting takes five times as long as the call itself, so a layout that comes once is not noted.

    It takes tensors, numbers, kernels' functions, None, and lists or tuples of these. It returns one of the tensors, one that it
    allocates, a tuple of such, or None if it does not apply, which is remembered too; all of this must follow from the tensors' types,
    sizes and strides and from the other arguments. Calls that do more to tensors than to view, allocate and launch run as written each time.
    """
    known = operation.known = {}

    @functools.wraps(operation)
    def call(*given):
        if isinstance(_get_current_dispatch_mode(), _Notes):  # a part of what is being noted
            return operation(*given)
        key, tensors, places = [], [], []
        _describe(given, key, tensors, places)
        if len(set(places)) < len(places):  # one tensor in several places is noted once, and two are not
            key += map(places.index, places)
        key = tuple(key)
        notes = known.get(key)
        if notes is not None:
            return notes.repeat(tensors, places) if notes.is_whole else operation(*given)
        if key not in known or torch._C._dispatch_tls_is_dispatch_key_excluded(torch._C.DispatchKey.Python):
            if len(known) > _MOST_KNOWN:
                known.clear()
            known[key] = None
            return operation(*given)
        notes = _Notes(tensors)
        with notes:
            result = operation(*given)
        notes.finish(result)
        known[key] = notes
        return result

    return call


def repeated_call(generated):
    """The compiler's `call(tensors)`, noted at the second call with tensors of such sizes, and repeated at later ones.

    A call that computes on the host, calls torch, or reads memory that was neither given nor allocated in it runs as written each time.
    The caller has checked the tensors' types and how strides follow from sizes.
    """
    known = generated.known = {}

    @functools.wraps(generated)
    def call(given):
        places = [*map(torch.Tensor.data_ptr, given)]
        key = [*map(torch.Tensor.size, given), *(place % 16 for place in places)]
        if len(set(places)) < len(places):
            key += map(places.index, places)
        key = tuple(key)
        notes = known.get(key)
        if notes is not None:
            return notes.repeat(given, places) if notes.is_whole else generated(given)
        may_note = given and not torch._C._dispatch_tls_is_dispatch_key_excluded(torch._C.DispatchKey.Python)
        if key not in known or not may_note or not _noting.acquire(blocking=False):
            if len(known) > _MOST_KNOWN:
                known.clear()
            known[key] = None
            return generated(given)
        try:
            notes = _CallNotes(given)
            with notes, notes.generated(generated.__globals__):
                result = generated([*given])
            notes.finish(result)
        finally:
            _noting.release()
        known[key] = notes
        return result

    return call


def _describe(given, key, tensors, places):
    """Adds the tensors, their addresses, and all that launches depend on but these."""
    for one in given:
        if isinstance(one, torch.Tensor):
            place = one.data_ptr()
            tensors.append(one)
            places.append(place)
            key += one.shape, one.stride(), one.dtype, one.get_device(), place % 16
        elif isinstance(one, (list, tuple)):
            key.append(len(one))
            _describe(one, key, tensors, places)
        else:
            key.append(one)


class _Notes(TorchDispatchMode):
    """One call's launches, and from which tensors, given or allocated meanwhile, the kernels' addresses come."""

    def __init__(self, tensors):
        super().__init__()
        self.is_whole = triton.__version__.startswith(NOTED_VERSION) and torch.version.hip is None
        self._device, self._count = tensors[0].device, len(tensors)
        self._launches, self._allocated = [], []
        # Of each tensor, which root its memory is of, and where; two roots may lie in the same memory now and not at the next call.
        self._roots = list(tensors)
        self._from = [(one, root, 0) for root, one in enumerate(tensors)]

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        packet = func.overloadpacket
        place = self._place(args[0]) if func.is_view and args else None
        made = out if isinstance(out, (list, tuple)) else [out]
        if packet in _ALLOCATIONS and out.device == self._device:
            self.allocate(out, is_zero=packet is torch.ops.aten.zeros)
        elif place and all(self._is_part(one, args[0]) for one in made):
            self._view(made, place[0])
        else:
            self.is_whole = False
        return out

    def allocate(self, out, *, is_zero=False):
        """Note memory that the call allocates."""
        self._from.append((out, len(self._roots), 0))
        self._roots.append(out)
        self._allocated.append((out.untyped_storage().nbytes(), is_zero))

    def _view(self, made, root):
        for one in made:
            self._from.append((one, root, one.data_ptr() - self._roots[root].data_ptr()))

    def _is_part(self, tensor, whole):
        """Whether the memory is the same: in inference mode `reshape` and `contiguous` come as views, and may be copies."""
        return tensor.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()

    def _place(self, tensor):
        """Which root the tensor's memory is of, and where it begins in it, in bytes; or None."""
        return next(((root, offset) for one, root, offset in self._from if one is tensor), None)

    def add(self, compiled, grid, tensors, more):
        """Note a launch."""
        self.is_whole = self.is_whole and compiled is not None
        if not self.is_whole:
            return
        run, tilings = compiled.run, list(getattr(compiled.metadata, "tensordesc_meta", None) or [])
        start = run.launch
        # What Triton's launcher takes: grid, stream, kernel, kinds of launch, two buffers of its own, threads, three hooks; then ours.
        line = [*grid, 0, compiled.function, run.launch_cooperative_grid, run.launch_pdl]
        line += None, None, compiled.packed_metadata, None, None, None
        places, tiles = [], []
        for one in tensors:
            is_tensor = isinstance(one, torch.Tensor)
            found = self._place(one if is_tensor else one.base)
            if found is None or not (is_tensor or tilings):
                self.is_whole = False
                return
            (places if is_tensor else tiles).append((len(line), *found))
            line.append(None)
            if not is_tensor:
                tiles[-1] += (_Tiling(one, tilings.pop(0)),)
                line += *one.shape, *one.strides
        if tiles:  # Triton's own loop over descriptors is around the launch
            start = next(
                cell.cell_contents for cell in start.__closure__ if type(cell.cell_contents) is type(len)
            )
        # A kernel with a buffer of its own gets it from Triton at each launch.
        self.is_whole = not (run.global_scratch_size or run.profile_scratch_size)
        self._launches.append((start, [*line, *more], places, tiles))

    def finish(self, result):
        """Let go of the tensors."""
        self._is_tuple, self._results, self._made = isinstance(result, tuple), [], {}
        for one in result if self._is_tuple else () if result is None else (result,):
            root, offset = self._place(one) or (None, 0)
            self._results.append(root)
            if root is None or root < self._count:
                self.is_whole = self.is_whole and root is not None and self._roots[root] is one
            else:  # all of the memory, not a part of it
                self._made[root] = one.size(), one.stride(), one.dtype
                is_all = not offset and (_reach_bytes(one), False) == self._allocated[root - self._count]
                self.is_whole = self.is_whole and is_all and root not in self._results[:-1]
        self._starts, self._bytes = [], [0, 0]
        self._plan()
        self.is_whole = self.is_whole and bool(self._results or not self._launches)
        self._roots = self._from = None

    def _plan(self):
        """Where in the call's scratch memory each piece begins."""
        for root, (size, is_zero) in enumerate(self._allocated, self._count):
            self._starts.append((is_zero, self._bytes[is_zero]))
            if root not in self._made:
                self._bytes[is_zero] += _rounded(size)

    def repeat(self, tensors, places):
        """The launches with tensors at these addresses; the result."""
        if not self._results:
            return None
        made = {
            root: torch.empty_strided(sizes, strides, dtype=dtype, device=self._device)
            for root, (sizes, strides, dtype) in self._made.items()
        }
        if self._starts:
            scratch = [
                make(size, dtype=torch.uint8, device=self._device) if size else None
                for make, size in zip((torch.empty, torch.zeros), self._bytes, strict=True)
            ]
            firsts = [one is not None and one.data_ptr() for one in scratch]
            places += [firsts[is_zero] + start for is_zero, start in self._starts]
            for root, one in made.items():
                places[root] = one.data_ptr()
        stream = torch._C._cuda_getCurrentRawStream(self._device.index)
        for start, line, addresses, tiles in self._launches:
            line = line.copy()
            line[3] = stream
            for at, root, offset in addresses:
                line[at] = places[root] + offset
            for at, root, offset, tiling in tiles:
                line[at] = tiling.at(places[root] + offset)
            start(*line)
        results = tuple(made[root] if root in made else tensors[root] for root in self._results)
        return results if self._is_tuple else results[0]


class _CallNotes(_Notes):
    """The same of generated code, which frees memory as it goes: no tensor is kept, and memory is known by its address."""

    def __init__(self, tensors):
        super().__init__(tensors)
        #: Where the memory of each root begins and ends.
        self._spans = [(one.data_ptr(), one.data_ptr() + _reach_bytes(one)) for one in tensors]
        reach = latest = 0
        for begin, end in sorted(self._spans):  # in two that overlap, an address may be of either
            self.is_whole = self.is_whole and (begin >= reach or begin == latest)
            reach, latest = max(reach, end), begin

    @contextlib.contextmanager
    def generated(self, names):
        """Notes what the compiler's code, which binds these names, allocates and launches past torch."""
        from torch._inductor.runtime.static_triton_launcher import StaticallyLaunchedTritonKernel
        from torch._inductor.runtime.triton_heuristics import CachingAutotuner

        empty, run, thread = names.get("empty_strided_cuda"), CachingAutotuner.run, threading.get_ident()

        def allocated(*form):
            out = empty(*form)
            self.allocate(out)
            return out

        def noted(kernel, *given, stream, **named):
            if threading.get_ident() != thread:
                return run(kernel, *given, stream=stream, **named)
            launcher = kernel.launchers[0] if len(kernel.launchers) == 1 and not named else None
            runner = launcher and launcher.__globals__.get("runner")
            if not isinstance(getattr(runner, "__self__", None), StaticallyLaunchedTritonKernel):
                self.is_whole = False
                return run(kernel, *given, stream=stream, **named)

            def note(*line):  # grid, stream, the kernel's arguments
                self._note(runner, line)
                runner(*line)

            with_note = {**launcher.__globals__, "runner": note}
            return types.FunctionType(launcher.__code__, with_note)(*given, stream=stream)

        if empty is not None:
            names["empty_strided_cuda"] = allocated
        CachingAutotuner.run = noted
        try:
            yield
        finally:
            CachingAutotuner.run = run
            if empty is not None:
                names["empty_strided_cuda"] = empty

    def repeat(self, tensors, places):
        with torch.cuda._DeviceGuard(self._device.index):
            return super().repeat(tensors, places)

    def allocate(self, out, *, is_zero=False):
        memory = out.untyped_storage()
        self._spans.append((memory.data_ptr(), memory.data_ptr() + memory.nbytes()))
        self._allocated.append((memory.nbytes(), is_zero))

    def _view(self, made, root):
        pass

    def _place(self, tensor):
        # What was allocated last comes first: it may lie where something lay that is freed.
        address = tensor.data_ptr() if isinstance(tensor, torch.Tensor) else -1
        spans = reversed([*enumerate(self._spans)])
        return next(((root, address - begin) for root, (begin, end) in spans if begin <= address < end), None)

    def _note(self, runner, line):
        places = [(at, self._place(one)) for at, one in enumerate(line) if isinstance(one, torch.Tensor)]
        self.is_whole = self.is_whole and all(found for _, found in places)
        if self.is_whole:
            line = [None if isinstance(one, torch.Tensor) else one for one in line]
            self._launches.append((runner, line, [(at, *found) for at, found in places], []))

    def _plan(self):
        # The allocator put a piece where others had been freed. All that shared a place share one in the scratch memory.
        reach = shift = 0
        starts = {}
        for (begin, end), root in sorted((span, root) for root, span in enumerate(self._spans)):
            if root < self._count or root in self._made or self._allocated[root - self._count][1]:
                continue
            if begin >= reach:
                shift = self._bytes[0] - begin
            starts[root], reach = begin + shift, max(reach, end)
            self._bytes[0] = max(self._bytes[0], _rounded(end + shift))
        for root, (size, is_zero) in enumerate(self._allocated, self._count):
            self._starts.append((is_zero, self._bytes[1] if is_zero else starts.get(root, 0)))
            if is_zero:
                self._bytes[1] += _rounded(size)


def _rounded(size):
    return -(-size // 512) * 512


def _reach_bytes(tensor):
    """From its first byte to its last one."""
    steps = zip(tensor.size(), tensor.stride(), strict=True)
    return (
        tensor.element_size() * (1 + sum((size - 1) * stride for size, stride in steps))
        if tensor.numel()
        else 0
    )


_ALLOCATIONS = (
    torch.ops.aten.empty,
    torch.ops.aten.empty_strided,
    torch.ops.aten.new_empty,
    torch.ops.aten.new_empty_strided,
    torch.ops.aten.zeros,
)


class _Tiling:
    """A descriptor for the copy engine without its address."""

    def __init__(self, tiles, told):
        # The driver's number of a type for the compiler's.
        kind = {8: 10, 9: 8, 10: 9}.get(told["elem_type"], told["elem_type"])
        self._form = (
            told["swizzle"], told["elem_size"], kind, told["block_size"], list(tiles.shape), list(tiles.strides),
            int(tiles.padding == "nan"),
        )  # fmt: skip
        self._latest = None, None

    def at(self, address):
        known, found = self._latest
        if known != address:
            found = triton.runtime.driver.active.utils.fill_tma_descriptor(address, *self._form)
            self._latest = address, found
        return found
