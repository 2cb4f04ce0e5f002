"""A mixture of experts in fixed shapes, without capacity: no token is ever dropped, and
none depends on its neighbours.
"""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from specdec_jax.nn._layers import Activation, Linear, activate


@dataclasses.dataclass(frozen=True)
class ExpertsConfig:
    """How many experts there are, how many a token has, how wide each is, and whether
    the shares of a token's experts are made to sum to one.
    """

    count: int
    per_token: int
    width: int
    normalize: bool = True


class Experts(nnx.Module):
    """Gated MLPs, of which each token takes the few that its router likes best, by
    their shares of the softmax over all (Qwen3's rule).

    The weights are stored (expert, hidden, width), all three: the hidden axis can be
    spread over a mesh without splitting an expert's rows.
    """

    def __init__(
        self,
        width: int,
        config: ExpertsConfig,
        *,
        activation: Activation = "silu",
        dtype: DTypeLike,
        rngs: nnx.Rngs,
    ):
        self.config = config
        self.activation: Activation = activation
        self.router = Linear(width, config.count, dtype=dtype, rngs=rngs)
        shape = (config.count, config.width, width)

        def weight(inputs: int) -> nnx.Param:
            scale = jnp.asarray(inputs**-0.5, dtype)
            return nnx.Param(jax.random.normal(rngs.params(), shape, dtype) * scale)

        self.expert_gate = weight(width)
        self.expert_up = weight(width)
        self.expert_down = weight(config.width)

    def __call__(self, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        tokens = x.reshape(-1, x.shape[-1])
        laws = jax.nn.softmax(self.router(tokens).astype(jnp.float32), axis=-1)
        shares, experts = jax.lax.top_k(laws, self.config.per_token)
        if self.config.normalize:
            shares = shares / shares.sum(-1, keepdims=True)
        # With fewer tokens than would need them all, only their experts are read.
        few = tokens.shape[0] * self.config.per_token < self.config.count
        mix = self._few if few else self._all
        return mix(tokens, shares, experts).reshape(x.shape)

    def _all(
        self,
        tokens: Float[Array, "M D"],
        shares: Float[Array, "M k"],
        experts: Int[Array, "M k"],
    ) -> Float[Array, "M D"]:
        """Every expert of every token, most of them with no share: weights are read
        once, which is what bounds a decoding step.
        """
        rows = jnp.arange(tokens.shape[0], dtype=jnp.int32)[:, None]
        spread = jnp.zeros((tokens.shape[0], self.config.count), jnp.float32)
        spread = spread.at[rows, experts].set(shares)
        gate = jnp.einsum("md,efd->mef", tokens, self.expert_gate[...])
        up = jnp.einsum("md,efd->mef", tokens, self.expert_up[...])
        hidden = activate(gate, self.activation) * up
        shared = jnp.where(spread[:, :, None] > 0, hidden * spread[:, :, None], 0.0)
        hidden = shared.astype(tokens.dtype)
        return jnp.einsum("mef,efd->md", hidden, self.expert_down[...])

    def _few(
        self,
        tokens: Float[Array, "M D"],
        shares: Float[Array, "M k"],
        experts: Int[Array, "M k"],
    ) -> Float[Array, "M D"]:
        """Each token's own experts, gathered."""
        gate = jnp.einsum("md,mkfd->mkf", tokens, self.expert_gate[...][experts])
        up = jnp.einsum("md,mkfd->mkf", tokens, self.expert_up[...][experts])
        hidden = activate(gate, self.activation) * up
        hidden = (hidden * shares[:, :, None]).astype(tokens.dtype)
        return jnp.einsum("mkf,mkfd->md", hidden, self.expert_down[...][experts])
