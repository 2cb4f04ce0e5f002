"""Tokenizers from Hugging Face folders, against `tokenizers` itself."""

import json

import jax
import pytest
import tokenizers
from folders import SMALL, tensors_of, tiny_target, write_folder
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers
from tokenizers.processors import TemplateProcessing

import specdec_jax as sd
from specdec_jax.io import Folder
from specdec_jax.text import Tokenizer

TEXTS = (
    "",
    "a<|end|>a",
    "<|end|>hell",
    "hello  world",
    " leading, and\n\ttabs",
    "naïve 🙂 <|end|> and <|start|>",
    "<tool>x</tool>",
)
TEMPLATE = "{{ bos_token }}{% for m in messages %}{{ m.content }}<|end|>{% endfor %}"


def byte_level() -> tokenizers.Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: i for i, token in enumerate([*alphabet, "he", "ll", "hell", "Ġw"])}
    merges = [("h", "e"), ("l", "l"), ("he", "ll"), ("Ġ", "w")]
    model = tokenizers.Tokenizer(models.BPE(vocab, merges))
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = decoders.ByteLevel()
    return model


def pieces() -> tokenizers.Tokenizer:
    letters = [chr(code) for code in range(0x20, 0x7F)]
    raw = [f"<0x{byte:02X}>" for byte in range(256)]
    tokens = [*raw, *letters[1:], "▁", "he", "ll", "hell", "▁w", "\n"]
    vocab = {token: i for i, token in enumerate(tokens)}
    merges = [("h", "e"), ("l", "l"), ("he", "ll"), ("▁", "w")]
    model = tokenizers.Tokenizer(
        models.BPE(vocab, merges, byte_fallback=True, fuse_unk=True)
    )
    model.normalizer = normalizers.Replace(" ", "▁")
    model.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return model


def prefixed_pieces() -> tokenizers.Tokenizer:
    """As in Llama 2: a space is put before a text, and taken off again."""
    model = pieces()
    model.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    model.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return model


def metaspace_pieces() -> tokenizers.Tokenizer:
    """As in Mistral: a space is put before the beginning of a text alone."""
    model = pieces()
    model.normalizer = None
    model.pre_tokenizer = pre_tokenizers.Metaspace(
        replacement="▁", prepend_scheme="first", split=False
    )
    model.decoder = prefixed_pieces().decoder
    return model


@pytest.fixture(params=[byte_level, pieces, prefixed_pieces, metaspace_pieces])
def theirs(request):
    model = request.param()
    model.add_special_tokens([AddedToken(x) for x in ("<|start|>", "<|end|>")])
    model.add_tokens([AddedToken("<tool>", normalized=False)])
    start = model.token_to_id("<|start|>")
    model.post_processor = TemplateProcessing(
        single="<|start|> $A", special_tokens=[("<|start|>", start)]
    )
    return model


@pytest.fixture
def folder(theirs, tmp_path):
    """With an embedding padded by three rows."""
    size = theirs.get_vocab_size() + 3
    config = SMALL | {"model_type": "llama", "vocab_size": size, "eos_token_id": 7}
    target = tiny_target("llama", vocab_size=size)
    tensors = tensors_of(target, target.init_params(jax.random.key(0)))
    write_folder(tmp_path, config, tensors)
    theirs.save(str(tmp_path / "tokenizer.json"))
    described = {
        "bos_token": "<|start|>",
        "eos_token": {"content": "<|end|>", "special": True},
        "chat_template": TEMPLATE,
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(described))
    generation = {"eos_token_id": [theirs.token_to_id("<|end|>"), 3]}
    (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    return tmp_path


def test_ids_and_texts_are_theirs(folder, theirs):
    ours = Tokenizer.from_folder(Folder(folder))
    for text in TEXTS:
        ids = ours.encode(text)
        assert ids == theirs.encode(text).ids
        assert ours.decode(ids) == theirs.decode(ids)
        decoder = ours.stream()
        assert "".join(decoder.push([i]) for i in ids) == ours.decode(ids)


def test_what_the_small_files_say(folder, theirs):
    ours = Tokenizer.from_folder(Folder(folder))
    start, end = (theirs.token_to_id(x) for x in ("<|start|>", "<|end|>"))
    assert (ours.bos_id, ours.eos_id, ours.add_bos) == (start, end, True)
    assert ours.stop_ids == (end, 3, 7)
    messages = [{"role": "user", "content": "he <|end|>"}]
    ids = ours.encode_chat(messages)
    assert ids[0] == start and ids[-1] == end
    assert end not in ids[:-1]  # nobody ends a turn from inside it
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}!")
    newer = Tokenizer.from_folder(Folder(folder))
    assert newer.decode(newer.encode_chat(messages)) == "he <|end|>!"


def test_load(folder, theirs):
    model = sd.load(folder)
    assert model.tokenizer.vocab_size == model.target.vocab_size
    assert model.tokenizer.decode([model.target.vocab_size - 1]) == ""
    config = json.loads((folder / "config.json").read_text())
    target = tiny_target("llama", vocab_size=theirs.get_vocab_size() - 1)
    config["vocab_size"] = target.vocab_size
    tensors = tensors_of(target, target.init_params(jax.random.key(0)))
    write_folder(folder, config, tensors)
    with pytest.raises(ValueError, match="they do not belong together"):
        sd.load(folder)


def test_what_is_not_understood(folder):
    file = folder / "tokenizer.json"
    described = json.loads(file.read_text())
    file.write_text(json.dumps(described | {"decoder": {"type": "Fuse"}}))
    with pytest.raises(ValueError, match="decoder of tokenizer.json .Fuse"):
        sd.load(folder)
    file.write_text(json.dumps({"model": {"type": "BPE"}}))
    with pytest.raises(ValueError, match="tokenizer.json is not understood"):
        sd.load(folder)
    file.write_text(json.dumps(described | {"added_tokens": [{"id": 3}]}))
    with pytest.raises(ValueError, match="tokenizer of .*damaged .KeyError"):
        sd.load(folder)
    file.write_text(json.dumps(described))
    for wrong in ([99999], ["x"], -1):
        generation = json.dumps({"eos_token_id": wrong})
        (folder / "generation_config.json").write_text(generation)
        with pytest.raises(ValueError, match="eos_token_id .* is no id of its"):
            sd.load(folder)
    (folder / "generation_config.json").unlink()
    named = json.dumps({"eos_token": "<|stop|>"})
    (folder / "tokenizer_config.json").write_text(named)
    with pytest.raises(ValueError, match="names '<.stop.>', which is no token"):
        sd.load(folder)
    file.unlink()
    with pytest.raises(FileNotFoundError):
        sd.load(folder)
