"""What counts as the candidate in a model's reply."""

from __future__ import annotations

import pytest

from agent import extraction
from agent.candidates import Candidate
from agent.extraction import extract, unfolded
from agent.folding import BEGIN, END, PLACE, folded
from agent.kernels.writing import as_replayed
from evaluator.client import Referee
from evaluator.sources import CandidateSource
from tests.evaluator.judging import judge, task

FILE = "import torch\n\n\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n        return x * 2\n"
OTHER = FILE.replace("* 2", "* 3")


def fenced(text: str, language: str = "python", mark: str = "```") -> str:
    return f"{mark}{language}\n{text}{mark}\n"


@pytest.mark.parametrize("language", ["python", "py", "Python", ""])
@pytest.mark.parametrize("mark", ["```", "~~~", "````"])
def test_takes_the_block_with_the_class(language: str, mark: str) -> None:
    found = extract(f"Here it is:\n{fenced(FILE, language, mark)}\nEnjoy.")
    assert (found.source, found.problem) == (FILE, "")


def test_of_several_files_the_last_that_parses_wins() -> None:
    reply = fenced(FILE) + "On reflection:\n" + fenced(OTHER) + "or\n" + fenced("class ModelNew(\n")
    assert extract(reply).source == OTHER


def test_joins_blocks_when_only_together_they_make_the_file() -> None:
    body = 'class ModelNew(torch.nn.Module):\n    SOURCE = r"""\n'
    found = extract(fenced(body) + fenced('"""\n'))
    assert found.source is not None
    assert "ModelNew" in found.source


def test_ignores_other_languages_and_code_without_the_class() -> None:
    reply = fenced("class ModelNew {};\n", "cpp") + fenced("print(1)\n")
    assert extract(reply).problem == "no_class"


def test_accepts_a_reply_that_is_nothing_but_the_file() -> None:
    assert extract(FILE).source == FILE


def test_drafts_inside_the_thinking_part_do_not_count() -> None:
    assert extract(f"<think>maybe\n{fenced(OTHER)}</think>\nThe answer:\n{fenced(FILE)}").source == FILE
    assert extract(f"<think>only a draft\n{fenced(FILE)}</think>\nSorry.").problem == "no_code"


def test_a_block_indented_in_a_list_is_dedented() -> None:
    block = "".join(f"   {line}\n" if line else "\n" for line in fenced(FILE).splitlines())
    assert extract(f"1. do this\n{block}").source == FILE


@pytest.mark.parametrize(
    ("reply", "finish", "problem"),
    [
        ("", "stop", "empty"),
        ("", "length", "truncated"),
        ("I cannot help with that.", "stop", "no_code"),
        ("no", "refusal", "refusal"),
        (fenced(FILE), "content_filter", "refusal"),
        ("```python\n" + FILE, "length", "truncated"),
        ("```python\n" + FILE, "stop", "truncated"),
        (fenced("class ModelNew(\n"), "stop", "syntax"),
        (fenced("def f():\n    class ModelNew: pass\n"), "stop", "syntax"),
        (fenced("# class ModelNew\n" + "x = 1\n" * 40_000), "stop", "too_long"),
        (fenced("class ModelNew:\n  x = '\x00'\n"), "stop", "syntax"),
    ],
)
def test_says_why_there_is_no_candidate(reply: str, finish: str, problem: str) -> None:
    found = extract(reply, finish)
    assert found.source is None
    assert found.problem == problem


def test_survives_hostile_nesting() -> None:
    assert extract(fenced("class ModelNew: x = " + "(" * 5000 + "1" + ")" * 5000 + "\n")).problem == "syntax"


def test_a_file_may_hold_fences_itself() -> None:
    drawn = '    """As in\n\n```python\ny = x * 2\n```\n    """\n'
    documented = FILE.replace("    def forward", drawn + "    def forward")
    assert extract(f"Here it is:\n{fenced(documented)}Enjoy.").source == documented
    assert extract(f"First\n{fenced('print(1)' + chr(10))}then\n{fenced(documented)}").source == documented


def test_only_line_feeds_end_lines() -> None:
    odd = FILE.replace("x * 2", "x * len('a\u2028b\x0cc')")
    assert extract(fenced(odd)).source == odd
    assert extract(fenced(FILE).replace("\n", "\r\n")).source == FILE


CALLS = """import torch
import triton
import triton.language as tl

PIECE = 3


def softmax(x):
    return PIECE * x


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return library_softmax(softmax(x), False)
"""


@pytest.fixture(scope="module")
def whole() -> str:
    """`CALLS` with the library's text."""
    return unfolded(CALLS)


def test_the_library_s_text_comes_to_files_that_call_it_and_is_not_shown(whole: str) -> None:
    assert whole.count(BEGIN) == whole.count(END) == 1
    assert folded(whole) == f"{PLACE}\n\n\n{CALLS}"
    assert Candidate(whole, "llm", "").shown == folded(whole)
    assert unfolded(folded(whole)) == whole
    assert folded(as_replayed(whole)) == folded(whole) and as_replayed(whole) != whole


@pytest.fixture
def small_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """A library that takes no time to parse, for what does not depend on its text."""
    text = f"{BEGIN}\ndef library_mm(a, b):\n    return a @ b\n{END}\n"
    monkeypatch.setattr(extraction, "kernels", lambda _=None: text)


@pytest.mark.usefixtures("small_library")
def test_it_comes_after_what_must_be_first_and_before_what_uses_it() -> None:
    head = '"""Fast."""\nfrom __future__ import annotations\n'
    whole = unfolded(f"{head}\nmm = library_mm\n\n\nclass ModelNew:\n    y = mm\n")
    assert whole.startswith(f"{head}\n{BEGIN}\n")
    assert whole.index(END) < whole.index("mm = library_mm\n")
    compile(whole, "whole", "exec")


@pytest.mark.usefixtures("small_library")
def test_a_form_feed_is_no_end_of_a_line() -> None:
    whole = unfolded('"""One\x0cpage."""\n\ny = library_mm\n')
    assert whole.startswith(f'"""One\x0cpage."""\n\n{BEGIN}\n')
    compile(whole, "whole", "exec")


BINDINGS = """from torch import softmax

repeated: int = 3


class launch:
    pass


def change():
    global processors
    processors = 1


"""


@pytest.mark.parametrize(
    ("more", "names"),
    [("from torch.nn.functional import *\n", "softmax"), (BINDINGS, "softmax repeated launch processors")],
)
def test_names_that_a_file_may_bind_are_others_in_the_library(more: str, names: str) -> None:
    whole = unfolded(f"{more}y = library_softmax\n\n\nclass ModelNew:\n    pass\n")
    for name in names.split():
        assert f"\ndef {name}_of_library(" in whole and f"\ndef {name}(" not in whole
    assert "\ndef library_softmax(" in whole
    compile(whole, "whole", "exec")


@pytest.mark.usefixtures("small_library")
@pytest.mark.parametrize("line", [BEGIN, END, PLACE, f"{BEGIN}\nx = 1\n{END}", f"{END}\n{BEGIN}"])
def test_marks_in_an_answer_take_nothing_away(line: str) -> None:
    source = f"import torch\n{line}\n{FILE}"
    kept = "".join(part for part in source.splitlines(True) if part.strip() not in (BEGIN, END, PLACE))
    assert unfolded(source) == kept
    whole = unfolded(f"{source}y = library_mm\n")
    assert folded(whole) == f"{PLACE}\n\n\n{kept}y = library_mm\n"


@pytest.mark.usefixtures("small_library")
@pytest.mark.parametrize(
    "source",
    [
        FILE,
        FILE + "# library_mm\n",
        FILE + "def library_mm(a, b):\n    return a @ b\n\n\nlibrary_mm(1, 2)\n",
        FILE + "x = library_of_somebody_else()\n",
        "class ModelNew(library_mm:\n",
    ],
)
def test_other_files_stay_as_they_are(source: str) -> None:
    assert unfolded(source) == source


def test_names_that_a_file_and_the_library_share_stay_apart(referee: Referee, whole: str) -> None:
    reference = task("""
        class Model(nn.Module):
            def forward(self, x):
                return torch.softmax(3 * x, -1)

        def get_inputs():
            return [torch.randn(6, 10)]

        def get_init_inputs():
            return []
    """)
    assert "\ndef softmax_of_library(" in whole and "\nPIECE_of_library = " in whole
    assert judge(referee, reference, CandidateSource(whole, "llm", "")).verdict == "accepted"
