"""vLLM's engine arguments, and what becomes of each. ``docs/engine_arguments.md`` is printed from here."""

from __future__ import annotations

from paceline.config.argument import Argument, accepted, honoured, refused

__all__ = ["ARGUMENTS", "SPECULATIVE_KEYS"]

_ONE_DEVICE = "an engine drives one device from one process; start one engine for each device"
_NO_WORKERS = "there are no worker processes"
_NO_GRAPHS = "there are no captured or compiled graphs to switch or size; results are the same without"
_NO_LORA = "adapters are not served; merge the adapter into the checkpoint"
_LORA_SIZE = "sizes adapters, which are not served"
_TEXT_ONLY = "models take text only"
_GENERATES = "models generate text; pooling, scoring and reward models are not served"
_SHARES_STEP = "the scheduler shares each step by its own rules; outputs do not depend on it"
_OWN_QUANTISATION = "the checkpoint's own configuration says how it is quantised"
_OWN_CONFIG = "the checkpoint's configuration is taken as it is; edit its config.json instead"
_NO_KV_TRANSFER = "KV is not handed between engines"
_NO_TRACES = "requests are not traced; an observer plugin sees their events"
_ENFORCER = "the plugin named in `constraints` enforces structured outputs, such as `llguidance`"
_CONTROLLER = "a controller plugin shortens drafts under load: `controller`, such as `goodput`"
_PLUGINS = "extensions come as plugins; see `paceline plugins list`"

_MODEL = (
    honoured("model", "`model`: folder, hub id, GGUF file, or `demo`"),
    honoured("tokenizer", "`tokenizer`"),
    honoured("revision", "`revision`"),
    honoured("trust_remote_code", "`trust_remote_code`, off by default"),
    honoured("dtype", "`dtype`; `half` is float16, `float` is float32; `auto` is float32 on CPU"),
    honoured("seed", "`seed`: makes requests without a seed repeatable; `None` by default"),
    accepted("tokenizer_mode", "the tokenizer is the one transformers picks for the checkpoint", "auto", "hf"),
    refused("tokenizer_revision", "the tokenizer is read at `revision`; give `tokenizer` as a local folder"),
    refused("skip_tokenizer_init", "the tokenizer is loaded where there is one; `prompt_token_ids` need none", False),
    refused("code_revision", "code is read at `revision`"),
    refused("hf_config_path", _OWN_CONFIG),
    refused("hf_overrides", _OWN_CONFIG, {}),
    refused("hf_token", "the token is read from the environment variable HF_TOKEN"),
    refused("download_dir", "downloads go where the environment variable HF_HOME says"),
    refused("rope_scaling", _OWN_CONFIG, {}),
    refused("rope_theta", _OWN_CONFIG),
    honoured("quantization", "`quantization`: `int8` or `int4` on the CPU; else the checkpoint says it"),
    refused("quantization_param_path", _OWN_QUANTISATION),
    accepted("load_format", "the format is seen from the files", "auto", "safetensors", "gguf"),
    accepted("config_format", "configurations are transformers' own", "auto", "hf"),
    accepted("model_impl", "models are transformers' own, with attention and KV of Paceline", "auto", "transformers"),
    accepted("generation_config", "end tokens and defaults come from the checkpoint", "auto"),
    refused("override_generation_config", "give SamplingParams", {}),
    refused("model_loader_extra_config", "loading has no options", {}),
    refused("ignore_patterns", "every file of the checkpoint that transformers asks for is loaded", [], ()),
    accepted("safetensors_load_strategy", "changes how fast weights load, not what is loaded"),
    accepted("pt_load_map_location", "weights are loaded to `device`"),
    accepted("use_tqdm_on_load", "loading shows no progress bar"),
    accepted("task", _GENERATES, "auto", "generate"),
    accepted("runner", _GENERATES, "auto", "generate"),
    accepted("convert", _GENERATES, "auto", "none"),
    refused("pooler_config", _GENERATES),
    refused("override_pooler_config", _GENERATES),
    refused("logits_processors", _PLUGINS, [], ()),
    refused("logits_processor_pattern", _PLUGINS),
    refused("enable_prompt_embeds", "prompts are text or token ids", False),
    refused("enable_sleep_mode", "an engine that is not needed is closed", False),
    accepted("max_logprobs", "the bound of `SamplingParams` is fixed", 20),
    accepted("logprobs_mode", "log-probabilities are those of the raw scores", "raw_logprobs"),
    accepted("disable_cascade_attn", "changes no result"),
    refused("disable_sliding_window", "windows are those of the checkpoint; bound prompts by `max_model_len`", False),
    accepted("served_model_name", "names the model to clients of a server; the engine has none"),
)
_MEMORY = (
    honoured("max_model_len", "`max_model_len`, a number of tokens"),
    honoured("block_size", "`block_size`"),
    honoured("gpu_memory_utilization", "`gpu_memory_utilization`"),
    honoured("kv_cache_memory_bytes", "`kv_cache_memory_bytes`"),
    honoured("num_gpu_blocks_override", "`num_gpu_blocks_override`: the number of KV blocks, on any device"),
    honoured("enable_prefix_caching", "`enable_prefix_caching`"),
    accepted("prefix_caching_hash_algo", "the keys of blocks are always SHA-256"),
    accepted("kv_cache_dtype", "KV has the dtype of the weights", "auto"),
    refused("calculate_kv_scales", "KV is not quantised", False),
    accepted("swap_space", "preempted requests are computed anew, through the prefix cache; nothing is swapped"),
    accepted("preemption_mode", "preempted requests are computed anew", "recompute"),
    refused("cpu_offload_gb", "weights lie on the device; choose a smaller or quantised checkpoint", 0),
    accepted("use_v2_block_manager", "there is one block manager"),
    accepted("num_lookahead_slots", "slots for drafts are reserved as the proposer gives them"),
    accepted("disable_hybrid_kv_cache_manager", "layers with windows keep whole blocks either way"),
    refused("kv_sharing_fast_prefill", "each layer computes its own KV", False),
    refused("kv_offloading_size", "KV tiers below the device's are not served", 0),
    accepted("kv_offloading_backend", "names the tier that `kv_offloading_size` asks for"),
    refused("kv_transfer_config", _NO_KV_TRANSFER, {}),
    refused("kv_events_config", "an observer plugin sees the cache's events", {}),
    accepted("kv_cache_metrics", "an observer plugin sees the cache's events", False),
)
_SCHEDULING = (
    honoured("max_num_seqs", "`max_num_seqs`"),
    honoured("max_num_batched_tokens", "`max_num_batched_tokens`"),
    accepted("enable_chunked_prefill", "prompts are always computed in chunks", True),
    accepted("scheduling_policy", "a prompt's `priority` always counts; equals go in order", "fcfs", "priority"),
    refused("scheduler_cls", "the scheduler is part of the core"),
    accepted("async_scheduling", _SHARES_STEP),
    accepted("max_num_partial_prefills", _SHARES_STEP),
    accepted("max_long_partial_prefills", _SHARES_STEP),
    accepted("long_prefill_token_threshold", _SHARES_STEP),
    accepted("disable_chunked_mm_input", _TEXT_ONLY),
    accepted("scheduler_delay_factor", _SHARES_STEP),
    accepted("num_scheduler_steps", _SHARES_STEP),
    accepted("multi_step_stream_outputs", _SHARES_STEP),
    accepted("stream_interval", "each step gives its tokens"),
)
_PARALLEL = (
    accepted("tensor_parallel_size", _ONE_DEVICE, 1),
    accepted("pipeline_parallel_size", _ONE_DEVICE, 1),
    accepted("data_parallel_size", _ONE_DEVICE, 1),
    accepted("decode_context_parallel_size", _ONE_DEVICE, 1),
    accepted("prefill_context_parallel_size", _ONE_DEVICE, 1),
    refused("enable_expert_parallel", _ONE_DEVICE, False),
    accepted("distributed_executor_backend", _ONE_DEVICE, "uni"),
    accepted("nnodes", _ONE_DEVICE, 1),
    accepted("max_parallel_loading_workers", _NO_WORKERS),
    accepted("disable_custom_all_reduce", _NO_WORKERS),
    accepted("ray_workers_use_nsight", _NO_WORKERS, False),
    accepted("worker_use_ray", _NO_WORKERS, False),
    accepted("worker_cls", _NO_WORKERS, "auto"),
    refused("worker_extension_cls", _PLUGINS, ""),
    accepted("tokenizer_pool_size", "text is tokenised in the caller's thread"),
    accepted("tokenizer_pool_type", "text is tokenised in the caller's thread"),
    accepted("tokenizer_pool_extra_config", "text is tokenised in the caller's thread"),
)
_DEVICE = (
    honoured("device", "`device`: `auto`, `cpu`, `cuda`, `cuda:N`"),
    accepted("enforce_eager", _NO_GRAPHS),
    accepted("compilation_config", _NO_GRAPHS),
    accepted("cuda_graph_sizes", _NO_GRAPHS),
    accepted("cudagraph_capture_sizes", _NO_GRAPHS),
    accepted("max_cudagraph_capture_size", _NO_GRAPHS),
    accepted("max_context_len_to_capture", _NO_GRAPHS),
    accepted("max_seq_len_to_capture", _NO_GRAPHS),
    accepted("optimization_level", _NO_GRAPHS),
    refused("attention_backend", "device and `numerics` choose the attention", "auto"),
    refused("additional_config", "there is no other platform to configure", {}),
)
_ADAPTERS_AND_MEDIA = (
    refused("enable_lora", _NO_LORA, False),
    accepted("max_loras", _LORA_SIZE),
    accepted("max_lora_rank", _LORA_SIZE),
    accepted("max_cpu_loras", _LORA_SIZE),
    accepted("lora_dtype", _LORA_SIZE),
    accepted("fully_sharded_loras", _LORA_SIZE),
    refused("default_mm_loras", _NO_LORA, {}),
    refused("enable_prompt_adapter", _NO_LORA, False),
    accepted("limit_mm_per_prompt", _TEXT_ONLY),
    accepted("mm_processor_kwargs", _TEXT_ONLY),
    accepted("mm_processor_cache_gb", _TEXT_ONLY),
    accepted("disable_mm_preprocessor_cache", _TEXT_ONLY),
    accepted("skip_mm_profiling", _TEXT_ONLY),
    accepted("allowed_local_media_path", _TEXT_ONLY),
    accepted("allowed_media_domains", _TEXT_ONLY),
    accepted("interleave_mm_strings", _TEXT_ONLY),
)
_LOGS = (
    accepted("disable_log_stats", "the engine logs no statistics; outputs and observers have them"),
    accepted("disable_log_requests", "the engine logs no requests"),
    refused("enable_log_requests", "the engine logs no requests; an observer plugin sees them", False),
    accepted("show_hidden_metrics_for_version", "no metric is hidden"),
    refused("otlp_traces_endpoint", _NO_TRACES),
    refused("collect_detailed_traces", _NO_TRACES, []),
    accepted("enable_mfu_metrics", _NO_TRACES, False),
)
_CONSTRAINTS = (
    accepted("guided_decoding_backend", _ENFORCER, "auto"),
    accepted("guided_decoding_disable_fallback", "nothing falls back from one library to another"),
    accepted("structured_outputs_config", _ENFORCER, {}, {"backend": "auto"}),
    refused("reasoning_parser", "text is given as the model wrote it", ""),
)
_SPECULATION = (
    honoured("speculative_config", "`proposer`, `num_speculative_tokens` and, by its other keys, `proposer_options`"),
    honoured("spec_method", "`proposer`"),
    honoured("spec_model", "`model` of `proposer_options`"),
    honoured("spec_tokens", "`num_speculative_tokens`"),
    honoured("speculative_model", '`"[METHOD]"`: `proposer`; a draft model goes into `speculative_config`'),
    honoured("num_speculative_tokens", "`num_speculative_tokens`"),
    accepted("speculative_draft_tensor_parallel_size", _ONE_DEVICE, 1),
    refused("speculative_disable_by_batch_size", _CONTROLLER),
    refused("spec_decoding_acceptance_method", "acceptance is always lossless", "rejection_sampler"),
    refused("typical_acceptance_sampler_posterior_threshold", "acceptance is always lossless"),
    refused("typical_acceptance_sampler_posterior_alpha", "acceptance is always lossless"),
    accepted("disable_logprobs_during_spec_decoding", "log-probabilities are the same with speculation", False),
)

ARGUMENTS: dict[str, tuple[Argument, ...]] = {
    "Model": _MODEL,
    "Memory and cache": _MEMORY,
    "Scheduling": _SCHEDULING,
    "Parallelism and processes": _PARALLEL,
    "Device and graphs": _DEVICE,
    "Adapters and media": _ADAPTERS_AND_MEDIA,
    "Logs and metrics": _LOGS,
    "Constraints": _CONSTRAINTS,
    "Speculation": _SPECULATION,
}

# Keys of `speculative_config` that are not passed on to the proposer.
SPECULATIVE_KEYS: tuple[Argument, ...] = (
    honoured("method", "`proposer`"),
    honoured("num_speculative_tokens", "`num_speculative_tokens`"),
    accepted("draft_tensor_parallel_size", _ONE_DEVICE, 1),
    accepted("enforce_eager", _NO_GRAPHS),
    accepted("disable_padded_drafter_batch", "changes no result"),
    accepted("draft_sample_method", "outputs do not depend on how drafts are drawn"),
    accepted("rejection_sample_method", "acceptance is always lossless", "strict", "standard"),
    refused("acceptance_method", "acceptance is always lossless", "rejection_sampler"),
    refused("posterior_threshold", "acceptance is always lossless"),
    refused("posterior_alpha", "acceptance is always lossless"),
    refused("disable_by_batch_size", _CONTROLLER),
    refused("num_speculative_tokens_per_batch_size", _CONTROLLER),
    accepted("disable_logprobs", "log-probabilities are the same with speculation", False),
)
