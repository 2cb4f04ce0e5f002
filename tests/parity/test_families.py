"""Every family, two real models and tiny random ones, against `transformers` in
float32.
"""

import functools
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import specdec_jax as sd
from specdec_jax import _tree
from specdec_jax._types import Block, Cache, Draft
from specdec_jax.io import GGUF, Folder, fetch
from specdec_jax.targets import ModuleTarget, from_folder, from_gguf
from specdec_jax.text import Tokenizer

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

TEXTS = (
    "The three laws of motion, in the order in which Newton gave them, are",
    "def fibonacci(n):\n    a, b = 0, 1\n    while n > 0:\n        a, b =",
    "In 1969, 2 of 3 astronauts walked on the Moon; 10 more followed until 1972.\n\n"
    "Who was the first of them? Naïve question 🙂, but it has a clear answer:",
)
CHAT = "Explain in two sentences why the sky is blue, and why sunsets are red."
WINDOW = {"sliding_window": 9}
LINEAR = {"rope_type": "linear", "rope_theta": 500.0, "factor": 3.0}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
# Their model type, and what sets the model apart from a common one.
TINY: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {"num_key_value_heads": 4, "tie_word_embeddings": True}),
    "llama, groups": ("llama", {}),
    "llama, wide": ("llama", {"num_attention_heads": 6, "head_dim": 16}),
    "llama, one": ("llama", {"num_attention_heads": 8, "num_key_value_heads": 1}),
    "llama 3.1": ("llama", {"rope_parameters": LLAMA3}),
    "llama, linear": (
        "llama",
        {"rope_parameters": LINEAR},
    ),
    "mistral": ("mistral", WINDOW),
    "mistral, no window": ("mistral", {"sliding_window": None}),
    "qwen2": ("qwen2", {"tie_word_embeddings": True}),
    "qwen2, windows": (
        "qwen2",
        {"use_sliding_window": True, "max_window_layers": 1} | WINDOW,
    ),
    "qwen3": ("qwen3", {"head_dim": 20}),
    "qwen3, tied": ("qwen3", {"tie_word_embeddings": True, "num_key_value_heads": 1}),
    "qwen3, experts": (
        "qwen3_moe",
        {
            "num_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 20,
            "norm_topk_prob": True,
        },
    ),
    "gemma3": (
        "gemma3_text",
        {
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "rope_parameters": {
                "full_attention": {
                    "rope_type": "linear", "factor": 2.0, "rope_theta": 500.0,
                },
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            },
            "query_pre_attn_scalar": 7,
            "tie_word_embeddings": True,
            "head_dim": 16,
        }
        | WINDOW,
    ),
}  # fmt: skip
REAL = {"smollm2": "smollm2-135m-instruct", "gemma3-270m": "gemma3-270m"}
NODES = 12


class Pair(NamedTuple):
    """One model, ours and theirs, with what to read and how far logits may differ."""

    target: ModuleTarget
    params: Any
    theirs: Any
    prompts: list[list[int]]
    bound: float


@pytest.fixture(scope="module", params=[*REAL, *TINY])
def pair(request, tmp_path_factory):
    torch.set_num_threads(1)  # more wait for each other where a machine is shared
    with jax.default_matmul_precision("highest"), torch.inference_mode():
        if request.param in REAL:
            yield real(REAL[request.param])
        else:
            yield tiny(request.param, tmp_path_factory.mktemp("model"))


def real(name: str) -> Pair:
    path = fetch(name)
    gguf = GGUF(path)
    tokenizer = Tokenizer.from_gguf(gguf)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32
    )
    # Their tokenizers of these files split digits and begin texts otherwise, so they
    # are fed our ids.
    prompts = [tokenizer.encode(text) for text in TEXTS]
    if tokenizer.chat_template is not None:
        prompts.append(tokenizer.encode_chat([{"role": "user", "content": CHAT}]))
    return Pair(*from_gguf(gguf), theirs.eval(), prompts, bound=1e-3)


def tiny(name: str, folder: Path) -> Pair:
    """A small random model of theirs, read by us from the folder that they save."""
    kind, changes = TINY[name]
    config = transformers.AutoConfig.for_model(
        kind,
        **{
            "vocab_size": 61,
            "hidden_size": 48,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 12,
            "intermediate_size": 80,
            "max_position_embeddings": 256,
            # Fast enough for a wrong position to matter.
            "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
            "rms_norm_eps": 1e-3,
            "tie_word_embeddings": False,
            "initializer_range": 0.15,  # their 0.02 hides the layers from the embedding
            "bos_token_id": None,
            "eos_token_id": None,
            "pad_token_id": None,
        }
        | changes,
    )
    torch.manual_seed(list(TINY).index(name))
    theirs = transformers.AutoModelForCausalLM.from_config(config).float()
    for key, weight in theirs.named_parameters():
        if "norm" in key or "bias" in key:
            weight.copy_(weight + 0.3 * torch.randn(weight.shape))
    theirs.save_pretrained(folder, max_shard_size="100KB")
    assert len(list(folder.glob("*.safetensors"))) > 1
    target, params = from_folder(Folder(folder))
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, 61, size).tolist() for size in (7, 31, 18, 24)]
    return Pair(target, params, theirs.eval(), prompts, bound=1e-4)


@functools.partial(jax.jit, static_argnames="target")
def read(target, params, cache: Cache, block: Block, path, length):
    """The logits of a block, and the cache with the first `length` of `path` in it."""
    output = target.forward(params, cache, block, ())
    cache = target.commit(cache, output.pending, path, length)
    return target.logits(params, output.hidden), cache


def read_prompts(pair: Pair, prompts: list[list[int]]) -> tuple[np.ndarray, Cache]:
    """All of them as one ragged batch, in one block."""
    size = max(map(len, prompts))
    tokens = np.array([[*p, *[0] * (size - len(p))] for p in prompts], np.int32)
    lengths = jnp.array([len(p) for p in prompts], jnp.int32)
    cache = pair.target.init_cache(len(prompts), 128)
    path = jnp.broadcast_to(jnp.arange(size, dtype=jnp.int32), tokens.shape)
    block = _tree.causal_block(jnp.asarray(tokens))
    logits, cache = read(pair.target, pair.params, cache, block, path, lengths)
    return np.asarray(logits), cache


def read_token(
    pair: Pair, cache: Cache, tokens: list[int], running: list[bool]
) -> tuple[np.ndarray, Cache]:
    """One token per row; rows that do not run commit nothing."""
    block = _tree.causal_block(jnp.array(tokens, jnp.int32)[:, None])
    path = jnp.zeros((len(tokens), 1), jnp.int32)
    length = jnp.array(running, jnp.int32)
    logits, cache = read(pair.target, pair.params, cache, block, path, length)
    return np.asarray(logits)[:, 0], cache


def their_logits(pair: Pair, ids: list[int]) -> np.ndarray:
    return pair.theirs(torch.tensor([ids]), use_cache=False).logits[0].numpy()


def assert_close(pair: Pair, ours: np.ndarray, theirs: np.ndarray) -> None:
    assert np.ptp(theirs) > 1  # else the bound would say nothing
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=pair.bound)


def test_full(pair):
    logits, _ = read_prompts(pair, pair.prompts)
    for ours, prompt in zip(logits, pair.prompts, strict=True):
        assert_close(pair, ours[: len(prompt)], their_logits(pair, prompt))


def test_incremental(pair):
    """Token by token from an empty cache, against their reading of the whole."""
    expected = [their_logits(pair, prompt) for prompt in pair.prompts]
    cache = pair.target.init_cache(len(pair.prompts), 128)
    for at in range(max(map(len, pair.prompts))):
        running = [at < len(prompt) for prompt in pair.prompts]
        tokens = [prompt[at % len(prompt)] for prompt in pair.prompts]
        logits, cache = read_token(pair, cache, tokens, running)
        for row in np.flatnonzero(running):
            assert_close(pair, logits[row], expected[row][at])


def test_tree(pair):
    """A random tree after each prompt: every node as if its path were all there is, and
    so the token after the deepest path is committed.
    """
    rng = np.random.default_rng(0)
    rows = len(pair.prompts)
    vocab_size = pair.target.vocab_size
    tokens = rng.integers(0, vocab_size, (rows, NODES), dtype=np.int32)
    parents = np.full((rows, NODES), -1, np.int32)
    for node in range(1, NODES):
        parents[:, node] = rng.integers(max(0, node - 4), node, rows)
    draft = Draft(
        jnp.asarray(tokens), jnp.asarray(parents), jnp.ones((rows, NODES), jnp.bool_)
    )
    paths = np.asarray(_tree.paths(draft.parents, size=NODES))
    lengths = (paths >= 0).sum(-1)
    assert all(len(set(row)) >= 4 for row in lengths)
    deepest = lengths.argmax(-1)
    chosen = np.maximum(paths[np.arange(rows), deepest], 0)
    committed = lengths[np.arange(rows), deepest].astype(np.int32)

    _, cache = read_prompts(pair, pair.prompts)
    logits, cache = read(
        pair.target,
        pair.params,
        cache,
        _tree.draft_block(draft),
        jnp.asarray(chosen),
        jnp.asarray(committed),
    )
    following = rng.integers(0, vocab_size, rows).tolist()
    after, _ = read_token(pair, cache, following, [True] * rows)
    for row, prompt in enumerate(pair.prompts):
        for leaf in sorted(set(range(NODES)) - set(parents[row])):
            path = paths[row, leaf, : lengths[row, leaf]]
            ids = [*prompt, *tokens[row, path].tolist()]
            expected = their_logits(pair, ids)[len(prompt) :]
            assert_close(pair, np.asarray(logits)[row, path], expected)
            if leaf == deepest[row]:
                expected = their_logits(pair, [*ids, following[row]])[-1]
                assert_close(pair, after[row], expected)


def test_greedy_text(pair):
    """64 tokens, plain and speculative, equal up to the first near-tie."""
    eos = pair.theirs.config.eos_token_id
    sampling = sd.Sampling(max_new_tokens=64, stop_ids=() if eos is None else (eos,))
    params = sd.Params(pair.params)
    texts = [
        sd.generate(
            pair.target, params, drafter, pair.prompts, sampling=sampling
        ).tokens
        for drafter in (sd.Plain(), sd.NGram())
    ]
    for prompt, *both in zip(pair.prompts, *texts, strict=True):
        ids = torch.tensor([prompt])
        theirs = pair.theirs.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=64,
        )[0, len(prompt) :].numpy()
        for ours in both:
            if not np.array_equal(ours, theirs):
                assert_near_tie(pair, prompt, ours, theirs)


def test_same_seed(pair):
    """Drawn text too is the same with and without speculation, up to a near-tie."""
    rows = len(pair.prompts)
    sampling = sd.Sampling(
        max_new_tokens=48, temperature=[0.8, 0.0, 0.8, 0.8][:rows], seed=5
    )
    report = sd.check_lossless(
        pair.target,
        sd.Params(pair.params),
        sd.NGram(shortest=1),
        pair.prompts,
        sampling=sampling,
    )
    assert report.is_lossless, report
    assert report.tokens == 48 * rows or report.divergences


def assert_near_tie(
    pair: Pair, prompt: list[int], ours: np.ndarray, theirs: np.ndarray
) -> None:
    """Where two texts part, their logits hardly tell the two tokens apart."""
    shorter = min(len(ours), len(theirs))
    at = int((ours[:shorter] != theirs[:shorter]).argmax())
    logits = their_logits(pair, [*prompt, *theirs[:at].tolist()])[-1]
    gap = float(logits[theirs[at]] - logits[ours[at]])
    assert gap < pair.bound, (
        f"token {at} is {ours[at]}, not {theirs[at]}, whose logit is {gap:.5f} more"
    )
