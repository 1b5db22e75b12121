"""Shared by the black-box tests: the program, the golden checkpoints and their cases.

The program is $GYRE, or build/release/gyre. The cases come from tests/golden: double precision, no code in common with gyre.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GYRE = os.environ.get("GYRE", str(ROOT / "build/release/gyre"))
MODELS = ROOT / "tests/golden/models"
FAMILIES = ["ouro", "nanbeige", "huginn"]
OURO = str(MODELS / "ouro-tiny")
DEMO = str(ROOT / "models/demo")
LASTING = {"prompt": "abc", "max_tokens": 30000, "ignore_eos": True}
SHORT = "196,48,160,99,153,64,294"


def gyre(*args, stdin=None, code=0, **kw):
    """Runs gyre; returns (stdout, stderr) as text after checking the exit code."""
    p = subprocess.run([GYRE, *map(str, args)], input=stdin, capture_output=True, timeout=300, **kw)
    out, err = p.stdout.decode("utf-8"), p.stderr.decode("utf-8")
    assert p.returncode == code, f"exit code {p.returncode}, expected {code}\n{out}\n{err}"
    assert "Sanitizer" not in err, err
    return out, err


def roomy(folder, of=DEMO):
    """models/demo with room for LASTING, which takes minutes: it ends when its client leaves, and not while a busy machine
    keeps a test from looking."""
    model = folder / "roomy" / Path(of).name
    shutil.copytree(of, model)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 1 << 15}))
    return model


def ids_arg(ids):
    return ",".join(map(str, ids))


def write_lines(path, lines):
    path.write_text("".join(json.dumps(x) + "\n" for x in lines))
    return path


def golden(family):
    return json.loads((MODELS / f"{family}-tiny/expected.json").read_text())["cases"]


def greedy_cases(family):
    return [c for c in golden(family) if c["kind"] == "greedy"]


def rule_of(case):
    rule = {"exit": case["exit"], "min_loops": case["min_loops"], "max_loops": case["max_loops"]}
    if case["exit"] != "fixed":
        rule["exit_threshold"] = case["threshold"]
    if rule["min_loops"] > rule["max_loops"]:
        rule["min_loops"] = rule["max_loops"]
    return rule


def greedy_line(case):
    """The line of --input whose answer the case knows."""
    return {"prompt_ids": case["ids"], "max_tokens": len(case["tokens"]), "ignore_eos": True, **rule_of(case)}
