"""All operations in random order, with the invariants after each, against what a machine would have in its slots.

Two tokens and blocks of three, so that requests often share content, part inside a block, compute the same at the same
time and evict each other. Every slot remembers what was written or copied into it, so that a hit on the wrong content
is seen, and not only miscounted.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from paceline.api import EvictionPolicy, KVEventKind, KVGroup, RequestFacts
from paceline.kv.identity import CoreIdentity, IdentityBuilder
from paceline.kv.invariants import check
from paceline.kv.lru import LRUPolicy
from paceline.kv.manager import KVManager
from paceline.kv.retention import Retention

# Few enough prompts that requests meet, each a head of one of these.
STREAMS = ([0] * 10, [0, 0, 0, 0, 1, 1, 1, 1, 0, 0], [1] * 10)
PROMPTS = st.builds(lambda stream, length: stream[:length], st.sampled_from(STREAMS), st.integers(1, 10))
SALTS = st.sampled_from(["", "", "", "s"])
BLOCK, NUM_BLOCKS, MAX_SEQS, MAX_LEN = 3, 7, 3, 14
GROUPS = ("d0", "d1")
CORE = CoreIdentity(
    weights_fingerprint="w", tokenizer_fingerprint="t", rope="", attention="", kv_dtype="float32", kv_layout="",
    block_size=BLOCK, numerics="exact", numerics_facts="",
)  # fmt: skip


class Stubborn(EvictionPolicy):
    """Lawful, but otherwise as awkward as can be: one victim at a time, always the highest id."""

    def __init__(self):
        self.blocks = {}

    def evictable(self, blocks):
        for block in blocks:
            assert block.block_id not in self.blocks, "offered twice"
            self.blocks[block.block_id] = block

    def not_evictable(self, block_ids):
        for block_id in block_ids:
            del self.blocks[block_id]

    def removed(self, block_ids):
        self.not_evictable(block_ids)

    def touched(self, blocks):
        assert blocks

    def victims(self, count):
        return [np.int32(max(self.blocks))]


class Greedy(Stubborn):
    """As many as it may, the shallowest first."""

    def victims(self, count):
        return sorted(self.blocks, key=lambda block_id: (self.blocks[block_id].depth, block_id))[:count]


@dataclass
class Live:
    space: tuple  # (epoch, salt): what else the content depends on
    tokens: list
    computed: int
    num_kv_tokens: int
    num_cached: int  # found at admission: a copied head is offered to others from the first commit on
    published: bool = True
    late: dict = field(default_factory=dict)


class CacheMachine(RuleBasedStateMachine):
    counts: ClassVar[Counter[str]] = Counter()

    @initialize(policy=st.sampled_from([LRUPolicy, Stubborn, Greedy]))
    def start(self, policy):
        sizes = {"num_layers": 1, "num_kv_heads": 1, "key_size": 1, "value_size": 1, "dtype": "float32"}
        self.now = 0.0
        self.manager = KVManager(
            num_blocks=NUM_BLOCKS, block_size=BLOCK, policy=policy(), clock=lambda: self.now, max_seqs=MAX_SEQS,
            groups=[KVGroup(name=name, fingerprint=name, **sizes) for name in GROUPS],
            identity=IdentityBuilder(CORE), enable_prefix_caching=True, max_blocks_per_seq=MAX_LEN // BLOCK + 1,
            collect_events=True,
        )  # fmt: skip
        self.live: dict[str, Live] = {}
        self.epoch = self.count = 0
        self.target: dict[int, tuple] = {}
        self.drafts: dict[str, dict[int, tuple]] = {name: {} for name in GROUPS}
        self.stored: dict[bytes, int] = {}
        self.owed: set[str] = set()

    def _tokens(self, live):
        return np.array(live.tokens, dtype=np.int64)

    def _slots(self, name, positions):
        positions = np.asarray(positions, dtype=np.int64)
        return self.manager.slots(np.full(len(positions), self.manager.row(name)), positions).tolist()

    def _content(self, live, position):
        return (live.space, tuple(live.tokens[: position + 1]))

    def _pick(self, number):
        names = sorted(self.live)
        return names[number % len(names)]

    def _request(self, salt):
        return RequestFacts(request_id=f"r{self.count}", num_prompt_tokens=1, cache_salt=salt)

    @rule(salt=SALTS, tokens=PROMPTS, is_urgent=st.booleans())
    def admit(self, salt, tokens, is_urgent):
        self.admit_one(salt, tokens, is_urgent)

    @precondition(lambda self: self.live)
    @rule(number=st.integers(0, 5), head=st.integers(1, 10), more=st.lists(st.integers(0, 1), max_size=3))
    def fork(self, number, head, more):
        """A request that begins as a live one does, as further samples of a prompt do, and goes on otherwise."""
        live = self.live[self._pick(number)]
        self.admit_one(live.space[1], (live.tokens[:head] + more)[:10])

    @rule(tokens=PROMPTS, longer=PROMPTS, counts=st.tuples(st.integers(1, 10), st.integers(1, 10)))
    def admit_two_at_once(self, tokens, longer, counts):
        """Admitted before either has computed anything: what both then compute, both hold."""
        names = [self.admit_one("", tokens), self.admit_one("", longer)]
        for name, count in zip(names, counts, strict=True):
            if name in self.live:
                self.compute_one(name, count)

    def admit_one(self, salt, tokens, is_urgent=False):
        tokens = list(tokens)
        self.now += 1
        self.count += 1
        request = self._request(salt)
        array = np.array(tokens, dtype=np.int64)
        found = self.manager.lookup(request, array)
        can_admit = self.manager.can_admit(found, len(tokens))
        if is_urgent and not can_admit:
            was_promised = self.displace(found, len(tokens))
            found = self.manager.lookup(request, array)
            can_admit = self.manager.can_admit(found, len(tokens))
            assert can_admit or not was_promised, "room was promised"
        if len(self.live) == MAX_SEQS:
            assert not can_admit
            return None
        hit = self.manager.admit(request, array, retention=Retention(len(tokens) % 3, 5.0))
        name = request.request_id
        self.live[name] = Live((self.epoch, salt), tokens, hit.num_tokens, hit.num_kv_tokens, hit.num_tokens)
        assert (hit.num_tokens, hit.components) == (found.num_tokens, found.components)
        assert hit.num_tokens < len(tokens)
        assert hit.num_kv_tokens == hit.num_blocks * BLOCK + hit.num_copied_tokens
        self.owed |= {name} if hit.num_copied_tokens else set()
        self.counts["partial"] += hit.num_copied_tokens > 0
        assert self.manager.reserve(name, len(tokens)) == can_admit
        if not can_admit:
            self.release_by_name(name)
        elif not hit.num_copied_tokens:
            self.check_hit(name, hit.components)
        return name

    def displace(self, found, num_tokens):
        """End the latest ones, as few as make room: what a request of better priority does."""
        names = sorted(self.live, key=lambda name: -int(name[1:]))
        for count in range(1, len(names) + 1):
            if self.manager.can_admit(found, num_tokens, without=names[:count]):
                self.counts["displaced"] += 1
                for name in names[:count]:
                    self.release_by_name(name)
                return True
        return False

    def check_hit(self, name, components):
        live = self.live[name]
        for position, slot in enumerate(self._slots(name, range(live.num_kv_tokens))):
            assert self.target[slot] == self._content(live, position), "a hit on other content"
        for group, num_tokens in components.items():
            assert num_tokens <= live.num_kv_tokens
            for position, slot in enumerate(self._slots(name, range(num_tokens))):
                assert self.drafts[group][slot] == self._content(live, position), "a hit on other draft content"

    def make_copies(self):
        """What a step does first: all sources are read before any block is written."""
        owed = {name: self._draft_lengths(name) for name in self.owed}
        pairs = list(zip(*(blocks.tolist() for blocks in self.manager.take_copies()), strict=True))
        assert len(pairs) == len(owed)
        self.owed.clear()
        for memory in (self.target, *self.drafts.values()):
            before = dict(memory)
            for source, destination in pairs:
                assert source != destination
                for offset in range(BLOCK):
                    memory[destination * BLOCK + offset] = before.get(source * BLOCK + offset)
        for name, components in owed.items():
            self.check_hit(name, components)

    def _draft_lengths(self, name):
        return {group: int(self.manager.draft_range(group, [name])[1][0]) for group in GROUPS}

    @rule()
    def step(self):
        self.make_copies()

    @precondition(lambda self: self.live)
    @rule(number=st.integers(0, 5), count=st.integers(1, 6))
    def compute(self, number, count):
        self.compute_one(self._pick(number), count)

    def compute_one(self, name, count):
        self.make_copies()
        live = self.live[name]
        stop = min(live.computed + count, len(live.tokens))
        could = self.manager.can_reserve(name, stop)
        assert self.manager.reserve(name, stop) == could
        if not could:
            return
        for position in range(max(live.computed, live.num_kv_tokens), stop):
            [slot] = self._slots(name, [position])
            assert self.manager.cache.pool.refs(slot // BLOCK) == 1, "a write into a shared block"
            assert self.manager.cache.index.of_block(slot // BLOCK) is None, "a write into a published block"
            self.target[slot] = self._content(live, position)
        live.computed = stop
        self.now += 0.5
        self.manager.commit(name, self._tokens(live), stop)

    @precondition(lambda self: self.live)
    @rule(number=st.integers(0, 5), token=st.integers(0, 1))
    def emit(self, number, token):
        live = self.live[self._pick(number)]
        if live.computed == len(live.tokens) < MAX_LEN:
            live.tokens.append(token)

    @precondition(lambda self: self.live)
    @rule(number=st.integers(0, 5), group=st.sampled_from(GROUPS), count=st.integers(0, 8))
    def draft(self, number, group, count):
        """Catch up with known tokens."""
        self.make_copies()
        name = self._pick(number)
        live = self.live[name]
        first, computed = (int(x[0]) for x in self.manager.draft_range(group, [name]))
        stop = max(computed, min(computed + count, len(live.tokens)))
        if self.manager.reserve(name, stop):
            self._write_drafts(name, group, first, computed, stop)
            self._report(name, group, first, stop)

    @precondition(lambda self: self.live)
    @rule(number=st.integers(0, 5), group=st.sampled_from(GROUPS), first=st.integers(0, 9), count=st.integers(0, 6))
    def restart_drafts(self, number, group, first, count):
        """Begin anew anywhere, also inside shared blocks."""
        self.make_copies()
        name = self._pick(number)
        live = self.live[name]
        first = min(first, len(live.tokens), self.manager.capacity(name))
        stop = min(first + count, len(live.tokens), self.manager.capacity(name))
        self._report(name, group, first, first)
        self._write_drafts(name, group, first, first, stop)
        self._report(name, group, first, stop)

    @precondition(lambda self: self.live)
    @rule(number=st.integers(0, 5), group=st.sampled_from(GROUPS), count=st.integers(1, 4))
    def speculate(self, number, group, count):
        """Draft beyond what is known, and have all of it rejected."""
        self.make_copies()
        name = self._pick(number)
        live = self.live[name]
        first, computed = (int(x[0]) for x in self.manager.draft_range(group, [name]))
        known = len(live.tokens)
        if computed != known or not self.manager.reserve(name, min(known + count, MAX_LEN)):
            return
        stop = min(known + count, MAX_LEN)
        for slot in self._slots(name, range(known, stop)):
            self.drafts[group][slot] = ("rejected",)
        self._report(name, group, first, stop)
        self.manager.clamp_drafts(name, known)
        self.manager.commit(name, self._tokens(live), live.computed)
        self.manager.rewind(name, known)

    def _write_drafts(self, name, group, first, start, stop):
        live, memory = self.live[name], self.drafts[group]
        for position in range(start, stop):
            [slot] = self._slots(name, [position])
            before = self._slots(name, range(first, position))
            whole = first == 0 and all(memory.get(s) == self._content(live, p) for p, s in enumerate(before))
            memory[slot] = self._content(live, position) if whole else ("partial",)

    def _report(self, name, group, first, stop):
        self.manager.report(group, [name], np.array([first]), np.array([stop]))

    @precondition(lambda self: self.live)
    @rule(number=st.integers(0, 5), extra=st.integers(0, 6))
    def reserve_and_rewind(self, number, extra):
        name = self._pick(number)
        known = len(self.live[name].tokens)
        before = self.manager.capacity(name)
        if not self.manager.reserve(name, known + extra):
            assert self.manager.capacity(name) == before
        self.manager.rewind(name, known)

    @precondition(lambda self: self.live)
    @rule(number=st.integers(0, 5))
    def release(self, number):
        self.now += 1
        self.release_by_name(self._pick(number))

    def release_by_name(self, name):
        del self.live[name]
        self.owed.discard(name)
        self.manager.release(name)
        self.manager.release(name)

    @rule(chance=st.integers(0, 3))
    def reset(self, chance):
        if chance == 0:
            self.epoch += 1
            self.manager.reset()
            assert self.manager.num_cached == 0
            for live in self.live.values():
                live.published = False

    @invariant()
    def invariants_hold(self):
        self.counts["operations"] += 1
        check(self.manager)

    @invariant()
    def published_blocks_hold_what_their_keys_say(self):
        index = self.manager.cache.index
        for entry in index.entries:
            slots = range(entry.block_id * BLOCK, (entry.block_id + 1) * BLOCK)
            space, tokens = self.target[slots[-1]]
            assert space[0] == self.epoch, "content from before a reset is published"
            assert len(tokens) == (entry.depth + 1) * BLOCK
            for offset, slot in enumerate(slots):
                content = (space, tokens[: entry.depth * BLOCK + offset + 1])
                assert self.target[slot] == content
                for number, group in enumerate(GROUPS):
                    if index.components(entry.block_id) >> number & 1:
                        assert self.drafts[group][slot] == content, "a component that lacks part of the prefix"

    @invariant()
    def ranges_that_begin_at_0_are_whole(self):
        for group in GROUPS:
            for name, live in self.live.items():
                first, computed = (int(x[0]) for x in self.manager.draft_range(group, [name]))
                if first == 0 and name not in self.owed:
                    for position, slot in enumerate(self._slots(name, range(min(computed, len(live.tokens))))):
                        assert self.drafts[group][slot] == self._content(live, position)

    @invariant()
    def what_is_computed_can_be_found(self):
        for live in self.live.values():
            if live.published:
                request = RequestFacts(request_id="x", num_prompt_tokens=1, cache_salt=live.space[1])
                found = self.manager.lookup(request, self._tokens(live))
                assert found.num_blocks >= live.computed // BLOCK
                if live.computed > live.num_cached and self.manager.num_free > MAX_LEN // BLOCK + 1:
                    assert found.num_kv_tokens >= live.computed

    @invariant()
    def a_lone_request_can_have_everything(self):
        if len(self.live) == 1 and not self.owed:
            [name] = self.live
            assert self.manager.reservable_slots(name) == self.manager.capacity_tokens

    @invariant()
    def events_tell_what_is_resident(self):
        for event in self.manager.drain_events():
            for block_id, key in zip(event.block_ids, event.keys, strict=True):
                if event.kind is KVEventKind.STORED:
                    assert self.stored.setdefault(key, block_id) == block_id
                else:
                    assert self.stored.pop(key) == block_id
        assert self.stored == {entry.key: entry.block_id for entry in self.manager.cache.index.entries}

    def teardown(self):
        if not hasattr(self, "manager"):
            return
        for name in list(self.live):
            self.release_by_name(name)
        assert self.manager.num_used == 0
        assert self.manager.num_free == NUM_BLOCKS
        self.manager.cache.take(NUM_BLOCKS)
        assert len(self.manager.cache.index) == 0


TestCache = CacheMachine.TestCase
TestCache.settings = settings(max_examples=60, stateful_step_count=40, deadline=None, derandomize=True, database=None)


class LongCacheMachine(CacheMachine):
    counts: ClassVar[Counter[str]] = Counter()


@pytest.mark.slow
class TestCacheLong(LongCacheMachine.TestCase):
    settings = settings(max_examples=600, stateful_step_count=60, deadline=None, database=None)

    def runTest(self):
        super().runTest()
        counts = LongCacheMachine.counts
        assert counts["operations"] >= 10_000
        assert min(counts["partial"], counts["displaced"]) > 100, counts
