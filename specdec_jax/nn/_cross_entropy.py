"""Cross-entropy against a law, its gradient made in one pass."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def cross_entropy(
    logits: Float[Array, "... V"], law: Float[Array, "... V"]
) -> Float[Array, "..."]:
    """-Σ law · log softmax(logits), float32; differentiable in `logits` alone.

    Args:
        logits: float32, all finite.
        law: float32, its sums 1.
    """
    return _cross_entropy(logits, law)


@jax.custom_vjp
def _cross_entropy(logits: Array, law: Array) -> Array:
    return _forward(logits, law)[0]


def _forward(logits: Array, law: Array) -> tuple[Array, tuple[Array, Array, Array]]:
    total = jax.nn.logsumexp(logits, axis=-1)
    return total - (law * logits).sum(-1), (logits, law, total)


def _backward(
    kept: tuple[Array, Array, Array], cotangent: Array
) -> tuple[Array, Array]:
    logits, law, total = kept
    to_logits = cotangent[..., None] * (jnp.exp(logits - total[..., None]) - law)
    return to_logits, jnp.zeros_like(law)


_cross_entropy.defvjp(_forward, _backward)
