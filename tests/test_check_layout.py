"""`check_layout`, on drafters that are right by construction in one layout."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import specdec_jax as sd
from specdec_jax.drafters import DFlash, DSpark
from specdec_jax.nn import (
    Decoder,
    DecoderConfig,
    InjectedConfig,
    Layout,
    MarkovConfig,
    RoPE,
)
from specdec_jax.targets import ModuleTarget

pytestmark = pytest.mark.usefixtures("quick_compile")

V, D, MASK = 12, 16, 11
TARGET = ModuleTarget(
    Decoder,
    DecoderConfig(
        vocab_size=V,
        width=D,
        num_layers=3,
        num_heads=2,
        num_kv_heads=2,
        head_width=8,
        mlp_width=8,
        max_length=64,
        tied=False,
    ),
)
BODY = InjectedConfig(
    width=D,
    num_heads=1,
    num_kv_heads=1,
    head_width=D,
    mlp_width=8,
    num_layers=1,
    feature_width=2 * D,
    block_size=4,
    mask_id=MASK,
    rope=RoPE(1e9),
    query_key_norm=False,
)
TEXTS = [
    np.random.default_rng(i).integers(0, MASK, size).tolist()
    for i, size in enumerate((20, 4, 13))
]


def target_params() -> Any:
    """A target whose law depends on the last token only: no layer adds anything. All
    tokens have a 1 at the front of their embedding, the mask has a -1.
    """
    params = TARGET.init_params(jax.random.key(0))
    for layer in params["layers"].values():
        layer["attention"]["output"]["weight"] *= 0.0
        layer["mlp"]["down"]["weight"] *= 0.0
    front = jnp.ones((V,)).at[MASK].set(-1.0)
    params["embedding"] = 0.4 * jax.random.normal(jax.random.key(1), (V, D))
    params["embedding"] = params["embedding"].at[:, 0].set(front)
    params["head"]["weight"] = jax.random.normal(jax.random.key(2), (V, D))
    return params


def right(layout: Layout, config: InjectedConfig = BODY) -> Any:
    """Parameters whose first draft has the target's own law: where the anchor's slot
    foretells, it stays as it is embedded; else slots of masks copy the anchor.
    """
    params = DFlash(config, (0, 1)).init_params(jax.random.key(3), TARGET)
    layer = params["layers"][0]
    layer["mlp"]["down"]["weight"] *= 0.0
    attention = {
        name: part["weight"] * 0.0 for name, part in layer["attention"].items()
    }
    if layout == "anchor_discarded":
        slow = D // 2 - 1  # the number that is hardly rotated
        attention["query"] = attention["query"].at[slow, 0].set(-9.0)
        attention["key"] = attention["key"].at[slow, 0].set(9.0)
        attention["value"] = jnp.eye(D)
        attention["output"] = 99.0 * jnp.eye(D)
    for name, weight in attention.items():
        layer["attention"][name]["weight"] = weight
    params["fusion"]["weight"] *= 0.0
    return params


WEIGHTS = target_params()


def check(params: Any, drafter: Any, texts: Any = TEXTS, **how: Any) -> sd.LayoutReport:
    return sd.check_layout(TARGET, sd.Params(WEIGHTS, params), drafter, texts, **how)


@pytest.mark.parametrize("layout", ["anchor_discarded", "anchor_first"])
def test_a_layout_that_does_not_match(layout: Layout):
    """As it was trained, it passes; as the other, it says which would fit."""
    drafter = DFlash(dataclasses.replace(BODY, layout=layout), (0, 1))
    report = check(right(layout), drafter)
    assert report.best == (layout, 0)
    assert report.blocks == 24
    other: dict[Layout, Layout] = {
        "anchor_discarded": "anchor_first",
        "anchor_first": "anchor_discarded",
    }
    assert report.as_given > 0.1 + report.agreement[other[layout], 0]
    wrong = dataclasses.replace(BODY, layout=other[layout])
    words = rf"read as {other[layout]} with taps \(0, 1\).*as {layout} with taps \(0, 1"
    with pytest.raises(ValueError, match=words):
        check(right(layout), DFlash(wrong, (0, 1)))
    assert check(right(layout), DFlash(wrong, (0, 1)), margin=1.0).best == (layout, 0)


def test_the_first_draft_is_the_targets_law():
    """Of a block with one draft: the agreement is 1."""
    narrow = dataclasses.replace(BODY, block_size=1, layout="anchor_first")
    report = check(right("anchor_first"), DFlash(narrow, (0, 1)), anchors=3)
    assert report.agreement[("anchor_first", 0)] == pytest.approx(1.0, abs=1e-5)
    assert ("anchor_discarded", 0) not in report.agreement


def test_taps_are_moved_as_far_as_there_are_layers():
    drafter = DFlash(dataclasses.replace(BODY, layout="anchor_first"), (0, 1))
    assert {shift for _, shift in check(right("anchor_first"), drafter).agreement} == {
        -1,
        0,
        1,
    }
    last = dataclasses.replace(drafter, taps=(-1, 2))
    assert {shift for _, shift in check(right("anchor_first"), last).agreement} == {0}


def test_a_markov_head_reads_the_texts_own_tokens():
    """One that knows the target's law by heart agrees in either layout."""
    config = dataclasses.replace(BODY, markov=MarkovConfig(V), own_head=True)
    drafter = DSpark(config, (0, 1))
    params = drafter.init_params(jax.random.key(4), TARGET)
    every = jnp.arange(V, dtype=jnp.int32)[:, None]
    hidden = TARGET.embed(WEIGHTS, every)[:, 0]
    hidden /= jnp.sqrt((hidden * hidden).mean(-1, keepdims=True) + 1e-5)
    law = jax.nn.log_softmax(TARGET.logits(WEIGHTS, hidden[None])[0])
    params["head"]["weight"] *= 0.0
    params["markov"]["before"] = jnp.eye(V)
    params["markov"]["after"]["weight"] = law.T
    for value in check(params, drafter).agreement.values():
        assert value == pytest.approx(1.0, abs=1e-4)


def test_what_cannot_be_checked():
    drafter, params = DFlash(BODY, (0, 1)), right("anchor_discarded")
    for texts, words in (
        ([], "no texts"),
        ([[1, 2, 3]], "text 0 has 3 tokens: 4 are needed"),
        ([[1] * 9, [1, 2, MASK, 4]], "text 1 has the token 11, the mask_id"),
        ([[1, 2, 3, V]], "text 0 has ids beyond the target's 12"),
    ):
        with pytest.raises(ValueError, match=words):
            check(params, drafter, texts)
    with pytest.raises(ValueError, match="anchors is 1 at least"):
        check(params, drafter, anchors=0)
    with pytest.raises(ValueError, match="3 taps of the target have"):
        check(params, DFlash(BODY, (0, 1, 2)))
