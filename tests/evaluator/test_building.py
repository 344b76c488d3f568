"""Extensions are compiled from texts alone: nothing that a candidate does in Python reaches another one's library."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from evaluator.building.artefacts import ArtefactStore
from evaluator.building.extension_call import ExtensionCall
from evaluator.errors import RoleFailure
from evaluator.referee.judging.core import RefereeCore
from evaluator.referee.session.candidate import CandidateRun
from evaluator.referee.sides.open_shape import OpenShape
from evaluator.sources import CandidateSource
from tests.attacks.test_candidates import TASK

pytestmark = [pytest.mark.attacks, pytest.mark.timeout(240)]

HEAD = """
import ctypes, os, sys
import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

def build(name, text, **more):
    return load_inline(name, cpp_sources=text, is_python_module=False, no_implicit_headers=True, **more)

def number(path):
    return ctypes.CDLL(path).number()
"""
TEXT = 'extern "C" int number() { return 7; }'


def said(
    core: RefereeCore, source: str, deadline_s: float = 60.0, built_for: tuple[int, ...] = (3,), rows: int = 3
) -> str:
    """What a candidate's own process says, after its build, in the error that its constructor or first call raises.

    Raises:
        RoleFailure: the build failed.
    """
    session = core.session(TASK)
    shape = session.open({"rows": rows, "cols": 17})
    run = CandidateRun(
        core.fleet, session, CandidateSource(HEAD + source, "external", "x"), time.monotonic() + deadline_s
    )
    try:
        run.build([session.open({"rows": count, "cols": 17}) for count in built_for])
        run.start()
        with pytest.raises(RoleFailure) as raised:
            first_call(run, shape)
        return raised.value.sentence
    finally:
        run.close()


def first_call(run: CandidateRun, shape: OpenShape) -> None:
    """Constructs the candidate's module in its own process and calls it once."""
    side = run.open(shape)
    assert run.process is not None
    side.fill(1)
    run.process.freeze()
    side.block(1, 30.0)


def says(expression: str) -> str:
    """A module that says a value where it is timed, and works where it is only built."""
    return f"""
class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.norm = nn.LayerNorm(cols)
        word = {expression}
        if not RECORDING:
            raise RuntimeError(f"said <{{word}}>")
    def forward(self, x):
        return torch.relu(self.norm(x))
"""


#: Candidates may find out where they run; the worst of them will.
RECORDING = "RECORDING = load_inline.__self__.recording\n"


def libraries(core: RefereeCore) -> dict[str, float]:
    """Keys in the store, with the time of each library."""
    folder = core.fleet.store.parent / "artefacts"
    return {entry.name: (entry / "library.so").stat().st_mtime for entry in folder.iterdir()}


def test_one_text_is_compiled_once_for_all_candidates(core: RefereeCore) -> None:
    first = f"{RECORDING}PATH = build('shared', {TEXT!r})\n{says('number(PATH)')}"
    assert "<7>" in said(core, first)
    before = libraries(core)
    assert "<7>" in said(core, f"# another candidate\n{first}")
    assert libraries(core) == before


def test_calls_at_import_in_the_constructor_and_in_forward(core: RefereeCore) -> None:
    """All are found, also those that come only after others have been built, and several of one round."""
    texts = {name: f'extern "C" int number() {{ return {index}; }}' for index, name in enumerate("abcd", 1)}
    source = f"""{RECORDING}
TEXTS = {texts!r}
A, B = build('a', TEXTS['a']), build('b', TEXTS['b'])
LIBRARY = ctypes.CDLL(A)
LIBRARY.number.restype = ctypes.c_int
class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.norm = nn.LayerNorm(cols)
        self.word = LIBRARY.number() + number(B) * 10
        self.word += number(build('c', TEXTS['c'])) * 100
        if not RECORDING:
            self.forward(None)
    def forward(self, x):
        word = self.word + number(build('d', TEXTS['d'])) * 1000
        if not RECORDING:
            raise RuntimeError(f'said <{{word}}>')
        return torch.relu(self.norm(x))
"""
    assert "<4321>" in said(core, source)


@pytest.mark.slow
def test_an_extension_for_each_shape(core: RefereeCore) -> None:
    """Asked for at the first call at a shape; known from an earlier evaluation, or found when a shape is new."""
    source = f"""{RECORDING}
class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.norm = nn.LayerNorm(cols)
    def forward(self, x):
        rows = x.shape[0]
        word = number(build(f'rows_{{rows}}', f'extern "C" int number() {{{{ return {{100 + rows}}; }}}}'))
        if not RECORDING:
            raise RuntimeError(f'said <{{word}}>')
        return torch.relu(self.norm(x))
"""
    assert "<103>" in said(core, source, built_for=(3, 4), rows=3)
    before = libraries(core)
    assert "<104>" in said(core, source, built_for=(3, 4), rows=4)
    assert libraries(core) == before
    assert "<105>" in said(core, source, built_for=(3, 5), rows=5)


def bound_number(core: RefereeCore, more: str) -> str:
    """What a bound function of a Python module says whose text includes torch's header."""
    text = """int number(torch::Tensor x) {
  TORCH_CHECK(x.dim() == 1);
  return torch::full({2}, 3, x.options())[0].item<int>() MORE;
}"""
    source = f"""{RECORDING}
EXTENSION = load_inline('bound', cpp_sources=[{text.replace("MORE", more)!r}], functions=['number'])
{says("EXTENSION.number(torch.ones(2, dtype=torch.int32)) if not RECORDING else 0")}"""
    return said(core, source, 200.0)


@pytest.mark.slow
def test_python_modules_bind_functions(core: RefereeCore) -> None:
    assert "<3>" in bound_number(core, "")


@pytest.mark.slow
def test_what_the_short_headers_leave_out_is_compiled_with_torchs_own(core: RefereeCore) -> None:
    assert "<5>" in bound_number(core, "+ torch::InferenceMode::is_enabled() + 2")


@pytest.mark.slow
def test_operations_that_the_texts_name_are_declared_by_their_own_headers(core: RefereeCore) -> None:
    """A wrapper that falls back to `at::tanh` or `at::mm` took nvcc 30 s instead of 5."""
    text = """#include <torch/extension.h>
#ifdef TORCH_ARG
#error "all of torch"
#endif
double number(at::Tensor x) { return (at::tanh(at::mm(x, x)) + torch::sum(x))[0][0].item().toDouble(); }
"""
    source = f"""{RECORDING}
EXTENSION = load_inline('named', cpp_sources=[{text!r}], functions=['number'])
{says("f'{EXTENSION.number(torch.ones(2, 2)):.2f}' if not RECORDING else 0")}"""
    assert "<4.96>" in said(core, source, 200.0)


@pytest.mark.slow
def test_same_name_other_text(core: RefereeCore) -> None:
    for value in (11, 12):
        text = TEXT.replace("7", str(value))
        assert f"<{value}>" in said(
            core, f"{RECORDING}PATH = build('same', {text!r})\n{says('number(PATH)')}"
        )


def test_a_build_that_fails_can_be_caught(core: RefereeCore) -> None:
    source = f"""{RECORDING}
try:
    PATH = build('wrong', 'int f( {{')
except Exception as error:
    assert "error" in str(error)
    PATH = build('right', {TEXT!r})
{says("number(PATH)")}"""
    assert "<7>" in said(core, source)


#: What a candidate may try in the role that only notes its calls: files planted wherever it can write, and a lie.
PLANT = """
EVIL = os.path.join(os.environ['TMPDIR'], 'evil')
for place in (os.environ['KERNELWRIGHT_WORK'], os.environ['TMPDIR'], os.environ['TORCH_EXTENSIONS_DIR'], '/tmp', 'out'):
    for folder in (place, f'{place}/extensions', f'{place}/extensions/{DIGEST}', f'{place}/artefacts/{KEY}'):
        try:
            os.makedirs(folder, exist_ok=True)
            for name in ('victim.so', 'library.so', 'sha256'):
                open(f'{folder}/{name}', 'wb').write(b'planted')
        except OSError:
            continue
"""


#: What it may do to the code that notes its calls: the evil text is asked for, the victim's is named.
LIE = """
import json
load_inline.__self__.asked = lambda: json.dumps({'calls': [json.loads(CANONICAL)], 'late': False}).encode()
"""


@pytest.mark.parametrize("lie", [pytest.param("", marks=pytest.mark.slow), LIE])
def test_nobody_can_plant_a_library_under_another_ones_key(core: RefereeCore, lie: str) -> None:
    text = TEXT.replace("7", "17" if lie else "18")
    victim = ExtensionCall("victim", (text,), is_python_module=False, no_implicit_headers=True)
    key = ArtefactStore(core.fleet.store.parent / "artefacts").key(victim, "")
    attacker = f"""{RECORDING}
KEY, DIGEST, CANONICAL = {key!r}, {victim.digest!r}, {victim.canonical!r}
{PLANT}
path = build('victim', {TEXT.replace("7", "666")!r})
{lie}
{says("number(path) if not RECORDING else 0")}"""
    try:
        outcome = said(core, attacker)
    except RoleFailure as failure:
        outcome = failure.sentence
    # What it names honestly it may run itself; after the lie there is only what the victim's text compiles to.
    assert ("<666>" in outcome) == (not lie)
    honest = f"{RECORDING}PATH = build('victim', {text!r})\n{says('number(PATH)')}"
    assert f"<{17 if lie else 18}>" in said(core, honest)
    assert key in libraries(core)


def test_a_library_that_its_owner_rewrites_stays_as_it_was_for_others(core: RefereeCore) -> None:
    text = TEXT.replace("7", "21")
    rewriter = f"""{RECORDING}
PATH = build('rewritten', {text!r})
if not RECORDING:
    os.chmod(PATH, 0o777)
    open(PATH, 'wb').write(b'not a library')
{says("os.path.getsize(PATH) if not RECORDING else 0")}"""
    assert "<13>" in said(core, rewriter)
    assert "<21>" in said(core, f"{RECORDING}PATH = build('rewritten', {text!r})\n{says('number(PATH)')}")


def test_a_record_of_other_sources_gets_what_those_compile_to(core: RefereeCore) -> None:
    """It notes one text and runs another: there is no library for what it did not name."""
    source = f"""{RECORDING}
text = {TEXT.replace("7", "31")!r} if RECORDING else {TEXT.replace("7", "32")!r}
try:
    PATH = build('liar', text)
except Exception as error:
    PATH = str(error)
{says("PATH")}"""
    assert "not built in the compile step" in said(core, source)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ("build('x', '', extra_cflags=['-fplugin=/tmp/x.so'])", "compiler flag"),
        ("build('x', '', extra_include_paths=['/etc'])", "extra_include_paths"),
        ("build('x', '#include \"/etc/passwd\"')", "only headers"),
        # The scan takes the include for a part of a comment; the compiler does not, and says what it read.
        (
            'build(\'x\', \'const char* s = "/*";\\n#include "/dev/null"\\nconst char* t = "*/";\')',
            "files outside",
        ),
    ],
)
def test_what_reaches_for_other_files_is_refused(core: RefereeCore, call: str, words: str) -> None:
    with pytest.raises(RoleFailure) as raised:
        said(core, f"{RECORDING}{call}\n{says('0')}")
    assert raised.value.word == "contract_violation"
    assert words in raised.value.sentence


def test_a_forged_record_is_refused_by_the_referee(core: RefereeCore) -> None:
    """The rules that the candidate's own process applies are applied again where it cannot reach."""
    source = f"""{RECORDING}
import json
record = json.loads(__import__('evaluator.building.extension_call').building.extension_call.ExtensionCall('x', ('',)).canonical)
record['extra_cflags'] = ['-fplugin=/tmp/x.so']
load_inline.__self__.asked = lambda: json.dumps({{'calls': [record], 'late': False}}).encode()
{says("0")}"""
    with pytest.raises(RoleFailure, match="compiler flag") as raised:
        said(core, source)
    assert raised.value.word == "contract_violation"


@pytest.mark.slow
def test_endless_new_calls_end(core: RefereeCore) -> None:
    source = f"""{RECORDING}
build('x', 'int x = ' + str(int.from_bytes(os.urandom(4), 'little') % 10**9) + ';')
{says("0")}"""
    with pytest.raises(RoleFailure, match="still asks") as raised:
        said(core, source)
    assert raised.value.word == "contract_violation"


BOMBS = {
    "templates": "template <int N> struct B { typedef typename B<N + 1>::t t; }; B<0>::t x;",
    "itself": '#include "main.cpp"\n',
    "array": "int huge[1u << 30] = {1};",
    "time": "template <int N, int M> struct F { static const long v = F<N - 1, 2 * M>::v + F<N - 1, 2 * M + 1>::v; };\n"
    "template <int M> struct F<0, M> { static const long v = 1; };\nlong x = F<25, 1>::v;",
    "constant": "constexpr long f(long n) { long s = 0; for (long i = 0; i < n; i++) s += i % 3; return s; }\n"
    "constexpr long a = f(1L << 40);",
}


@pytest.mark.parametrize(
    "bomb",
    [bomb if bomb in ("templates", "time") else pytest.param(bomb, marks=pytest.mark.slow) for bomb in BOMBS],
)
def test_compiler_bombs_end_within_the_deadline(core: RefereeCore, bomb: str) -> None:
    started = time.monotonic()
    flags = (
        ["-fconstexpr-ops-limit=999999999999", "-fconstexpr-loop-limit=2147483647"]
        if bomb == "constant"
        else []
    )
    with pytest.raises(RoleFailure) as raised:
        said(core, f"{RECORDING}build('bomb', {BOMBS[bomb]!r}, extra_cflags={flags!r})\n{says('0')}", 2.0)
    assert raised.value.word in ("compile_error", "timeout", "out_of_memory")
    assert time.monotonic() - started < 20


def test_a_background_process_of_the_build_ends_with_it(core: RefereeCore) -> None:
    source = f"""{RECORDING}
import subprocess
for session in (True, False) if RECORDING else ():
    try:
        subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(987.25)'], start_new_session=session)
    except PermissionError:
        continue
PATH = build('left', {TEXT!r})
{says("number(PATH)")}"""
    assert "<7>" in said(core, source)
    assert not _running("987.25")


def _running(word: str) -> list[str]:
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            command = Path("/proc", pid, "cmdline").read_bytes().decode("utf-8", "replace")
        except OSError:
            continue
        if word in command and "pytest" not in command:
            found.append(command)
    return found


@pytest.mark.slow
def test_candidates_build_at_once(core: RefereeCore) -> None:
    """Several candidates in threads, each with two extensions, two of them with the same."""
    core.session(TASK).open({"rows": 3, "cols": 17})
    core.fleet.server("compile")

    def build(value: int) -> bytes | str:
        texts = [TEXT.replace("7", str(100 + value)), TEXT.replace("7", "99")]
        source = f"{RECORDING}A, B = build('one', {texts[0]!r}), build('two', {texts[1]!r})\n"
        session = core.session(TASK)
        candidate = CandidateSource(
            f"{HEAD}{source}{says('number(A) * 1000 + number(B)')}", "external", str(value)
        )
        run = CandidateRun(core.fleet, session, candidate, time.monotonic() + 60)
        try:
            run.build([session.open({"rows": 3, "cols": 17})])
            run.start()
            with pytest.raises(RoleFailure) as raised:
                run.open(session.open({"rows": 3, "cols": 17}))
            return raised.value.sentence
        finally:
            run.close()

    with ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(build, (1, 2, 2)))
    assert all(
        f"<{value}099>" in str(answer) for value, answer in zip((101, 102, 102), answers, strict=True)
    ), answers
