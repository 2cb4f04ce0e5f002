"""What the parities of DFlash and of DSpark share: a target, a text, and what ours says
of a block.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from folders import random_params, tiny_target

from specdec_jax import _tree
from specdec_jax._types import Accepted, Params

V, WIDTH = 61, 48
TARGET = tiny_target("llama", num_hidden_layers=8)
TEXT = np.random.default_rng(2).integers(0, V - 1, 24).tolist()


@functools.cache
def weights() -> Any:
    return random_params(TARGET)


def features_of(taps: tuple[int | str, ...]) -> np.ndarray:
    """Of the whole text."""
    return np.asarray(_features(weights(), taps))


def _features(params: Any, taps: tuple[int | str, ...]) -> Any:
    block = _tree.causal_block(jnp.array([TEXT], jnp.int32))
    cache = TARGET.init_cache(1, 32)
    forward = jax.jit(TARGET.forward, static_argnames="taps")
    return forward(params, cache, block, taps=taps).features[0]


def our_states(
    drafter: Any, params: Params, features: np.ndarray, start: int, chunks: list[int]
) -> np.ndarray:
    """Of the slots that foretell something, after an anchor, whose context is read in
    chunks of at most these sizes.
    """
    state, at = drafter.init(1, 32), 0
    tokens = np.array(TEXT)
    for size in chunks:
        length = min(size, start - at)
        rows = (at + np.arange(8 if size <= 8 else len(TEXT))) % len(TEXT)
        accepted = Accepted(
            jnp.asarray(tokens[rows][None], jnp.int32),
            jnp.asarray(features[rows][None]),
            jnp.asarray([length], jnp.int32),
            jnp.asarray([0], jnp.int32),
        )
        state = _update(drafter, params, state, accepted)
        at += length
    assert at == start
    root = jnp.asarray([TEXT[start]], jnp.int32)
    return np.asarray(_read(drafter, params, state, root))[0]


@functools.partial(jax.jit, static_argnames="drafter")
def _update(drafter: Any, params: Params, state: Any, accepted: Accepted) -> Any:
    return drafter.update(TARGET, params, state, accepted)


@functools.partial(jax.jit, static_argnames="drafter")
def _read(drafter: Any, params: Params, state: Any, root: Any) -> Any:
    return drafter.read(TARGET, params, state, root)
