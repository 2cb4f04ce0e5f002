"""A whole language model in a GGUF file of some kilobytes, for tests of what is around
a model: byte-level tokens, chat turns, random weights.
"""

from pathlib import Path

import gguf
import jax
import numpy as np
import tokenizers

import specdec_jax as sd
from specdec_jax._types import Target
from specdec_jax.nn import EagleConfig, InjectedConfig, MarkovConfig

ALPHABET = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
CONTROL = ["<|im_start|>", "<|im_end|>"]
TOKENS = [*ALPHABET, "ĠĠ", *CONTROL]
START, END = (TOKENS.index(name) for name in CONTROL)
# Only these get logits that are not 0, so that texts can be read.
WORDS = [TOKENS.index(letter) for letter in "abcdefgh,."]
POSITIONS = 512
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_WIDTH, _LAYERS, _HEADS, _MLP = 16, 2, 2, 32


def write_tiny(
    path: Path,
    *,
    rows: int = len(TOKENS),
    template: str | None = TEMPLATE,
    weight: float = 1.0,
) -> Path:
    """Write the file: `rows` tokens in the model, `weight` in every norm."""
    random = np.random.default_rng(0)

    def matrix(*shape: int) -> np.ndarray:
        return random.normal(size=shape).astype(np.float32)

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(POSITIONS)
    writer.add_embedding_length(_WIDTH)
    writer.add_block_count(_LAYERS)
    writer.add_feed_forward_length(_MLP)
    writer.add_head_count(_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3 if token in CONTROL else 1 for token in TOKENS])
    writer.add_token_merges(["Ġ Ġ"])  # the writer leaves out an empty list
    writer.add_bos_token_id(START)
    writer.add_eos_token_id(END)
    if template is not None:
        writer.add_chat_template(template)
    embedding = np.zeros((rows, _WIDTH), np.float32)
    embedding[WORDS] = matrix(len(WORDS), _WIDTH)
    norm = np.full(_WIDTH, weight, np.float32)
    writer.add_tensor("token_embd.weight", embedding)
    writer.add_tensor("output_norm.weight", norm)
    for layer in range(_LAYERS):
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            writer.add_tensor(f"blk.{layer}.{name}.weight", matrix(_WIDTH, _WIDTH))
        for name in ("ffn_gate", "ffn_up"):
            writer.add_tensor(f"blk.{layer}.{name}.weight", matrix(_MLP, _WIDTH))
        writer.add_tensor(f"blk.{layer}.ffn_down.weight", matrix(_WIDTH, _MLP))
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{name}.weight", norm)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_tiny_head(path: Path, target: Target) -> Path:
    """A random head of EAGLE for it, as its authors publish theirs."""
    config = EagleConfig(
        width=_WIDTH, num_heads=_HEADS, num_kv_heads=1, head_width=8, mlp_width=_MLP
    )
    drafter = sd.Eagle(config)
    params = drafter.init_params(jax.random.key(0), target)
    sd.save_drafter(path, drafter, params, target, format="eagle")
    return path


def write_tiny_block(path: Path, target: Target) -> Path:
    """A random DSpark for it, as its authors publish theirs: it says how sure it is."""
    config = InjectedConfig(
        width=_WIDTH,
        num_heads=_HEADS,
        num_kv_heads=1,
        head_width=8,
        mlp_width=_MLP,
        num_layers=1,
        feature_width=_WIDTH,
        block_size=4,
        mask_id=len(TOKENS) - 1,
        layout="anchor_first",
        markov=MarkovConfig(rank=4),
        confidence="state and markov",
    )
    drafter = sd.DSpark(config, taps=(0,))
    params = drafter.init_params(jax.random.key(0), target)
    sd.save_drafter(path, drafter, params, target, format="specforge")
    return path
