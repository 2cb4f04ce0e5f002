"""EAGLE-3 for SmolLM2-135M-Instruct; README.md beside says what came of it."""

from specdec_jax import Eagle3, GrownTree
from specdec_jax.nn import Eagle3Config
from specdec_jax.train import (
    Data,
    Evaluation,
    Optimizer,
    Recipe,
    TrainingTimeTest,
)

recipe = Recipe(
    target="smollm2-135m-instruct",
    drafter=Eagle3(
        Eagle3Config(
            width=576,
            num_heads=9,
            num_kv_heads=3,
            head_width=64,
            mlp_width=1536,
            feature_width=3 * 576,
            draft_vocab_size=8192,
        ),
        tree=GrownTree(num_nodes=6, depth=5, width=1),  # a chain
        taps=(1, 14, 26),
    ),
    objective=TrainingTimeTest(steps=3, chunk=80),
    data=Data(length=400, rows=5, held_out=64),
    optimizer=Optimizer(peak=3e-3, warmup=100),
    evaluation=Evaluation(every=250, prompts=16, new_tokens=64),
    steps=2000,
    dtype="bfloat16",
)
