"""Keys of a configuration, each held against what it may be."""

import math
from typing import Any

# What says nothing about the forward pass of inference.
_HARMLESS = {
    "_name_or_path", "architectures", "attention_dropout", "auto_map", "bos_token_id",
    "boi_token_index", "chunk_size_feed_forward", "dtype", "eoi_token_index",
    "eos_token_id", "id2label", "image_token_index", "initializer_range", "label2id",
    "mm_tokens_per_image", "model_type", "output_attentions", "output_hidden_states",
    "output_router_logits", "pad_token_id", "pretraining_tp", "problem_type",
    "return_dict", "router_aux_loss_coef", "torch_dtype", "transformers_version",
    "use_cache", "vision_config", "cache_implementation", "unsloth_fixed",
    "is_llama_config", "transformers.js_config",
}  # fmt: skip


class Keys:
    """A configuration's keys, each taken once; what is left over was not understood."""

    def __init__(self, values: dict[str, Any], wrong: list[str] | None = None):
        self._left = dict(values)
        self.wrong: list[str] = [] if wrong is None else wrong

    def take(self, *names: str, default: Any = None, absent: Any = None) -> Any:
        """The value under the first of these names that has one, else the default;
        `absent` where there is none of the keys, not even with a null.
        """
        is_absent = not any(name in self._left for name in names)
        found = [
            value for name in names if (value := self._left.pop(name, None)) is not None
        ]
        return found[0] if found else absent if is_absent and absent else default

    def count(self, *names: str, default: int | None = None) -> int:
        """A whole number above 0 that there must be, under one of these names."""
        value = self.take(*names, default=default)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
        self._refuse(names[0], value, "a whole number above 0")
        return 1

    def number(self, name: str, *, default: float | None = None) -> float:
        """A finite number above 0 that there must be."""
        value = self.take(name, default=default)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number and 0 < value < math.inf:
            return float(value)
        self._refuse(name, value, "a number above 0")
        return 1.0

    def flag(self, name: str, *, default: bool) -> bool:
        """Whether something is on."""
        value = self.take(name, default=default)
        if not isinstance(value, bool):
            self._refuse(name, value, "true or false")
        return value is True

    def table(self, *names: str) -> dict[str, Any] | None:
        """An object, if there is one."""
        said = next((x for x in names if self._left.get(x) is not None), names[0])
        value = self.take(*names)
        if value is not None and not isinstance(value, dict):
            self._refuse(said, value, "an object")
            return None
        return value

    def _refuse(self, name: str, value: Any, wanted: str) -> None:
        said = "missing" if value is None else f"{value!r}, not {wanted}"
        self.wrong.append(f"{name} is {said}")

    def only(self, name: str, *allowed: Any) -> None:
        """A key that may be missing, or have one of these values."""
        value = self._left.pop(name, None)
        if value is not None and value not in allowed:
            said = " or ".join(map(repr, allowed))
            self.wrong.append(f"{name} is {value!r}, understood is {said}")

    def left(self) -> list[str]:
        """What was wrong, and the keys that nobody took, unless they say nothing: an
        option that is off does not.
        """
        return self.wrong + [
            f"{name} is not understood"
            for name, value in sorted(self._left.items())
            if name not in _HARMLESS and value not in (None, False)
        ]
