"""Which layers a head taps, in the two conventions of published files.

Ours is also that of SpecForge and SGLang (`eagle_config`): the layer, counted from 0,
after which the state is taken. In the other, of vLLM and speculators (a key outside
`eagle_config`) and of the authors' code, it is the layer before which: one more, and 0
for the embedding.
"""

import warnings


def usual_taps(num_layers: int) -> tuple[int, ...]:
    """Those of the authors' code: before layers 2, half, and the last but two.

    Raises:
        ValueError: the target is too shallow to have three such.
    """
    taps = (1, num_layers // 2 - 1, num_layers - 4)
    if not taps[0] < taps[1] < taps[2]:
        raise ValueError(
            f"which layers it taps is not said, and a target of {num_layers} layers is "
            "too shallow for those of the authors: pass taps"
        )
    return taps


def from_boundaries(layers: list[int], num_layers: int) -> tuple[int, ...]:
    """Taps from layers before which states are taken.

    Raises:
        ValueError: the last boundary, of which it is not clear whether the last norm
            is before it.
    """
    if num_layers in layers:
        raise ValueError(
            f"it taps before layer {num_layers} of {num_layers}, which is before the "
            f"last norm to some and after it to others: pass taps, with "
            f"{num_layers - 1} or 'final' there"
        )
    return tuple(layer - 1 for layer in layers)


def to_boundaries(taps: tuple[int, ...]) -> list[int]:
    """The other way round."""
    return [tap + 1 for tap in taps]


def check_outputs(layers: list[int], num_layers: int) -> None:
    """Warn where layers that should be those after which states are taken look like
    those before which they are.
    """
    usual = (1, num_layers // 2 - 1, num_layers - 4)
    if layers == to_boundaries(usual):
        warnings.warn(
            f"eagle_config taps layers {layers}: taken as the layers after which, as "
            f"SpecForge and SGLang mean it, but it looks like those before which; if "
            f"acceptance is low, pass taps={usual}",
            stacklevel=4,
        )


def check_taps(
    taps: tuple[int | str, ...], *, count: int, num_layers: int
) -> tuple[int | str, ...]:
    """The taps themselves.

    Raises:
        ValueError: another number of them than the head reads, the same twice, or one
            that the target does not have.
    """
    said = ", ".join(map(str, taps))
    if len(taps) != count:
        raise ValueError(
            f"this head reads {count} taps, and {len(taps)} are named: {said}"
        )
    if len(set(taps)) != len(taps):
        raise ValueError(
            f"a target of {num_layers} layers would be tapped twice after one of them: "
            f"{said}"
        )
    for tap in taps:
        if tap != "final" and not (isinstance(tap, int) and -1 <= tap < num_layers):
            raise ValueError(
                f"this head taps layer {tap}, but the target has layers 0 … "
                f"{num_layers - 1} (and -1, the embedding, and 'final')"
            )
    return taps


def spread_taps(num_layers: int, count: int) -> tuple[int, ...]:
    """Those of DFlash's authors: from the second layer to the last but two, evenly."""
    if count == 1:
        return (num_layers // 2,)
    span, gaps = num_layers - 4, count - 1
    return tuple(round(1 + i * span / gaps) for i in range(count))
