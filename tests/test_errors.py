"""Bad input: a `ValueError` in the caller's words, before anything is traced."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small
from cases import DECODER, TABLE, Guess

import specdec_jax as sd
from specdec_jax._door_schedule import is_chain

pytestmark = pytest.mark.usefixtures("unchecked")


@dataclasses.dataclass(frozen=True)
class Untraced(sd.Toy):
    """Whoever reads a token with it has not looked at the arguments first."""

    vocab_size: int = 7

    def forward(self, params, cache, block, taps):
        raise AssertionError("traced before everything was checked")


TARGET, DRAFTER = Untraced(), sd.NGram()
PROMPTS: Any = [[1, 2, 3], [4]]


def constraint(mask: Any, *, grows: bool = False) -> sd.Constraint:
    """Which always allows the same."""
    return sd.Constraint(
        jnp.zeros(2),
        lambda state: mask,
        lambda state, token: jnp.zeros(3) if grows else state,
    )


def attempt(
    prompts: Any = PROMPTS,
    *,
    target: Any = TARGET,
    drafter: Any = DRAFTER,
    drafter_params: Any = (),
    call: Any = sd.generate,
    max_new_tokens: Any = 4,
    **options: Any,
) -> None:
    """One call, the options for `Sampling` among those for `generate`."""
    names = {field.name for field in dataclasses.fields(sd.Sampling)} & set(options)
    sampling = {name: options.pop(name) for name in names}
    call(
        target,
        sd.Params(TABLE, drafter_params),
        drafter,
        prompts,
        sampling=sd.Sampling(max_new_tokens=max_new_tokens, **sampling),
        **options,
    )


def test_the_calls_below_are_wrong_in_one_thing_only():
    with pytest.raises(AssertionError, match="traced before"):
        attempt()


@pytest.mark.parametrize(
    ("prompts", "words"),
    [
        ([], "no prompt: a batch needs at least one row"),
        (np.zeros((0, 3), np.int32), "no prompt: a batch needs at least one row"),
        ([[1], []], "prompt 1 is empty: give at least one token"),
        (np.zeros((2, 0), np.int32), "prompt 0 is empty"),
        ("text", "prompt 0 must be a sequence of token ids: 't'"),
        (["text"], "prompt 0 must be a sequence of token ids: 'text'"),
        ([1, 2, 3], "prompt 0 must be a sequence of token ids: 1"),
        ([[1], [[1, 2]]], "prompt 1 must be a sequence of token ids"),
        ([[1], [[1, 2], [3]]], "prompt 1 must be a sequence of token ids"),
        ([[1.0, 2.0]], "prompt 0 must hold whole numbers, not float64"),
        ([[1], [True]], "prompt 1 must hold whole numbers, not bool"),
        ([[1, None]], "prompt 0 must hold whole numbers, not object"),
        ([["a"]], "prompt 0 must hold whole numbers"),
        ([[1], [2, 7]], "prompt 1 has token id 7, outside .0, 7"),
        ([[-1]], "prompt 0 has token id -1, outside .0, 7"),
        ([[2**40]], f"prompt 0 has token id {2**40}"),
    ],
    ids=repr,
)
def test_prompts(prompts, words):
    with pytest.raises(ValueError, match=words):
        attempt(prompts)


@pytest.mark.parametrize(
    ("prompt", "new", "options", "words"),
    [
        (
            400,
            128,
            {"max_length": 512},
            "512 slots cannot hold a prompt of 400 and 128 new tokens.*"
            "raise max_length to 528",
        ),
        (6, None, {"max_length": 6}, "6 slots cannot hold a prompt of 6.*to 7"),
        (
            16,
            5,
            {"target": Untraced(max_length=20)},
            "a prompt of 16 and 5 new tokens are 21.*beyond the 20 positions",
        ),
        (20, None, {"target": Untraced(max_length=20), "max_length": 20}, "the 20 pos"),
        (3, 1, {"max_length": 5000}, "max_length 5000 is outside 1 … 4096"),
        (3, 1, {"max_length": 0}, "max_length 0 is outside 1 … 4096"),
        (3, None, {}, "nothing bounds the text.*max_new_tokens, or a max_length"),
        (3, [4, None], {}, "nothing bounds the text"),
    ],
)
def test_lengths(prompt, new, options, words):
    rows = [[1], [1] * prompt] if isinstance(new, list) else [[1] * prompt]
    with pytest.raises(ValueError, match=words):
        attempt(rows, max_new_tokens=new, **options)


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"temperature": -1.0}, r"temperature must be >= 0, not -1.0 \(row 0\)"),
        ({"temperature": [0.0, NAN]}, r"temperature must be >= 0, not nan \(row 1\)"),
        ({"temperature": INF}, "temperature must be >= 0, not inf"),
        ({"temperature": None}, "temperature must be >= 0, not None"),
        ({"temperature": True}, "temperature must be >= 0, not True"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": [1.0] * 3}, "temperature has 3 values for 2 rows"),
        ({"temperature": np.ones(3)}, "temperature has 3 values for 2 rows"),
        ({"top_k": -1}, "top_k must be a whole number >= 0, not -1"),
        ({"top_k": 2.5}, "top_k must be a whole number >= 0, not 2.5"),
        ({"top_p": 0.0}, r"top_p must be in \(0, 1\], not 0.0"),
        ({"top_p": [0.5, 1.5]}, r"top_p must be in \(0, 1\], not 1.5 \(row 1\)"),
        ({"min_p": -0.1}, r"min_p must be in \[0, 1\], not -0.1"),
        ({"min_p": 1.1}, r"min_p must be in \[0, 1\], not 1.1"),
        ({"repetition_penalty": 0}, "repetition_penalty must be > 0, not 0"),
        ({"repetition_penalty": -1.2}, "repetition_penalty must be > 0, not -1.2"),
        ({"presence_penalty": INF}, "presence_penalty must be a number, not inf"),
        ({"frequency_penalty": NAN}, "frequency_penalty must be a number, not nan"),
        ({"max_new_tokens": 0}, "max_new_tokens must be a whole number >= 1, not 0"),
        ({"max_new_tokens": 1.5}, "max_new_tokens must be a whole number >= 1"),
        ({"max_new_tokens": [1, 2, None]}, "max_new_tokens has 3 values for 2 rows"),
        ({"min_new_tokens": -1}, "min_new_tokens must be a whole number >= 0"),
        (
            {"min_new_tokens": [1, 5]},
            r"min_new_tokens 5 is above max_new_tokens 4 \(row 1\)",
        ),
        ({"stop_ids": [7]}, r"stop_ids: 7 is not a token id in \[0, 7\) \(row 0\)"),
        ({"stop_ids": [[1], [-1]]}, r"stop_ids: -1 is not a token id.*\(row 1\)"),
        ({"stop_ids": [1.0]}, "stop_ids: 1.0 is not a token id"),
        ({"stop_ids": [[1], [2], [3]]}, "stop_ids has 3 values for 2 rows"),
        ({"stop_ids": 2}, "stop_ids must be a list.*2"),
        ({"banned_ids": 2}, "banned_ids must be a list.*2"),
        ({"allowed_ids": 2}, "allowed_ids must be a list.*2"),
        ({"banned_ids": [0, 8]}, "banned_ids: 8 is not a token id"),
        ({"allowed_ids": [True]}, "allowed_ids: True is not a token id"),
        ({"allowed_ids": []}, "allowed_ids is empty: no token could be emitted"),
        ({"allowed_ids": [[1], []]}, r"allowed_ids is empty.*\(row 1\)"),
        ({"banned_ids": range(7)}, "leave no token to emit"),
        ({"banned_ids": [3], "allowed_ids": [3]}, "leave no token to emit"),
        ({"temperature": "0.5"}, "temperature must be >= 0, not '0.5'"),
        ({"repetition_penalty": 1e-50}, "repetition_penalty must be > 0, not 1e-50"),
        ({"presence_penalty": 1e39}, "presence_penalty must be a number, not 1e.39"),
        ({"bias": {1: 1e39}}, "bias of token 1 must be a number or -inf, not 1e.39"),
        ({"bias": {1: "x"}}, "bias of token 1 must be a number or -inf, not 'x'"),
        ({"bias": [3, {}]}, "bias must say what to add to each id"),
        ({"stop_strings": None}, "stop_strings must be a list of strings"),
        (
            {"stop_strings": ["a" * 5000], "token_bytes": [b"a"] * 7},
            "stop strings of a row have 5,000 bytes together",
        ),
        ({"bias": {9: 1.0}}, "bias: 9 is not a token id"),
        ({"bias": {1: NAN}}, "bias of token 1 must be a number or -inf, not nan"),
        ({"bias": [{}, {1: INF}]}, r"bias of token 1 must be.*not inf \(row 1\)"),
        ({"bias": [{}, {}, {}]}, "bias has 3 values for 2 rows"),
        ({"seed": -1}, r"seed must be a whole number in \[0, 2\*\*32\), not -1"),
        ({"seed": 2**32}, r"seed must be a whole number in .0, 2..32., not 4294967296"),
        ({"seed": [1, 1.5]}, r"seed must be a whole number.*1.5 \(row 1\)"),
        ({"seed": [1, 2, 3]}, "seed has 3 values for 2 rows"),
        ({"stop_strings": "end"}, r"stop_strings must be a list of strings: \['end'\]"),
        ({"stop_strings": ["end"]}, "stop_strings need token_bytes"),
        ({"stop_strings": [""], "token_bytes": [b"a"] * 7}, "a stop string is empty"),
        (
            {"stop_strings": ["a"], "token_bytes": [b"a"] * 8},
            "token_bytes has 8 entries for a vocabulary of 7",
        ),
        (
            {"stop_strings": [["a"], ["b"], []], "token_bytes": [b"a"] * 7},
            "stop_strings has 3 values for 2 rows",
        ),
        (
            {"stop_strings": [[b"a"], []], "token_bytes": [b"a"] * 7},
            "stop_strings must be strings, not b'a'",
        ),
        ({"logprobs": "all"}, 'logprobs is "model", "sampled" or None, not \'all\''),
        ({"rule": "greedy"}, 'rule is "match", "rejection" or "block", not'),
        ({"samples": 0}, "samples must be a whole number, at least 1, not 0"),
        ({"samples": 1.5}, "samples must be a whole number, at least 1, not 1.5"),
        ({"max_length": 10.0}, "max_length must be a whole number"),
        ({"schedule": 4}, "schedule is one of specdec_jax.schedule, not 4"),
        ({"constrain": len}, "constrain is a Constraint, not <built-in"),
        ({"constrain": constraint(jnp.zeros(7))}, "7 booleans.*not float32"),
        ({"constrain": constraint(jnp.full(5, True))}, r"7 booleans.*not bool\[5\]"),
        ({"constrain": constraint(jnp.full(7, True), grows=True)}, "another kind of"),
    ],
    ids=repr,
)
def test_options(options, words):
    for call in (sd.generate, sd.stream):
        with pytest.raises(ValueError, match=words):
            attempt(call=call, **options)


@dataclasses.dataclass(frozen=True)
class Tapping(sd.NGram):
    """A drafter that wants features."""

    taps: tuple[int | str, ...] = ()


MODEL = sd.DraftModel(sd.Toy(vocab_size=7))
OTHER = sd.DraftModel(sd.Toy(vocab_size=9))
SHORT = sd.DraftModel(sd.Toy(vocab_size=7, max_length=100))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"drafter": OTHER, "drafter_params": TABLE},
            "the draft model has 9 tokens, the target 7",
        ),
        (
            {"drafter": Tapping(taps=(0, 1))},
            "taps layer 1, but the target has layers 0",
        ),
        ({"drafter": Tapping(taps=(-2,))}, "taps layer -2"),
        ({"drafter": Tapping(taps=("last",))}, "taps layer 'last'"),
        ({"drafter": Tapping(taps=(2,)), "target": DECODER}, "taps layer 2"),
        ({"drafter": Guess(), "rule": "block"}, 'rule "block" verifies chains'),
        (
            {
                "drafter": dataclasses.replace(MODEL, kind="iid"),
                "drafter_params": TABLE,
            },
            'rule "match" needs kind="points"',
        ),
        ({"drafter": MODEL}, "needs params.drafter"),
        (
            {
                "drafter": SHORT,
                "drafter_params": TABLE,
                "prompts": [[1], [1] * 98],
            },
            "a prompt of 98 and 4 new tokens are 102.*draft model",
        ),
        (
            {
                "drafter": SHORT,
                "drafter_params": TABLE,
                "max_new_tokens": None,
                "max_length": 101,
            },
            "101.*draft model",
        ),
    ],
)
def test_drafters_that_do_not_fit(options, words):
    with pytest.raises(ValueError, match=words):
        attempt(**options)


def test_a_draft_model_may_be_shorter_than_the_cache():
    """What counts is how long a text may get."""
    with pytest.raises(AssertionError, match="traced before"):
        attempt([[1], [1] * 96], drafter=SHORT, drafter_params=TABLE)


@pytest.mark.parametrize(
    ("drafter", "fields", "words"),
    [
        (sd.NGram, {"num_nodes": 0}, "num_nodes >= 1"),
        (sd.NGram, {"shortest": 0}, "1 <= shortest <= longest"),
        (sd.NGram, {"shortest": 3, "longest": 2}, "1 <= shortest <= longest"),
        (sd.DraftModel, {"model": TARGET, "num_nodes": 1}, "num_nodes >= 2.*not 1"),
        (sd.DraftModel, {"model": TARGET, "kind": "chosen"}, '"iid", not.*"chosen"'),
    ],
    ids=repr,
)
def test_drafters_that_make_no_sense(drafter, fields, words):
    with pytest.raises(ValueError, match=words):
        drafter(**fields)


@pytest.mark.usefixtures("unchecked")
def test_bare_weights():
    """`params` holds two sets of them, and says which is which."""
    with pytest.raises(ValueError, match="a Params.*not a dict: wrap the target's"):
        sd.generate(TARGET, TABLE, sd.Plain(), [[1]])
    with pytest.raises(ValueError, match="the target's weights alone: params.target"):
        sd.check_target(TARGET, sd.Params(TABLE))


@pytest.mark.parametrize("option", ["batch", "max_prompt"])
def test_compile_counts(option):
    counts: Any = {"batch": 1, "max_prompt": 4, option: 0}
    params = sd.Params(TABLE)
    with pytest.raises(ValueError, match=f"{option} must be a whole number"):
        sd.compile(TARGET, params, sd.Plain(), max_length=64, **counts)


def test_a_small_tree_is_no_chain():
    """It has as many nodes as a chain of its depth, and may have siblings."""
    tree = sd.GrownTree(num_nodes=3, depth=2, width=2)
    assert is_chain(dataclasses.replace(small.EAGLE, tree=sd.GrownTree(3, 2, 1)))
    assert not is_chain(dataclasses.replace(small.EAGLE, tree=tree))
    assert not is_chain(dataclasses.replace(small.DFLASH, tree=sd.MarginalTree(3)))
    wide = dataclasses.replace(small.EAGLE, tree=tree)
    params = sd.Params(small.WEIGHTS, wide.init_params(jax.random.key(0), small.TARGET))
    with pytest.raises(ValueError, match='rule "block" verifies chains'):
        sd.generate(small.TARGET, params, wide, [[1]], rule="block", max_length=64)
