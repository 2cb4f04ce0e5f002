"""`specdec-jax export`: the best drafter of a run, as a folder for use."""

import tempfile
from pathlib import Path

import jax.numpy as jnp

import specdec_jax as sd
from specdec_jax import train as training
from specdec_jax.cli._arguments import Export
from specdec_jax.cli._options import ModelOptions
from specdec_jax.cli._setup import load
from specdec_jax.cli._show import Screens
from specdec_jax.cli._train import read_recipe
from specdec_jax.formats import Format

_FILES = ("config.json", "model.safetensors")


def export(command: Export, screens: Screens) -> int:
    """Write it, beside whatever else is in the folder; status 0."""
    there = [name for name in _FILES if (command.output / name).exists()]
    if there:
        raise ValueError(f"{command.output} holds {' and '.join(there)} already")
    command.output.parent.mkdir(parents=True, exist_ok=True)
    recipe = read_recipe(command.file)
    run = command.run or Path("runs") / command.file.resolve().parent.name
    model = load(ModelOptions(recipe.target, recipe.dtype), screens)
    fitted = training.load_best(recipe, model.target, run)
    format = command.format or _usual(fitted.drafter)
    with tempfile.TemporaryDirectory(dir=command.output.parent) as folder:
        sd.save_drafter(
            Path(folder) / "head",
            fitted.drafter,
            fitted.params,
            model.target,
            format=format,
            dtype=jnp.dtype(command.dtype),
            verifier=recipe.target if format == "speculators" else None,
            tokenizer_digest=model.tokenizer.digest(),
        )
        command.output.mkdir(exist_ok=True)
        for file in (Path(folder) / "head").iterdir():
            file.replace(command.output / file.name)
    screens.out.print(
        f"τ {fitted.tau:.3f} at step {fitted.step}: {command.output}", soft_wrap=True
    )
    return 0


def _usual(drafter: object) -> Format:
    """The format of those who invented it."""
    match drafter:
        case sd.Eagle3():
            return "eagle3"
        case sd.DFlash():
            return "zlab"
        case sd.DSpark():
            return "deepspec"
    return "eagle"
