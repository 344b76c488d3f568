"""What holds for the repository as a whole: layout, names, sizes, addresses, versions, and the commands of the README."""

from __future__ import annotations

import ast
import importlib.metadata
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

REPOSITORY = Path(__file__).resolve().parent.parent
PACKAGES = ("agent", "evaluator", "kernelbench_tasks", "kernelwright", "rl", "services")
PYPROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))

MOST_BYTES = 1_000_000
NAMES_WITHOUT_MEANING = frozenset(
    {"base2", "common", "helper", "helpers", "manager", "misc", "util", "utils"}
)

# What `evaluator` and `kernelbench_tasks` may import besides Python: a bare GPU node has nothing else.
BARE_NODE = frozenset(
    {"torch", "triton", "numpy", "pynvml", "typer", "rich", "evaluator", "kernelbench_tasks"}
)

# The project decides which build of torch it gets (scripts/install.py), so these are not pinned.
NOT_PINNED = frozenset({"torch", "triton", "setuptools"})


@cache
def tracked_files() -> tuple[Path, ...]:
    """Every file that is committed or staged and still there."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    paths = (REPOSITORY / name for name in listed.stdout.split("\0") if name)
    return tuple(path for path in paths if path.is_file())


def tracked_texts() -> Iterator[tuple[Path, str]]:
    """Every tracked file that is text."""
    for path in tracked_files():
        try:
            yield path, path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue


def shown(path: Path) -> str:
    """A path as it is written in the repository."""
    return path.relative_to(REPOSITORY).as_posix()


def make(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run make as a person would, also when this test is itself run by make."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    return subprocess.run(
        ["make", *arguments], cwd=REPOSITORY, capture_output=True, text=True, check=False, env=clean
    )


def python_files(*packages: str) -> list[Path]:
    """The tracked Python files of some packages."""
    return [
        path for path in tracked_files() if path.suffix == ".py" and shown(path).split("/")[0] in packages
    ]


def constraints() -> dict[str, list[Requirement]]:
    """The pins of constraints.txt by name."""
    pins: dict[str, list[Requirement]] = {}
    for line in (REPOSITORY / "constraints.txt").read_text(encoding="utf-8").splitlines():
        if line.strip() and not line.lstrip().startswith("#"):
            pin = Requirement(line)
            pins.setdefault(canonicalize_name(pin.name), []).append(pin)
    return pins


@pytest.mark.parametrize("package", PACKAGES)
def test_package_says_what_it_is(package: str) -> None:
    tree = ast.parse((REPOSITORY / package / "__init__.py").read_text(encoding="utf-8"))
    assert ast.get_docstring(tree)


@pytest.mark.parametrize(
    "name",
    [
        ".ci/run",
        ".env.example",
        ".pre-commit-config.yaml",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "LICENSE",
        "Makefile",
        "README.md",
        "SECURITY.md",
        "constraints.txt",
        "docker-compose.yml",
        "docs/README.md",
        "pyproject.toml",
    ],
)
def test_file_is_where_people_look_for_it(name: str) -> None:
    assert (REPOSITORY / name).stat().st_size > 0


def test_names_carry_meaning() -> None:
    found = {
        shown(path)
        for path in tracked_files()
        for part in path.relative_to(REPOSITORY).with_suffix("").parts
        if part.lower() in NAMES_WITHOUT_MEANING
    }
    assert found == set()


def test_files_are_small() -> None:
    too_large = {shown(path) for path in tracked_files() if path.stat().st_size > MOST_BYTES}
    assert too_large == set()


def test_no_address_of_one_machine_or_registry() -> None:
    # written in pieces, or this file would find itself
    words = [
        "/" + "work/",
        "/" + "root/",
        r"/home/(?!kernelwright\b)\w+/",
        "pypi" + r"\.org",
        "pythonhosted" + r"\.org",
        "download.pytorch" + r"\.org",
        "npmjs" + r"\.org",
        "deb.debian" + r"\.org",
        r"extra-index" + "-url",
    ]
    pattern = re.compile("|".join(words))
    found = [
        f"{shown(path)}:{number}: {line.strip()[:120]}"
        for path, text in tracked_texts()
        for number, line in enumerate(text.splitlines(), 1)
        if pattern.search(line)
    ]
    assert found == []


def test_nothing_is_left_for_later() -> None:
    pattern = re.compile(r"\b(" + "TO" + "DO|FIX" + "ME|XX" + "X)\\b")
    found = [
        f"{shown(path)}:{number}"
        for path, text in tracked_texts()
        for number, line in enumerate(text.splitlines(), 1)
        if pattern.search(line)
    ]
    assert found == []


def test_referee_imports_only_what_a_bare_node_has() -> None:
    found: set[str] = set()
    for path in python_files("evaluator", "kernelbench_tasks"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module or ""]
            else:
                continue
            roots = {name.split(".")[0] for name in names}
            found |= {f"{shown(path)}: {root}" for root in roots - BARE_NODE - sys.stdlib_module_names}
    assert found == set()


# Files of the evaluator beside the back ends that may name CUDA.
NAMES_CUDA = {
    "evaluator/roles/compiled_files.py": "the folder in which CUDA's driver caches compiled code",
    "evaluator/roles/interpreted.py": "Triton's name of the target that its interpreter stands in for",
    "evaluator/roles/rehearsal.py": "Triton's name of the target for which it compiles ahead",
}


def _names_cuda(node: ast.AST) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str) and (node.value == "cuda" or node.value.startswith("cuda:"))
    if isinstance(node, ast.Attribute):
        return node.attr == "cuda" and isinstance(node.value, ast.Name) and node.value.id == "torch"
    if isinstance(node, ast.Import):
        return any(alias.name.startswith("torch.cuda") for alias in node.names)
    if isinstance(node, ast.ImportFrom):
        names = {f"{node.module}.{alias.name}" for alias in node.names}
        return any(name.startswith("torch.cuda") for name in names)
    return False


def test_only_a_back_end_names_its_device() -> None:
    found = {
        shown(path)
        for path in python_files("evaluator")
        if not shown(path).startswith("evaluator/devices/")
        and any(map(_names_cuda, ast.walk(ast.parse(path.read_text(encoding="utf-8")))))
    }
    assert found == set(NAMES_CUDA)


def test_core_dependencies_are_those_of_the_referee() -> None:
    core = {Requirement(line).name for line in PYPROJECT["project"]["dependencies"]}
    assert core == {"torch", "numpy", "nvidia-ml-py", "rich", "typer", "ninja", "setuptools"}


def test_every_direct_dependency_is_pinned_within_its_range() -> None:
    pins = constraints()
    project = PYPROJECT["project"]
    asked = [
        *project["dependencies"],
        *(line for extra in project["optional-dependencies"].values() for line in extra),
    ]
    for line in asked:
        wanted = Requirement(line)
        name = canonicalize_name(wanted.name)
        if name in NOT_PINNED:
            assert name not in pins
            continue
        assert name in pins, f"{name} has no pin: run make lock"
        for pin in pins[name]:
            (exact,) = pin.specifier
            assert exact.operator == "=="
            assert wanted.specifier.contains(exact.version, prereleases=True), f"{pin} is outside of {line}"


@pytest.mark.parametrize("python_full_version", ["3.11.7", "3.12.3", "3.13.0"])
def test_each_python_has_one_pin_of_a_package(python_full_version: str) -> None:
    here = {
        "python_full_version": python_full_version,
        "python_version": python_full_version.rsplit(".", 1)[0],
        "sys_platform": "linux",
        "platform_machine": "x86_64",
    }
    for name, pins in constraints().items():
        fitting = [pin for pin in pins if pin.marker is None or pin.marker.evaluate(here)]
        assert len(fitting) <= 1, f"{name}: {fitting}"


def test_installed_packages_are_the_pinned_ones() -> None:
    different = {}
    for name, pins in constraints().items():
        try:
            installed = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        fitting = [pin for pin in pins if pin.marker is None or pin.marker.evaluate()]
        if fitting and not all(pin.specifier.contains(installed, prereleases=True) for pin in fitting):
            different[name] = installed
    assert different == {}


def test_ci_runs_the_commands_of_the_readme() -> None:
    ci = (REPOSITORY / ".ci/run").read_text(encoding="utf-8")
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    assert "\nmake lint " in ci and '\nmake "${1:-test}" ' in ci
    assert "make test" in readme
    assert "make demo" in readme


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["demo"], "-m services.demo"),
        (["demo", "TASK=a folder/mine.py"], '-m services.demo --task "a folder/mine.py"'),
        (["serve", "PORT=9000"], 'serve --host "127.0.0.1" --port "9000"'),
        (["test", "PYTEST_ARGS=-k name"], "-m scripts.run_tests -k name"),
        (["lint"], "lint-imports"),
    ],
)
def test_make_runs(arguments: list[str], expected: str) -> None:
    dry = make("--dry-run", *arguments)
    assert dry.returncode == 0, dry.stderr
    assert expected in dry.stdout


def test_make_says_what_is_missing_without_a_python() -> None:
    refused = make("python-found", "PYTHON=")
    assert refused.returncode != 0
    assert "No Python 3.11 or newer" in refused.stderr


def test_links_between_pages_lead_somewhere() -> None:
    broken = []
    for path, text in tracked_texts():
        if path.suffix != ".md":
            continue
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
            if (
                "://" not in target
                and not target.startswith("mailto:")
                and not (path.parent / target).exists()
            ):
                broken.append(f"{shown(path)}: {target}")
    assert broken == []


def test_hooks_contact_no_host() -> None:
    config = (REPOSITORY / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    assert re.findall(r"- repo: (\S+)", config) == ["local"]
    assert set(re.findall(r"language: (\S+)", config)) == {"system"}


def test_nothing_tells_people_to_install_a_name_of_an_index() -> None:
    """No index has this project: what bears its name there, today or one day, is somebody else's."""
    told = re.compile(r"pip3? install (-\S+ )*['\"]?kernelwright\b(?!/)")
    found = [shown(path) for path, text in tracked_texts() if told.search(text) and path != Path(__file__)]
    assert not found
