"""Turns an error of a task's process into a finding: rule, what is wrong, how to fix it."""

from __future__ import annotations

import re

from evaluator.description import LintFinding
from evaluator.errors import RoleFailure

#: Words of an error, its rule, what is wrong, and how to fix it. The first match is used.
_KNOWN = (
    (
        r"does not parse",
        "syntax_error",
        "the file is not valid Python",
        "correct the line that the message names",
    ),
    (
        r"uninitialized parameter|UninitializedParameter|UninitializedBuffer",
        "lazy_module",
        "its lazy modules (nn.LazyLinear and the like) have no weights before a first call, so none can be drawn",
        "name the sizes in __init__: nn.Linear(width, out) for nn.LazyLinear(out)",
    ),
    (
        r"forward\(\) returned",
        "contract",
        "its forward() returns no tensor",
        "return the tensor itself: leave out float(), .item() and .tolist()",
    ),
    (
        r"not positive-definite|not positive definite|matrix is singular|input is singular",
        "needs_kind_of_input",
        "it needs a kind of matrix that inputs with other values do not form",
        "take any matrix as input, and make the right kind of it in forward(): a @ a.mT + torch.eye(n) is positive definite",
    ),
    (
        (
            r"urlopen|URLError|HTTPError|Max retries|name resolution|Name or service not known|Network is unreachable"
            r"|reached for the network|huggingface|hf_hub|gaierror|ConnectionError|ConnectionRefused|No route to host|no internet connection"
        ),
        "needs_network",
        "it needs the network, and tasks run without one",
        "build the model from its constructor's arguments alone and draw weights in __init__ (no hub, no download)",
    ),
    (
        (
            r"FileNotFoundError|No such file or directory|PermissionError|Permission denied|IsADirectoryError"
            r"|Read-only file system"
        ),
        "needs_files",
        "it reads or writes files, but a task has only its own file",
        "put what it reads into the file, or draw it in get_inputs() and __init__",
    ),
    (
        (
            r"not compiled with CUDA enabled|No CUDA GPUs are available|Found no NVIDIA driver"
            # The process that it was forked from had already queried GPUs.
            r"|Cannot re-initialize CUDA in forked subprocess"
        ),
        "needs_gpu",
        "it asks for a GPU itself and fails without one",
        "leave device= out (inputs and weights are moved to where they are needed), or run lint on a GPU (--device cuda)",
    ),
    (
        r"ModuleNotFoundError|ImportError|No module named",
        "needs_package",
        "it imports a package or a file that does not exist here",
        "a task is one file: copy into it what it imports from other files; otherwise use only torch and Python's standard library",
    ),
    (
        r"is empty: no multiple|no multiple of \d+ lies in|no shape of the task fits",
        "empty_space",
        "its space of shapes is empty",
        "widen min and max of the dimension, or lower multiple_of",
    ),
    (
        r"^'[^']*' cannot be varied: |^space\[|^the file declares DIMS, so its space",
        "space_not_to_be_had",
        "the requested space is not possible",
        "give ranges for dimensions that `kernelwright shapes` prints for this file, or leave the space out",
    ),
    (
        (
            r"^DIMS|no class Model|no function get_|DIRECTION =|PRECISION =|must return a list|returns no tensor"
            r"|different shapes or dtypes|different numbers of inputs|no output depends on|is not supported"
        ),
        "contract",
        "the file does not keep the task format",
        "correct what the message names; the tasks in kernelbench_tasks/ show the format",
    ),
)

#: Rules whose sentence says more than the error does.
_SAY_ALL = ("lazy_module",)
#: The part of a path before the file's name, which may reveal a user's folders.
_FOLDERS = re.compile(r"(?<![\w.:/])/(?:[\w.+-]+/)+(?=[\w.+-]+)")


#: Sentences that say after a semicolon how to fix it.
_WITH_MENDING = (
    (r"returns different results for the same inputs", "not_deterministic"),
    (r"^forward\(\) changes inputs? [\d, ]+ in place", "changes_inputs"),
)


def finding_of(failure: RoleFailure, where: str = "") -> LintFinding:
    """A failure at the task's shape ``where`` (empty: before any shape was opened) as a finding that refuses the
    task.
    """
    text = f"{failure.sentence}\n{failure.detail}"
    said = _short(failure.sentence)
    if failure.word == "not_judged":
        return LintFinding("not_judged", "error", said, "try again, or on another machine")
    if failure.word == "timeout":
        return LintFinding(
            "too_slow",
            "error",
            f"it did not answer in time{where}: {said}",
            "make the reference faster, or lower max of its dimensions",
        )
    if failure.word == "out_of_memory" and failure.sentence.startswith("no shape of the task stays"):
        return LintFinding(
            "too_large",
            "error",
            f"none of its shapes is small and quick enough to be judged here: {said}",
            "run lint on a larger device (--device cuda), or make the module smaller",
        )
    if failure.word == "out_of_memory":
        return LintFinding(
            "too_large",
            "error",
            f"it does not fit into memory{where}: {said}",
            "lower max of its dimensions",
        )
    for pattern, rule in _WITH_MENDING:
        if re.search(pattern, failure.sentence):
            sentence, _, mending = failure.sentence.partition("; ")
            return LintFinding(rule, "error", sentence, mending)
    for pattern, rule, sentence, mending in _KNOWN:
        if re.search(pattern, text):
            told = sentence if rule in _SAY_ALL else f"{sentence}{where}: {said}"
            return LintFinding(rule, "error", told, mending)
    return LintFinding(
        "fails",
        "error",
        f"it fails{where}: {said}",
        "correct it for these sizes; if the file runs by itself, it fails with other sizes, other weights or other input values",
    )


def _short(sentence: str) -> str:
    sentence = _FOLDERS.sub("", sentence)
    return sentence if len(sentence) <= 300 else sentence[:297] + "..."
