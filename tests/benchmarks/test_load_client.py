"""The load generator's client takes whole answers, over the connections that it has."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from fastapi import FastAPI, Request, Response
from starlette.responses import StreamingResponse

from benchmarks.load_client import Answer, LoadClient
from tests.services.serving import serving

CONNECTIONS = set()


def application() -> FastAPI:
    """Answers of every form that the service has."""
    app = FastAPI()

    @app.get("/known/{count}")
    async def known(count: int, request: Request) -> Response:
        CONNECTIONS.add(request.client)
        return Response(b"x" * count)

    @app.get("/chunks")
    async def chunks() -> StreamingResponse:
        async def parts() -> AsyncIterator[bytes]:
            for size in (1, 70_000, 3):
                yield b"y" * size

        return StreamingResponse(parts())

    @app.get("/nothing")
    async def nothing() -> Response:
        return Response(status_code=204)

    @app.post("/echo", status_code=202)
    async def echo(request: Request) -> Response:
        return Response(await request.body(), status_code=202)

    return app


def test_answers_are_whole_and_connections_are_used_again() -> None:
    async def story(url: str) -> None:
        with LoadClient(url) as client:
            for _ in range(3):
                assert await client.get("/known/0") == Answer(200, 0)
                assert await client.get("/known/200000") == Answer(200, 200_000)
                assert await client.get("/chunks") == Answer(200, 70_004)
                assert await client.get("/nothing") == Answer(204, 0)
                assert await client.get("/lost") == Answer(404, 22)
                assert await client.post("/echo", b"[1, 2]") == Answer(202, 6)
            assert len(CONNECTIONS) == 1
            await asyncio.gather(*(client.get("/known/9") for _ in range(5)))
            assert 1 < len(CONNECTIONS) <= 5

    with serving(application()) as url, ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: asyncio.run(story(url))).result()


def test_half_an_answer_is_no_answer() -> None:
    async def story() -> None:
        async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf")
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(cut, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        with LoadClient(f"http://127.0.0.1:{port}") as client, pytest.raises(asyncio.IncompleteReadError):
            await client.get("/")
        server.close()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: asyncio.run(story())).result()
