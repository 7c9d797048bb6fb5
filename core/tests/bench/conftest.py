"""A tiny model with a chat template, records made by hand, and a server that streams what it is told to."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from paceline.bench.plan import Cell
from paceline.bench.records import Measurement, RequestRecord, Run

CHAT_TEMPLATE = "{% for message in messages %}<{{ message['content'] }}>{% endfor %}"


@pytest.fixture(scope="session")
def tiny_chat(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Directory of a random Llama over bytes, with a chat template. Its last id ends a text."""
    folder = str(tmp_path_factory.mktemp("tiny_chat"))
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({letter: index for index, letter in enumerate(letters)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=backend, chat_template=CHAT_TEMPLATE).save_pretrained(folder)
    torch.manual_seed(0)
    sizes = {"vocab_size": 256, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 2048}
    tokens = {"bos_token_id": None, "eos_token_id": 255, "pad_token_id": None}
    LlamaForCausalLM(LlamaConfig(**sizes, **heads, **tokens, initializer_range=0.1)).save_pretrained(folder)
    return folder


@pytest.fixture
def record() -> Callable[..., Measurement]:
    """``(engine, round, seconds, outputs, kind="chat", batch=1, **run) -> Measurement``."""

    def make(
        engine: str,
        round_index: int,
        seconds: float,
        outputs: Sequence[list[int]],
        kind: str = "chat",
        batch: int = 1,
        **fields: int,
    ) -> Measurement:
        requests = [RequestRecord(tokens, 0.5, 0.25 if len(tokens) > 1 else None) for tokens in outputs]
        run = Run(seconds, requests, **{"num_passes": 1, **fields})
        return Measurement(round_index, Cell(kind, batch), engine, run)

    return make


Event = dict[str, Any] | str


class FakeServer:
    """What it answers, and what it was asked.

    Attributes:
        url: Its base, which ends in ``/v1``.
        models: Body of ``/v1/models``.
        status: Of completions.
        refusal: Body of completions whose status is not 200.
        content_type: Of completions.
        answer: Request to events, each a JSON object or raw data.
        breaks_off: Whether connections close amid the answer.
        bodies: Requests for completions so far.
        keys: ``Authorization`` of all requests so far.
    """

    END = "[DONE]"

    def __init__(self, url: str) -> None:
        self.url = url
        self.models: Any = {"object": "list", "data": [{"id": "tiny"}]}
        self.status = 200
        self.refusal = b""
        self.content_type = "text/event-stream; charset=utf-8"
        self.answer: Callable[[dict[str, Any]], list[Event]] = self.two_tokens
        self.breaks_off = False
        self.bodies: list[dict[str, Any]] = []
        self.keys: list[str | None] = []

    @staticmethod
    def chunk(text: str, token_ids: list[int] | None = None, finish_reason: str | None = None) -> dict[str, Any]:
        """An event with a part of the answer."""
        choice = {"index": 0, "text": text, "finish_reason": finish_reason}
        return {
            "object": "text_completion",
            "choices": [choice | ({} if token_ids is None else {"token_ids": token_ids})],
        }

    @staticmethod
    def usage(num_tokens: int) -> dict[str, Any]:
        """An event that tells how many tokens the answer has."""
        return {"object": "text_completion", "choices": [], "usage": {"completion_tokens": num_tokens}}

    def two_tokens(self, body: dict[str, Any]) -> list[Event]:
        """Tokens 97 and 98, in an event each."""
        return [self.chunk("a", [97]), self.chunk("b", [98], "length"), self.usage(2), self.END]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    fake: FakeServer

    def log_message(self, format: str, *arguments: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        self.fake.keys.append(self.headers["Authorization"])
        body = json.dumps(self.fake.models).encode()
        self._head(200 if self.path == "/v1/models" else 404, "application/json", len(body))
        self.wfile.write(body)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.fake.bodies.append(body | {"path": self.path})
        if self.fake.status != 200:
            self._head(self.fake.status, "application/json", len(self.fake.refusal))
            self.wfile.write(self.fake.refusal)
            return
        events = self.fake.answer(body)
        self._head(200, self.fake.content_type, None)
        for event in events:
            data = event if isinstance(event, str) else json.dumps(event, ensure_ascii=False)
            self._chunk(f": comment\ndata: {data}\n\n".encode())
        if self.fake.breaks_off:
            self.close_connection = True
        else:
            self._chunk(b"")

    def _head(self, status: int, content_type: str, length: int | None) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header(*("Transfer-Encoding", "chunked") if length is None else ("Content-Length", str(length)))
        self.end_headers()

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()


class _Server(ThreadingHTTPServer):
    daemon_threads = True


@pytest.fixture
def fake_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeServer]:
    """An OpenAI-compatible server on a free port that streams what the test tells it to."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    handler = type("Handler", (_Handler,), {})
    with _Server(("127.0.0.1", 0), handler) as server:
        handler.fake = FakeServer(f"http://127.0.0.1:{server.server_port}/v1")
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield handler.fake
        finally:
            server.shutdown()
            thread.join()
