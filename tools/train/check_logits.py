#!/usr/bin/env python3
"""Are PyTorch's logits and gates those of gyre, in F32? 50 prompts through `gyre eval`, largest difference at most 1e-3.

    python3 check_logits.py GYRE [MODEL]

Without MODEL: random weights of an odd shape, exact in BF16, with gate and norms that are not what they begin as.
"""
import os
import random
import shutil
import subprocess
import sys
import tempfile

import numpy as np
import torch
from model import SIZES, Ouro, Shape, export, load, restore

TOLERANCE = 1e-3


def random_model(folder):
    torch.manual_seed(3)
    model = Ouro(SIZES["odd"])
    with torch.no_grad():
        for p in model.parameters():
            p.copy_((p + 0.1 * torch.randn_like(p) * (p.std() if p.numel() > 1 else 1)) if p.abs().sum() else 0.3 * torch.randn_like(p))
            p.copy_(p.bfloat16().float())
        for layer in model.layers:
            for w in layer.norms:
                w.copy_((w * (1 + 0.3 * torch.randn_like(w))).bfloat16().float())
    export(model, folder)
    return model


def read_model(folder):
    import json

    c = json.load(open(folder + "/config.json"))
    s = Shape(c["vocab_size"], c["hidden_size"], c["intermediate_size"], c["num_hidden_layers"], c["num_attention_heads"],
              c["total_ut_steps"], c["max_position_embeddings"], c["rope_theta"], c["rms_norm_eps"])
    model = Ouro(s)
    restore(model, load(folder + "/model.safetensors"))
    return model


def prompts(n_vocab, n=50):
    rng = random.Random(5)
    return [[rng.randrange(3, n_vocab) for _ in range(rng.choice((2, 3, 7, 16, 33, 64, 100)))] for _ in range(n)]


def theirs(gyre, folder, ids, tmp):
    text = ",".join(map(str, ids))
    cmd = [gyre, "eval", folder, "--prompt-ids", text, "--dtype", "f32", "--threads", "2", "--logits", tmp + "/l.npy", "--gates", tmp + "/g.npy"]
    subprocess.run(cmd, check=True, stdout=subprocess.DEVNULL)
    return np.load(tmp + "/l.npy"), np.load(tmp + "/g.npy")


def ours(model, ids):
    ids = torch.tensor([ids])
    with torch.no_grad():
        states, gates, _ = model(ids, torch.ones_like(ids))
        return model.logits(states[-1])[0].numpy(), gates[0].numpy()


def main(gyre, folder=None):
    tmp = tempfile.mkdtemp()
    model = read_model(folder) if folder else random_model(tmp + "/model")
    worst_logit = worst_gate = same = n = 0
    for ids in prompts(model.s.n_vocab):
        (logits, gates), (want, want_gates) = theirs(gyre, folder or tmp + "/model", ids, tmp), ours(model, ids)
        worst_logit = max(worst_logit, float(np.abs(logits - want).max()))
        worst_gate = max(worst_gate, float(np.abs(gates - want_gates).max()))
        same += int((logits.argmax(1) == want.argmax(1)).sum())
        n += len(ids)
    shutil.rmtree(tmp)
    print(f"50 prompts, {n} positions, logits to {np.abs(want).max():.1f}: largest difference {worst_logit:.2e}, of gates "
          f"{worst_gate:.2e}; likeliest token the same at {same} of {n}")
    return 0 if max(worst_logit, worst_gate) <= TOLERANCE else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
