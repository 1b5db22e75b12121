"""Makes docs/playground-*.png: the page in headless Chromium, on a model of one's choice.

usage: .venv/bin/python tools/make_page_shots.py [MODEL]   (models/gyre-6m by default; after ./do build)

Chromium as Debian packages it (written with 156.0). Stored with a palette of the 256 most frequent colours, so
that each file stays far below 150 KB.
"""

import struct
import sys
import tempfile
import zlib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/e2e"))

import browser  # noqa: E402
from test_serve import TEMPLATE, serve  # noqa: E402


def rows_of(png):
    """Width, height and the bytes of each pixel row, RGB or RGBA, of a PNG without interlacing."""
    at, data = 8, b""
    while at < len(png):
        n, kind = struct.unpack(">I4s", png[at:at + 8])
        body = png[at + 8:at + 8 + n]
        if kind == b"IHDR":
            width, height, _, colour = struct.unpack(">IIBB", body[:10])
        data += body if kind == b"IDAT" else b""
        at += 12 + n
    step = {2: 3, 6: 4}[colour]
    raw, last, out = zlib.decompress(data), bytearray(width * step), []
    for y in range(height):
        kind, line = raw[y * (width * step + 1)], bytearray(raw[y * (width * step + 1) + 1:(y + 1) * (width * step + 1)])
        for i in range(len(line)):
            left, up, corner = line[i - step] if i >= step else 0, last[i], last[i - step] if i >= step else 0
            p = left + up - corner
            near = min((abs(p - left), 0, left), (abs(p - up), 1, up), (abs(p - corner), 2, corner))[2]
            line[i] = (line[i] + [0, left, up, (left + up) // 2, near][kind]) & 255
        last = line
        out.append([tuple(line[x * step:x * step + 3]) for x in range(width)])
    return width, height, out


def small(png):
    """The same picture with a palette: the most frequent colours, others become the nearest of them."""
    width, height, rows = rows_of(png)
    count = {}
    for row in rows:
        for c in row:
            count[c] = count.get(c, 0) + 1
    palette = sorted(count, key=count.get, reverse=True)[:256]
    index = {c: i for i, c in enumerate(palette)}
    for c in count:
        if c not in index:
            index[c] = min(range(len(palette)), key=lambda i: sum((a - b) ** 2 for a, b in zip(c, palette[i])))
    data = zlib.compress(b"".join(b"\0" + bytes(index[c] for c in row) for row in rows), 9)

    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)) + \
        chunk(b"PLTE", b"".join(map(bytes, palette))) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def shoot(b, name):
    with tempfile.NamedTemporaryFile(suffix=".png") as f:
        b.screenshot(f.name)
        data = small(Path(f.name).read_bytes())
    assert len(data) < 150_000, (name, len(data))
    (ROOT / f"docs/playground-{name}.png").write_bytes(data)
    print(f"docs/playground-{name}.png: {len(data)} bytes")


def run(b):
    b.js("document.getElementById('status').textContent = ''")
    b.js("document.getElementById('run').click()")
    b.wait("/^A: done/.test(document.getElementById('status').textContent)", 60)


def main(model):
    with tempfile.TemporaryDirectory() as folder:
        template = Path(folder) / "t.jinja"
        template.write_text(TEMPLATE)
        own = "chat_template" in (Path(model) / "tokenizer_config.json").read_text()
        b = browser.Browser()
        with serve(model, *([] if own else ["--chat-template", template])) as s:
            b.fresh()
            b.size(1120, 1010)
            b.scheme("light")
            b.goto(f"http://127.0.0.1:{s.port}/")
            b.wait("!document.getElementById('run').disabled")
            b.click("#compare")
            b.fill("#prompt", "define boat")
            run(b)
            b.hover("#output-A .tok:nth-child(8)")
            b.js("scrollTo(0, 0)")
            b.wait("!document.getElementById('card').hidden")
            shoot(b, "compare")
            b.mouse("mouseMoved", 2, 2)
            b.wait("document.getElementById('card').hidden")
            b.click("#compare")
            b.click("#counts")
            b.click("input[value=chat]")
            b.scheme("dark")
            b.size(390, 844)
            for text in ["What is 90417+9584?", "sort q c a f m x b"]:
                b.fill("#prompt", text)
                b.fill("#max-tokens", "40")
                run(b)
            b.js("scrollTo(0, 230)")
            shoot(b, "narrow")
        b.close()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else str(ROOT / "models/gyre-6m"))
