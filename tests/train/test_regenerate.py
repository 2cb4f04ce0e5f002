"""The target's answers, written as a corpus."""

import jax
import numpy as np
import pytest
import small

import specdec_jax as sd
from specdec_jax import train

pytestmark = pytest.mark.usefixtures("quick_compile")

PROMPTS = [
    train.Asked((1, 2, 3), "a"),
    train.Asked((4,), "b"),
    train.Asked((5, 6), "b"),
    train.Asked((7, 8, 9, 10), "a"),
    train.Asked((11, 12), "a"),
]


def regenerate(folder, prompts=PROMPTS, weights=small.WEIGHTS, **more):
    options = {"batch": 2, "shard": 3, "max_new_tokens": 7, "temperatures": (0.0, 0.9)}
    return train.regenerate(
        small.TARGET,
        sd.Params(weights),
        sd.NGram(),
        prompts,
        folder,
        **(options | more),
    )


def test_answers_are_the_targets_own(tmp_path):
    """Each prompt's, at its temperature, with its seed: whatever batch it is in."""
    files = regenerate(tmp_path / "two")
    corpus = train.load_corpus(files, vocab_size=61)
    assert corpus.prompts() == [list(x.ids) for x in PROMPTS]
    expected = sd.generate(
        small.TARGET,
        sd.Params(small.WEIGHTS),
        sd.Plain(),
        [list(x.ids) for x in PROMPTS[::2]],
        sampling=sd.Sampling(max_new_tokens=7),
    ).tokens
    for number, answer in zip((0, 2, 4), expected, strict=True):
        start = corpus.starts[number] + corpus.prompt_lengths[number]
        assert corpus.tokens[start : start + 7].tolist() == answer.tolist()
    alone = train.load_corpus(regenerate(tmp_path / "one", batch=1), vocab_size=61)
    assert alone.tokens.tolist() == corpus.tokens.tolist()
    with np.load(files[1]) as file:
        assert file["temp"].tolist() == np.array([0.9, 0.0], np.float32).tolist()
        assert file["src"].tolist() == ["a", "a"]


def test_it_goes_on(tmp_path):
    """What is there is kept, and told; what is missing is made again, the same."""
    files = regenerate(tmp_path)
    before = files[1].read_bytes()
    kept = files[0].stat().st_mtime_ns
    files[1].unlink()
    told = []
    regenerate(tmp_path, report=told.append)
    assert files[0].stat().st_mtime_ns == kept
    with np.load(files[1]) as now:
        files[1].write_bytes(before)
        with np.load(files[1]) as then:
            assert all((now[name] == then[name]).all() for name in now.files)
    assert [x.done for x in told] == [5] and told[0].total == 5


def test_other_answers_need_another_folder(tmp_path):
    regenerate(tmp_path)
    with pytest.raises(ValueError, match="made with other temperatures"):
        regenerate(tmp_path, temperatures=(1.0,))
    with pytest.raises(ValueError, match="made with other prompts"):
        regenerate(tmp_path, PROMPTS[:4])
    other = jax.tree.map(lambda x: -x, small.WEIGHTS)
    with pytest.raises(ValueError, match="made with other target"):
        regenerate(tmp_path, weights=other)
