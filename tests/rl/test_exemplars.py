"""The exemplar database: what is kept, what is drawn, and that both are the same after a kill and on every rank."""

from __future__ import annotations

import math
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from agent.strategy.exemplars import LONGEST_SHOWN_CHARACTERS, softmax
from rl.config import ExemplarPart
from rl.errors import JournalError
from rl.exemplars import ExemplarDatabase, Success

H200 = "NVIDIA H200"


def program(number: int) -> str:
    return f"from torch import nn\n\n\nclass ModelNew(nn.Module):\n    def forward(self, x):\n        return x + {number}\n"


def success(number: int, speedup: float, task: str = "t", machine: str = H200) -> Success:
    return Success(task, machine, program(number), speedup)


def test_two_exemplars_differ_in_bucket_and_the_faster_is_likelier(tmp_path: Path) -> None:
    speeds = {1: 0.8, 2: 1.0, 3: 1.02, 4: 1.6}
    with ExemplarDatabase(tmp_path / "e") as database:
        database.advance(success(number, speed) for number, speed in speeds.items())
        drawn = [database.draw(seed, "t", H200).shown for seed in range(2000)]
        one = ExemplarPart(count=1)
    for shown in drawn:
        slow, fast = (math.floor(math.log(item.speedup) / 0.15) for item in shown)
        assert slow < fast
    with ExemplarDatabase(tmp_path / "e", one) as database:
        found = Counter(round(database.draw(seed, "t", H200).shown[0].speedup, 2) for seed in range(2000))
    expected = softmax([0.8, 1.01, 1.6], 0.3)
    assert found[0.8] / 2000 == pytest.approx(expected[0], abs=0.03)
    assert (found[1.0] + found[1.02]) / 2000 == pytest.approx(expected[1], abs=0.03)
    assert found[1.6] / 2000 == pytest.approx(expected[2], abs=0.03)


def test_a_draw_is_a_function_of_seed_task_machine_and_snapshot(tmp_path: Path) -> None:
    """Also in another process with other hash seeds, and after the database has grown."""
    path = tmp_path / "e"
    with ExemplarDatabase(path) as database:
        for task in ("t", "u"):
            database.advance(success(number, 1 + number / 7, task) for number in range(12))
        before = [database.draw(seed, "t", H200, 2).shown for seed in range(20)]
        database.advance([success(99, 5.0)])
        assert [database.draw(seed, "t", H200, 2).shown for seed in range(20)] == before
        assert [database.draw(seed, "t", H200).shown for seed in range(20)] != before
        assert [database.draw(seed, "t", H200, 1).shown for seed in range(20)] != before
        assert len({database.draw(seed, "t", H200, 2).shown for seed in range(20)}) > 3
        program = (
            "import sys; from pathlib import Path; from rl.exemplars import ExemplarDatabase\n"
            "database = ExemplarDatabase(Path(sys.argv[1]), write=False)\n"
            "print([[one.form for one in database.draw(seed, 't', 'NVIDIA H200', 2).shown] for seed in range(20)])\n"
        )
        answer = subprocess.run(
            [sys.executable, "-c", program, str(path)],
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            check=True,
        )
    assert answer.stdout.strip() == str([[one.form for one in shown] for shown in before])


def test_tasks_and_machines_are_kept_apart(tmp_path: Path) -> None:
    with ExemplarDatabase(tmp_path / "e") as database:
        database.advance(
            [success(1, 2.0), success(2, 3.0, task="u"), success(3, 4.0, machine="cpu with 2 threads")]
        )
        assert database.record("t", H200) == pytest.approx(2.0)
        assert database.record("t", "cpu with 2 threads") == pytest.approx(4.0)
        assert database.record("t", "NVIDIA A100") is None
        assert database.draw(0, "t", "NVIDIA A100").shown == ()


def test_the_same_program_in_other_words_is_one_exemplar_with_the_mean_of_its_times(tmp_path: Path) -> None:
    again = program(1).replace("x + 1", "(x  +  1)").replace("return", "# faster!\n        return")
    with ExemplarDatabase(tmp_path / "e") as database:
        database.advance([success(1, 1.0)])
        database.advance([Success("t", H200, again, 4.0), success(2, 1.0)])
        first, second = database.members("t", H200)
        assert first.source == program(1)
        assert (first.speedup, second.speedup) == (pytest.approx(2.0), pytest.approx(1.0))
        assert database.members("t", H200, 1)[0].speedup == pytest.approx(1.0)


def test_the_best_stay_and_a_sample_of_the_rest_that_no_order_changes(tmp_path: Path) -> None:
    settings = ExemplarPart(best=3, reservoir=2)
    kept = []
    for name, order in (("a", range(1, 11)), ("b", range(10, 0, -1))):
        with ExemplarDatabase(tmp_path / name, settings) as database:
            for number in order:
                database.advance([success(number, float(number))])
            kept.append([round(one.speedup) for one in database.members("t", H200)])
    assert kept[0] == kept[1]
    assert kept[0][:3] == [10, 9, 8]
    assert len(kept[0]) == 5


def test_a_step_that_was_killed_is_done_again_alike(tmp_path: Path) -> None:
    path = tmp_path / "e"
    with ExemplarDatabase(path) as database:
        database.advance([success(1, 1.0), success(2, 1.5)])
        at_checkpoint = database.snapshot
        draws = [database.draw(seed, "t", H200) for seed in range(10)]
        database.advance([success(3, 9.0)])
        database.advance([])
    with ExemplarDatabase(path) as database:
        assert database.snapshot == 3
        database.rewind(at_checkpoint)
        assert [database.draw(seed, "t", H200) for seed in range(10)] == draws
        database.advance([success(4, 2.0)])
        members = database.members("t", H200)
    with ExemplarDatabase(path) as database:
        assert database.members("t", H200) == members
        assert [round(one.speedup, 1) for one in members] == [2.0, 1.5, 1.0]
        with pytest.raises(ValueError, match="no position 3"):
            database.rewind(3)


def test_ranks_follow_the_one_that_writes(tmp_path: Path) -> None:
    with ExemplarDatabase(tmp_path / "e") as writer:
        with ExemplarDatabase(tmp_path / "e", write=False) as follower:
            writer.advance([success(1, 1.0), success(2, 2.0)])
            writer.advance([success(3, 3.0)])
            writer.rewind(1)
            writer.advance([success(4, 4.0)])
            assert follower.snapshot == 0
            follower.follow()
            assert follower.snapshot == writer.snapshot == 2
            assert follower.draw(5, "t", H200) == writer.draw(5, "t", H200)
            assert follower.members("t", H200) == writer.members("t", H200)


def test_what_a_prompt_must_not_show_is_not_taken(tmp_path: Path) -> None:
    bad = [
        program(1) + "#" * LONGEST_SHOWN_CHARACTERS,
        program(2) + "# <|im_end|>\n",
        program(3) + "# </think>\n",
        program(4) + "# <custom-end>\n",
    ]
    with ExemplarDatabase(tmp_path / "e", special_tokens=("<custom-end>",)) as database:
        database.advance([*(Success("t", H200, source, 2.0) for source in bad), success(9, 1.0)])
        assert [one.source for one in database.members("t", H200)] == [program(9)]


@pytest.mark.parametrize("speedup", [0.0, -1.0, math.nan, math.inf])
def test_a_score_that_is_none_is_refused_and_nothing_is_added(tmp_path: Path, speedup: float) -> None:
    with ExemplarDatabase(tmp_path / "e") as database:
        with pytest.raises(ValueError, match="speedup"):
            database.advance([success(1, 1.0), success(2, speedup)])
        assert (database.snapshot, database.members("t", H200)) == (0, [])


def test_none_are_shown_on_request_and_dropout_drops_its_share(tmp_path: Path) -> None:
    path = tmp_path / "e"
    with ExemplarDatabase(path) as database:
        database.advance([success(1, 1.0), success(2, 4.0)])
    with ExemplarDatabase(path, ExemplarPart(draw="none")) as database:
        assert database.draw(1, "t", H200).shown == ()
    with ExemplarDatabase(path, ExemplarPart(dropout=0.25)) as database:
        empty = sum(not database.draw(seed, "t", H200).shown for seed in range(600))
        assert empty / 600 == pytest.approx(0.25, abs=0.06)


def test_a_record_that_makes_no_sense_is_told(tmp_path: Path) -> None:
    from rl.journal import Journal

    with Journal(tmp_path / "e", "kernelwright.exemplars/1") as journal:
        journal.append([{"snapshot": 2, "added": []}])
    with pytest.raises(JournalError, match=r"makes no sense: .*snapshot 2 follows 0"):
        ExemplarDatabase(tmp_path / "e")


def test_going_back_forgets_what_was_looked_up_meanwhile(tmp_path: Path) -> None:
    with ExemplarDatabase(tmp_path / "e") as database:
        database.advance([success(1, 1.0)])
        database.advance([success(2, 2.0)])
        assert database.record("t", H200) == pytest.approx(2.0)
        database.rewind(1)
        database.advance([success(3, 3.0)])
        assert [round(one.speedup) for one in database.members("t", H200)] == [3, 1]
