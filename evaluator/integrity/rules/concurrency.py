"""Work that continues beside the call: streams (E1), threads and processes (E2)."""

from __future__ import annotations

from collections.abc import Iterator

from evaluator.integrity.rules.base import Hit, Rule, at, calls_to, in_native, method_calls
from evaluator.integrity.source import Source

_STREAMS = frozenset(
    {
        "torch.cuda.Stream",
        "torch.cuda.stream",
        "torch.cuda.ExternalStream",
        "torch.cuda.set_stream",
        "torch.Stream",
    }
)
_THREADS = (
    "threading",
    "_thread",
    "concurrent.futures",
    "multiprocessing",
    "asyncio",
    "torch.multiprocessing",
)


def _streams(source: Source) -> Iterator[Hit]:
    yield from calls_to(source, _STREAMS)
    yield from method_calls(source, frozenset({"record_stream", "wait_stream"}))
    yield from in_native(source, r"\bcudaStreamCreate\w*|\bgetStreamFromPool\b|\bcuStreamCreate\w*")


def _threads(source: Source) -> Iterator[Hit]:
    for node in source.imports(*_THREADS):
        yield at(node, "imports threads or processes")
    yield from calls_to(source, frozenset({"os.fork", "os.posix_spawn", "os.forkpty"}))
    yield from in_native(
        source, r"\bstd::(?:thread|jthread|async)\b|\bpthread_create\b|\bfork\s*\(\s*\)|\bclone\s*\("
    )


RULES = (
    Rule("side_stream", "info", "it queues work on streams of its own", _streams),
    Rule("threads", "warning", "it starts threads or processes of its own", _threads),
)
