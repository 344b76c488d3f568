"""axe-core on every page of the dashboard, at laptop and phone width, light and dark: no finding and a clean console.

axe-core (MPL-2.0) is no part of this repository: `npm pack` fetches one version, whose digest is checked, into the cache of this machine.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.browser.conftest import Visit, watch
from tests.browser.shelf import Shelf
from tests.browser.test_new_pages import addresses
from tests.services.ranked import TASK, ended_job

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.browser
VERSION = "4.14.1"
SHA256 = "29348999450cdf2849a8e70b7912fc2da85a849da39c0d0d5394f51d4a9ed95c"
_FETCH_S = 60


@pytest.fixture(scope="session")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The script. Without npm or a network the test is skipped; KERNELWRIGHT_REQUIRE with `axe` forbids that."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kernelwright" / "tests"
    kept = cache / f"axe-core-{VERSION}.min.js"
    if not kept.is_file():
        text = _fetched(tmp_path_factory.mktemp("axe"))
        if text is None:
            message = "axe-core could not be fetched: this needs npm and its registry"
            if "axe" in os.environ.get("KERNELWRIGHT_REQUIRE", "").split(","):
                pytest.fail(message)
            pytest.skip(message)
        cache.mkdir(parents=True, exist_ok=True)
        kept.write_bytes(text)
    found = kept.read_bytes()
    assert hashlib.sha256(found).hexdigest() == SHA256, "this is not the axe-core that was looked at"
    return found.decode()


def _fetched(folder: Path) -> bytes | None:
    npm = shutil.which("npm")
    if npm is None:
        return None
    try:
        subprocess.run([npm, "pack", f"axe-core@{VERSION}", "--silent"], cwd=folder, check=True,
                       capture_output=True, timeout=_FETCH_S)  # fmt: skip
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
        return None
    with tarfile.open(fileobj=io.BytesIO((folder / f"axe-core-{VERSION}.tgz").read_bytes())) as archive:
        member = archive.extractfile("package/axe.min.js")
        assert member is not None
        return member.read()


def findings(visit: Visit, script: str) -> list[str]:
    """What axe finds on the page that is open: rule, and where. Run by the driver, which no policy of the page forbids."""
    visit.page.evaluate(script)
    found: dict[str, Any] = visit.page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{one['id']}: {node['html'][:120]} {node.get('failureSummary', '')[:200]}"
        for one in found["violations"]
        for node in one["nodes"]
    ]


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_axe_finds_nothing_on_any_page(
    shelf: Shelf,
    chromium: Browser,
    axe: str,
    width: int,
    theme: str,
) -> None:
    pages = addresses(shelf)
    ranked = ended_job(shelf.database, 1.7, task=TASK)
    candidate = pages["compare"].partition("candidate=")[2].partition("&")[0]
    paths = [*pages.values(), "/", f"/ui/jobs/{ranked}", f"/ui/candidates/{candidate}", "/ui/leaderboard",
             f"/ui/leaderboard/{TASK}", "/ui/keys", f"/ui/jobs/{shelf.start_job('running')}"]  # fmt: skip
    context = chromium.new_context(viewport={"width": width, "height": 900}, color_scheme=theme)  # type: ignore[arg-type]
    visit = Visit(context.new_page())
    watch(visit)
    found = {}
    for path in paths:
        visit.page.goto(shelf.url + path)
        found[path] = findings(visit, axe)
    visit.assert_clean(shelf.url)
    context.close()
    shown = [f"{path}: {one}" for path, some in found.items() for one in some]
    assert not shown, "\n".join(shown)


def test_axe_sees_what_is_wrong(chromium: Browser, axe: str) -> None:
    page = chromium.new_context().new_page()
    page.set_content("<html><body><img src='x'><input></body></html>")
    seen = {one.partition(":")[0] for one in findings(Visit(page), axe)}
    page.context.close()
    assert {"image-alt", "label", "html-has-lang"} <= seen
