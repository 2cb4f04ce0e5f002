"""Parts of the config.json of a drafter of blocks: its heads, its windows, tables."""

from collections.abc import Mapping
from typing import Any

from specdec_jax.formats._block_words import CONFIDENCE, MARKOV
from specdec_jax.io import Folder, Keys
from specdec_jax.nn import MarkovConfig

_TABLES = ("dflash_config", "dspark_config")  # beside the keys outside


def heads_in(folder: Folder, keys: Keys, width: int) -> dict[str, Any]:
    """The heads; what is not said of them, their tensors say."""
    table, reader = folder.tensors.get(MARKOV), folder.tensors.get(CONFIDENCE)
    rank = keys.take("markov_rank", default=0 if table is None else table.shape[-1])
    if not isinstance(rank, int) or isinstance(rank, bool) or rank < 0:
        keys.wrong.append(f"markov_rank is {rank!r}, not a whole number")
        rank = 0
    kind = keys.take("markov_head_type", default="vanilla")
    if kind not in ("vanilla", "gated", "rnn"):
        keys.wrong.append(
            f"markov_head_type is {kind!r}, understood is 'vanilla', 'gated' or 'rnn'"
        )
        kind = "vanilla"
    is_on = keys.flag("enable_confidence_head", default=reader is not None)
    reads = None if reader is None else reader.shape[-1]
    is_wide = bool(rank) and reads != width
    reads_markov = keys.flag("confidence_head_with_markov", default=is_wide)
    if is_on and reads_markov and not rank:
        keys.wrong.append(
            "confidence_head_with_markov is true, but markov_rank is 0: such a head "
            "would read a Markov head that is not there"
        )
        is_on = False
    what = "state and markov" if reads_markov else "state"
    return {
        "markov": MarkovConfig(rank, kind) if rank else None,
        "confidence": what if is_on else "none",
    }


def windows_in(
    keys: Keys, num_layers: int
) -> tuple[tuple[int | None, ...], tuple[bool, ...]]:
    """Of each layer how many positions it sees (empty if all see all), and whether it
    is one of those with a window.
    """
    kinds = keys.take("layer_types")
    window, is_on = keys.take("sliding_window"), keys.take("use_sliding_window")
    first = keys.take("max_window_layers", default=28)
    if kinds is None:  # as transformers makes them up
        has = bool(is_on) and window is not None
        kinds = [
            "sliding_attention" if has and i >= first else "full_attention"
            for i in range(num_layers)
        ]
    understood = ("sliding_attention", "full_attention")
    if (
        not isinstance(kinds, list)
        or len(kinds) != num_layers
        or any(kind not in understood for kind in kinds)
    ):
        keys.wrong.append(
            f"layer_types is {kinds!r}: understood are {' or '.join(understood)}, one "
            f"for each of {num_layers} layers"
        )
        return (), (False,) * num_layers
    sliding = tuple(kind == "sliding_attention" for kind in kinds)
    if not any(sliding):
        return (), sliding
    if is_on is False or window is None:
        keys.wrong.append(
            "layer_types has sliding_attention, but there is no sliding_window, or "
            "use_sliding_window is false"
        )
        return (), sliding
    size = Keys({"sliding_window": window}, keys.wrong).count("sliding_window")
    return tuple(size if is_sliding else None for is_sliding in sliding), sliding


def merged_in(values: Mapping[str, Any], wrong: list[str]) -> dict[str, Any]:
    """The keys of all tables; what is said twice must be said alike."""
    merged = {k: v for k, v in values.items() if k not in _TABLES}
    for name in _TABLES:
        table = values.get(name) or {}
        if not isinstance(table, dict):
            wrong.append(f"{name} is {table!r}, not an object")
            continue
        for key, value in table.items():
            if value is None:
                continue
            if merged.get(key) is not None and merged[key] != value:
                wrong.append(
                    f"{key} is said to be {merged[key]!r}, and in {name} {value!r}"
                )
            merged[key] = value
    return merged


def steps_in(said: Mapping[str, Any] | None) -> int | None:
    """With how many tokens others draft."""
    methods = (said or {}).get("proposal_methods")
    first = methods[0] if isinstance(methods, list) and methods else None
    count = first.get("speculative_tokens") if isinstance(first, dict) else None
    return count if isinstance(count, int) else None
