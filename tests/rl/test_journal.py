"""The file that only grows: killed writers, full disks, damage, second writers."""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rl.errors import JournalError
from rl.journal import Journal


def test_records_come_back_in_order_whatever_their_text_holds(tmp_path: Path) -> None:
    records = [{"text": "a\nb"}, {"text": "\ud800\x00\u2028"}, {"n": 3}]
    with Journal(tmp_path / "deep" / "j", "test") as journal:
        journal.append(records[:1])
        journal.append(records[1:])
        journal.append([])
    with Journal(tmp_path / "deep" / "j", "test") as journal:
        assert journal.records == records


@pytest.mark.parametrize("cut", [1, 5, 12, 20])
def test_a_torn_last_line_is_cut_off_and_writing_goes_on(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "j"
    with Journal(path, "test") as journal:
        journal.append([{"n": 1}])
        journal.append([{"n": 2}, {"n": 3}])
    path.write_bytes(path.read_bytes()[:-cut])
    with Journal(path, "test") as journal:
        assert journal.records == [{"n": 1}]  # both of the torn append are gone, none alone
        journal.append([{"n": 4}])
    with Journal(path, "test") as journal:
        assert journal.records == [{"n": 1}, {"n": 4}]


def test_damage_in_the_middle_is_told_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "j"
    with Journal(path, "test") as journal:
        for number in range(3):
            journal.append([{"n": number}])
    data = path.read_bytes()
    path.write_bytes(data.replace(b'"n":1', b'"n":7'))
    with pytest.raises(JournalError, match="damaged in line 3"):
        Journal(path, "test")
    path.write_bytes(data)
    with pytest.raises(JournalError, match="holds 'test', not 'other'"):
        Journal(path, "other")


def test_one_process_writes_and_others_follow(tmp_path: Path) -> None:
    path = tmp_path / "j"
    with Journal(path, "test") as journal:
        journal.append([{"n": 1}])
        with pytest.raises(JournalError, match="in use"):
            Journal(path, "test")
        with Journal(path, "test", write=False) as follower:
            assert follower.records == [{"n": 1}]
            journal.append([{"n": 2}])
            follower.follow()
            assert follower.records == [{"n": 1}, {"n": 2}]
            journal.rewind(1)
            journal.append([{"n": 3}])
            follower.follow()
            assert follower.records == [{"n": 1}, {"n": 3}]
            with pytest.raises(ValueError, match="no position 3"):
                journal.rewind(3)
            with pytest.raises(JournalError, match="followed here"):
                follower.append([{"n": 3}])
    with Journal(path, "test") as journal:
        assert journal.records == [{"n": 1}, {"n": 3}]
    with pytest.raises(JournalError, match="cannot be opened"):
        Journal(tmp_path / "none", "test", write=False)


def test_a_full_disk_loses_nothing_and_says_so(tmp_path: Path) -> None:
    """A limit on the file's size fails writes half-way, as a full disk does."""
    path = tmp_path / "j"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with Journal(path, "test") as journal:
        journal.append([{"n": 1}])
        size = path.stat().st_size
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100, before[1]))
            with pytest.raises(JournalError, match=r"cannot be extended: File too large.*resume"):
                journal.append([{"text": "x" * 1000}])
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
            signal.signal(signal.SIGXFSZ, ignored)
        assert path.stat().st_size == size
        assert journal.records == [{"n": 1}]
        journal.append([{"n": 2}])
    with Journal(path, "test") as journal:
        assert journal.records == [{"n": 1}, {"n": 2}]


def test_a_killed_writer_leaves_whole_records(tmp_path: Path) -> None:
    path = tmp_path / "j"
    program = (
        "import sys; from pathlib import Path; from rl.journal import Journal\n"
        "journal = Journal(Path(sys.argv[1]), 'test')\n"
        "for n in range(10**9): journal.append([{'n': n, 'text': 'x' * 5000}, {'n': n}])\n"
    )
    writer = subprocess.Popen([sys.executable, "-c", program, str(path)], cwd=Path(__file__).parents[2])
    deadline = time.monotonic() + 30
    while (not path.exists() or path.stat().st_size < 50_000) and time.monotonic() < deadline:
        time.sleep(0.01)
    writer.kill()
    writer.wait()
    with Journal(path, "test") as journal:
        numbers = [record["n"] for record in journal.records]
    assert len(numbers) >= 8
    assert numbers == [number // 2 for number in range(len(numbers))]
    assert len(numbers) % 2 == 0
