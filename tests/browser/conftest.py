"""Fixtures: a service whose database a test may write its story into, and a browser that reports what goes wrong."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from services.db.session import Database
from tests.browser.shelf import Shelf
from tests.services.service import Service

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

# Debian's Chromium as root on a machine without a network: no sandbox of its own, nothing that phones home.
CHROMIUM_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="session")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shelf]:
    """A real service without a worker: it shows what tests write into its database, and runs nothing."""
    with Service(tmp_path_factory.mktemp("shelf"), "--no-worker") as running:
        database = Database(f"sqlite:///{running.data_dir / 'kernelwright.db'}")
        yield Shelf(running, database)
        database.close()


@pytest.fixture(scope="session")
def working_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A real service with its worker and the real referee."""
    with Service(tmp_path_factory.mktemp("working")) as running:
        running.wait_until_ready(120.0)
        yield running


@dataclass
class Visit:
    """A page of the browser and everything that it complained about or asked for."""

    page: Page
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def assert_clean(self, url: str) -> None:
        """No error on the console, no script that failed, no request to anybody but the service."""
        assert self.complaints == []
        assert [address for address in self.requests if not address.startswith((f"{url}/", "data:"))] == []


@pytest.fixture(scope="package")
def chromium() -> Iterator[Browser]:
    """One headless browser for all tests of this folder. The test carries the marker `browser`.

    It ends with them: while it lives an event loop runs in this thread, and no test could run one of its own.
    """
    from playwright.sync_api import sync_playwright

    from tests.servers import chromium as chromium_program

    program = chromium_program()
    assert program is not None, "the test lacks @pytest.mark.browser"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=CHROMIUM_FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def visit(chromium: Browser) -> Iterator[Visit]:
    """A fresh page at laptop size, in light colors."""
    context = chromium.new_context(viewport={"width": 1280, "height": 900}, color_scheme="light")
    made = Visit(context.new_page())
    watch(made)
    yield made
    context.close()


def watch(visit: Visit) -> None:
    """Write down what the page complains about and asks for."""
    page = visit.page
    page.on(
        "console", lambda message: visit.complaints.append(message.text) if message.type == "error" else None
    )
    page.on("pageerror", lambda error: visit.complaints.append(str(error)))
    page.on("request", lambda request: visit.requests.append(request.url))


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where screenshots of this run are kept."""
    return tmp_path_factory.mktemp("pictures")
