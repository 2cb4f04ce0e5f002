"""One streamed generation: its text as it comes, and its times."""

import contextlib
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import specdec_jax as sd
from specdec_jax._door import CHUNKS, Logprobs
from specdec_jax._generate import Stream
from specdec_jax._run import State
from specdec_jax._types import Rule
from specdec_jax.cli._setup import Setup
from specdec_jax.cli._transcript import Segment, Transcript


class Options(NamedTuple):
    """What `sd.stream` takes besides model, drafter, sampling and prompt."""

    rule: Rule
    max_length: int | None = None
    samples: int = 1
    logprobs: Logprobs = None


class Answer(NamedTuple):
    """A generation, its texts, and the seconds it took."""

    generation: sd.Generation
    texts: list[str]
    prompt_seconds: float
    decode_seconds: float
    is_interrupted: bool


def warm_up(setup: Setup, prompt: Sequence[int], options: Options) -> float:
    """Compile what `answer` will run, and run one step of it; the seconds it took."""
    start = time.perf_counter()
    beginning = prompt[: CHUNKS[-1] + 1]  # a longer prompt takes the same programs
    next(_stream(setup, beginning, options, state=None))
    return time.perf_counter() - start


def answer(
    setup: Setup,
    prompt: Sequence[int],
    options: Options,
    show: Callable[[int, list[Segment]], None],
    *,
    state: State | None = None,
) -> Answer:
    """Stream a generation to `show(row, segments)`. Ctrl-C ends it between two steps.

    Raises:
        ValueError: as `sd.stream`.
        GenerationError: the model's numbers failed; what came before was shown.
    """
    with _interruptible() as is_interrupted:
        start = time.perf_counter()
        stream = _stream(setup, prompt, options, state=state)
        prompt_seconds = time.perf_counter() - start
        transcripts = [
            Transcript(
                setup.model.tokenizer,
                setup.options.stop,
                unchecked=setup.options.min_new_tokens,
            )
            for _ in range(options.samples)
        ]
        start = time.perf_counter()
        for piece in stream:
            for row, transcript in enumerate(transcripts):
                tokens, is_drafted = piece.tokens[row], piece.is_drafted[row]
                show(row, transcript.push(tokens.tolist(), is_drafted.tolist()))
            if is_interrupted():
                break
        decode_seconds = time.perf_counter() - start
        generation = stream.generation
        reasons = generation.reasons
        for row, transcript in enumerate(transcripts):
            show(row, transcript.finish(is_stopped=reasons[row] == "stop_string"))
        texts = [transcript.text for transcript in transcripts]
        return Answer(
            generation, texts, prompt_seconds, decode_seconds, is_interrupted()
        )


def _stream(
    setup: Setup, prompt: Sequence[int], options: Options, *, state: State | None
) -> Stream:
    return sd.stream(
        setup.model.target,
        setup.params,
        setup.drafter,
        [prompt],
        sampling=setup.sampling,
        rule=options.rule,
        max_length=options.max_length if state is None else None,
        samples=options.samples,
        logprobs=options.logprobs,
        state=state,
        schedule=setup.schedule,
    )


@contextlib.contextmanager
def _interruptible() -> Iterator[Callable[[], bool]]:
    """Inside, the first Ctrl-C only makes the yielded function true: an exception in
    the midst of a step would lose the state. The second interrupts.
    """
    pressed = []

    def press(number: int, frame: object) -> None:
        pressed.append(number)
        signal.signal(signal.SIGINT, before)

    before = signal.signal(signal.SIGINT, press)
    try:
        yield lambda: bool(pressed)
    finally:
        signal.signal(signal.SIGINT, before)
