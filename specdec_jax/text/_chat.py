"""Chat templates: programs from foreign files, run in a sandbox."""

import functools
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    import jinja2.sandbox


def render_chat(
    template: str,
    messages: Sequence[Mapping[str, Any]],
    *,
    add_generation_prompt: bool = True,
    bos_token: str = "",
    eos_token: str = "",
) -> str:
    """The text of a conversation, as `transformers.apply_chat_template` renders it.

    Args:
        template: in jinja2, as a model ships it.
        messages: each with a `role` and its `content`, both text. A template may
            read further keys.
        add_generation_prompt: end with what opens the model's own turn.
        bos_token: what the template knows by this name.
        eos_token: likewise.

    Raises:
        ValueError: a message lacks its role or content, or the template does not
            parse, fails, refuses the messages, or reaches out of its sandbox.
        ImportError: jinja2 is missing.
    """
    _check(messages)
    try:
        from jinja2.exceptions import SecurityError, TemplateSyntaxError
    except ImportError as error:
        raise ImportError(
            "chat templates need the package jinja2: pip install 'specdec-jax[hub]'"
        ) from error
    try:
        return _compile(template).render(
            messages=list(messages),
            add_generation_prompt=add_generation_prompt,
            bos_token=bos_token,
            eos_token=eos_token,
            tools=None,
            documents=None,
        )
    except SecurityError as error:
        raise ValueError(
            f"the chat template reaches out of its sandbox: {error}"
        ) from error
    except TemplateSyntaxError as error:
        raise ValueError(
            f"the chat template does not parse, line {error.lineno}: {error}"
        ) from error
    except Exception as error:  # whatever a foreign program can end in
        raise ValueError(
            f"the chat template fails on these messages: {error}"
        ) from error


def _check(messages: Sequence[Mapping[str, Any]]) -> None:
    if not messages:
        raise ValueError("a chat needs at least one message")
    for i, message in enumerate(messages):
        for key in ("role", "content"):
            if key not in message:
                raise ValueError(
                    f"message {i} has no {key!r}: its keys are {list(message)}"
                )
            if not isinstance(message[key], str):
                kind = type(message[key]).__name__
                raise ValueError(f"the {key!r} of message {i} is {kind}, not text")


@functools.lru_cache(maxsize=8)
def _compile(template: str) -> "jinja2.Template":
    return _sandbox().from_string(template)


@functools.cache
def _sandbox() -> "jinja2.sandbox.ImmutableSandboxedEnvironment":
    """Jinja's strictest environment, with what the templates of models expect."""
    from jinja2.exceptions import SecurityError, TemplateError
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Sandbox(ImmutableSandboxedEnvironment):
        def unsafe_undefined(self, obj: Any, attribute: str) -> NoReturn:
            # jinja2 returns an undefined value, which prints as nothing.
            raise SecurityError(f"{type(obj).__name__}.{attribute} is out of bounds")

    def raise_exception(message: str) -> NoReturn:
        raise TemplateError(message)

    def tojson(
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        # jinja2's own escapes HTML.
        return json.dumps(
            value,
            ensure_ascii=ensure_ascii,
            indent=indent,
            separators=separators,
            sort_keys=sort_keys,
        )

    def strftime_now(format: str) -> str:
        return datetime.now().strftime(format)

    sandbox = Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    sandbox.filters["tojson"] = tojson
    sandbox.globals["raise_exception"] = raise_exception
    sandbox.globals["strftime_now"] = strftime_now
    return sandbox
