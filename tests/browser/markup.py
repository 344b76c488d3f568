"""Reads a rendered page the way a browser's parser would, so that tests can ask what is an element and what is text."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser

INLINE = frozenset({"a", "b", "i", "span", "code", "time", "wbr"})
VOID = frozenset({"meta", "link", "input", "br", "hr", "img", "wbr"})


@dataclass
class Element:
    """One element with its attributes and everything below it."""

    tag: str
    attributes: dict[str, str | None]
    children: list[Element] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """All text below, as a reader sees it, with single spaces."""
        return " ".join("".join(self.pieces).split())

    def find(self, tag: str, **attributes: str) -> list[Element]:
        """Every element below of this tag with these attributes (`class_` is `class`)."""
        wanted = {name.rstrip("_"): value for name, value in attributes.items()}
        found = []
        for child in self.children:
            if child.tag == tag and all(
                child.attributes.get(name) == value for name, value in wanted.items()
            ):
                found.append(child)
            found += child.find(tag, **attributes)
        return found

    def every(self) -> list[Element]:
        """Every element below."""
        return [one for child in self.children for one in (child, *child.every())]


class _Builder(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.root = Element("", {})
        self.open = [self.root]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, dict(attrs))
        self._part(tag)
        self.open[-1].children.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open[-1].children.append(Element(tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open[-1].tag == tag, f"</{tag}> closes <{self.open[-1].tag}>"
        self.open.pop()
        self._part(tag)

    def _part(self, tag: str) -> None:
        """Blocks stand apart from each other, as they do on the screen."""
        if tag not in INLINE:
            self.handle_data(" ")

    def handle_data(self, data: str) -> None:
        for element in self.open:
            element.pieces.append(data)


def parse(html: str) -> Element:
    """The page as a tree. Fails where an element is closed out of order."""
    builder = _Builder()
    builder.feed(html)
    builder.close()
    assert builder.open == [builder.root], f"left open: {[element.tag for element in builder.open[1:]]}"
    return builder.root
