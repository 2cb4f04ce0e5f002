"""Rows of a table of tokens."""

import jax
from jaxtyping import Array, Float, Int


def look_up(
    table: Float[Array, "V D"], ids: Int[Array, "..."]
) -> Float[Array, "... D"]:
    """The row of each id.

    Left to itself, a CPU makes a float32 copy of a bfloat16 table that it reads in a
    loop, once a call. Tied to the ids, which change with every step, the table cannot
    be converted before the loop, and only the rows that are read are.
    """

    def tied(table: Array, ids: Array) -> Array:
        table, ids = jax.lax.optimization_barrier((table, ids))
        return table[ids]

    def as_it_is(table: Array, ids: Array) -> Array:
        return table[ids]

    return jax.lax.platform_dependent(table, ids, cpu=tied, default=as_it_is)
