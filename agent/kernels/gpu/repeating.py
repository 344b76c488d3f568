"""Whole calls of generated code that are noted once and repeated: launches alone, without the code that is around them.

`writing.py` lets generated code allocate by `noted_empty` and launch what Inductor compiled by `noted_run`, so that both are seen here.
"""

import functools
import math

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode

from agent.kernels.gpu.launching import Notes, reach_bytes, rounded_bytes

#: Notes of a network's call take a fifth of a megabyte of the host's memory.
_MOST_CALLS = 256
#: One call is noted at a time: of two, each might take the other's launches for its own. It serves as a lock, since a candidate that
#: imports `threading` is suspicious.
_turns = [None]


def repeated_call(generated):
    """The compiler's `call(tensors)`, noted at the second call with tensors of such sizes, and repeated at later ones.

    A call that computes on the host, calls torch, or reads memory that was neither given nor allocated in it runs as written each time.
    The caller has checked the tensors' types and how strides follow from sizes.
    """
    known = generated.known = {}

    @functools.wraps(generated)
    def call(given):
        if isinstance(_get_current_dispatch_mode(), Notes):  # a part of what is being noted
            return generated(given)
        places = [*map(torch.Tensor.data_ptr, given)]
        key = (*_settings(), *map(torch.Tensor.size, given), *(place % 16 for place in places))
        if len(set(places)) < len(places):  # one tensor in several places is noted once, and two are not
            first = {}
            key += tuple(first.setdefault(place, at) for at, place in enumerate(places))
        notes = known.get(key)
        if notes is not None:
            if notes.is_whole:
                try:
                    return notes.repeat(given, places)
                except torch.OutOfMemoryError:
                    # It comes before the first launch: one large piece may not fit where small ones do.
                    notes.is_whole = False
            return generated(given)  # not above, where the error holds the memory that there was
        excluded = torch._C._dispatch_tls_is_dispatch_key_excluded(torch._C.DispatchKey.Python)
        if key not in known or excluded or not given:
            if len(known) >= _MOST_CALLS:
                known.clear()
            known[key] = None
            return generated(given)
        try:
            _turns.pop()
        except IndexError:
            return generated(given)
        notes = CallNotes(given)
        try:
            with notes:
                result = generated([*given])
            notes.finish(result)
        finally:
            notes.release()
            _turns.append(None)
        known[key] = notes
        return result

    return call


def _settings():
    """What operations of the library look at besides their arguments."""
    found = []
    for setting in (torch._C._get_cudnn_allow_tf32, torch._C._get_cublas_allow_tf32):
        try:
            found.append(setting())
        except RuntimeError:
            # Torch's other settings of precision are in use, with which it does not tell this one.
            found.append(None)
    return found


def noted_empty(size, stride, dtype):
    """Memory for generated code, which allocates past torch's dispatcher."""
    out = torch._C._dynamo.guards._empty_strided_cuda(size, stride, dtype)
    notes = _get_current_dispatch_mode()
    if isinstance(notes, CallNotes):
        notes.allocate(out)
    return out


def noted_run(kernel, *given, stream):
    """Launch a kernel of Inductor's."""
    notes = _get_current_dispatch_mode()
    if isinstance(notes, CallNotes) and notes.is_whole:
        notes.run(kernel, given, stream)
    else:
        kernel.run(*given, stream=stream)


class CallNotes(Notes):
    """The same of generated code, which frees memory as it goes: no tensor is kept, and memory is known by its address."""

    def __init__(self, tensors):
        super().__init__(tensors)
        #: Where the memory of each root begins and ends.
        self._spans = [(one.data_ptr(), one.data_ptr() + reach_bytes(one)) for one in tensors]
        reach = latest = 0
        for begin, end in sorted(self._spans):  # in two that overlap, an address may be of either
            self.is_whole = self.is_whole and (begin >= reach or begin == latest)
            reach, latest = max(reach, end), begin
        kinds = {(one.device, one.is_complex(), one.is_neg()) for one in tensors}
        self.is_whole = self.is_whole and kinds == {(self._device, False, False)}
        #: What is allocated and not yet freed, and of the rest, how many pieces had been allocated by then.
        self._alive, self._freed = [], {}

    def repeat(self, tensors, places):
        with torch.cuda._DeviceGuard(self._device.index):
            return super().repeat(tensors, places)

    def release(self):
        """Let go of what only noting needs."""
        for _, memory in self._alive:
            torch.UntypedStorage._free_weak_ref(memory)
        self._alive = self._spans = self._freed = None

    def run(self, kernel, given, stream):
        """Launch a kernel of Inductor's, and note the launch if it goes through its static launcher."""
        kernel = kernel.chosen(given) if hasattr(kernel, "chosen") else kernel
        launched = [one.config for one in getattr(kernel, "launchers", ())]
        compiled = [one.kernel for one in getattr(kernel, "compile_results", ()) if [one.config] == launched]
        if [type(one).__name__ for one in compiled] != ["StaticallyLaunchedCudaKernel"]:
            self.is_whole = False
            kernel.run(*given, stream=stream)
            return
        before = len(self._launches)
        compiled[0].C_impl = _Launcher(self, compiled[0])
        try:
            kernel.run(*given, stream=stream)
        finally:
            compiled[0].C_impl = torch._C._StaticCudaLauncher
        self.is_whole = self.is_whole and len(self._launches) == before + 1

    def note(self, start, line):
        """Note a launch: grid, stream, and the kernel's arguments."""
        places = [(at, self._place(one)) for at, one in enumerate(line) if isinstance(one, torch.Tensor)]
        line = [None if isinstance(one, torch.Tensor) else one for one in line]
        known = {*map(type, line)} <= {int, float, bool, type(None)} and all(found for _, found in places)
        self.is_whole = self.is_whole and known
        if self.is_whole:
            self._launches.append((start, line, [(at, *found) for at, found in places], []))

    def allocate(self, out, *, is_zero=False):
        memory = out.untyped_storage()
        self._look()
        self._alive.append((len(self._allocated), memory._weak_ref()))
        self._spans.append((memory.data_ptr(), memory.data_ptr() + memory.nbytes()))
        self._allocated.append((memory.nbytes(), is_zero))
        self.is_whole = self.is_whole and out.device == self._device

    def _look(self):
        """Note what is freed since the last piece was allocated."""
        alive = []
        for piece, memory in self._alive:
            if torch.UntypedStorage._expired(memory):
                self._freed[piece] = len(self._allocated)
                torch.UntypedStorage._free_weak_ref(memory)
            else:
                alive.append((piece, memory))
        self._alive = alive

    def _view(self, made, root):
        pass

    def _place(self, tensor):
        address = tensor.data_ptr() if isinstance(tensor, torch.Tensor) else -1
        # What was allocated last comes first: it may lie where something lay that is freed.
        for root in range(len(self._spans) - 1, -1, -1):
            begin, end = self._spans[root]
            if begin <= address < end:
                return root, address - begin
        return None

    def _plan(self):
        # Each piece where it fits first, beside those that are not freed before it is allocated: in a result that is allocated
        # after it is freed, else in the scratch memory.
        results = {root: [] for root in self._made}
        scratch = []
        for piece, (size, is_zero) in enumerate(self._allocated):
            start, length, freed = 0, rounded_bytes(size), self._freed.get(piece, math.inf)
            if is_zero:
                start, self._bytes[1] = self._bytes[1], self._bytes[1] + length
            elif self._count + piece not in self._made:
                for root, placed in results.items():
                    start = _first_fit(placed, piece, length)
                    if freed <= root - self._count and start + size <= self._allocated[root - self._count][0]:
                        self._inside.append((self._count + piece, root, start))
                        break
                else:
                    placed, start = scratch, _first_fit(scratch, piece, length)
                    self._bytes[0] = max(self._bytes[0], start + length)
                placed.append((start, start + length, freed))
            self._starts.append((is_zero, start))


def _first_fit(placed, piece, length):
    """Where a piece begins beside those placed before it that are still alive."""
    start = 0
    for begin, end, freed in sorted(placed):
        if freed > piece and begin < start + length:
            start = max(start, end)
    return start


class _Launcher:
    """In place of Inductor's launcher: notes what this thread launches meanwhile, and launches it."""

    def __init__(self, notes, kernel):
        self._notes, self._kernel = notes, kernel

    def _launch_kernel(self, *line):
        launch = torch._C._StaticCudaLauncher._launch_kernel
        if len(line) != 9 or not isinstance(line[7], tuple):  # of another version of torch
            self._notes.is_whole = False
            launch(*line)
            return
        function, x, y, z, warps, shared, kinds, given, stream = line

        def start(x, y, z, stream, *given, kernel=self._kernel):  # which keeps the function loaded
            launch(function, x, y, z, warps, shared, kinds, given, stream)

        if _get_current_dispatch_mode() is self._notes:
            self._notes.note(start, [x, y, z, stream, *given])
        start(x, y, z, stream, *given)
