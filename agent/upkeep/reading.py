"""Reads an untrusted bundle, a zip or a folder, without unpacking, importing or trusting any of it.

It reads only the few files that it needs from an archive, each up to a size limit, which makes paths with `..` and zip bombs
harmless. The values of evidence.json are checked here to be numbers and plain values.
"""

from __future__ import annotations

import json
import math
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent.bundle.evidence import SCHEMA
from agent.errors import UnreadableBundle
from evaluator.devices import BACKENDS
from evaluator.sources import TaskSource, sha256_of

_LIMITS_BYTES = {"optimized.py": 16 << 20, "task.py": 4 << 20, "evidence.json": 256 << 20}
_PLAIN = (bool, int, float, str, type(None))


@dataclass(frozen=True)
class Recorded:
    """The evidence for one shape: its dims, and its speedup over the best baseline with the 95 % interval."""

    dims: dict[str, Any]
    speedup: float
    low: float
    high: float

    @property
    def name(self) -> str:
        """The shape as text for people."""
        return shape_name(self.dims)


@dataclass(frozen=True)
class ReadBundle:
    """A bundle as text.

    Attributes:
        job: the job's name.
        device: "cpu" or "cuda".
        task: the reference.
        optimized: text of optimized.py.
        recorded: its held-out measurements.
        environment: the platform of those measurements.
        labels: the referee's labels for the kind of win.
    """

    job: str
    device: str
    task: TaskSource
    optimized: str
    recorded: tuple[Recorded, ...]
    environment: Mapping[str, Any]
    labels: tuple[str, ...]


def shape_name(dims: Mapping[str, Any]) -> str:
    """Dimensions as text for people."""
    return ", ".join(f"{name}={value}" for name, value in dims.items()) or "as given"


def read_bundle(path: Path) -> ReadBundle:
    """Read a bundle's module, reference and evidence.

    Args:
        path: the zip, or the folder that was unpacked from it.

    Raises:
        UnreadableBundle: it is missing or damaged, or its evidence is about another optimized.py or task.py.
    """
    texts = _folder_texts(path) if path.is_dir() else _zip_texts(path)
    try:
        evidence = json.loads(texts["evidence.json"])
    except (ValueError, RecursionError):
        raise UnreadableBundle(f"evidence.json in {path} is not JSON: fetch the bundle again") from None
    if not isinstance(evidence, dict) or evidence.get("schema") != SCHEMA:
        raise UnreadableBundle(f"evidence.json in {path} is not of the form {SCHEMA}")
    for name, digest in (
        ("optimized.py", _at(evidence, "optimized", "sha256")),
        ("task.py", _at(evidence, "task", "sha256")),
    ):
        if digest != sha256_of(texts[name]):
            raise UnreadableBundle(
                f"{name} in {path} is not the file that the evidence is about (it was edited or damaged): fetch the bundle again"
            )
    device = evidence.get("device")
    if device not in BACKENDS:
        raise UnreadableBundle(f"the evidence in {path} names no device")
    held_out = _held_out(evidence, sha256_of(texts["optimized.py"]))
    environment = held_out.get("environment")
    return ReadBundle(
        job=str(evidence.get("job"))[:200],
        device=device,
        task=TaskSource(str(_at(evidence, "task", "name") or "task")[:200], texts["task.py"]),
        optimized=texts["optimized.py"],
        recorded=_recorded(held_out),
        environment=environment if isinstance(environment, dict) else {},
        labels=tuple(label for label in _list(held_out.get("labels")) if isinstance(label, str)),
    )


def _folder_texts(path: Path) -> dict[str, str]:
    found = {}
    for name, limit_bytes in _LIMITS_BYTES.items():
        file = path / name
        try:
            if not file.is_file() or file.stat().st_size > limit_bytes:
                raise UnreadableBundle(
                    f"{path} holds no {name} of a usual size: is it the unpacked bundle's folder?"
                )
            found[name] = _decoded(file.read_bytes(), name, path)
        except OSError as error:
            raise UnreadableBundle(f"cannot read {file}: {error}") from None
    return found


def _zip_texts(path: Path) -> dict[str, str]:
    found = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for name, limit_bytes in _LIMITS_BYTES.items():
                entries = [entry for entry in archive.infolist() if _is_at_top(entry.filename, name)]
                if len(entries) != 1:
                    raise UnreadableBundle(f"{path} holds no {name}: is it a bundle?")
                with archive.open(entries[0]) as file:
                    content = file.read(limit_bytes + 1)
                if len(content) > limit_bytes:
                    raise UnreadableBundle(f"{name} in {path} is larger than any bundle's")
                found[name] = _decoded(content, name, path)
    except OSError as error:
        raise UnreadableBundle(f"cannot read {path}: {error.strerror or error}") from None
    # Damaged archives raise many kinds of errors.
    except (zipfile.BadZipFile, zlib.error, RuntimeError, NotImplementedError, EOFError, ValueError) as error:
        raise UnreadableBundle(f"{path} is no archive, or a damaged one ({error})") from None
    return found


def _is_at_top(path: str, name: str) -> bool:
    folder, _, rest = path.partition("/")
    return path == name or (rest == name and bool(folder))


def _decoded(content: bytes, name: str, path: Path) -> str:
    try:
        return content.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        raise UnreadableBundle(f"{name} in {path} is not text: fetch the bundle again") from None


def _held_out(evidence: Mapping[str, Any], optimized_sha256: str) -> Mapping[str, Any]:
    for verdict in _list(evidence.get("verdicts")):
        if not isinstance(verdict, dict) or verdict.get("phase") != "held_out":
            continue
        if _at(verdict, "candidate", "sha256") == optimized_sha256:
            return verdict
    return {}


def _recorded(held_out: Mapping[str, Any]) -> tuple[Recorded, ...]:
    found: dict[str, Recorded] = {}
    for row in _list(held_out.get("shapes")):
        if not isinstance(row, dict) or not row.get("timed"):
            continue
        dims, interval = row.get("dims"), _list(row.get("ci95"))
        figures = [row.get("speedup"), *interval]
        if not isinstance(dims, dict) or not all(isinstance(value, _PLAIN) for value in dims.values()):
            continue
        if len(figures) == 3 and all(_is_positive(figure) for figure in figures):
            shape = Recorded(dims, *(float(figure) for figure in figures))
            if shape.low <= shape.speedup <= shape.high:
                found.setdefault(json.dumps(dims, sort_keys=True), shape)
    return tuple(found.values())


def _is_positive(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and value > 0


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _at(value: Any, *keys: str) -> Any:
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value
