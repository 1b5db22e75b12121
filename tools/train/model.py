"""The Ouro architecture in PyTorch, as docs/models/ouro.md states it, written so that logits equal gyre's (check_logits.py).

The state's dtype is the dtype of all arithmetic but norms, angles and the gate: float32 for checks, bfloat16 for training,
with the residual in BF16 as at inference; weights are always held in float32. Two things are for speed only and undone by
export(): q, k, v are one matrix, gate and up another.

Leaving early is part of the forward pass. A position that has left after loop e shows later loops its keys and values of
loop e (min(d, e), the layout last_exited), so training sees the KV that inference has.
"""
import json
import os
import struct
from dataclasses import asdict, dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class Shape:
    n_vocab: int = 2048
    n_embd: int = 384
    n_ff: int = 928
    n_layer: int = 3
    n_head: int = 6
    n_loop: int = 4
    max_pos: int = 1024
    theta: float = 10000.0
    eps: float = 1e-6


SIZES = {"ship": Shape(),
         "mini": Shape(n_embd=128, n_ff=320, n_layer=2, n_head=4), "tiny": Shape(n_embd=64, n_ff=160, n_layer=2, n_head=2),
         "odd": Shape(n_vocab=2048, n_embd=96, n_ff=224)}
BRANCH = 0.2  # norms behind a branch start here: a branch of 1 would drown an embedding of 0.05


def rms(x, weight, eps):
    y = x.float()
    return (y * torch.rsqrt(y.square().mean(-1, keepdim=True) + eps)).to(x.dtype) * weight.to(x.dtype)


def linear(x, weight):
    return F.linear(x, weight.to(x.dtype))


def rotate(x, cos, sin):
    a, b = x.float().chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(x.dtype)


def matrix(rows, cols):
    return nn.Parameter(torch.randn(rows, cols) * cols**-0.5)


class Layer(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.s = s
        self.qkv, self.o = matrix(3 * s.n_embd, s.n_embd), matrix(s.n_embd, s.n_embd)
        self.gate_up, self.down = matrix(2 * s.n_ff, s.n_embd), matrix(s.n_embd, s.n_ff)
        self.norms = nn.ParameterList([nn.Parameter(torch.full((s.n_embd,), v)) for v in (1.0, BRANCH, 1.0, BRANCH)])

    def forward(self, h, cos, sin, mask, old_k, old_v, inside):
        """h [rows, L, n_embd]; old_*: keys and values of the loop before; inside [rows, L]: has not left yet."""
        s, eps = self.s, self.s.eps
        shape = (h.shape[0], h.shape[1], s.n_head, s.n_embd // s.n_head)
        q, k, v = (x.reshape(shape).transpose(1, 2) for x in linear(rms(h, self.norms[0], eps), self.qkv).chunk(3, -1))
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        if old_k is not None:
            keep = inside[:, None, :, None]
            k, v = torch.where(keep, k, old_k), torch.where(keep, v, old_v)
        a = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        h = h + rms(linear(a.transpose(1, 2).reshape(h.shape), self.o), self.norms[1], eps)
        gate, up = linear(rms(h, self.norms[2], eps), self.gate_up).chunk(2, -1)
        return h + rms(linear(F.silu(gate) * up, self.down), self.norms[3], eps), k, v


@dataclass
class Exit:
    """Who leaves: the rule `gate` (docs/models/ouro.md), or after a loop that is given, to train for any pattern."""

    made: torch.Tensor  # [rows, L] generated positions; others never leave
    threshold: torch.Tensor  # [rows, 1] above 1: the rule never says leave
    loop: torch.Tensor = None  # [rows, L] leaves after this loop whatever the gate says; 0: does not
    min_loops: int = 2

    def after(self, loops, probability):
        out = probability >= self.threshold if loops >= self.min_loops else torch.zeros_like(self.made)
        return self.made & (out if self.loop is None else out | (self.loop == loops))


class Ouro(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.s = shape
        self.embed = nn.Parameter(torch.randn(shape.n_vocab, shape.n_embd) * 0.05)
        self.layers = nn.ModuleList([Layer(shape) for _ in range(shape.n_layer)])
        self.norm = nn.Parameter(torch.ones(shape.n_embd))
        self.gate_w = nn.Parameter(torch.zeros(1, shape.n_embd))
        self.gate_b = nn.Parameter(torch.full((1,), -1.0))
        self.step, self.end = [layer.forward for layer in self.layers], rms  # train.py puts compiled ones here

    def angles(self, n, device):
        half = self.s.n_embd // self.s.n_head // 2
        freq = self.s.theta ** (-torch.arange(half, dtype=torch.float32, device=device) / half)
        angle = torch.arange(n, dtype=torch.float32, device=device)[:, None] * freq
        return angle.cos(), angle.sin()

    def forward(self, ids, doc, leave=None, dtype=torch.float32):
        """States [n_loop] of [rows, L, n_embd], gates [rows, L, n_loop], loops [rows, L] that each position ran.

        doc [rows, L]: attention stays inside a document. leave: an Exit, or None for full depth.
        """
        n = ids.shape[1]
        causal = torch.ones(n, n, dtype=torch.bool, device=ids.device).tril()
        mask = ((doc[:, :, None] == doc[:, None, :]) & causal)[:, None]
        mask = torch.zeros(mask.shape, dtype=dtype, device=ids.device).masked_fill_(~mask, float("-inf"))
        cos, sin = self.angles(n, ids.device)
        h = F.embedding(ids, self.embed).to(dtype)
        inside = torch.ones_like(ids, dtype=torch.bool)
        stay = torch.ones(ids.shape, dtype=torch.float32, device=ids.device)
        loops = torch.zeros_like(ids)
        kv = [(None, None)] * self.s.n_layer
        states, gates = [], []
        for t in range(self.s.n_loop):
            for il, step in enumerate(self.step):
                h, k, v = step(h, cos, sin, mask, *kv[il], inside if t else None)
                kv[il] = (k, v)
            h = self.end(h, self.norm, self.s.eps)
            gate = self.gate(h)
            states.append(h)
            gates.append(gate)
            loops = loops + inside
            if leave is not None:
                stay = stay * (1 - torch.sigmoid(gate.detach()))
                inside = inside & ~leave.after(t + 1, 1 - stay)
        return states, torch.stack(gates, -1), loops

    def gate(self, h):
        return (F.linear(h.float(), self.gate_w) + self.gate_b)[..., 0]

    def logits(self, h):
        return F.linear(h, self.embed.to(h.dtype))


def tensors(model):
    """Published names and shapes (docs/models/ouro.md, Tensors); the head is the embedding."""
    out = {"model.embed_tokens.weight": model.embed, "model.norm.weight": model.norm}
    out |= {"model.early_exit_gate.weight": model.gate_w, "model.early_exit_gate.bias": model.gate_b}
    norms = ("input_layernorm", "input_layernorm_2", "post_attention_layernorm", "post_attention_layernorm_2")
    for i, layer in enumerate(model.layers):
        at = f"model.layers.{i}."
        for name, w in zip("qkv", layer.qkv.chunk(3)):
            out[f"{at}self_attn.{name}_proj.weight"] = w
        out[at + "self_attn.o_proj.weight"] = layer.o
        for name, w in zip(("gate", "up"), layer.gate_up.chunk(2)):
            out[f"{at}mlp.{name}_proj.weight"] = w
        out[at + "mlp.down_proj.weight"] = layer.down
        out |= {f"{at}{name}.weight": w for name, w in zip(norms, layer.norms)}
    return {name: w.detach() for name, w in out.items()}


def bf16_bits(x):
    """Rounded to nearest, ties to even."""
    return x.detach().cpu().to(torch.bfloat16).contiguous().view(torch.int16).numpy().tobytes()


def save(path, arrays):
    """A safetensors file of {name: (dtype, shape, bytes)}, put in place at once."""
    head, at = {}, 0
    for name, (dtype, shape, raw) in arrays.items():
        head[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + len(raw)]}
        at += len(raw)
    text = json.dumps(head, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path + ".new", "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for _, _, raw in arrays.values():
            f.write(raw)
    os.replace(path + ".new", path)


def load(path):
    """{name: float32 tensor} of a file in BF16 or F32."""
    raw = open(path, "rb").read()
    n = struct.unpack("<Q", raw[:8])[0]
    out = {}
    for name, t in json.loads(raw[8 : 8 + n]).items():
        a, b = (8 + n + x for x in t["data_offsets"])
        part = np.frombuffer(raw[a:b], np.int16 if t["dtype"] == "BF16" else np.float32).reshape(t["shape"])
        value = torch.from_numpy(part.copy())
        out[name] = value.view(torch.bfloat16).float() if t["dtype"] == "BF16" else value
    return out


def restore(model, values):
    """The reverse of tensors()."""
    with torch.no_grad():
        for name, w in tensors(model).items():
            w.copy_(values[name])


def config(s):
    return {
        "architectures": ["OuroForCausalLM"],
        "model_type": "ouro",
        "torch_dtype": "bfloat16",
        "vocab_size": s.n_vocab,
        "hidden_size": s.n_embd,
        "intermediate_size": s.n_ff,
        "num_hidden_layers": s.n_layer,
        "num_attention_heads": s.n_head,
        "num_key_value_heads": s.n_head,
        "head_dim": s.n_embd // s.n_head,
        "hidden_act": "silu",
        "rms_norm_eps": s.eps,
        "rope_theta": s.theta,
        "max_position_embeddings": s.max_pos,
        "tie_word_embeddings": True,
        "total_ut_steps": s.n_loop,
        "early_exit_threshold": 1.0,
        "bos_token_id": 1,
        "eos_token_id": [2, 0],
        "pad_token_id": 2,
    }


def export(model, folder, dtype="BF16"):
    """config.json and model.safetensors; the tokenizer's files are copied by whoever calls."""
    os.makedirs(folder, exist_ok=True)
    raw = bf16_bits if dtype == "BF16" else lambda w: w.cpu().contiguous().numpy().tobytes()
    save(f"{folder}/model.safetensors", {n: (dtype, w.shape, raw(w)) for n, w in tensors(model).items()})
    with open(f"{folder}/config.json", "w") as f:
        json.dump(config(model.s), f, indent=1)


def flops(s, length):
    """Of one token, forward: matrices of one loop, head once a loop, attention at half the length."""
    layer = 2 * (4 * s.n_embd**2 + 3 * s.n_embd * s.n_ff)
    return s.n_loop * (s.n_layer * (layer + 4 * s.n_embd * length / 2) + 2 * s.n_vocab * s.n_embd)


def n_param(s):
    return s.n_vocab * s.n_embd + s.n_layer * (4 * s.n_embd**2 + 3 * s.n_embd * s.n_ff + 4 * s.n_embd) + 2 * s.n_embd + 1


def shape_text(s):
    return " ".join(f"{k} {v}" for k, v in asdict(s).items())
