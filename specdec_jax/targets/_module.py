"""Any flax.nnx decoder as a target."""

import dataclasses
import functools
from typing import Any, Protocol

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int, Key, PyTree

from specdec_jax import _cache
from specdec_jax._types import Block, Cache, Pending, TargetOutput
from specdec_jax.nn import Attend, Tap, attention


class ModuleConfig(Protocol):
    """What a module's configuration must say; anything hashable with these names will
    do.
    """

    @property
    def vocab_size(self) -> int: ...
    @property
    def width(self) -> int: ...
    @property
    def num_layers(self) -> int: ...
    @property
    def num_kv_heads(self) -> int: ...
    @property
    def head_width(self) -> int: ...
    @property
    def max_length(self) -> int: ...
    @property
    def dtype(self) -> str: ...


class Module(Protocol):
    """What a module must do: call `attend` once per layer, `tap` on the residual stream
    after each, and leave caches alone. What `embed` gives is tap -1.
    """

    def embed(self, tokens: Int[Array, "B T"]) -> Float[Array, "B T D"]: ...

    def logits(self, hidden: Float[Array, "B T D"]) -> Float[Array, "B T V"]: ...

    def __call__(
        self,
        tokens: Int[Array, "B T"],
        positions: Int[Array, "B T"],
        attend: Attend,
        tap: Tap,
    ) -> Float[Array, "B T D"]: ...


@dataclasses.dataclass(frozen=True)
class ModuleTarget:
    """A target made of a flax.nnx module class and its configuration.

    `module(config, rngs=…)` builds the network (see `Module`). Parameters are its pure
    dict. `check_target` proves that it fits.
    """

    module: Any
    config: Any  # ModuleConfig

    @property
    def vocab_size(self) -> int:
        """Ids are in [0, vocab_size)."""
        return self.config.vocab_size

    @property
    def num_layers(self) -> int:
        """Taps are below it."""
        return self.config.num_layers

    @property
    def width(self) -> int:
        """Of the residual stream, hence of each tap."""
        return self.config.width

    @property
    def max_length(self) -> int:
        """Positions that the model was made for."""
        return self.config.max_length

    def init_params(self, key: Key[Array, ""]) -> PyTree:
        """Random parameters: a pure dict."""
        return nnx.to_pure_dict(
            nnx.split(self.module(self.config, rngs=nnx.Rngs(key)))[1]
        )

    def init_cache(self, batch: int, slots: int) -> Cache:
        """An empty cache, of the configuration's `cache_dtype` if it has one."""
        return _cache.cache_of(self.config, batch, slots)

    def embed(self, params: PyTree, tokens: Int[Array, "B T"]) -> Float[Array, "B T D"]:
        """What enters layer 0."""
        return self._network(params).embed(tokens)

    def logits(
        self, params: PyTree, hidden: Float[Array, "B T D"]
    ) -> Float[Array, "B T V"]:
        """Float32 logits."""
        return self._network(params).logits(hidden)

    def forward(
        self, params: PyTree, cache: Cache, block: Block, taps: tuple[int | str, ...]
    ) -> TargetOutput:
        """Read a block after the committed prefix; the cache is not written."""
        keys: dict[int, Array] = {}
        values: dict[int, Array] = {}
        tapped: dict[int | str, Array] = {}

        def attend(
            layer: int,
            query: Array,
            key: Array,
            value: Array,
            /,
            *,
            window: int | None = None,
            scale: float | None = None,
        ) -> Array:
            prefix_keys, prefix_values = cache.keys[layer], cache.values[layer]
            keys[layer] = key.swapaxes(1, 2).astype(prefix_keys.dtype)
            values[layer] = value.swapaxes(1, 2).astype(prefix_values.dtype)
            return attention(
                query,
                prefix_keys,
                prefix_values,
                cache.length,
                keys[layer],
                values[layer],
                block.mask,
                block.depths,
                window=window,
                scale=scale,
            )

        def tap(layer: int, x: Array) -> None:
            if layer in taps:
                tapped[layer] = x

        positions = cache.length[:, None] + block.depths
        network = self._network(params)
        hidden = network(block.tokens, positions, attend, tap)
        tapped["final"] = hidden
        if -1 in taps and -1 not in tapped:
            tapped[-1] = network.embed(block.tokens)
        if missing := [layer for layer in taps if layer not in tapped]:
            raise ValueError(
                f"{self.module.__name__} does not show what its layers {missing} make: "
                "it must call tap(i, x) after each layer i"
            )
        features = [tapped[layer] for layer in taps] or [
            jnp.zeros((*block.tokens.shape, 0), hidden.dtype)
        ]
        layers = range(self.num_layers)
        pending = Pending(
            tuple(keys[i] for i in layers), tuple(values[i] for i in layers)
        )
        return TargetOutput(hidden, jnp.concatenate(features, axis=-1), pending)

    def commit(
        self,
        cache: Cache,
        pending: Pending,
        path: Int[Array, "B P"],
        length: Int[Array, " B"],
    ) -> Cache:
        """Append the accepted path."""
        return _cache.commit(cache, pending, path, length)

    def _network(self, params: PyTree) -> Any:
        """The module around `params`."""
        return nnx.merge(_graph(self.module, self.config), params)


@functools.cache
def _graph(module: Any, config: Any) -> nnx.GraphDef:
    """What a module is besides its parameters; made once, without any arithmetic."""
    return nnx.split(nnx.eval_shape(lambda: module(config, rngs=nnx.Rngs(0))))[0]
