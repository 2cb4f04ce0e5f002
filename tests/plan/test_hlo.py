"""Bytes, arithmetic, exchanges, copies: of a program that can be counted by hand."""

import dataclasses

import pytest
import small_hlo as hlo

from specdec_jax import plan
from specdec_jax.plan._arithmetic import flops
from specdec_jax.plan._copies import cache_copies
from specdec_jax.plan._hlo import Instruction, decoding_loop, parse
from specdec_jax.plan._report import _by_width
from specdec_jax.plan._traffic import (
    Collective,
    Traffic,
    choice,
    collectives,
    step_flops,
    step_traffic,
)


@pytest.fixture(scope="module")
def module():
    return parse(hlo.TEXT)


def test_the_loop_that_decodes(module):
    assert module.entry == "%main"
    assert decoding_loop(module) == "%decode"
    with pytest.raises(ValueError, match="0 loops of the program verify drafts"):
        decoding_loop(parse(hlo.TEXT.replace("/verify/", "/check/")))
    with pytest.raises(ValueError, match="no text of an XLA program"):
        parse("HloModule empty\n")


def test_traffic(module):
    """Weights read twice, a cache that is only appended to, and the rest."""
    found = step_traffic(module, "%decode")
    assert found == Traffic(hlo.WEIGHTS, 0, hlo.OTHER, hlo.WRITTEN)
    assert found.total == hlo.WEIGHTS + hlo.OTHER + hlo.WRITTEN


def test_an_update_that_is_not_in_place():
    """A cache of which the result lies in VMEM is read whole."""
    text = hlo.TEXT.replace(
        "%cache.2 = bf16[32,8]{1,0:T(8,128)(2,1)}",
        "%cache.2 = bf16[32,8]{1,0:T(8,128)(2,1)S(1)}",
    )
    found = step_traffic(parse(text), "%decode")
    assert (found.cache, found.written) == (32 * 8 * 2, hlo.WRITTEN - hlo.NEW)


def test_arithmetic_and_exchanges(module):
    assert step_flops(module, "%decode") == hlo.FLOPS
    assert collectives(module, "%decode") == {"all-reduce": Collective(1, hlo.PRODUCT)}


def test_a_step_with_each_width(module):
    """Of a choice, the branch's own work in place of the dearest."""
    assert choice(module, "%decode", 2) == ["%narrow", "%wide"]
    with pytest.raises(ValueError, match="no choice among 3 branches"):
        choice(module, "%decode", 3)
    chip = dataclasses.replace(plan.CHIPS["v5e"], flops=1.0, bandwidth=1e30)
    narrow, wide = _by_width(module, "%decode", chip, (1, 8)).values()
    assert wide == hlo.FLOPS
    assert wide - narrow == step_flops(module, "%wide") == 2 * 4 * 16 * 8


def test_a_loop_counts_as_often_as_it_runs():
    nested = hlo.TEXT.replace(
        "body=%decode",
        'body=%decode, backend_config={"known_trip_count":{"n":"3"}}',
    )
    once, thrice = (step_traffic(parse(text), "%main") for text in (hlo.TEXT, nested))
    assert thrice.weights == 3 * once.weights == 3 * hlo.WEIGHTS


@pytest.mark.parametrize(
    ("left", "right", "out", "attributes", "expected"),
    [
        # Eight products of 4 × 16 by 16 × 32: the batch is stretched over space.
        (
            (8, 4, 16), (8, 16, 32), (8, 4, 32),
            "window={size=8 stride=7 lhs_dilate=8}, dim_labels=0bf_0io->0bf",
            2 * 8 * 4 * 16 * 32,
        ),
        ((4, 16), (16, 32), (4, 32), "dim_labels=bf_io->bf", 2 * 4 * 16 * 32),
        # A filter of three over five places, padded: 13 of 15 meet a number.
        (
            (1, 5, 2), (3, 2, 7), (1, 5, 7),
            "window={size=3 pad=1_1}, dim_labels=b0f_0io->b0f",
            2 * 13 * 2 * 7,
        ),
    ],
)  # fmt: skip
def test_convolutions(left, right, out, attributes, expected):
    def array(name, dims, operation, operands=()):
        shape = f"f32[{','.join(map(str, dims))}]"
        return Instruction(name, shape, operation, operands, "", attributes, False)

    scope = {
        "%a": array("%a", left, "parameter"),
        "%b": array("%b", right, "parameter"),
        "%c": array("%c", out, "convolution", ("%a", "%b")),
    }
    found = flops(
        parse(hlo.TEXT)._replace(computations={"%f": scope}), "%f", scope["%c"]
    )
    assert found == expected


def test_copies(module):
    """The prompt's loop copies the cache's 256 numbers; the append is in place, gather
    and product write fewer.
    """
    copies = cache_copies(module, 32 * 8)
    assert [x.name for x in copies.moved] == ["%copy.1"]
    assert not copies.weights and not copies.written_back and not copies.computed
    assert not cache_copies(module, 32 * 8 + 1).moved
    smaller = cache_copies(module, 4 * 16)
    assert [x.name for x in smaller.computed] == ["%product.1"]


def test_a_copy_of_weights_is_told_apart():
    text = hlo.TEXT.replace("tuple(%e.0)", "tuple(%e.2)")
    copies = cache_copies(parse(text), 16 * 8)
    assert [x.name for x in copies.weights] == ["%copy.1"] and not copies.moved


@pytest.mark.parametrize("made", ["%sum.1", "%product.1", "%chosen.1"])
def test_what_was_computed_is_no_cache(made):
    """A copy of a product, or of a sum over chips, moves nothing that was there before;
    one of what a branch gave may.
    """
    copy = f"%moved.1 = f32[4,16]{{0,1:T(8,128)}} copy({made})\n  ROOT %d.1"
    copies = cache_copies(parse(hlo.TEXT.replace("ROOT %d.1", copy)), 4 * 16)
    names = [x.name for x in (copies.moved, copies.computed)[made != "%chosen.1"]]
    assert "%moved.1" in names


def test_a_commit_by_way_of_vmem():
    """It goes back as it is; in another layout it is a copy after all."""
    text = hlo.TEXT.replace(
        "%i.1 = bf16[32,8]{1,0:T(8,128)(2,1)}",
        "%i.1 = bf16[32,8]{1,0:T(8,128)(2,1)S(1)}",
    )
    assert len(cache_copies(parse(text), 32 * 8).moved) == 1
    same = text.replace(
        "%copy.1 = bf16[32,8]{0,1:T(8,128)(2,1)}",
        "%copy.1 = bf16[32,8]{1,0:T(8,128)(2,1)}",
    )
    copies = cache_copies(parse(same), 32 * 8)
    assert not copies.moved and len(copies.written_back) == 1
