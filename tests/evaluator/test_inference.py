"""Shape inference: free sizes, ties, divisibility, limits, regimes, what cannot vary and why, and hostile files."""

from __future__ import annotations

import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from evaluator.breaking_off import TooSlow, broken_off
from evaluator.referee.judging.core import RefereeCore
from evaluator.shapes.inference import knobs
from evaluator.shapes.inference.result import Inferred, infer, validated
from evaluator.shapes.space import ChoiceDim, IntegerDim
from kernelbench_tasks import catalog
from tests.evaluator.hidden_dims import compare, declared, hidden

_HEAD = "import torch\nimport torch.nn as nn\n"


@pytest.fixture(scope="module")
def tools(core: RefereeCore) -> RefereeCore:
    """What runs a program beside a task's file, in a confined process of the referee."""
    core.fleet.load_compiler()  # once here, or each process imports half of it for its export
    return core


def _task(body: str) -> str:
    return _HEAD + textwrap.dedent(body)


LINEAR = _task("""
    batch_size = 16
    in_features = 48
    out_features = 40

    class Model(nn.Module):
        def __init__(self, in_features, out_features):
            super().__init__()
            self.linear = nn.Linear(in_features, out_features)

        def forward(self, x):
            return self.linear(x).unflatten(1, (-1, 8)).sum(-1)

    def get_inputs():
        return [torch.randn(batch_size, in_features)]

    def get_init_inputs():
        return [in_features, out_features]
""")


@pytest.fixture(scope="module")
def linear(tools: RefereeCore) -> Inferred:
    """What is found in the plain file."""
    return infer(tools, LINEAR)


def _integer(inferred: Inferred, name: str) -> IntegerDim:
    dim = inferred.space[name]
    assert isinstance(dim, IntegerDim)
    return dim


def test_constants_of_the_file_become_dimensions_with_their_rules(linear: Inferred) -> None:
    assert set(linear.space) == {"batch_size", "in_features", "out_features"}, linear.reason
    steps = {name: _integer(linear, name).multiple_of for name in linear.space}
    assert steps == {"batch_size": 1, "in_features": 1, "out_features": 8}
    assert _integer(linear, "out_features").low == 8
    assert linear.export == "confirmed"
    # What was inferred can be used: the rebuilt file takes the sizes as keyword arguments.
    scope: dict[str, Any] = {}
    exec(compile(linear.source, "rebuilt.py", "exec"), scope)
    assert scope["get_inputs"](batch_size=3, in_features=5)[0].shape == (3, 5)
    assert scope["get_init_inputs"](in_features=5, out_features=8) == [5, 8]


def test_bare_numbers_are_tied_where_only_the_pair_works(tools: RefereeCore) -> None:
    text = LINEAR.replace("(batch_size, in_features)", "(16, 48)").replace(
        "return [in_features, out_features]", "return [48, 48]"
    )
    inferred = infer(tools, text)
    assert inferred.tied == {
        "size_0": ("size_0",),
        "size_1": ("size_1", "argument_0"),
        "argument_1": ("argument_1",),
    }
    assert _integer(inferred, "argument_1").multiple_of == 8
    assert _integer(inferred, "size_1").multiple_of == 1


def test_a_size_that_another_one_limits_gets_a_bound_for_both(tools: RefereeCore) -> None:
    text = LINEAR.replace("return self.linear(x)", "return x.topk(self.k)[0]").replace(
        ".unflatten(1, (-1, 8))", ""
    )
    text = text.replace("super().__init__()", "super().__init__()\n        self.k = out_features")
    text = text.replace("out_features = 40", "out_features = 4")
    inferred = infer(tools, text.replace(".sum(-1)", ""))
    k, cols = _integer(inferred, "out_features"), _integer(inferred, "in_features")
    assert 4 < k.high <= cols.low <= 48
    # Where only weights have that size, the input keeps its range.
    inferred = infer(tools, text)
    k, cols = _integer(inferred, "out_features"), _integer(inferred, "in_features")
    assert k.high == cols.low == 4
    assert any("limit each other" in sentence for sentence in inferred.sentences)


def test_a_guard_shows_where_another_path_begins(tools: RefereeCore, linear: Inferred) -> None:
    text = LINEAR.replace(
        "return self.linear(x)", "x = x.cos() if x.shape[0] > 64 else x\n        return self.linear(x)"
    )
    inferred = infer(tools, text)
    assert inferred.regimes == {"batch_size": (64,)}
    assert linear.regimes == {}


def test_what_cannot_vary_is_told_with_its_reason(tools: RefereeCore) -> None:
    text = LINEAR.replace("(-1, 8)", "(-1, in_features // 6)")
    inferred = infer(tools, text)
    assert "in_features" not in inferred.space
    assert "reads this constant" in inferred.fixed["in_features"]


def test_sizes_that_are_written_as_products_are_sizes(tools: RefereeCore) -> None:
    text = LINEAR.replace("batch_size = 16", "batch_size = 2 ** 3 * 2").replace(
        "out_features = 40", "out_features = 1 << 5"
    )
    text = text.replace("torch.randn(batch_size, in_features)", "torch.randn(batch_size, 12 * 4)")
    text = text.replace("return [in_features, out_features]", "return [12 * 4, out_features]")
    inferred = infer(tools, text)
    assert {name: _integer(inferred, name).default for name in inferred.space} == {
        "batch_size": 16, "out_features": 32, "size_0": 48,
    }  # fmt: skip
    assert inferred.tied["size_0"] == ("size_0", "argument_0")


def test_a_power_that_fits_into_no_memory_is_no_size() -> None:
    rebuilt = knobs.rebuild(LINEAR.replace("batch_size = 16", "batch_size = 9 ** 9 ** 9 ** 9"))
    assert "batch_size" not in {knob.name for knob in rebuilt.knobs}


HEADS = _task("""
    width = 48
    heads = 4
    rows = 6

    class Model(nn.Module):
        def __init__(self, width, heads):
            super().__init__()
            assert width % heads == 0
            self.heads = heads
            self.project = nn.Linear(width, width)

        def forward(self, x):
            return self.project(x).unflatten(-1, (self.heads, -1)).softmax(-1)

    def get_inputs():
        return [torch.randn(rows, width)]

    def get_init_inputs():
        return [width, heads]

    if __name__ == "__main__":
        print(Model(width, heads)(*get_inputs()).shape, rows)
""")


def test_heads_that_divide_a_width_are_a_choice_and_every_pair_works(tools: RefereeCore) -> None:
    """48 has so many divisors that heads of 2, 4, 6 and 8 work in a row; 52 is then a multiple of 4 that 6 does not divide."""
    inferred = infer(tools, HEADS)
    heads, width = inferred.space["heads"], _integer(inferred, "width")
    assert isinstance(heads, ChoiceDim) and heads.default == 4
    assert all(width.multiple_of % int(count) == 0 for count in heads.values)
    # What runs only where the file is the main program binds no size.
    assert _integer(inferred, "rows").low == 1


def test_a_size_of_one_that_is_spread_over_others_is_no_lower_bound(tools: RefereeCore) -> None:
    """A mask for the longest sequence fits every shorter one; of length 1 it fits by accident, of length 2 it does not."""
    text = HEADS.replace("rows = 6", "rows = 6\nlongest = 16").replace(
        "[width, heads]", "[width, heads, longest]"
    )
    text = text.replace("def __init__(self, width, heads):", "def __init__(self, width, heads, longest):")
    text = text.replace(
        "self.heads = heads", "self.heads = heads\n        self.bias = torch.ones(longest, 1)"
    )
    text = text.replace("self.project(x)", "(self.project(x) + self.bias[:x.shape[0]])")
    inferred = infer(tools, text)
    rows, longest = _integer(inferred, "rows"), _integer(inferred, "longest")
    assert rows.low <= 6 and rows.high <= longest.low


WINDOW = _task("""
    rows, channels, length = 6, 8, 40
    filters = 12
    window = 5
    step = 2
    margins = (1, 3)
    axis = 1

    class Model(nn.Module):
        def __init__(self, channels, filters, window, step, margins, axis):
            super().__init__()
            self.slide = nn.Conv1d(channels, filters, window, stride=step)
            self.margins, self.axis = margins, axis

        def forward(self, x):
            return self.slide(nn.functional.pad(x, self.margins)).cumsum(self.axis)

    def get_inputs():
        return [torch.randn(rows, channels, length)]

    def get_init_inputs():
        return [channels, filters, window, step, margins, axis]
""")


def test_a_setting_of_the_module_is_no_size(tools: RefereeCore) -> None:
    """A stride, a padding and an axis shape neither inputs nor weights; a window does, and leaves inputs their range."""
    inferred = infer(tools, WINDOW)
    assert set(inferred.space) == {"rows", "channels", "length", "filters", "window"}
    assert set(inferred.fixed) == {"step", "margins_1", "axis"}
    assert all("a setting" in reason for reason in inferred.fixed.values())
    length, window = _integer(inferred, "length"), _integer(inferred, "window")
    assert length.low + 4 >= window.high == 5 and length.low < 5
    assert _integer(inferred, "rows").low == 1
    limits = [sentence for sentence in inferred.sentences if "limit each other" in sentence]
    assert limits == [limits[0]] and limits[0].startswith("length and window"), inferred.sentences


def test_what_is_a_dimension_of_the_output_is_a_size(tools: RefereeCore) -> None:
    text = WINDOW.replace(".cumsum(self.axis)", ".topk(self.axis, dim=1)[0]")
    inferred = infer(tools, text.replace("axis = 1", "axis = 3"))
    assert _integer(inferred, "axis").default == 3 and "step" in inferred.fixed


def test_two_sizes_that_fail_only_together_part_at_their_smallest(tools: RefereeCore) -> None:
    """What is trimmed leaves length + window - 5 elements, so that 2 and 1, each of which works alone, leave none."""
    text = WINDOW.replace(
        "nn.Conv1d(channels, filters, window, stride=step)",
        "nn.ConvTranspose1d(channels, filters, window, padding=step)",
    )
    text = text.replace("window = 5", "window = 4").replace("nn.functional.pad(x, self.margins)", "x")
    inferred = infer(tools, text)
    assert (_integer(inferred, "length").low, _integer(inferred, "window").low) == (2, 4)
    assert "window starts at 4, since a smaller one fails where length is 2" in inferred.sentences
    assert not any("limit each other" in sentence for sentence in inferred.sentences)


def test_a_constant_that_holds_no_plain_size_is_told(tools: RefereeCore) -> None:
    text = LINEAR.replace("in_features = 48", "config = {'in': 48}\ndtype = 'float32'")
    text = text.replace(
        "(batch_size, in_features)", "(batch_size, config['in'], dtype=getattr(torch, dtype))"
    )
    text = text.replace("return [in_features, out_features]", "return [config['in'], out_features]")
    inferred = infer(tools, text)
    assert inferred.fixed["config"] == "sizes are not searched in a dict"
    # Weights are float32 here, so no other dtype works.
    assert "as another dtype than float32 the task fails" in inferred.fixed["dtype"]


@pytest.mark.slow
def test_a_recurrent_module_is_probed_with_real_tensors(tools: RefereeCore) -> None:
    text = LINEAR.replace("nn.Linear(in_features, out_features)", "nn.GRU(in_features, out_features, 2)")
    text = text.replace("return self.linear(x).unflatten(1, (-1, 8)).sum(-1)", "return self.linear(x)[0]")
    text = text.replace("torch.randn(batch_size,", "torch.randn(60, batch_size,")
    inferred = infer(tools, text)
    assert {"batch_size", "in_features", "out_features", "size_0"} == set(inferred.space)
    assert any("slower than real ones" in sentence for sentence in inferred.sentences), inferred.sentences


@pytest.mark.parametrize("swallows", [False, True])
def test_what_was_broken_off_is_too_slow_whatever_others_made_of_it(swallows: bool) -> None:
    """torch turns what a signal raises within its argument parser into a TypeError, and an exporter then has words for that."""

    def work() -> None:
        try:
            time.sleep(1.0)
        except TooSlow as alarm:
            if not swallows:
                raise TypeError("failed to unpack") from alarm

    with pytest.raises(TooSlow), broken_off(0.01):
        work()
    with pytest.raises(TypeError), broken_off(5.0):
        raise TypeError("its own")


@pytest.mark.slow
def test_a_long_recurrent_module_is_not_unrolled_for_minutes(tools: RefereeCore) -> None:
    """Export takes each of 6 layers apart at each of 600 steps."""
    text = LINEAR.replace("nn.Linear(in_features, out_features)", "nn.LSTM(in_features, out_features, 6)")
    text = text.replace("return self.linear(x).unflatten(1, (-1, 8)).sum(-1)", "return self.linear(x)[0]")
    text = text.replace("torch.randn(batch_size,", "torch.randn(600, batch_size,")
    inferred = infer(tools, text)
    assert inferred.ok and {"batch_size", "in_features", "out_features"} <= set(inferred.space), inferred
    assert any("torch.export takes longer" in sentence for sentence in inferred.sentences), inferred.sentences


def test_data_dependent_code_is_probed_with_real_tensors(tools: RefereeCore) -> None:
    text = LINEAR.replace(
        "return self.linear(x)", "x = x * int(x.sum().item() < 1e30)\n        return self.linear(x)"
    )
    inferred = infer(tools, text)
    assert _integer(inferred, "out_features").multiple_of == 8
    assert any("real ones" in sentence for sentence in inferred.sentences)


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("bitpack_masks", "constants"),
        ("rmsnorm", "parameters"),
        pytest.param("bitpack_masks", "parameters", marks=pytest.mark.slow),
        pytest.param("rmsnorm", "constants", marks=pytest.mark.slow),
        pytest.param("mx_quantize", "parameters", marks=pytest.mark.slow),
        pytest.param("mx_quantize", "constants", marks=pytest.mark.slow),
    ],
)
def test_the_catalogue_is_found_again_when_its_space_is_hidden(
    tools: RefereeCore, name: str, form: str
) -> None:
    source = catalog.load(name).source
    result = compare(declared(source), infer(tools, hidden(source, form)))
    wrong = {dim: entry for dim, entry in result.items() if entry["result"] != "same"}
    # A task may declare fewer dtypes than its module takes.
    assert all((dim, entry["result"]) == ("dtype", "wider") for dim, entry in wrong.items()), wrong


def test_a_dtype_is_a_choice(tools: RefereeCore) -> None:
    inferred = infer(tools, hidden(catalog.load("rmsnorm").source, "parameters"))
    dtype = inferred.space["dtype"]
    assert isinstance(dtype, ChoiceDim) and dtype.default == "float32"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def f(:", "does not parse"),
        ("x = 1", "no function get_inputs"),
        (LINEAR.replace("(batch_size, in_features)", "(batch_size, 47)"), "does not run at the sizes"),
        (LINEAR.replace("batch_size = 16", "raise ValueError('ha')"), "cannot be imported"),
        ("(" * 100_000, "parse"),
    ],
)  # fmt: skip
def test_a_file_without_a_space_is_refused_in_one_sentence(tools: RefereeCore, text: str, words: str) -> None:
    inferred = infer(tools, text)
    assert not inferred.ok and not inferred.space
    assert words in inferred.reason or "without an answer" in inferred.reason
    assert "\n" not in inferred.reason


def test_a_file_that_never_ends_is_cut_off(tools: RefereeCore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evaluator.shapes.inference.result._GRACE_S", 0.1)
    started = time.monotonic()
    inferred = infer(tools, LINEAR + "\nwhile True:\n    pass\n", deadline_s=0.4)
    assert "in time" in inferred.reason
    assert time.monotonic() - started < 15


def test_a_file_that_writes_the_answer_itself_gets_no_more_than_a_space(tools: RefereeCore) -> None:
    forged = """
        import json, os
        axis = {"names": ["a"], "min": 5, "max": 1, "multiple_of": 1, "default": 1}
        answer = {"ok": True, "axes": [axis], "choices": {}, "fixed": {}, "sentences": [], "regimes": {}, "export": "x",
                  "source": "", "probes": 1, "elapsed_s": 1}
        open("out/space.json", "w").write(json.dumps(answer))
        os._exit(0)
    """
    assert not infer(tools, textwrap.dedent(forged)).ok
    inferred = infer(tools, textwrap.dedent(forged).replace("os._exit(0)", "raise SystemExit(0)"))
    assert not inferred.ok


@pytest.mark.parametrize(
    "answer", [None, [], {}, {"ok": True}, {"ok": True, "axes": [{"names": ["1"]}], "choices": {}}]
)
def test_an_answer_of_another_form_is_refused(answer: Any) -> None:
    with pytest.raises(ValueError, match="not the form"):
        validated(answer)


def test_the_file_is_rebuilt_from_its_tree_and_not_from_its_text() -> None:
    text = LINEAR.replace(
        "batch_size = 16", 'note = "batch_size = 16"\nbatch_size = 16\ndouble = 2 * batch_size'
    )
    text = text.replace("(batch_size, in_features)", "(double, in_features)")
    rebuilt = knobs.rebuild(text)
    assert "'batch_size = 16'" in rebuilt.source
    scope: dict[str, Any] = {}
    exec(compile(rebuilt.source, "rebuilt.py", "exec"), scope)
    assert scope["get_inputs"](batch_size=5, in_features=7)[0].shape == (10, 7)


def test_the_program_reads_nothing_of_this_repository(tmp_path: Path) -> None:
    """The text of DIMS is not looked at: a declaration that lies changes nothing."""
    rebuilt = knobs.rebuild(LINEAR + "\nDIMS = {'batch_size': 7}\n")
    assert "DIMS" not in rebuilt.source
