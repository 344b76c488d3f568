"""Joules per call are what the counter says, window by window; a counter that is missing or stands still is said so in words."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from evaluator.devices import open_device
from evaluator.devices.cpu.energy import RaplCounter, open_counter
from evaluator.energy import Window, compare, energy_of, idle_w, summarized
from evaluator.errors import EvaluatorError

pytestmark = pytest.mark.alone


class Meter:
    """A counter into which work pays, brought up to date now and then as real ones are."""

    name = "a meter"

    def __init__(self, refresh_s: float = 0.02) -> None:
        self.refresh_s = refresh_s
        self.paid_mj = 0.0
        self._shown_mj = 0.0
        self._shown_s = time.perf_counter()

    def read_mj(self) -> float:
        if time.perf_counter() - self._shown_s >= self.refresh_s:
            self._shown_mj, self._shown_s = self.paid_mj, time.perf_counter()
        return self._shown_mj

    def calls(self, each_mj: float, count: int = 3) -> Callable[[], int]:
        def step() -> int:
            time.sleep(0.001)
            self.paid_mj += count * each_mj
            return count

        return step


def test_joules_per_call_are_exact_however_seldom_the_counter_moves() -> None:
    meter = Meter()
    found = energy_of(meter, meter.calls(5.0), 0.0, seconds=0.08, lead_s=0.02)
    assert found.joules == pytest.approx(0.005, rel=1e-9)
    assert found.joules_above_idle == pytest.approx(0.005, rel=1e-9)
    assert (found.windows, found.spread) == (1, 0.0)
    assert found.seconds >= 0.08


def test_the_ratio_of_two_sides_is_that_of_their_joules() -> None:
    meter = Meter()
    found = compare(meter, meter.calls(6.0), meter.calls(4.0), 0.0, quads=2, seconds=0.05, lead_s=0.02)
    # The first window of a side begins with what the other left in the counter before it moved.
    assert found.ratio == pytest.approx(1.5, rel=0.02)
    assert found.low <= found.ratio <= found.high
    assert (found.baseline.windows, found.candidate.windows, found.quads) == (4, 4, 2)


def test_idle_power_and_the_harness_are_taken_off_and_idle_counts_for_the_call_alone() -> None:
    # 2 s at 150 W of which 100 W flow anyway, in 1000 calls that take 0.5 ms each and wait as long for the harness.
    window = Window(2.0, 300_000.0, 1000)
    plain = summarized([window], 100.0, "")
    assert plain.joules == pytest.approx(0.3)
    assert plain.joules_above_idle == pytest.approx(0.1)
    corrected = summarized([window], 100.0, "", harness_joules=0.02, call_us=500.0)
    assert corrected.joules_above_idle == pytest.approx(0.08)
    assert corrected.joules == pytest.approx(0.08 + 100.0 * 0.0005)
    assert summarized([window], 200.0, "").joules_above_idle == 0.0


def test_idle_power_is_what_flows_while_nothing_is_asked() -> None:
    class Flowing(Meter):
        def read_mj(self) -> float:
            self.paid_mj = time.perf_counter() * 50_000
            return super().read_mj()

    assert idle_w(Flowing(), 0.2) == pytest.approx(50.0, rel=0.01)


def test_a_counter_that_stands_still_or_calls_that_never_end_are_no_figure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("evaluator.energy._STANDSTILL_S", 0.1)
    meter = Meter()
    with pytest.raises(EvaluatorError, match="has not moved"):
        energy_of(meter, meter.calls(0.0), 0.0, seconds=0.05, lead_s=0.0)
    with pytest.raises(EvaluatorError, match="no call ended"):
        energy_of(meter, lambda: meter.calls(1.0)() * 0, 0.0, seconds=0.05, lead_s=0.0)


def zone(folder: Path, name: str, energy_uj: str, range_uj: int = 1_000_000) -> Path:
    folder.mkdir()
    (folder / "name").write_text(name)
    (folder / "energy_uj").write_text(energy_uj)
    (folder / "max_energy_range_uj").write_text(str(range_uj))
    return folder


def test_rapl_adds_packages_up_and_goes_on_where_it_wraps(tmp_path: Path) -> None:
    zones = [zone(tmp_path / f"intel-rapl:{index}", f"package-{index}\n", "900000\n") for index in (0, 1)]
    zone(tmp_path / "intel-rapl:2", "psys\n", "5\n")
    counter = open_counter(tmp_path)
    assert isinstance(counter, RaplCounter)
    assert counter.read_mj() == 0.0
    (zones[0] / "energy_uj").write_text("950000\n")
    (zones[1] / "energy_uj").write_text("50000\n")  # wrapped
    assert counter.read_mj() == pytest.approx(50.0 + 150.0)


def test_what_cannot_be_read_is_said_in_a_sentence(tmp_path: Path) -> None:
    missing = open_counter(tmp_path)
    assert isinstance(missing, str) and "offers no energy counter" in missing
    zone(tmp_path / "intel-rapl:0", "package-0\n", "not a number\n")
    broken = open_counter(tmp_path)
    assert isinstance(broken, str) and "cannot be read" in broken


@pytest.mark.gpu
def test_a_gpu_that_rests_draws_some_power_and_less_than_its_limit() -> None:
    device = open_device("cuda")
    counter = device.energy_counter()
    assert not isinstance(counter, str)
    assert 5.0 < idle_w(counter, 1.0) < device.facts()["power_limit_w"]
