"""The tasks that the shipped model is trained on (tools/train/tasks.py): right answers, same draws, disjoint halves."""

import os
import pathlib
import random
import subprocess
import sys

import pytest

TRAIN = pathlib.Path(__file__).resolve().parents[2] / "tools" / "train"
sys.path.insert(0, str(TRAIN))
import tasks  # noqa: E402


def solve(prompt):
    """Answers by other means than the generators."""
    if "+" in prompt:
        return f"={eval(prompt)}"  # two numbers and a plus: made here
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
    pairs, ask = rest.split("; ")
    table = dict(p.split() for p in pairs.split(", "))
    at, n = ask.split()
    for _ in range(int(n)):
        at = table[at]
    return "= " + at


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


def test_sums_do_not_return_the_other_way_round():
    for a in range(10):
        for b in range(10):
            key = "add %d %d"
            drawn = {p for p, _ in tasks.test_set("add", 1, 60)}
            assert (f"{a}+{b}" in drawn) <= tasks.is_test(key % (min(a, b), max(a, b)))


def test_draws_depend_on_the_seed_alone():
    code = "import tasks, random; r = random.Random('1 5'); print([tasks.problem(r, t, 4) for t in tasks.LEVELS for _ in range(9)])"
    runs = [subprocess.run([sys.executable, "-c", code], cwd=TRAIN, env={**os.environ, "PYTHONHASHSEED": s}, capture_output=True,
                           text=True, check=True).stdout for s in "19"]
    assert runs[0] == runs[1] and len(runs[0]) > 500


@pytest.mark.parametrize("output,want", [("=12", True), (" =12\n", True), ("=1 2", False), ("=123", False), ("12", False), ("", False)])
def test_exact_match(output, want):
    assert tasks.right(output, "=12") is want
