"""The scores that `match` chooses by, with nothing speculative about them."""

import dataclasses
import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

import specdec_jax as sd
from specdec_jax import _run, _sampling, _tree
from specdec_jax._door import prepare
from specdec_jax._options import Request
from specdec_jax._run import Program, State
from specdec_jax._types import Target


def next_scores(
    target: Target,
    params: sd.Params,
    prefix: Sequence[int],
    *,
    sampling: sd.Sampling,
    max_length: int,
) -> Float[np.ndarray, " V"]:
    """The token after `prefix` is the argmax of this: log-law and noise, or logits at
    temperature 0.

    The prefix is read token by token, in a batch of one. All of it counts as prompt,
    which presence and frequency penalties would notice.
    """
    call = prepare(
        target,
        params,
        sd.Plain(),
        [prefix],
        sampling=dataclasses.replace(sampling, max_new_tokens=1),
        rule="match",
        max_length=max_length,
        samples=1,
        logprobs=None,
        state=None,
    )
    program = dataclasses.replace(call.program, chunk=1)
    return np.asarray(_scores(program, params, call.state, call.request))


@functools.partial(jax.jit, static_argnames="program")
def _scores(
    program: Program, params: sd.Params, state: State, request: Request
) -> Float[Array, " V"]:
    run = _run.begin(program, params, state, request)
    sampler = _run.make_sampler(program, request, run)
    root = jnp.take_along_axis(run.state.tokens, run.state.length[:, None] - 1, axis=1)
    block = _tree.causal_block(root)
    output = program.target.forward(params.target, run.state.cache, block, ())
    logits = program.target.logits(params.target, output.hidden)
    path = root[:, :, None]
    adjusted = _sampling.adjust(sampler, logits, path)
    return _sampling.perturb(sampler, adjusted, path)[0, 0]
