"""Strips comments and insignificant whitespace from C++, CUDA and PTX in a candidate's strings.

Uses no parser: a text stays unchanged unless it is clearly such a source and nothing reads its characters.
"""

from __future__ import annotations

import ast
import re

_LITERAL = r"\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])'"
_COMMENT = re.compile(rf"(?P<literal>{_LITERAL})|//(?:\\\n|[^\n])*|/\*.*?\*/", re.DOTALL)
_SPACE = re.compile(rf"(?P<literal>{_LITERAL})|\s+")
_PYTHON_LINE = re.compile(r"^\s*(def |import |from \w|class \w+.*:\s*$|@\w)", re.MULTILINE)
_PUNCTUATION = "(){}[];,"
#: Methods and functions that edit or read a text; in an edited text, a comment may be a placeholder.
_EDITS = frozenset(
    "replace format format_map sub subn split rsplit splitlines partition rpartition substitute safe_substitute find rfind"
    " index rindex count translate removeprefix removesuffix startswith endswith search match findall finditer".split()
)


def edits_texts(tree: ast.Module) -> bool:
    """Whether the program may read or edit its strings before it passes them on."""
    texts = {
        target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.value, (ast.Constant, ast.JoinedStr))
        for target in node.targets
        if isinstance(target, ast.Name)
    }

    def is_text(node: ast.AST) -> bool:
        if isinstance(node, ast.Name):
            return node.id in texts
        return isinstance(node, ast.Constant) and isinstance(node.value, str)

    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in _EDITS:
            return True
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod) and is_text(node.left):
            return True
        if isinstance(node, (ast.Subscript, ast.Attribute)) and is_text(node.value):
            return True
    return False


def is_native(text: str) -> bool:
    """Whether a text looks like C++ or PTX: it has statements, and no line looks like Python."""
    return ";" in text and any(sign in text for sign in "{(\n") and not _PYTHON_LINE.search(text)


def squeezed(text: str) -> str:
    """The text as a compiler sees it, except for line numbers."""
    if 'R"' in text or "__LINE__" in text:
        return text
    bare = _COMMENT.sub(lambda found: found["literal"] or " ", text)
    code: list[str] = []
    lines: list[str] = []
    directive = False
    for line in bare.split("\n"):
        # Whitespace distinguishes `#define F (x)` from `#define F(x)`, and a newline ends a directive.
        if directive or line.lstrip().startswith("#"):
            lines += [_without_spaces("\n".join(code)), line.strip()]
            code = []
            directive = line.rstrip().endswith("\\")
        else:
            code.append(line)
    lines.append(_without_spaces("\n".join(code)))
    return "\n".join(line for line in lines if line)


def _without_spaces(code: str) -> str:
    stripped = code.strip()

    def shorter(found: re.Match[str]) -> str:
        if found["literal"]:
            return found["literal"]
        before, after = stripped[found.start() - 1], stripped[found.end()]
        if before in _PUNCTUATION or after in _PUNCTUATION:
            return ""
        return " " if _is_word(before) == _is_word(after) else ""  # `a + +b` is not `a ++b`

    return _SPACE.sub(shorter, stripped)


def _is_word(sign: str) -> bool:
    return sign.isalnum() or sign in "_\"'"
