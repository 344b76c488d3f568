"""The client against a real HTTP server: answers, retries, failures, and the key that must not leak."""

from __future__ import annotations

import base64
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from agent.errors import ProviderError
from agent.messages import Message
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


def test_a_server_that_does_not_stream_is_understood() -> None:
    with chat_server(Answer("hi there", usage=(11, 7), whole=True)) as server:
        reply = provider(server).complete(ASK)
    assert server.requests[0]["stream"] is True
    assert (reply.text, reply.finish, reply.prompt_tokens, reply.completion_tokens) == (
        "hi there",
        "stop",
        11,
        7,
    )


def test_an_answer_in_many_pieces_is_joined() -> None:
    text = "".join(chr(97 + number % 26) for number in range(5000))
    with chat_server(Answer(text, finish="length", pieces=1000)) as server:
        reply = provider(server).complete(ASK)
    assert (reply.text, reply.finish) == (text, "length")


@pytest.mark.parametrize(
    "message",
    [
        "max_tokens is too large: 32768. This model supports at most 8192 completion tokens",
        "max_tokens must be <= 8192",
        "the valid range of max_tokens is [1, 8192]",
        "max_completion_tokens exceeds model limit of 8192",
    ],
)
def test_a_server_that_allows_shorter_answers_is_asked_for_shorter_ones(message: str) -> None:
    def chosen(request: dict[str, Any]) -> Answer:
        if request["max_completion_tokens"] > 8192:
            return Answer(status=400, message=message)
        return Answer("ok")

    with chat_server(chosen=chosen) as server:
        client = provider(server, max_tokens=32_768)
        assert client.complete(ASK).text == client.complete(ASK).text == "ok"
    assert [request["max_completion_tokens"] for request in server.requests] == [32_768, 8192, 8192]


def test_a_prompt_that_never_fits_is_told_and_does_not_shorten_later_answers() -> None:
    full = Answer(status=400, message="This model's maximum context length is 9000 tokens.")
    with chat_server(full, full, full, Answer("ok")) as server:
        client = provider(server, max_tokens=9000)
        with pytest.raises(ProviderError) as caught:
            client.complete(ASK)
        assert caught.value.kind == "no_room"
        assert client.complete(ASK).text == "ok"
    assert [request["max_completion_tokens"] for request in server.requests] == [9000, 4500, 2250, 9000]


EVENT = (
    b'data: {"choices": [{"index": 0, "delta": {"content": "class ModelNew"}, "finish_reason": null}]}\n\n'
)


@pytest.mark.parametrize(
    ("events", "kind"),
    [
        (EVENT, "cut"),
        (EVENT + b'data: {"error": {"message": "the worker died", "type": "server_error"}}\n\n', "cut"),
        (EVENT + b"data: {half of a\n\n", "protocol"),
        (EVENT.replace(b'"class ModelNew"', b"7"), "protocol"),
        (b"", "protocol"),
        (b"data: [1]\n\n", "protocol"),
        (EVENT.replace(b'"class ModelNew"', b'["a list"]'), "protocol"),
    ],
)
def test_a_stream_that_breaks_off_is_told_and_not_asked_for_again(events: bytes, kind: str) -> None:
    answer = Answer(raw=events, headers=(("Content-Type", "text/event-stream"),))
    with chat_server(answer) as server, pytest.raises(ProviderError) as caught:
        provider(server, max_retries=2).complete(ASK)
    assert caught.value.kind == kind
    assert len(server.requests) == 1


def test_a_stream_that_ends_without_a_reason_is_an_answer() -> None:
    events = b": keep alive\n\ndata:\n\n" + EVENT + b"data: [DONE]\n\n"
    with chat_server(Answer(raw=events, headers=(("Content-Type", "text/plain"),))) as server:
        assert provider(server).complete(ASK).text == "class ModelNew"


def test_a_stream_that_begins_with_an_error_is_asked_for_again_and_tells_no_key() -> None:
    error = b'data: {"error": {"message": "slow down, ' + KEY.encode() + b'", "code": 429}}\n\n'
    busy = Answer(raw=error, headers=(("Content-Type", "text/event-stream"),))
    with chat_server(busy, Answer("at last")) as server:
        assert provider(server, max_retries=1).complete(ASK).text == "at last"
    with chat_server(busy) as server, pytest.raises(ProviderError) as caught:
        provider(server).complete(ASK)
    assert caught.value.kind == "rate_limit"
    assert KEY not in str(caught.value) and "***" in str(caught.value)
    cut = Answer(raw=EVENT + error, headers=busy.headers)
    with chat_server(cut) as server, pytest.raises(ProviderError) as caught:
        provider(server, max_retries=2).complete(ASK)
    assert caught.value.kind == "cut" and KEY not in str(caught.value) and len(server.requests) == 1


@pytest.mark.parametrize(
    ("status", "message", "known"),
    [
        (400, "Unknown parameter: stream_options", "stream_options"),
        (422, "stream_options: extra fields not permitted", "stream_options"),
        (400, "Streaming is not supported by this model", "stream"),
        (400, "Unrecognized request argument: max_completion_tokens", "max_completion_tokens"),
        (
            400,
            "max_completion_tokens is unknown (request req_12345, id 77ab-5120-x)",
            "max_completion_tokens",
        ),
    ],
)
def test_requests_that_run_at_once_each_leave_out_what_a_server_does_not_know(
    status: int, message: str, known: str
) -> None:
    def chosen(request: dict[str, Any]) -> Answer:
        return Answer(status=status, message=message) if known in request else Answer("ok", delay_s=0.05)

    with chat_server(chosen=chosen) as server, ThreadPoolExecutor(8) as pool:
        client = provider(server)
        assert [one.text for one in pool.map(lambda _: client.complete(ASK), range(8))] == ["ok"] * 8
        asked = len(server.requests)
        client.complete(ASK)
    assert len(server.requests) == asked + 1, "what it refused is remembered"


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
        (Answer(status=400, message="This model's maximum context length is 64 tokens."), "no_room"),
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


def test_waits_as_long_as_a_busy_server_asks() -> None:
    busy = Answer(status=429, message="slow down", headers=(("Retry-After", "1"),))
    with chat_server(busy, Answer("at last")) as server:
        reply = provider(server, max_retries=1).complete(ASK)
    assert reply.elapsed_s >= 1.0
    assert reply.retries == 1


def test_does_not_wait_longer_than_its_time_out() -> None:
    busy = Answer(status=429, message="slow down", headers=(("Retry-After", "3600"),))
    with chat_server(busy) as server, pytest.raises(ProviderError) as caught:
        provider(server, max_retries=5, timeout_s=2.0).complete(ASK)
    assert caught.value.kind == "rate_limit"
    assert len(server.requests) == 1


def test_an_answer_that_breaks_off_is_not_asked_for_again() -> None:
    with (
        chat_server(Answer("x" * 1000, cut_after_bytes=200)) as server,
        pytest.raises(ProviderError) as caught,
    ):
        provider(server, max_retries=2).complete(ASK)
    assert caught.value.kind == "cut"
    assert len(server.requests) == 1, "it may have been billed"


@pytest.mark.parametrize("begin", ["headers", "body"])
def test_an_answer_that_trickles_meets_the_time_out(begin: str) -> None:
    answer = Answer("x" * 1000, trickle_s=0.05, trickle_from=begin)
    began_s = time.monotonic()
    with chat_server(answer) as server, pytest.raises(ProviderError) as caught:
        provider(server, timeout_s=0.5).complete(ASK)
    assert caught.value.kind == "timeout"
    assert time.monotonic() - began_s < 10, "all of it takes a minute"


def test_a_long_answer_is_cut_and_a_huge_one_is_not_read_to_its_end() -> None:
    with chat_server(Answer("x" * 2_000_000)) as server:
        reply = provider(server).complete(ASK)
    assert reply.finish == "too_long"
    assert len(reply.text) < 500_000
    with chat_server(Answer("x" * 9_000_000)) as server, pytest.raises(ProviderError) as caught:
        provider(server).complete(ASK)
    assert caught.value.kind == "too_long"


def test_a_compressed_body_is_refused_since_its_length_cannot_be_known() -> None:
    bomb = Answer(raw=b"\x1f\x8b", headers=(("Content-Encoding", "gzip"),))
    with chat_server(bomb) as server, pytest.raises(ProviderError) as caught:
        provider(server).complete(ASK)
    assert caught.value.kind == "too_long"


def test_a_key_in_an_answer_or_in_a_prompt_goes_no_further() -> None:
    encoded = base64.b64encode(KEY.encode()).decode().rstrip("=")
    with chat_server(Answer(f"your key is {KEY} or {encoded}")) as server:
        reply = provider(server).complete([Message("user", f"# {KEY}")])
    assert KEY not in reply.text
    assert encoded not in reply.text
    assert reply.text.count("***") == 2
    assert server.requests[0]["messages"][0]["content"] == "# ***"


def test_numbers_of_tokens_that_make_no_sense_are_estimated() -> None:
    with chat_server(Answer("x" * 400, usage=(-5, 10**30))) as server:
        reply = provider(server).complete(ASK)
    assert reply.estimated
    assert reply.completion_tokens == 100


def test_a_request_has_a_name_that_a_server_may_know_it_by() -> None:
    with chat_server(Answer("x")) as server:
        provider(server).complete(ASK, key="job-1")
        assert server.headers[0]["idempotency-key"] == "job-1"


def test_a_redirect_is_not_followed_with_the_key() -> None:
    with chat_server(Answer("elsewhere")) as other:
        moved = Answer(status=307, headers=(("Location", f"{other.base_url}/chat/completions"),))
        with chat_server(moved) as server, pytest.raises(ProviderError):
            provider(server).complete(ASK)
    assert other.requests == []
