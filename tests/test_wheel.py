"""The wheel holds every tracked file of the packages: pages, prompts, migrations and kernels as well as modules."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from tests.test_repository import PACKAGES, shown, tracked_files


def test_wheel_holds_what_the_packages_need(tmp_path: Path) -> None:
    # from a copy, because setuptools leaves a build folder beside the sources
    copy = tmp_path / "source"
    for path in tracked_files():
        name = shown(path)
        if name.split("/")[0] in PACKAGES or name in {"pyproject.toml", "README.md", "LICENSE"}:
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy / name)
    # without isolation: the environment has setuptools, and a test needs no package index
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
        "--quiet",
    ]
    built = subprocess.run(
        [*command, "--wheel-dir", str(tmp_path), str(copy)], capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stdout + built.stderr

    (wheel,) = tmp_path.glob("kernelwright-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
        (entry_points,) = [name for name in archive.namelist() if name.endswith("entry_points.txt")]
        scripts = archive.read(entry_points).decode()
    expected = {shown(path) for path in tracked_files() if shown(path).split("/")[0] in PACKAGES}
    assert expected - held == set()
    assert held - expected == set()
    assert "kernelwright = services.cli:main" in scripts
