"""`specdec-jax chat`: a conversation whose state goes from turn to turn."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence

import jax
import numpy as np
from rich.text import Text

import specdec_jax as sd
from specdec_jax._door import CHUNKS
from specdec_jax._run import State
from specdec_jax._state import slots_for
from specdec_jax._stats import Stats
from specdec_jax.cli._answer import Answer, Options, answer, warm_up
from specdec_jax.cli._arguments import Chat
from specdec_jax.cli._setup import Setup, set_up
from specdec_jax.cli._show import Screens, count, depth_table, show_legend, writer
from specdec_jax.cli._transcript import Segment
from specdec_jax.text import Tokenizer

_HELP = """/stats   how many tokens so far, how fast, how many drafts were right
/reset   forget the conversation
/exit    leave; so does the end of the input
Ctrl-C   stop an answer"""


class Conversation:
    """Messages, the tokens that they are for the model, and the state that knows them.

    A turn that fails is forgotten, and the state with it: the next reads all anew.
    """

    def __init__(self, setup: Setup, options: Options, slots: int, system: str | None):
        self._setup, self._options, self._slots = setup, options, slots
        self._system = [] if system is None else [{"role": "system", "content": system}]
        self.reset()

    def reset(self) -> None:
        """Forget everything."""
        self.messages: list[dict[str, str]] = list(self._system)
        self.tokens: list[int] = []
        self._state: State | None = None

    def say(self, text: str, show: Callable[[int, list[Segment]], None]) -> Answer:
        """A user's turn and its answer.

        Raises:
            ValueError: the turn does not fit any more.
            GenerationError: the model's numbers failed.
        """
        messages = [*self.messages, {"role": "user", "content": text}]
        tokenizer = self._setup.model.tokenizer
        prompt = next_prompt(tokenizer, messages, self.tokens)
        state, self._state = self._room_for(prompt), None
        options = self._options._replace(max_length=self._slots)
        result = answer(self._setup, prompt, options, show, state=state)
        self._state = result.generation.state
        self.tokens = [*prompt, *result.generation.tokens[0].tolist()]
        self.messages = [*messages, {"role": "assistant", "content": result.texts[0]}]
        return result

    def _room_for(self, prompt: Sequence[int]) -> State | None:
        """The state if it can be gone on from, grown where its slots do not suffice."""
        target = self._setup.model.target
        end = len(prompt) + self._setup.options.max_new_tokens
        if end > target.max_length:
            raise ValueError(
                f"the conversation and an answer are up to {end} tokens, beyond the "
                f"{target.max_length} positions that the model was made for: /reset"
            )
        if end > self._slots:
            self._slots = slots_for(target, end)
        if self._state is None or list(prompt[: len(self.tokens)]) != self.tokens:
            return None
        if self._state.tokens.shape[1] == self._slots:
            return self._state
        return sd.grow(target, self._setup.drafter, self._state, max_length=self._slots)


def next_prompt(
    tokenizer: Tokenizer, messages: Sequence[Mapping[str, str]], tokens: list[int]
) -> list[int]:
    """The conversation's ids, ready for the next answer.

    They begin with `tokens`, those of all before the newest message: encoded anew, the
    model's own words might be cut into other tokens than it wrote. Where the chat
    template makes that impossible, all is encoded anew.
    """
    whole = tokenizer.encode_chat(messages)
    if not tokens:
        return whole
    # What a message says has no control tokens, so the first one after an answer began
    # is what the template ends it with.
    answered = tokenizer.encode_chat(messages[:-2])
    before = sum(token in tokenizer.control_ids for token in answered)
    control = [i for i, token in enumerate(whole) if token in tokenizer.control_ids]
    if len(control) <= before:
        return whole
    ending = whole[control[before] :]
    return [*tokens, *ending[tokens[-1] == ending[0] :]]


def chat(command: Chat, screens: Screens) -> int:
    """Talk until the end of the input; the exit status."""
    setup = set_up(
        command.model, command.drafting, command.scheduling, command.sampling, screens
    )
    if setup.model.tokenizer.chat_template is None:
        raise ValueError("this model has no chat template: it cannot chat")
    options = Options(command.drafting.rule)
    conversation = Conversation(setup, options, command.slots, command.system)
    with screens.err.status("Compiling; next time it is quicker …"):
        room = command.slots - command.sampling.max_new_tokens
        for size in sorted({min(size, room) for size in CHUNKS if room > 0}):
            warm_up(setup, [0] * size, options._replace(max_length=command.slots))
    screens.err.print(f"{command.model.model}; /help lists commands", style="dim")
    show_legend(screens, command.drafting.drafter)
    total: Stats | None = None
    seconds = 0.0
    for line in _lines(screens):
        match line.split():
            case []:
                pass
            case ["/exit"]:
                break
            case ["/reset"]:
                conversation.reset()
            case ["/help"]:
                screens.err.print(_HELP)
            case ["/stats"]:
                _show_stats(screens, total, seconds)
            case [word] if word.startswith("/"):
                screens.err.print(Text(f"there is no {word}; /help lists commands"))
            case _:
                result = _turn(conversation, line, screens)
                if result is not None:
                    stats = result.generation.stats
                    total = (
                        stats if total is None else jax.tree.map(np.add, total, stats)
                    )
                    seconds += result.decode_seconds
    return 0


def _lines(screens: Screens) -> Iterator[str]:
    """What the user types, until the input ends."""
    if sys.stdin.isatty():
        import readline  # noqa: F401  gives `input` editing and history

    while True:
        try:
            if sys.stdin.isatty():
                yield input("> ")
            elif line := sys.stdin.readline():
                yield line.rstrip("\n")
            else:
                return
        except EOFError:
            screens.out.out()
            return
        except KeyboardInterrupt:
            screens.err.print("\n/exit leaves")


def _turn(conversation: Conversation, text: str, screens: Screens) -> Answer | None:
    """Answer and say how fast; an error is said, and the conversation goes on."""
    try:
        with writer(screens) as write:
            result = conversation.say(text, lambda row, segments: write(segments))
    except ValueError as error:
        screens.err.print(Text(f"error: {error}", "red"), soft_wrap=True)
        return None
    except (KeyboardInterrupt, sd.GenerationError) as error:
        screens.out.out()  # after what was shown
        why = str(error) or "interrupted; this turn is forgotten"
        screens.err.print(Text(f"error: {why}", "red"), soft_wrap=True)
        return None
    screens.out.file.write("\n")
    screens.out.file.flush()
    generation = result.generation
    new = len(generation.tokens[0])
    notes = [
        count(new, "token"),
        f"{new / result.decode_seconds:.1f} tokens/s",
        f"τ {generation.stats.acceptance_length():.2f}",
    ]
    if (why := generation.reasons[0]) in ("", "length", "full"):
        notes.append("stopped" if why == "" else "cut off: --max-new-tokens")
    screens.err.print(Text(" · ".join(notes), "dim"))
    return result


def _show_stats(screens: Screens, total: Stats | None, seconds: float) -> None:
    if total is None:
        screens.err.print("no answer yet")
        return
    steps = int(np.sum(total.steps))
    new = round(total.acceptance_length() * steps)
    screens.err.print(
        f"{count(new, 'token')} in {seconds:.2f} s: {new / seconds:.1f} tokens/s; "
        f"τ {total.acceptance_length():.2f} in {count(steps, 'verification')}"
    )
    screens.err.print(depth_table(total))
