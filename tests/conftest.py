"""Shared settings of the test suite: what a marker needs, and the servers that tests start themselves.

On a newcomer's machine a test whose program is missing (a browser, Redis, PostgreSQL, a GPU) is skipped with a line
that says what to install. `KERNELWRIGHT_REQUIRE` (a comma separated list of `browser`, `redis`, `postgres`, `gpu`, or
`all`) names what must be there: then the missing program, or a test that skips itself, is a failure. CI sets it.

Tests that time something must have the machine to themselves (marker `alone`); all others share it. `make test` runs the two
parts one after the other, `--part` is how it chooses. Without `--part` every test runs.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from evaluator.allocator import keep_freed_memory
from tests import servers

if TYPE_CHECKING:
    from evaluator.client import Referee
    from evaluator.referee.judging.core import RefereeCore
    from tests.evaluator.few_baselines import QuickReferee
    from tests.scheduling import ByKind

# A test has no time limit, and neither has drawing its examples: a shared machine stands still for a second now and then.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")
# Of the many tasks that are described here few are timed, and the tests have the cores.
os.environ["KERNELWRIGHT_COMPILE_AHEAD"] = "0"

ABSENCE: dict[str, tuple[Callable[[], bool], str]] = {
    "browser": (lambda: servers.chromium() is None, "no chromium on PATH (Debian: apt-get install chromium)"),
    "redis": (
        lambda: servers.redis_server() is None,
        "no redis-server on PATH (Debian: apt-get install redis-server)",
    ),
    "postgres": (
        lambda: servers.postgres_programs() is None,
        "no initdb found (Debian: apt-get install postgresql)",
    ),
    "gpu": (lambda: not servers.has_nvidia_gpu(), "no NVIDIA GPU"),
}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--part`."""
    parser.addoption(
        "--part",
        choices=("together", "alone"),
        help="only tests that may share the machine with others, or only those that must not (marker alone)",
    )


def is_alone(item: pytest.Item) -> bool:
    """Whether a test needs the machine to itself, since what it measures, or the time that it waits, would else be another."""
    return item.get_closest_marker("alone") is not None


#: Occurs in each file with tests that need the machine to themselves.
_SAYS_ALONE = "mark.alone"


def says_alone(path: Path) -> bool:
    """Whether some tests of a file may need the machine to themselves."""
    return _SAYS_ALONE in path.read_text(encoding="utf-8")


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Of several processes that collect all tests each imports a share of them first, which pytest compiles: the others find that.

    In a new checkout compiling takes each of them 7 of 25 seconds.
    """
    worker = getattr(session.config, "workerinput", None)
    if worker is None or session.config.args != session.config.getini("testpaths"):
        return
    root, number = session.config.rootpath, int(worker["workerid"].removeprefix("gw"))
    for file in sorted((root / "tests").rglob("test_*.py"))[number :: worker["workercount"]]:
        with suppress(Exception, pytest.skip.Exception):  # collecting it tells why
            import_module(".".join(file.relative_to(root).with_suffix("").parts))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """For the part `alone` import its own files only: all of them take 20 seconds."""
    if config.getoption("--part") != "alone" or not collection_path.name.startswith("test_"):
        return None
    return None if collection_path.suffix != ".py" or says_alone(collection_path) else True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the other part.

    Raises:
        pytest.UsageError: a test that no part would run, since its file does not say that it is alone.
    """
    unsaid = sorted({str(item.path) for item in items if is_alone(item) and not says_alone(item.path)})
    if unsaid:
        raise pytest.UsageError(f"tests are marked alone in files without {_SAYS_ALONE!r}: {unsaid}")
    part = config.getoption("--part")
    if part is None:
        return
    left_out = [item for item in items if is_alone(item) != (part == "alone")]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if is_alone(item) == (part == "alone")]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByKind | None:
    """For `--dist loadfile`."""
    if config.getoption("dist") != "loadfile":
        return None
    from tests.scheduling import ByKind

    return ByKind(config, log)


def required_resources() -> frozenset[str]:
    """The resources whose absence is a failure, from `KERNELWRIGHT_REQUIRE`.

    Raises:
        pytest.UsageError: a name that no resource has, so that a typing error cannot switch the guard off.
    """
    words = {word.strip() for word in os.environ.get("KERNELWRIGHT_REQUIRE", "").split(",") if word.strip()}
    if "all" in words:
        return frozenset(ABSENCE)
    unknown = sorted(words - set(ABSENCE))
    if unknown:
        raise pytest.UsageError(f"KERNELWRIGHT_REQUIRE names {unknown}; known are {sorted(ABSENCE)} and all")
    return frozenset(words)


def needed_resources(item: pytest.Item) -> list[str]:
    """What the markers of a test ask for: `services` takes names, `@pytest.mark.services("redis")`."""
    needs = [name for name in ("browser", "gpu") if item.get_closest_marker(name) is not None]
    for marker in item.iter_markers("services"):
        needs.extend(marker.args or ("redis", "postgres"))
    unknown = sorted(set(needs) - set(ABSENCE))
    if unknown:
        raise pytest.UsageError(f"{item.nodeid}: unknown resources {unknown}")
    return needs


def absence_of(resource: str) -> str | None:
    """Why a resource cannot be used here, or None."""
    is_absent, reason = ABSENCE[resource]
    return reason if is_absent() else None


def pytest_configure(config: pytest.Config) -> None:
    """Refuse a misspelt requirement before the first test."""
    required_resources()
    # Collections over the half million objects of torch and of the tests took 15 % of a test process's time.
    gc.set_threshold(50_000, 20, 50)
    keep_freed_memory(1 << 30)  # spares tests of large tensors the page faults


def pytest_collection_finish() -> None:
    """Exempt all that was imported so far from garbage collection."""
    gc.freeze()


def wait_for_programs() -> None:
    """Until CI, which begins with tests before it has installed their programs, has them (`.ci/run`)."""
    being_installed = os.environ.get("KERNELWRIGHT_INSTALLING")
    while being_installed and Path(being_installed).exists():
        time.sleep(0.1)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip, or in CI fail, a test whose program is missing."""
    needed = needed_resources(item)
    if needed:
        wait_for_programs()
    for resource in needed:
        reason = absence_of(resource)
        if reason is None:
            continue
        if resource in required_resources():
            pytest.fail(f"KERNELWRIGHT_REQUIRE asks for {resource}: {reason}", pytrace=False)
        pytest.skip(reason)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn a skip into a failure where what the test needs was required, whoever skipped it."""
    report = yield
    required = sorted(set(needed_resources(item)) & required_resources())
    if report.skipped and required and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = (
            f"skipped, although KERNELWRIGHT_REQUIRE asks for {', '.join(required)}: {report.longrepr}"
        )
    return report


@pytest.fixture(scope="session")
def referee(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Referee]:
    """One referee of the CPU for all tests of this process: surviving every candidate is part of the test."""
    from evaluator.client import Referee

    with Referee("cpu", work_dir=tmp_path_factory.mktemp("referee")) as running:
        yield running


@pytest.fixture(scope="session")
def core_of_all(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RefereeCore]:
    """A referee of the CPU in this process, with a work folder of its own."""
    from evaluator.referee.judging.core import RefereeCore

    core = RefereeCore("cpu", tmp_path_factory.mktemp("core"), "landlock")
    try:
        yield core
    finally:
        core.close()


@pytest.fixture(scope="module")
def core(core_of_all: RefereeCore) -> Iterator[RefereeCore]:
    """That one for a file of tests: no task is open when the file begins, and what it replaces comes back when it ends."""
    from evaluator.referee.measuring import calibration
    from evaluator.referee.measuring.measure import Effort

    core, fleet = core_of_all, core_of_all.fleet
    before = dict(vars(core)), dict(vars(fleet))
    with pytest.MonkeyPatch.context() as patch:
        # Each task is timed against itself before anything else is: long enough to see a machine that is busy.
        patch.setattr(calibration, "_EFFORT", Effort((6, 12), 0.03, 0.6))
        yield core
    for session in core._sessions.values():
        session.close()
    core._sessions.clear()
    for changed, attributes in zip((core, fleet), before, strict=True):
        vars(changed).update(attributes)
        for name in vars(changed).keys() - attributes.keys():
            delattr(changed, name)


@pytest.fixture(scope="module")
def quick_referee(core: RefereeCore) -> QuickReferee:
    """That one with a single compiled baseline, for what has to be timed but not against everything."""
    from tests.evaluator.few_baselines import QuickReferee, one_compiled

    one_compiled(core)
    return QuickReferee(core)


@pytest.fixture
def chromium_program() -> Path:
    """Path of the browser. The test carries the marker `browser`."""
    program = servers.chromium()
    assert program is not None, "the test lacks @pytest.mark.browser"
    return program


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a Redis of this test session's own. The test carries `@pytest.mark.services("redis")`."""
    with servers.running_redis(tmp_path_factory.mktemp("redis")) as url:
        yield url


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """SQLAlchemy URL of an empty PostgreSQL database of this session's own (marker `services("postgres")`)."""
    with servers.running_postgres() as url:
        yield url
