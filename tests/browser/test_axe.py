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
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from services.db.models import Job, utc_now
from tests.browser.conftest import Visit
from tests.browser.shelf import Shelf
from tests.browser.test_new_pages import addresses, workers
from tests.services.keyed import Keyed
from tests.services.ranked import TASK, ended_job
from tests.services.serving import serving

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

# slow: half a minute, and a machine that runs only `make test` needs no npm
pytestmark = [pytest.mark.browser, pytest.mark.slow]
VERSION = "4.14.1"
SHA256 = "29348999450cdf2849a8e70b7912fc2da85a849da39c0d0d5394f51d4a9ed95c"
_FETCH_S = 60


@pytest.fixture(scope="session")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The script. Without npm or a network the test is skipped, where browsers are required failed."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kernelwright" / "tests"
    kept = cache / f"axe-core-{VERSION}.min.js"
    if not kept.is_file():
        text = _fetched(tmp_path_factory.mktemp("axe"))
        if text is None:
            pytest.skip("axe-core could not be fetched: this needs npm and its registry")
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


def findings(page: Page, *rules: str) -> list[str]:
    """What axe, already loaded, finds on the page that is open, by all of its rules or these: rule, and where."""
    only = {"runOnly": {"type": "rule", "values": list(rules)}} if rules else {}
    found: dict[str, Any] = page.evaluate(
        "options => axe.run(document, options)", {"resultTypes": ["violations"], **only}
    )
    return [
        f"{one['id']}: {node['html'][:120]} {node.get('failureSummary', '')[:200]}"
        for one in found["violations"]
        for node in one["nodes"]
    ]


def walked(page: Page, axe: str, url: str, paths: Iterable[str]) -> list[str]:
    """Findings on all these pages: every rule at both widths; in the dark, where nothing but colors differs, those of contrast."""
    found = []
    for path in paths:
        answer = page.goto(url + path)
        assert answer is not None and answer.ok and page.url == url + path
        page.evaluate(axe)  # by the driver, whom no policy of the page forbids it
        for width in (1280, 390):
            page.set_viewport_size({"width": width, "height": 900})
            for theme, rules in (("dark", ["color-contrast", "link-in-text-block"]), ("light", [])):
                page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
                found += [f"{path}, {width} px, {theme}: {one}" for one in findings(page, *rules)]
    return found


def test_axe_finds_nothing_on_any_page(shelf: Shelf, visit: Visit, axe: str) -> None:
    pages, page = addresses(shelf), visit.page
    ranked, running = ended_job(shelf.database, 1.7, task=TASK), shelf.start_job("running")
    candidate = pages["compare"].partition("candidate=")[2].partition("&")[0]
    paths = [*pages.values(), "/", f"/ui/jobs/{ranked}", f"/ui/candidates/{candidate}", "/ui/leaderboard",
             f"/ui/leaderboard/{TASK}", "/ui/keys", f"/ui/jobs/{running}", "/docs"]  # fmt: skip
    with workers(shelf):
        found = walked(page, axe, shelf.url, paths)
    visit.assert_clean(shelf.url)
    with shelf.database.write() as session:  # other tests look at the same service
        job = session.get_one(Job, running)
        job.state, job.finished_at = "cancelled", utc_now()
    assert not found, "\n".join(found)


def test_axe_finds_nothing_on_the_login_page(tmp_path: Path, visit: Visit, axe: str) -> None:
    """Which a service without keys never shows."""
    keyed = Keyed(tmp_path)
    keyed.key("ada")
    with serving(keyed.app) as url:
        found = walked(visit.page, axe, url, ["/login"])
        visit.assert_clean(url)
    keyed.close()
    assert not found, "\n".join(found)


def test_axe_sees_what_is_wrong(chromium: Browser, axe: str) -> None:
    page = chromium.new_context().new_page()
    page.set_content("<html><body><img src='x'><input></body></html>")
    page.evaluate(axe)
    seen = {one.partition(":")[0] for one in findings(page)}
    page.context.close()
    assert {"image-alt", "label", "html-has-lang"} <= seen
