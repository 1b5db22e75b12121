"""Rows of token ids for training: tasks, definitions and text, several documents a row, deterministic by seed.

Each row is L + 1 ids with flags: LOSS (an answer or text: predicting it counts), MADE (generated: such a position may leave
the loop early, prompts never do), TASK (of a task's answer); and doc: positions see their own document only.
Batch n of a seed is the same whatever the number of workers. Needs numpy and tokenizers.
"""
import json
import lzma
import multiprocessing
import os
import random

import numpy as np
import tasks

END, START, STOP = 0, 1, 2  # ids
LOSS, MADE, TASK = 1, 2, 4  # flags
TASK_SHARE = {"add": 0.4, "reverse": 0.1, "sort": 0.1, "close": 0.1, "hops": 0.3}
DOC_SHARE = {"task": 0.8, "define": 0.14, "text": 0.06}  # of documents
CHAT_SHARE = 0.4
RAMP = dict.fromkeys(TASK_SHARE, 1500)  # batches until every difficulty is drawn; 0: from the first on
ASK = {"add": ("What is {}?", "Compute {}."), "define": ("What does {} mean?", "Define {}.")}
SYSTEM = ("You are a helpful assistant.", "Answer briefly.")


def held_out(word):
    """Words and paragraphs for perplexity, never trained on."""
    return tasks.is_test("text " + word)


class Corpus:
    """The text archive as ids: pairs of word and definition, and texts in one array."""

    def __init__(self, path, tok):
        entries = [json.loads(line) for line in lzma.open(path, "rt")]
        self.define = [(w[1], w[2]) for w in entries if w[0] == "define" and not held_out(w[1])]
        text = [w[1] for w in entries if w[0] == "text"]
        train = [t for t in text if not held_out(t)]
        self.text = [np.array(e.ids, np.uint16) for e in tok.encode_batch(train)]
        self.test = [e.ids + [END] for e in tok.encode_batch([t for t in text if held_out(t)][:512])]


def teach(task, share, ramp):
    """For a model that knows the others: this task alone has a ramp, and its share; the others share the rest as before."""
    rest = sum(x for t, x in TASK_SHARE.items() if t != task)
    for t, x in TASK_SHARE.items():
        TASK_SHARE[t] = share if t == task else x * (1 - share) / rest
        RAMP[t] = ramp if t == task else 0


def level(rng, task, batch):
    low, high = tasks.LEVELS[task]
    cap = low + (high - low) * min(1.0, 0.25 + batch / RAMP[task] if RAMP[task] else 1.0)
    levels = list(range(low, int(cap + 1e-9) + 1))
    return rng.choices(levels, [0.4 + (d - low) / max(1, high - low) for d in levels])[0]


def question(rng, corpus, batch):
    """A prompt and its answer, of a task or the dictionary."""
    if rng.random() < DOC_SHARE["define"] / (DOC_SHARE["define"] + DOC_SHARE["task"]):
        word, meaning = rng.choice(corpus.define)
        return ("define", word), "define " + word, "= " + meaning
    task = rng.choices(list(TASK_SHARE), TASK_SHARE.values())[0]
    prompt, answer = tasks.problem(rng, task, level(rng, task, batch))
    return (task, prompt), prompt, answer


def reword(rng, kind, prompt):
    name, subject = kind
    return rng.choice(ASK[name]).format(subject) if name in ASK and rng.random() < 0.25 else prompt


def chat(rng, corpus, batch):
    """ChatML as tokenizer_config.json spells it: pieces of (text or id, flags)."""
    out = []
    if rng.random() < 0.15:
        out += [(START, 0), ("system\n" + rng.choice(SYSTEM), 0), (STOP, 0), ("\n", 0)]
    turns = 1 if rng.random() < 0.85 else rng.randint(2, 3)
    for turn in range(turns):
        kind, prompt, answer = question(rng, corpus, batch)
        last = turn == turns - 1
        flags = answer_flags(kind) if last else answer_flags(kind) & ~MADE
        out += [(START, 0), ("user\n" + reword(rng, kind, prompt), 0), (STOP, 0), ("\n", 0)]
        out += [(START, 0), ("assistant\n", 0), (answer, flags), (STOP, flags)]
        if not last:
            out.append(("\n", 0))
    return out


def answer_flags(kind):
    return LOSS | MADE | (0 if kind[0] == "define" else TASK)


def document(rng, corpus, batch):
    if rng.random() < DOC_SHARE["text"]:
        return rng.choice(corpus.text)
    if rng.random() < CHAT_SHARE:
        return chat(rng, corpus, batch)
    kind, prompt, answer = question(rng, corpus, batch)
    return [(prompt, 0), (answer, answer_flags(kind)), (END, answer_flags(kind))]


def encode(tok, docs, rng, length):
    """Documents as (ids, flags); all texts go through the tokenizer in one call."""
    texts = [piece[0] for doc in docs if isinstance(doc, list) for piece in doc if isinstance(piece[0], str)]
    coded = iter(tok.encode_batch(texts))
    for doc in docs:
        if isinstance(doc, list):
            parts = [(next(coded).ids if isinstance(p[0], str) else [p[0]], p[1]) for p in doc]
            yield [i for part in parts for i in part[0]], [part[1] for part in parts for _ in part[0]]
        else:
            flat = list(doc)[: length - 1] + [END]
            start = rng.randint(1, len(flat))
            yield flat, [LOSS] * start + [LOSS | MADE] * (len(flat) - start)


def batch_of(tok, corpus, seed, number, rows, length):
    """ids [rows, L+1] int16, flags and doc [rows, L+1] uint8."""
    rng = random.Random(f"{seed} {number}")
    ids = np.zeros((rows, length + 1), np.int16)
    flags = np.zeros((rows, length + 1), np.uint8)
    doc_of = np.zeros((rows, length + 1), np.uint8)
    row = at = n_doc = 0
    while row < rows:
        for flat, marks in encode(tok, [document(rng, corpus, number) for _ in range(64)], rng, length):
            n = len(flat)
            if n > length + 1 or row == rows:
                continue
            if at + n > length + 1:
                row, at, n_doc = row + 1, 0, 0
                if row == rows:
                    break
            n_doc += 1
            ids[row, at : at + n] = flat
            flags[row, at : at + n] = marks
            flags[row, at] &= MADE  # nothing predicts a document's first token
            doc_of[row, at : at + n] = n_doc
            at += n
    return ids, flags, doc_of


def worker(tok, corpus, seed, first, step, rows, length, queue):
    number = first
    while True:
        queue.put((number, *batch_of(tok, corpus, seed, number, rows, length)))
        number += step


class Loader:
    """Processes that make batches ahead; next() gives them in order."""

    def __init__(self, tok, corpus, seed, rows, length, n_worker, first=0):
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        context = multiprocessing.get_context("fork")
        self.queues = [context.Queue(4) for _ in range(n_worker)]
        self.next_batch = first
        self.processes = [
            context.Process(target=worker, args=(tok, corpus, seed, first + i, n_worker, rows, length, q), daemon=True)
            for i, q in enumerate(self.queues)
        ]
        self.first = first
        for p in self.processes:
            p.start()

    def next(self):
        number, *arrays = self.queues[(self.next_batch - self.first) % len(self.queues)].get(timeout=120)
        assert number == self.next_batch
        self.next_batch += 1
        return arrays

    def close(self):
        for p in self.processes:
            p.terminate()
