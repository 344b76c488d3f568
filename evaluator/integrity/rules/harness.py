"""Attempts to manipulate the referee: frames (E24, E32), clocks (E4, E5), the checker (E46), /proc (E64), files
(E60).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from evaluator.integrity.rules.base import Hit, Rule, at, calls_to, in_native, method_calls
from evaluator.integrity.source import Source, looks_native

_STACK = frozenset(
    {
        "inspect.stack", "inspect.currentframe", "inspect.getouterframes", "inspect.trace", "sys._getframe",
        "sys._current_frames", "traceback.extract_stack", "traceback.walk_stack", "traceback.format_stack",
        "sys.settrace", "sys.setprofile", "sys._getframemodulename",
    }
)  # fmt: skip
_COLLECTOR = frozenset(
    {"gc.get_objects", "gc.get_referrers", "gc.get_referents", "gc.callbacks.append", "object.__subclasses__"}
)
_CLOCKS = {
    "perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns", "time", "time_ns", "process_time", "elapsed_time",
    "synchronize", "do_bench", "do_bench_cudagraph", "record", "Event", "clock_gettime",
}  # fmt: skip
_PATCHED = ("torch", "time", "triton", "numpy", "builtins", "sys", "os", "statistics", "evaluator")
_WRITERS = frozenset(
    {
        "os.remove", "os.unlink", "os.rename", "os.replace", "os.mkdir", "os.makedirs", "os.symlink", "os.link",
        "os.write", "shutil.copy", "shutil.copyfile", "shutil.copytree", "shutil.move", "shutil.rmtree", "torch.save",
        "numpy.save", "numpy.savez", "pickle.dump", "json.dump", "tempfile.mkstemp", "tempfile.NamedTemporaryFile",
        "tempfile.mkdtemp", "os.chmod", "os.truncate", "os.mkfifo",
    }
)  # fmt: skip
_PROGRAMS = ("subprocess", "socket", "urllib", "requests", "http.client", "httpx", "ftplib", "pip", "pty")


def _stack(source: Source) -> Iterator[Hit]:
    yield from calls_to(source, _STACK)
    for node in source.nodes:
        if isinstance(node, ast.Attribute) and node.attr in (
            "f_back",
            "f_locals",
            "f_globals",
            "tb_frame",
            "gi_frame",
        ):
            yield at(node, f".{node.attr}")
        elif isinstance(node, ast.Attribute) and source.dotted(node) == "sys.argv":
            yield at(node, "sys.argv")


def _collector(source: Source) -> Iterator[Hit]:
    yield from calls_to(source, _COLLECTOR)
    yield from method_calls(source, frozenset({"__subclasses__"}))
    for part in source.nodes:
        if isinstance(part, ast.Attribute) and source.dotted(part) in ("sys.modules", "ctypes.pythonapi"):
            yield at(part, source.dotted(part))


def _patches(source: Source, *, clocks: bool) -> Iterator[Hit]:
    """Assignments to parts of other modules, by name, by setattr or through a dictionary."""
    places: list[tuple[ast.AST, str]] = []
    for target, statement in source.assignments():
        if isinstance(target, ast.Attribute):
            places.append((statement, source.dotted(target)))
        elif isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant):
            places.append((statement, f"{source.dotted(target.value)}.{target.slice.value!s}"))
    for name, node in source.calls:
        if name in ("setattr", "object.__setattr__", "type.__setattr__") and len(node.args) > 1:
            given = node.args[1]
            last = given.value if isinstance(given, ast.Constant) else "?"
            places.append((node, f"{source.dotted(node.args[0])}.{last!s}"))
    for place, name in places:
        first, _, rest = name.partition(".")
        if (
            first not in _PATCHED
            or not rest
            or name.startswith(("torch.backends.", "os.environ", "sys.path"))
        ):
            continue
        if (name.rpartition(".")[2] in _CLOCKS) is clocks:
            yield at(place, f"{name} is replaced")


def _proc(source: Source) -> Iterator[Hit]:
    for node in source.strings():
        found = [word for word in ("/proc/", "/dev/mem", "/sys/kernel", "/dev/nvidia") if word in node.value]
        if found and not looks_native(node.value):
            yield at(node, found[0])
    yield from in_native(
        source,
        r"/proc/|\bptrace\s*\(|\bprocess_vm_\w+|\bmprotect\s*\(|\bdl_iterate_phdr\b|\bsyscall\s*\(",
        literals=True,
    )


def _writes(source: Source) -> Iterator[Hit]:
    yield from calls_to(source, _WRITERS)
    yield from method_calls(source, frozenset({"write_text", "write_bytes", "touch", "unlink"}))
    for name, node in source.calls:
        if name in ("open", "io.open", "os.open", "os.fdopen"):
            modes = [*node.args[1:2], *(k.value for k in node.keywords if k.arg in ("mode", "flags"))]
            if any(not (isinstance(m, ast.Constant) and set(str(m.value)) <= set("rbt")) for m in modes):
                yield at(node, f"{name}() to write")
    yield from in_native(source, r"\bfopen\s*\(|\bstd::o?fstream\b|\bfwrite\s*\(")


def _programs(source: Source) -> Iterator[Hit]:
    for node in source.imports(*_PROGRAMS):
        yield at(node, "imports programs or the network")
    yield from calls_to(
        source, frozenset({"os.system", "os.popen", "os.execv", "os.execve", "os.kill", "os._exit"})
    )
    yield from in_native(source, r"\bsystem\s*\(|\bpopen\s*\(|\bexecve?\s*\(|\bsocket\s*\(")


RULES = (
    Rule("inspects_stack", "warning", "it inspects its caller", _stack),
    Rule("gc_or_frames", "warning", "it searches for objects that it was not given", _collector),
    Rule("timer_patch", "warning", "it replaces a clock", lambda source: _patches(source, clocks=True)),
    Rule(
        "patches_library",
        "warning",
        "it replaces parts of a library",
        lambda source: _patches(source, clocks=False),
    ),
    Rule("touches_proc", "warning", "it accesses the kernel's view of the process", _proc),
    Rule("writes_files", "warning", "it writes files", _writes),
    Rule("programs_or_network", "warning", "it starts programs or uses the network", _programs),
)
