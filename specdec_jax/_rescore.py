"""What plain decoding thought of each token at a place of a text, asked once more."""

import dataclasses
import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from specdec_jax import _run, _sampling, _tree
from specdec_jax._door import make_program
from specdec_jax._options import Request
from specdec_jax._run import Program, Run
from specdec_jax._state import init_state
from specdec_jax._types import History, Params, Target
from specdec_jax.drafters import Plain


def next_scores(
    target: Target,
    params: Params,
    request: Request,
    prompt: Sequence[int],
    said: np.ndarray,
    slots: int,
) -> np.ndarray:
    """The scores that plain decoding picks the token after `said` by, read one by one.

    Args:
        target: as for `generate`.
        params: of the target.
        request: of one row.
        prompt: token ids.
        said: the tokens after it, so far.
        slots: of the cache.
    """
    text = np.concatenate([np.asarray(prompt), said]).astype(np.int32)
    program = make_program(target, params, Plain(), rule="match", logprobs=None)
    program = dataclasses.replace(program, chunk=1)
    state = init_state(target, Plain(), 1, slots)
    tokens = np.zeros((1, slots), np.int32)
    tokens[0, : len(text)] = text
    state = state._replace(
        tokens=jnp.asarray(tokens), length=jnp.array([len(text)], jnp.int32)
    )
    counts = np.bincount(said, minlength=target.vocab_size).astype(np.int32)
    start = jnp.array([len(prompt)], jnp.int32)
    return np.asarray(
        _scores(program, params, request, state, start, jnp.asarray(counts[None]))
    )


@functools.partial(jax.jit, static_argnames="program")
def _scores(
    program: Program,
    params: Params,
    request: Request,
    state: _run.State,
    start: Array,
    counts: Array,
) -> Float[Array, " V"]:
    run: Run = _run.begin(program, params, state, request)
    if run.history is not None:
        run = run._replace(history=History(run.history.prompted, counts))
    if request.options.constraint is not None:
        new = jnp.arange(state.tokens.shape[1], dtype=jnp.int32)[None, :]
        is_new = (new >= start[:, None]) & (new < state.length[:, None])
        said = jnp.where(is_new, state.tokens, -1)[:, None, :]
        moved = _sampling.constraint_states(
            request.options.constraint, run.constraint, said
        )
        run = run._replace(constraint=jax.tree.map(lambda x: x[:, 0], moved))
    sampler = _run.make_sampler(program, request, run._replace(start=start))
    root = run.state.root[:, None]
    output = program.target.forward(
        params.target, run.state.cache, _tree.causal_block(root), ()
    )
    scores = _sampling.adjust(
        sampler, program.target.logits(params.target, output.hidden), root[:, :, None]
    )
    noisy = _sampling.perturb(sampler, scores, root[:, :, None])
    return jnp.where(_sampling.samples(sampler)[:, None, None], noisy, scores)[0, 0]
