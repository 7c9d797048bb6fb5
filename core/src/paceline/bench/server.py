"""Connections to a running OpenAI-compatible server."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import httpx2

from paceline.bench.completions import Completion, error_message, event_of, shown
from paceline.bench.errors import ServerModelError, ServerStatusError, ServerStreamError, ServerUnreachableError
from paceline.bench.rival_choices import ServerChoice

__all__ = ["Server", "connected"]

_SILENCE_S = 600.0
"""Longest silence of a server: a request may wait in its queue before the first token."""
_CONNECT_S = 10.0


class Server:
    """A server, and one of its models.

    Args:
        url: What ``/completions`` and ``/models`` follow.
        client: Connections to it.
        loop: Runs the requests.
    """

    def __init__(self, url: str, client: httpx2.AsyncClient, loop: asyncio.Runner) -> None:
        self.url = url
        self.model = ""
        self._client = client
        self._loop = loop

    def choose(self, model: str | None) -> None:
        """Say which model the requests are for; ``None`` = the only one.

        Raises:
            ServerUnreachableError: if nothing answers.
            ServerStatusError: if it does not list its models.
            ServerModelError: if it has no such model, or several and none is named.
        """
        known = self._loop.run(self._model_ids())
        names = ", ".join(known) or "none"
        if model is None and len(known) != 1:
            remedy = f'say which: "{self.url} model=NAME"' if known else "load one there"
            raise ServerModelError(f'the server at "{self.url}" serves {len(known)} models ({names}); {remedy}')
        if model is not None and model not in known:
            raise ServerModelError(f'the server at "{self.url}" serves no model "{model}"; it serves: {names}')
        self.model = known[0] if model is None else model

    def complete(self, bodies: Sequence[dict[str, Any]]) -> list[Completion]:
        """Answers to requests that are all sent at once.

        Raises:
            ServerUnreachableError: if nothing answers.
            ServerStatusError: if it refuses one.
            ServerStreamError: if an answer is no stream of events, or breaks off.
        """
        return self._loop.run(self._together(bodies))

    async def _together(self, bodies: Sequence[dict[str, Any]]) -> list[Completion]:
        return await asyncio.gather(*map(self._completion, bodies))

    async def _completion(self, body: dict[str, Any]) -> Completion:
        completion = Completion()
        try:
            async with self._client.stream("POST", "completions", json={"model": self.model, **body}) as response:
                await _check_status(response)
                async for message in httpx2.EventSource(response):
                    if (event := event_of(message.data)) is not None:
                        completion.put(event, time.perf_counter())
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            raise self._unreachable(error) from error
        except (httpx2.RequestError, ValueError) as error:
            raise ServerStreamError(
                f'the answer of "{self.url}" cannot be read: {_fault(error)}; see its log'
            ) from error
        if completion.finish_reason is None:
            raise ServerStreamError(f'the answer of "{self.url}" ended before it was whole; see its log')
        return completion

    async def _model_ids(self) -> list[str]:
        try:
            response = await self._client.get("models")
        except httpx2.RequestError as error:
            raise self._unreachable(error) from error
        await _check_status(response)
        try:
            return [str(entry["id"]) for entry in response.json()["data"]]
        except (ValueError, TypeError, KeyError) as error:
            raise ServerStatusError(
                f'"{response.request.url}" lists no models but answers: {shown(response.text)}; give the URL that '
                "/completions follows, such as http://localhost:8000/v1"
            ) from error

    def _unreachable(self, error: httpx2.RequestError) -> ServerUnreachableError:
        return ServerUnreachableError(
            f'nothing answers at "{self.url}": {_fault(error)}; start the server, or correct the URL'
        )


@contextmanager
def connected(choice: ServerChoice) -> Iterator[Server]:
    """A server while the block runs. The key of its API is taken from ``OPENAI_API_KEY``.

    Raises:
        PacelineError: as ``Server.choose`` says.
    """
    with asyncio.Runner() as loop:
        client = _client(choice.url)
        try:
            server = Server(choice.url, client, loop)
            server.choose(choice.model)
            yield server
        finally:
            loop.run(client.aclose())


def _client(url: str) -> httpx2.AsyncClient:
    key = os.environ.get("OPENAI_API_KEY")
    return httpx2.AsyncClient(
        base_url=url,
        headers={"Authorization": f"Bearer {key}"} if key else {},
        timeout=httpx2.Timeout(_SILENCE_S, connect=_CONNECT_S),
        limits=httpx2.Limits(max_connections=None, max_keepalive_connections=None),
    )


async def _check_status(response: httpx2.Response) -> None:
    if response.status_code == httpx2.codes.OK:
        return
    await response.aread()
    try:
        body = response.json()
    except ValueError:
        body = response.text
    raise ServerStatusError(
        f'"{response.request.url}" answers {response.status_code}: {error_message(body)}; the key of an API is '
        "taken from OPENAI_API_KEY, and the prompt goes as token ids with vLLM's fields"
    )


def _fault(error: Exception) -> str:
    return str(error) or type(error).__name__
