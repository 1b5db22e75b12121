#!/usr/bin/env python3
"""Trains the byte-level BPE of the shipped model: every digit a token of its own, then GPT-2's split.

    .venv/bin/python make_tokenizer.py TEXT.xz OUT [--vocab 2048]

Writes OUT/tokenizer.json and OUT/tokenizer_config.json (ChatML, ids 0 <|endoftext|>, 1 <|im_start|>, 2 <|im_end|>).
Trained on the text and on task prompts, so that " k", " (" and the words of the prompts are single tokens.
"""
import argparse
import json
import lzma
import os
import random

import tasks
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def texts(path, seed=1):
    for line in lzma.open(path, "rt"):
        entry = json.loads(line)
        yield f"define {entry[1]}\n= {entry[2]}" if entry[0] == "define" else entry[1]
    rng = random.Random(seed)
    for _ in range(4000):
        for task, levels in tasks.LEVELS.items():
            yield "user\n%s\nassistant\n%s\nsystem\n" % tasks.problem(rng, task, rng.randint(*levels))


def train(path, vocab):
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]
    )
    tok.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tok.train_from_iterator(texts(path), trainer)
    return tok


def main():
    args = argparse.ArgumentParser()
    args.add_argument("text")
    args.add_argument("out")
    args.add_argument("--vocab", type=int, default=2048)
    a = args.parse_args()
    os.makedirs(a.out, exist_ok=True)
    tok = train(a.text, a.vocab)
    tok.save(f"{a.out}/tokenizer.json", pretty=False)
    config = {
        "tokenizer_class": "GPT2Tokenizer",
        "bos_token": SPECIAL[1],
        "eos_token": SPECIAL[2],
        "pad_token": SPECIAL[2],
        "add_bos_token": False,
        "model_max_length": 1024,
        "clean_up_tokenization_spaces": False,
        "chat_template": TEMPLATE,
    }
    json.dump(config, open(f"{a.out}/tokenizer_config.json", "w"), indent=1)
    for text in ("358+47", "=405", "follow k c, a f; k 3", "= f a c k", "close ( [ {", "= } ] )", "define apple"):
        print(text, tok.encode(text).tokens)


if __name__ == "__main__":
    main()
