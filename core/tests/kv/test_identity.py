from __future__ import annotations

import dataclasses
import os
import random
import subprocess
import sys
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.api import IdentityContributor
from paceline.kv.chain import KeyChain
from paceline.kv.errors import IdentityError
from paceline.kv.identity import CoreIdentity, IdentityBuilder, block_key, canonical, component_key, digest

VALUES = st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=4), st.binary(max_size=4))
FIELDS = st.dictionaries(st.text(max_size=3), VALUES, max_size=3)


class Tenant(IdentityContributor):
    def __init__(self, model="m", request="tenant", block=None):
        self.model, self.request, self.block = model, request, block

    def model_fields(self):
        return {"model": self.model}

    def request_fields(self, request):
        return {"tenant": request.metadata.get(self.request)}


class Media(IdentityContributor):
    def block_fields(self, request, tokens, start):
        return {"media": request.metadata["media"]} if 7 in tokens else {}


def _typed(fields):
    return {name: (type(value), value) for name, value in fields.items()}


def test_canonical_encoding_is_pinned():
    assert canonical("d", {"b": 1, "a": "x"}).hex() == (
        "000000000000000164" "0000000000000002"
        "000000000000000161" "73" "000000000000000178"
        "000000000000000162" "69" "000000000000000131"
    )  # fmt: skip
    assert digest("d", {}).hex() == "377339bdb4f949ced1c88cbb30891b9c121b549e765a15f6b3d20d7b5113084c"


@given(FIELDS, FIELDS)
def test_different_fields_have_different_encodings(a, b):
    assert (canonical("d", a) == canonical("d", b)) == (_typed(a) == _typed(b))


@pytest.mark.parametrize(
    ("a", "b"),
    [({"a": True}, {"a": 1}), ({"a": "1"}, {"a": b"1"}), ({"a": None}, {"a": ""}), ({"ab": "c"}, {"a": "bc"})],
)
def test_near_misses_differ(a, b):
    assert canonical("d", a) != canonical("d", b)
    assert canonical("d", a) != canonical("e", a)


def test_lone_surrogates_have_an_encoding():
    assert canonical("d", {"salt": "\ud800"}) != canonical("d", {"salt": "\ud801"})


def test_a_value_without_one_encoding_is_refused(core_fields, facts):
    class Floats(IdentityContributor):
        def request_fields(self, request):
            return {"scale": 0.5}

    builder = IdentityBuilder(CoreIdentity(**core_fields), [("scaling", Floats())])
    with pytest.raises(IdentityError, match=r'E401: identity field "scaling\.request\.scale" is a float; only str'):
        builder.root(facts())


@pytest.mark.parametrize("name", ["core", "request", "a.b", ""])
def test_a_contributor_cannot_pose_as_the_core(core_fields, name):
    with pytest.raises(IdentityError, match=rf'contributor "{name}" has a name that fields of the core may have'):
        IdentityBuilder(CoreIdentity(**core_fields), [(name, Tenant())])


def test_one_contributor_name_twice_is_refused(core_fields):
    with pytest.raises(IdentityError, match='contributor "a" is named 2 times'):
        IdentityBuilder(CoreIdentity(**core_fields), [("a", Tenant()), ("a", Media())])


def test_every_core_field_is_part_of_the_root(core_fields, facts):
    core = CoreIdentity(**core_fields)
    roots = {IdentityBuilder(core).root(facts())}
    for field in dataclasses.fields(core):
        other = 99 if field.name == "block_size" else "other"
        roots.add(IdentityBuilder(dataclasses.replace(core, **{field.name: other})).root(facts()))
    assert len(roots) == 1 + len(dataclasses.fields(core))


def test_salt_domain_and_contributed_fields_are_part_of_the_root(core_fields, facts):
    core = CoreIdentity(**core_fields)
    plain = IdentityBuilder(core)
    extended = IdentityBuilder(core, [("tenant", Tenant())])
    roots = [
        plain.root(facts()),
        plain.root(facts(cache_salt="x")),
        plain.root(facts(trust_domain="x")),
        extended.root(facts()),
        extended.root(facts(metadata={"tenant": "t"})),
        IdentityBuilder(core, [("tenant", Tenant(model="n"))]).root(facts()),
        IdentityBuilder(core, [("renamed", Tenant())]).root(facts()),
    ]
    assert len(set(roots)) == len(roots)
    assert plain.root(facts("another request")) == roots[0]


def test_explain_names_every_field(core_fields, facts):
    builder = IdentityBuilder(CoreIdentity(**core_fields), [("tenant", Tenant())])
    fields = builder.explain(facts(cache_salt="s", metadata={"tenant": "t"}))
    assert fields["core.weights_fingerprint"] == "aa"
    assert fields["core.format_version"] == 1
    assert fields["request.cache_salt"] == "s"
    assert fields["tenant.request.tenant"] == "t"
    assert fields["tenant.model.model"] == "m"


def test_block_fields_change_the_key_of_their_block_and_what_follows(core_fields, facts):
    builder = IdentityBuilder(CoreIdentity(**core_fields), [("media", Media())])
    tokens = np.array([1, 2, 3, 4, 7, 7, 7, 7, 5, 6, 8, 9], dtype=np.int64)
    keys = []
    for media in (b"cat", b"dog"):
        chain = KeyChain(builder, facts(metadata={"media": media}), 4)
        keys.append([chain.key(depth, tokens) for depth in range(3)])
    assert [a == b for a, b in zip(*keys, strict=True)] == [True, False, False]
    assert builder.block_fields(facts(metadata={"media": b"cat"}), tokens[4:8], 4) == {"media.block.media": b"cat"}
    without = KeyChain(IdentityBuilder(CoreIdentity(**core_fields)), facts(), 4)
    assert keys[0][0] == without.key(0, tokens)


def test_a_block_key_is_bound_to_parent_tokens_and_length():
    data = np.arange(4, dtype="<i8").tobytes()
    keys = [block_key(b"p" * 32, data), block_key(b"q" * 32, data), block_key(b"p" * 32, data + bytes(8))]
    assert len(set(keys)) == 3
    assert all(len(key) == 32 for key in keys)


def test_a_component_key_is_bound_to_its_group(group):
    keys = {component_key(b"k" * 32, g) for g in (group(), group(fingerprint="dd"), group("other"), group(key_size=9))}
    assert len(keys) == 4
    assert component_key(b"j" * 32, group()) not in keys


def test_keys_do_not_depend_on_the_order_of_contributors(make_manager, facts):
    named = [(name, Tenant(model=name, request=name)) for name in "edcab"] + [("media", Media())]
    seen, orders = set(), set()
    for seed in range(20):
        random.Random(seed).shuffle(named)
        manager = make_manager(contributors=list(named), collect_events=True)
        request = facts(metadata={"a": "x", "media": b"m"})
        orders.add(tuple(manager._matcher._identity.explain(request)))
        tokens = np.arange(12)
        manager.admit(request, tokens)
        manager.reserve("r", 12)
        manager.commit("r", tokens, 12)
        seen.add(tuple(key for event in manager.drain_events() for key in event.keys))
    assert (len(seen), len(orders)) == (1, 1)
    assert len(seen.pop()) == 3


KEYS_PROGRAM = """
import sys
import numpy as np
from paceline.api import IdentityContributor, RequestFacts
from paceline.kv.identity import CoreIdentity, IdentityBuilder
from paceline.kv.lru import LRUPolicy
from paceline.kv.manager import KVManager

class Tenant(IdentityContributor):
    def request_fields(self, request):
        return {name: name for name in {"x", "y", "z"}}

core = CoreIdentity(weights_fingerprint="aa", tokenizer_fingerprint="bb", rope="theta=10000", attention="full",
                    kv_dtype="float32", kv_layout="block-token-head", block_size=4, numerics="exact",
                    numerics_facts="rows=2..16")
identity = IdentityBuilder(core, [(name, Tenant()) for name in {"a", "b", "c"}])
manager = KVManager(num_blocks=4, block_size=4, groups=[], policy=LRUPolicy(), identity=identity, clock=lambda: 0.0,
                    enable_prefix_caching=True, max_seqs=1, max_blocks_per_seq=4, collect_events=True)
manager.admit(RequestFacts(request_id="r", num_prompt_tokens=8, cache_salt="s"), np.arange(8))
manager.reserve("r", 8)
manager.commit("r", np.arange(8), 8)
[event] = manager.drain_events()
print("torch" in sys.modules, *(key.hex() for key in event.keys))
"""


def test_keys_are_cryptographic_and_the_same_in_every_process():
    outputs = set()
    for seed in ("0", "1", "random"):
        env = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run([sys.executable, "-c", KEYS_PROGRAM], env=env, capture_output=True, text=True, check=True)
        outputs.add(done.stdout)
    [output] = outputs
    has_torch, *keys = output.split()
    assert has_torch == "False"
    assert [len(bytes.fromhex(key)) for key in keys] == [32, 32]
    assert keys == [
        "773bd1fb12e77d42c9efad9a3e622a9ad8f1b70ea525e1e9f69b40fba2695d8f",
        "cfeae8cf64ccaa611b4bf8075d503a99e884c3ff9e05ae6b79b30492c010aca0",
    ]


def test_a_chain_hashes_each_block_once(core_fields, facts):
    class Counting(IdentityBuilder):
        calls = 0

        def key(self, parent, request, tokens, start):
            self.calls += 1
            return super().key(parent, request, tokens, start)

    builder = Counting(CoreIdentity(**core_fields))
    chain = KeyChain(builder, facts(), 4)
    tokens = np.arange(400)
    for _ in range(3):
        assert [chain.key(depth, tokens) for depth in range(100)]
    assert builder.calls == 100


def test_a_chain_serves_only_the_tokens_it_hashed(core_fields, facts):
    request, tokens = facts(), np.arange(12)
    chain = KeyChain(IdentityBuilder(CoreIdentity(**core_fields)), request, 4)
    chain.key(1, tokens)
    changed = tokens.copy()
    changed[7] = 99
    assert chain.serves(request, tokens)
    assert chain.serves(request, tokens[:8])
    assert not chain.serves(request, changed)
    assert not chain.serves(request, tokens[:7])
    assert not chain.serves(facts(), tokens)


@pytest.mark.parametrize("hook", ["model_fields", "request_fields", "block_fields"])
def test_what_a_contributor_raises_passes_the_boundary_of_its_hook(core_fields, facts, hook):
    def fail(self, *args):
        raise LookupError(hook)

    passed = []

    @contextmanager
    def boundary(name):
        try:
            yield
        except LookupError:
            passed.append(name)
            raise

    broken = type("Broken", (IdentityContributor,), {hook: fail})()
    with pytest.raises(LookupError):
        builder = IdentityBuilder(CoreIdentity(**core_fields), [("broken", broken)], {"broken": boundary})
        builder.key(builder.root(facts()), facts(), np.arange(4), 0)
    assert passed == [hook]
