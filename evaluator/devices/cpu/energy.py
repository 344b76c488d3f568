"""Intel's RAPL counts microjoules of a CPU's packages and wraps.

Where it exists only root may read it, and a virtual machine rarely has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

_POWERCAP = Path("/sys/class/powercap")


class RaplCounter:
    """All packages of the CPU, all their users together; memory is not counted.

    Args:
        zones: folders of the packages.

    Raises:
        OSError: they cannot be read.
    """

    name = "RAPL energy of the CPU's packages"
    refresh_s = 0.001

    def __init__(self, zones: Sequence[Path]) -> None:
        self._zones = tuple(zones)
        self._ranges_uj = [int((zone / "max_energy_range_uj").read_text()) for zone in self._zones]
        self._last_uj = [self._read_uj(zone) for zone in self._zones]
        self._total_uj = 0

    @staticmethod
    def _read_uj(zone: Path) -> int:
        return int((zone / "energy_uj").read_text())

    def read_mj(self) -> float:
        """Millijoules since this counter was opened; ask at least once a minute, since the CPU's own counter wraps."""
        for index, zone in enumerate(self._zones):
            now_uj = self._read_uj(zone)
            gone_uj = now_uj - self._last_uj[index]
            self._total_uj += gone_uj if gone_uj >= 0 else gone_uj + self._ranges_uj[index]
            self._last_uj[index] = now_uj
        return self._total_uj / 1000


def open_counter(powercap: Path = _POWERCAP) -> RaplCounter | str:
    """The counter, or in one sentence why there is none.

    Args:
        powercap: where Linux keeps RAPL.
    """
    zones = sorted(zone for zone in powercap.glob("intel-rapl:*") if _is_package(zone))
    if not zones:
        return "This CPU offers no energy counter (no RAPL package in /sys/class/powercap), so that joules were not measured."
    try:
        return RaplCounter(zones)
    except PermissionError:
        return "Only root may read this CPU's energy counter (RAPL), so that joules were not measured."
    except (OSError, ValueError) as error:
        return f"This CPU's energy counter (RAPL) cannot be read ({error}), so that joules were not measured."


def _is_package(zone: Path) -> bool:
    try:
        return (zone / "name").read_text().startswith("package")
    except OSError:
        return False
