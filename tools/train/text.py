#!/usr/bin/env python3
"""Collects short English from what Debian 12 ships, into one archive that travels to the GPU. Nothing of it is committed.

    python3 text.py OUT.xz            (apt-get download into a temporary folder; needs apt, man-db and groff)

    package          what                                          licence
    wordnet-base     definitions, "define WORD" and its answer      WordNet 3.0 (permissive, Princeton)
    dict-devil       The Devil's Dictionary                         public domain
    dict-jargon      The Jargon File                                public domain
    dict-foldoc      Free On-line Dictionary of Computing           GFDL 1.1 or later
    debian-faq       The Debian FAQ                                 GPL 2 or later
    manpages, -dev   Linux manual pages, sections 1 to 8            GPL, BSD, verbatim (each page says which)
    python3.11-doc   Python's tutorial, library and howto           PSF licence 2

The archive is a text file, one JSON array a line: ["define", WORD, DEFINITION] or ["text", TEXT]. Order and content depend
on the packages' versions only; the sum that the script prints stands in README.md.
"""
import gzip
import hashlib
import html
import json
import lzma
import pathlib
import re
import subprocess
import sys
import tempfile

PACKAGES = ("wordnet-base dict-devil dict-jargon dict-foldoc debian-faq manpages manpages-dev python3.11-doc").split()
POS = {"noun": "noun", "verb": "verb", "adj": "adjective", "adv": "adverb"}


def fetch(folder):
    subprocess.run(["apt-get", "download", "-qq", *PACKAGES], cwd=folder, check=True, stderr=subprocess.DEVNULL)
    for deb in sorted(folder.glob("*.deb")):
        print("  " + deb.name)
        subprocess.run(["dpkg-deb", "-x", deb.name, "."], cwd=folder, check=True)


def plain(text):
    """ASCII with single blanks: what a small vocabulary can say."""
    for a, b in (("\u2019", "'"), ("\u2018", "'"), ("\u201c", '"'), ("\u201d", '"'), ("\u2014", "-"), ("\u2013", "-"),
                 ("\u2010", "-"), ("\u2026", "...")):
        text = text.replace(a, b)
    return re.sub(r"\s+", " ", text.encode("ascii", "ignore").decode()).strip()


def wordnet(root):
    for part in ("noun", "verb", "adj", "adv"):
        base = root / "usr/share/wordnet"
        gloss = {}
        for line in open(base / f"data.{part}", encoding="latin-1"):
            if line[0] != " ":
                gloss[line[:8]] = line.split(" | ", 1)[1]
        for line in open(base / f"index.{part}", encoding="latin-1"):
            if line[0] == " ":
                continue
            field = line.split()
            n_sense, first = int(field[2]), 6 + int(field[3])
            for at in field[first : first + min(n_sense, 2)]:
                text = re.split(r'; *"', plain(gloss[at]))[0].strip(" ;")
                word = field[0].replace("_", " ")
                if 2 < len(text) < 160 and re.fullmatch(r"[a-z][a-z' -]*", word):
                    yield ["define", word, f"{POS[part]}: {text}"]


def paragraphs(text, low=60, high=900):
    for block in re.split(r"\n\s*\n", text):
        line = plain(block)
        if low <= len(line) <= high and sum(c.isalpha() or c == " " for c in line) > 0.86 * len(line):
            yield ["text", line]


def dictd(root, name):
    text = gzip.open(root / f"usr/share/dictd/{name}.dict.dz", "rt", encoding="utf-8", errors="ignore").read()
    yield from paragraphs(re.sub(r"[{}]|<[a-z, ]+> ", "", text))


def page(path):
    out = subprocess.run(["groff", "-man", "-Tascii", "-P-cbou", "-rLL=72n"], input=gzip.open(path).read(), capture_output=True)
    return out.stdout.decode("ascii", "ignore").replace("-\n", "-\n")


def manual(root):
    for path in sorted((root / "usr/share/man").glob("man[1-8]/*.gz")):
        raw = gzip.open(path).read()
        if not raw.startswith(b".so "):
            text = re.sub(r"(\w)-\n\s+(\w)", r"\1\2", page(path))
            yield from paragraphs("\n\n".join(text.split("\n\n")[1:]))


def html_pages(folder, pattern):
    for path in sorted(folder.glob(pattern)):
        body = path.read_text(encoding="utf-8", errors="ignore")
        for block in re.findall(r"<p>(.*?)</p>", body, flags=re.S):
            yield from paragraphs(html.unescape(re.sub(r"<[^>]+>", "", block)))


def collect(root):
    yield from wordnet(root)
    for name in ("devil", "jargon", "foldoc"):
        yield from dictd(root, name)
    yield from html_pages(root / "usr/share/doc/debian", "FAQ/*.en.html")
    yield from html_pages(root / "usr/share/doc/python3.11/html", "[tlhfr]*/*.html")
    yield from manual(root)


def main(out):
    seen, lines, size = set(), [], {}
    with tempfile.TemporaryDirectory() as folder:
        fetch(pathlib.Path(folder))
        for entry in collect(pathlib.Path(folder)):
            line = json.dumps(entry)
            if line not in seen:
                seen.add(line)
                lines.append(line)
                size[entry[0]] = size.get(entry[0], 0) + len(line)
    raw = ("\n".join(lines) + "\n").encode()
    with lzma.open(out, "wb", preset=6) as f:
        f.write(raw)
    print(f"{len(lines)} entries, {size}, sha256 of the text {hashlib.sha256(raw).hexdigest()}")


if __name__ == "__main__":
    main(sys.argv[1])
