"""Launches of compiled kernels past Triton's own look-ups, and operations of several launches that are noted once and then repeated.

Triton compiles a kernel for its tensors' types and alignment and for properties of its numbers, and looks all of them up at each
launch. Around the launches an operation works out sizes, allocates memory and describes tiles. On a slow host a product of four
launches took 190 us that way, ten times as long as `torch.mm`.
"""

import functools

import torch
import triton
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

#: Of Triton, whose inner calls `Notes` takes over; with another version operations run as they are written.
NOTED_VERSION = "3.6."
_MOST_KNOWN = 4096
_known = {}
#: Of each kernel, which of its numbers it is not specialized for.
_free = {}


def launch(kernel, grid, tensors, numbers, **constants):
    """`kernel[grid](*tensors, *numbers, **constants)`.

    A later launch goes straight to what was compiled, with addresses in place of tensors, where the numbers that the code depends on
    are the same. Of descriptors the constants say enough.
    """
    kinds, places = [], []
    for one in tensors:
        if isinstance(one, torch.Tensor):
            place = one.data_ptr()
            kinds += one.dtype, place % 16
            places.append(place)
        else:
            places.append(one)
    settled = _settled(kernel, len(tensors), numbers)
    key = kernel.__name__, tensors[-1].get_device(), settled, tuple(constants.values()), tuple(kinds)
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
    if isinstance(notes, Notes):
        notes.add(compiled, (*grid, 1, 1)[:3], tensors, [*numbers, *more])


def _settled(kernel, first, numbers):
    """The numbers that a kernel is compiled for; of a whole number of 32 bits that it is not specialized for, the type."""
    free = _free.get(kernel.__name__)
    if free is None:
        parameters = getattr(kernel, "params", ())[first : first + len(numbers)]
        free = [one.do_not_specialize for one in parameters] or [False] * len(numbers)
        _free[kernel.__name__] = free
    return tuple(
        [
            type(one) if is_free and isinstance(one, int) and -(1 << 31) <= one < 1 << 31 else one
            for is_free, one in zip(free, numbers, strict=True)
        ]
    )


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
        if isinstance(_get_current_dispatch_mode(), Notes):  # a part of what is being noted
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
        notes = Notes(tensors)
        with notes:
            result = operation(*given)
        notes.finish(result)
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


class Notes(TorchDispatchMode):
    """One call's launches, and from which tensors, given or allocated meanwhile, the kernels' addresses come.

    Attributes:
        is_whole: it did nothing else, so that it can be repeated.
    """

    def __init__(self, tensors):
        super().__init__()
        self.is_whole = triton.__version__.startswith(NOTED_VERSION) and torch.version.hip is None
        self._device, self._count = tensors[0].device, len(tensors)
        self._launches, self._allocated = [], []
        #: Pieces that lie in a result's memory: the piece, the result, and where in it.
        self._inside = []
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
                is_all = not offset and (reach_bytes(one), False) == self._allocated[root - self._count]
                is_all = is_all and not (one.is_conj() or one.is_neg()) and root not in self._results[:-1]
                self.is_whole = self.is_whole and is_all
        self._starts, self._bytes = [], [0, 0]
        self._plan()
        self.is_whole = self.is_whole and bool(self._results or not self._launches)
        if not self.is_whole:
            self._launches = []
        self._roots = self._from = None

    def _plan(self):
        """Where in the call's scratch memory each piece begins."""
        for root, (size, is_zero) in enumerate(self._allocated, self._count):
            self._starts.append((is_zero, self._bytes[is_zero]))
            if root not in self._made:
                self._bytes[is_zero] += rounded_bytes(size)

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
            for piece, root, offset in self._inside:
                places[piece] = places[root] + offset
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


def rounded_bytes(size):
    """As torch's allocator rounds."""
    return -(-size // 512) * 512


def reach_bytes(tensor):
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
