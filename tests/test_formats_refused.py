"""Heads that cannot be read or written, and pickles: what is said."""

import dataclasses
import json
import pickle
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from heads import (
    CONFIGS,
    KNOWN,
    PLAIN,
    TARGET,
    V,
    assert_same,
    load,
    nested,
    published,
    write,
)

import specdec_jax as sd
from specdec_jax.drafters import Eagle, Eagle3
from specdec_jax.nn import RoPE

pytestmark = pytest.mark.usefixtures("quick_compile")

# --- What is made for another target, or cannot be ----------------------------------


HALF = KNOWN[:7]
OFFSETS = KNOWN - np.arange(len(KNOWN))
MARKS = np.isin(np.arange(V), KNOWN)
BAD: dict[str, tuple[str, dict[str, Any], dict[str, Any], str]] = {
    "vocabulary": ("eagle", {"vocab_size": 60}, {}, "vocabulary of 60.* has 61"),
    "width said": ("eagle3", {"target_hidden_size": 64}, {}, "width 64.* has 48"),
    "width": ("eagle", {"hidden_size": 64}, {}, "states of 64 numbers.*have 48"),
    "no fusion": ("eagle", {}, {"fc.weight": None}, "fc.weight is missing"),
    "taps of another": (
        "eagle3", {}, {"fc.weight": np.ones((48, 100), np.float16)},
        "reads 100 numbers.*no whole number of the target's states of 48",
    ),
    "tensor missing": (
        "eagle3", {}, {"norm.weight": None, "midlayer.hidden_norm.weight": None},
        "midlayer.hidden_norm.weight is missing; norm.weight is missing",
    ),
    "tensor left": (
        "eagle", {}, {"lm_head.bias": np.ones(3, np.float16)},
        "lm_head.bias is not understood",
    ),
    "tensor of another shape": (
        "eagle", {}, {"fc.bias": np.ones(3, np.float16)}, r"fc.bias is \(3,\)",
    ),
    "no bias": ("eagle", {"bias": False}, {}, "fc.bias is not understood"),
    "keys": (
        "eagle", {"attention_sink": 3, "mlp_bias": True, "hidden_act": "gelu"}, {},
        "hidden_act is 'gelu'.*attention_sink is not.*mlp_bias is not understood",
    ),
    "keys of a layer": (
        "speculators", nested(logit_scale=2.0, attention_bias=True), {},
        "transformer_layer_config: attention_bias is True.*logit_scale is not under",
    ),
    "another method": (
        "speculators", {"speculators_model_type": "mtp"}, {}, "is 'mtp'",
    ),
    "another layer": (
        "speculators", nested(model_type="mamba"), {}, "'mamba' is not.*llama and",
    ),
    "both norms": (
        "specforge", {"norm_before_fc": True}, {}, "fc_norm and norm_before_fc are",
    ),
    "no norm": ("specforge", {"norm_output": False}, {}, "norm_output is False"),
    "odd heads": ("eagle", {"num_key_value_heads": 3}, {}, "of 3 do not divide"),
    "odd halves": ("eagle", {"head_dim": 9}, {}, "has no halves to rotate"),
    "two bases": (
        "specforge", {"rope_theta": 500.0}, {}, "rope_theta is said to be 500.0 and",
    ),
    "two rules": (
        "specforge", {"rope_scaling": {"type": "linear", "factor": 4.0}}, {},
        "rope_parameters and rope_scaling say different",
    ),
    "a rule": ("eagle3", {"rope_scaling": {"type": "yarn"}}, {}, "'yarn' is not under"),
    "a window": ("eagle3", {"sliding_window": 9}, {}, "sliding_window is not under"),
    "windows of some": (
        "speculators", nested(layer_types=["sliding_attention", "full_attention"]), {},
        "the same for all layers",
    ),
    "no d2t": ("eagle3", {}, {"d2t": None}, "d2t is missing.*knows 13 of 61"),
    "d2t is zero": ("eagle3", {}, {"d2t": OFFSETS * 0}, "d2t is all zeros.*part at"),
    "d2t is zero, and t2d": (
        "eagle3", {}, {"d2t": OFFSETS * 0, "t2d": MARKS & False},
        "all zeros, and t2d marks 0 tokens",
    ),
    "d2t is zero, no t2d": (
        "eagle3", {}, {"d2t": OFFSETS * 0, "t2d": None}, "all zeros, as where.*no t2d",
    ),
    "d2t of a few": ("eagle3", {}, {"d2t": OFFSETS[:7]}, r"d2t is \(7,\).*knows 13"),
    "ids beyond": ("eagle3", {}, {"d2t": OFFSETS + 1}, "ids 1 … 61, but.* 61 tokens"),
    "ids below": ("eagle3", {}, {"d2t": OFFSETS - 1}, "ids -1 … 59"),
    "ids that fall": (
        "eagle3", {}, {"d2t": np.r_[OFFSETS[:3], OFFSETS[2] - 1, OFFSETS[4:]]},
        "place 2 to id 3, and the next to 3: ids must ascend",
    ),
    "ids, not offsets": ("eagle3", {}, {"d2t": KNOWN}, "leads to the ids"),
    "t2d of another size": ("eagle3", {}, {"t2d": MARKS[:60]}, r"t2d is \(60,\)"),
    "t2d of more": ("eagle3", {}, {"t2d": MARKS | True}, "marks 61 .*knows 13"),
    "t2d of others": (
        "eagle3", {}, {"t2d": np.roll(MARKS, 1)}, "d2t and t2d part at place 2: 3",
    ),
    "d2t of floats": (
        "eagle3", {}, {"d2t": OFFSETS.astype(np.float32)}, "d2t as F32, which is no",
    ),
    "another size": ("eagle3", {"draft_vocab_size": 12}, {}, "13 rows, but.* is 12"),
    "the same tap": (
        "specforge", {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3, 3]}},
        {}, "tapped twice.*1, 3, 3",
    ),
    "a tap beyond": (
        "specforge", {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3, 8]}},
        {}, "taps layer 8, but the target has layers 0 … 7",
    ),
    "two taps": (
        "specforge", {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3]}},
        {}, "reads 3 taps, and 2 are named: 1, 3",
    ),
    "taps, not a list": (
        "specforge", {"eagle_config": {"eagle_aux_hidden_state_layer_ids": "1, 3"}},
        {}, "'1, 3', not a list of layers",
    ),
    "no taps": (
        "specforge", {"eagle_config": {"use_aux_hidden_state": False}}, {},
        "eagle_config: use_aux_hidden_state is False",
    ),
    "the last boundary": (
        "speculators", {"eagle_aux_hidden_state_layer_ids": [2, 4, 8]}, {},
        "before layer 8 of 8.*pass taps, with 7 or 'final'",
    ),
    "a boundary below": (
        "speculators", {"eagle_aux_hidden_state_layer_ids": [-1, 4, 5]}, {},
        "taps layer -2",
    ),
    "two conventions": (
        "specforge", {"eagle_aux_hidden_state_layer_ids": [1, 3, 4]}, {},
        r"after layers \[1, 3, 4\], the key outside before layers \[1, 3, 4\]",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_read(name, tmp_path):
    """In the user's words, and with the folder's name."""
    head, changes, tensors, words = BAD[name]
    path = write(tmp_path / "head", head, changes, tensors)
    with pytest.raises(ValueError, match=words) as error:
        load(path)
    assert str(path) in str(error.value)


# --- Saving ---------------------------------------------------------------------------

UNSAYABLE: dict[str, tuple[Any, Any, str]] = {
    "eagle 3 as eagle": ("eagle", PLAIN, "it is Eagle3"),
    "eagle as eagle 3": ("speculators", Eagle(CONFIGS["eagle"]), "it is Eagle"),
    "taps": ("eagle3", Eagle3(PLAIN.config, taps=(1, 3, 5)), "it taps 1, 3, 5"),
    "the last boundary": (
        "speculators",
        Eagle3(PLAIN.config, taps=(1, 3, 7)),
        "it taps",
    ),
    "final": (
        "specforge",
        Eagle3(PLAIN.config, taps=(1, 3, "final")),
        "it taps 1, 3, f",
    ),
} | {
    f"{change}, {format}": (
        format,
        Eagle3(dataclasses.replace(PLAIN.config, **{change: value}), taps=(1, 3, 4)),
        words,
    )
    for format, change, value, words in (
        ("specforge", "window", 4, "each row sees a window only"),
        ("specforge", "query_key_norm", True, "queries and keys are normed"),
        ("specforge", "recycle_normed", True, "states are recycled normed"),
        ("specforge", "fusion_bias", True, "the fusion has a bias"),
        ("specforge", "num_layers", 2, "it has 2 layers"),
        ("eagle3", "norm_each_tap", 3, "taps are normed"),
        ("eagle3", "norm_before_residual", True, "the residual stream starts normed"),
        ("speculators", "attention_bias", True, "queries, keys and values have a bias"),
    )
}


@pytest.mark.parametrize("name", UNSAYABLE)
def test_what_a_format_cannot_say(name, tmp_path):
    format, drafter, words = UNSAYABLE[name]
    params = drafter.init_params(jax.random.key(0), TARGET)
    with pytest.raises(ValueError, match=f"{format}' cannot say that {words}"):
        sd.save_drafter(tmp_path / "x", drafter, params, TARGET, format=format)
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("unchecked")
def test_what_cannot_be_saved(tmp_path):
    params = PLAIN.init_params(jax.random.key(0), TARGET)

    def save(
        path: Path, *, drafter=PLAIN, params=params, format: Any = "eagle3", **how
    ):
        sd.save_drafter(path, drafter, params, TARGET, format=format, **how)

    with pytest.raises(
        ValueError, match="no format 'gguf'; there are eagle, eagle3, sp"
    ):
        save(tmp_path / "x", format="gguf")
    with pytest.raises(ValueError, match="exists already"):
        save(tmp_path)
    with pytest.raises(ValueError, match="no parameters of .*tokens"):
        save(tmp_path / "x", params=params | {"tokens": jnp.arange(3)})
    with pytest.raises(ValueError, match="cannot say that the target is called so"):
        save(tmp_path / "x", verifier="org/model")
    divisors = RoPE(1e4, (1.0, 2.0, 3.0, 4.0, 5.0))
    strange = Eagle3(dataclasses.replace(PLAIN.config, rope=divisors), taps=(1, 3, 4))
    with pytest.raises(ValueError, match="stretched by a rule that is not known"):
        save(tmp_path / "x", drafter=strange)
    wide = Eagle3(dataclasses.replace(PLAIN.config, feature_width=96), taps=(1, 3, 4))
    with pytest.raises(ValueError, match="reads 96 numbers, but 3 taps"):
        save(tmp_path / "x", drafter=wide)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("format", ["eagle3", "specforge", "speculators"])
def test_a_head_of_another_tokenizer(format: Any, tmp_path):
    """Known where both are; a folder that says nothing is taken at its word."""
    params = PLAIN.init_params(jax.random.key(0), TARGET)
    more = {"verifier": "org/model"} if format == "speculators" else {}

    def loaded(name: str, digest: str | None) -> Any:
        return load(tmp_path / name, tokenizer_digest=digest)

    for name, digest in (("silent", None), ("said", "0123abcd")):
        sd.save_drafter(
            tmp_path / name,
            PLAIN,
            params,
            TARGET,
            format=format,
            tokenizer_digest=digest,
            **more,
        )
    for name, digest in (("silent", "4567"), ("said", None), ("said", "0123abcd")):
        assert loaded(name, digest)[0].config.width == PLAIN.config.width
    with pytest.raises(ValueError, match=r"said: .*another tokenizer .*0123abcd.*4567"):
        loaded("said", "4567")


# --- Pickles --------------------------------------------------------------------------


def pickled(path: Path, values: Any) -> Path:
    torch = pytest.importorskip("torch")
    config, _ = published("eagle3")
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    torch.save(values, path / "pytorch_model.bin")
    return path


def test_pickled_heads(tmp_path):
    torch = pytest.importorskip("torch")
    _, tensors = published("eagle3")
    values = {name: torch.from_numpy(np.array(x)) for name, x in tensors.items()}
    drafter, params = load(pickled(tmp_path / "a", values))
    same, wanted = load(write(tmp_path / "b", "eagle3"))
    assert drafter == same
    assert_same(params, wanted)
    values["norm.weight"] = values["norm.weight"].bfloat16()
    _, params = load(pickled(tmp_path / "c", values))
    rounded = np.asarray(tensors["norm.weight"]).astype(jnp.bfloat16)
    np.testing.assert_array_equal(params["norm"]["weight"], rounded.astype(np.float32))


class Program:
    def __reduce__(self):
        return (print, ("this must not run",))


def test_pickles_run_no_program(tmp_path, capsys):
    path = pickled(tmp_path / "a", {"fc.weight": Program()})
    with pytest.raises(ValueError, match="pickle that holds more than tensors"):
        load(path)
    file = path / "pytorch_model.bin"
    file.write_bytes(pickle.dumps(Program(), protocol=2))
    with pytest.raises(ValueError, match="more than tensors|damaged"):
        load(path)
    assert "must not run" not in capsys.readouterr().out
    with pytest.raises(ValueError, match="holds no tensors by name"):
        load(pickled(tmp_path / "b", [1, 2]))
    cut = pickled(tmp_path / "c", {})
    file = cut / "pytorch_model.bin"
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(ValueError, match="damaged"):
        load(cut)


def test_a_pickle_without_torch(tmp_path, monkeypatch):
    path = tmp_path / "head"
    path.mkdir()
    (path / "config.json").write_text("{}")
    (path / "pytorch_model.bin").touch()
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match=r"specdec-jax\[torch\]"):
        load(path)


def test_a_folder_that_holds_nothing(tmp_path):
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "nowhere")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(FileNotFoundError, match="safetensors"):
        load(tmp_path)
