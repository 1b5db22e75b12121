"""The tasks that the shipped model is trained on (tools/train/tasks.py): right answers, same draws, disjoint halves."""

import os
import pathlib
import random
import subprocess
import sys

import numpy as np
import pytest

TRAIN = pathlib.Path(__file__).resolve().parents[2] / "tools" / "train"
sys.path.insert(0, str(TRAIN))
import tasks  # noqa: E402


def solve(prompt):
    """Answers by other means than the generators."""
    if "+" in prompt:
        return f"={sum(map(int, prompt.split('+')))}"
    task, rest = prompt.split(" ", 1)
    if task == "reverse":
        return "= " + " ".join(reversed(rest.split()))
    if task == "sort":
        return "= " + " ".join(sorted(rest.split()))
    if task == "close":
        text = rest.replace(" ", "")
        while (less := text.replace("()", "").replace("[]", "").replace("{}", "")) != text:
            text = less
        return "= " + " ".join({"(": ")", "[": "]", "{": "}"}[c] for c in reversed(text))
    table, at, n = read_hops(prompt)
    path = []
    for _ in range(n):
        at = table[at]
        path.append(at)
    return "= " + " ".join(path)


def read_hops(prompt):
    pairs, ask = prompt.split(" ", 1)[1].split("; ")
    return dict(p.split() for p in pairs.split(", ")), ask.split()[0], int(ask.split()[1])


def hardness(task, prompt, answer):
    if task == "add":
        return max(map(len, prompt.split("+")))
    return int(prompt.split()[-1]) if task == "hops" else len(answer.split()) - 1


@pytest.mark.parametrize("task", tasks.LEVELS)
def test_answers(task):
    rng = random.Random(11)
    for d in range(tasks.LEVELS[task][0], tasks.LEVELS[task][1] + 1):
        for _ in range(20):
            prompt, answer = tasks.problem(rng, task, d)
            assert solve(prompt) == answer
            assert hardness(task, prompt, answer) == d or task == "add" and hardness(task, prompt, answer) < d


@pytest.mark.parametrize("task", tasks.GRADES)
def test_halves_are_disjoint(task):
    """What training draws in bulk is in no test set; small spaces (sums of two digits) would show an overlap at once."""
    rng = random.Random(3)
    for d in tasks.GRADES[task][:2]:
        test = dict(tasks.test_set(task, d, 50))
        assert test and all(solve(p) == a for p, a in test.items())
        assert not test.keys() & {tasks.problem(rng, task, d)[0] for _ in range(4000)}


def test_no_letter_of_a_table_stands_out():
    """Led to once and looked up from once, never by itself, one at least off the path: all that were not written yet look alike."""
    for d in tasks.GRADES["hops"]:
        for prompt, answer in tasks.test_set("hops", d, 60):
            table, start, _ = read_hops(prompt)
            path = [start, *answer.split()[1:]]
            assert sorted(table) == sorted(table.values()) and all(a != b for a, b in table.items())
            assert len(set(path)) == len(path) == d + 1 < len(table) <= tasks.MOST_PAIRS


def inverse(table, at, n, _):
    back, out = {b: a for a, b in table.items()}, []
    for _ in range(n):
        at = back[at]
        out.append(at)
    return out


GUESSES = {  # answers without a look-up, each what a model has been seen to do or could
    "leads nowhere": lambda t, at, n, rng: [*(x for x in t.values() if x not in t), *t.values()][:n],
    "most led to": lambda t, at, n, rng: sorted(t, key=lambda x: (x == at, -list(t.values()).count(x)))[:n],
    "first pairs": lambda t, at, n, rng: list(t.values())[:n],
    "last pairs": lambda t, at, n, rng: list(t.values())[-n:],
    "in the table's order": lambda t, at, n, rng: [x for x in t if x != at][:n],
    "in the alphabet's order": lambda t, at, n, rng: sorted(x for x in t if x != at)[:n],
    "one not written yet": lambda t, at, n, rng: rng.sample([x for x in t if x != at], n),
    "backwards": inverse,
    "one look-up, then a guess": lambda t, at, n, rng: [t[at], *rng.sample([x for x in t if x not in (at, t[at])], n - 1)],
}


@pytest.mark.parametrize("guess", GUESSES)
def test_look_ups_have_no_way_round(guess):
    """A guess among m letters is right in one of m: 20 % at one look-up (mean of 1/3 to 1/8), 6 % at two. One honest look-up of
    two leaves one guess: 27 % (mean of 1/2 to 1/7). Five standard deviations of 200 problems are added."""
    rng, right = random.Random(8), {}
    for d in (1, 2, 3):
        cases = [(read_hops(p), a) for p, a in tasks.test_set("hops", d, 200)]
        right[d] = sum(" ".join(["=", *GUESSES[guess](*q, rng)]) == a for q, a in cases) / len(cases)
    looked = guess.startswith("one look-up")
    assert right[1] == 1 if looked else right[1] <= 0.35
    assert right[2] <= (0.42 if looked else 0.15) and right[3] <= right[2]


def test_sums_do_not_return_the_other_way_round():
    drawn = {tuple(map(int, p.split("+"))) for p, _ in tasks.test_set("add", 1, 60)}
    rng = random.Random(4)
    trained = {tuple(map(int, tasks.problem(rng, "add", 1)[0].split("+"))) for _ in range(2000)}
    assert drawn and not trained & (drawn | {(b, a) for a, b in drawn})


def test_draws_depend_on_the_seed_alone():
    code = "import tasks, random; r = random.Random('1 5'); print([tasks.problem(r, t, 4) for t in tasks.LEVELS for _ in range(9)])"
    runs = [subprocess.run([sys.executable, "-c", code], cwd=TRAIN, env={**os.environ, "PYTHONHASHSEED": s}, capture_output=True,
                           text=True, check=True).stdout for s in "19"]
    assert runs[0] == runs[1] and len(runs[0]) > 500


@pytest.mark.parametrize("output,want", [("=12", True), (" =12\n", True), ("=1 2", False), ("=123", False), ("12", False), ("", False)])
def test_exact_match(output, want):
    assert tasks.right(output, "=12") is want


def test_the_best_checkpoint_is_the_one_that_misses_least():
    cells = {(t, d): (100, 1.0) for t, ds in tasks.GRADES.items() for d in ds}
    group = tasks.by_group({**cells, ("add", 1): (7, 0.0)})
    assert set(group) == set(tasks.GOALS) and group["add 1-3"] == pytest.approx(200 / 207) and group["add 4-6"] == 1
    ranks = [tasks.rank({**tasks.by_group(cells), **x}) for x in
             ({"hops": 0.2, "sort": 0.9}, {"hops": 0.2}, {"hops": 0.9}, {"hops": 0.96}, {"hops": 0.97}, {})]
    assert ranks == sorted(ranks) and len(set(ranks)) == len(ranks)
    assert [met for met, _ in ranks] == [4, 5, 5, 6, 6, 6]


# ---- rows of training (tools/train/data.py) --------------------------------------------------------------------------


class Words:
    """Stands for the text archive, which is not in the tree."""

    define = [("apple", "noun: a fruit"), ("to run", "verb: move fast")]
    text = [np.array([72, 105, 46] * 30), np.array([70, 71])]


@pytest.fixture(scope="module")
def rows():
    data = pytest.importorskip("data")
    tok = pytest.importorskip("tokenizers").Tokenizer.from_file(str(TRAIN.parents[1] / "models" / "demo" / "tokenizer.json"))
    return data, tok, lambda seed, n: data.batch_of(tok, Words, seed, n, 24, 256)


def test_rows_depend_on_seed_and_number_alone(rows):
    _, _, batch = rows
    first, other, third = batch(1, 2000), batch(1, 2001), batch(2, 2000)
    assert all((a == b).all() for a, b in zip(first, batch(1, 2000)))
    assert (first[0] != other[0]).any() and (first[0] != third[0]).any()


def spans(marks):
    """[begin, end) of runs of True."""
    edge = [i for i in range(1, len(marks)) if marks[i] != marks[i - 1]]
    edge = ([0] if marks[0] else []) + edge + ([len(marks)] if marks[-1] else [])
    return list(zip(edge[::2], edge[1::2]))


def test_task_answers_in_rows_are_right_and_of_the_training_half(rows):
    """Each answer span ends its document or turn, is right, is generated, and nothing before it in the document counts."""
    data, tok, batch = rows
    ids, flags, doc = batch(5, 3000)
    tests = {p for t, ds in tasks.GRADES.items() for d in ds for p in dict(tasks.test_set(t, d, 40))}
    found = 0
    for row in range(len(ids)):
        for n in range(1, doc[row].max() + 1):
            here = doc[row] == n
            mine, marks = ids[row][here], flags[row][here]
            assert not marks[0] & data.LOSS
            if (marks & data.TASK).any() and mine[0] != data.START:
                ((begin, end),) = spans((marks & data.TASK) > 0)
                prompt, answer = tok.decode(mine[:begin].tolist()), tok.decode(mine[begin : end - 1].tolist())
                assert end == len(mine) and mine[-1] == data.END and (marks[begin:] == data.LOSS | data.MADE | data.TASK).all()
                assert not marks[:begin].any() and solve(prompt) == answer and prompt not in tests
                found += 1
    assert found > 50


def test_a_task_is_taught_to_a_model_that_knows_the_others(rows, monkeypatch):
    data, _, _ = rows
    monkeypatch.setattr(data, "TASK_SHARE", dict(data.TASK_SHARE))
    monkeypatch.setattr(data, "RAMP", dict(data.RAMP))
    data.teach("hops", 0.5, 600)
    assert data.TASK_SHARE["hops"] == 0.5 and sum(data.TASK_SHARE.values()) == pytest.approx(1)
    assert data.TASK_SHARE["add"] == pytest.approx(4 * data.TASK_SHARE["sort"])
    rng = random.Random(2)
    drawn = {t: {data.level(rng, t, 0) for _ in range(400)} for t in tasks.LEVELS}
    assert drawn["hops"] == {1, 2} and all(max(drawn[t]) == tasks.LEVELS[t][1] for t in drawn if t != "hops")
    assert {data.level(rng, "hops", 600) for _ in range(400)} == {1, 2, 3, 4, 5, 6}


def test_chats_count_answers_only_and_make_the_last_one(rows):
    data, tok, batch = rows
    ids, flags, doc = batch(6, 3000)
    turns = 0
    for row in range(len(ids)):
        for n in range(1, doc[row].max() + 1):
            mine, marks = ids[row][doc[row] == n].tolist(), flags[row][doc[row] == n]
            if mine[0] != data.START:
                continue
            text = tok.decode(mine, skip_special_tokens=False)
            answers = [part.split("<|im_end|>")[0] for part in text.split("<|im_start|>assistant\n")[1:]]
            counted = spans((marks & data.LOSS) > 0)
            assert [tok.decode(mine[a : b - 1]) for a, b in counted] == answers and all(mine[b - 1] == data.STOP for _, b in counted)
            assert spans((marks & data.MADE) > 0) == counted[-1:]
            turns += len(answers)
    assert turns > 20
