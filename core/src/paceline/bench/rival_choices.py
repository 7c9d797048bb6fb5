"""What is measured beside transformers' ``generate`` and Paceline, as the command line says it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import SplitResult, urlsplit

__all__ = ["BaselineMode", "RivalChoice", "ServerChoice", "parse_servers", "rival_choice"]


class BaselineMode(StrEnum):
    """The ways of transformers to generate."""

    GENERATE = "generate"
    PROMPT_LOOKUP = "prompt-lookup"
    CONTINUOUS_BATCHING = "continuous-batching"


@dataclass(frozen=True, slots=True)
class ServerChoice:
    """A running server.

    Attributes:
        url: What ``/completions`` and ``/models`` follow, such as ``http://localhost:8000/v1``.
        model: Name of a model there; ``None`` = the only one.
    """

    url: str
    model: str | None


@dataclass(frozen=True, slots=True)
class RivalChoice:
    """What is measured as well.

    Attributes:
        lookup_tokens: Draft length of transformers' prompt lookup; 0 leaves it out.
        continuous_batching: Whether transformers' continuous batching runs.
        must_batch: Whether a model that it cannot run is refused; if not, the report says why it is left out.
        servers: Running servers.
    """

    lookup_tokens: int
    continuous_batching: bool
    must_batch: bool
    servers: Sequence[ServerChoice]


def rival_choice(modes: Sequence[BaselineMode], lookup_tokens: int, servers: Sequence[ServerChoice]) -> RivalChoice:
    """What the options mean: without a mode all of them run, as far as they can.

    Raises:
        ValueError: if prompt lookup is asked for that drafts nothing.
    """
    if not modes:
        return RivalChoice(lookup_tokens, True, False, servers)
    looks_up = BaselineMode.PROMPT_LOOKUP in modes
    if looks_up and not lookup_tokens:
        raise ValueError("prompt-lookup drafts nothing with --lookup-tokens 0; give a number from 1")
    batches = BaselineMode.CONTINUOUS_BATCHING in modes
    return RivalChoice(lookup_tokens if looks_up else 0, batches, batches, servers)


def parse_servers(texts: Sequence[str]) -> list[ServerChoice]:
    """Each text, ``URL`` or ``URL model=NAME``, as a server; ``/v1`` is added to a URL without a path.

    Raises:
        ValueError: saying what is wrong with the text.
    """
    choices = [_server(text) for text in texts]
    repeated = next((choice for choice in choices if choices.count(choice) > 1), None)
    if repeated is not None:
        raise ValueError(f'"{repeated.url}" is given twice with the same model; name each server once')
    return choices


def _server(text: str) -> ServerChoice:
    if not text.strip():
        raise ValueError("a server is empty; give URL or URL model=NAME")
    url, *pairs = text.split()
    models = [pair.removeprefix("model=") for pair in pairs if pair.startswith("model=") and pair != "model="]
    if len(models) != len(pairs) or len(models) > 1:
        raise ValueError(f'"{" ".join(pairs)}" is not of the form model=NAME')
    return ServerChoice(_base_url(url), models[0] if models else None)


def _base_url(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname or not _has_valid_port(parts):
        raise ValueError(f'"{text}" is no URL of a server; give one such as http://localhost:8000/v1')
    if "@" in parts.netloc:
        raise ValueError(f'the URL of "{parts.hostname}" holds a password; give a key in OPENAI_API_KEY instead')
    if parts.query or parts.fragment:
        raise ValueError(f'"{text}" has a query or fragment; give the part that /completions follows')
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/') or '/v1'}"


def _has_valid_port(parts: SplitResult) -> bool:
    try:
        return parts.port is None or parts.port > 0
    except ValueError:
        return False
