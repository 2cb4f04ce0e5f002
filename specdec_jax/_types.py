"""The legend, the data that flows through a step, and the two protocols.

One letter is one axis, everywhere in the package:

    B sequences (rows)   D model width       N nodes of the draft tree, root included
    P path slots         T block tokens      V vocabulary          F feature width
    S cache slots        K key/value heads   H head width          R rows of laws
    Q states of a stop-string automaton      E stop ids of a row
    G groups of rows that share one          L tokens that a drafter's head knows
    J blocks of a text that a drafter is trained on, of C slots each
    Y rank of a Markov head

Data is a `NamedTuple` of arrays, configuration a frozen dataclass, parameters are
arguments. Masks are boolean and True keeps.
"""

import dataclasses
from collections.abc import Callable
from types import NoneType, UnionType
from typing import (
    Any,
    Literal,
    NamedTuple,
    Protocol,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    runtime_checkable,
)

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, PyTree, jaxtyped

Kind = Literal["points", "iid", "without_replacement"]
Rule = Literal["match", "rejection", "block"]


class Cache(NamedTuple):
    """Keys and values of the committed prefix.

    Entries at or beyond `length` are never read, so lowering `length` *is* the
    rollback; otherwise a cache is append-only. Keys are rotated at their final
    position.
    """

    keys: tuple[Float[Array, "B K S H"], ...]
    values: tuple[Float[Array, "B K S H"], ...]
    length: Int[Array, " B"]


class Pending(NamedTuple):
    """A block's keys and values, in the cache's dtype, not yet in the cache."""

    keys: tuple[Float[Array, "B K T H"], ...]
    values: tuple[Float[Array, "B K T H"], ...]


class Block(NamedTuple):
    """What the target reads at once: a prompt chunk, one token, or a tree."""

    tokens: Int[Array, "B T"]
    depths: Int[Array, "B T"]  # position = cache length + depth
    # Who sees whom inside the block, diagonal always True; all see the whole prefix.
    mask: Bool[Array, "B T T"]


class TargetOutput(NamedTuple):
    """What a forward returns; logits are another call, so a prompt pays for none."""

    hidden: Float[Array, "B T D"]  # after the last norm
    features: Float[Array, "B T F"]  # the taps that the drafter asked for, concatenated
    pending: Pending


class Params(NamedTuple):
    """Two pytrees, always arguments, never closed over."""

    target: PyTree
    drafter: PyTree = ()


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True, eq=False)
class Constraint:
    """A grammar as two pure functions over a state, written for one row.

    They are mapped over rows and nodes. Compared by identity: build one and pass the
    same object again, or the program compiles anew.
    """

    initial: Any  # pytree of arrays: the state before a row's first new token
    mask: Callable[[Any], Bool[Array, " V"]]  # which tokens may come next
    advance: Callable[[Any, Int[Array, ""]], Any]  # (state, token) -> state


class Penalties(NamedTuple):
    """As Hugging Face and vLLM define them.

    Repetition counts prompt and output, the other two the output only.
    """

    repetition: Float[Array, " B"]  # > 0; 1 is none
    presence: Float[Array, " B"]
    frequency: Float[Array, " B"]


class Options(NamedTuple):
    """Per-row sampling options as arrays.

    An option that no row uses is None: on or off is static, its value is not.
    """

    temperature: Float[Array, " B"]  # 0 is the argmax
    stop_ids: Int[Array, "B E"]  # padded with V
    # Before this many, stop ids are banned and stop strings not looked for.
    min_new_tokens: Int[Array, " B"] | None = None
    top_k: Int[Array, " B"] | None = None  # V: off for this row
    top_p: Float[Array, " B"] | None = None  # 1: off for this row
    min_p: Float[Array, " B"] | None = None  # 0: off for this row
    penalties: Penalties | None = None
    # Added to the logits; -inf where a token is banned or not among the allowed.
    bias: Float[Array, "B V"] | None = None
    constraint: Constraint | None = None


class History(NamedTuple):
    """What a row has said so far, the root included."""

    prompted: Bool[Array, "B V"]  # which tokens its prompt has
    counts: Int[Array, "B V"]  # how often it generated each token


class Sampler(NamedTuple):
    """All that the law of a row's next token depends on besides the logits."""

    options: Options
    keys: Key[Array, " B"]  # one per row, the same for the whole generation
    base: Int[Array, " B"]  # the root's absolute position
    generated: Int[Array, " B"]  # tokens generated so far, the root included if it was
    history: History | None  # None where nothing is penalised
    constraint: PyTree | None  # state of the constraint after the root, per row
    # Under `match` the keys of the noise that goes with each position; else None.
    noise: Key[Array, " B"] | None


class Proposal(NamedTuple):
    """The laws that a draft's tokens were drawn from, exactly as drawn.

    Float32, after options, in the target's vocabulary.
    """

    log_q: Float[Array, "B R V"]
    row: Int[Array, "B N"]  # which row node n was drawn from; unused at the root


class Draft(NamedTuple):
    """A tree of candidate tokens.

    Node 0 is the root: the newest token, not yet in the target's cache. A node that is
    not `valid` is no proposal: it is never accepted, updates no residual and is not
    counted, but its token is still in [0, V). Of siblings drawn without replacement
    only the last may be made not valid: those after it were drawn without its token.
    """

    tokens: Int[Array, "B N"]
    # parents[:, 0] == -1 and parents[:, i] < i: any prefix of the nodes is a tree.
    parents: Int[Array, "B N"]
    valid: Bool[Array, "B N"]
    proposal: Proposal | None = None  # None where nodes are chosen
    # P(accepted | parent accepted), where the drafter knows.
    confidence: Float[Array, "B N"] | None = None


class Verdict(NamedTuple):
    """What a verification accepts: nodes of `path`, and the token after the last."""

    path: Int[Array, "B P"]  # the root first; slots at or beyond length hold 0
    length: Int[Array, " B"]  # 0: the row is finished and commits nothing
    next: Int[Array, " B"]


class Accepted(NamedTuple):
    """Tokens that have just entered the target's cache.

    An accepted path or a prompt chunk: they look the same.
    """

    tokens: Int[Array, "B P"]
    features: Float[Array, "B P F"]
    length: Int[Array, " B"]
    # What follows the last of them: the new root, or the first of the rest of a prompt.
    next: Int[Array, " B"]


@runtime_checkable
class Target(Protocol):
    """A language model. Frozen dataclasses satisfy it; parameters are arguments."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def num_layers(self) -> int: ...
    @property
    def width(self) -> int: ...
    @property
    def max_length(self) -> int: ...

    def init_params(self, key: Key[Array, ""]) -> PyTree:
        """Random parameters: a pure dict."""
        ...

    def init_cache(self, batch: int, slots: int) -> Cache:
        """An empty cache, all zeros."""
        ...

    def embed(self, params: PyTree, tokens: Int[Array, "B T"]) -> Float[Array, "B T D"]:
        """What enters layer 0."""
        ...

    def forward(
        self, params: PyTree, cache: Cache, block: Block, taps: tuple[int | str, ...]
    ) -> TargetOutput:
        """Read a block after the committed prefix; the cache is not written.

        Tap i is the residual stream after decoder layer i (0-based), -1 the embedding
        output, "final" the state after the last norm.
        """
        ...

    def logits(
        self, params: PyTree, hidden: Float[Array, "B T D"]
    ) -> Float[Array, "B T V"]:
        """Float32 logits, soft cap included."""
        ...

    def commit(
        self,
        cache: Cache,
        pending: Pending,
        path: Int[Array, "B P"],
        length: Int[Array, " B"],
    ) -> Cache:
        """Append the first `length` entries of `path`; what does not fit is dropped."""
        ...


@runtime_checkable
class Drafter(Protocol):
    """Proposes a tree after the root. Hashable, a static argument; whatever it learns
    lives in `params.drafter` and its state.
    """

    @property
    def taps(self) -> tuple[int | str, ...]: ...
    @property
    def num_nodes(self) -> int: ...
    @property
    def max_depth(self) -> int: ...
    @property
    def kind(self) -> Kind: ...
    @property
    def can_pass(self) -> bool: ...  # may propose nothing: the root is read alone then

    def init(self, batch: int, slots: int) -> PyTree:
        """State before any token, for sequences of at most `slots` tokens."""
        ...

    def draft(
        self,
        target: Target,
        params: Params,
        state: PyTree,
        root: Int[Array, " B"],
        sampler: Sampler,
    ) -> tuple[Draft, PyTree]:
        """Propose a tree of `num_nodes` nodes, none deeper than `max_depth`."""
        ...

    def update(
        self, target: Target, params: Params, state: PyTree, accepted: Accepted
    ) -> PyTree:
        """Take in what the target has committed; always called, whether it drafted or
        not.
        """
        ...


_Data = TypeVar("_Data", bound=tuple)


def check(data: _Data) -> _Data:
    """`data` itself, its arrays held against the annotations of its NamedTuple; raises
    `TypeError` naming the field.

    One letter means one size throughout, nested NamedTuples included.
    """
    with jaxtyped("context"):
        _check(data, type(data).__name__)
    return data


def _check(data: tuple, where: str) -> None:
    for name, hint in get_type_hints(type(data)).items():
        value = getattr(data, name)
        options = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
        if value is None:
            if NoneType not in options:
                raise TypeError(f"{where}.{name} is None")
            continue
        is_tuple = get_origin(options[0]) is tuple
        expected = get_args(options[0])[0] if is_tuple else options[0]
        for item in value if is_tuple else (value,):
            if hasattr(expected, "_fields"):
                _check(item, f"{where}.{name}")
            elif hasattr(expected, "dim_str") and not isinstance(item, expected):
                found = f"{getattr(item, 'dtype', type(item))}{jnp.shape(item)}"
                raise TypeError(f"{where}.{name} is {found}, not {expected.__name__}")
