#!/usr/bin/env python3
"""Exact match and mean loops of a model on the tasks of tools/train/tasks.py, through `gyre run` itself, many prompts at once.

    python3 tools/eval_tasks.py [--model models/demo] [--n 100] [--thresholds 0.5,0.8,0.9] [--out docs/tasks.md] [--svg docs/tasks.svg]
                                [--json FILE] [--chat] [-- options of gyre run, as --dtype bf16]

For each setting (full depth, then the rule `gate` at each threshold) and each task and difficulty: the share of answers that are
exactly right, and loops a token: of all output tokens, and of those that the rule decides (all but the first, which always
runs full depth). Problems are the test half, which training never draws. No timing. Only the standard library.
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

CHAT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"  # a prompt's marks are read as such
COLOURS = ("#1b6ca8", "#c8553d", "#2a9d6f", "#8a5fbf", "#b58900", "#555555")


def options():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--gyre", default=ROOT + "/build/release/gyre")
    p.add_argument("--model", default=ROOT + "/models/demo")
    p.add_argument("--n", type=int, default=100, help="problems of each task and difficulty")
    p.add_argument("--thresholds", default="0.5,0.7,0.8,0.9,0.95")
    p.add_argument("--tasks", default=",".join(tasks.GRADES))
    p.add_argument("--chat", action="store_true", help="prompts in ChatML")
    p.add_argument("--out", help="table, Markdown; else standard output")
    p.add_argument("--svg", help="plot: loops by difficulty")
    p.add_argument("--json", help="all figures")
    p.add_argument("rest", nargs="*", help="options of gyre run, behind --")
    return p.parse_args()


def problems(a):
    return [(t, d, p, ans) for t in a.tasks.split(",") for d in tasks.GRADES[t] for p, ans in tasks.test_set(t, d, a.n)]


def answers(a, requests, threshold):
    """(text, loops) of each request, in order."""
    rule = {} if threshold is None else {"exit": "gate", "exit_threshold": threshold}
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as f:
        for request in requests:
            f.write(json.dumps({**request, **rule, "max_tokens": 40}) + "\n")
        f.flush()
        cmd = [a.gyre, "run", a.model, "--input", f.name, "--json", "--max-seqs", "64", *a.rest]
        done = subprocess.run(cmd, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"gyre run failed ({done.returncode}): {' '.join(cmd)}")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return [(line["text"], line["loops"]) for line in sorted(lines, key=lambda x: x["index"])]


def figures(cases, got):
    """{(task, d): {n, right, loops, decided}}"""
    out = {}
    for (task, d, _, answer), (text, loops) in zip(cases, got, strict=True):
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


def table(results):
    names = list(results)
    lines = ["| task | difficulty | n | " + " | ".join(names) + " |", "|---|---|---|" + "---|" * len(names)]
    for task, d in results[names[0]]:
        cells = [results[name][task, d] for name in names]
        show = " | ".join(f"{100 * c['right']:.1f} % · {c['decided']:.2f}" for c in cells)
        lines.append(f"| {task} | {d} | {cells[0]['n']} | {show} |")
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


def main():
    a = options()
    cases = problems(a)
    requests = [{"prompt": CHAT.format(p) if a.chat else p} for _, _, p, _ in cases]
    results = {}
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
