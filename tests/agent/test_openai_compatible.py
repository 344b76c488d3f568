"""The client against a real HTTP server: answers, retries, failures, and the key that must not leak."""

from __future__ import annotations

import pytest

from agent.errors import ProviderError
from agent.providers.base import Message
from agent.providers.openai_compatible import OpenAICompatible
from agent.spec import ModelChoice
from tests.agent.chat_server import Answer, ChatServer, chat_server

ASK = [Message("system", "be brief"), Message("user", "hello")]
KEY = "sk-secret-0123456789"


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_LLM_KEY", KEY)


def provider(server: ChatServer, max_retries: int = 0, **options: object) -> OpenAICompatible:
    choice = ModelChoice("m-1", base_url=server.base_url, api_key_variable="TEST_LLM_KEY", **options)  # type: ignore[arg-type]
    return OpenAICompatible(choice, max_retries=max_retries)


def test_sends_the_conversation_and_reads_the_reply_with_its_usage() -> None:
    with chat_server(Answer("hi there", usage=(11, 7))) as server:
        reply = provider(server, temperature=0.5, max_tokens=99).complete(ASK)
    assert (reply.text, reply.finish, reply.prompt_tokens, reply.completion_tokens) == (
        "hi there",
        "stop",
        11,
        7,
    )
    assert not reply.estimated
    assert server.requests[0]["messages"] == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "hello"},
    ]
    assert server.requests[0]["temperature"] == 0.5
    assert server.requests[0]["max_completion_tokens"] == 99
    assert server.authorizations == [f"Bearer {KEY}"]


def test_estimates_tokens_when_the_server_reports_none() -> None:
    with chat_server(Answer("x" * 400, usage=None)) as server:
        reply = provider(server).complete(ASK)
    assert reply.estimated
    assert reply.completion_tokens == 100


def test_retries_a_busy_server() -> None:
    busy = Answer(status=429, message="slow down")
    with chat_server(busy, Answer(status=500, message="oops"), Answer("at last")) as server:
        reply = provider(server, max_retries=2).complete(ASK)
    assert reply.text == "at last"
    assert len(server.requests) == 3


def test_falls_back_to_the_older_name_of_the_token_limit() -> None:
    refusal = Answer(status=400, message="Unrecognized request argument: max_completion_tokens")
    with chat_server(refusal, Answer("ok")) as server:
        client = provider(server, max_tokens=5)
        assert client.complete(ASK).text == "ok"
        assert client.complete(ASK).text == "ok"
    assert [("max_tokens" in request) for request in server.requests] == [False, True, True]


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (Answer(status=401, message="no"), "authentication"),
        (Answer(status=429, message="slow down"), "rate_limit"),
        (Answer(status=500, message="oops"), "server"),
        (Answer(status=404, message="no such model"), "request"),
        (Answer(raw=b"<html>gateway</html>"), "protocol"),
        (Answer(raw=b'{"choices": []}'), "protocol"),
        (Answer(raw=b'{"choices": null}'), "protocol"),
        (Answer(raw=b'{"choices": [{"message": {"content": 7}}]}'), "protocol"),
        (Answer(raw=b"[]"), "protocol"),
        (Answer(raw=b""), "protocol"),
    ],
)
def test_names_what_went_wrong(answer: Answer, kind: str) -> None:
    with chat_server(answer) as server, pytest.raises(ProviderError) as caught:
        provider(server).complete(ASK)
    assert caught.value.kind == kind
    assert str(caught.value)


def test_a_silent_server_is_a_timeout() -> None:
    with chat_server(Answer("late", delay_s=3.0)) as server, pytest.raises(ProviderError) as caught:
        provider(server, timeout_s=0.3).complete(ASK)
    assert caught.value.kind == "timeout"


def test_an_absent_server_is_a_server_failure() -> None:
    with chat_server(Answer("x")) as server:
        client = provider(server)
    with pytest.raises(ProviderError) as caught:
        client.complete(ASK)
    assert caught.value.kind == "server"


def test_a_key_that_the_server_repeats_does_not_reach_the_message() -> None:
    echo = Answer(status=401, message=f"Incorrect API key provided: {KEY}.")
    with chat_server(echo) as server, pytest.raises(ProviderError) as caught:
        provider(server).complete(ASK)
    assert KEY not in str(caught.value)
    assert caught.value.__cause__ is None
    assert "***" in str(caught.value)


def test_a_refusal_is_told_apart_from_an_answer() -> None:
    with chat_server(Answer(None, refusal="I will not.")) as server:
        reply = provider(server).complete(ASK)
    assert (reply.finish, reply.text) == ("refusal", "I will not.")


def test_lone_surrogates_are_replaced_so_that_the_reply_can_be_stored() -> None:
    raw = b'{"choices":[{"index":0,"finish_reason":"stop","message":{"role":"assistant","content":"a\\ud800b"}}]}'
    with chat_server(Answer(raw=raw)) as server:
        reply = provider(server).complete(ASK)
    assert reply.text == "a?b"
