"""Fill `.venv` with this project and a build of torch that suits the machine. Standard library only.

Called by the Makefile, which keeps a stamp per set of extras, so that a second `make` does nothing. The order
matters: torch is settled first, because whatever is installed later would otherwise pull the default build,
which on Linux brings several gigabytes of CUDA libraries that a machine without a GPU never uses.

How the build of torch is chosen:

1. a torch of at least `OLDEST_TORCH` that `.venv` already has is kept;
2. with an NVIDIA GPU, uv's `--torch-backend=auto` reads the driver and picks the matching build;
3. without one, a CPU build that pip's configured index or folders offer (a version that ends in `+cpu`);
4. else uv's `--torch-backend=cpu`, which knows where torch's CPU builds are kept;
5. else pip's default build, after saying how large that is: what the index lists is asked, and nothing is fetched for it.
   (On the default index every release since `OLDEST_TORCH` comes to 2.7 GB or more, so the tested one is as small as any.)

All is installed by uv, which takes half of pip's time, from where pip is told to look; by pip where uv cannot, or pip is told more.

Whatever is fetched is fetched once: torch is installed with the constraints of what comes later, a download that broke off is not tried
with another build, and finished files stay in the cache of pip or uv for the next call.

`--torch` (or the variable `KERNELWRIGHT_TORCH`) overrules the version with a requirement such as `torch==2.11.0`, and
`--torch-backend` the build, for a machine that prepares an environment for another one, as an image build does.
"""

from __future__ import annotations

import argparse
import ast
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
CONSTRAINTS = REPOSITORY / "constraints.txt"
OLDEST_TORCH = (2, 11)
# The version that the tests run against. Newer ones are allowed by pyproject.toml but not chosen for you.
TESTED_TORCH = "2.13.0"
# Triton beside a CPU build of torch, whose compiler imports it where it finds one: the tests need it for its interpreter.
# A CUDA build brings its own.
TESTED_TRITON = "3.6.0"
SIGN_OF_LIFE_S = 15.0
#: Bytes from which on a download is warned of: a CPU build with all that it needs comes to 200 MB.
LARGE = 1_000_000_000
#: Settings of pip, and the variables that tell uv the same: it does not read pip's files.
_INDEX = "index-url"
_SOURCES = {
    _INDEX: "UV_DEFAULT_INDEX",
    "find-links": "UV_FIND_LINKS",
    "no-index": "UV_NO_INDEX",
    "constraint": "UV_CONSTRAINT",
    "cert": "SSL_CERT_FILE",
    "timeout": "UV_HTTP_TIMEOUT",
    "default-timeout": "UV_HTTP_TIMEOUT",
}
#: Settings of pip that change nothing of what is installed.
_OF_NO_WEIGHT = {
    "break-system-packages", "cache-dir", "config-file", "disable-pip-version-check", "no-cache-dir", "no-color", "no-input", "no-warn-script-location",
    "progress-bar", "quiet", "retries", "root-user-action", "verbose",
}  # fmt: skip
# What comes after torch is held to these, so that nothing of torch's own needs is fetched again in another version.
_LATER = ("--constraint", str(CONSTRAINTS))


class InstallError(Exception):
    """The installation cannot go on; the text says what happened and what to do."""


def say(text: str) -> None:
    """Print one line of progress at once, also when the output is a pipe."""
    print(f"[install] {text}", flush=True)


def version_of(text: str) -> tuple[int, ...]:
    """Read the leading numbers of a version such as `2.13.0+cpu` as a tuple that compares."""
    numbers: list[int] = []
    for part in text.split("+")[0].split("."):
        digits = "".join(character for character in part if character.isdigit())
        if not digits or digits != part:
            break
        numbers.append(int(digits))
    return tuple(numbers)


def megabytes(count: int) -> str:
    """A number of bytes for people, in steps of a megabyte."""
    return f"{count / 1e6:,.0f} MB"


def sources_of(listed: str) -> dict[str, str] | None:
    """Where pip is told to look, as variables of uv's; None where pip is told what they cannot say.

    Args:
        listed: what `pip config list` prints.
    """
    settings: dict[str, str] = {}
    lines = [line.partition("=") for line in listed.splitlines()]
    for section in ("global", "install", ":env:"):  # the later ones win
        for key, _, value in lines:
            begin, _, name = key.rpartition(".")
            if begin == section:
                settings[name] = str(ast.literal_eval(value))
    variables = {**_SOURCES, f"extra-{_INDEX}": "UV_INDEX"}
    if not settings.keys() <= variables.keys() | _OF_NO_WEIGHT:
        return None
    # pip takes the best of all places, and overlooks folders that do not exist.
    found = {"UV_INDEX_STRATEGY": "unsafe-best-match"}
    for name, value in settings.items():
        values = value.split()
        if name == "find-links":
            values = [os.path.expanduser(one) for one in values]
            values = [one for one in values if "://" in one or Path(one).exists()]
        if name in variables and values:
            found[variables[name]] = ("," if name == "find-links" else " ").join(values)
    return found


def has_nvidia_gpu() -> bool:
    """Say whether this machine has an NVIDIA GPU whose driver answers."""
    if sys.platform != "linux":
        return False
    program = shutil.which("nvidia-smi")
    if program is None:
        return any(Path("/proc/driver/nvidia/gpus").glob("*"))
    try:
        answer = subprocess.run([program, "-L"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return answer.returncode == 0 and "GPU" in answer.stdout


class Environment:
    """The virtual environment at `path`, and the log of what was done to it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.python = path / "bin" / "python"
        self.log = path / "install.log"
        self._begin = 0  # where the last program's output begins in it

    def create(self) -> None:
        """Make the environment with the Python that runs this script, unless it is there and works."""
        if self.python.exists() and self._runs():
            return
        if self.path.exists():
            say(f"{self.path.name} does not work (was the Python it was made with removed?): making it anew")
        say(f"making {self.path.name} with Python {sys.version.split()[0]}")
        made = subprocess.run(
            [sys.executable, "-m", "venv", "--clear", str(self.path)],
            capture_output=True,
            text=True,
            check=False,
        )
        if made.returncode != 0:
            raise InstallError(
                f"Python could not make a virtual environment:\n{made.stdout}{made.stderr}\n"
                "On Debian and Ubuntu: apt-get install python3-venv"
            )

    def _runs(self) -> bool:
        return (
            subprocess.run(
                [self.python, "-m", "pip", "--version"], capture_output=True, check=False
            ).returncode
            == 0
        )

    def try_run(
        self,
        arguments: Sequence[str],
        sizes: Mapping[str, int] | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> bool:
        """Run a program of the environment; all of its output goes to the log, a sign of life to the screen.

        Args:
            arguments: the command line.
            sizes: what it is going to download, in bytes by package, if that is known.
            variables: of its surroundings, besides this program's own.
        """
        # Of its own: pip's unfinished downloads are counted here, and gigabytes do not go to a small /tmp.
        unpacked = self.path / "download"
        unpacked.mkdir(exist_ok=True)
        with self.log.open("a", encoding="utf-8") as log:
            log.write(f"\n$ {' '.join(arguments)}\n")
            log.flush()
            self._begin = log.tell()
            process = subprocess.Popen(
                arguments,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**(variables or {}), **os.environ, "TMPDIR": str(unpacked)},
            )
            started = time.monotonic()
            try:
                while True:
                    try:
                        return process.wait(timeout=SIGN_OF_LIFE_S) == 0
                    except subprocess.TimeoutExpired:
                        say(f"  ... {time.monotonic() - started:.0f} s: {self._doing(sizes)}")
            except KeyboardInterrupt:
                process.terminate()
                process.wait()
                raise
            finally:
                shutil.rmtree(unpacked, ignore_errors=True)

    def _doing(self, sizes: Mapping[str, int] | None) -> str:
        """What pip or uv is busy with: how much of `sizes` is there, and the last line of the log that names a step not done."""
        lines = self.last_output()
        there = {line.removeprefix("Downloaded ") for line in lines if line.startswith("Downloaded ")}
        steps = [
            line
            for line in lines
            if line.startswith(("Building", "Collecting", "Downloading", "Installing"))
            and not there & set(line.split())
        ]
        step = steps[-1][:90] if steps else "starting"
        if not sizes:
            return step
        come = sum(file.stat().st_size for file in (self.path / "download").rglob("*.whl") if file.is_file())
        come += sum(sizes.get(name, 0) for name in there)
        return f"{megabytes(come)} of {megabytes(sum(sizes.values()))}: {step}"

    def last_output(self) -> list[str]:
        """The lines that the last program has written so far."""
        with self.log.open("rb") as log:
            log.seek(self._begin)
            return [line.strip() for line in log.read().decode("utf-8", "replace").splitlines()]

    def get_uv(self) -> None:
        """Install uv itself, unless it is there."""
        if not Path(self.uv).exists() and not self.try_run(self.pip_install(*_LATER, "uv")):
            say(f"uv could not be installed (why: {self.log}); pip does its work")

    def install(self, what: str, *arguments: str, sizes: Mapping[str, int] | None = None) -> None:
        """Install what must be there, by uv or by pip; `sizes` as in `try_run`.

        Raises:
            InstallError: it failed; the text holds the end of the output.
        """
        if self.sources is not None and self.by_uv(what, *arguments, sizes=sizes, variables=self.sources):
            return
        started = time.monotonic()
        say(f"{what}, by pip ...")
        if not self.try_run(self.pip_install(*arguments), sizes):
            tail = self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-25:]
            raise InstallError("\n".join([*tail, f"failed: {what}. The whole output is in {self.log}"]))
        say(f"{what}: done in {time.monotonic() - started:.0f} s")

    def by_uv(
        self,
        what: str,
        *arguments: str,
        sizes: Mapping[str, int] | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> bool:
        """Install by uv; returns False if it cannot. The rest is as `try_run` has it."""
        if not Path(self.uv).exists():
            return False
        started = time.monotonic()
        say(f"{what} ...")
        command = [self.uv, "pip", "install", "--python", str(self.python), "--compile-bytecode", *arguments]
        if self.try_run(command, sizes, variables):
            say(f"{what}: done in {time.monotonic() - started:.0f} s")
            return True
        say(f"uv could not install {what} (why: {self.log})")
        return False

    @cached_property
    def sources(self) -> dict[str, str] | None:
        """Where pip is told to look, see `sources_of`."""
        listed = subprocess.run(self.pip("config", "list"), capture_output=True, text=True, check=False)
        return sources_of(listed.stdout)

    def pip(self, *arguments: str) -> list[str]:
        """The command line of pip, with the arguments that every call shares."""
        return [str(self.python), "-m", "pip", "--disable-pip-version-check", "--no-input", *arguments]

    def pip_install(self, *arguments: str) -> list[str]:
        """The command line of `pip install`; without a progress bar, which a log would hold a line per step of."""
        return self.pip("install", "--progress-bar", "off", *arguments)

    def version_of_package(self, name: str) -> str | None:
        """The version of a package that the environment has, without importing it; None if it has none."""
        code = f"import importlib.metadata as m\ntry: print(m.version({name!r}))\nexcept m.PackageNotFoundError: pass"
        answer = subprocess.run([self.python, "-c", code], capture_output=True, text=True, check=False)
        return answer.stdout.strip() or None

    @property
    def uv(self) -> str:
        """The program uv of the environment, once it is there."""
        return str(self.path / "bin" / "uv")

    def download_of(self, requirement: str, *options: str) -> dict[str, int] | None:
        """What installing a requirement would download: bytes by package; None where uv finds none or no size is listed.

        By what the index says of its files. Nothing is downloaded for it, as `pip install --dry-run` would.
        """
        import tomllib  # an older Python gets as far as being told so

        lock = self.path / "pylock.torch.toml"
        command = [self.uv, "pip", "compile", "-", "--python", str(self.python), "--no-header", *options]
        command += ["--constraint", str(CONSTRAINTS), "--format", "pylock.toml", "--output-file", str(lock)]
        try:
            variables = {**(self.sources or {}), **os.environ}
            answer = subprocess.run(
                command, input=requirement, capture_output=True, text=True, check=False, env=variables
            )
            self._note(command, answer.stderr)
            if answer.returncode != 0:
                return None
            packages = tomllib.loads(lock.read_text(encoding="utf-8"))["packages"]
            return {one["name"]: int(one["wheels"][0]["size"]) for one in packages}
        except (OSError, KeyError, IndexError, ValueError):
            return None
        finally:
            lock.unlink(missing_ok=True)

    def _note(self, command: Sequence[str], said: str) -> None:
        with self.log.open("a", encoding="utf-8") as log:
            log.write(f"\n$ {' '.join(command)}\n{said}")

    def cpu_builds_at_hand(self) -> list[str]:
        """Versions of torch that pip is offered and that say of themselves that they are CPU builds, best first."""
        answer = subprocess.run(
            self.pip("index", "versions", "torch"),
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        listed = [
            version.strip()
            for line in answer.stdout.splitlines()
            if line.strip().startswith("Available versions:")
            for version in line.split(":", 1)[1].split(",")
        ]
        fitting = [v for v in listed if v.endswith("+cpu") and version_of(v) >= OLDEST_TORCH]
        return sorted(fitting, key=lambda v: (v.split("+")[0] == TESTED_TORCH, version_of(v)), reverse=True)


def install_torch(environment: Environment, wanted: str | None, backend: str | None) -> str:
    """Install a build of torch by the rules at the top of this file and return its version.

    Args:
        environment: where to.
        wanted: a requirement that overrules the tested version.
        backend: a backend of uv's, such as `cpu` or `cu130`, that overrules the look at the machine.
    """
    present = environment.version_of_package("torch")
    if present is not None and version_of(present) >= OLDEST_TORCH:
        say(f"torch {present} is already there: kept")
        return present

    requirement = wanted or f"torch=={TESTED_TORCH}"
    if backend is not None:
        if not _uv_torch(environment, requirement, backend):
            raise InstallError(
                f"uv could not install {requirement} with backend {backend}: see {environment.log}"
            )
    elif wanted:
        environment.install(f"{wanted}, as asked", *_LATER, wanted)
    elif not (_install_gpu_torch(environment) if has_nvidia_gpu() else _install_cpu_torch(environment)):
        sizes = environment.download_of(requirement)
        if sys.platform == "linux":
            _warn_of_size(sizes)
        environment.install(f"{requirement}, default build", *_LATER, requirement, sizes=sizes)

    installed = environment.version_of_package("torch")
    if installed is None or version_of(installed) < OLDEST_TORCH:
        oldest = ".".join(map(str, OLDEST_TORCH))
        raise InstallError(f"torch {installed} was installed, but at least {oldest} is needed")
    return installed


def _install_cpu_torch(environment: Environment) -> bool:
    if sys.platform != "linux":
        return False  # the default builds of other systems carry no CUDA
    at_hand = environment.cpu_builds_at_hand()
    if at_hand:
        requirement = f"torch=={at_hand[0]}"
        environment.install(f"{requirement} (CPU build, about 200 MB)", *_LATER, requirement)
        return True
    say("no NVIDIA GPU and no CPU build of torch among pip's own sources: asking uv for one")
    return _uv_torch(environment, f"torch=={TESTED_TORCH}", "cpu")


def _warn_of_size(sizes: Mapping[str, int] | None) -> None:
    """Say what the default build comes to, unless it is as small as a CPU build."""
    total = sum((sizes or {}).values())
    if sizes and total < LARGE:
        return
    if sizes:
        largest = sorted(sizes, key=lambda name: -sizes[name])[:4]
        listed = ", ".join(f"{name} {megabytes(sizes[name])}" for name in largest)
        size = f"{megabytes(total)} in {len(sizes)} packages ({listed}, ...)"
    else:
        size = "several gigabytes, most of it CUDA libraries"
    say("WARNING: no other build of torch can be reached from here. The default build follows. It downloads")
    say(f"WARNING: {size} and takes more than twice of that on the disk.")
    say("WARNING: Ctrl-C now if that is too much; a CPU wheel in a folder that pip is told of")
    say("WARNING: (PIP_FIND_LINKS=folder) is found by the next `make`.")


def _install_gpu_torch(environment: Environment) -> bool:
    say("an NVIDIA GPU is here: asking uv for the build of torch that its driver supports (several GB)")
    return _uv_torch(environment, f"torch=={TESTED_TORCH}", "auto")


def _uv_torch(environment: Environment, requirement: str, backend: str) -> bool:
    chosen = f"--torch-backend={backend}"
    sizes = environment.download_of(requirement, chosen)
    size = f" ({megabytes(sum(sizes.values()))} to download)" if sizes else ""
    what = f"{requirement}, backend {backend}{size}"
    if environment.by_uv(what, *_LATER, chosen, requirement, sizes=sizes):
        return True
    if sizes and any(line.startswith("Downloaded ") for line in environment.last_output()):
        raise InstallError(
            f"{what}: the download broke off (why: {environment.log}). Run the same command again: it goes on from what is there"
        )
    return False


def install_project(environment: Environment, extras: str, torch_version: str) -> None:
    """Install this project, editable, with `extras`, and hold the torch and the triton that are there."""
    held = environment.path / "held-torch.txt"
    triton_version = environment.version_of_package("triton") or TESTED_TRITON
    held.write_text(f"torch=={torch_version}\ntriton=={triton_version}\n", encoding="utf-8")
    target = f"{REPOSITORY}[{extras}]" if extras else str(REPOSITORY)
    constraints = ["--constraint", str(CONSTRAINTS), "--constraint", str(held)]
    environment.install(f"kernelwright with {extras or 'its core'}", *constraints, "--editable", target)


def warn_of_missing_tools() -> None:
    """Name what cannot come from a package index and without which parts of the project stay idle."""
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    if shutil.which("g++") is None:
        say("NOTE: no C++ compiler (g++). Kernels for the CPU cannot be built. Debian: apt-get install g++")
    if not header.exists():
        say(
            "NOTE: Python.h is missing. torch.compile cannot build CPU kernels. Debian: apt-get install python3-dev"
        )


def main() -> int:
    """Parse the arguments and carry the installation out; return the exit status."""
    parser = argparse.ArgumentParser(description="Install kernelwright into a virtual environment.")
    parser.add_argument("--venv", type=Path, default=REPOSITORY / ".venv", help="the environment to fill")
    parser.add_argument(
        "--extras", default="", help="comma separated: service, agent, client, mcp, rl, dev, cuda"
    )
    parser.add_argument("--torch", default=os.environ.get("KERNELWRIGHT_TORCH"), help="e.g. torch==2.11.0")
    parser.add_argument("--torch-backend", help="a backend of uv's (cpu, cu130): no look at this machine")
    parser.add_argument("--only-torch", action="store_true", help="leave the project itself for a later call")
    arguments = parser.parse_args()
    if sys.version_info < (3, 11):  # noqa: UP036 - any Python may be made to run this file
        print(f"Python 3.11 or newer is needed; this is {sys.version.split()[0]}", file=sys.stderr)
        return 1
    environment = Environment(arguments.venv.absolute())
    started = time.monotonic()
    try:
        environment.create()
        environment.get_uv()
        torch_version = install_torch(environment, arguments.torch, arguments.torch_backend)
        if not arguments.only_torch:
            install_project(environment, arguments.extras, torch_version)
    except InstallError as error:
        print(f"[install] {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("[install] stopped; the next make goes on from here", file=sys.stderr)
        return 130
    warn_of_missing_tools()
    say(f"ready in {time.monotonic() - started:.0f} s: {environment.path.name}, torch {torch_version}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
