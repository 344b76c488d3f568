"""Prompts as Jinja templates in files, so that they can be read, reviewed and versioned; their hash is in the evidence.

What strangers wrote (the reference, candidates, messages of compilers) goes into a prompt through the filter `data` alone.
It puts the text between two markers that hold a digest of the text itself, which the text cannot contain, so it cannot
close them; `_strangers.md.j2` says that nothing between markers is an instruction. A value is never a template.
"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

_FOLDER = Path(__file__).parent
_SUFFIX = ".md.j2"
#: Notes on techniques are parts of prompts, too.
_NOTES = _FOLDER.parent / "knowledge" / "notes"
_MARK_CHARACTERS = 24


def fill(name: str, **values: object) -> str:
    """The prompt `name`.md.j2 with its placeholders replaced.

    Raises:
        jinja2.UndefinedError: if a placeholder has no value.
        jinja2.TemplateNotFound: if there is no such prompt.
    """
    return fill_from(_FOLDER, name, **values)


def fill_from(folder: Path, template: str, /, **values: object) -> str:
    """The same for a template in another folder, which may include the parts that are here."""
    return _environment(folder).get_template(f"{template}{_SUFFIX}").render(values).strip() + "\n"


def data(text: object, what: str) -> str:
    """`text` as data: between markers that it cannot hold itself. `what` names it, for example "reference module"."""
    words = str(text)
    mark = hashlib.sha256(words.encode("utf-8", "surrogatepass")).hexdigest()[:_MARK_CHARACTERS]
    return f"<data {mark}: {what}>\n{words.rstrip()}\n</data {mark}>"


@cache
def prompts_sha256() -> str:
    """Hex digest over the names and contents of all templates and notes."""
    digest = hashlib.sha256()
    for path in [*sorted(_FOLDER.glob(f"*{_SUFFIX}")), *sorted(_NOTES.glob("*.md"))]:
        content = path.read_bytes()
        digest.update(f"{path.name} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def preload() -> None:
    """Compile every prompt now: a process that forks workers spares each of them some tenths of a second."""
    environment = _environment(_FOLDER)
    for path in _FOLDER.glob(f"*{_SUFFIX}"):
        environment.get_template(path.name)


@cache
def _environment(folder: Path) -> Environment:
    # Plain text for a model: there is no HTML to escape.
    environment = Environment(  # noqa: S701
        loader=FileSystemLoader([folder, _FOLDER]),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["data"] = data
    return environment
