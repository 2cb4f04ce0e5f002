"""Model families from Hugging Face folders: what is read, and what is refused."""

import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import some_slow
from folders import (
    FAMILIES,
    SMALL,
    random_params,
    tensors_of,
    tiny_target,
    write_folder,
)

import specdec_jax as sd
from specdec_jax.io import Folder
from specdec_jax.nn import Experts, ExpertsConfig, Llama3Stretch, RoPE
from specdec_jax.nn._rope import llama3_divisors
from specdec_jax.targets import PRESETS, from_folder, preset
from specdec_jax.targets._huggingface import config_of

pytestmark = pytest.mark.usefixtures("quick_compile")


@pytest.fixture
def llama(tmp_path):
    """A folder's configuration and tensors, and a function that reads them again."""
    target = tiny_target("llama")
    config = SMALL | FAMILIES["llama"]
    tensors = tensors_of(target, random_params(target))

    def read():
        return from_folder(Folder(write_folder(tmp_path, config, tensors)))

    return config, tensors, read


@pytest.mark.parametrize("family", FAMILIES)
def test_a_folder_is_read_as_it_was_written(family, tmp_path):
    """From several files, in the dtype asked for."""
    target = tiny_target(family)
    params = random_params(target)
    config = SMALL | FAMILIES[family]
    folder = Folder(
        write_folder(tmp_path, config, tensors_of(target, params), shards=3)
    )
    found, read = from_folder(folder)
    assert found == target
    jax.tree.map(np.testing.assert_array_equal, read, params)
    _, half = from_folder(folder, dtype=jnp.bfloat16)
    jax.tree.map(
        lambda a, b: np.testing.assert_array_equal(a, b.astype(jnp.bfloat16)),
        half,
        params,
    )


@pytest.mark.parametrize("family", some_slow(FAMILIES, fast=("gemma3", "qwen3_moe")))
def test_every_family_is_a_good_target(family):
    """Block, tree and single tokens agree, with windows shorter than the text."""
    target = tiny_target(family)
    sd.check_target(target, random_params(target))


@pytest.mark.parametrize(
    "family", some_slow(["mistral", "qwen3_moe", "gemma3"], fast=("gemma3",))
)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_same_text_with_and_without_speculation(family, temperature):
    target = tiny_target(family)
    params = sd.Params(random_params(target))
    prompts = [[1, 2, 3, 1, 2, 3, 1, 2], [5], [7, 8] * 9]
    sampling = sd.Sampling(max_new_tokens=24, temperature=temperature, seed=3)
    plain, fast = (
        sd.generate(target, params, drafter, prompts, sampling=sampling).tokens
        for drafter in (sd.Plain(), sd.NGram(shortest=1))
    )
    assert [x.tolist() for x in plain] == [x.tolist() for x in fast]


def test_what_is_wrong_with_tensors_is_said_at_once(llama):
    _, tensors, read = llama
    del tensors["model.norm.weight"], tensors["model.layers.1.mlp.up_proj.weight"]
    tensors["model.layers.0.self_attn.q_proj.weight"] = np.zeros((48, 47), np.float32)
    tensors["model.layers.0.self_attn.q_proj.bias"] = np.zeros(48, np.float32)
    with pytest.raises(ValueError) as caught:
        read()
    message = str(caught.value)
    for text in (
        "model.norm.weight is missing",
        "model.layers.1.mlp.up_proj.weight is missing",
        "model.layers.0.self_attn.q_proj.weight is (48, 47), not (48, 48)",
        "model.layers.0.self_attn.q_proj.bias is not understood",
    ):
        assert text in message


def test_a_head_that_is_tied_may_be_there_too(llama):
    config, tensors, read = llama
    config["tie_word_embeddings"] = True
    target, params = read()
    assert target.config.tied and "head" not in params
    config["tie_word_embeddings"] = False
    del tensors["lm_head.weight"]
    with pytest.raises(ValueError, match="lm_head.weight is missing"):
        read()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "mamba"}, "model_type is 'mamba'; understood are llama, mis"),
        ({"attention_sink": 4}, "attention_sink is not understood"),
        ({"attention_bias": True}, "attention_bias is not understood"),
        ({"mlp_bias": True}, "mlp_bias is not understood"),
        ({"hidden_act": "relu"}, "hidden_act is 'relu', understood is 'silu'"),
        ({"num_hidden_layers": None}, "num_hidden_layers is missing"),
        ({"rope_scaling": {"type": "yarn", "factor": 4}}, "rope_type of 'yarn'"),
        (
            {"rope_scaling": {"type": "llama3", "factor": 4}},
            "low_freq_factor is missing.*original_max_position_embeddings is missing",
        ),
        (
            {"rope_parameters": {"rope_theta": 1.0, "mscale": 2}},
            "rope: mscale is not understood",
        ),
        (
            {"attention_sink": 4, "hidden_act": "relu"},
            "hidden_act is 'relu'.*; attention_sink is not understood",
        ),
        (
            {"model_type": "qwen3", "use_sliding_window": True, "sliding_window": 4,
             "layer_types": ["chunked_attention"] * 3},
            "layer_types of .'chunked_attention'. are not understood",
        ),
        (
            {"model_type": "gemma3_text", "final_logit_softcapping": 30.0},
            "final_logit_softcapping is 30.0",
        ),
        (
            {"model_type": "gemma3_text", "rope_parameters": {"rope_theta": 1.0}},
            "rope_parameters lack full_ or sliding_attention",
        ),
        ({"num_attention_heads": 0}, "num_attention_heads is 0, not a whole number"),
        ({"hidden_size": "48"}, "hidden_size is '48', not a whole number above 0"),
        ({"num_hidden_layers": 3.0}, "num_hidden_layers is 3.0, not a whole number"),
        ({"rms_norm_eps": "x"}, "rms_norm_eps is 'x', not a number above 0"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings is 'no', not true or"),
        ({"num_key_value_heads": 3}, "num_key_value_heads of 3 do not divide"),
        ({"head_dim": 11}, "head_dim is 11, which has no halves"),
        ({"rope_scaling": [1]}, "rope_scaling is .1., not an object"),
        ({"rope_theta": 0}, "rope_theta is 0, not a number above 0"),
        (
            {"rope_scaling": {"type": "linear", "factor": 0}},
            "rope: factor is 0, not a number above 0",
        ),
        (
            {"rope_scaling": {"type": "llama3", "factor": 8, "low_freq_factor": 4,
             "high_freq_factor": 4, "original_max_position_embeddings": 32}},
            "high_freq_factor is not above low_freq_factor",
        ),
        ({"model_type": ["llama"]}, "model_type is .'llama'.; understood are"),
        (
            {"model_type": "mistral", "sliding_window": -3},
            "sliding_window is -3, not a whole number",
        ),
        (
            {"model_type": "gemma3_text", "layer_types": ["full_attention"]},
            "layer_types is .'full_attention'., not of 3 layers",
        ),
        (
            {"model_type": "gemma3_text", "sliding_window_pattern": 0},
            "sliding_window_pattern is 0",
        ),
        (
            {"model_type": "qwen3_moe", "num_experts": 8, "num_experts_per_tok": 99,
             "moe_intermediate_size": 24},
            "num_experts_per_tok is 99, of 8 experts",
        ),
        (
            {"model_type": "qwen3_moe", "decoder_sparse_step": 2},
            "decoder_sparse_step is 2.*num_experts is missing",
        ),
    ],
)  # fmt: skip
def test_what_would_change_the_arithmetic_is_refused(changes, message):
    config = SMALL | {"model_type": "llama"} | changes
    with pytest.raises(ValueError, match=f"(?s)here: .*{message}"):
        config_of(config, "here")


def test_what_an_absent_window_means():
    """Of Mistral's configurations, only one that says null has none."""
    config = SMALL | {"model_type": "mistral"}
    assert config_of(config, "here").windows == (4096,) * 3
    assert config_of(config | {"sliding_window": None}, "here").windows == ()
    qwen = SMALL | {"model_type": "qwen2", "use_sliding_window": True}
    assert config_of(qwen | {"max_window_layers": 2}, "here").windows[1:] == (
        None,
        4096,
    )


def test_a_model_that_also_sees():
    """Its text part alone is read; what that leaves out has the family's default."""
    inner = SMALL | FAMILIES["gemma3"]
    outer = {"model_type": "gemma3", "text_config": inner, "vision_config": {"a": 1}}
    assert config_of(outer, "here") == config_of(inner, "here")
    published = {  # of gemma-3-4b-it
        "model_type": "gemma3",
        "text_config": {
            "hidden_size": 2560,
            "intermediate_size": 10240,
            "model_type": "gemma3_text",
            "num_hidden_layers": 34,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
            "sliding_window": 1024,
        },
        "boi_token_index": 255999,
        "mm_tokens_per_image": 256,
    }
    found = config_of(published, "here")
    assert (found.num_heads, found.num_kv_heads, found.head_width) == (8, 4, 256)
    assert found.windows[:6] == (1024,) * 5 + (None,) and found.tied
    assert found.rope == RoPE(1e6, (8.0,) * 128) and found.local_rope == RoPE(10000.0)


def test_one_expert_is_a_stack_too(tmp_path):
    changes = {"num_experts": 1, "num_experts_per_tok": 1}
    target = tiny_target("qwen3_moe", **changes)
    params = random_params(target)
    config = SMALL | FAMILIES["qwen3_moe"] | changes
    folder = write_folder(tmp_path, config, tensors_of(target, params))
    jax.tree.map(np.testing.assert_array_equal, from_folder(Folder(folder))[1], params)


def test_an_option_that_is_off_says_nothing():
    config = SMALL | {"model_type": "llama", "attention_sink": None, "mlp_bias": False}
    assert config_of(config, "here") == tiny_target("llama").config


def test_both_spellings_of_rotary_positions():
    """Of transformers before 5, and since."""
    llama3 = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    }
    plain = {key: value for key, value in SMALL.items() if key != "rope_theta"}
    old = SMALL | {"model_type": "llama", "rope_scaling": llama3}
    new = plain | {"model_type": "llama"}
    new |= {"rope_parameters": llama3 | {"rope_theta": 500.0}}
    found = config_of(old, "old").rope
    assert found == config_of(new, "new").rope
    assert found.base == 500.0
    # Waves of up to 8 positions stay, of 32 and more are stretched eightfold.
    waves = 2 * np.pi * 500.0 ** (np.arange(6) / 6)
    divisors = np.array(found.divisors)
    np.testing.assert_allclose(divisors[waves < 8], 1.0)
    np.testing.assert_allclose(divisors[waves > 32], 8.0)
    between = divisors[(waves > 8) & (waves < 32)]
    assert len(between) and ((between > 1) & (between < 8)).all()


def test_llama3_divisors_in_the_middle():
    """A wave that turns twice in the original length is a third of the way."""
    length = 100
    base = (length / 2 / (2 * np.pi)) ** 2  # so that the second of two waves is that
    divisors = llama3_divisors(base, 2, Llama3Stretch(8.0, 1.0, 4.0, length))
    np.testing.assert_allclose(divisors[1], 1 / ((2 / 3) / 8 + 1 / 3))


@pytest.mark.parametrize("name", PRESETS)
def test_presets_have_the_size_in_their_name(name):
    target = preset(name)
    abstract = jax.eval_shape(target.init_params, jax.random.key(0))
    count = sum(x.size for x in jax.tree.leaves(abstract))
    billions = {"smollm2-135m": 0.135, "qwen3-30b-a3b": 30.5, "gemma-3-12b": 11.8}
    found = re.search(r"(\d+)b$", name)
    wanted = billions.get(name) or (found and float(found[1]))
    assert count / 1e9 == pytest.approx(wanted, rel=0.03)
    assert all(x.dtype == jnp.bfloat16 for x in jax.tree.leaves(abstract))


def test_no_such_preset():
    with pytest.raises(
        ValueError, match="no preset is called 'gpt-5'; known are gemma"
    ):
        preset("gpt-5")


# --- Files ----------------------------------------------------------------------------


def test_an_index_that_names_a_missing_file(llama, tmp_path):
    config, tensors, _ = llama
    write_folder(tmp_path, config, tensors, shards=3)
    (tmp_path / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(ValueError, match="missing files: .'model-00002-of-00003"):
        Folder(tmp_path)


def test_an_index_that_names_a_tensor_of_no_file(llama, tmp_path):
    config, tensors, _ = llama
    write_folder(tmp_path, config, tensors, shards=2)
    index = tmp_path / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    content["weight_map"]["model.extra"] = "model-00001-of-00002.safetensors"
    index.write_text(json.dumps(content))
    with pytest.raises(ValueError, match="tensors of no file: .'model.extra'"):
        Folder(tmp_path)
    for elsewhere in ("../elsewhere.safetensors", "..", "", None, 3):
        content["weight_map"]["model.extra"] = elsewhere
        index.write_text(json.dumps(content))
        with pytest.raises(ValueError, match=f"elsewhere: .{elsewhere!r}"):
            Folder(tmp_path)


def test_weights_that_are_no_floats(llama):
    _, tensors, read = llama
    tensors["model.norm.weight"] = np.ones(48, np.int8)
    with pytest.raises(ValueError, match="stores model.norm.weight as I8; weights are"):
        read()


def test_damaged_files(llama, tmp_path):
    config, tensors, _ = llama
    file = write_folder(tmp_path, config, tensors) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ValueError, match="model.safetensors cannot be read.*cut short"):
        Folder(tmp_path)
    file.unlink()
    with pytest.raises(FileNotFoundError, match="neither model.safetensors nor"):
        Folder(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match="config.json is no JSON"):
        Folder(tmp_path)
    (tmp_path / "config.json").unlink()
    with pytest.raises(FileNotFoundError):
        Folder(tmp_path)


# --- Experts --------------------------------------------------------------------------

EXPERTS = ExpertsConfig(count=8, per_token=3, width=5)


def experts() -> Experts:
    from flax import nnx

    return Experts(7, EXPERTS, dtype=jnp.float32, rngs=nnx.Rngs(0))


def one_by_one(module: Experts, x: np.ndarray) -> np.ndarray:
    """One token: its best experts, by their shares."""
    logits = np.asarray(module.router.weight[...]) @ x
    law = np.exp(logits - logits.max())
    law /= law.sum()
    best = np.argsort(-law)[: EXPERTS.per_token]
    out = np.zeros_like(x)
    for expert in best:
        gate, up, down = (
            np.asarray(w[...][expert])
            for w in (module.expert_gate, module.expert_up, module.expert_down)
        )
        g = gate @ x
        out += (
            law[expert] / law[best].sum() * ((g / (1 + np.exp(-g)) * (up @ x)) @ down)
        )
    return out


@pytest.mark.parametrize("size", [1, 2, 3, 20])
def test_experts_are_those_of_each_token_alone(size):
    """With few tokens, whose experts are gathered, and with many."""
    module = experts()
    x = np.random.default_rng(0).normal(size=(1, size, 7)).astype(np.float32)
    expected = np.stack([one_by_one(module, token) for token in x[0]])
    np.testing.assert_allclose(module(jnp.asarray(x))[0], expected, atol=1e-5)


def test_no_token_depends_on_its_neighbours():
    """All want the same experts; none is dropped, whoever else is there."""
    module = experts()
    random = np.random.default_rng(1)
    x = random.normal(size=(2, 12, 7)).astype(np.float32)
    x[:, 1:] = x[:, :1] + 1e-3 * random.normal(size=(2, 11, 7))  # a crowd
    alone = np.asarray(module(jnp.asarray(x)))
    order = random.permutation(12)
    np.testing.assert_array_equal(module(jnp.asarray(x[:, order])), alone[:, order])
    x[:, 1:] = random.normal(size=(2, 11, 7)) * 100
    np.testing.assert_array_equal(module(jnp.asarray(x))[:, 0], alone[:, 0])


def test_rope_divides_frequencies():
    x = jnp.ones((1, 1, 1, 4))
    far = RoPE(100.0, (2.0, 2.0))(x, jnp.array([[6]], jnp.int32))
    near = RoPE(100.0)(x, jnp.array([[3]], jnp.int32))
    np.testing.assert_allclose(far, near, rtol=1e-6)
