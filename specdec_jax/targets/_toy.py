"""A target whose law is a table that one can read: the double that tests and examples
use.
"""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from specdec_jax import _cache
from specdec_jax._types import Block, Cache, Pending, TargetOutput


@dataclasses.dataclass(frozen=True)
class Toy:
    """The law after a prefix t_0 … t_n is row Σ (i + 1)(t_i + 1) mod `num_contexts` of
    a table.

    So every token, its position, the mask of a block and every slot of the cache
    matter, and a test can say what is right. `params["logits"]` is the table, Float
    "num_contexts V".
    """

    vocab_size: int = 13
    num_contexts: int = 31
    max_length: int = 4096
    scale: float = 1.5  # standard deviation of random logits

    @property
    def num_layers(self) -> int:
        """Tap 0 is the one-hot context, -1 the one-hot token."""
        return 1

    @property
    def width(self) -> int:
        """Of hidden states and taps."""
        return self.num_contexts

    def context(self, prefix: Sequence[int]) -> int:
        """Which row of the table rules after `prefix`."""
        return (
            sum((i + 1) * (token + 1) for i, token in enumerate(prefix))
            % self.num_contexts
        )

    def law(self, params: PyTree, prefix: Sequence[int]) -> np.ndarray:
        """The probabilities after `prefix`, float64."""
        logits = np.asarray(params["logits"], np.float64)[self.context(prefix)]
        weights = np.exp(logits - logits.max())
        return weights / weights.sum()

    def init_params(self, key: Key[Array, ""]) -> PyTree:
        """A random table."""
        return {
            "logits": self.scale
            * jax.random.normal(key, (self.num_contexts, self.vocab_size), jnp.float32)
        }

    def init_cache(self, batch: int, slots: int) -> Cache:
        """Keys hold (position + 1), values (token + 1)."""
        return _cache.init_cache(
            layers=1,
            batch=batch,
            kv_heads=1,
            slots=slots,
            head_width=1,
            dtype=jnp.float32,
        )

    def embed(self, params: PyTree, tokens: Int[Array, "B T"]) -> Float[Array, "B T D"]:
        """The token, one-hot."""
        return jax.nn.one_hot(tokens % self.width, self.width, dtype=jnp.float32)

    def logits(
        self, params: PyTree, hidden: Float[Array, "B T D"]
    ) -> Float[Array, "B T V"]:
        """The row of the table."""
        return jnp.einsum("btd,dv->btv", hidden, params["logits"], precision="highest")

    def forward(
        self, params: PyTree, cache: Cache, block: Block, taps: tuple[int | str, ...]
    ) -> TargetOutput:
        """Sum over what each token sees, in whole numbers."""
        positions = cache.length[:, None] + block.depths + 1
        keys = positions.astype(jnp.float32)[:, None, :, None]
        values = (block.tokens + 1).astype(jnp.float32)[:, None, :, None]
        slots = jnp.arange(cache.keys[0].shape[2], dtype=jnp.int32)[None, :]
        is_committed = slots < cache.length[:, None]
        committed = self._terms(cache.keys[0], cache.values[0], is_committed)
        seen = self._terms(keys, values, block.mask)
        total = committed.sum(-1)[:, None] + seen.sum(-1)
        hidden = jax.nn.one_hot(
            total % self.num_contexts, self.num_contexts, dtype=jnp.float32
        )
        tapped = [
            self.embed(params, block.tokens) if tap == -1 else hidden for tap in taps
        ]
        features = (
            jnp.concatenate(tapped, axis=-1)
            if tapped
            else jnp.zeros((*block.tokens.shape, 0), jnp.float32)
        )
        return TargetOutput(hidden, features, Pending((keys,), (values,)))

    def _terms(
        self,
        keys: Float[Array, "B 1 S 1"],
        values: Float[Array, "B 1 S 1"],
        mask: Bool[Array, "B *T S"],
    ) -> Int[Array, "B *T S"]:
        """What each slot adds to the sum, 0 where it is not seen."""
        shape = (mask.shape[0], *[1] * (mask.ndim - 2), mask.shape[-1])
        key, value = (
            jnp.where(mask, x.reshape(shape), 0.0).astype(jnp.int32)
            for x in (keys, values)
        )
        return key * value % self.num_contexts

    def commit(
        self,
        cache: Cache,
        pending: Pending,
        path: Int[Array, "B P"],
        length: Int[Array, " B"],
    ) -> Cache:
        """Append the accepted path."""
        return _cache.commit(cache, pending, path, length)
