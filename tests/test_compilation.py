"""One executable per bucket: what is compiled, donated, and left behind."""

import contextlib
import dataclasses
import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.monitoring
import numpy as np
import pytest
from cases import NEAR, PROMPTS, SEEDS, TABLE, TOY, N, arguments

import specdec_jax as sd

pytestmark = pytest.mark.usefixtures("quick_compile")

STATM = Path("/proc/self/statm")
BYTES = [b"a", b"b", b"c", b"ab", b"\xc3", b"\xa9", b""]
# One call, and others that need no other program: what differs is data.
FIRST: dict[str, Any] = {
    "prompts": PROMPTS,
    "temperature": [0.0, 0.8, 1.0],
    "seed": SEEDS,
    "max_new_tokens": 20,
    "stop_ids": [5],
    "stop_strings": ["abc"],
    "top_p": 0.9,
}
OTHERS: dict[str, dict[str, Any]] = {
    "seeds": {"seed": [4, 5, 6]},
    "temperature": {"temperature": 0.5},
    "lengths": {"prompts": [[1], [2] * 33, [3] * 20]},
    "limits": {"max_new_tokens": [1, 40, 7]},
    "room": {"max_new_tokens": [55, 1, 1]},
    "stop ids": {"stop_ids": [[], [1, 2], [0, 3, 4, 5, 6]]},
    "stop strings": {"stop_strings": ["é", "ba", "cccc"]},
    "another value of an option": {"top_p": [0.5, 1.0, 0.99]},
}


@contextlib.contextmanager
def compilations() -> Iterator[list[str]]:
    """The names of what is lowered meanwhile, a persistent cache or not."""
    names: list[str] = []

    def listen(event: str, duration_secs: float, **labels: str | int) -> None:
        if event.endswith("jaxpr_to_mlir_module_duration"):
            names.append(str(labels.get("fun_name")))

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield names
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


def call(
    run=sd.generate, drafter: str = "near", *, anew: Any = None, **changes: Any
) -> Any:
    options = {**FIRST, **changes}
    target, params, own = arguments(drafter)
    return run(
        target,
        params,
        anew or own,
        options.pop("prompts"),
        sampling=sd.Sampling(token_bytes=BYTES, **options),
    )


def steps_of(*arguments: Any, **options: Any) -> list[sd.Generation]:
    """A stream to its end."""
    stream = sd.stream(*arguments, **options)
    for _ in stream:
        pass
    return [stream.generation]


@pytest.mark.parametrize(
    ("run", "drafter"),
    [(sd.generate, "near"), (steps_of, "ngram")],
    ids=["one", "steps"],
)
def test_one_program_serves_a_bucket(run, drafter):
    with compilations() as first:
        call(run, drafter)
    assert first  # or nothing is being listened to
    for change, options in OTHERS.items():
        with compilations() as more:
            call(run, drafter, **options)
        assert not more, f"other {change} compiled {more}"


def test_another_option_does_need_another_program():
    """So the count can fail."""
    call()
    with compilations() as more:
        call(repetition_penalty=[1.0, 1.0, 1.1])
    assert any("run_program" in name for name in more), more


def test_a_drafter_built_anew_is_the_same_program():
    call()
    anew = sd.DraftModel(sd.Toy(vocab_size=7), num_nodes=N)
    assert anew is not arguments("near")[2]
    with compilations() as more:
        call(anew=anew)
        call(anew=dataclasses.replace(anew))
    assert not more


def test_going_on_compiles_nothing_new():
    """A second turn that reads as much as the first is the same program."""
    generation = call()
    rows = zip(PROMPTS, generation.tokens, strict=True)
    prompts = [[*prompt, *tokens.tolist(), 1, 2] for prompt, tokens in rows]
    options = {**FIRST, "max_new_tokens": 5}
    options.pop("prompts")
    with compilations() as more:
        sd.generate(
            *arguments("near"),
            prompts,
            sampling=sd.Sampling(token_bytes=BYTES, **options),
            state=generation.state,
        )
    assert not more


def test_a_state_is_donated_not_doubled():
    """Its buffers are gone after the call, and no second cache was made."""
    generation = call()
    rows = zip(PROMPTS, generation.tokens, strict=True)
    prompts = [[*prompt, *tokens.tolist(), 3] for prompt, tokens in rows]
    options = {**FIRST, "max_new_tokens": 5}
    options.pop("prompts")
    caches = jax.tree.leaves((generation.state.cache, generation.state.drafter))
    places = {x.unsafe_buffer_pointer() for x in generation.state.cache.keys}
    going_on = sd.generate(
        *arguments("near"),
        prompts,
        sampling=sd.Sampling(token_bytes=BYTES, **options),
        state=generation.state,
    )
    assert all(x.is_deleted() for x in caches)
    after = {x.unsafe_buffer_pointer() for x in going_on.state.cache.keys}
    assert after == places


def test_nothing_is_left_behind():
    """Fifty generations, of which none is kept, leave as many buffers as one."""
    call()
    call()
    gc.collect()
    before = len(jax.live_arrays())
    for seed in range(50):
        call(seed=seed)
    gc.collect()
    assert len(jax.live_arrays()) <= before


def test_arguments_stay_the_callers():
    """Parameters are never donated."""
    params = sd.Params(TABLE, NEAR)
    before = jax.tree.map(np.array, params)
    call()
    call(steps_of, "ngram")
    jax.tree.map(np.testing.assert_array_equal, before, params)
    assert not any(x.is_deleted() for x in jax.tree.leaves(params))
    assert TOY.law(TABLE, [1]).sum() == pytest.approx(1.0)


@pytest.mark.slow
@pytest.mark.skipif(not STATM.exists(), reason="only Linux tells in a file")
def test_memory_does_not_grow():
    """Over a thousand short calls, of arrays that live and of the process."""
    for _ in range(100):
        call(max_new_tokens=3)
    arrays, before = len(jax.live_arrays()), resource_bytes()
    for _ in range(1000):
        call(max_new_tokens=3)
    gc.collect()
    assert len(jax.live_arrays()) <= arrays
    assert resource_bytes() - before < 16 * 2**20


def resource_bytes() -> int:
    """Resident memory of this process."""
    pages = int(STATM.read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
