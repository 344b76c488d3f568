"""Which calls of `load_inline` are compiled: the rules hold for a candidate's arguments and for a forged record alike."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import pytest

from evaluator.building.artefacts import ArtefactStore
from evaluator.building.extension_call import CallRefused, ExtensionCall, check_source, parse


def record(**changed: Any) -> dict[str, Any]:
    """What a role sends for a harmless call, with some fields changed."""
    fields: dict[str, Any] = json.loads(ExtensionCall("kernel", ("int f() { return 1; }",)).canonical)
    return {**fields, **changed}


@pytest.mark.parametrize(
    "flags",
    [
        ["-O3", "-march=native", "-fopenmp", "-DNDEBUG", "-std=c++20", "-ffast-math"],
        ["--use_fast_math", "-gencode=arch=compute_90a,code=sm_90a", "--expt-relaxed-constexpr", "-lineinfo"],
        ["-Xcompiler", "-fopenmp", "-Xptxas", "-O3", "--maxrregcount=64", "-arch=sm_90a"],
    ],
)
def test_usual_flags_are_allowed(flags: list[str]) -> None:
    assert parse(record(extra_cflags=flags)).extra_cflags == tuple(flags)
    assert parse(record(extra_cuda_cflags=flags)).extra_cuda_cflags == tuple(flags)


@pytest.mark.parametrize(
    "flag",
    [
        "-fplugin=/tmp/x.so", "-I/", "-include", "-include/etc/passwd", "-wrapper", "-B/tmp", "@/etc/passwd", "-o", "-x",
        "-fmodule-mapper=evil", "-fdump-tree-all", "-fauto-profile=x", "-Wl,-rpath,/tmp", "-Wa,-I/", "-ccbin=/tmp/x",
        "-O3 -fplugin=x", "-O3;id", "$(id)", "-DX=`id`", "-DX=$$HOME", "-specs=x", "-imacros", "-save-temps",
    ],
)  # fmt: skip
def test_flags_that_reach_for_more_are_refused(flag: str) -> None:
    for field in ("extra_cflags", "extra_cuda_cflags", "extra_ldflags"):
        with pytest.raises(CallRefused, match="flag"):
            parse(record(**{field: [flag]}))


@pytest.mark.parametrize(
    "changed",
    [
        {"name": "../../x"}, {"name": "a b"}, {"name": "x" * 101}, {"name": 3}, {"name": "a\nb"},
        {"cpp_sources": "int f();"}, {"cpp_sources": [1]}, {"cpp_sources": ["x" * 700_000]}, {"cuda_sources": [""] * 65},
        {"functions": {"f": "f"}}, {"functions": [["f"]]}, {"functions": [["f(); }", "x"]]}, {"with_cuda": 2},
        {"cpp_sources": ["\ud800"]}, {"functions": [["f", "\n"]]}, {"is_python_module": "yes"}, {"extra_cflags": [["-O3"]]}, {"extra_cflags": ["-O3"] * 65}, {"more": 1},
    ],
)  # fmt: skip
def test_records_that_are_no_calls_are_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(CallRefused):
        parse(record(**changed))


@pytest.mark.parametrize(
    "source",
    [
        '#include "/etc/passwd"', "#include </etc/passwd>", '#  include "../../secret"', '#inc\\\nlude "/etc/passwd"',
        '#/* */include "/etc/passwd"', '%:include "/etc/passwd"', "#define F </etc/passwd>\n#include F",
        '#import "/etc/passwd"', '#include_next "/etc/passwd"', '#embed "x"',
        'asm(".incbin \\"/etc/passwd\\"");', '__asm__(".include \\"/etc/passwd\\"");',
    ],
)  # fmt: skip
def test_sources_that_name_other_files_are_refused(source: str) -> None:
    with pytest.raises(CallRefused, match=r"include|embed|incbin"):
        check_source(f"int x;\n{source}\nint y;")


def test_ordinary_sources_pass() -> None:
    check_source(
        '#include <torch/extension.h>\n#include "ATen/core/Tensor.h"\n#  include <c10/cuda/CUDAStream.h> // "/x"\n'
        '// #include "/etc/passwd"\nasm volatile("mov.u32 %0, %%tid.x;" : "=r"(x));\nconfig.include(3);\n'
    )


def test_everything_that_decides_the_library_decides_its_key(tmp_path: Any) -> None:
    store = ArtefactStore(tmp_path)
    plain = ExtensionCall(
        "kernel", ("int f();",), cuda_sources=("__global__ void k();",), functions=(("f", "f"),)
    )
    others = {
        "name": "kernel2", "cpp_sources": ("int f();", ""), "cuda_sources": ("",), "functions": None,
        "extra_cflags": ("-O3",), "extra_cuda_cflags": ("-O3",), "extra_ldflags": ("-lm",), "with_cuda": True,
        "is_python_module": False, "with_pytorch_error_handling": False, "no_implicit_headers": True,
    }  # fmt: skip
    assert set(others) == set(asdict(plain))
    changed = [ExtensionCall(**{**asdict(plain), name: value}) for name, value in others.items()]
    keys = [store.key(call, "9.0") for call in (plain, *changed)] + [store.key(plain, "10.0")]
    assert len(set(keys)) == len(others) + 2


def test_a_library_is_installed_once_and_checked_when_it_is_taken(tmp_path: Any) -> None:
    store = ArtefactStore(tmp_path)
    store.put("key", b"first")
    store.put("key", b"second")
    assert store.get("key") == b"first"
    assert (tmp_path / "key" / "library.so").stat().st_mode & 0o777 == 0o444
    (tmp_path / "key" / "library.so").chmod(0o644)
    (tmp_path / "key" / "library.so").write_bytes(b"changed by the disk")
    assert store.get("key") is None
    store.put("key", b"third")
    assert store.get("key") == b"third"
    assert [entry.name for entry in tmp_path.iterdir()] == ["key"]
