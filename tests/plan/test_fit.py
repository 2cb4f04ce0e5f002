"""What does not go together is said before anything compiles."""

import pytest

import specdec_jax as sd
from specdec_jax import plan, targets

LLAMA, LARGE = "llama-3.1-8b", "llama-3.3-70b"


def test_topologies():
    assert plan.topology("v5e:2x4").chips == 8
    assert plan.topology("v5p:4x4x4").chips == 64
    with pytest.raises(ValueError, match="no topology .* 'v4:2x2': .* v5e, v5p, v6e"):
        plan.topology("v4:2x2")
    with pytest.raises(ValueError, match="v6e comes in slices of 1x1, 2x2, 2x4"):
        plan.topology("v6e:3x3")


def test_roofline():
    """The slower of arithmetic and traffic."""
    chip = plan.CHIPS["v5e"]
    assert chip.seconds(197e12, 0) == 1 == chip.seconds(1, 819e9)
    assert chip.seconds(197e12, 2 * 819e9) == 2


@pytest.mark.parametrize(
    ("model", "topology", "batch", "expected"),
    [
        (LLAMA, "v5e:2x2", 8, {"data": 1, "model": 4}),
        (LLAMA, "v5e:4x4", 8, {"data": 2, "model": 8}),
        (LLAMA, "v5e:16x16", 64, {"data": 32, "model": 8}),
        ("smollm2-135m", "v5e:1x1", 1, {"data": 1, "model": 1}),
        # 17.6 GB of weights on one of eight chips are too many, on one of 16 not.
        (LARGE, "v5e:4x4", 2, {"data": 1, "model": 16}),
    ],
)
def test_chosen_meshes(model, topology, batch, expected):
    target, there = targets.preset(model), plan.topology(topology)
    found = plan.choose_mesh(target, there, batch=batch, slots=4096)
    assert found == expected
    plan.check_mesh(target, there, found, batch=batch)
    plan.check_memory(target, there, found, batch=batch, slots=4096)


@pytest.mark.parametrize(
    ("model", "mesh", "batch", "message"),
    [
        (LLAMA, {"model": 8}, 8, "a mesh has the axes data and model"),
        (LLAMA, {"data": 1, "model": 4}, 8, "a mesh of 4 chips, but v5e:2x4 has 8"),
        (LLAMA, {"data": 1, "model": 4}, 8, "data=1,model=8 or data=2,model=4"),
        (LLAMA, {"data": 8, "model": 1}, 9, "does not divide a batch of 9: .* of 16"),
        ("smollm2-135m", {"data": 1, "model": 8}, 8, "9 query heads.* may be 1, 3"),
    ],
)
def test_meshes_that_do_not_fit(model, mesh, batch, message):
    with pytest.raises(ValueError, match=message):
        plan.check_mesh(
            targets.preset(model), plan.topology("v5e:2x4"), mesh, batch=batch
        )


def test_too_little_memory():
    """With what there would be room for: fewer slots, fewer rows, a larger slice."""
    there, mesh = plan.topology("v5e:2x2"), {"data": 1, "model": 4}
    target = targets.preset(LLAMA)
    with pytest.raises(ValueError, match=r"16 GB, .* 4\.0 GB .* 17\.2 GB") as error:
        plan.check_memory(target, there, mesh, batch=16, slots=32768)
    said = str(error.value)
    assert "22858 slots or a batch of 11 or v5e:2x4 with data=1,model=8" in said
    plan.check_memory(target, there, mesh, batch=16, slots=22858)
    plan.check_memory(target, there, mesh, batch=11, slots=32768)
    with pytest.raises(ValueError, match="would fit"):
        plan.check_memory(target, there, mesh, batch=12, slots=32768)
    with pytest.raises(ValueError, match="16 GB, .* v5e:2x2 with data=1,model=4"):
        one = {"data": 1, "model": 1}
        plan.check_memory(target, plan.topology("v5e:1x1"), one, batch=1, slots=64)


def test_a_head_takes_its_room():
    """What just holds a model does not hold its head too."""
    there, mesh = plan.topology("v5e:2x2"), {"data": 1, "model": 4}
    target = targets.preset(LLAMA)
    head = plan.eagle3(target, sd.GrownTree(num_nodes=60, depth=8, width=10))
    plan.check_memory(target, there, mesh, batch=11, slots=32768)
    with pytest.raises(ValueError, match=r"4\.2 GB of weights"):
        plan.check_memory(target, there, mesh, batch=11, slots=32768, drafter=head)
