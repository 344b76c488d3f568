"""The test suite in two parts: first what can share the machine, by three processes, then what must have it to itself.

python -m scripts.run_tests [PYTEST ARGUMENTS]

Which part a test belongs to is told in tests/conftest.py (`--part`). Arguments go to both parts; one that selects tests of one
part alone leaves the other empty, which is no failure. `-n 0` runs the first part in one process too, as `--pdb` needs.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

#: Of pytest: nothing was selected.
NOTHING = 5
_FAILED = 1
# What both parts print at their end; later arguments of the same name win.
_ALWAYS = ["-m", "not slow", "--durations=25", "--durations-min=5"]
# Files stay whole, since their fixtures are expensive. Tests wait for processes and for times, so three keep two cores busy: 557 s on two
# cores, where four took 594 s, and two 618 s the day before.
PARTS = {
    "together": ["-n", "3", "--dist", "loadfile", "--part=together"],
    "alone": ["--part=alone"],
}


def exit_code(codes: Sequence[int]) -> int:
    """The first code of a part that failed; without one 0, or :data:`NOTHING` where no part had a test."""
    for code in codes:
        if code not in (0, NOTHING):
            return code
    return 0 if 0 in codes else NOTHING


def goes_on(code: int, arguments: Sequence[str]) -> bool:
    """Whether the next part runs too: after failed tests, unless the first failure was to be the last, but not after errors of use."""
    if code != _FAILED:
        return code in (0, NOTHING)
    return not any(
        argument in ("-x", "--exitfirst") or argument.startswith("--maxfail") for argument in arguments
    )


def machine() -> str:
    """Cores, processor, and whether compilers found prepared headers, on which the tests' time depends most."""
    from evaluator.folders import headers_folder

    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "?")
    prepared = [name for name in ("complete", "isa") if (headers_folder() / name).exists()]
    return (
        f"machine: {len(os.sched_getaffinity(0))} of {os.cpu_count()} cores, {model}; "
        f"prepared for compilers: {', '.join(prepared) or 'nothing'} in {headers_folder()}"
    )


def main(arguments: Sequence[str]) -> int:
    """Run both parts; the exit code for both."""
    codes: list[int] = []
    # Hundreds of processes import the same files. Without compiled files each of them would compile all.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    for part, how in PARTS.items():
        if part == "together":
            # Processes share the cores. By default OpenMP's threads spin while they wait, and take the other's core.
            environment["OMP_WAIT_POLICY"] = "passive"
        else:
            environment.pop("OMP_WAIT_POLICY", None)
        print(f"tests, {part}:", flush=True)
        command = [sys.executable, "-m", "pytest", *how, *_ALWAYS, *arguments]
        if part == "alone":
            command += ["-n", "0"]
        codes.append(subprocess.run(command, check=False, env=environment).returncode)
        if not goes_on(codes[-1], arguments):
            break
    print(machine(), flush=True)
    return exit_code(codes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
