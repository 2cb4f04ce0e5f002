"""The target's own answers to prompts, as a corpus."""

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from specdec_jax._digest import digest
from specdec_jax._generate import generate
from specdec_jax._options import Sampling
from specdec_jax._types import Drafter, Params, Target
from specdec_jax.train._corpus import Corpus, save_corpus


class Asked(NamedTuple):
    """A prompt, ready to be answered, and where it is from."""

    ids: tuple[int, ...]
    source: str = ""


class Answered(NamedTuple):
    """How far it is."""

    done: int  # prompts
    total: int
    tokens: int  # of answers, in this call
    tokens_per_second: float


def regenerate(
    target: Target,
    params: Params,
    drafter: Drafter,
    prompts: Sequence[Asked],
    folder: Path,
    *,
    temperatures: Sequence[float] = (0.0, 0.8),
    max_new_tokens: int = 320,
    stop_ids: Sequence[int] = (),
    batch: int = 8,
    shard: int = 512,
    seed: int = 0,
    report: Callable[[Answered], None] = lambda answered: None,
) -> list[Path]:
    """Answer every prompt and write `folder`/corpus-00000.npz …, `shard` texts each;
    those that are there already are kept.

    Args:
        target: that answers, in batches, by `generate`.
        params: of target and drafter.
        drafter: that makes it fast; the answers are the target's own in any case.
        prompts: in the order in which they are answered.
        folder: of the files, and of corpus.json, which says how they were made.
        temperatures: prompt i is answered at the i-th, over and over.
        max_new_tokens: where an answer is cut.
        stop_ids: that end an answer.
        batch: rows at once.
        shard: texts of a file.
        seed: of the answers.
        report: is told after each batch.

    Raises:
        ValueError: the folder holds answers to other prompts, or otherwise made.
        OSError: the disk is full; what is there stays.
    """
    if not prompts:
        raise ValueError("there is no prompt to answer")
    said = {
        "prompts": _digest(prompts),
        "target": digest(params.target),
        "temperatures": list(temperatures),
        "max_new_tokens": max_new_tokens,
        "stop_ids": list(stop_ids),
        "shard": shard,
        "seed": seed,
    }
    _note(folder, said)
    longest = max(len(prompt.ids) for prompt in prompts)
    start, tokens, files = time.perf_counter(), 0, []
    for number, first in enumerate(range(0, len(prompts), shard)):
        files.append(folder / f"corpus-{number:05}.npz")
        if files[-1].exists():
            continue
        places = list(range(first, min(first + shard, len(prompts))))
        places.sort(key=lambda i: len(prompts[i].ids))  # alike in length, less padding
        answers: dict[int, np.ndarray] = {}
        for at in range(0, len(places), batch):
            group = places[at : at + batch]
            # One size of batch, one program: the last is filled up and cut again.
            rows = [group[i % len(group)] for i in range(batch)]
            sampling = Sampling(
                temperature=[temperatures[i % len(temperatures)] for i in rows],
                seed=[_seed(seed, i) for i in rows],
                max_new_tokens=max_new_tokens,
                stop_ids=tuple(stop_ids),
            )
            generation = generate(
                target,
                params,
                drafter,
                [list(prompts[i].ids) for i in rows],
                sampling=sampling,
                max_length=longest + max_new_tokens,
            )
            answers |= dict(zip(group, generation.tokens, strict=False))
            tokens += sum(len(answers[i]) for i in group)
            rate = tokens / (time.perf_counter() - start)
            report(Answered(first + at + len(group), len(prompts), tokens, rate))
        _write(files[-1], prompts, answers, temperatures)
    return files


def _write(
    file: Path,
    prompts: Sequence[Asked],
    answers: dict[int, np.ndarray],
    temperatures: Sequence[float],
) -> None:
    order = sorted(answers)
    texts = [np.concatenate([prompts[i].ids, answers[i]]) for i in order]
    corpus = Corpus(
        np.concatenate(texts).astype(np.int32),
        np.array([len(text) for text in texts], np.int32),
        np.array([len(prompts[i].ids) for i in order], np.int32),
    )
    of_each = [temperatures[i % len(temperatures)] for i in order]
    save_corpus(
        file,
        corpus,
        temp=np.array(of_each, np.float32),
        src=np.array([prompts[i].source for i in order], np.str_),
    )


def _note(folder: Path, said: dict[str, Any]) -> None:
    """How the answers are made; another way needs another folder."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "corpus.json"
    if file.exists():
        before = json.loads(file.read_text("utf-8"))
        changed = [name for name in said if before.get(name) != said[name]]
        if changed:
            raise ValueError(
                f"{folder} holds answers made with other {', '.join(changed)}: name "
                "another folder"
            )
    file.write_text(json.dumps(said, indent=2) + "\n", "utf-8")


def _digest(prompts: Sequence[Asked]) -> str:
    said = json.dumps([[list(map(int, x.ids)), x.source] for x in prompts])
    return hashlib.sha256(said.encode()).hexdigest()[:16]


def _seed(seed: int, number: int) -> int:
    """Of the answer to one prompt, whatever batch it is in."""
    said = hashlib.sha256(f"{seed} {number}".encode()).digest()
    return int.from_bytes(said[:4], "little")
