"""Changes of the API as a text to replace in one of its modules: ``name -> (module, old, new, what is found)``."""

from __future__ import annotations

Planted = dict[str, tuple[str, str, str, list[str]]]

DATA: Planted = {
    "optional field": (
        "drafts",
        "    source: Any | None = None\n",
        "    source: Any | None = None\n    origin: str = ''\n",
        ["Drafts.origin: field added (compatible)"],
    ),
    "required field": (
        "drafts",
        "    tokens: Any\n",
        "    tokens: Any\n    origin: str\n",
        ["Drafts.origin: field without default added (breaks callers)"],
    ),
    "optional field of what the core makes": (
        "proposers",
        "    trust_domain: str\n",
        "    trust_domain: str\n    priority: int = 0\n",
        ["RequestView.priority: field added (compatible)"],
    ),
    "required field of what the core makes": (
        "proposers",
        "    trust_domain: str\n",
        "    trust_domain: str\n    priority: int\n",
        ["RequestView.priority: field without default added (breaks callers)"],
    ),
    "field removed": (
        "eviction",
        "    hits: int\n",
        "",
        ["BlockFacts.hits: field removed (breaks callers)"],
    ),
    "field renamed": (
        "eviction",
        "    hits: int\n",
        "    num_hits: int\n",
        [
            "BlockFacts.hits: field removed (breaks callers)",
            "BlockFacts.num_hits: field without default added (breaks callers)",
        ],
    ),
    "default changed": (
        "proposers",
        "    recompute_tail: int = 0\n",
        "    recompute_tail: int = 1\n",
        ["ProposerCapabilities.recompute_tail: default 0 became 1 (breaks callers)"],
    ),
    "default taken away": (
        "proposers",
        "    recompute_tail: int = 0\n",
        "    recompute_tail: int\n",
        ["ProposerCapabilities.recompute_tail: default 0 became none (breaks callers)"],
    ),
    "default given": (
        "proposers",
        "    max_tokens: int\n",
        "    max_tokens: int = 8\n",
        ["ProposerCapabilities.max_tokens: default none became 8 (compatible)"],
    ),
    "type of a field": (
        "facts",
        "    seed: int\n",
        "    seed: int | None\n",
        ["SamplingFacts.seed: type int became int | None (breaks callers)"],
    ),
    "type behind an alias": (
        "identity",
        "FieldValue = str | bytes | int | bool | None",
        "FieldValue = str | bytes | int",
        [
            "FieldValue: value str | bytes | int | bool | None became str | bytes | int (breaks callers)",
        ],
    ),
    "type behind an alias that is not exported": (
        "specs",
        "Needs = frozenset[str]",
        "Needs = set[str]",
        ["Needs: value frozenset[str] became set[str] (breaks callers)"],
    ),
    "frozen data thaw": (
        "facts",
        "@dataclass(frozen=True, slots=True, kw_only=True)\nclass SamplingFacts",
        "@dataclass(slots=True, kw_only=True)\nclass SamplingFacts",
        [
            "SamplingFacts: decorators ['dataclass(frozen=True, slots=True, kw_only=True)'] became "
            "['dataclass(slots=True, kw_only=True)'] (breaks callers)"
        ],
    ),
}

CALLS: Planted = {
    "abstract method of an interface": (
        "proposers",
        "    def observe(self, committed",
        "    @abstractmethod\n    def warm(self) -> None:\n        pass\n\n    def observe(self, committed",
        ["Proposer.warm: abstract method added (breaks implementers)"],
    ),
    "method of an interface with a body": (
        "proposers",
        "    def observe(self, committed",
        "    def warm(self) -> None:\n        pass\n\n    def observe(self, committed",
        ["Proposer.warm: method added (compatible)"],
    ),
    "method of an interface removed": (
        "proposers",
        "    def observe(self, committed",
        "    def _observe(self, committed",
        ["Proposer.observe: method removed (breaks implementers)"],
    ),
    "method becomes abstract": (
        "proposers",
        "    def observe(self, committed",
        "    @abstractmethod\n    def observe(self, committed",
        ["Proposer.observe: became abstract (breaks implementers)"],
    ),
    "abstract method gets a body": (
        "proposers",
        "    @abstractmethod\n    def propose(self",
        "    def propose(self",
        ["Proposer.propose: got a body (compatible)"],
    ),
    "parameter of an interface": (
        "proposers",
        "def propose(self, batch: ProposeBatch)",
        "def propose(self, batch: ProposeBatch, step: int)",
        ["Proposer.propose(step): parameter added, which the core passes (breaks implementers)"],
    ),
    "parameter of an interface with a default": (
        "proposers",
        "def propose(self, batch: ProposeBatch)",
        "def propose(self, batch: ProposeBatch, step: int = 0)",
        ["Proposer.propose(step): parameter added, which the core passes (breaks implementers)"],
    ),
    "parameter of an interface becomes optional": (
        "proposers",
        "def propose(self, batch: ProposeBatch)",
        "def propose(self, batch: ProposeBatch | None = None)",
        [
            "Proposer.propose(batch): type ProposeBatch became ProposeBatch | None (breaks implementers)",
            "Proposer.propose(batch): default none became None (breaks implementers)",
        ],
    ),
    "return type of an interface": (
        "eviction",
        "def victims(self, count: int) -> Sequence[int]",
        "def victims(self, count: int) -> list[int]",
        ["EvictionPolicy.victims: return type Sequence[int] became list[int] (breaks implementers)"],
    ),
    "method of what the core lends": (
        "constraints",
        "class ConstraintContext(Protocol):\n",
        "class ConstraintContext(Protocol):\n    def width(self) -> int: ...\n\n",
        ["ConstraintContext.width: method added (compatible)"],
    ),
    "method of what the core lends, removed": (
        "proposers",
        "    def open_checkpoint(self)",
        "    def _open_checkpoint(self)",
        ["ProposerContext.open_checkpoint: method removed (breaks callers)"],
    ),
    "property becomes a method": (
        "constraints",
        "    @property\n    def tokenizer(self)",
        "    def tokenizer(self)",
        ["ConstraintContext.tokenizer: ['property'] became [] (breaks callers)"],
    ),
    "parameter of what the core lends": (
        "proposers",
        "def load_model(self, path: str, kv_group: str, layers: Sequence[int] | None = None)",
        "def load_model(self, path: str, kv_group: str, dtype: str, layers: Sequence[int] | None = None)",
        [
            "ProposerContext.load_model(dtype): parameter without default added (breaks callers)",
            "ProposerContext.load_model: order of parameters (path, kv_group, layers) became "
            "(path, kv_group, dtype, layers) (breaks callers)",
        ],
    ),
    "parameter of what the core lends, with a default": (
        "proposers",
        "layers: Sequence[int] | None = None) -> PagedModel",
        "layers: Sequence[int] | None = None, *, dtype: str = '') -> PagedModel",
        ["ProposerContext.load_model(dtype): parameter added (compatible)"],
    ),
    "parameter with a default before others": (
        "commands",
        "def open(self, model: str,",
        "def open(self, device: str = '', model: str = '',",
        [
            "CommandContext.open(device): parameter added (compatible)",
            "CommandContext.open(model): default none became '' (compatible)",
            "CommandContext.open: order of parameters (model, options) became (device, model, options) "
            "(breaks callers)",
        ],
    ),
    "parameter only by keyword": (
        "proposers",
        "def report(self, computed: np.ndarray, first",
        "def report(self, computed: np.ndarray, *, first",
        [
            "KVView.report(first): positional became keyword (breaks callers)",
            "KVView.report: order of parameters (computed, first) became (computed, first) (breaks callers)",
        ],
    ),
    "parameter of a function removed": (
        "proposers",
        "def no_lookahead(budget: int)",
        "def no_lookahead()",
        ["no_lookahead(budget): parameter removed (breaks callers)"],
    ),
}

NAMES: Planted = {
    "export removed": (
        "__init__",
        '    "PagedModel",\n    "Placement"',
        '    "Placement"',
        ["PagedModel: removed (breaks callers)"],
    ),
    "interface removed": (
        "__init__",
        '    "Observer",\n    "ObserverC',
        '    "ObserverC',
        ["Observer: removed (breaks callers and implementers)"],
    ),
    "member of an enum that the core gives": (
        "observers",
        '    CLEARED = "cleared"\n',
        '    CLEARED = "cleared"\n    MOVED = "moved"\n',
        ["KVEventKind.MOVED: added (breaks callers)"],
    ),
    "member of an enum that plugins give": (
        "proposers",
        '    TREE = "tree"\n',
        '    TREE = "tree"\n    FOREST = "forest"\n',
        ["DraftShape.FOREST: added (compatible)"],
    ),
    "member removed": (
        "proposers",
        '    TREE = "tree"\n',
        "",
        ["DraftShape.TREE: removed (breaks callers)"],
    ),
    "code of an error": (
        "constraints",
        'code = "PACELINE-E503"',
        'code = "PACELINE-E504"',
        ["ConstraintError.code: 'PACELINE-E503' became 'PACELINE-E504' (breaks callers)"],
    ),
    "base of an error": (
        "constraints",
        "class ConstraintError(PacelineError)",
        "class ConstraintError(ValueError)",
        ["ConstraintError: bases ['PacelineError'] became ['ValueError'] (breaks callers)"],
    ),
    "value of a constant": (
        "hooks",
        'ENTRY_POINT_GROUP = "paceline.plugins"',
        'ENTRY_POINT_GROUP = "paceline.extensions"',
        ["ENTRY_POINT_GROUP: value 'paceline.plugins' became 'paceline.extensions' (breaks callers)"],
    ),
    "class becomes a protocol": (
        "observers",
        "class ObserverContext:",
        "class ObserverContext(Protocol):",
        ["ObserverContext: dataclass became protocol (breaks callers and implementers)"],
    ),
    "hook added": (
        "hooks",
        "@hookspec\ndef paceline_commands",
        "@hookspec\ndef paceline_tiers() -> Iterable[object]:\n    return ()\n\n\n@hookspec\ndef paceline_commands",
        ["paceline_tiers: hook added (compatible)"],
    ),
    "hook removed": (
        "hooks",
        "@hookspec\ndef paceline_commands",
        "def paceline_commands",
        ["paceline_commands: hook removed (breaks implementers)"],
    ),
    "hook with a parameter": (
        "hooks",
        "def paceline_observers()",
        "def paceline_observers(engine: object)",
        ["paceline_observers(engine): parameter added, which the core passes (breaks implementers)"],
    ),
    "only a docstring": ("drafts", "Valid for one step.", "Valid until the step ends.", []),
}
