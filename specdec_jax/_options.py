"""What a caller may ask of the sampling, checked at the door and turned into arrays."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Key

from specdec_jax import _stops
from specdec_jax._constraint import check_constraint
from specdec_jax._types import Constraint, Options, Penalties

NO_LIMIT = 2**30  # more new tokens than any cache has slots
_STOP_IDS = (
    8  # stop ids are padded to a multiple, so that one more needs no other program
)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Sampling:
    """How the next token is chosen from the target's logits, and when a row ends.

    Every option but `constrain` and `token_bytes` takes one value for all rows, or a
    sequence with one per row (for options that are themselves sequences or mappings: a
    sequence of them). The order is: bias, penalties, banned and allowed ids,
    constraint, min_new_tokens, temperature, top-k, top-p, min-p; each filter works on
    what the one before left. Output is what this call has emitted; what an earlier one
    did, where a call goes on from its state, counts as prompt.

    Args:
        temperature: 0 takes the likeliest token, ties to the lowest id.
        top_k: keep the k likeliest tokens, ties at the threshold included; 0 is off.
        top_p: keep the smallest set of likeliest tokens with at least this mass; 1 is
            off.
        min_p: keep the tokens at least this fraction as likely as the likeliest; 0 is
            off.
        repetition_penalty: divides positive and multiplies negative logits of tokens in
            prompt and output; 1 is off.
        presence_penalty: subtracted from the logits of tokens in the output.
        frequency_penalty: subtracted once per occurrence in the output.
        bias: token id → what to add to its logit.
        banned_ids: never emitted.
        allowed_ids: if given, nothing else is emitted.
        min_new_tokens: before this many new tokens stop ids are banned and stop strings
            are not looked for.
        max_new_tokens: None is until something else ends the row, at the latest a full
            cache.
        stop_ids: end the row; the id is the row's last token.
        stop_strings: end the row with the token that completes one, which may say more
            than the string: cut the decoded text there. Needs `token_bytes` (see
            `Tokenizer.token_bytes`).
        token_bytes: the bytes that each token stands for.
        seed: one for all rows (row r then draws from `fold_in(key(seed), r)`), or one
            per row; below 2**32.
        constrain: a grammar (`Constraint`) for all rows.
    """

    temperature: float | Sequence[float] = 0.0
    top_k: int | Sequence[int] = 0
    top_p: float | Sequence[float] = 1.0
    min_p: float | Sequence[float] = 0.0
    repetition_penalty: float | Sequence[float] = 1.0
    presence_penalty: float | Sequence[float] = 0.0
    frequency_penalty: float | Sequence[float] = 0.0
    bias: Mapping[int, float] | Sequence[Mapping[int, float]] = dataclasses.field(
        default_factory=dict
    )
    banned_ids: Sequence[int] | Sequence[Sequence[int]] = ()
    allowed_ids: Sequence[int] | Sequence[Sequence[int] | None] | None = None
    min_new_tokens: int | Sequence[int] = 0
    max_new_tokens: int | None | Sequence[int | None] = None
    stop_ids: Sequence[int] | Sequence[Sequence[int]] = ()
    stop_strings: Sequence[str] | Sequence[Sequence[str]] = ()
    token_bytes: Sequence[bytes] | None = None
    seed: int | Sequence[int] = 0
    constrain: Constraint | None = None


class Request(NamedTuple):
    """A `Sampling` as arrays, one row per sequence."""

    options: Options
    keys: Key[Array, " B"]
    max_new_tokens: Int[Array, " B"]
    stops: _stops.StopTable | None


def check_whole(name: str, value: Any, *, least: int = 1) -> int:
    """The number itself; `ValueError` where it is not whole, or below `least`."""
    is_whole = hasattr(value, "__index__") and not isinstance(value, bool)
    if not is_whole or value < least:
        raise ValueError(
            f"{name} must be a whole number, at least {least}, not {value!r}"
        )
    return int(value)


def make_request(
    sampling: Sampling, *, batch: int, vocab_size: int, samples: int = 1
) -> Request:
    """Check a `Sampling` and turn it into arrays; each of `batch` rows is repeated
    `samples` times, with keys of their own.

    Raises:
        ValueError: in the caller's words, naming the option and the row.
    """
    if sampling.constrain is not None:
        check_constraint(sampling.constrain, vocab_size)
    rows = _Rows(batch, vocab_size)
    temperature = rows.numbers(
        "temperature", sampling.temperature, lambda x: x >= 0, ">= 0"
    )
    top_k = rows.numbers(
        "top_k", sampling.top_k, lambda x: x >= 0 and x == int(x), "a whole number >= 0"
    )
    top_p = rows.numbers("top_p", sampling.top_p, lambda x: 0 < x <= 1, "in (0, 1]")
    min_p = rows.numbers("min_p", sampling.min_p, lambda x: 0 <= x <= 1, "in [0, 1]")
    repetition = rows.numbers(
        "repetition_penalty", sampling.repetition_penalty, lambda x: x > 0, "> 0"
    )
    presence = rows.numbers(
        "presence_penalty", sampling.presence_penalty, lambda x: True, "a number"
    )
    frequency = rows.numbers(
        "frequency_penalty", sampling.frequency_penalty, lambda x: True, "a number"
    )
    least = rows.numbers(
        "min_new_tokens",
        sampling.min_new_tokens,
        lambda x: x >= 0 and x == int(x),
        "a whole number >= 0",
    )
    limits = sampling.max_new_tokens
    if limits is None or (isinstance(limits, Sequence) and None in limits):
        given = [None] * batch if limits is None else limits
        limits = [NO_LIMIT if x is None else x for x in given]
    limit = rows.numbers(
        "max_new_tokens",
        limits,
        lambda x: 1 <= x <= NO_LIMIT and x == int(x),
        "a whole number >= 1",
    )
    for row in range(batch):
        if least[row] > limit[row]:
            raise ValueError(
                f"min_new_tokens {least[row]:g} is above max_new_tokens "
                f"{limit[row]:g} (row {row})"
            )
    is_penalised = (
        (repetition != 1).any() or (presence != 0).any() or (frequency != 0).any()
    )

    def array(x: np.ndarray, dtype: Any = jnp.float32) -> Array:
        return jnp.asarray(np.repeat(x, samples, axis=0), dtype)

    def if_used(x: np.ndarray, off: float, dtype: Any = jnp.float32) -> Array | None:
        return array(x, dtype) if (x != off).any() else None

    bias = rows.bias(sampling)
    table = rows.stops(sampling)
    options = Options(
        temperature=array(temperature),
        stop_ids=array(rows.stop_ids(sampling.stop_ids), jnp.int32),
        min_new_tokens=if_used(least, 0, jnp.int32),
        top_k=None
        if not top_k.any()
        else array(
            np.where(top_k == 0, vocab_size, np.minimum(top_k, vocab_size)), jnp.int32
        ),
        top_p=if_used(top_p, 1),
        min_p=if_used(min_p, 0),
        penalties=Penalties(array(repetition), array(presence), array(frequency))
        if is_penalised
        else None,
        bias=None if bias is None else array(bias),
        constraint=sampling.constrain,
    )
    if table is not None:
        table = table._replace(group=jnp.repeat(table.group, samples))
    return Request(
        options, _keys(rows, sampling.seed, samples), array(limit, jnp.int32), table
    )


def _keys(rows: "_Rows", seed: int | Sequence[int], samples: int) -> Key[Array, " B"]:
    """Row r of a scalar seed folds in r; the samples of a row that has its own seed
    fold in their number, unless there is one only.
    """
    is_shared = np.ndim(seed) == 0
    seeds = rows.numbers(
        "seed",
        seed,
        lambda x: 0 <= x < 2**32 and x == int(x),
        "a whole number in [0, 2**32)",
    )
    seeds = np.repeat(seeds.astype(np.uint32), samples)
    if is_shared:
        folds = np.arange(len(seeds), dtype=np.uint32)
    elif samples > 1:
        folds = np.tile(np.arange(samples, dtype=np.uint32), rows.batch)
    else:
        return jax.vmap(_key)(seeds)
    return jax.vmap(lambda seed, fold: jax.random.fold_in(_key(seed), fold))(
        seeds, folds
    )


def _key(seed: Any) -> Any:
    """Of the one kind whose draws are the same under `vmap`, whatever the default."""
    return jax.random.key(seed, impl="threefry2x32")


def _is_number(x: Any) -> bool:
    """Whether a value is a number that float32 can hold."""
    if isinstance(x, bool | str) or not hasattr(x, "__float__"):
        return False
    limits = np.finfo(np.float32)
    return x == 0 or float(limits.tiny) <= abs(x) <= float(limits.max)


@dataclasses.dataclass(frozen=True)
class _Rows:
    """How an option, given once or per row, becomes one value per row."""

    batch: int
    vocab_size: int

    def numbers(
        self, name: str, value: Any, is_good: Callable[[float], bool], wanted: str
    ) -> np.ndarray:
        if hasattr(value, "tolist"):  # an array
            value = value.tolist()
        is_per_row = isinstance(value, Sequence) and not isinstance(value, str)
        values = self.spread(name, value, is_per_row)
        for row, x in enumerate(values):
            if not _is_number(x) or not is_good(x):
                raise ValueError(f"{name} must be {wanted}, not {x!r} (row {row})")
        return np.asarray(values, np.float64)

    def ids(self, name: str, value: Any) -> list[list[int] | None]:
        if hasattr(value, "tolist"):
            value = value.tolist()
        if hasattr(value, "__index__"):
            raise ValueError(f"{name} must be a list of token ids: [{value}]")
        value = None if value is None else list(value)
        is_nested = value is not None and any(
            x is None or isinstance(x, Sequence | np.ndarray | set) for x in value
        )
        rows = [
            None if ids is None else list(ids)
            for ids in self.spread(name, value, is_nested)
        ]
        for row, ids in enumerate(rows):
            for token in ids or ():
                self._check_id(name, token, row)
        return rows

    def stop_ids(self, value: Any) -> np.ndarray:
        rows = [row or [] for row in self.ids("stop_ids", value)]
        width = max(1, -(-max(map(len, rows), default=0) // _STOP_IDS)) * _STOP_IDS
        return np.array(
            [[*row, *[self.vocab_size] * (width - len(row))] for row in rows], np.int32
        ).reshape(self.batch, width)

    def stops(self, sampling: Sampling) -> _stops.StopTable | None:
        strings = sampling.stop_strings
        if isinstance(strings, str) or not isinstance(strings, Sequence):
            raise ValueError(f"stop_strings must be a list of strings: [{strings!r}]")
        rows = self.spread(
            "stop_strings", list(strings), any(not isinstance(x, str) for x in strings)
        )
        if not any(rows):
            return None
        for row, row_strings in enumerate(rows):
            for string in row_strings:
                if not isinstance(string, str):
                    raise ValueError(
                        f"stop_strings must be strings, not {string!r} (row {row})"
                    )
        if sampling.token_bytes is None:
            raise ValueError(
                "stop_strings need token_bytes, which say what each token spells: pass "
                "tokenizer.token_bytes"
            )
        if len(sampling.token_bytes) > self.vocab_size:
            raise ValueError(
                f"token_bytes has {len(sampling.token_bytes)} entries for a vocabulary "
                f"of {self.vocab_size}"
            )
        padding = [b""] * (self.vocab_size - len(sampling.token_bytes))
        return _stops.stop_table(rows, [*sampling.token_bytes, *padding])

    def bias(self, sampling: Sampling) -> np.ndarray | None:
        biases = self.spread(
            "bias", sampling.bias, not isinstance(sampling.bias, Mapping)
        )
        banned = [row or [] for row in self.ids("banned_ids", sampling.banned_ids)]
        allowed = self.ids("allowed_ids", sampling.allowed_ids)
        if not any(biases) and not any(banned) and all(row is None for row in allowed):
            return None
        table = np.zeros((self.batch, self.vocab_size), np.float32)
        for row in range(self.batch):
            if not isinstance(biases[row], Mapping):
                raise ValueError(
                    "bias must say what to add to each id, as in {3: -1.5}, not "
                    f"{biases[row]!r} (row {row})"
                )
            for token, amount in biases[row].items():
                self._check_id("bias", token, row)
                if not _is_number(amount) and amount != -math.inf:
                    raise ValueError(
                        f"bias of token {token} must be a number or -inf, "
                        f"not {amount!r} (row {row})"
                    )
                table[row, token] = amount
            if allowed[row] is not None:
                if not allowed[row]:
                    raise ValueError(
                        f"allowed_ids is empty: no token could be emitted (row {row})"
                    )
                is_allowed = np.isin(
                    np.arange(self.vocab_size), list(allowed[row] or ())
                )
                table[row, ~is_allowed] = -np.inf
            table[row, list(banned[row])] = -np.inf
            if np.isneginf(table[row]).all():
                raise ValueError(
                    "bias, banned_ids and allowed_ids leave no token to emit "
                    f"(row {row})"
                )
        return table

    def spread(self, name: str, value: Any, is_per_row: bool) -> list[Any]:
        if not is_per_row:
            return [value] * self.batch
        if len(value) != self.batch:
            raise ValueError(
                f"{name} has {len(value)} values for {self.batch} rows: give one, or "
                "one per row"
            )
        return list(value)

    def _check_id(self, name: str, token: Any, row: int) -> None:
        if (
            isinstance(token, bool)
            or not hasattr(token, "__index__")
            or not 0 <= token < self.vocab_size
        ):
            raise ValueError(
                f"{name}: {token!r} is not a token id in [0, {self.vocab_size}) "
                f"(row {row})"
            )
