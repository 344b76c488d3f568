"""Secrets by value in every form, and in messages also by shape."""

from __future__ import annotations

import base64
import logging
import sys

import pytest

from agent.redaction import RedactingFilter, known_secrets, mask_logs, redact, redact_json, redact_message

KEY = "sk-secret/0123456789"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", KEY)
    monkeypatch.setenv("SHORT_TOKEN", "abc")
    monkeypatch.setenv("MONKEY", "not-a-secret-at-all")


def test_secrets_are_known_by_the_names_of_their_variables() -> None:
    assert KEY in known_secrets()
    assert "abc" not in known_secrets(), "it would be found in any text"
    assert "not-a-secret-at-all" not in known_secrets()


@pytest.mark.parametrize(
    "form", [KEY, base64.b64encode(KEY.encode()).decode(), "sk-secret%2F0123456789", f"x{KEY}y"]
)
def test_every_form_is_masked(form: str) -> None:
    masked = redact(f"before {form} after", known_secrets())
    assert form not in masked
    assert masked.startswith("before ")
    assert masked.endswith(" after")


def test_source_that_only_looks_like_a_key_is_left_alone() -> None:
    source = 'name = "sk-abcdefghijklmnopqrstuvwxyz"'
    assert redact(source, known_secrets()) == source


def test_headers_and_passwords_in_addresses_are_masked_in_messages() -> None:
    text = redact_message("Authorization: Bearer abcdefgh12345678 at https://me:pass@host/v1", ())
    assert text == "Authorization: Bearer *** at https://***@host/v1"


def test_json_is_masked_at_any_depth() -> None:
    assert redact_json({"a": [{"b": KEY}, 1, None]}, [KEY]) == {"a": [{"b": "***"}, 1, None]}


def test_logs_are_masked_once_whatever_handlers_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    logger = logging.Logger("apart")
    logger.addHandler(logging.StreamHandler(sys.stderr))
    mask_logs(logger)
    mask_logs(logger)
    logger.warning("with %s", KEY)
    assert capsys.readouterr().err == "with ***\n"
    assert len(logger.handlers[0].filters) == 1


def test_a_log_holds_no_secret_in_message_arguments_or_traceback(caplog: pytest.LogCaptureFixture) -> None:
    caplog.handler.addFilter(RedactingFilter())
    try:
        raise ValueError(f"bad key {KEY}")
    except ValueError:
        logging.getLogger("test").exception("with %s", KEY)
    assert KEY not in caplog.text
    assert "***" in caplog.text
