"""Assigns entries to referees: one task's lines go to one referee while there are enough tasks, to keep it warm."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable

from evaluator.batch.manifest import Entry
from evaluator.devices import BACKENDS


class Schedule:
    """Entries not yet started, by task; safe for several threads.

    Args:
        entries: what is to be judged, in the manifest's order.
    """

    def __init__(self, entries: Iterable[Entry]) -> None:
        self._guard = threading.Lock()
        groups: dict[tuple[str, str], deque[Entry]] = {}
        for entry in entries:
            groups.setdefault((entry.device, entry.request.task.sha256), deque()).append(entry)
        self._waiting = list(groups.values())
        self._taken: dict[str, deque[Entry]] = {}

    def take(
        self, worker: str, device: str, at_home: Callable[[Entry], bool] = lambda entry: False
    ) -> Entry | None:
        """The next entry for a referee: of its own task, or a task that no referee has, or half of the longest
        queue.

        Of unassigned tasks, one comes first whose compiled baselines this referee has from an earlier run
        (``at_home``).
        """
        with self._guard:
            own = self._taken.get(worker)
            if not own:
                own = self._find(device, at_home)
                if own is None:
                    return None
                self._taken[worker] = own
            return own.popleft()

    def _find(self, device: str, at_home: Callable[[Entry], bool]) -> deque[Entry] | None:
        waiting = [group for group in self._waiting if group[0].device == device]
        if waiting:
            chosen = next((group for group in waiting if at_home(group[0])), waiting[0])
            self._waiting.remove(chosen)
            return chosen
        rivals = [group for group in self._taken.values() if group and group[0].device == device]
        longest = max(rivals, key=len, default=None)
        if longest is None or len(longest) < BACKENDS[device].worth_sharing:
            return None
        return deque(reversed([longest.pop() for _ in range(len(longest) // 2)]))

    def ahead(self, worker: str) -> list[Entry]:
        """The entries that a referee has taken of its task and not started."""
        with self._guard:
            return list(self._taken.get(worker, ()))

    def give_back(self, worker: str, entry: Entry) -> None:
        """Returns everything that a failed referee had taken, for others."""
        with self._guard:
            rest = self._taken.pop(worker, deque())
            rest.appendleft(entry)
            self._waiting.insert(0, rest)

    def put_last(self, entry: Entry) -> None:
        """Postpones an entry until nothing else is left."""
        with self._guard:
            self._waiting.append(deque([entry]))
