"""DFlash for SmolLM2-135M-Instruct; README.md beside says what came of it."""

from specdec_jax import DFlash
from specdec_jax.nn import InjectedConfig
from specdec_jax.train import BlockFilling, Data, Evaluation, Optimizer, Recipe

recipe = Recipe(
    target="smollm2-135m-instruct",
    drafter=DFlash(
        InjectedConfig(
            width=576,
            num_heads=9,
            num_kv_heads=3,
            head_width=64,
            mlp_width=1536,
            num_layers=2,
            feature_width=3 * 576,
            block_size=8,
            mask_id=16,  # <empty_output>, which no text here has
        ),
        taps=(1, 14, 26),
    ),
    objective=BlockFilling(blocks=64, chunk=8),
    data=Data(length=400, rows=5, held_out=64),
    optimizer=Optimizer(peak=3e-3, warmup=100),
    evaluation=Evaluation(every=250, prompts=16, new_tokens=64),
    steps=2000,
    dtype="bfloat16",
)
