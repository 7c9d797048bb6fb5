"""A running server under measurement, against one in this process."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from paceline.bench import server as connections
from paceline.bench import server_engine
from paceline.bench.errors import (
    ServerModelError,
    ServerOutputError,
    ServerStatusError,
    ServerStreamError,
    ServerUnreachableError,
)
from paceline.bench.records import RequestRecord
from paceline.bench.rival_choices import ServerChoice
from paceline.bench.server import Server, connected
from paceline.bench.server_engine import ServerEngine


def letters(text: str) -> list[int]:
    return [ord(letter) for letter in text]


@pytest.fixture
def server(fake_server: Any) -> Iterator[Server]:
    with connected(ServerChoice(fake_server.url, None)) as server:
        yield server


@pytest.fixture
def engine(server: Server) -> ServerEngine:
    return ServerEngine(server, letters, ignore_eos=False)


def outputs(records: list[RequestRecord]) -> list[tuple[list[int], int | None]]:
    return [(record.token_ids, record.text_num_tokens) for record in records]


def test_a_run_is_greedy_and_its_tokens_are_the_server_s(fake_server: Any, engine: ServerEngine) -> None:
    run = engine.generate([[5, 6], [7]], 2)
    assert outputs(run.requests) == [([97, 98], None)] * 2
    assert all(0 < request.ttft_s < run.seconds for request in run.requests)
    assert all(0 <= request.tpot_s <= run.seconds for request in run.requests)
    assert run.num_passes is None
    assert sorted(body["prompt"] for body in fake_server.bodies) == [[5, 6], [7]]
    asked = fake_server.bodies[0]
    assert (asked["path"], asked["model"], asked["max_tokens"]) == ("/v1/completions", "tiny", 2)
    assert (asked["temperature"], asked["repetition_penalty"], asked["top_p"]) == (0.0, 1.0, 1.0)
    assert asked["stream"] and asked["stream_options"] == {"include_usage": True} and asked["return_token_ids"]
    assert "ignore_eos" not in asked


def test_going_on_past_the_end_is_asked_for(fake_server: Any, server: Server) -> None:
    ServerEngine(server, letters, ignore_eos=True).generate([[5]], 2)
    assert fake_server.bodies[0]["ignore_eos"] is True


def test_no_run_finds_the_kv_of_another(fake_server: Any, engine: ServerEngine) -> None:
    for _ in range(2):
        engine.generate([[5], [5]], 2)
    salts = [body["cache_salt"] for body in fake_server.bodies]
    assert salts[0] == salts[1] != salts[2] == salts[3]


def test_requests_are_on_their_way_at_once(fake_server: Any, engine: ServerEngine) -> None:
    """No answer comes before all twelve requests are there."""
    barrier = threading.Barrier(12, timeout=60)
    fake_server.answer = lambda body: [barrier.wait()] and fake_server.two_tokens(body)
    run = engine.generate([[number] for number in range(12)], 2)
    assert len(run.requests) == 12


def test_outputs_are_in_the_order_of_the_prompts(fake_server: Any, engine: ServerEngine) -> None:
    """The first prompt is answered last."""
    second = threading.Event()

    def answer(body: dict[str, Any]) -> list[Any]:
        assert second.wait(60) if body["prompt"] == [0] else second.set() is None
        return [fake_server.chunk("x", body["prompt"], "length"), fake_server.END]

    fake_server.answer = answer
    assert [request.token_ids for request in engine.generate([[0], [1]], 1).requests] == [[0], [1]]


def test_a_server_that_tells_text_only(fake_server: Any, engine: ServerEngine) -> None:
    """Its text is tokenized here, but its own count is believed; line separators end no event."""
    chunk = fake_server.chunk
    fake_server.answer = lambda body: [chunk("ab"), chunk("\u2028", None, "length"), fake_server.usage(7)]
    assert engine.facts["outputs_compared_by"] == "token ids"
    run = engine.generate([[5]], 7)
    assert outputs(run.requests) == [([97, 98, 0x2028], 7)]
    assert run.num_tokens == 7
    assert engine.facts["outputs_compared_by"] == "text, tokenized again"
    fake_server.answer = lambda body: [chunk("ab", None, "length")]
    assert outputs(engine.generate([[5]], 7).requests) == [([97, 98], 2)]


def test_time_per_token_counts_the_tokens_after_the_first_event(
    fake_server: Any, engine: ServerEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second passes from call to call of the clock: start, one per event with output or usage."""
    seconds = count()
    clock = SimpleNamespace(perf_counter=lambda: float(next(seconds)))
    for module in (connections, server_engine):
        monkeypatch.setattr(module, "time", clock)
    chunk = fake_server.chunk
    fake_server.answer = lambda body: [chunk("ab", [1, 2]), chunk("c", [3]), chunk("de", [4, 5, 6, 7], "length")]
    (request,) = engine.generate([[5]], 7).requests
    assert (request.ttft_s, request.tpot_s) == (1.0, 2 / 5)
    fake_server.answer = lambda body: [chunk("abc", [1, 2, 3], "length")]
    (at_once,) = engine.generate([[5]], 3).requests
    assert at_once.tpot_s is None


def test_the_key_is_taken_from_the_environment(fake_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with connected(ServerChoice(fake_server.url, "tiny")):
        pass
    monkeypatch.setenv("OPENAI_API_KEY", "k-1")
    with connected(ServerChoice(fake_server.url, "tiny")):
        pass
    assert fake_server.keys == [None, "Bearer k-1"]


def test_what_is_known_of_a_server(fake_server: Any, engine: ServerEngine) -> None:
    assert engine.name == f"server {fake_server.url.removesuffix('/v1')} (tiny)"
    assert (engine.facts["url"], engine.facts["model"]) == (fake_server.url, "tiny")
    assert "cache_salt" in engine.facts["prefix_sharing"]
    assert "threads" in engine.facts["not_controlled"]


@pytest.mark.parametrize(
    ("served", "wanted", "message"),
    [
        (["a", "b"], None, r'E624: .*serves 2 models \(a, b\); say which: ".*/v1 model=NAME"'),
        ([], None, r"serves 0 models \(none\); load one there"),
        (["a", "b"], "c", 'serves no model "c"; it serves: a, b'),
    ],
)
def test_a_model_that_is_not_there_is_refused(
    fake_server: Any, served: list[str], wanted: str | None, message: str
) -> None:
    fake_server.models = {"data": [{"id": name} for name in served]}
    with pytest.raises(ServerModelError, match=message), connected(ServerChoice(fake_server.url, wanted)):
        pass


def test_one_of_several_models_can_be_named(fake_server: Any) -> None:
    fake_server.models = {"data": [{"id": "a"}, {"id": "b"}]}
    with connected(ServerChoice(fake_server.url, "b")) as server:
        assert server.model == "b"


def test_a_server_that_lists_no_models_is_refused(fake_server: Any) -> None:
    fake_server.models = {"hello": 1}
    message = r'E623: ".*/v1/models" lists no models but answers: {"hello": 1}; give the URL that /completions follows'
    with pytest.raises(ServerStatusError, match=message), connected(ServerChoice(fake_server.url, None)):
        pass
    elsewhere = ServerChoice(fake_server.url + "/deeper", None)
    with pytest.raises(ServerStatusError, match='deeper/models" answers 404'), connected(elsewhere):
        pass


def test_nobody_there(fake_server: Any) -> None:
    nowhere = ServerChoice("http://127.0.0.1:1/v1", None)
    message = r'E622: nothing answers at "http://127.0.0.1:1/v1": .+; start the server, or correct the URL'
    with pytest.raises(ServerUnreachableError, match=message), connected(nowhere):
        pass


def test_a_refusal_shows_the_server_s_message(fake_server: Any, engine: ServerEngine) -> None:
    fake_server.status = 400
    fake_server.refusal = json.dumps({"error": {"message": "prompt is too long"}}).encode()
    message = r'E623: ".*/v1/completions" answers 400: prompt is too long; .*OPENAI_API_KEY'
    with pytest.raises(ServerStatusError, match=message):
        engine.generate([[5]], 2)
    fake_server.refusal = b"Bad\nGateway"
    with pytest.raises(ServerStatusError, match="answers 400: Bad Gateway"):
        engine.generate([[5], [6]], 2)


def breaks_off(fake: Any) -> None:
    fake.breaks_off = True


def is_no_stream(fake: Any) -> None:
    fake.content_type = "application/json"


def ends_early(fake: Any) -> None:
    fake.answer = lambda body: [fake.chunk("a", [97]), fake.END]


def holds_an_error(fake: Any) -> None:
    fake.answer = lambda body: [fake.chunk("a", [97]), {"error": {"message": "engine died"}}]


def is_nonsense(fake: Any) -> None:
    fake.answer = lambda body: ["nonsense"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (breaks_off, r'E625: the answer of ".*/v1" cannot be read: .*incomplete.*; see its log'),
        (is_no_stream, r"cannot be read: .*text/event-stream.*application/json"),
        (ends_early, "ended before it was whole; see its log"),
        (holds_an_error, "cannot be read: it holds an error: engine died; see its log"),
        (is_nonsense, "cannot be read: it holds what is no JSON object: nonsense"),
    ],
)
def test_an_answer_that_cannot_be_read(
    fake_server: Any, engine: ServerEngine, change: Callable[[Any], None], message: str
) -> None:
    change(fake_server)
    with pytest.raises(ServerStreamError, match=message):
        engine.generate([[5]], 2)


def test_an_output_that_is_too_short_is_refused(fake_server: Any, server: Server) -> None:
    """An end that may be is none of these."""
    chunk, ending = fake_server.chunk, ServerEngine(server, letters, ignore_eos=False)
    fake_server.answer = lambda body: [chunk("a", [97], "length")]
    message = r'E626: server .* emitted 1 of 3 tokens and ended them with "length"; raise its own limits'
    with pytest.raises(ServerOutputError, match=message):
        ending.generate([[5]], 3)
    fake_server.answer = lambda body: [chunk("a", [97], "stop")]
    assert outputs(ending.generate([[5]], 3).requests) == [([97], None)]
    with pytest.raises(ServerOutputError, match='with "stop"; compare without --ignore-eos, a field of vLLM'):
        ServerEngine(server, letters, ignore_eos=True).generate([[5]], 3)
    fake_server.answer = lambda body: [chunk("abc", None, "length"), fake_server.usage(2)]
    with pytest.raises(ServerOutputError, match="emitted 2 of 3 tokens"):
        ending.generate([[5]], 3)
