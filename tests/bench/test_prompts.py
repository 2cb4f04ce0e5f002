"""Which prompts are measured, and in which batches."""

import json

import pytest

from specdec_jax.bench import (
    Prompt,
    Row,
    choose_rows,
    encode_rows,
    make_groups,
    read_rows,
)

ROWS = [Row(f"{task}/{i}", task, f"{task} {i}") for task in "ab" for i in range(5)]


@pytest.fixture
def write(tmp_path):
    def write(content: str | bytes):
        path = tmp_path / "prompts.jsonl"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def test_read_rows(write):
    """The first turn; what is left out is filled in; empty lines do not count."""
    lines = [
        {"id": "x/1", "task": "a", "turns": ["one", "two"]},
        {"prompt": "three"},
        {"id": 7, "prompt": "four", "category": "any"},
    ]
    path = write("\n\n".join(json.dumps(line) for line in lines) + "\n")
    assert read_rows(path) == [
        Row("x/1", "a", "one"),
        Row("3", "prompts", "three"),
        Row("7", "prompts", "four"),
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "there is no prompt in"),
        ("\n \n", "there is no prompt in"),
        ('{"prompt": "a"}\n{"prompt": ', "line 2 is no JSON"),
        ('{"prompt": "a"}\n\n{"text": "b"}', "line 3 has no prompt"),
        ('["a"]', "line 1 has no prompt"),
        ('{"turns": []}', "line 1 has no prompt"),
        ('{"turns": [7]}', "line 1 has no prompt"),
        ('{"prompt": ""}', "line 1 has no prompt"),
        (b'{"prompt": "\xff"}', "is not UTF-8: byte 12 is 0xff"),
    ],
)
def test_bad_files(write, content, message):
    with pytest.raises(ValueError, match=message):
        read_rows(write(content))


def test_choose_rows():
    """At even distances, in the order asked for; all where there are not so many."""
    chosen = [row.name for row in choose_rows(ROWS, tasks=["b", "a"], per_task=2)]
    assert chosen == ["b/0", "b/2", "a/0", "a/2"]
    assert choose_rows(ROWS, tasks=[], per_task=99) == ROWS
    with pytest.raises(ValueError, match="no task 'c': there are a, b"):
        choose_rows(ROWS, tasks=["a", "c"], per_task=1)


def test_make_groups():
    """Every group is full, of one task, and has every prompt of it in turn."""
    prompts = encode_rows(ROWS, lambda text: [len(text)])
    groups = make_groups(prompts, temperatures=[0.0, 0.8], batches=[1, 3])
    assert len(groups) == 2 * (2 * 5 + 2 * 2)
    assert len({group.key for group in groups}) == len(groups)
    last = groups[-1]
    assert last.key == ("b", 0.8, 3, 1)
    assert [prompt.name for prompt in last.prompts] == ["b/3", "b/4", "b/0"]
    assert last.prompts[0] == Prompt("b/3", "b", [3])


def test_seeds_do_not_depend_on_the_batch():
    prompts = encode_rows(ROWS, lambda text: [1])
    groups = make_groups(prompts, temperatures=[0.0], batches=[1, 5])
    alone = [group.seeds[0] for group in groups if group.batch == 1]
    together = [seed for group in groups if group.batch == 5 for seed in group.seeds]
    assert alone == together and len(set(alone)) == len(alone)
