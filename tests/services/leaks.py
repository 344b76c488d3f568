"""Looks for secrets in everything that a service shows, sends and writes: pages, answers, event streams, bundles, logs, files."""

from __future__ import annotations

import base64
import io
import json
import re
import zipfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from urllib.parse import quote

import httpx

_LINK = re.compile(r"""(?:href|src|action)=["'](/[^"'#]*)""")
_MOST_ADDRESSES = 400


def forms_of(secret: str) -> set[bytes]:
    """A secret as it may stand in a text: as it is, in JSON, in an address, in base64 wherever it begins there."""
    found = {secret, json.dumps(secret)[1:-1], quote(secret, safe="")}
    for shift in range(3):
        encoded = base64.b64encode(b"\0" * shift + secret.encode()).decode().rstrip("=")
        found.add(encoded[4 * bool(shift) : len(encoded) // 4 * 4])
    return {form.encode() for form in found}


class Scanner:
    """Finds secrets.

    Args:
        secrets: their values by name; a finding says the name alone.
    """

    def __init__(self, secrets: Mapping[str, str]) -> None:
        self._forms = {name: forms_of(value) for name, value in secrets.items()}
        self.found: dict[str, set[str]] = {}
        self.looked_at: list[str] = []

    def look(self, where: str, content: bytes) -> None:
        """Look at some bytes, and at each file inside if they are a zip."""
        self.looked_at.append(where)
        for name, forms in self._forms.items():
            if any(form in content for form in forms):
                self.found.setdefault(name, set()).add(where)
        if content[:4] == b"PK\x03\x04":
            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                for member in archive.namelist():
                    self.look(f"{where}!{member}", archive.read(member))

    def look_at_files(self, folder: Path, without: Collection[str] = ()) -> None:
        """Look at every file below a folder."""
        for path in folder.rglob("*"):
            if path.is_file() and path.name not in without:
                self.look(f"file {path.relative_to(folder)}", path.read_bytes())

    def walk(self, client: httpx.Client, seeds: Iterable[str], *, follow: bool) -> None:
        """Look at the answers to GET of these addresses, and perhaps of whatever they link to."""
        waiting, seen = list(seeds), set[str]()
        while waiting and len(seen) < _MOST_ADDRESSES:
            path = waiting.pop(0)
            if path in seen:
                continue
            seen.add(path)
            answer = client.get(path, headers={"Accept": "text/html, */*"})
            shown = [value for name, value in answer.headers.multi_items() if name != "set-cookie"]
            self.look(f"GET {path}", answer.content + "\n".join(shown).encode())
            if follow and answer.headers.get("content-type", "").startswith("text/html"):
                waiting += [link.replace("&amp;", "&") for link in _LINK.findall(answer.text)]


def addresses(paths: Iterable[str], ids: Mapping[str, str]) -> Iterator[str]:
    """Addresses of every route whose parameters are known."""
    for path in paths:
        filled = path.format_map({name: ids.get(name, "{") for name in re.findall(r"{(\w+)}", path)})
        if "{" not in filled:
            yield filled
