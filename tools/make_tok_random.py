#!/usr/bin/env python3
"""Writes tests/golden/tok_random.jsonl: seeded random tokenizers (BPE with every normalizer, pre-tokenizer and decoder
that gyre honours, in random sequences) and what PyPI's tokenizers does with random texts and random ids. One JSON object
a line: {"tokenizer": text of a tokenizer.json, "encode": [[text in hex, add_special, parse_special, ids]],
"decode": [[ids, skip_special, text]]}. Cases on which tokenizers itself panics are left out.

Usage: tools/make_tok_random.py SEED COUNT > FILE; other seeds serve for longer comparisons.
"""
import json
import random
import sys

from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers import decoders as D
from tokenizers import models
from tokenizers import normalizers as N
from tokenizers import pre_tokenizers as P
from tokenizers import processors

# What texts are made of: ASCII, precomposed and decomposed letters, marks of several classes, compatibility characters,
# white space of all kinds, code points that old Unicode tables lack, characters whose class differs between libraries.
ATOMS = list("abcABC  \t\n'.,-!12_$\u2581") + (
    "\u00e9 e\u0301 \u0301 \u0323 \u4e16 \u754c \uff21 \ufb01 \u00bd \u0663 \u0130 \u00df \U0001f600 \U0001f44d\U0001f3fd "
    "\u200d \ud55c \u1100\u1161\u11a8 \ufffd \u2163 \u0915\u094d\u0937 \u03c2 \u03a3 A\u030a \u212b \U000105c0 \U00016d40 "
    "\U0001e5f1 \u0897 \u061d \u1b7d \u180e \u0345 \u017f \u24d0"
).split(" ") + ["\u00a0", "\u3000", "\r\n", "\u2028", "\x00", "\u0085"]
BEHAVIORS = ["removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"]
PATTERNS = [
    r"\s+", r"\p{L}+|\p{N}", r"\w+|[^\w\s]", r"\b", r"\d{1,2}", r"a*", r"[^\S\n]+", r"(?i)ab|c", r"^.", r".$",
    r"\p{M}|\p{P}", r"[[:alpha:]]+|[[:digit:]]", r"\h+", r"(?<=a)b", r"\p{Lu}?\p{Ll}+", r"[^\p{L}]", r"\P{L}+", r"\S+",
    r"\W", r"\D+", r"(?m)a.", r"\p{Han}", r"[\w-]+", r"\x{e9}|\u4e16", r"\R", r"[\s\p{P}]+", r"\p{S}", r"a{,2}b",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
]
ADDED = ["<s>", "</s>", "ab", "[M]", " x", "a", "\u2581a", "  ", "\u00e9", "A B", "\u03a3", "<|x|>"]


class Maker:
    def __init__(self, rng):
        self.r = rng

    def atoms(self, lo, hi):
        return "".join(self.r.choice(ATOMS) for _ in range(self.r.randrange(lo, hi)))

    def text(self):
        r = self.r
        if r.random() < 0.1:
            zones = [(1, 0x250), (0x300, 0x3000), (0x3000, 0xD800), (0xE000, 0x20000), (0x20000, 0x33000)]
            return "".join(chr(r.randrange(*r.choice(zones))) for _ in range(r.randrange(1, 16)))
        s = self.atoms(0, r.choice([6, 20, 40]))
        return s + r.choice(ADDED + [" <s> "]) + self.atoms(0, 8) if r.random() < 0.4 else s

    def normalizer(self, depth=0):
        r = self.r
        k = r.randrange(9 if depth < 2 else 8)
        if k < 4:
            return [N.NFC, N.NFD, N.NFKC, N.NFKD][k]()
        if k == 4:
            return N.Lowercase()
        if k == 5:
            return N.Strip(r.random() < 0.5, r.random() < 0.5)
        if k == 6:
            return N.Prepend(r.choice(["\u2581", "x", " ", "ab"]))
        if k == 7:
            pattern = self.atoms(1, 3) if r.random() < 0.6 else Regex(r.choice(PATTERNS))
            return N.Replace(pattern, r.choice(["\u2581", " ", "", "zz", "\u00e9"]))
        return N.Sequence([self.normalizer(depth + 1) for _ in range(r.randrange(1, 4))])

    def pre_tokenizer(self, depth=0):
        r = self.r
        k = r.randrange(9 if depth < 2 else 7)
        if k == 0:
            return P.ByteLevel(add_prefix_space=r.random() < 0.5, use_regex=r.random() < 0.6)
        if k == 1 or k == 7:
            pattern = self.atoms(1, 3) if r.random() < 0.2 else Regex(r.choice(PATTERNS))
            return P.Split(pattern, r.choice(BEHAVIORS), r.random() < 0.3)
        if k == 2:
            return P.Digits(r.random() < 0.5)
        if k == 3:
            return P.Whitespace() if r.random() < 0.5 else P.WhitespaceSplit()
        if k == 4:
            return P.Punctuation(r.choice(BEHAVIORS))
        if k < 7:
            scheme = r.choice(["always", "never", "first"])
            return P.Metaspace(replacement=r.choice("\u2581_\u2581"), prepend_scheme=scheme, split=r.random() < 0.6)
        return P.Sequence([self.pre_tokenizer(depth + 1) for _ in range(r.randrange(1, 4))])

    def decoder(self, depth=0):
        r = self.r
        k = r.randrange(8 if depth < 1 else 6)
        if k < 3:
            return [D.ByteLevel, D.ByteFallback, D.Fuse][k]()
        if k == 3:
            return D.Strip(r.choice(" \u2581a"), *r.choice([(0, 1), (1, 0), (2, 0), (0, 2), (0, 0)]))
        if k == 4:
            pattern = r.choice(["\u2581", "ab", "aa", "\u00e9", " ", "abab", "\u2581\u2581", "aab"])
            return D.Replace(pattern, r.choice([" ", "", "x", "\u2581"]))
        if k == 5:
            return D.Metaspace(replacement="\u2581", prepend_scheme=r.choice(["always", "never", "first"]))
        return D.Sequence([self.decoder(depth + 1) for _ in range(r.randrange(1, 5))])

    def model(self):
        r = self.r
        pieces = ["<unk>"]
        if r.random() < 0.3:
            pieces += sorted(P.ByteLevel.alphabet())
        fallback = r.random() < 0.35
        if fallback:
            pieces += ["<0x%02X>" % b for b in range(256) if r.random() < 0.998]
        prefix, suffix = r.choice([None, None, None, "##"]), r.choice([None, None, None, "</w>"])
        for c in "".join(ATOMS).replace("\0", ""):  # our JSON reader refuses a NUL in a member name
            if r.random() < 0.8:
                for v in (c, (prefix or "") + c, c + (suffix or ""), (prefix or "") + c + (suffix or "")):
                    if v not in pieces:
                        pieces.append(v)
        vocab = {t: i for i, t in enumerate(pieces)}
        pool, merges = [t for t in pieces[1:] if not t.startswith("<0x")], []
        for _ in range(r.randrange(0, 150)):
            a, b = r.choice(pool), r.choice(pool)
            if (prefix and not b.startswith(prefix)) or (suffix and a.endswith(suffix)) or (a, b) in merges:
                continue
            new = a + (b[len(prefix):] if prefix else b)
            if len(new) <= 12:
                vocab.setdefault(new, len(vocab))
                merges.append((a, b))
                pool += [new, new]
        options = {"fuse_unk": r.random() < 0.5, "byte_fallback": fallback, "ignore_merges": r.random() < 0.3}
        if r.random() < 0.7:
            options["unk_token"] = "<unk>"
        if prefix:
            options["continuing_subword_prefix"] = prefix
        if suffix:
            options["end_of_word_suffix"] = suffix
        return models.BPE(vocab, merges, **options)

    def add_tokens(self, tok):
        r, seen = self.r, set()
        for content in r.sample(ADDED, r.randrange(0, 6)):
            special, normalized = r.random() < 0.5, r.random() < 0.4
            key = tok.normalizer.normalize_str(content) if normalized and tok.normalizer else content
            if not key or (normalized, key) in seen:  # which of two equal spellings wins is random in tokenizers 0.23.3
                continue
            seen.add((normalized, key))
            flags = {f: r.random() < 0.3 for f in ("single_word", "lstrip", "rstrip")}
            added = AddedToken(content, special=special, normalized=normalized, **flags)
            (tok.add_special_tokens if special else tok.add_tokens)([added])

    def tokenizer(self):
        r = self.r
        tok = Tokenizer(self.model())
        if r.random() < 0.6:
            tok.normalizer = self.normalizer()
        if r.random() < 0.8:
            tok.pre_tokenizer = self.pre_tokenizer()
        if r.random() < 0.9:
            tok.decoder = self.decoder()
        self.add_tokens(tok)
        if r.random() < 0.3 and tok.token_to_id("<s>") is not None:
            single = [("<s>", tok.token_to_id("<s>"))]
            tok.post_processor = processors.TemplateProcessing(single="<s> $A <s> <s>", special_tokens=single)
        return Tokenizer.from_str(tok.to_str())

    def cases(self, tok, n):
        r, encode, decode = self.r, [], []
        byte_ids = [i for t, i in tok.get_vocab().items() if t.startswith("<0x")]
        for _ in range(n):
            text, add, parse = self.text(), r.random() < 0.5, r.random() < 0.5
            tok.encode_special_tokens = not parse
            ids = attempt(lambda: tok.encode(text, add_special_tokens=add).ids)
            if ids is not None:
                encode.append([text.encode().hex(), add, parse, ids])
            pool = byte_ids if byte_ids and r.random() < 0.3 else range(tok.get_vocab_size())
            ids, skip = [r.choice(pool) for _ in range(r.randrange(0, 12))], r.random() < 0.5
            text = attempt(lambda: tok.decode(ids, skip_special_tokens=skip))
            if text is not None:
                decode.append([ids, skip, text])
        return encode, decode


def attempt(f):
    try:
        return f()
    except BaseException as e:  # a Rust panic is no Exception
        if isinstance(e, KeyboardInterrupt):
            raise
        return None


def main():
    maker = Maker(random.Random(int(sys.argv[1])))
    for _ in range(int(sys.argv[2])):
        tok = maker.tokenizer()
        encode, decode = maker.cases(tok, 15)
        line = {"tokenizer": json.dumps(json.loads(tok.to_str()), separators=(",", ":"), ensure_ascii=False), "encode": encode, "decode": decode}
        print(json.dumps(line, separators=(",", ":"), ensure_ascii=False))


if __name__ == "__main__":
    main()
