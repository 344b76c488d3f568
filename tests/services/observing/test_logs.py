"""Log lines: whose request and job they belong to, what never is in one, and that none can be forged."""

from __future__ import annotations

import io
import json
import logging
import threading
from collections.abc import Iterator
from contextvars import copy_context

import pytest

from services.observing.logs import LogFormat, belonging_to, belongs_to, dress

SECRET = "sk-0123456789abcdef"


@pytest.fixture
def written() -> Iterator[io.StringIO]:
    """Where the logger `tests.observing` writes."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    logger = logging.getLogger("tests.observing")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    yield stream
    logger.removeHandler(handler)


def log(log_format: LogFormat) -> logging.Logger:
    logger = logging.getLogger("tests.observing")
    dress(logger.handlers, log_format)
    dress(logger.handlers, log_format)
    return logger


def test_json_lines_hold_the_ids_of_their_context(written: io.StringIO) -> None:
    logger = log("json")

    def serve() -> None:
        belongs_to(request_id="r1", job_id="j1")
        logger.info("within %d", 1)
        with belonging_to("j2"):
            thread = threading.Thread(target=copy_context().run, args=(logger.info, "beside"))
            thread.start()
            thread.join()
        logger.info("still within")

    logger.info("before")
    copy_context().run(serve)
    logger.info("after")
    lines = [json.loads(line) for line in written.getvalue().splitlines()]
    assert [(line["message"], line["request_id"], line["job_id"]) for line in lines] == [
        ("before", None, None), ("within 1", "r1", "j1"), ("beside", "r1", "j2"),
        ("still within", "r1", "j1"), ("after", None, None)
    ]  # fmt: skip
    assert {"time", "level", "logger"} <= set(lines[0])


def test_text_lines_hold_them_too(written: io.StringIO) -> None:
    with belonging_to("j1"):
        log("text").info("x=None")
    assert written.getvalue().endswith(" INFO tests.observing [request=- job=j1]: x=None\n")


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_a_line_break_of_a_stranger_begins_no_line(written: io.StringIO, log_format: LogFormat) -> None:
    log(log_format).info("said %s", "a\n2026-01-01 00:00:00 INFO root: all is well\r\x1b[2J\u2028b")
    assert len(written.getvalue().splitlines()) == 1
    assert "\x1b" not in written.getvalue()


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_no_secret_is_written(
    written: io.StringIO, log_format: LogFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNELWRIGHT_LLM_API_KEY", SECRET)
    logger = log(log_format)
    logger.info("key %s", SECRET)
    try:
        raise ValueError(f"refused {SECRET}")
    except ValueError:
        logger.exception("failed at redis://:hunter2hunter2@db:1/0")
    text = written.getvalue()
    assert "refused ***" in text, "the traceback is there"
    assert SECRET not in text
    assert "hunter2" not in text


def test_a_message_without_end_is_cut(written: io.StringIO) -> None:
    log("json").info("x" * 1_000_000)
    assert len(written.getvalue()) < 20_000
