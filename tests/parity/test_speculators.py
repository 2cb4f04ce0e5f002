"""EAGLE-3 heads against those of the package `speculators`: what they draft, row by row
and step by step, and each other's folders.
"""

import functools
import sys
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from folders import (
    FAMILIES,
    SMALL,
    random_params,
    tensors_of,
    tiny_target,
    write_folder,
)

import specdec_jax as sd
from specdec_jax import _tree
from specdec_jax._types import Accepted, Params
from specdec_jax.nn import _levels

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
# Its models name a type from its training data, whose imports are clients of servers.
stub = types.ModuleType("speculators.train.data")
stub.BatchType = dict  # pyright: ignore[reportAttributeAccessIssue]
sys.modules.setdefault("speculators.train.data", stub)
eagle3 = pytest.importorskip("speculators.models.eagle3")

# 2026-11, speculators 0.9.0 with transformers 5.24, which is newer than it asks for
pytestmark = pytest.mark.filterwarnings("ignore:.past_key_values. is deprecated")

V, WIDTH, STEPS, CHUNK = 61, 48, 4, 10
CONFIG = SMALL | FAMILIES["llama"] | {"num_hidden_layers": 8}
TARGET = tiny_target("llama", num_hidden_layers=8)
TEXT = np.random.default_rng(2).integers(0, V, 24).tolist()
KNOWN = np.sort(np.random.default_rng(3).permutation(V)[:30])
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
WINDOW = {"layer_types": ["sliding_attention"], "sliding_window": 5}
# Of each: what is set in its own configuration, and in that of its layers.
HEADS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "residual": ({"norm_before_residual": True}, {}),
    "before fusion": ({"norm_before_fc": True}, {}),
    "each tap": ({"fc_norm": True}, {}),
    "recycled": ({"norm_output": True}, {}),
    "3.1": (
        {"norm_before_residual": True, "fc_norm": True, "norm_output": True},
        {"num_hidden_layers": 2},
    ),
    "two taps": ({"eagle_aux_hidden_state_layer_ids": [0, 6]}, {}),
    "all tokens": ({"draft_vocab_size": V}, {}),
    "llama 3.1": ({}, {"rope_parameters": LLAMA3}),
    "qwen3": ({}, {"model_type": "qwen3", "head_dim": 20}),
    "qwen3, two": ({}, {"model_type": "qwen3", "num_hidden_layers": 2}),
    "window": ({}, WINDOW),
}


@functools.cache
def weights() -> Any:
    return random_params(TARGET)


@pytest.fixture(autouse=True)
def exact():
    torch.set_num_threads(1)
    # On a CPU, their attention has no gradients.
    with jax.default_matmul_precision("highest"), torch.inference_mode():
        yield


def their_head(name: str) -> Any:
    """Random, norms too, with the target's embedding."""
    own, layer = HEADS[name]
    kinds = {"llama": transformers.LlamaConfig, "qwen3": transformers.Qwen3Config}
    sizes = {
        "hidden_size": WIDTH,
        "intermediate_size": 80,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 12,
        "num_hidden_layers": 1,
        "vocab_size": V,
        "rms_norm_eps": 1e-3,
    } | layer
    nested = kinds[sizes.pop("model_type", "llama")](**sizes)
    nested._attn_implementation = "eager"
    said = {
        "algorithm": "eagle3",
        "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3}],
        "default_proposal_method": "greedy",
        "verifier": {"name_or_path": None, "architectures": ["LlamaForCausalLM"]},
    }
    usual: dict[str, Any] = {
        "draft_vocab_size": len(KNOWN),
        "eagle_aux_hidden_state_layer_ids": [2, 4, 5],
    }
    config = eagle3.Eagle3SpeculatorConfig(
        transformer_layer_config=nested, speculators_config=said, **usual | own
    )
    theirs = eagle3.Eagle3DraftModel(config).eval()
    torch.manual_seed(4)
    for parameter in theirs.parameters():
        scale = 0.3 if parameter.ndim == 1 else parameter.shape[-1] ** -0.5
        start = 1.0 if parameter.ndim == 1 else 0.0
        parameter.copy_(start + scale * torch.randn(parameter.shape))
    theirs.embed_tokens.weight.copy_(_tensor(weights()["embedding"]))
    if theirs.use_draft_vocab:
        theirs.d2t.copy_(torch.from_numpy(KNOWN - np.arange(len(KNOWN))))
        theirs.t2d.copy_(torch.from_numpy(np.isin(np.arange(V), KNOWN)))
    return theirs


def _tensor(x: Any) -> Any:
    return torch.from_numpy(np.array(x, np.float32))


def their_logits(theirs: Any, features: np.ndarray) -> list[np.ndarray]:
    """Of each row, after 0, 1, … tokens of the text that it did not foretell: logits
    of each step of their training, which feeds a row's state back to it.
    """
    found = []
    hook = theirs.lm_head.register_forward_hook(
        lambda module, inputs, output: found.append(output[0].numpy().copy())
    )
    count = features.shape[0]
    theirs(
        hidden_states=_tensor(features)[None],
        input_ids=torch.tensor([TEXT[1 : 1 + count]]),
        document_ids=torch.zeros(1, count, dtype=torch.long),
        ttt_steps=STEPS,
    )
    hook.remove()
    return found


def our_logits(
    drafter: Any, params: Params, features: np.ndarray, rows: list[int]
) -> list[np.ndarray]:
    """The same for some rows, as decoding has them: in a batch, each with those up to
    it in its cache, read in chunks.
    """
    state, lengths = drafter.init(len(rows), 32), np.array(rows) + 1
    for start in range(0, max(lengths), CHUNK):
        at = np.arange(start, start + CHUNK)
        count = np.clip(lengths - start, 0, CHUNK)
        text = np.array(TEXT)
        accepted = Accepted(
            jnp.asarray(np.tile(text[at], (len(rows), 1)), jnp.int32),
            jnp.asarray(np.tile(features[at % len(features)], (len(rows), 1, 1))),
            jnp.asarray(count, jnp.int32),
            jnp.asarray(text[start + count], jnp.int32),
        )
        state = _update(drafter, params, state, accepted)
    head = drafter.head(params.drafter)
    hidden, scratch = state.output[:, None], _levels.empty(state.cache)
    logits = [np.asarray(head.logits(hidden))[:, 0]]
    for depth in range(STEPS - 1):
        tokens = jnp.asarray([[TEXT[row + 2 + depth]] for row in rows], jnp.int32)
        hidden, scratch = _levels.read(
            head,
            TARGET.embed(params.target, tokens),
            hidden,
            state.cache,
            scratch,
            jnp.full((len(rows), 1), depth, jnp.int32),
            jnp.ones((len(rows), 1, depth + 1), jnp.bool_),
        )
        logits.append(np.asarray(head.logits(hidden))[:, 0])
    return logits


@functools.partial(jax.jit, static_argnames="drafter")
def _update(drafter: Any, params: Params, state: Any, accepted: Accepted) -> Any:
    return drafter.update(TARGET, params, state, accepted)


def features_of(drafter: Any) -> np.ndarray:
    count = len(TEXT) - STEPS - 1
    return np.asarray(_features(weights(), TEXT[:count], drafter.taps))


def _features(params: Any, text: list[int], taps: tuple[int | str, ...]) -> Any:
    block = _tree.causal_block(jnp.array([text], jnp.int32))
    cache = TARGET.init_cache(1, 32)
    forward = jax.jit(TARGET.forward, static_argnames="taps")
    return forward(params, cache, block, taps=taps).features[0]


def assert_same(theirs: Any, drafter: Any, head: Any) -> None:
    features, params = features_of(drafter), Params(weights(), head)
    expected = their_logits(theirs, features)
    # A window counts positions of decoding; their training counts rows, and so sees
    # beyond it where it feeds states back.
    steps = 1 if drafter.config.window else STEPS
    rows = [0, 6, len(features) - STEPS]  # after the last ones, they read padding
    ours = our_logits(drafter, params, features, rows)
    for step in range(steps):
        np.testing.assert_allclose(
            ours[step], expected[step][rows], atol=1e-4, err_msg=f"step {step}"
        )


@pytest.mark.parametrize("name", HEADS)
def test_their_heads_draft_here_as_there(name, tmp_path):
    theirs = their_head(name)
    theirs.save_pretrained(tmp_path)
    drafter, params = sd.load_drafter(tmp_path, TARGET, weights())
    assert not drafter.config.own_embedding  # it is the target's
    wanted = theirs.config.eagle_aux_hidden_state_layer_ids
    assert drafter.taps == tuple(layer - 1 for layer in wanted)
    assert_same(theirs, drafter, params)


@pytest.mark.parametrize("name", HEADS)
def test_our_heads_draft_there_as_here(name, tmp_path):
    """Written here, read there."""
    theirs = their_head(name)
    theirs.save_pretrained(tmp_path / "theirs")
    drafter, params = sd.load_drafter(tmp_path / "theirs", TARGET, weights())
    # They look into the target's folder. Its embedding is written with the head: with a
    # transformers newer than they ask for, a missing one is whatever was in memory.
    target = str(
        write_folder(tmp_path / "target", CONFIG, tensors_of(TARGET, weights()))
    )
    ours = tmp_path / "ours"
    sd.save_drafter(
        ours,
        drafter,
        params,
        TARGET,
        format="speculators",
        dtype=None,
        target_params=weights(),
        verifier=target,
    )
    config = eagle3.Eagle3SpeculatorConfig.from_pretrained(ours)
    config.transformer_layer_config._attn_implementation = "eager"
    again = eagle3.Eagle3DraftModel.from_pretrained(ours, config=config).eval()
    assert again.config.speculators_model_type == "eagle3"
    assert_same(again, drafter, params)
    before = theirs.state_dict()
    for key, value in again.state_dict().items():
        if not key.startswith("verifier"):
            assert torch.equal(value, before[key]), key


def test_taps_are_what_transformers_calls_hidden_states():
    """Their k-th is the state before layer k, so after layer k - 1."""
    config = transformers.LlamaConfig(
        hidden_size=WIDTH,
        intermediate_size=80,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=12,
        num_hidden_layers=8,
        vocab_size=V,
        rms_norm_eps=1e-3,
        rope_parameters={"rope_type": "default", "rope_theta": 500.0},
        tie_word_embeddings=False,
    )
    theirs = transformers.LlamaForCausalLM(config).eval()
    tensors = tensors_of(TARGET, weights())
    theirs.load_state_dict({name: _tensor(value) for name, value in tensors.items()})
    states = theirs(torch.tensor([TEXT]), output_hidden_states=True).hidden_states
    found = _features(weights(), TEXT, tuple(k - 1 for k in range(8)))
    # A layer too many or too few would be off by whole numbers: they are up to 50.
    for k, ours in enumerate(np.split(np.asarray(found), 8, axis=-1)):
        np.testing.assert_allclose(ours, states[k][0].numpy(), rtol=1e-5, atol=1e-3)
