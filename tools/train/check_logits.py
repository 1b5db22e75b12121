#!/usr/bin/env python3
"""Are PyTorch's logits and gates those of gyre, in F32? 50 prompts through `gyre eval`, largest difference at most 1e-3.
And is leaving early the same: do texts and loops of `gyre run --exit gate` come out of the training's forward pass too?

    python3 check_logits.py GYRE [MODEL]

Without MODEL: random weights of an odd shape, exact in BF16, with gate and norms that are not what they begin as.
"""
import json
import random
import shutil
import subprocess
import sys
import tempfile

import numpy as np
import torch
from model import SIZES, Exit, Ouro, Shape, export, load, restore

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


def run(gyre, folder, ids, threshold):
    """Ids and loops of 16 tokens by gyre, and what PyTorch says at these positions, given the same ids."""
    cmd = [gyre, "run", folder, "--prompt-ids", ",".join(map(str, ids)), "--json", "--max-tokens", "16", "--ignore-eos", "--exit", "gate"]
    cmd += ["--exit-threshold", str(threshold), "--dtype", "f32", "--threads", "2"]
    got = json.loads(subprocess.run(cmd, check=True, capture_output=True, text=True).stdout)
    return got["token_ids"], got["loops"]


@torch.no_grad()
def follow(model, ids, out, threshold):
    given = torch.tensor([ids + out[:-1]])
    made = torch.arange(given.shape[1])[None] >= len(ids)
    states, _, loops = model(given, torch.ones_like(given), Exit(made, torch.tensor([[threshold]])))
    state = torch.stack(states)[loops[0] - 1, 0, torch.arange(given.shape[1])]
    return model.logits(state).argmax(-1)[len(ids) - 1 :].tolist(), loops[0, len(ids) - 1 :].tolist()


def compare_exits(gyre, folder, model):
    same = left = 0
    for i, ids in enumerate(prompts(model.s.n_vocab)[:30]):
        out, loops = run(gyre, folder, ids, threshold := (0.5, 0.8, 0.95)[i % 3])
        same += follow(model, ids, out, threshold) == (out, loops)
        left += sum(n < model.s.n_loop for n in loops)
    return same, left


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
    same_exits, left = compare_exits(gyre, folder or tmp + "/model", model)
    shutil.rmtree(tmp)
    print(f"50 prompts, {n} positions, logits to {np.abs(want).max():.1f}: largest difference {worst_logit:.2e}, of gates "
          f"{worst_gate:.2e}; likeliest token the same at {same} of {n}")
    print(f"30 texts of 16 tokens, {left} of them after fewer than all loops: texts and loops the same in {same_exits} of 30")
    return 0 if max(worst_logit, worst_gate) <= TOLERANCE and same_exits == 30 else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
