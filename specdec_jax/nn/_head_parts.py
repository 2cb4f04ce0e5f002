"""What the heads of all drafters over features share."""

from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from specdec_jax._types import Params, Target
from specdec_jax.nn._layers import RMSNorm
from specdec_jax.nn._table import look_up

# Beside the parameters of a head that does not know all of the target's tokens: the
# target's ids of those that it knows, int32 "L", ascending.
TOKENS = "tokens"


@runtime_checkable
class HeadConfig(Protocol):
    """What every configuration of a head says."""

    @property
    def width(self) -> int: ...
    @property
    def norm_epsilon(self) -> float: ...
    @property
    def own_embedding(self) -> bool: ...
    @property
    def dtype(self) -> str: ...


def norm_of(config: HeadConfig, width: int) -> RMSNorm:
    """A norm of so many numbers, as the configuration has them."""
    return RMSNorm(width, epsilon=config.norm_epsilon, dtype=jnp.dtype(config.dtype))


def own_table(config: HeadConfig, vocab_size: int, rngs: nnx.Rngs) -> nnx.Param | None:
    """A head's own table of tokens, where it has one."""
    if not config.own_embedding:
        return None
    dtype = jnp.dtype(config.dtype)
    table = jax.random.normal(rngs.params(), (vocab_size, config.width), dtype)
    return nnx.Param(table * jnp.asarray(config.width**-0.5, dtype))


def embed(
    config: HeadConfig, target: Target, params: Params, tokens: Int[Array, "B T"]
) -> Float[Array, "B T D"]:
    """What a head reads of tokens: its own table of them, or the target's."""
    if config.own_embedding:
        return look_up(params.drafter["embedding"], tokens)
    return target.embed(params.target, tokens)


def in_target_vocabulary(
    logits: Float[Array, "B W L"], known: Int[Array, " L"] | None, vocab_size: int
) -> Float[Array, "B W V"]:
    """Logits of the tokens that are known, -inf for the others."""
    if known is None:
        return logits
    unknown = jnp.full((*logits.shape[:2], vocab_size), -jnp.inf, jnp.float32)
    return unknown.at[:, :, known].set(logits)
