#!/usr/bin/env python3
"""BF16 references for the golden checkpoints, independent of gyre's code: writes tests/golden/bf16.json.

The forward passes of docs/models/*.md in numpy float64, with a function R at each point where the dtype rules round:
  * R = identity must give expected.json's logits (checked here: the graph is right),
  * R = round to BF16 gives the BF16 logits that an exact-sum implementation has,
  * R = x + uniform noise within half a BF16 ulp (Monte Carlo arithmetic; D. S. Parker, UCLA CSD-970002, 1997), many
    times, gives the spread that BF16 rounding causes at each logit: sigma. A BF16 run must lie within 6 sigma.
Greedy cases of full depth (last_exited) are teacher-forced: the argmax at each output position in float64 and in BF16,
with the float64 gap between the two best logits and the sigma at that position.
Run from the project's root: python3 tools/make_bf16_reference.py   (numpy; about two minutes)
"""
import json
import struct
import sys

import numpy as np

N_MC = 24


def load(path):
    with open(path + "model.safetensors", "rb") as f:
        n = struct.unpack("<Q", f.read(8))[0]
        head, raw = json.loads(f.read(n)), f.read()
    out = {}
    for name, v in head.items():
        if name == "__metadata__":
            continue
        b = raw[v["data_offsets"][0] : v["data_offsets"][1]]
        if v["dtype"] == "BF16":
            x = (np.frombuffer(b, "<u2").astype(np.uint32) << 16).view(np.float32)
        else:
            x = np.frombuffer(b, "<f4")
        out[name] = x.reshape(v["shape"]).astype(np.float64)
    return out


def bf16(x):
    u = np.asarray(x, np.float32).view(np.uint32)
    return ((u + 0x7FFF + ((u >> 16) & 1)) & np.uint32(0xFFFF0000)).view(np.float32).astype(np.float64)


def exact(x):
    return x


def noisy(rng):
    def r(x):
        _, e = np.frexp(x)  # |x| in [2^(e-1), 2^e): a BF16 ulp is 2^(e-8)
        return x + np.ldexp(rng.uniform(-0.5, 0.5, np.shape(x)), e - 8)

    return r


def rms(x, w, eps, R):
    return R(R(x / np.sqrt((x * x).mean(-1, keepdims=True) + eps)) * w)


def attention(q, k, v, R):
    n, n_head, d = q.shape
    k, v = (np.repeat(t, n_head // t.shape[1], axis=1) for t in (k, v))
    s = np.einsum("ihd,jhd->hij", q, k) / np.sqrt(d)
    s = np.where(np.tril(np.ones((n, n))) > 0, s, -np.inf)
    p = np.exp(s - s.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    return R(np.einsum("hij,jhd->ihd", p, v)).reshape(n, -1)


def silu_mul(g, u, R):
    return R(R(g / (1 + np.exp(-g))) * u)


def rope_half(x, c, s, R):
    h = x.shape[-1] // 2
    a, b = x[..., :h], x[..., h:]
    return np.concatenate([R(R(a * c) - R(b * s)), R(R(b * c) + R(a * s))], -1)


def rope_pairs(x, c, s, R):
    a, b = x[..., 0::2], x[..., 1::2]
    y = np.empty_like(x)
    y[..., 0::2], y[..., 1::2] = R(a * c - b * s), R(b * c + a * s)
    return y


def llama(cfg, w, ids, n_loop, branch_norms, R):
    """Ouro (branch_norms) and Nanbeige: docs/models/ouro.md, nanbeige.md."""
    n, d, eps = len(ids), cfg["head_dim"], cfg["rms_norm_eps"]
    ang = np.arange(n)[:, None] * cfg["rope_theta"] ** (-2 * np.arange(d // 2) / d)
    c, s = R(np.cos(ang))[:, None], R(np.sin(ang))[:, None]
    h = w["model.embed_tokens.weight"][ids]
    for _ in range(n_loop):
        for il in range(cfg["num_hidden_layers"]):
            W = lambda key: w[f"model.layers.{il}.{key}.weight"]
            post = (lambda x, key: rms(x, W(key), eps, R)) if branch_norms else (lambda x, key: x)
            a = rms(h, W("input_layernorm"), eps, R)
            q, k, v = (R(a @ W(f"self_attn.{x}_proj").T).reshape(n, -1, d) for x in "qkv")
            o = attention(rope_half(q, c, s, R), rope_half(k, c, s, R), v, R)
            h = R(h + post(R(o @ W("self_attn.o_proj").T), "input_layernorm_2"))
            m = rms(h, W("post_attention_layernorm"), eps, R)
            f = silu_mul(R(m @ W("mlp.gate_proj").T), R(m @ W("mlp.up_proj").T), R)
            h = R(h + post(R(f @ W("mlp.down_proj").T), "post_attention_layernorm_2"))
        h = rms(h, w["model.norm.weight"], eps, R)
    return R(h @ w["lm_head.weight"].T)


def huginn(cfg, w, ids, init, R):
    """docs/models/huginn.md. F32 file: weights are rounded first, as a BF16 run rounds them (exact in BF16 here)."""
    n, n_head, eps, n_ff = len(ids), cfg["n_heads"], cfg["norm_eps"], cfg["intermediate_size"]
    n_embd = cfg["n_embd"]
    d = n_embd // n_head
    table = w["freqs_cis"][0, :n, 0]
    c, s = table[:, None, :, 0], table[:, None, :, 1]
    fin = w["transformer.ln_f.weight"]

    def block(x, p):
        W = lambda key: w[f"transformer.{p}.{key}"]
        y = R(rms(x, W("norm_1.weight"), eps, R) @ W("attn.Wqkv.weight").T).reshape(n, 3, n_head, d)
        bias = W("attn.qk_bias")[:, 0]
        q, k = rope_pairs(R(y[:, 0] + bias[0]), c, s, R), rope_pairs(R(y[:, 1] + bias[1]), c, s, R)
        a = R(attention(q, k, y[:, 2], R) @ W("attn.proj.weight").T)
        x = rms(R(a + x), W("norm_2.weight"), eps, R)
        gu = R(rms(x, W("norm_3.weight"), eps, R) @ W("mlp.fc.weight").T)
        f = R(silu_mul(gu[:, :n_ff], gu[:, n_ff:], R) @ W("mlp.proj.weight").T)
        return rms(R(f + x), W("norm_4.weight"), eps, R)

    e = R(w["transformer.wte.weight"][ids] * np.float64(np.float32(np.sqrt(n_embd))))
    for i in range(cfg["n_layers_in_prelude"]):
        e = block(e, f"prelude.{i}")
    x = R(init) if init is not None else np.zeros((n, n_embd))
    for _ in range(cfg["mean_recurrence"]):
        x = R(np.concatenate([x, e], -1) @ w["transformer.adapter.weight"].T)
        for i in range(cfg["n_layers_in_recurrent_block"]):
            x = block(x, f"core_block.{i}")
    x = rms(x, fin, eps, R)
    for i in range(cfg["n_layers_in_coda"]):
        x = block(x, f"coda.{i}")
    return R(rms(x, fin, eps, R) @ w["transformer.wte.weight"].T)


def forward(family, cfg, w, ids, init, R):
    if family == "huginn":
        return huginn(cfg, w, ids, init, R)
    return llama(cfg, w, ids, cfg.get("total_ut_steps", cfg.get("num_loops")), family == "ouro", R)


def spread(run, reference):
    """sigma per logit [n, n_vocab] over N_MC noisy runs."""
    total = np.zeros_like(reference)
    for seed in range(N_MC):
        total += (run(noisy(np.random.default_rng(seed))) - reference) ** 2
    return np.sqrt(total / N_MC)


def rounded(x):
    return [round(float(v), 6) for v in x]


def main():
    out = {}
    for family in ("ouro", "huginn", "nanbeige"):
        path = f"tests/golden/models/{family}-tiny/"
        cfg, w = json.load(open(path + "config.json")), load(path)
        prefill, forced = [], []
        for case in json.load(open(path + "expected.json"))["cases"]:
            init = np.array(case["initial_state"]) if case.get("initial_state") else None
            ids = case["ids"]
            run = lambda R: forward(family, cfg, w, ids, init, R)
            if case["kind"] == "prefill":
                ref = run(exact)
                assert abs(ref[-1] - case["logits"]).max() < 1e-5, (family, case["name"])
                sigma = spread(run, ref)[-1]
                prefill.append({"name": case["name"], "logits": rounded(run(bf16)[-1]), "sigma": round(float(np.sqrt((sigma**2).mean())), 6)})
            elif case["exit"] == "fixed" and case["layout"] == "last_exited" and set(case["loops"]) == {case["max_loops"]}:
                ids = case["ids"] + case["tokens"][:-1]
                first = len(case["ids"]) - 1
                ref, low = run(exact), run(bf16)
                assert (ref[first:].argmax(-1) == case["tokens"]).all(), (family, case["prompt"])
                top = np.sort(ref[first:], -1)
                sigma = np.sqrt((spread(run, ref)[first:] ** 2).mean(-1))
                forced.append(
                    {
                        "prompt": case["prompt"],
                        "bf16_tokens": low[first:].argmax(-1).tolist(),
                        "gap": rounded(top[:, -1] - top[:, -2]),
                        "sigma": rounded(sigma),
                    }
                )
        out[family] = {"prefill": prefill, "forced": forced}
        for p in prefill:
            print(family, p["name"], "sigma", p["sigma"], file=sys.stderr)
        for f in forced:
            case_gap, sg = np.array(f["gap"]), np.array(f["sigma"])
            print(family, f["prompt"], "clear positions", int((case_gap > 6 * np.sqrt(2) * sg).sum()), "of", len(sg), "sigma", sg.mean(), file=sys.stderr)
    with open("tests/golden/bf16.json", "w") as f:
        json.dump(out, f)
        f.write("\n")


if __name__ == "__main__":
    main()
