"""DFlash bodies against those of the package `dflash`: what they say of each slot, with
the context read in chunks, and each other's folders.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from block_parity import TARGET, TEXT, WIDTH, V, features_of, our_states, weights

import specdec_jax as sd
from specdec_jax._types import Params

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
theirs_in = pytest.importorskip("dflash.model")

SLOTS, MASK, LAYERS = 6, 60, 3
SLIDING = ["sliding_attention", "sliding_attention", "full_attention"]
WINDOW = {"layer_types": SLIDING, "sliding_window": 5, "use_sliding_window": True}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 700.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
PLACES = {"mask_token_id": MASK, "target_layer_ids": [1, 4, 6]}
# Of each: what is unusual in its configuration.
BODIES: dict[str, dict[str, Any]] = {
    "plain": {"block_size": SLOTS, "dflash_config": PLACES},
    "windows": WINDOW | {"dflash_config": PLACES | {"block_size": SLOTS}},
    "narrow windows, not causal": WINDOW
    | {"sliding_window": 2, "is_causal": False, "block_size": SLOTS}
    | {"dflash_config": PLACES},
    "causal": {"is_causal": True, "block_size": SLOTS, "dflash_config": PLACES},
    "llama 3.1": {
        "rope_parameters": LLAMA3,
        "block_size": SLOTS,
        "dflash_config": PLACES,
    },
    "usual taps": {"block_size": SLOTS, "dflash_config": {"mask_token_id": MASK}},
}


@pytest.fixture(autouse=True)
def exact():
    torch.set_num_threads(1)
    with jax.default_matmul_precision("highest"), torch.inference_mode():
        yield


def their_body(name: str) -> Any:
    """Random, norms too."""
    sizes: dict[str, Any] = {
        "architectures": ["DFlashDraftModel"],
        "hidden_size": WIDTH,
        "intermediate_size": 80,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 12,
        "num_hidden_layers": LAYERS,
        "num_target_layers": TARGET.num_layers,
        "vocab_size": V,
        "rms_norm_eps": 1e-3,
        "rope_parameters": {"rope_type": "default", "rope_theta": 700.0},
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    config = transformers.Qwen3Config(**sizes | BODIES[name])
    theirs = theirs_in.DFlashDraftModel(config).eval()
    torch.manual_seed(4)
    for parameter in theirs.parameters():
        scale = 0.3 if parameter.ndim == 1 else parameter.shape[-1] ** -0.5
        start = 1.0 if parameter.ndim == 1 else 0.0
        parameter.copy_(start + scale * torch.randn(parameter.shape))
    return theirs


def their_states(
    theirs: Any, features: np.ndarray, starts: list[int]
) -> list[np.ndarray]:
    """Of the slots that foretell something, for anchors at `starts`: as in their loop,
    one cache for all, which reads what is new before each.
    """
    table = torch.from_numpy(np.array(weights()["embedding"]))
    cache, found, before = theirs_in._make_cache(theirs.config), [], 0
    for start in starts:
        ids = torch.tensor([[TEXT[start]] + [theirs.mask_token_id] * (SLOTS - 1)])
        states = theirs(
            target_hidden=torch.from_numpy(features[None, before:start].copy()),
            noise_embedding=table[ids],
            position_ids=torch.arange(before, start + SLOTS)[None],
            past_key_values=cache,
            use_cache=True,
        )
        theirs_in._crop_to(cache, start)
        found.append(states[0, 1 - SLOTS :].numpy())
        before = start
    return found


def their_head() -> Any:
    """The target's output layer."""
    weight = torch.from_numpy(np.array(weights()["head"]["weight"]))
    head = torch.nn.Linear(WIDTH, V, bias=False)
    head.weight.copy_(weight)
    return head


def assert_same(theirs: Any, drafter: Any, params: Any) -> None:
    both, starts = Params(weights(), params), [3, 4, 11, 12, 18]
    features = features_of(drafter.taps)
    expected = their_states(theirs, features, starts)
    for chunks in ([len(TEXT)], [1, 4, 2, 7, 3, 1, 6]):
        for i, start in enumerate(starts):
            ours = our_states(drafter, both, features, start, chunks)
            np.testing.assert_allclose(ours, expected[i], atol=1e-4)
            logits = drafter.logits(TARGET, both, jnp.asarray(ours)[None])[0]
            wanted = theirs.compute_logits(torch.from_numpy(expected[i]), their_head())
            np.testing.assert_allclose(logits, wanted.numpy(), atol=1e-4)


@pytest.mark.parametrize("name", BODIES)
def test_their_bodies_draft_here_as_there(name, tmp_path):
    theirs = their_body(name)
    theirs.save_pretrained(tmp_path)
    drafter, params = sd.load_drafter(tmp_path, TARGET, weights())
    assert drafter.taps == tuple(theirs.target_layer_ids)
    assert_same(theirs, drafter, params)


@pytest.mark.parametrize("name", BODIES)
def test_our_bodies_draft_there_as_here(name, tmp_path):
    """Written here, read there."""
    theirs = their_body(name)
    theirs.save_pretrained(tmp_path / "theirs")
    drafter, params = sd.load_drafter(tmp_path / "theirs", TARGET, weights())
    ours = tmp_path / "ours"
    sd.save_drafter(ours, drafter, params, TARGET, format="zlab", dtype=None)
    again = theirs_in.DFlashDraftModel.from_pretrained(ours).eval()
    assert (again.block_size, again.mask_token_id) == (SLOTS, MASK)
    assert_same(again, drafter, params)
    before = theirs.state_dict()
    found = again.state_dict()
    assert found.keys() == before.keys()
    for key, value in found.items():
        assert torch.equal(value, before[key]), key


def test_default_taps_are_theirs():
    from specdec_jax.formats._taps import spread_taps

    for layers in range(5, 100):
        for count in range(1, 10):
            wanted = tuple(theirs_in.build_target_layer_ids(layers, count))
            assert spread_taps(layers, count) == wanted
