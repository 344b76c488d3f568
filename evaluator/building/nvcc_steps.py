"""Runs nvcc's two halves in parallel. A separate program that replaces nvcc and takes nvcc's arguments.

nvcc compiles the device's code, then the host's, one step after another, although the halves hardly depend on each
other. Here nvcc only lists what it would run (``--dryrun``), and each step starts when the files that it reads exist:

    gcc -E (host)    -> cudafe++                                      \\
    gcc -E (device)  -> cicc -> ptxas -> fatbinary (one branch a GPU)  -> gcc -c

The commands are nvcc's own, with one exception: cudafe++ invents a name for the unit's private symbols, and cicc reads
it. Both are given one, made from the source and the flags. If a dry run does not look as expected (another nvcc, an
untested flag), or a step fails without saying why, nvcc runs alone.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

_LINE = re.compile(r"#\$ (?:([A-Za-z_]\w*)=(.*)|(.*))")
#: What nvcc sets for its steps; other variables that it prints only shorten its own lines.
_VARIABLES = ("PATH", "LD_LIBRARY_PATH", "TOP", "NVVMIR_LIBRARY_DIR")
_COMPILERS = {"gcc", "g++", "cc", "c++"}
_SHELL = re.compile(r"[$`;|<>&\\'*?~!#()]")
_DEPENDENCY = re.compile(r"(?:\\[ #]|[^\s\\])+")
_TELLS_WHY = re.compile(rb"\berror\b|\bfatal\b", re.IGNORECASE)


class UnexpectedDryRun(ValueError):
    """nvcc would do something that this program does not know."""


@dataclass(frozen=True)
class Step:
    """One of nvcc's commands.

    Attributes:
        kind: ``preprocess``, ``cudafe++``, ``cicc``, ``ptxas``, ``fatbinary`` or ``compile``.
        words: the command.
        after: positions of the steps whose files it reads.
    """

    kind: str
    words: tuple[str, ...]
    after: tuple[int, ...]


@dataclass(frozen=True)
class Plan:
    """What one compilation runs.

    Attributes:
        steps: in nvcc's order; the last one writes the object.
        variables: environment of the steps.
        unit_file: where both halves read the unit's name.
    """

    steps: tuple[Step, ...]
    variables: dict[str, str]
    unit_file: str


def plan(dry_run: str, target: str) -> Plan:
    """The steps of a dry run, with the steps that each waits for.

    Args:
        dry_run: what ``nvcc --dryrun --keep`` printed.
        target: the object to make, as named on the command line.

    Raises:
        UnexpectedDryRun: anything is unexpected.
    """
    variables: dict[str, str] = {}
    commands = []
    for line in dry_run.splitlines():
        found = _LINE.fullmatch(line)
        if found is None:
            raise UnexpectedDryRun(f"a line of another kind: {line[:100]!r}")
        if found[1]:
            variables[found[1]] = found[2]
        else:
            commands.append(_words(found[3], variables))
    steps: list[Step] = []
    written: dict[str, int] = {}
    for words in commands:
        kind = _kind(words)
        output = _option(
            words,
            "--embedded-fatbin"
            if kind == "fatbinary"
            else "--gen_c_file_name"
            if kind == "cudafe++"
            else "-o",
        )
        if output in written:
            raise UnexpectedDryRun(f"{output} is written twice")
        last = len(steps) == len(commands) - 1
        read = (
            range(len(steps))
            if last
            else sorted({written[name] for name in _named(words) if name in written})
        )
        steps.append(Step(kind, words, tuple(read)))
        written[output] = len(steps) - 1
    kinds = [step.kind for step in steps]
    if kinds.count("cudafe++") != 1 or kinds.count("fatbinary") != 1 or kinds.count("compile") != 1:
        raise UnexpectedDryRun(f"other steps: {kinds}")
    if kinds[-1] != "compile" or _option(steps[-1].words, "-o") != target:
        raise UnexpectedDryRun(f"the last step does not write {target}")
    if kinds.count("preprocess") != kinds.count("cicc") + 1 or "cicc" not in kinds:
        raise UnexpectedDryRun(f"not one preprocessed text for each front end: {kinds}")
    if steps[-1].words[-3] != _option(steps[kinds.index("cudafe++")].words, "--gen_c_file_name"):
        raise UnexpectedDryRun("what cudafe++ writes is not what is compiled")
    _check_order(steps)
    unit_files = {
        _option(step.words, "--module_id_file_name") for step in steps if step.kind in ("cudafe++", "cicc")
    }
    if len(unit_files) != 1:
        raise UnexpectedDryRun("the halves do not share a name for the unit")
    named = tuple(_with_given_name(step) if step.kind == "cudafe++" else step for step in steps)
    return Plan(named, {name: variables[name] for name in _VARIABLES if name in variables}, unit_files.pop())


def _words(command: str, variables: dict[str, str]) -> tuple[str, ...]:
    command = command.replace('"$CICC_PATH/cicc"', f'"{variables.get("CICC_PATH", "")}/cicc"', 1)
    if _SHELL.search(command):
        raise UnexpectedDryRun(f"more than words: {command[:100]!r}")
    try:
        words = tuple(shlex.split(command))
    except ValueError as error:
        raise UnexpectedDryRun(str(error)) from None
    if not words:
        raise UnexpectedDryRun("an empty command")
    return words


def _kind(words: tuple[str, ...]) -> str:
    program = os.path.basename(words[0])
    if program in _COMPILERS and ("-E" in words) != ("-c" in words):
        return "preprocess" if "-E" in words else "compile"
    if program in ("cudafe++", "cicc", "ptxas", "fatbinary"):
        return program
    raise UnexpectedDryRun(f"a step of another kind: {' '.join(words)[:100]!r}")


def _option(words: tuple[str, ...], option: str) -> str:
    """The value of an option that occurs once."""
    values = [after for word, after in itertools.pairwise(words) if word == option]
    values += [word.partition("=")[2] for word in words if word.startswith(f"{option}=")]
    if len(values) != 1:
        raise UnexpectedDryRun(f"{words[0]} has {len(values)} times {option}")
    return values[0]


def _named(words: tuple[str, ...]) -> set[str]:
    """Everything in a command that may be a file, as in ``x.ptx`` and ``--image3=kind=elf,sm=90,file=x.cubin``."""
    return {*words, *(part.rpartition("=")[2] for word in words for part in word.split(","))}


def _check_order(steps: list[Step]) -> None:
    """Checks that each step waits for what it must: a missed dependency would read a file that does not exist yet.

    Raises:
        UnexpectedDryRun: it does not.
    """
    allowed = {"preprocess": set(), "cudafe++": {"preprocess"}, "cicc": {"preprocess"}, "ptxas": {"cicc"}}
    for step in steps[:-1]:
        before = [steps[position].kind for position in step.after]
        if step.kind == "fatbinary":
            right = bool(before) and set(before) <= {"cicc", "ptxas"}
        else:
            right = len(before) == len(allowed[step.kind]) and set(before) == allowed[step.kind]
        if not right:
            raise UnexpectedDryRun(f"{step.kind} waits for {before}")
    read = {position for step in steps[:-1] for position in step.after}
    unread = [step.kind for position, step in enumerate(steps[:-1]) if position not in read]
    if sorted(unread) != ["cudafe++", "fatbinary"]:
        raise UnexpectedDryRun(f"nothing but the last step reads what these write: {unread}")


def _with_given_name(step: Step) -> Step:
    if step.words.count("--gen_module_id_file") != 1:
        raise UnexpectedDryRun("cudafe++ does not make up the unit's name")
    return Step(step.kind, tuple(word for word in step.words if word != "--gen_module_id_file"), step.after)


def unit_name(source: Path, arguments: list[str]) -> str:
    """A name in nvcc's form for a unit's private symbols; it depends on the source and the flags."""
    name = re.sub(r"\W", "_", source.name, flags=re.ASCII)
    digest = hashlib.sha256("\0".join(arguments).encode("utf-8", "surrogateescape")).hexdigest()
    return f"_{digest[:8]}_{len(name)}_{name}_{hashlib.sha256(source.read_bytes()).hexdigest()[:8]}"


def run(steps: tuple[Step, ...], variables: dict[str, str], folder: Path) -> tuple[int, int, bytes]:
    """Runs each step as soon as those that it waits for have succeeded.

    Args:
        steps: a plan's.
        variables: additions to the environment.
        folder: for what the steps print.

    Returns:
        Position and exit status (negative: a signal) of the first step in nvcc's order that failed, or of the last
        one; and what the steps up to it printed.
    """
    environment = {**os.environ, **variables}
    running: dict[int, tuple[int, subprocess.Popen[bytes]]] = {}
    status: dict[int, int] = {}
    while True:
        failed = min((position for position, code in status.items() if code), default=None)
        for position, step in enumerate(steps):
            started = position in status or position in (at for at, _ in running.values())
            if failed is None and not started and all(status.get(before) == 0 for before in step.after):
                with (folder / f"{position}.txt").open("wb") as printed:
                    process = subprocess.Popen(
                        step.words,
                        env=environment,
                        stdin=subprocess.DEVNULL,
                        stdout=printed,
                        stderr=subprocess.STDOUT,
                    )
                running[process.pid] = (position, process)
        for position, process in running.values():
            if failed is not None and position > failed:
                process.kill()
        if not running:
            break
        pid, word = os.waitpid(-1, 0)
        if pid in running:
            position, process = running.pop(pid)
            process.returncode = os.waitstatus_to_exitcode(word)
            # Steps ended because an earlier one failed come after that one and are never inspected.
            status[position] = process.returncode
    decisive = len(steps) - 1 if failed is None else failed
    texts = (folder / f"{position}.txt" for position in range(decisive + 1))
    return decisive, status[decisive], b"".join(text.read_bytes() for text in texts if text.exists())


def _dependencies(folder: Path, steps: tuple[Step, ...]) -> list[str]:
    """Every file that either half read, from the preprocessor's own lists."""
    files: dict[str, None] = {}
    for position, step in enumerate(steps):
        if step.kind == "preprocess":
            text = (folder / f"{position}.d").read_text(encoding="utf-8", errors="surrogateescape")
            files.update(dict.fromkeys(_DEPENDENCY.findall(text.partition(":")[2])))
    return list(files)


def compile_unit(nvcc: str, arguments: list[str]) -> int | None:
    """Compiles one source as ``nvcc -MD -MF FILE ... -c SOURCE -o OBJECT`` would.

    Returns:
        The exit status; None if nvcc itself has to do it.
    """
    try:
        dependencies = arguments[arguments.index("-MF") + 1]
        source = Path(arguments[arguments.index("-c") + 1])
        target = arguments[arguments.index("-o") + 1]
    except (ValueError, IndexError):
        return None
    rest = list(arguments)
    del rest[rest.index("-MF") : rest.index("-MF") + 2]
    if "-MD" not in rest or source.suffix != ".cu":
        return None
    rest.remove("-MD")
    folder = Path(f"{target}.steps")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    command = [nvcc, "--dryrun", "--keep", "--keep-dir", str(folder), *rest]
    shown = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if shown.returncode:
        return None
    try:
        planned = plan(shown.stdout + shown.stderr, target)
    except UnexpectedDryRun:
        return None
    Path(planned.unit_file).write_text(unit_name(source, rest), encoding="ascii")
    listing = tuple(
        Step(step.kind, (*step.words, "-MD", "-MF", f"{folder}/{position}.d", "-MT", target), step.after)
        if step.kind == "preprocess"
        else step
        for position, step in enumerate(planned.steps)
    )
    decisive, status, printed = run(listing, planned.variables, folder)
    if status > 0 and not _TELLS_WHY.search(printed):
        return None
    if status < 0:
        printed += f"error: a signal ({-status}) ended {listing[decisive].words[0]}\n".encode()
    sys.stdout.buffer.write(printed)
    if status == 0:
        lines = " \\\n ".join(_dependencies(folder, listing))
        Path(dependencies).write_text(f"{target}: {lines}\n", encoding="utf-8", errors="surrogateescape")
    shutil.rmtree(folder)
    sys.stdout.flush()
    return 0 if status == 0 else 1


if __name__ == "__main__":
    try:
        result = compile_unit(sys.argv[1], sys.argv[2:])
    except OSError:  # disk full or program missing: nvcc reports it in its own way
        result = None
    if result is None:
        result = subprocess.run(sys.argv[1:], check=False).returncode
    sys.exit(result if result >= 0 else 1)
