"""Writes the bundle as a folder to browse and as a zip to download."""

from __future__ import annotations

import ast
import re
import shutil
import zipfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from agent.bundle.evidence import BundleContents, evidence_text, kernel_file
from agent.bundle.report import map_points, render_report
from agent.performance.rate_map import draw, rate_map
from evaluator.keeping import replacing

_HERE = Path(__file__).parent
_EARLIEST = (
    1980,
    1,
    1,
    0,
    0,
    0,
)  # the zip format's earliest date; the current date would change the bytes on every run
_DEVICE_SOURCE = re.compile(r"#\s*include\b|extern\s+\"C\"|__global__")


def write_bundle(contents: BundleContents, out_dir: Path) -> Path:
    """Write `<name>-kernelwright/` and `<name>-kernelwright.zip` into `out_dir`.

    The same contents give the same zip bytes. The zip is written atomically.

    Returns:
        The path of the zip.
    """
    name = f"{_file_name(contents.job_name)}-kernelwright"
    files = bundle_files(contents)
    out_dir.mkdir(parents=True, exist_ok=True)
    folder = out_dir / name
    shutil.rmtree(folder, ignore_errors=True)
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(text.encode("utf-8", "surrogatepass"))
    final = out_dir / f"{name}.zip"
    with (
        replacing(final, binary=True) as file,
        zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive,
    ):
        for path in sorted(files):
            entry = zipfile.ZipInfo(f"{name}/{path}", date_time=_EARLIEST)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, files[path].encode("utf-8", "surrogatepass"))
    return final


def bundle_files(contents: BundleContents) -> Mapping[str, str]:
    """Every file of the bundle: its relative path and its text."""
    files = {
        "optimized.py": contents.optimized.source,
        "task.py": contents.task.source,
        "evidence.json": evidence_text(contents),
        "report.html": render_report(contents),
        "reproduce.py": (_HERE / "templates" / "reproduce.py").read_text(),
        "LICENSE": _license(contents),
    }
    points = map_points(contents)
    if points is not None:
        files["performance_map.svg"] = draw(rate_map(points), as_file=True)
    for number, member in enumerate(contents.members, start=1):
        name = kernel_file(number, member)
        files[f"kernels/{name}"] = member.source
        for index, text in enumerate(_kernel_texts(member.source), start=1):
            suffix = "cu" if "__global__" in text else "cpp"
            files[f"kernels/{name.removesuffix('.py')}_{index}.{suffix}"] = text
    return files


def _kernel_texts(source: str) -> list[str]:
    """C++ and CUDA sources that a member holds as string constants."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return []
    return [
        node.value.strip("\n") + "\n"
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and "\n" in node.value
        and _DEVICE_SOURCE.search(node.value)
    ]


def _license(contents: BundleContents) -> str:
    origins = {member.origin for member in contents.members}
    parts = [
        "What this bundle consists of, and under which terms:\n",
        "task.py, and the part of optimized.py that repeats it, are your own module under your own terms.\n",
        "The dispatcher in optimized.py, reproduce.py and report.html come from Kernelwright (MIT, below).\n",
    ]
    if "human" in origins:
        parts.append("Members of origin 'human' come from Kernelwright's kernel library (MIT, below).\n")
    if "compiler" in origins:
        parts.append(
            "Members of origin 'compiler' call torch.compile or hold code that PyTorch's compiler generated; the\n"
            "generator's templates are PyTorch's (BSD-3-Clause, below).\n"
        )
    if origins & {"llm", "policy"}:
        parts.append(
            "Members of origin 'llm' or 'policy' were written by a language model; no license is claimed for them\n"
            "here, and the terms of the model's provider apply.\n"
        )
    if "external" in origins:
        parts.append("Members of origin 'external' were handed in by a user, under that user's terms.\n")
    notes = sorted({f"- {member.label}: {member.note}\n" for member in contents.members if member.note})
    parts.append("".join(notes))
    parts.append(f"\n{'=' * 80}\nKernelwright\n\n{_text('Kernelwright-MIT.txt')}")
    if "compiler" in origins:
        parts.append(f"\n{'=' * 80}\nPyTorch\n\n{_text('PyTorch-BSD-3-Clause.txt')}")
    return "\n".join(part for part in parts if part)


@cache
def _text(name: str) -> str:
    return (_HERE / "licenses" / name).read_text()


def _file_name(name: str) -> str:
    plain = re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-")
    return plain[:60] or "module"
