"""DFlash and DSpark against those of the package `speculators`: what they say of each
slot, their heads with them, and each other's folders.
"""

import sys
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from block_parity import TARGET, TEXT, WIDTH, V, features_of, our_states, weights
from folders import FAMILIES, SMALL, tensors_of, write_folder

import specdec_jax as sd
from specdec_jax._types import Params

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
# Its models name a type from its training data, whose imports are clients of servers.
stub = types.ModuleType("speculators.train.data")
stub.BatchType = dict  # pyright: ignore[reportAttributeAccessIssue]
sys.modules.setdefault("speculators.train.data", stub)
dflash = pytest.importorskip("speculators.models.dflash")
dspark = pytest.importorskip("speculators.models.dspark")

SLOTS, MASK, RANK, STARTS = 6, 60, 5, [1, 4, 11, 17]
CONFIG = SMALL | FAMILIES["llama"] | {"num_hidden_layers": 8}
KNOWN = np.sort(np.random.default_rng(3).permutation(V)[:30])
SLIDING: dict[str, Any] = {
    "layer_types": ["sliding_attention", "full_attention"],
    "sliding_window": 4,
    "use_sliding_window": True,
}
# Of each: which kind, what is set in its configuration, and in that of its layers.
BODIES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "dflash": ("dflash", {}, {}),
    "dflash, few tokens": ("dflash", {"draft_vocab_size": len(KNOWN)}, {}),
    "dflash, windows": ("dflash", {}, SLIDING),
    "dflash, windows, not causal": (
        "dflash",
        {"sliding_window_non_causal": True},
        SLIDING,
    ),
    "dflash, anchor first": ("dflash", {"sample_from_anchor": True}, {}),
    "dspark": ("dspark", {}, {}),
    "dspark, gated": ("dspark", {"markov_head_type": "gated"}, SLIDING),
    "dspark, rnn, few tokens": (
        "dspark",
        {"markov_head_type": "rnn", "draft_vocab_size": len(KNOWN)},
        {},
    ),
    "dspark, state only": ("dspark", {"confidence_head_with_markov": False}, {}),
    "dspark, no confidence": ("dspark", {"enable_confidence_head": False}, {}),
    "dspark, no Markov head": (
        "dspark",
        {"markov_rank": 0, "confidence_head_with_markov": False},
        {},
    ),
    "dspark, anchor discarded": ("dspark", {"sample_from_anchor": False}, {}),
}
CLASSES = {
    "dflash": (dflash.DFlashSpeculatorConfig, dflash.DFlashDraftModel),
    "dspark": (dspark.DSparkSpeculatorConfig, dspark.DSparkDraftModel),
}


@pytest.fixture(autouse=True)
def exact():
    torch.set_num_threads(1)
    with jax.default_matmul_precision("highest"), torch.inference_mode():
        yield


def _tensor(x: Any) -> Any:
    return torch.from_numpy(np.array(x, np.float32))


def their_body(name: str) -> Any:
    """Random, norms too, with what is the target's."""
    kind, own, layer = BODIES[name]
    sizes: dict[str, Any] = {
        "hidden_size": WIDTH,
        "intermediate_size": 80,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 12,
        "num_hidden_layers": 2,
        "vocab_size": V,
        "rms_norm_eps": 1e-3,
        "rope_parameters": {"rope_type": "default", "rope_theta": 700.0},
    }
    nested = transformers.Qwen3Config(**sizes | layer)
    nested._attn_implementation = "eager"
    said = {
        "algorithm": kind,
        "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 5}],
        "default_proposal_method": "greedy",
        "verifier": {"name_or_path": None, "architectures": ["LlamaForCausalLM"]},
    }
    usual: dict[str, Any] = {
        "draft_vocab_size": V,
        "block_size": SLOTS,
        "mask_token_id": MASK,
        "aux_hidden_state_layer_ids": [0, 3, 6],
        **({"markov_rank": RANK} if kind == "dspark" else {}),
    }
    of_config, of_model = CLASSES[kind]
    config = of_config(
        transformer_layer_config=nested, speculators_config=said, **usual | own
    )
    theirs = of_model(config).eval()
    torch.manual_seed(4)
    for parameter in theirs.parameters():
        scale = 0.3 if parameter.ndim == 1 else parameter.shape[-1] ** -0.5
        start = 1.0 if parameter.ndim == 1 else 0.0
        parameter.copy_(start + scale * torch.randn(parameter.shape))
    theirs.embed_tokens.weight.copy_(_tensor(weights()["embedding"]))
    if theirs.use_draft_vocab:
        theirs.d2t.copy_(torch.from_numpy(KNOWN - np.arange(len(KNOWN))))
        theirs.t2d.copy_(torch.from_numpy(np.isin(np.arange(V), KNOWN)))
    else:
        theirs.lm_head.weight.copy_(_tensor(weights()["head"]["weight"]))
    return theirs


def theirs_say(
    theirs: Any, features: np.ndarray, monkeypatch: Any
) -> tuple[np.ndarray, np.ndarray | None]:
    """Logits of the slots of blocks after the anchors, and of confidence, as their
    training has them, just before its loss.
    """
    found: list[Any] = []
    kind = theirs.config.speculators_model_type
    module = sys.modules[f"speculators.models.{kind}.core"]

    def keep(logits: Any, targets: Any, *rest: Any, **how: Any) -> tuple[None, dict]:
        found.extend([logits, rest[0] if kind == "dspark" else None])
        return None, {}

    monkeypatch.setattr(module, "compute_metrics", keep)
    count = len(TEXT)
    anchors = torch.zeros(1, count)
    anchors[0, STARTS] = 1.0
    theirs(
        hidden_states=_tensor(features)[None],
        input_ids=torch.tensor([TEXT]),
        loss_mask=anchors,
        verifier_last_hidden_states=torch.zeros(1, count, WIDTH),
        document_ids=torch.zeros(1, count, dtype=torch.long),
        max_anchors=len(STARTS),
    )
    logits, confidence = found
    logits = logits.reshape(len(STARTS), SLOTS, -1).numpy()
    if confidence is None:
        return logits, None
    return logits, confidence.reshape(len(STARTS), SLOTS).numpy()


def ours_say(
    drafter: Any, params: Params, states: np.ndarray, start: int
) -> tuple[np.ndarray, np.ndarray | None]:
    """The same of one block, as decoding has them, after the text's own tokens."""
    body, state = drafter.body(params.drafter), jnp.asarray(states)[None]
    logits = drafter.logits(TARGET, params, state)
    before = jnp.asarray([TEXT[start : start + states.shape[0]]], jnp.int32)
    rows = jnp.zeros((*before.shape, 0))
    if body.markov is not None:
        rows, memory, found = body.markov.look_up(before), body.markov.start(1), []
        for k in range(before.shape[1]):
            shown, memory = body.markov.step(rows[:, k], state[:, k], memory)
            found.append(body.markov.correct(logits[:, k], shown))
        logits = jnp.stack(found, axis=1)
    if body.confidence is None:
        return np.asarray(logits)[0], None
    if drafter.config.confidence == "state and markov":
        state = jnp.concatenate([state, rows], axis=-1)
    return np.asarray(logits)[0], np.asarray(body.confidence(state))[0]


def assert_same(theirs: Any, drafter: Any, params: Any, monkeypatch: Any) -> None:
    both, features = Params(weights(), params), features_of(drafter.taps)
    wanted, confidence = theirs_say(theirs, features, monkeypatch)
    first = SLOTS - drafter.config.num_drafts
    for i, start in enumerate(STARTS):
        states = our_states(drafter, both, features, start, [1, 6, 2, 8, 1])
        logits, said = ours_say(drafter, both, states, start)
        np.testing.assert_allclose(logits, wanted[i, first:], atol=1e-4)
        assert (said is None) == (confidence is None)
        if said is not None and confidence is not None:
            np.testing.assert_allclose(said, confidence[i, first:], atol=1e-4)


@pytest.mark.parametrize("name", BODIES)
def test_their_bodies_draft_here_as_there(name, tmp_path, monkeypatch):
    theirs = their_body(name)
    theirs.save_pretrained(tmp_path)
    drafter, params = sd.load_drafter(tmp_path, TARGET, weights())
    assert not drafter.config.own_embedding and drafter.taps == (-1, 2, 5)
    assert drafter.config.own_head == theirs.use_draft_vocab
    assert_same(theirs, drafter, params, monkeypatch)


@pytest.mark.parametrize("name", BODIES)
def test_our_bodies_draft_there_as_here(name, tmp_path, monkeypatch):
    """Written here, read there, with what is the target's from its folder."""
    theirs = their_body(name)
    theirs.save_pretrained(tmp_path / "theirs")
    drafter, params = sd.load_drafter(tmp_path / "theirs", TARGET, weights())
    tensors = tensors_of(TARGET, weights())
    target = str(write_folder(tmp_path / "target", CONFIG, tensors))
    ours = tmp_path / "ours"
    how: dict[str, Any] = {"format": "speculators", "dtype": None, "verifier": target}
    sd.save_drafter(ours, drafter, params, TARGET, **how)
    of_config, of_model = CLASSES[BODIES[name][0]]
    config = of_config.from_pretrained(ours)
    assert type(config) is of_config
    config.transformer_layer_config._attn_implementation = "eager"
    again = of_model.from_pretrained(ours, config=config).eval()
    assert_same(again, drafter, params, monkeypatch)
    before = theirs.state_dict()
    for key, value in again.state_dict().items():
        if not key.startswith("verifier"):
            assert torch.equal(value, before[key]), key
