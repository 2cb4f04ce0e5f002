"""What can be wrong with a schedule, said before anything runs."""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from specdec_jax import _sharding
from specdec_jax._best_first import MarginalTree
from specdec_jax._options import Request, Sampling, make_request
from specdec_jax._run import Program
from specdec_jax._schedule_types import Schedule
from specdec_jax._state import init_state
from specdec_jax._types import Draft, Drafter, Params, Rule, Sampler, Target
from specdec_jax.schedule import Calibration, CostTable, Fingerprint, Profile

_SLOTS = 64  # of a cache that is never made


def is_chain(drafter: Drafter) -> bool:
    """Whether every draft is one: a tree that may grow wider is none, however small."""
    tree = getattr(drafter, "tree", None)
    may_branch = isinstance(tree, MarginalTree) or getattr(tree, "width", 1) > 1
    return drafter.num_nodes == drafter.max_depth + 1 and not may_branch


def check_schedule(
    schedule: Schedule, target: Target, params: Params, drafter: Drafter, rule: Rule
) -> None:
    """Raise `ValueError` where it does not go together with the rest of a program."""
    if not isinstance(schedule, Schedule):
        raise ValueError(f"schedule is one of specdec_jax.schedule, not {schedule!r}")
    widths = schedule.widths
    if not widths or widths[0] != 1 or list(widths) != sorted(set(widths)):
        raise ValueError(
            f"the widths of a schedule ascend from 1, plain decoding, not {widths}"
        )
    if widths[-1] > drafter.num_nodes:
        raise ValueError(
            f"the schedule has a width of {widths[-1]}, but {drafter} has "
            f"{drafter.num_nodes} nodes, the root included"
        )
    if schedule.anticipates and rule != "match":
        raise ValueError(
            f"{type(schedule).__name__} looks at all of a draft before it decides on "
            f'any of it, which biases the text under rule "{rule}": use rule "match", '
            "or EarlyStop or LaggedBudget"
        )
    is_drawn = drafter.kind != "points" and not is_chain(drafter)
    if schedule.needs_confidence and is_drawn and rule != "match":
        raise ValueError(
            f'{drafter} draws a tree, and under rule "{rule}" confidence may prune '
            'chains, and trees of kind "points" only: use FixedWidth'
        )
    if schedule.needs_confidence and not reports_confidence(target, params, drafter):
        raise ValueError(
            f"{type(schedule).__name__} decides by the confidence of a draft, and "
            f"{drafter} reports none: use FixedWidth, or a drafter that does"
        )
    cost = getattr(schedule, "cost", None)
    if isinstance(cost, CostTable) and cost.fingerprint is not None:
        cost.fingerprint.check(Fingerprint.of(target, params, drafter))


def check_profile(program: Program, request: Request) -> None:
    """Raise `ValueError` where the schedule's calibration is of another profile than
    some row's.
    """
    calibration = getattr(program.schedule, "calibration", None)
    if isinstance(calibration, Calibration):
        for profile in profiles(program, request):
            calibration.profile.check(profile)


def profiles(program: Program, request: Request) -> list[Profile]:
    """Of each row, without repetition. An option that no row uses is off."""
    options = request.options
    rows = options.temperature.shape[0]
    vocab_size = program.target.vocab_size

    def values(option: PyTree, off: float) -> list[float]:
        if option is None:
            return [off] * rows
        # As they were written, not as float32 has them.
        return [float(f"{x:.6g}") for x in _sharding.to_host(option).tolist()]

    columns = zip(
        values(options.temperature, 0.0),
        values(options.top_k, 0),
        values(options.top_p, 1.0),
        values(options.min_p, 0.0),
        strict=True,
    )
    rule, kind = program.rule, program.drafter.kind
    return [
        Profile(rule, kind, t, 0 if k >= vocab_size else int(k), p, m)
        for t, k, p, m in dict.fromkeys(columns)
    ]


def reports_confidence(target: Target, params: Params, drafter: Drafter) -> bool:
    """Whether the drafter's drafts say how likely they are."""
    draft = jax.eval_shape(functools.partial(_draft_once, target, drafter), params)
    return draft.confidence is not None


@functools.partial(jax.jit, static_argnums=(0, 1))
def _draft_once(target: Target, drafter: Drafter, params: Params) -> Draft:
    """Only ever traced, and that once."""
    state = init_state(target, drafter, 1, min(_SLOTS, target.max_length))
    request = make_request(Sampling(), batch=1, vocab_size=target.vocab_size)
    zeros = jnp.zeros(1, jnp.int32)
    sampler = Sampler(
        request.options, request.keys, zeros, zeros, None, None, request.keys
    )
    return drafter.draft(target, params, state.drafter, zeros, sampler)[0]
