"""Chat templates: what they render, and that they reach nothing else."""

import sys

import pytest

from specdec_jax.text import render_chat

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{{ message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
HI = [{"role": "user", "content": "hi <b>"}]


def test_renders():
    opened = render_chat(CHATML, HI)
    assert opened == "<|im_start|>user\nhi <b><|im_end|>\n<|im_start|>assistant\n"
    closed = render_chat(CHATML, HI, add_generation_prompt=False)
    assert closed == "<|im_start|>user\nhi <b><|im_end|>\n"


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{{ bos_token }}-{{ eos_token }}", "<s>-</s>"),
        ("{% if true %}\n  a\n  {% endif %}\nb", "  a\nb"),  # trimmed, stripped
        ("{{ messages[0] | tojson }}", '{"role": "user", "content": "hi <b>"}'),
        ("{{ {'b': 1, 'a': 'é'} | tojson(sort_keys=true) }}", '{"a": "é", "b": 1}'),
        ("{{ strftime_now('%%') }}", "%"),
        ("{% for i in range(9) %}{{ i }}{% break %}{% endfor %}", "0"),
        ("{{ tools is none }}{{ documents is none }}", "TrueTrue"),
        ("{{ messages[0].name is defined }}", "False"),
    ],
)
def test_what_templates_expect(template, expected):
    assert render_chat(template, HI, bos_token="<s>", eos_token="</s>") == expected


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages.__class__ }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ ''['__class__'] }}",
        "{{ '' | attr('__class__') }}",
        "{% if messages.__class__ %}{% endif %}",
        "{{ '{0.__class__}'.format(messages) }}",
        "{{ raise_exception.__globals__ }}",
        "{{ strftime_now.__globals__['os'] }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(role='system') }}",
    ],
)
def test_out_of_the_sandbox(template):
    with pytest.raises(ValueError, match="reaches out of its sandbox"):
        render_chat(template, HI)


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("a\n{% if %}", "does not parse, line 2"),
        ("{{ raise_exception('roles must alternate') }}", "fails .* must alternate"),
        ("{{ messages[0].absent.role }}", "fails on these messages: .*absent"),
        ("{{ 1 / 0 }}", "fails on these messages: division by zero"),
        ("{% include 'other' %}", "fails on these messages"),
    ],
)
def test_templates_that_fail(template, message):
    with pytest.raises(ValueError, match=message):
        render_chat(template, HI)


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "at least one message"),
        ([*HI, {"role": "user"}], "message 1 has no 'content'"),
        ([{"content": "hi"}], r"message 0 has no 'role': its keys are \['content'\]"),
        ([{"role": "user", "content": None}], "'content' of message 0 is NoneType"),
        ([{"role": 3, "content": "hi"}], "'role' of message 0 is int, not text"),
    ],
)
def test_messages_that_are_none(messages, message):
    with pytest.raises(ValueError, match=message):
        render_chat(CHATML, messages)


def test_messages_stay_as_they_are():
    messages = [{"role": "user", "content": "hi"}]
    render_chat(CHATML, messages)
    assert messages == [{"role": "user", "content": "hi"}]


def test_jinja2_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "jinja2.exceptions", None)
    with pytest.raises(ImportError, match=r"specdec-jax\[hub\]"):
        render_chat(CHATML, HI)
