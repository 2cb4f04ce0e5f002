"""EAGLE for SmolLM2-135M-Instruct, with the trees of EAGLE-2 as well; README.md beside
says what came of it.
"""

from specdec_jax import Eagle, GrownTree
from specdec_jax.nn import EagleConfig
from specdec_jax.train import (
    Data,
    Evaluation,
    FeatureRegression,
    Optimizer,
    Recipe,
)

recipe = Recipe(
    target="smollm2-135m-instruct",
    drafter=Eagle(
        EagleConfig(
            width=576,
            num_heads=9,
            num_kv_heads=3,
            head_width=64,
            mlp_width=1536,
        ),
        tree=GrownTree(num_nodes=6, depth=5, width=1),  # a chain
    ),
    objective=FeatureRegression(chunk=40),
    data=Data(length=400, rows=5, held_out=64),
    optimizer=Optimizer(peak=3e-3, warmup=100),
    evaluation=Evaluation(every=250, prompts=16, new_tokens=64),
    steps=1500,
    dtype="bfloat16",
)
