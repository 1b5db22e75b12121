"""Writes the vectors that tests/unit/test_base_str.c and test_base_philox.c read. Independent source: CPython.

utf8.txt      one case a line: input bytes in hex, the same decoded with errors="replace" and encoded again in hex,
              and how many bytes at the end form an unfinished sequence.
quantile.txt  p as float.hex(), statistics.NormalDist().inv_cdf(p) as float.hex().
Seeded: running it again gives the same files (CPython 3.11).
"""
import itertools
import pathlib
import random
import statistics

here = pathlib.Path(__file__).parent
rng = random.Random(20261129)
EDGE = [0x00, 0x41, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xC1, 0xC2, 0xDF, 0xE0, 0xE1, 0xEC, 0xED, 0xEE,
        0xEF, 0xF0, 0xF1, 0xF3, 0xF4, 0xF5, 0xFF]


def random_bytes():
    n = rng.randint(1, 12)
    kind = rng.random()
    if kind < 0.5:
        return bytes(rng.choice(EDGE) for _ in range(n))
    if kind < 0.75:
        return bytes(rng.randrange(256) for _ in range(n))
    text = "".join(chr(rng.choice([0x41, 0xE9, 0x4E2D, 0xFFFD, 0x1F600, 0x10FFFF, 0xD7FF, 0xE000])) for _ in range(n))
    cut = bytearray(text.encode()[: rng.randint(1, 16)])
    if rng.random() < 0.3:
        cut[rng.randrange(len(cut))] = rng.choice(EDGE)
    return bytes(cut)


def decodes_to_one(raw):
    try:
        return len(raw.decode("utf-8")) == 1
    except UnicodeDecodeError:
        return False


def held_back(raw):
    """How many bytes at the end can still become one character. (The incremental decoder also holds back ED A0,
    the start of a surrogate, which can not.)"""
    more = [bytes(m) for k in (1, 2, 3) for m in itertools.product([0x80, 0x90, 0xA0, 0xBF], repeat=k)]
    for k in (3, 2, 1):
        if k <= len(raw) and any(decodes_to_one(raw[-k:] + m) for m in more):
            return k
    return 0


with open(here / "utf8.txt", "w") as f:
    for raw in [bytes([a, b]) for a in EDGE for b in EDGE] + [random_bytes() for _ in range(3000)]:
        print(raw.hex(), raw.decode("utf-8", errors="replace").encode().hex(), held_back(raw), file=f)

points = [2.0**-k for k in range(1, 1075, 7)] + [1 - 2.0**-k for k in range(2, 54)]
points += [0.075, 0.925, 0.0749999, 0.9250001, 1e-300, 1e-20, 1.3887943864964021e-11, 1.39e-11, 0.5, 0.025, 0.975]
points += [rng.random() for _ in range(300)]
with open(here / "quantile.txt", "w") as f:
    for p in points:
        if 0.0 < p < 1.0:
            print(p.hex(), statistics.NormalDist().inv_cdf(p).hex(), file=f)
