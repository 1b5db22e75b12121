"""Tasks of graded difficulty whose answers can be checked: what the shipped model is trained on and judged by.

A problem is a prompt and its one right answer, which begins with "=": that token costs full depth whatever the exit rule
(it comes from the prompt's last token), so every token that says something is one whose loops the gate chooses.

    task      prompt                       answer         difficulty d
    add       358+47                       =405           digits of the longer number, 1 to 6
    reverse   reverse k c a f              = f a c k      letters, 2 to 12
    sort      sort k c a f                 = a c f k      letters, all different, 2 to 12
    close     close ( [ ] {                = } )          brackets left open, 1 to 8; up to d pairs are closed already
    hops      follow k c, f k, c a, a f; k 2 = c a       look-ups one behind the other, 1 to 6, each written out

Test and training problems are disjoint by construction: a hash of the problem says which of the two it is, and each
generator draws until it has one of the wanted kind. Only the standard library; draws depend on the seed alone.
"""
import hashlib
import random

LETTERS = "abcdefghijklmnopqrstuvwxyz"
OPEN, CLOSE = "([{", ")]}"
TEST_SHARE = 20  # one problem of 20 is for tests
LEVELS = {"add": (1, 6), "reverse": (2, 12), "sort": (2, 12), "close": (1, 8), "hops": (1, 6)}
GRADES = {
    "add": (1, 2, 3, 4, 5, 6),
    "reverse": (2, 4, 6, 8, 10, 12),
    "sort": (2, 4, 6, 8, 10, 12),
    "close": (1, 2, 4, 6, 8),
    "hops": (1, 2, 3, 4, 5, 6),
}
GROUPS = {"add 1-3": ("add", 1, 3), "add 4-6": ("add", 4, 6), "reverse": ("reverse", 1, 99), "sort": ("sort", 1, 99),
          "close": ("close", 1, 99), "hops": ("hops", 1, 99)}
GOALS = {"add 1-3": 0.99, "add 4-6": 0.9, "reverse": 0.95, "sort": 0.95, "close": 0.95, "hops": 0.95}  # exact match at full depth
MOST_PAIRS = 9  # of a look-up's table


def number(rng, digits):
    return rng.randrange(10 ** (digits - 1) if digits > 1 else 0, 10**digits)


def carry_pair(rng, digits):
    """Two numbers of which a run of digits sums to 9 each: one carry from below runs through all of it."""
    a = [rng.randrange(10) for _ in range(digits)]
    b = [rng.randrange(10) for _ in range(digits)]
    first = rng.randrange(digits)
    for i in range(first, rng.randrange(first, digits) + 1):
        b[i] = 9 - a[i]
    return int("".join(map(str, a))), int("".join(map(str, b)))


def add(rng, d, plain):
    if not plain and d > 1 and rng.random() < 0.2:
        a, b = carry_pair(rng, d)
    else:
        a, b = number(rng, d), number(rng, d if rng.random() < 0.6 else rng.randint(1, d))
    if rng.random() < 0.5:
        a, b = b, a
    return f"{a}+{b}", f"={a + b}", "add %d %d" % (min(a, b), max(a, b))


def reverse(rng, d, plain):
    s = [rng.choice(LETTERS) for _ in range(d)]
    return "reverse " + " ".join(s), "= " + " ".join(s[::-1]), "reverse " + "".join(s)


def sort(rng, d, plain):
    s = rng.sample(LETTERS, d)
    return "sort " + " ".join(s), "= " + " ".join(sorted(s)), "sort " + "".join(sorted(s))


def close(rng, d, plain):
    shut = rng.randint(0, d)
    todo, stack, text = d + shut, [], []
    while todo or shut:
        if not stack or (todo and rng.random() * (todo + shut) < todo):
            todo -= 1
            stack.append(rng.randrange(3))
            text.append(OPEN[stack[-1]])
        elif shut:
            shut -= 1
            text.append(CLOSE[stack.pop()])
    return "close " + " ".join(text), "= " + " ".join(CLOSE[k] for k in reversed(stack)), "close " + "".join(text)


def table_size(rng, d, plain):
    """At least one letter is off the path: what is left over never says where a look-up leads. Training has more short tables."""
    low = max(d + 2, 4)
    return low + int((MOST_PAIRS + 1 - low) * rng.random() ** (1 if plain else 2))


def hops(rng, d, plain):
    """Every letter is looked up from once and led to once, so none stands out: only looking up says more than a guess."""
    names = rng.sample(LETTERS, table_size(rng, d, plain))
    path, ends = names[: d + 1], [names[0], *names[d + 1 :]]
    while any(a == b for a, b in zip(names[d:], ends)):  # no letter leads to itself
        rng.shuffle(ends)
    pairs = list(zip(names, path[1:] + ends))
    rng.shuffle(pairs)
    text = "follow " + ", ".join(f"{a} {b}" for a, b in pairs) + f"; {names[0]} {d}"
    return text, "= " + " ".join(path[1:]), f"{sorted(pairs)} {names[0]} {d}"


MAKE = {"add": add, "reverse": reverse, "sort": sort, "close": close, "hops": hops}


def is_test(key):
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=4).digest(), "little") % TEST_SHARE == 0


def problem(rng, task, d, test=False):
    """A prompt and its answer. plain: tests are drawn as a person would, training has more long carries and short tables."""
    while True:
        prompt, answer, key = MAKE[task](rng, d, test)
        if is_test(key) == test:
            return prompt, answer


def right(output, answer):
    """Exact match; blanks around it do not count, blanks within it do."""
    return output.strip() == answer.strip()


def test_set(task, d, n, seed=7):
    """n different test problems, or fewer where there are fewer (sums of one digit)."""
    rng, seen = random.Random(f"{seed} {task} {d}"), {}
    for _ in range(4 * n):
        if len(seen) == n:
            break
        prompt, answer = problem(rng, task, d, True)
        seen[prompt] = answer
    return list(seen.items())


def by_group(cells):
    """{group: share right} of {(task, difficulty): (problems, share right)}."""
    out = {}
    for group, (task, low, high) in GROUPS.items():
        mine = [c for (t, d), c in cells.items() if t == task and low <= d <= high]
        out[group] = sum(n * x for n, x in mine) / sum(n for n, _ in mine)
    return out


def rank(group):
    """What the best checkpoint has most of: goals met, then the smallest part of the way from a goal to 1."""
    margin = [(x - GOALS[g]) / (1 - GOALS[g]) for g, x in group.items()]
    return sum(m >= 0 for m in margin), min(margin)
