"""`specdec-jax regenerate`: the target's answers to prompts, as a corpus."""

import contextlib
import json
from collections.abc import Iterator

from rich.progress import Progress, TaskID

import specdec_jax as sd
from specdec_jax import train as training
from specdec_jax.bench import read_rows
from specdec_jax.cli._arguments import Regenerate
from specdec_jax.cli._prompts import encoder
from specdec_jax.cli._setup import load
from specdec_jax.cli._show import Screens, count, progress_bar
from specdec_jax.train import Answered, Asked

_OWN = "own"  # where a question that the model wrote is from
_ASKING = 1.0  # temperature
_LONGEST = 128  # tokens of such a question


def regenerate(command: Regenerate, screens: Screens) -> int:
    """Answer what is not answered yet; status 0."""
    if command.prompts is None and command.own == 0:
        raise ValueError("name --prompts, a jsonl file, or let the model ask: --own N")
    if command.own < 0 or command.batch < 1 or not command.temperatures:
        raise ValueError(
            "--own is 0 or more, --batch at least 1, --temperatures not empty"
        )
    rows = [] if command.prompts is None else read_rows(command.prompts)
    model = load(command.model, screens)
    encode = encoder(model.tokenizer)
    asked = [Asked(tuple(encode(row.text)), row.task) for row in rows]
    if command.own:
        questions = _questions(command, model, screens)
        asked += [Asked(tuple(encode(text)), _OWN) for text in questions]
    longest = model.target.max_length - command.max_new_tokens
    fitting = [x for x in asked if len(x.ids) <= longest]
    if not fitting:
        raise ValueError(
            f"every prompt is longer than {longest} tokens, the most with "
            f"--max-new-tokens {command.max_new_tokens}"
        )
    if len(fitting) < len(asked):
        left = len(asked) - len(fitting)
        screens.err.print(f"{count(left, 'prompt')} left out: too long")
    drafter = sd.NGram() if command.drafter == "ngram" else sd.Plain()
    with _progress(screens, "answers") as (progress, bar):

        def report(done: Answered) -> None:
            progress.update(
                bar,
                total=done.total,
                completed=done.done,
                description=f"answers, {done.tokens_per_second:.0f} tokens/s",
            )

        files = training.regenerate(
            model.target,
            sd.Params(model.params),
            drafter,
            fitting,
            command.output,
            temperatures=command.temperatures,
            max_new_tokens=command.max_new_tokens,
            stop_ids=model.tokenizer.stop_ids,
            batch=command.batch,
            shard=command.shard,
            seed=command.seed,
            report=report,
        )
    corpus = training.load_corpus(files, vocab_size=model.target.vocab_size)
    screens.out.print(
        f"{count(len(corpus), 'text')}, {count(corpus.num_answer_tokens, 'token')} of "
        f"answers, in {count(len(files), 'file')} of {command.output}",
        soft_wrap=True,
    )
    return 0


def _questions(
    command: Regenerate, model: sd.LanguageModel, screens: Screens
) -> list[str]:
    """What the model says where a user would speak (Xu et al. 2024, arXiv 2406.08464),
    kept in a file: the same ones when the command goes on.
    """
    file = command.output / "questions.json"
    if file.exists():
        questions = json.loads(file.read_text("utf-8"))
        if len(questions) != command.own:
            raise ValueError(
                f"{file} holds {len(questions)} questions, not --own {command.own}"
            )
        return questions
    if model.tokenizer.chat_template is None:
        raise ValueError("--own needs a chat template, and this model has none")
    first, second = map(encoder(model.tokenizer), ("0", "zebra"))
    prefix = first[: next(i for i in range(len(first)) if first[i] != second[i])]
    questions = []
    with _progress(screens, "questions") as (progress, bar):
        progress.update(bar, total=command.own)
        for number in range(0, command.own, command.batch):
            generation = sd.generate(
                model.target,
                sd.Params(model.params),
                sd.Plain(),
                [prefix] * command.batch,
                sampling=sd.Sampling(
                    temperature=_ASKING,
                    max_new_tokens=_LONGEST,
                    stop_ids=tuple(model.tokenizer.stop_ids),
                    seed=command.seed * 1_000_003 % 2**31 + number,
                ),
            )
            texts = [model.tokenizer.decode(x).strip() for x in generation.tokens]
            questions += [text or "Hello" for text in texts]
            progress.update(bar, completed=min(len(questions), command.own))
    questions = questions[: command.own]
    command.output.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(questions, ensure_ascii=False, indent=0), "utf-8")
    return questions


@contextlib.contextmanager
def _progress(screens: Screens, what: str) -> Iterator[tuple[Progress, TaskID]]:
    with progress_bar(screens.err) as progress:
        yield progress, progress.add_task(what, total=None)
