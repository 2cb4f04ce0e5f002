"""Corpora: what is an answer, and which files are none."""

import numpy as np
import pytest
import small

from specdec_jax import train
from specdec_jax.train import _batches
from specdec_jax.train._batches import Batches, pack
from specdec_jax.train._start import most_frequent


def write(path, **changes):
    arrays = {
        "tokens": np.arange(9, dtype=np.uint16),
        "lens": np.array([4, 5], np.int32),
        "plen": np.array([1, 3], np.int32),
    }
    np.savez(path, **{k: v for k, v in (arrays | changes).items() if v is not None})
    return str(path)


def test_answers(tmp_path):
    corpus = train.load_corpus([write(tmp_path / "a.npz")] * 2, vocab_size=9)
    assert len(corpus) == 4
    assert corpus.answers().tolist() == [1, 2, 3, 7, 8] * 2
    assert corpus.prompts() == [[0], [4, 5, 6]] * 2
    assert corpus.part(1, 3).tokens.tolist() == [4, 5, 6, 7, 8, 0, 1, 2, 3]


def test_written_and_read(tmp_path):
    corpus = small.corpus()
    train.save_corpus(tmp_path / "c.npz", corpus, temp=np.zeros(len(corpus)))
    again = train.load_corpus([tmp_path / "c.npz"], vocab_size=61)
    assert again.digest() == corpus.digest()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"plen": None}, "has no array plen"),
        ({"lens": np.array([4, 4])}, "contradicts itself: 9 tokens, lens for 8"),
        ({"plen": np.array([5, 3])}, "shorter than its prompt"),
        ({"plen": np.array([4, 5])}, "no token of the corpus is an answer"),
        ({"tokens": np.arange(9) + 5}, "token 13, but the target's ids are below 9"),
        ({"tokens": np.zeros(9)}, "lists of whole numbers"),
    ],
)
def test_bad_files(tmp_path, changes, said):
    with pytest.raises(ValueError, match=said):
        train.load_corpus([write(tmp_path / "a.npz", **changes)], vocab_size=9)


def test_cut_short(tmp_path):
    path = tmp_path / "a.npz"
    write(path)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ValueError, match="cut short"):
        train.load_corpus([path], vocab_size=9)
    with pytest.raises(ValueError, match="there is no corpus"):
        train.load_corpus([], vocab_size=9)


def test_batches_go_on_from_their_state():
    """And every epoch has every text once, whole, with none beside it mixed in."""
    corpus = small.corpus()
    batches = Batches(corpus, rows=2, length=64, seed=3)
    for _ in range(4):
        next(batches)
    state = batches.state
    expected = [next(batches) for _ in range(3)]
    again = Batches(corpus, rows=2, length=64, seed=3)
    again.state = state
    for want in expected:
        for a, b in zip(want, next(again), strict=True):
            np.testing.assert_array_equal(a, b)
    seen: set[int] = set()
    fresh = Batches(corpus, rows=2, length=64, seed=3)
    while len(seen) < len(corpus):
        rows = next(fresh)
        said = np.where(rows.texts > 0, corpus.tokens[rows.at], 0)
        assert (rows.tokens == said).all()
        for texts, at, positions in zip(
            rows.texts, rows.at, rows.positions, strict=True
        ):
            for text in set(texts.tolist()) - {0}:
                here = at[texts == text]
                number = int(np.flatnonzero(corpus.starts == here[0])[0])
                assert len(here) == corpus.lengths[number]
                assert (np.diff(here) == 1).all()
                assert positions[texts == text].tolist() == list(range(len(here)))
                seen.add(number)


def test_every_text_once():
    corpus = small.corpus()
    at, texts, positions = pack(corpus, length=64, texts=len(corpus))
    assert sorted(at[texts > 0].tolist()) == list(range(len(corpus.tokens)))
    assert (positions[texts > 0] >= 0).all()


def test_more_texts_only_add_rows(monkeypatch):
    """So that what is cached of a part is the beginning of what is cached of all."""
    monkeypatch.setattr(_batches, "_GROUP", 4)
    corpus = small.corpus()
    whole = pack(corpus, length=64, texts=len(corpus))
    for texts in (1, 4, 5, len(corpus) - 1):
        part = pack(corpus, length=64, texts=texts)
        count = len(part[0])
        assert all((a == b[:count]).all() for a, b in zip(part, whole, strict=True))
        needed = int(corpus.lengths[:texts].sum())
        assert set(range(needed)) <= set(part[0][part[1] > 0].tolist())


def test_the_most_frequent_tokens():
    tokens = np.array([5, 5, 5, 2, 2, 9, 0, 0])
    assert most_frequent(tokens, 3, 11).tolist() == [0, 2, 5]
    assert most_frequent(tokens, 6, 11).tolist() == [0, 1, 2, 3, 5, 9]
