#!/usr/bin/env python3
"""Exact match and mean loops of a model on the tasks of tools/train/tasks.py, through `gyre run` itself, many prompts at once.

    python3 tools/eval_tasks.py [--model MODEL] [--n 100] [--thresholds 0.5,0.8,0.9] [--out FILE.md] [--svg FILE.svg]
                                [--json FILE] [--chat] [-- options of gyre run, as --dtype bf16]
    python3 tools/eval_tasks.py --variants [--thresholds 0.8] ...

For each setting (full depth, then the rule `gate` at each threshold) and each task and difficulty: the share of answers that are
exactly right, and loops a token: of all output tokens, and of those that the rule decides (all but the first, which always
runs full depth). With --variants: by group of tasks, for other types of weights and activations, workers and the prefix cache, and
how many outputs are the same as plain BF16's, token for token. Problems are the test half, which training never draws. No
timing. Only the standard library.
"""
import argparse
import json
import math
import os
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, ROOT + "/tools/train")
import tasks  # noqa: E402
from tasks import GROUPS  # noqa: E402

CHAT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"  # a prompt's marks are read as such
SHIPPED = ROOT + "/models/gyre-6m"
VARIANTS = {"BF16": [], "F32": ["--dtype", "f32"], "int8": ["--weights", "int8"], "int8, head too": ["--weights", "int8", "--weights-head"],
            "int8-channel": ["--weights", "int8-channel"], "KV in int8": ["--kv-dtype", "int8"], "fp8": ["--weights", "fp8"],
            "int4": ["--weights", "int4"], "1 prefill, 1 decode worker": ["--prefill", "1", "--decode", "1"],
            "prefix cache": ["--prefix-cache", "on"]}
COLOURS = ("#1b6ca8", "#c8553d", "#2a9d6f", "#8a5fbf", "#b58900", "#555555")


def options():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--gyre", default=ROOT + "/build/release/gyre")
    p.add_argument("--model", default=SHIPPED)
    p.add_argument("--n", type=int, default=100, help="problems of each task and difficulty")
    p.add_argument("--thresholds", default="0.5,0.7,0.8,0.9,0.95")
    p.add_argument("--min-loops", type=int, default=1, help="of the rule; 1 is what gyre-6m is trained for")
    p.add_argument("--tasks", default=",".join(tasks.GRADES))
    p.add_argument("--chat", action="store_true", help="prompts in ChatML")
    p.add_argument("--variants", action="store_true", help="other types, workers, prefix cache: at full depth and the first threshold")
    p.add_argument("--out", help="table, Markdown; else standard output")
    p.add_argument("--svg", help="plot: loops by difficulty")
    p.add_argument("--json", help="all figures")
    p.add_argument("rest", nargs="*", help="options of gyre run, behind --")
    return p.parse_args()


def problems(a):
    return [(t, d, p, ans) for t in a.tasks.split(",") for d in tasks.GRADES[t] for p, ans in tasks.test_set(t, d, a.n)]


def answers(a, requests, threshold):
    """(text, loops, ids) of each request, in order."""
    rule = {} if threshold is None else {"exit": "gate", "exit_threshold": threshold, "min_loops": a.min_loops}
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as f:
        for request in requests:
            f.write(json.dumps({**request, **rule, "max_tokens": 40}) + "\n")
        f.flush()
        cmd = [a.gyre, "run", a.model, "--input", f.name, "--json", "--max-seqs", "64", *a.rest]
        done = subprocess.run(cmd, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"gyre run failed ({done.returncode}): {' '.join(cmd)}")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return [(line["text"], line["loops"], line["token_ids"]) for line in sorted(lines, key=lambda x: x["index"])]


def figures(cases, got):
    """{(task, d): {n, right, loops, decided}}"""
    out = {}
    for (task, d, _, answer), (text, loops, _) in zip(cases, got, strict=True):
        c = out.setdefault((task, d), {"n": 0, "right": 0, "loops": 0, "tokens": 0, "decided": 0})
        c["n"] += 1
        c["right"] += tasks.right(text, answer)
        c["tokens"] += len(loops)
        c["loops"] += sum(loops)
        c["decided"] += sum(loops[1:])
    for c in out.values():
        c["decided"] = c["decided"] / (c["tokens"] - c["n"]) if c["tokens"] > c["n"] else math.nan
        c["loops"] /= c["tokens"]
        c["right"] /= c["n"]
    return out


def mean(cells, key):
    values = [c[key] for c in cells if not math.isnan(c[key])]
    return sum(values) / max(1, len(values))


def of_group(cells, group):
    """All problems of a group as one cell: a grade with seven problems counts as seven."""
    task, low, high = GROUPS[group]
    mine = [c for (t, d), c in cells.items() if t == task and low <= d <= high]
    n, asked = sum(c["n"] for c in mine), sum(c["tokens"] - c["n"] for c in mine)
    return {"n": n, "right": sum(c["right"] * c["n"] for c in mine) / max(1, n),
            "decided": sum(c["decided"] * (c["tokens"] - c["n"]) for c in mine if c["tokens"] > c["n"]) / max(1, asked)}


def table(results):
    names = list(results)
    lines = ["| task | difficulty | n | " + " | ".join(names) + " |", "|---|---|---|" + "---|" * len(names)]
    for task, d in results[names[0]]:
        cells = [results[name][task, d] for name in names]
        show = " | ".join(f"{100 * c['right']:.1f} % · {c['decided']:.2f}" for c in cells)
        lines.append(f"| {task} | {d} | {cells[0]['n']} | {show} |")
    for group in GROUPS:
        cells = [of_group(r, group) for r in results.values()]
        if cells[0]["n"]:
            show = " | ".join(f"{100 * c['right']:.1f} % · {c['decided']:.2f}" for c in cells)
            lines.append(f"| **{group}** | all | {cells[0]['n']} | {show} |")
    total = " | ".join(f"{100 * mean(r.values(), 'right'):.1f} % · {mean(r.values(), 'decided'):.2f} ({mean(r.values(), 'loops'):.2f})"
                       for r in results.values())
    lines.append(f"| mean of rows | | | {total} |")
    note = ("Exact match · mean loops of the tokens that the exit rule decides (all but a text's first); in brackets of all "
            "output tokens.")
    return note + "\n\n" + "\n".join(lines) + "\n"


def panel(x0, task, results, tall=150, wide=150):
    """Loops (1 to 4, upwards) by difficulty, one line a setting; a ring where less than 95 % are right."""
    grades = [d for t, d in next(iter(results.values())) if t == task]
    at_x = lambda d: x0 + wide * (d - grades[0]) / max(1, grades[-1] - grades[0])
    at_y = lambda v: 40 + tall * (4 - v) / 3
    out = [f'<text x="{x0}" y="28" font-weight="bold">{task}</text>']
    for v in (1, 2, 3, 4):
        out.append(f'<path d="M{x0} {at_y(v):.0f}h{wide}" stroke="#ccc"/><text x="{x0 - 12}" y="{at_y(v) + 4:.0f}">{v}</text>')
    out += [f'<text x="{at_x(d):.0f}" y="{tall + 56}" text-anchor="middle">{d}</text>' for d in grades]
    for colour, cells in zip(COLOURS, results.values()):
        drawn = [(d, cells[task, d]) for d in grades if not math.isnan(cells[task, d]["decided"])]
        points = [(at_x(d), at_y(c["decided"]), c["right"]) for d, c in drawn]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in points)
        out.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        out += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{3 if right >= 0.95 else 5}" fill="{colour if right >= 0.95 else "#fff"}" stroke="{colour}"/>'
                for x, y, right in points]
    return out


def svg(results):
    names = list(dict.fromkeys(t for t, _ in next(iter(results.values()))))
    width = 40 + 190 * len(names)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="260" font-family="sans-serif" font-size="11">',
           f'<rect width="{width}" height="260" fill="#fff"/>',
           '<text x="30" y="12">mean loops of decided tokens by difficulty; a ring: under 95 % right</text>']
    for i, task in enumerate(names):
        out += panel(40 + 190 * i, task, results)
    for i, (colour, name) in enumerate(zip(COLOURS, results)):
        out.append(f'<path d="M{40 + 130 * i} 236h20" stroke="{colour}" stroke-width="3"/><text x="{65 + 130 * i}" y="240">{name}</text>')
    return "\n".join(out) + "\n</svg>\n"


def twice(a, requests, threshold):
    """With the prefix cache every request again, so that its prompt is found: the second answers."""
    return answers(a, requests * 2, threshold)[len(requests):]


def variants(a, cases, requests):
    """Per variant and setting a row: exact match of each group, mean loops, outputs that are plain BF16's."""
    settings = [None, float(a.thresholds.split(",")[0])]
    groups = [g for g in GROUPS if GROUPS[g][0] in a.tasks.split(",")]
    lines = ["| variant | setting | " + " | ".join(groups) + " | loops | same tokens and loops as BF16 |", "|---|---|" + "---|" * (len(groups) + 2)]
    plain, rest = {}, a.rest
    for name, more in VARIANTS.items():
        a.rest = rest + more
        for q in settings:
            got = (twice if "--prefix-cache" in more else answers)(a, requests, q)
            plain.setdefault(q, got)
            same = sum(x == y for x, y in zip(got, plain[q], strict=True))
            cells = figures(cases, got)
            by_group = [of_group(cells, group)["right"] for group in groups]
            lines.append(f"| {name} | {'full depth' if q is None else f'threshold {q:g}'} | " + " | ".join(f"{100 * x:.1f} %" for x in by_group) +
                         f" | {mean(cells.values(), 'decided'):.2f} | {same} of {len(got)} |")
    return "\n".join(lines) + "\n"


def main():
    a = options()
    cases = problems(a)
    requests = [{"prompt": CHAT.format(p) if a.chat else p} for _, _, p, _ in cases]
    results = {}
    if a.variants:
        text = variants(a, cases, requests)
    else:
        for q in [None, *map(float, filter(None, a.thresholds.split(",")))]:
            results["full depth" if q is None else f"threshold {q:g}"] = figures(cases, answers(a, requests, q))
        text = table(results)
    if a.out:
        with open(a.out, "w") as f:
            f.write(text)
    else:
        print(text)
    if a.svg:
        with open(a.svg, "w") as f:
            f.write(svg(results))
    if a.json:
        with open(a.json, "w") as f:
            json.dump({name: {f"{t} {d}": c for (t, d), c in r.items()} for name, r in results.items()}, f, indent=1)


if __name__ == "__main__":
    main()
