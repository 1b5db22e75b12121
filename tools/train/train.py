#!/usr/bin/env python3
"""Trains the model that ships: README.md has the recipe and the reasons.

    python3 train.py --text text.xz --tokenizer DIR --out OUT --seconds 540

Everything happens within --seconds from the start of the program: stage 1 trains all weights (loss of every loop, weighted by
the exit distribution and a prior; entropy of that distribution), stage 2 the gate alone, then a look at the tasks. Every minute
and at the end OUT/model gets the model as gyre reads it, OUT/resume-*.safetensors what --resume needs (rest of the weights'
bits, moments), OUT/log.jsonl a line. The learning rate follows progress, which is time passed of --seconds, or steps of
--steps where a run must be repeated exactly.
"""
import argparse
import glob
import json
import math
import os
import shutil
import time

import data
import numpy as np
import tasks
import torch
import torch.nn.functional as F
from data import LOSS, MADE, TASK, Corpus, Loader
from model import SIZES, Exit, Ouro, bf16_bits, export, flops, load, n_param, restore, rms, save, shape_text, tensors
from tokenizers import Tokenizer

PRIOR = (0.1, 0.2, 0.3, 0.4)  # half of a loop's weight: no loop, and the last least of all, goes without training
TEXT_WEIGHT = 0.5  # of a token of text or a definition; a task's is 1
GAIN, SHARPNESS = 0.02, 200.0  # stage 2: a loss that can still fall by more than GAIN is a reason to go on
THRESHOLDS = (0.5, 0.7, 0.8, 0.9, 0.95, 0.99)


def options():
    p = argparse.ArgumentParser()
    p.add_argument("--text", required=True)
    p.add_argument("--tokenizer", required=True)
    p.add_argument("--out", required=True)
    p.add_argument("--size", default="ship", choices=SIZES)
    p.add_argument("--seconds", type=float, default=540)
    p.add_argument("--steps", type=int, help="stage 1 by steps instead of time")
    p.add_argument("--gate-seconds", type=float, default=25)
    p.add_argument("--end-seconds", type=float, default=15, help="kept for the last evaluation and files")
    p.add_argument("--rows", type=int, default=128)
    p.add_argument("--length", type=int, default=256)
    p.add_argument("--lr", type=float, default=2e-3)
    p.add_argument("--warm", type=int, default=100, help="steps of warm-up")
    p.add_argument("--adam", action="store_true", help="AdamW for matrices too, for comparison")
    p.add_argument("--only", help="one task alone, for rehearsals; at difficulties up to --most")
    p.add_argument("--most", type=int, default=1)
    p.add_argument("--tests", type=int, default=200, help="of each task and difficulty, for the looks on the way")
    p.add_argument("--say", type=int, default=100, help="steps between lines")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 2))
    p.add_argument("--compile", action="store_true")
    p.add_argument("--bf16", action="store_true", help="on the CPU too")
    p.add_argument("--resume", help="folder with model/ and resume-*.safetensors")
    p.add_argument("--init", help="folder of a trained model: its weights, no moments; --teach says what it is to learn besides")
    p.add_argument("--teach", default="hops", help="with --init: the task that it has not learned")
    p.add_argument("--share", type=float, default=0.5, help="with --init: that one's part of all tasks; the others are repeated")
    p.add_argument("--progress", type=float, default=0.0, help="where the schedule begins, with --resume")
    return p.parse_args()


# ---- optimizer -------------------------------------------------------------------------------------------------------


def orthogonal(g):
    """Nearly the closest orthogonal matrix: five steps of the quintic Newton-Schulz iteration of Muon (K. Jordan, 2024)."""
    x = g.bfloat16() if g.is_cuda else g
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    for _ in range(5):
        a = x @ x.mT
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return (x.mT if tall else x).to(g.dtype)


class Optimizer:
    """Muon for matrices of layers (q, k, v and gate, up each on their own), Adam for the rest; decoupled decay for matrices."""

    def __init__(self, model, adam):
        self.named = dict(model.named_parameters())
        self.parts = {n: 3 if n.endswith("qkv") else 2 if n.endswith("gate_up") else 1 for n in self.named}
        self.muon = [] if adam else [n for n, p in self.named.items() if p.ndim == 2 and n.startswith("layers.")]
        self.adam = [n for n in self.named if n not in self.muon]
        self.m = {n: torch.zeros_like(p) for n, p in self.named.items()}
        self.v = {n: torch.zeros_like(self.named[n]) for n in self.adam}
        self.t = 0

    @torch.no_grad()
    def step(self, lr, decay=0.1):
        self.t += 1
        grads = [p.grad for p in self.named.values()]
        norm = torch.nn.utils.get_total_norm(grads)
        torch._foreach_mul_(grads, torch.clamp(1.0 / (norm + 1e-6), max=1.0))
        for n in self.muon:
            p = self.named[n]
            self.m[n].lerp_(p.grad, 0.05)
            u = p.grad.lerp(self.m[n], 0.95).view(self.parts[n], -1, p.shape[1])
            p.mul_(1 - lr * decay)
            p.add_(orthogonal(u).reshape(p.shape), alpha=-lr * 0.2 * max(u.shape[1:]) ** 0.5)
        params, grads = [self.named[n] for n in self.adam], [self.named[n].grad for n in self.adam]
        m, v = [self.m[n] for n in self.adam], [self.v[n] for n in self.adam]
        torch._foreach_lerp_(m, grads, 0.1)
        torch._foreach_mul_(v, 0.95)
        torch._foreach_addcmul_(v, grads, grads, 0.05)
        down = torch._foreach_sqrt(torch._foreach_div(v, 1 - 0.95**self.t))
        torch._foreach_add_(down, 1e-8)
        torch._foreach_addcdiv_(params, m, down, -lr / (1 - 0.9**self.t))
        if self.adam != list(self.named):
            return norm
        torch._foreach_mul_([p for p in params if p.ndim == 2], 1 - lr * decay)
        return norm


# ---- loss ------------------------------------------------------------------------------------------------------------


def cross_entropy(h, embed, target):
    logits = F.linear(h, embed.to(h.dtype)).float()
    return F.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="none").view(target.shape)


def exit_distribution(gates):
    """p(t) = hazard_t * product of (1 - hazard) before; what is left goes to the last loop. [.., n_loop]"""
    stay = F.logsigmoid(-gates[..., :-1]).cumsum(-1).exp()
    before = torch.cat((torch.ones_like(stay[..., :1]), stay), -1)
    return before - torch.cat((stay, torch.zeros_like(stay[..., :1])), -1)


def joint_loss(losses, gates, weight, beta):
    """Expected loss over the exit distribution, half of it under the fixed prior, less beta times the entropy."""
    p = exit_distribution(gates)
    prior = torch.tensor(PRIOR, device=p.device)
    entropy = -(p * (p + 1e-9).log()).sum(-1)
    each = (losses * (0.5 * p + 0.5 * prior)).sum(-1) - beta * entropy
    return (each * weight).sum() / weight.sum()


def gate_loss(losses, gates, weight):
    """Going on is right as far as a later loop's loss is lower; each loop but the last is asked."""
    later = losses.flip(-1).cummin(-1).values.flip(-1)[..., 1:]
    go_on = torch.sigmoid(SHARPNESS * (losses[..., :-1] - later - GAIN))
    each = F.binary_cross_entropy_with_logits(gates[..., :-1], 1 - go_on, reduction="none").mean(-1)
    return (each * weight).sum() / weight.sum()


# ---- a run -----------------------------------------------------------------------------------------------------------


class Run:
    def __init__(self, a):
        self.a, self.start = a, time.time()
        os.makedirs(a.out + "/model", exist_ok=True)
        self.tok = Tokenizer.from_file(a.tokenizer + "/tokenizer.json")
        self.corpus = Corpus(a.text, self.tok)
        rest = read_rest(a.resume) if a.resume else {"number": (0, 0)}
        self.number = int(rest["number"][0])
        # before the first call of CUDA: its state does not survive a fork
        self.loader = Loader(self.tok, self.corpus, a.seed, a.rows, a.length, a.workers, self.number)
        self.cuda = torch.cuda.is_available()
        self.device = "cuda" if self.cuda else "cpu"
        self.dtype = torch.bfloat16 if self.cuda or a.bf16 else torch.float32
        torch.manual_seed(a.seed)
        self.model = Ouro(SIZES[a.size]).to(self.device)
        self.opt = Optimizer(self.model, a.adam)
        if a.resume:
            self.resume(a.resume, rest)
        elif a.init:
            restore(self.model, load(a.init + "/model.safetensors"))
        self.rng = torch.Generator(self.device).manual_seed(a.seed + self.number)
        self.looks, self.tests = self.problems(8), self.problems(7)  # what chooses the checkpoint is not what judges it
        self.ce, self.joint = cross_entropy, joint_loss
        self.beta = torch.zeros((), device=self.device)  # a tensor: a number would be compiled in, step by step
        self.log = open(a.out + "/log.jsonl", "a")
        self.saved = time.time()
        self.best = ((-1, 0.0), 0, {})  # rank, step, weights

    def problems(self, seed):
        return [(t, d, encode_test(self.tok, tasks.test_set(t, d, self.a.tests, seed))) for t, ds in tasks.GRADES.items() for d in ds]

    def seconds(self):
        return time.time() - self.start

    def say(self, **entry):
        self.log.write(json.dumps(entry) + "\n")
        self.log.flush()
        print(" ".join(f"{k} {v}" for k, v in entry.items()), flush=True)

    def compiled(self):
        import torch._dynamo

        for name in ("recompile_limit", "cache_size_limit"):
            if hasattr(torch._dynamo.config, name):
                setattr(torch._dynamo.config, name, 64)
        self.model.step = [torch.compile(layer.forward, dynamic=False) for layer in self.model.layers]
        self.model.end = torch.compile(self.model.end, dynamic=False)
        self.ce = torch.compile(cross_entropy, dynamic=False)
        self.joint = torch.compile(joint_loss, dynamic=False)

    def there(self, x):
        """Pinned, so that the copy does not wait for the step before."""
        return x.pin_memory().to(self.device, non_blocking=True) if self.cuda else x

    def batch(self):
        ids, flags, doc = (self.there(torch.from_numpy(x)) for x in self.loader.next())
        self.number += 1
        ids, target = ids[:, :-1].long(), ids[:, 1:].long()
        loss, task = (flags[:, 1:] & LOSS) > 0, (flags[:, 1:] & TASK) > 0
        return ids, target, loss * torch.where(task, 1.0, TEXT_WEIGHT), (flags[:, :-1] & MADE) > 0, doc[:, :-1]

    def exits(self, made, share, free=0.3):
        """For a share of the rows: the gate's rule at a random threshold, or (free of those) any loop for each position."""
        u, kind, q = torch.rand((3, len(made), 1), device=self.device, generator=self.rng)
        loop = torch.randint(1, 5, made.shape, device=self.device, generator=self.rng)
        loop = torch.where((u < share) & (kind < free), loop, 0)
        return Exit(made, torch.where((u < share) & (kind >= free), 0.3 + 0.67 * q, 2.0), loop, 1)

    def losses(self, states, target):
        return torch.stack([self.ce(h, self.model.embed, target) for h in states], -1)

    def progress(self):
        a = self.a
        if a.steps:
            return self.number / a.steps
        return a.progress + (1 - a.progress) * self.seconds() / (a.seconds - a.gate_seconds - a.end_seconds)

    def stage_1(self):
        first, tick, done = self.number, time.time(), self.number
        while (p := self.progress()) < 1:
            ids, target, weight, made, doc = self.batch()
            lr = self.a.lr * min(1, (self.number - first) / self.a.warm) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * p)))
            states, gates, loops = self.model(ids, doc, self.exits(made, 0.0 if p < 0.25 else 0.5), self.dtype)
            losses = self.losses(states, target)
            loss = self.joint(losses, gates, weight, self.beta.fill_(0.1 - 0.08 * p))
            self.model.zero_grad(set_to_none=True)
            loss.backward()
            norm = self.opt.step(lr)
            if self.number % self.a.say == 0 or self.number == first + 10:
                mean = (losses.detach() * weight[..., None]).sum((0, 1)) / weight.sum()
                asked = made & (weight > 0)
                if not math.isfinite(loss.item()):
                    raise SystemExit("the loss is no number")
                self.say(step=self.number, s=round(self.seconds(), 1), progress=round(p, 3), lr=round(lr, 6), loss=round(loss.item(), 4),
                         loops=[round(x, 4) for x in mean.tolist()], depth=round(loops[asked].float().mean().item(), 2),
                         norm=round(norm.item(), 2), tok_s=int((self.number - done) * ids.numel() / (time.time() - tick)))
                tick, done = time.time(), self.number
            if time.time() - self.saved > 60:
                self.keep()
                tick, done = time.time(), self.number

    def stage_2(self):
        """The gate alone, on states as they are when tokens leave by this very gate."""
        gate = [self.model.gate_w, self.model.gate_b]
        opt = torch.optim.Adam(gate, lr=3e-3)
        begin, n = self.seconds(), 0
        limit = self.a.gate_seconds
        while self.seconds() - begin < limit:
            ids, target, weight, made, doc = self.batch()
            with torch.no_grad():
                states, _, loops = self.model(ids, doc, self.exits(made, 0.7, 0.0), self.dtype)
                losses = self.losses(states, target)
            gates = torch.stack([self.model.gate(h) for h in states], -1)
            loss = gate_loss(losses, gates, weight)
            opt.param_groups[0]["lr"] = 3e-3 * (1 - (self.seconds() - begin) / limit) + 1e-5
            opt.zero_grad()
            loss.backward()
            opt.step()
            n += 1
        self.say(stage=2, steps=n, s=round(self.seconds(), 1), loss=round(loss.item(), 4))

    def keep(self):
        """The model as gyre reads it, what resuming needs besides, and how the tasks stand."""
        folder = self.a.out + "/model"
        export(self.model, folder)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(f"{self.a.tokenizer}/{name}", f"{folder}/{name}")
        self.write_resume()
        right, group = self.summary()
        met, least = tasks.rank(group)
        self.say(step=self.number, s=round(self.seconds(), 1), right=right, met=met, least=round(least, 4))
        if (met, least) >= self.best[0]:
            self.best = (met, least), self.number, {n: p.detach().clone() for n, p in self.model.named_parameters()}
        self.saved = time.time()

    def go_back(self):
        """To the best of the looks (tasks.rank), if it is not the last."""
        _, step, values = self.best
        if step != self.number:
            self.say(back_to=step)
            with torch.no_grad():
                for n, p in self.model.named_parameters():
                    p.copy_(values[n])

    def write_resume(self, part_bytes=15_000_000):
        rest = {"low." + n: w - w.bfloat16().float() for n, w in tensors(self.model).items()}
        rest |= {"m." + n: x for n, x in self.opt.m.items()} | {"v." + n: x for n, x in self.opt.v.items()}
        arrays = {n: ("BF16", x.shape, bf16_bits(x)) for n, x in rest.items()}
        arrays["number"] = ("F32", (2,), np.array([self.number, self.opt.t], np.float32).tobytes())
        part, size, n_part = {}, 0, 0
        for n, array in arrays.items():
            if size + len(array[2]) > part_bytes:
                save(f"{self.a.out}/resume-{n_part}.safetensors", part)
                part, size, n_part = {}, 0, n_part + 1
            part[n], size = array, size + len(array[2])
        save(f"{self.a.out}/resume-{n_part}.safetensors", part)

    def resume(self, folder, rest):
        values = load(folder + "/model/model.safetensors")
        restore(self.model, {n: (w + rest["low." + n]).to(self.device) for n, w in values.items()})
        for kind, have in (("m.", self.opt.m), ("v.", self.opt.v)):
            for n, x in have.items():
                x.copy_(rest[kind + n])
        self.opt.t = int(rest["number"][1])

    def summary(self):
        """Share of right answers at full depth: by task and difficulty, and by group of goals."""
        out, cells = {}, {}
        for task, d, test in self.looks:
            cells[task, d] = len(test[0]), answer_all(self.model, test, 2.0, self.device, self.dtype)[0]
            out.setdefault(task, []).append(round(cells[task, d][1], 3))
        return out, tasks.by_group(cells)

    def table(self):
        runs = {q: {(t, d): (len(x[0]), *answer_all(self.model, x, q, self.device, self.dtype)) for t, d, x in self.tests}
                for q in (2.0, *THRESHOLDS)}
        lines = ["Teacher-forced in PyTorch (a greedy answer is right exactly if every token of it is the likeliest), weights as "
                 "in the file; loops: mean of generated tokens but the first.", "",
                 "| task | difficulty | n | full depth | " + " | ".join(f"{q}: right, loops" for q in THRESHOLDS) + " |",
                 "|---|---|---|---|" + "---|" * len(THRESHOLDS)]
        for (task, d), (n, full, _) in runs[2.0].items():
            cells = [f"{r:.3f}, {loops:.2f}" for _, r, loops in (runs[q][task, d] for q in THRESHOLDS)]
            lines.append(f"| {task} | {d} | {n} | {full:.3f} | " + " | ".join(cells) + " |")
        nll = self.perplexity()
        lines += ["", *verdict(runs), "", f"Text held out: {nll:.3f} nats a token, perplexity {math.exp(nll):.1f} (full depth)."]
        return "\n".join(lines) + "\n"

    @torch.no_grad()
    def perplexity(self, length=192):
        docs = [d[:length] for d in self.corpus.test[:256]]
        ids = torch.zeros(len(docs), length, dtype=torch.long)
        for i, d in enumerate(docs):
            ids[i, : len(d)] = torch.tensor(d)
        weight = torch.tensor([[j + 1 < len(d) for j in range(length - 1)] for d in docs], device=self.device)
        ids, total = ids.to(self.device), 0.0
        for at in range(0, len(docs), 64):
            part = ids[at : at + 64]
            states, _, _ = self.model(part[:, :-1], torch.ones_like(part[:, :-1]), None, self.dtype)
            total += (cross_entropy(states[-1], self.model.embed, part[:, 1:]) * weight[at : at + 64]).sum().item()
        return total / weight.sum().item()


def verdict(runs):
    """Lines: full depth (2.0) against the goals; each threshold's loops (mean of rows) and points lost by its worst group."""
    group = {q: tasks.by_group({k: c[:2] for k, c in cells.items()}) for q, cells in runs.items()}
    full = group.pop(2.0)
    lines = [f"* {g}: {x:.4f}, goal {tasks.GOALS[g]} {'met' if x >= tasks.GOALS[g] else 'MISSED'}" for g, x in full.items()]
    for q, right in group.items():
        loops = [c[2] for c in runs[q].values() if math.isfinite(c[2])]
        lost = max(full[g] - x for g, x in right.items())
        lines.append(f"* threshold {q}: {sum(loops) / len(loops):.2f} loops, {100 * lost:.2f} points lost at most")
    return lines


def read_rest(folder):
    return {k: v for path in sorted(glob.glob(folder + "/resume-*.safetensors")) for k, v in load(path).items()}


def encode_test(tok, problems):
    """ids [n, L], answer mask [n, L]: prompt, answer, end; filled up with the end."""
    pairs = [(tok.encode(p).ids, tok.encode(a).ids + [0]) for p, a in problems]
    length = max(len(p) + len(a) for p, a in pairs)
    ids, answer = torch.zeros(len(pairs), length, dtype=torch.long), torch.zeros(len(pairs), length, dtype=torch.bool)
    for i, (p, a) in enumerate(pairs):
        ids[i, : len(p) + len(a)] = torch.tensor(p + a)
        answer[i, len(p) : len(p) + len(a)] = True
    return ids, answer


@torch.no_grad()
def answer_all(model, test, threshold, device, dtype):
    """Share of answers that greedy decoding would give exactly, and mean loops of decode tokens, at a threshold of the gate."""
    step, end = model.step, model.end
    model.step, model.end = [layer.forward for layer in model.layers], rms
    ids, answer = (x.to(device) for x in test)
    given, target, asked, made = ids[:, :-1], ids[:, 1:], answer[:, 1:], answer[:, :-1]
    leave = Exit(made, torch.full((len(ids), 1), threshold, device=device), None, 1)
    states, _, loops = model(given, torch.ones_like(given), leave, dtype)
    state = torch.stack(states).gather(0, (loops - 1)[None, :, :, None].expand(1, -1, -1, states[0].shape[-1]))[0]
    right = (model.logits(state).argmax(-1) == target) | ~asked
    model.step, model.end = step, end
    return right.all(1).float().mean().item(), loops[made & asked].float().mean().item()


def main():
    a = options()
    if a.only:
        data.TASK_SHARE.update({t: float(t == a.only) for t in data.TASK_SHARE})
        data.DOC_SHARE.update(task=0.96, define=0.02, text=0.02)
        tasks.LEVELS[a.only] = (tasks.LEVELS[a.only][0], a.most)
    if a.init:
        data.teach(a.teach, a.share, 600)
    torch.backends.cuda.enable_cudnn_sdp(False)  # the memory-efficient kernel takes the mask as it is
    run = Run(a)
    s = run.model.s
    run.say(shape=shape_text(s), parameters=n_param(s), mflop_token=round(3 * flops(s, a.length) / 1e6, 1), torch=torch.__version__,
            device=torch.cuda.get_device_name() if run.cuda else "cpu", options=vars(a), s=round(run.seconds(), 1))
    if a.compile:
        run.compiled()
    run.stage_1()
    run.keep()
    run.go_back()
    run.stage_2()
    restore(run.model, {n: w.bfloat16().float() for n, w in tensors(run.model).items()})
    run.loader.close()
    run.keep()
    open(a.out + "/eval.md", "w").write(run.table())
    run.say(done=True, s=round(run.seconds(), 1))
    print(open(a.out + "/eval.md").read())


if __name__ == "__main__":
    main()
