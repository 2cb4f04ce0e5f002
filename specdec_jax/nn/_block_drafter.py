"""Drafters that foretell a whole block in one pass: what DFlash and DSpark share.

Their cache holds what the target's features of committed tokens make of keys and
values; the block's own are never kept.
"""

import abc
import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from specdec_jax import _cache
from specdec_jax._types import (
    Accepted,
    Cache,
    Draft,
    Kind,
    Params,
    Pending,
    Sampler,
    Target,
)
from specdec_jax.nn._attention import attention
from specdec_jax.nn._choose import chain_of, choose
from specdec_jax.nn._head_parts import TOKENS, embed, in_target_vocabulary
from specdec_jax.nn._injected import InjectedBody, InjectedConfig


@dataclasses.dataclass(frozen=True)
class BlockDrafter(abc.ABC):
    """Drafts from a body whose parameters are `params.drafter`.

    Args:
        config: of the body and its heads.
        taps: layers of the target in the order of the body's input.
        kind: "points" takes the likeliest tokens (under `match`, with the target's own
            noise), "iid" draws them.
        drafts: how many of a block's tokens are proposed; None for all. The block
            itself is always as wide as it was trained.
    """

    config: InjectedConfig
    taps: tuple[int | str, ...]
    kind: Kind = "points"
    drafts: int | None = None
    can_pass: bool = dataclasses.field(default=False, init=False)

    def __post_init__(self):
        if self.kind not in ("points", "iid"):
            raise ValueError(f'it drafts "points" or "iid", not {self.kind!r}')
        most = self.config.num_drafts
        if self.drafts is not None and not 1 <= self.drafts <= most:
            raise ValueError(
                f"a block of this body foretells {most} tokens, so drafts is 1 … "
                f"{most}, not {self.drafts}: it was trained for blocks of that width"
            )

    @property
    def max_depth(self) -> int:
        """Of the deepest node."""
        return self.config.num_drafts if self.drafts is None else self.drafts

    @property
    def num_nodes(self) -> int:
        """The root included."""
        return 1 + self.max_depth

    def check(self, target: Target) -> None:
        """Raise `ValueError` where this is no drafter for that target."""
        config = self.config
        taps, found = len(self.taps), config.feature_width
        if found != taps * target.width:
            raise ValueError(
                f"the body reads {found} numbers, but {taps} taps of the target have "
                f"{taps * target.width}: it was made for another model, or other taps"
            )
        is_own = config.own_embedding and config.own_head
        if config.width != target.width and not is_own:
            raise ValueError(
                f"the body's states have {config.width} numbers, the target's "
                f"{target.width}: it needs an embedding and an output layer of its own"
            )
        if not 0 <= config.mask_id < target.vocab_size:
            raise ValueError(
                f"mask_id {config.mask_id} is beyond the {target.vocab_size} tokens of "
                "the target"
            )
        if "final" in self.taps:
            raise ValueError("a block drafter taps layers, not the last norm")

    def init_params(self, key: Key[Array, ""], target: Target) -> PyTree:
        """Random parameters for a drafter of this target: a pure dict."""
        size = target.vocab_size
        body = InjectedBody(self.config, vocab_size=size, rngs=nnx.Rngs(key))
        params = nnx.to_pure_dict(nnx.split(body)[1])
        if self.config.draft_vocab_size is not None:
            few = jnp.arange(self.config.draft_vocab_size, dtype=jnp.int32)
            params[TOKENS] = few
        return params

    def body(self, params: PyTree) -> InjectedBody:
        """The network around its parameters."""
        own = {name: value for name, value in params.items() if name != TOKENS}
        return nnx.merge(_graph(self.config), own)

    def known(self, params: PyTree) -> Int[Array, " W"] | None:
        """The target's ids of the tokens of the body's own output layer, ascending;
        None: all.
        """
        return params.get(TOKENS)

    def embed(
        self, target: Target, params: Params, tokens: Int[Array, "B T"]
    ) -> Float[Array, "B T D"]:
        """What the body reads of tokens: its own table of them, or the target's."""
        return embed(self.config, target, params, tokens)

    def logits(
        self, target: Target, params: Params, states: Float[Array, "B T D"]
    ) -> Float[Array, "B T W"]:
        """Of the tokens that slots foretell, over those that the body knows."""
        if self.config.own_head:
            return self.body(params.drafter).logits(states)
        return target.logits(params.target, states)

    def index(
        self, params: PyTree, tokens: Int[Array, "..."]
    ) -> tuple[Int[Array, "..."], Bool[Array, "..."]]:
        """Where tokens of the target stand among those of `logits`, and whether they do
        at all (else 0).
        """
        known = self.known(params)
        if known is None:
            return tokens, jnp.ones(tokens.shape, jnp.bool_)
        at = jnp.searchsorted(known, tokens).astype(jnp.int32)
        at = jnp.minimum(at, known.shape[0] - 1)
        is_known = known[at] == tokens
        return jnp.where(is_known, at, 0), is_known

    def foretell(
        self,
        target: Target,
        params: Params,
        states: Float[Array, "B J K D"],
        before: Int[Array, "B J K"],
    ) -> tuple[Float[Array, "B J K W"], Float[Array, "B J K"] | None]:
        """The logits of all slots of some blocks, and of their confidence, where the
        token before each is known: what `draft` makes slot by slot.
        """
        batch, blocks, slots, width = states.shape
        flat = states.reshape(batch, blocks * slots, width)
        logits = self.logits(target, params, flat)
        logits = logits.reshape(batch, blocks, slots, -1)
        body = self.body(params.drafter)
        rows = None
        if body.markov is not None:
            rows = body.markov.look_up(before)
            memory = body.markov.start(batch * blocks)
            memory = memory.reshape(batch, blocks, -1)
            shown = []
            for slot in range(slots):
                one, memory = body.markov.step(
                    rows[:, :, slot], states[:, :, slot], memory
                )
                shown.append(one)
            logits = body.markov.correct(logits, jnp.stack(shown, axis=2))
        return logits, self._confidence(body, states, rows)

    def _confidence(
        self,
        body: InjectedBody,
        states: Float[Array, "... D"],
        rows: Float[Array, "... Y"] | None,
    ) -> Float[Array, "..."] | None:
        """Logits of the chance that each slot's draft is accepted."""
        if body.confidence is None:
            return None
        if self.config.confidence == "state and markov":
            assert rows is not None
            states = jnp.concatenate([states, rows], axis=-1)
        return body.confidence(states)

    def init(self, batch: int, slots: int) -> Cache:
        """Nothing read yet."""
        return _cache.cache_of(self.config, batch, slots)

    def update(
        self, target: Target, params: Params, state: Cache, accepted: Accepted
    ) -> Cache:
        """Make keys and values of the accepted rows' features."""
        size = accepted.tokens.shape[1]
        steps = jnp.arange(size, dtype=jnp.int32)[None, :]
        positions = state.length[:, None] + steps
        made = self.body(params.drafter).context(accepted.features, positions)
        dtype = state.keys[0].dtype
        keys, values = (
            tuple(x.swapaxes(1, 2).astype(dtype) for x in layers) for layers in made
        )
        path = jnp.broadcast_to(steps, accepted.tokens.shape)
        return _cache.commit(state, Pending(keys, values), path, accepted.length)

    def draft(
        self,
        target: Target,
        params: Params,
        state: Cache,
        root: Int[Array, " B"],
        sampler: Sampler,
    ) -> tuple[Draft, Cache]:
        """A chain, drawn left to right from the slots of one pass."""
        states = self.read(target, params, state, root)[:, : self.max_depth]
        logits = self.logits(target, params, states)
        body, known = self.body(params.drafter), self.known(params.drafter)
        batch, vocab_size = root.shape[0], target.vocab_size
        path = jnp.full((batch, 1, self.num_nodes), -1, jnp.int32).at[:, 0, 0].set(root)
        markov = body.markov
        memory = None if markov is None else markov.start(batch)

        def draw(carry: Any, slot: Any) -> tuple[Any, Any]:
            path, before, memory = carry
            at, logits, state = slot
            row = None
            if markov is not None:
                row = markov.look_up(before)
                shown, memory = markov.step(row, state, memory)
                logits = markov.correct(logits, shown)
            whole = in_target_vocabulary(logits[:, None], known, vocab_size)
            token, log_q = choose(sampler, self.kind, whole, path, at)
            path = path.at[:, 0, at + 1].set(token)
            return (path, token, memory), (log_q, row)

        slots = (
            jnp.arange(self.max_depth, dtype=jnp.int32),
            logits.swapaxes(0, 1),
            states.swapaxes(0, 1),
        )
        (path, _, _), (laws, rows) = jax.lax.scan(draw, (path, root, memory), slots)
        laws = None if laws is None else laws.swapaxes(0, 1)
        rows = None if rows is None else rows.swapaxes(0, 1)
        confidence = self._confidence(body, states, rows)
        if confidence is not None:
            confidence = jnp.pad(
                jax.nn.sigmoid(confidence), ((0, 0), (1, 0)), constant_values=1.0
            )
        return chain_of(path[:, 0], laws, confidence), state

    def read(
        self, target: Target, params: Params, state: Cache, root: Int[Array, " B"]
    ) -> Float[Array, "B K D"]:
        """The states of the slots that foretell something, the block read in one pass
        after the context.
        """
        config = self.config
        batch, size = root.shape[0], config.block_size
        tokens = jnp.full((batch, size), config.mask_id, jnp.int32).at[:, 0].set(root)
        depths = jnp.arange(size, dtype=jnp.int32)
        depths = jnp.broadcast_to(depths, (batch, size))

        def attend(
            layer: int,
            query: Array,
            key: Array,
            value: Array,
            /,
            *,
            window: int | None = None,
            scale: float | None = None,
        ) -> Array:
            mask = jnp.broadcast_to(config.sees(layer), (batch, size, size))
            at = depths
            if config.anchored_windows and window is not None:
                at, window = jnp.zeros_like(depths), window + 1
            return attention(
                query,
                state.keys[layer],
                state.values[layer],
                state.length,
                key.swapaxes(1, 2),
                value.swapaxes(1, 2),
                mask,
                at,
                window=window,
                scale=scale,
            )

        states = self.body(params.drafter)(
            self.embed(target, params, tokens), state.length[:, None] + depths, attend
        )
        return states[:, size - config.num_drafts :]


@functools.cache
def _graph(config: InjectedConfig) -> nnx.GraphDef:
    def build() -> InjectedBody:  # of any vocabulary: sizes are the parameters'
        return InjectedBody(config, vocab_size=1, rngs=nnx.Rngs(0))

    return nnx.split(nnx.eval_shape(build))[0]
