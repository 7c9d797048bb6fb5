"""From a configuration to a running engine: each stage reads what the stages before it made."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from paceline.api import (
    ControllerContext,
    EvictionContext,
    KVGroup,
    ObserverContext,
    ProposerCapabilities,
    TargetFacts,
)
from paceline.config import EngineConfig
from paceline.engine.admission import Admission
from paceline.engine.commit import Committer
from paceline.engine.constraints import ActiveConstraint, Constraints, EngineConstraintContext
from paceline.engine.context import TARGET, EngineContext
from paceline.engine.engine import Engine
from paceline.engine.events import EventLog, Watcher
from paceline.engine.identity import identity_builder
from paceline.engine.mask_table import MaskTable
from paceline.engine.request import Request
from paceline.engine.sampling_table import SamplingTable
from paceline.engine.scheduler import Scheduler
from paceline.engine.speculation import NoSpeculation, Speculation, Speculator
from paceline.engine.target import decoder, encoder, load_beside, load_target, target_facts
from paceline.engine.target_pass import TargetPass
from paceline.host.loading import Loaded, LoadedPlugins, load
from paceline.host.policy_file import policy_in_force
from paceline.kv.manager import KVManager
from paceline.kv.storage import KVStorage
from paceline.model.architecture import target_kv_group
from paceline.model.load_check import check_model
from paceline.model.loading import LoadedModel
from paceline.model.memory import num_kv_blocks
from paceline.model.runner import ModelRunner
from paceline.ops.select import Ops, select_ops

__all__ = ["BuiltEngine", "build_engine"]

OFFERS = frozenset({"chain", "coupled_noise", "hidden_states", "kv_groups", "paged_model", "target_top_k", "tree"})
_log = logging.getLogger("paceline")
_NO_PROPOSER = ProposerCapabilities(max_tokens=0)
_DEFAULT_DRAFT_LENGTH = 5


@dataclass(slots=True)
class BuiltEngine:
    """An engine and what it was built from.

    Attributes:
        engine: The engine.
        loaded: The target.
        facts: What plugins know of it.
        runner: Runs the target.
        plugin_lines: What is loaded, in its defined order.
        plugin_policy: The plugin policy in force, with its files.
    """

    engine: Engine
    loaded: LoadedModel
    facts: TargetFacts
    runner: ModelRunner
    plugin_lines: tuple[str, ...]
    plugin_policy: str

    @property
    def start_line(self) -> str:
        """What may run and what does, in one line."""
        return f"plugin policy: {self.plugin_policy}; plugins: {', '.join(self.plugin_lines)}"


@dataclass(slots=True)
class _Parts:
    """What the stages share."""

    config: EngineConfig
    plugins: LoadedPlugins
    loaded: LoadedModel
    facts: TargetFacts
    capabilities: ProposerCapabilities
    clock: Callable[[], float]
    ops: Ops


def build_engine(config: EngineConfig, clock: Callable[[], float] = time.perf_counter) -> BuiltEngine:
    """Load the plugins and the model, size the cache, and put the engine together.

    Args:
        config: What the user asked for.
        clock: Seconds; tests give their own.

    Raises:
        PacelineError: from the stage that refuses, naming the culprit and the remedy.
    """
    policy = policy_in_force(config.plugin_policy)
    plugins = load(config.selections(), offers=OFFERS, policy=policy)
    loaded = load_target(config)
    facts = target_facts(config, loaded)
    proposer = plugins.one("proposer")
    capabilities = proposer.describe(facts) if proposer else _NO_PROPOSER
    parts = _Parts(config, plugins, loaded, facts, capabilities, clock, select_ops(config.numerics, loaded.device))
    check_model(loaded, parts.ops, facts.max_model_len)
    lines = tuple(f"{p.kind.label} {p.name} ({p.distribution} {p.version})" for p in plugins.items)
    engine, runner = _engine(parts, proposer)
    built = BuiltEngine(engine, loaded, facts, runner, lines, str(policy))
    _log.info(built.start_line)
    return built


def _engine(parts: _Parts, proposer: Loaded | None) -> tuple[Engine, ModelRunner]:
    config, facts = parts.config, parts.facts
    groups = [_target_group(parts), *parts.capabilities.kv_groups]
    slots_per_seq = facts.max_model_len + _slots_beyond_drafts(parts)
    num_blocks = num_kv_blocks(
        bytes_per_block=KVStorage.block_bytes(groups, config.block_size),
        block_size=config.block_size,
        slots_per_seq=slots_per_seq,
        max_num_seqs=config.max_num_seqs,
        device=parts.loaded.device,
        gpu_memory_utilization=config.gpu_memory_utilization,
        num_blocks_override=config.num_gpu_blocks_override,
        kv_cache_memory_bytes=config.kv_cache_memory_bytes,
    )
    watchers = _watchers(parts)
    kv = _kv_manager(parts, num_blocks, slots_per_seq, any(watcher.wants.kv for watcher in watchers))
    storage = KVStorage(groups, num_blocks, config.block_size, parts.loaded.device)
    taps = parts.capabilities.hidden_layers
    runner = ModelRunner(parts.loaded, storage.layers(TARGET), parts.ops, taps)
    constraints = _constraints(parts)
    masks = MaskTable(constraints, facts.vocab_size, parts.loaded.device)
    table = SamplingTable(config.max_num_seqs, facts.vocab_size, parts.loaded.device, masks)
    target = TargetPass(
        runner,
        kv,
        vocab_size=facts.vocab_size,
        top_k=parts.capabilities.target_top_k,
        device=parts.loaded.device,
        clock=parts.clock,
    )
    engine = Engine(
        admission=_admission(parts, kv, constraints),
        kv=kv,
        make_scheduler=_scheduler_maker(parts, kv),
        speculation=_speculation(parts, proposer, kv, storage, runner, table, masks),
        constraints=constraints,
        target=target,
        table=table,
        committer=Committer(kv, storage),
        decode=decoder(parts.loaded) or (lambda token_ids, skips: ""),
        events=EventLog(watchers, kv),
        clock=parts.clock,
    )
    return engine, runner


def _target_group(parts: _Parts) -> KVGroup:
    return target_kv_group(
        parts.loaded.config, dtype=parts.loaded.dtype, fingerprint=parts.loaded.weights_fingerprint, name=TARGET
    )


def _draft_length(parts: _Parts) -> int:
    asked = parts.config.num_speculative_tokens or _DEFAULT_DRAFT_LENGTH
    return min(asked, parts.capabilities.max_tokens)


def _slots_beyond_drafts(parts: _Parts) -> int:
    """Drafts themselves end at ``max_model_len``; drafting a tree may write more slots than it drafts tokens."""
    length = _draft_length(parts)
    return max(parts.capabilities.lookahead_slots(length) - length, 0)


def _watchers(parts: _Parts) -> list[Watcher]:
    context = ObserverContext(target=parts.facts)
    observers = parts.plugins.all("observer")
    wants = [plugin.describe(parts.facts) for plugin in observers]
    return [Watcher(plugin, plugin.build(context), want) for plugin, want in zip(observers, wants, strict=True)]


def _kv_manager(parts: _Parts, num_blocks: int, slots_per_seq: int, collect_events: bool) -> KVManager:
    config = parts.config
    policy = parts.plugins.one("eviction_policy")
    assert policy is not None, "the configuration always names an eviction policy"
    policy.describe(parts.facts)
    return KVManager(
        num_blocks=num_blocks,
        block_size=config.block_size,
        groups=parts.capabilities.kv_groups,
        policy=policy.build(EvictionContext(clock=parts.clock, num_blocks=num_blocks)),
        policy_name=policy.name,
        policy_boundary=policy.boundary,
        identity=identity_builder(parts.plugins.all("cache_identity"), parts.facts, parts.loaded),
        clock=parts.clock,
        enable_prefix_caching=config.enable_prefix_caching,
        max_seqs=config.max_num_seqs,
        max_blocks_per_seq=-(-slots_per_seq // config.block_size),
        collect_events=collect_events,
    )


def _constraints(parts: _Parts) -> Constraints:
    context = EngineConstraintContext(parts.facts, parts.loaded.tokenizer)
    plugins = parts.plugins.all("constraint")
    described = [plugin.describe(parts.facts) for plugin in plugins]
    active = [
        ActiveConstraint(plugin, plugin.build(context), own) for plugin, own in zip(plugins, described, strict=True)
    ]
    return Constraints(active, parts.facts.vocab_size)


def _admission(parts: _Parts, kv: KVManager, constraints: Constraints) -> Admission:
    return Admission(
        kv,
        vocab_size=parts.facts.vocab_size,
        max_model_len=parts.facts.max_model_len,
        eos_token_ids=parts.loaded.eos_token_ids,
        seed=parts.config.seed,
        constraints=constraints,
        encode=encoder(parts.loaded),
        decode=decoder(parts.loaded),
    )


def _scheduler_maker(
    parts: _Parts, kv: KVManager
) -> Callable[[Callable[[Request], None], Callable[[Request], None]], Scheduler]:
    def make(on_preempt: Callable[[Request], None], on_admit: Callable[[Request], None]) -> Scheduler:
        return Scheduler(
            kv,
            max_num_seqs=parts.config.max_num_seqs,
            max_num_batched_tokens=parts.config.max_num_batched_tokens,
            lookahead_slots=parts.capabilities.lookahead_slots,
            recompute_tail=parts.capabilities.recompute_tail,
            on_preempt=on_preempt,
            on_admit=on_admit,
        )

    return make


def _speculation(
    parts: _Parts,
    proposer: Loaded | None,
    kv: KVManager,
    storage: KVStorage,
    runner: ModelRunner,
    table: SamplingTable,
    masks: MaskTable,
) -> Speculation:
    controller = parts.plugins.one("controller")
    if proposer is None or controller is None:
        return NoSpeculation()
    controller_capabilities = controller.describe(parts.facts)
    context = EngineContext(
        facts=parts.facts,
        target=parts.loaded,
        runner=runner,
        load=lambda name: load_beside(parts.loaded, name, parts.config.trust_remote_code, parts.facts.max_model_len),
        groups=parts.capabilities.kv_groups,
        storage=storage,
        kv=kv,
        ops=parts.ops,
    )
    return Speculator(
        proposer=proposer,
        proposer_object=proposer.build(context),
        capabilities=parts.capabilities,
        controller=controller,
        controller_object=controller.build(ControllerContext(target=parts.facts, max_tokens=_draft_length(parts))),
        controller_capabilities=controller_capabilities,
        kv=kv,
        table=table,
        masks=masks,
        vocab_size=parts.facts.vocab_size,
        device=parts.loaded.device,
    )
