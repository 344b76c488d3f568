"""Which model is asked next: each once, then the best expected improvement per US dollar."""

from __future__ import annotations

from agent.providers.choice import Standing, choose


def standing(attempts: int, speedups: list[float | None], usd: float, limit: int = 100) -> Standing:
    made = Standing(limit, attempts=attempts, usd=usd)
    for speedup in speedups:
        made.finished(speedup)
    return made


def test_every_model_is_tried_before_any_is_asked_again() -> None:
    assert choose([standing(1, [5.0], 0.01), standing(0, [], 0.0)]) == 1


def test_of_two_that_gain_alike_the_cheaper_one_is_asked() -> None:
    assert choose([standing(3, [1.5] * 3, 0.30), standing(3, [1.5] * 3, 0.03)]) == 1


def test_of_two_that_cost_alike_the_one_that_gains_is_asked() -> None:
    assert choose([standing(3, [None, 0.9, None], 0.1), standing(3, [1.5, None, None], 0.1)]) == 1


def test_a_dear_model_that_gains_enough_is_worth_its_price() -> None:
    assert choose([standing(3, [3.0] * 3, 0.10), standing(3, [None] * 3, 0.05)]) == 0


def test_a_free_model_that_never_gains_does_not_take_everything() -> None:
    assert choose([standing(40, [None] * 40, 0.0), standing(1, [2.0], 0.001)]) == 1


def test_one_that_is_used_up_or_refused_is_not_asked() -> None:
    refused = Standing(100, attempts=1, gain=9.0, refused=True)
    assert choose([refused, standing(2, [], 1.0, limit=2)]) == -1
    assert choose([refused, standing(1, [], 1.0, limit=2)]) == 1


def test_attempts_under_way_spread_requests_over_equals() -> None:
    equals = [Standing(100), Standing(100)]
    for _ in range(10):
        index = choose(equals)
        assert index is not None
        equals[index].attempts += 1
    assert [one.attempts for one in equals] == [5, 5]
