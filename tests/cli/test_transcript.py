"""Text as it comes: whole characters, and never a piece of a stop string."""

import itertools

import pytest
from tiny import TOKENS, write_tiny

from specdec_jax._stops import trim
from specdec_jax.cli._transcript import Segment, Transcript
from specdec_jax.io import GGUF
from specdec_jax.text import Tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    path = write_tiny(tmp_path_factory.mktemp("tiny") / "tiny.gguf")
    return Tokenizer.from_gguf(GGUF(path))


def pushes(transcript: Transcript, tokens: list[int]) -> list[str]:
    """What each token lets be shown."""
    return [
        "".join(segment.text for segment in transcript.push([token], [False]))
        for token in tokens
    ]


def test_holds_back_what_may_begin_a_stop_string(tokenizer):
    transcript = Transcript(tokenizer, ["end", "dog"], unchecked=0)
    shown = pushes(transcript, tokenizer.encode("an e, en, do."))
    assert shown == ["a", "n", " ", "", "e,", " ", "", "", "en,", " ", "", "", "do."]
    assert transcript.finish(is_stopped=False) == []
    assert transcript.text == "an e, en, do."


def test_cuts_the_stop_string(tokenizer):
    transcript = Transcript(tokenizer, ["end", "dog"], unchecked=0)
    assert pushes(transcript, tokenizer.encode("bend")) == ["b", "", "", ""]
    assert transcript.finish(is_stopped=True) == []
    assert transcript.text == "b"


def test_an_unfinished_stop_string_is_shown_at_the_end(tokenizer):
    transcript = Transcript(tokenizer, ["end"], unchecked=0)
    pushes(transcript, tokenizer.encode("been"))
    assert transcript.text == "be"
    rest = [Segment("e", False), Segment("n", False)]
    assert transcript.finish(is_stopped=False) == rest


@pytest.mark.parametrize("sizes", [*itertools.product([1, 2, 3], repeat=3)])
def test_pieces_of_any_size(tokenizer, sizes):
    """How tokens are grouped into steps changes nothing, and what was shown stays."""
    stops = ["abab", "bb"]
    for letters in itertools.product("ab", repeat=6):
        text = "".join(letters)
        tokens = tokenizer.encode(text)
        ends = [i for i in range(7) if any(s in text[:i] for s in stops)]
        tokens = tokens[: ends[0]] if ends else tokens
        transcript = Transcript(tokenizer, stops, unchecked=0)
        shown, cuts = "", itertools.accumulate((0, *sizes))
        for start, end in itertools.pairwise((*cuts, len(tokens))):
            piece = tokens[start:end]
            for segment in transcript.push(piece, [True] * len(piece)):
                shown += segment.text
        for segment in transcript.finish(is_stopped=bool(ends)):
            shown += segment.text
        assert shown == transcript.text == trim(text[: len(tokens)], stops)


def test_stop_strings_do_not_count_at_first(tokenizer):
    """min_new_tokens: what the row may not end with is shown at once."""
    transcript = Transcript(tokenizer, ["end"], unchecked=4)
    assert pushes(transcript, tokenizer.encode("endend")) == [*"ende", "n", "d"]
    transcript = Transcript(tokenizer, ["end"], unchecked=3)
    assert pushes(transcript, tokenizer.encode("endend")) == [*"end", "", "", ""]
    assert transcript.finish(is_stopped=True) == []
    assert transcript.text == "end"


def test_a_control_token_keeps_letters_apart(tokenizer):
    """`b<|im_start|>b` is no `bb` to the program that ends rows; nor here."""
    transcript = Transcript(tokenizer, ["bb"], unchecked=0)
    b, start = TOKENS.index("b"), TOKENS.index("<|im_start|>")
    assert pushes(transcript, [b, start, b, b]) == ["", "", "", "b"]
    transcript.finish(is_stopped=True)
    assert transcript.text == "b"


def test_characters_come_whole_and_know_who_completed_them(tokenizer):
    transcript = Transcript(tokenizer, (), unchecked=0)
    tokens = tokenizer.encode("é😀")
    is_drafted = [False, True, True, True, True, False]
    assert transcript.push(tokens[:1], is_drafted[:1]) == []
    assert transcript.push(tokens[1:5], is_drafted[1:5]) == [Segment("é", True)]
    assert transcript.push(tokens[5:], is_drafted[5:]) == [Segment("😀", False)]
    assert transcript.push(tokens[2:3], [True]) == []
    assert transcript.finish(is_stopped=False) == [Segment("\ufffd", False)]
