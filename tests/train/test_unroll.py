"""What training sees is what decoding does: every depth, every row."""

import jax.numpy as jnp
import numpy as np
import pytest
from test_eagle import DRAFTERS, TARGET, logits_along, params_of, state_after

from specdec_jax._lesson import Lesson
from specdec_jax.nn import Rows, next_states
from specdec_jax.train._features import observe

pytestmark = pytest.mark.usefixtures("quick_compile")

FIRST = [5, 17, 3, 3, 40, 22, 17, 3, 9, 9]
SECOND = [8, 1, 30, 2, 7, 60, 11]


def lesson_of(drafter, params) -> Lesson:
    """Two texts in a row of 20, three places of padding."""
    tokens = [*FIRST, *SECOND, 0, 0, 0]
    texts = [1] * len(FIRST) + [2] * len(SECOND) + [0] * 3
    positions = [*range(len(FIRST)), *range(len(SECOND)), 0, 0, 0]
    ids, at, which = (jnp.array([x], jnp.int32) for x in (tokens, positions, texts))
    seen = observe(TARGET, params.target, ids, at, which, taps=tuple(drafter.taps))
    is_answer = jnp.ones((1, len(tokens)), jnp.bool_)
    return Lesson(ids, at, which, is_answer, seen.features, seen.hidden)


@pytest.mark.parametrize("name", ["grown", "eagle 3"])
def test_a_depth_of_training_is_a_depth_of_decoding(name):
    """With the text's tokens forced on it, a draft at depth i comes from the very state
    that depth i of training has; texts of one row know nothing of each other.
    """
    drafter = DRAFTERS[name]
    params = params_of(drafter)
    lesson = lesson_of(drafter, params)
    head, known = drafter.head(params.drafter), drafter.known(params.drafter)
    states, rows, depths = head.fuse(lesson.features), Rows(), []
    for depth in range(4):
        ahead = 1 + depth
        tokens = jnp.pad(lesson.tokens[:, ahead:], ((0, 0), (0, ahead)))
        embedded = TARGET.embed(params.target, tokens)
        states, rows = next_states(
            head, embedded, states, lesson.positions, lesson.sees(), rows
        )
        depths.append(np.asarray(drafter.logits(TARGET, params, states))[0])
    for text, start in ((FIRST, 0), (SECOND, len(FIRST))):
        for row in (0, 2, len(text) - 5):
            state = state_after(drafter, params, text[: row + 1], text[row + 1])
            for depth in range(4):
                forced = text[row + 2 : row + 2 + depth]
                expected = logits_along(drafter, params, state, forced)
                if known is not None:
                    expected = expected[np.asarray(known)]
                found = depths[depth][start + row]
                np.testing.assert_allclose(found, expected, atol=2e-5)


def test_labels_are_answers_of_the_same_text():
    """The state at u, from a row `back` before, foretells the token after u."""
    drafter = DRAFTERS["grown"]
    lesson = lesson_of(drafter, params_of(drafter))
    is_answer = jnp.zeros_like(lesson.is_answer).at[0, jnp.array([0, 3, 9, 10, 12])]
    lesson = lesson._replace(is_answer=is_answer.set(True))
    # 0 and 10 begin their texts: nothing of them comes before. Token 12 is the third
    # of its text: its first row at depth 0, none further down.
    assert np.flatnonzero(lesson.labels(back=1)[0]).tolist() == [2, 8, 11]
    assert np.flatnonzero(lesson.labels(back=2)[0]).tolist() == [2, 8]
    assert np.flatnonzero(lesson.labels(back=3)[0]).tolist() == [8]


def test_observed_as_if_alone():
    drafter = DRAFTERS["eagle 3"]
    params = params_of(drafter)
    lesson = lesson_of(drafter, params)
    alone = jnp.array([SECOND], jnp.int32)
    at = jnp.arange(len(SECOND), dtype=jnp.int32)[None]
    seen = observe(
        TARGET, params.target, alone, at, jnp.ones_like(at), taps=tuple(drafter.taps)
    )
    here = slice(len(FIRST), len(FIRST) + len(SECOND))
    np.testing.assert_allclose(
        lesson.features[:, here], seen.features, rtol=1e-3, atol=1e-3
    )
    np.testing.assert_allclose(lesson.hidden[:, here], seen.hidden, atol=1e-3)
