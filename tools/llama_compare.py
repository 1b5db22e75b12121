#!/usr/bin/env python3
"""gyre beside llama.cpp on one looped model: a Nanbeige of 300M parameters with random weights (gyre synth), converted to GGUF.

    python3 tools/llama_compare.py setup                a Python environment under build/llama with llama-cpp-python built from
                                                        source for this machine (some ten minutes), gguf and numpy
    python3 tools/llama_compare.py convert              the checkpoint and its GGUF files (F32, BF16, Q8_0; 2.5 GB in all)
    python3 tools/llama_compare.py check                greedy tokens of both in F32: shows that they run the same model
    python3 tools/llama_compare.py run [--form bf16|q8_0] [--turns 3] [--prompt 512] [--out 64] [--threads N] [--json]
                                       [--gyre-args "..."]

`run` measures a prompt of --prompt tokens up to its first output, and the mean time of --out further outputs, in turns: a
process of gyre (`gyre bench engine`), a process of llama.cpp, and so on; figures are medians of the turns with the best beside
them, the ratio is theirs over ours (above 1: gyre is faster) and that of the medians. Same threads, pinned on both sides. llama.cpp gets its defaults:
flash attention where it decides so, KV in F16, repacked weights, batches of 512; nothing of the prompt but the last row has
logits on either side. Q8_0 has a scale for each 32 weights and quantizes activations alike; it is set beside gyre's
`--weights int8 --weights-head`, which is another format.
Needs build/release/gyre (./do build). Not part of any test: nothing else here knows llama.cpp.
"""
import argparse
import json
import os
import statistics
import struct
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
HOME = os.path.join(ROOT, "build", "llama")
VENV = os.path.join(HOME, "venv")
MODEL = os.path.join(HOME, "nanbeige-300m")
GYRE = os.path.join(ROOT, "build", "release", "gyre")
PACKAGES = ["numpy", "gguf==0.19.0", "llama-cpp-python==0.3.36"]
FORMS = {"bf16": ["--weights", "bf16"], "q8_0": ["--weights", "int8", "--weights-head"]}


def gguf_path(form):
    return f"{MODEL}-{form}.gguf"


def setup():
    subprocess.run([sys.executable, "-m", "venv", VENV], check=True)
    env = dict(os.environ, CMAKE_ARGS="-DLLAVA_BUILD=OFF")
    pip = [VENV + "/bin/python", "-m", "pip", "install", "--disable-pip-version-check", "--no-binary", "llama-cpp-python"]
    subprocess.run(pip + PACKAGES, check=True, env=env)


def inside_venv(args):
    """The same command by the environment's Python, which has the packages."""
    python = VENV + "/bin/python"
    if not os.path.exists(python):
        sys.exit(f"{python} is not there: run tools/llama_compare.py setup")
    os.execv(python, [python, os.path.abspath(__file__)] + args)


# ---- conversion -----------------------------------------------------------------------------------------------------


def tensors_read(path):
    """name -> F32 array, from BF16 safetensors."""
    import numpy as np

    with open(path, "rb") as f:
        n = struct.unpack("<Q", f.read(8))[0]
        head = json.loads(f.read(n))
    raw = np.memmap(path, dtype=np.uint8, mode="r", offset=8 + n)
    for name, t in head.items():
        if name == "__metadata__":
            continue
        if t["dtype"] != "BF16":
            sys.exit(f"{path}: tensor {name}: found {t['dtype']}, expected BF16")
        lo, hi = t["data_offsets"]
        bits = raw[lo:hi].view(np.uint16).astype(np.uint32) << 16
        yield name, bits.view(np.float32).reshape(t["shape"])


def pairs_interleaved(w, n_head):
    """llama.cpp rotates neighbouring elements of a head; the checkpoint's pairs lie half a head apart."""
    return w.reshape(n_head, 2, w.shape[0] // n_head // 2, w.shape[1]).swapaxes(1, 2).reshape(w.shape)


LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
OTHER_NAMES = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def gguf_name(name):
    stem = name.removesuffix(".weight")
    if stem in OTHER_NAMES:
        return OTHER_NAMES[stem] + ".weight"
    layer, part = stem.removeprefix("model.layers.").split(".", 1)
    return f"blk.{layer}.{LAYER_NAMES[part]}.weight"


def gguf_write(form, config):
    import gguf

    kind = {"f32": gguf.GGMLQuantizationType.F32, "bf16": gguf.GGMLQuantizationType.BF16, "q8_0": gguf.GGMLQuantizationType.Q8_0}[form]
    w = gguf.GGUFWriter(gguf_path(form), "nanbeige")
    w.add_vocab_size(config["vocab_size"])
    w.add_context_length(config["max_position_embeddings"])
    w.add_embedding_length(config["hidden_size"])
    w.add_feed_forward_length(config["intermediate_size"])
    w.add_block_count(config["num_hidden_layers"])
    w.add_head_count(config["num_attention_heads"])
    w.add_head_count_kv(config["num_key_value_heads"])
    w.add_key_length(config["head_dim"])
    w.add_value_length(config["head_dim"])
    w.add_rope_dimension_count(config["head_dim"])
    w.add_rope_freq_base(config["rope_theta"])
    w.add_layer_norm_rms_eps(config["rms_norm_eps"])
    w.add_uint32("nanbeige.num_loops", config["num_loops"])  # gguf 0.19 has no name for these two
    w.add_bool("nanbeige.skip_loop_final_norm", config["skip_loop_final_norm"])
    w.add_tokenizer_model("no_vocab")
    for name, t in tensors_read(MODEL + "/model.safetensors"):
        if ".q_proj" in name:
            t = pairs_interleaved(t, config["num_attention_heads"])
        if ".k_proj" in name:
            t = pairs_interleaved(t, config["num_key_value_heads"])
        to = kind if t.ndim == 2 else gguf.GGMLQuantizationType.F32
        w.add_tensor(gguf_name(name), gguf.quants.quantize(t, to), raw_dtype=to)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def convert():
    os.makedirs(HOME, exist_ok=True)
    if not os.path.exists(MODEL):
        subprocess.run([GYRE, "synth", "--shape", "nanbeige-300m", "--seed", "1", MODEL], check=True)
    config = json.load(open(MODEL + "/config.json"))
    for form in ("f32", "bf16", "q8_0"):
        if not os.path.exists(gguf_path(form)):
            print(f"writing {gguf_path(form)}")
            gguf_write(form, config)


# ---- llama.cpp ------------------------------------------------------------------------------------------------------


class Llama:
    """A model and a context by llama.cpp's C API, greedy."""

    def __init__(self, path, n_ctx, n_thread, exact=False):
        import llama_cpp as c

        self.c = c
        c.llama_backend_init()
        self.log = c.llama_log_callback(lambda level, text, data: None)
        c.llama_log_set(self.log, None)
        self.model = c.llama_model_load_from_file(path.encode(), c.llama_model_default_params())
        if not self.model:
            sys.exit(f"{path}: llama.cpp cannot load it")
        p = c.llama_context_default_params()
        p.n_ctx = n_ctx
        p.n_batch = p.n_ubatch = 512
        p.n_threads = p.n_threads_batch = n_thread
        if exact:
            p.type_k = p.type_v = 0  # F32
            p.flash_attn_type = 0
        self.ctx = c.llama_init_from_model(self.model, p)
        if not self.ctx:
            sys.exit(f"{path}: llama.cpp cannot make a context of it")
        self.n_vocab = c.llama_vocab_n_tokens(c.llama_model_get_vocab(self.model))

    def forget(self):
        self.c.llama_memory_clear(self.c.llama_get_memory(self.ctx), True)

    def step(self, ids):
        """Runs the tokens, returns the likeliest next one."""
        import numpy as np

        array = (self.c.llama_token * len(ids))(*ids)
        if self.c.llama_decode(self.ctx, self.c.llama_batch_get_one(array, len(ids))):
            sys.exit("llama.cpp: llama_decode failed")
        logits = np.ctypeslib.as_array(self.c.llama_get_logits_ith(self.ctx, -1), (self.n_vocab,))
        return int(logits.argmax())

    def greedy(self, prompt, n):
        self.forget()
        out = [self.step(prompt)]
        while len(out) < n:
            out.append(self.step(out[-1:]))
        return out


def prompt_ids(n, seed, n_vocab):
    return [(7919 * (i + 1) + 104729 * seed) % (n_vocab - 16) + 8 for i in range(n)]


def llama_side(a):
    """One turn, in a process of its own: prints JSON."""
    m = Llama(gguf_path(a.form), a.prompt + a.out + 64, a.threads)
    m.greedy(prompt_ids(32, 99, m.n_vocab), 4)
    m.forget()
    prompt = prompt_ids(a.prompt, a.seed, m.n_vocab)
    t0 = time.perf_counter()
    token = m.step(prompt)
    t1 = time.perf_counter()
    for _ in range(a.out):
        token = m.step([token])
    t2 = time.perf_counter()
    print(json.dumps({"prefill_ms": (t1 - t0) * 1e3, "decode_ms": (t2 - t1) * 1e3 / a.out}))


# ---- both -----------------------------------------------------------------------------------------------------------


def gyre_turn(a, seed):
    cmd = [GYRE, "bench", "engine", MODEL, "--workload", "burst", "--concurrency", "1", "--in", str(a.prompt), "--out", str(a.out + 1)]
    cmd += ["--repeat", "1", "--warmup", "0", "--max-seqs", "1", "--seed", str(seed), "--threads", str(a.threads), "--json", "-"]
    out = subprocess.run(cmd + FORMS[a.form] + a.gyre_args.split(), check=True, capture_output=True, text=True).stdout
    r = json.loads(out)
    repeat = r["series"][0]["median"]
    return {"prefill_ms": repeat["ttft_ms"]["p50"], "decode_ms": repeat["tpot_ms"]["p50"]}


def llama_turn(a, seed):
    env = dict(os.environ, OMP_NUM_THREADS=str(a.threads), OMP_PROC_BIND="true")
    cmd = [sys.executable, os.path.abspath(__file__), "llama-side", "--form", a.form, "--prompt", str(a.prompt), "--out", str(a.out)]
    out = subprocess.run(cmd + ["--threads", str(a.threads), "--seed", str(seed)], check=True, capture_output=True, text=True, env=env)
    return json.loads(out.stdout)


def run(a):
    """gyre without a warm-up: its prompt pays for mapping the checkpoint's pages, llama.cpp's does not."""
    ours, theirs = [], []
    for turn in range(a.turns):
        ours.append(gyre_turn(a, turn + 1))
        theirs.append(llama_turn(a, turn + 1))
        if a.json:
            print(json.dumps({"what": "turn", "form": a.form, "threads": a.threads, "ours": ours[-1], "theirs": theirs[-1]}), flush=True)
    if not a.json:
        print("| form | what | gyre, ms: median (best) | llama.cpp | ratio | tok/s: gyre, llama.cpp |\n|---|---|---|---|---|---|")
    for key, n_tok in (("prefill_ms", a.prompt), ("decode_ms", 1)):
        x, y = [t[key] for t in ours], [t[key] for t in theirs]
        mx, my = statistics.median(x), statistics.median(y)
        what = f"prefill {a.prompt}" if n_tok > 1 else f"decode {a.out}"
        if a.json:
            row = {"what": "llama", "form": a.form, "cell": what, "ours_ms": x, "theirs_ms": y, "ratio": my / mx, "threads": a.threads}
            print(json.dumps(row))
        else:
            rates = f"{n_tok / mx * 1e3:.0f}, {n_tok / my * 1e3:.0f}"
            print(f"| {a.form} | {what} | {mx:.1f} ({min(x):.1f}) | {my:.1f} ({min(y):.1f}) | **{my / mx:.2f}** | {rates} |")


def check(a):
    m = Llama(gguf_path("f32"), 256, a.threads, exact=True)
    bad = 0
    for seed in range(4):
        prompt = prompt_ids(5 + 7 * seed, seed, m.n_vocab)
        cmd = [GYRE, "run", MODEL, "--prompt-ids", ",".join(map(str, prompt)), "--max-tokens", "16", "--ignore-eos", "--dtype", "f32", "--json"]
        ours = json.loads(subprocess.run(cmd, check=True, capture_output=True, text=True).stdout)["token_ids"]
        theirs = m.greedy(prompt, 16)
        same = next((i for i, (x, y) in enumerate(zip(ours, theirs)) if x != y), 16)
        bad += same < 16
        print(f"prompt of {len(prompt)}: {same} of 16 tokens equal" + ("" if same == 16 else f": {ours} {theirs}"))
    return 1 if bad else 0


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("command", choices=["setup", "convert", "check", "run", "llama-side"])
    p.add_argument("--form", choices=list(FORMS), default="bf16")
    p.add_argument("--turns", type=int, default=3)
    p.add_argument("--prompt", type=int, default=512)
    p.add_argument("--out", type=int, default=64)
    p.add_argument("--threads", type=int, default=os.cpu_count())
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--gyre-args", default="")
    p.add_argument("--json", action="store_true")
    a = p.parse_args()
    if a.command == "setup":
        return setup()
    if sys.prefix == sys.base_prefix or not os.path.samefile(sys.prefix, VENV):
        inside_venv(sys.argv[1:])
    return {"convert": lambda a: convert(), "check": check, "run": run, "llama-side": llama_side}[a.command](a)


if __name__ == "__main__":
    sys.exit(main())
