#!/usr/bin/env python3
"""Makes models/demo: random weights of shape tiny-ouro with a byte-level tokenizer (gyre synth), and then zeroes the LM head's
rows of all tokens that are not printable ASCII, so that what the demo prints can be shown on a terminal. A zero row has logit
0, and among 95 random logits the largest is above 0. Run from the project's root after ./do build:
    python3 tools/make_demo.py
"""
import json
import shutil
import struct
import subprocess

OUT, SEED = "models/demo.new", "20261129"


def main():
    subprocess.run(["build/release/gyre", "synth", "--shape", "tiny-ouro", "--seed", SEED, "--tokenizer", OUT], check=True)
    vocab = json.load(open(OUT + "/tokenizer.json"))["model"]["vocab"]
    keep = {i for piece, i in vocab.items() if len(piece) == 1 and (33 <= ord(piece) <= 126 or piece == "\u0120")}
    path = OUT + "/model.safetensors"
    raw = bytearray(open(path, "rb").read())
    n = struct.unpack("<Q", raw[:8])[0]
    head = json.loads(raw[8 : 8 + n])["lm_head.weight"]
    rows, width = head["shape"]
    start = 8 + n + head["data_offsets"][0]
    for row in range(rows):
        if row not in keep:
            raw[start + row * width * 2 : start + (row + 1) * width * 2] = bytes(width * 2)
    open(path, "wb").write(raw)
    for name in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        shutil.move(f"{OUT}/{name}", f"models/demo/{name}")
    shutil.rmtree(OUT)


if __name__ == "__main__":
    main()
