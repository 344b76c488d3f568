"""action.yml: its schema, that what it runs exists, and that its gate opens and shuts as it says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

REPOSITORY = Path(__file__).resolve().parent.parent
TEXT = (REPOSITORY / "action.yml").read_text(encoding="utf-8")
ACTION: dict[str, Any] = yaml.safe_load(TEXT)
INSTALL, VERIFY = ACTION["runs"]["steps"]


def fits_schema(path: Path) -> bool:
    """Whether a file fits the schema of actions that check-jsonschema carries; no network is needed."""
    command = [
        sys.executable,
        "-m",
        "check_jsonschema",
        "--builtin-schema",
        "vendor.github-actions",
        str(path),
    ]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def test_file_fits_the_schema_of_actions() -> None:
    assert fits_schema(REPOSITORY / "action.yml")


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("using: composite", "using: composit"),
        ("      shell: bash\n", ""),
        ("description: Measure", "descripton: Measure"),
    ],
)
def test_schema_check_sees_a_fault(tmp_path: Path, right: str, wrong: str) -> None:
    path = tmp_path / "action.yml"
    assert right in TEXT
    path.write_text(TEXT.replace(right, wrong), encoding="utf-8")
    assert not fits_schema(path)


def test_inputs_reach_no_script_as_text() -> None:
    for step in (INSTALL, VERIFY):
        assert "${{" not in step["run"]
    used = set(re.findall(r"inputs\.([\w-]+)", TEXT))
    assert used == set(ACTION["inputs"])
    for step in (INSTALL, VERIFY):
        assert set(step["env"]) <= set(re.findall(r"\$\{?(\w+)", step["run"])), "an input that nothing reads"


def options_of(run: str) -> set[str]:
    return set(re.findall(r"(?<![\w-])--[a-z][\w-]*", run))


def test_what_it_runs_exists_with_these_options() -> None:
    script = re.search(r"GITHUB_ACTION_PATH/(\S+)\"", INSTALL["run"])
    assert script is not None
    environment = {**os.environ, "COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}
    for command, run in (
        ([script[1], "--help"], INSTALL["run"]),
        (["-m", "services.cli", "verify", "--help"], VERIFY["run"]),
    ):
        helped = subprocess.run(
            [sys.executable, *command],
            cwd=REPOSITORY,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        assert options_of(run)
        assert options_of(run) <= options_of(helped.stdout)


def gate(tmp_path: Path, program: str, **inputs: str) -> tuple[int, dict[str, str]]:
    """Run the second step as a runner would, with `program` in the place of the command: exit status and outputs."""
    installed = tmp_path / "kernelwright" / "bin" / "kernelwright"
    installed.parent.mkdir(parents=True, exist_ok=True)
    installed.write_text(program)
    installed.chmod(0o755)
    output = tmp_path / "output"
    output.write_text("")
    given = {name: str(field.get("default", "")) for name, field in ACTION["inputs"].items()} | inputs
    environment = {
        name: given[re.sub(r"\$\{\{ inputs\.([\w-]+) \}\}", r"\1", value)]
        for name, value in VERIFY["env"].items()
    }
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", VERIFY["run"]],
        env={
            **os.environ, **environment, "RUNNER_TEMP": str(tmp_path), "GITHUB_OUTPUT": str(output),
            "GITHUB_STEP_SUMMARY": str(tmp_path / "summary"),
        },
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    return done.returncode, dict(line.split("=", 1) for line in output.read_text().splitlines())


@pytest.mark.parametrize(
    ("status", "unmeasured", "ends", "result"),
    [
        (0, "fail", 0, "holds"),
        (1, "fail", 1, "regressed"),
        (1, "pass", 1, "regressed"),
        (2, "fail", 2, "unmeasured"),
        (2, "pass", 0, "unmeasured"),
        (137, "fail", 137, "unmeasured"),
    ],
)
def test_the_gate_goes_by_the_exit_status(
    tmp_path: Path, status: int, unmeasured: str, ends: int, result: str
) -> None:
    program = f"""#!/bin/sh\nprintf '%s\\n' "$@" >words\necho '{{"result": "holds"}}'\nexit {status}\n"""
    bundle = "--json; touch escaped $(touch escaped)"
    ended, outputs = gate(tmp_path, program, bundle=bundle, unmeasured=unmeasured)
    assert (ended, outputs["result"]) == (ends, result)
    assert Path(outputs["report"]).read_text() == '{"result": "holds"}\n'
    assert (tmp_path / "words").read_text().splitlines()[-2:] == ["--", bundle]
    assert not (tmp_path / "escaped").exists()


def test_the_real_command_refuses_what_is_no_bundle(tmp_path: Path) -> None:
    (tmp_path / "bundle.zip").write_text("no zip")
    program = f'#!/bin/sh\nexport PYTHONPATH="{REPOSITORY}:$PYTHONPATH"\nexec {sys.executable} -m services.cli "$@"\n'
    assert gate(tmp_path, program, bundle="bundle.zip") == (
        2,
        {"result": "unmeasured", "report": str(tmp_path / "kernelwright-verify.json")},
    )


def test_docs_show_it_with_inputs_that_it_has() -> None:
    page = (REPOSITORY / "docs/bundles.md").read_text(encoding="utf-8")
    shown = [
        step
        for block in re.findall(r"```yaml\n(.*?)```", page, flags=re.DOTALL)
        for job in yaml.safe_load(block)["jobs"].values()
        for step in job["steps"]
        if "kernelwright" in step.get("uses", "")
    ]
    assert shown
    required = {name for name, field in ACTION["inputs"].items() if field.get("required")}
    for step in shown:
        assert required <= set(step["with"]) <= set(ACTION["inputs"])
