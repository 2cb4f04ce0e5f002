"""Chat templates, rendered and encoded as by `transformers`."""

import pytest

from specdec_jax.io import GGUF, fetch
from specdec_jax.text import Tokenizer, render_chat

transformers = pytest.importorskip("transformers")

USER = {"role": "user", "content": "  What is 12 * 34?\n\n<b>&amp;</b> é 😀 "}
CHATS = {
    "one turn": [USER],
    "system": [{"role": "system", "content": "Be brief."}, USER],
    "three turns": [USER, {"role": "assistant", "content": "408\n"}, USER],
    "empty": [{"role": "user", "content": ""}],
    "more keys": [{**USER, "name": "Ann", "tags": ["<a>", 1, None]}],
}
TEMPLATES = {
    "headers": (
        "{{ bos_token }}{% for m in messages %}"
        "{{ '<|start|>' + m['role'] + '<|stop|>\n\n' }}"
        "{{ m['content'] | trim + '<|eot|>' }}"
        "{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|start|>assistant\n\n' }}{% endif %}"
    ),
    "blocks": """
{%- if messages[0].role == 'system' %}
    {%- set first = messages[0].content %}
    {%- set rest = messages[1:] %}
{%- else %}
    {%- set first = 'none' %}
    {%- set rest = messages %}
{%- endif %}
[{{ first }}]
    {% for m in rest %}
    {% if m.content == '' %}{% continue %}{% endif %}
  {{ loop.index }}. {{ m.role | upper }}: {{ m.content }}
    {# a comment #}
    {% endfor %}
{{ eos_token }}
""",
    "json": "{{ messages[0] | tojson }}{{ messages | tojson(indent=2) }}",
    "date": "{{ strftime_now('%Y') }} {{ tools is none }} {{ documents is none }}",
    "namespace": (
        "{% set ns = namespace(n=0) %}"
        "{% for m in messages %}{% set ns.n = ns.n + m.content | length %}{% endfor %}"
        "{{ ns.n }}"
    ),
}


@pytest.fixture(scope="module")
def gguf():
    return GGUF(fetch("smollm2-135m-instruct"))


@pytest.fixture(scope="module")
def ours(gguf):
    return Tokenizer.from_gguf(gguf)


@pytest.fixture(scope="module")
def theirs(gguf, ours):
    """Their tokenizer around the same vocabulary, as a file on the Hub describes it."""
    from tokenizers import Tokenizer as Encoder
    from tokenizers import models, pre_tokenizers

    tokens = gguf.metadata["tokenizer.ggml.tokens"]
    merges = gguf.metadata["tokenizer.ggml.merges"]
    encoder = Encoder(
        models.BPE(
            {token: i for i, token in enumerate(tokens)},
            [tuple(merge.split(" ")) for merge in merges],
        )
    )
    encoder.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=encoder,
        bos_token=tokens[ours.bos_id],
        eos_token=tokens[ours.eos_id],
        additional_special_tokens=tokens[:17],
        chat_template=ours.chat_template,
    )


@pytest.mark.parametrize("opened", [True, False])
@pytest.mark.parametrize("messages", CHATS.values(), ids=CHATS)
@pytest.mark.parametrize("name", [*TEMPLATES, "smollm2"])
def test_rendering(ours, theirs, name, messages, opened):
    template = TEMPLATES.get(name) or ours.chat_template
    expected = theirs.apply_chat_template(
        messages,
        chat_template=template,
        add_generation_prompt=opened,
        tokenize=False,
    )
    rendered = render_chat(
        template,
        messages,
        add_generation_prompt=opened,
        bos_token=theirs.bos_token,
        eos_token=theirs.eos_token,
    )
    assert rendered == expected


@pytest.mark.parametrize("messages", CHATS.values(), ids=CHATS)
def test_ids(ours, theirs, messages):
    expected = theirs.apply_chat_template(
        messages, add_generation_prompt=True, tokenize=True, return_dict=False
    )
    assert ours.encode_chat(messages) == expected
