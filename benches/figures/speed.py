"""Draws `docs/speed.svg` from the times of one run: `python benches/figures/speed.py [FILE.json]`.

The file is a list of rows, as `benches/peers/layers.py --json` writes it: `name`, milliseconds of `theirs` and `ours`, `card` and
`command`. All rows must be of one run on one card. Each row is a pair of bars, as shares of the slower one, so that rows of any
length can be compared; the ratio stands beside them. Colours follow the reader's setting, light or dark.
"""

import html
import json
import pathlib
import sys

HERE = pathlib.Path(__file__).parent
TARGET = HERE.parents[1] / "docs" / "speed.svg"

WIDTH, LABELS, BARS = 780, 250, 380
TOP, ROW, THICK = 64, 34, 11

STYLE = """
  svg { font: 13px system-ui, -apple-system, "Segoe UI", sans-serif; }
  .ground { fill: #ffffff } .text { fill: #1f2328 } .dim { fill: #59636e } .theirs { fill: #a8b1bb } .ours { fill: #3b5bdb }
  .title { font-weight: 600; font-size: 15px } .small { font-size: 11.5px } .ratio { font-weight: 600 }
  @media (prefers-color-scheme: dark) {
    .ground { fill: #0d1117 } .text { fill: #e6edf3 } .dim { fill: #9198a1 } .theirs { fill: #57606a } .ours { fill: #7c93ff }
  }
"""


def text(x, y, words, kind, anchor="start"):
    return f'<text x="{x:g}" y="{y:g}" class="{kind}" text-anchor="{anchor}">{html.escape(words)}</text>'


def bar(y, share, kind):
    return f'<rect x="{LABELS}" y="{y:g}" width="{max(share * BARS, 1):.1f}" height="{THICK}" rx="2" class="{kind}"/>'


def row(y, name, theirs, ours):
    """A pair of bars with their times and the ratio."""
    longest, ratio = max(theirs, ours), theirs / ours
    yield text(LABELS - 12, y + 16, name, "text", "end")
    for place, (time, kind) in enumerate([(theirs, "theirs"), (ours, "ours")]):
        top = y + place * (THICK + 2)
        yield bar(top, time / longest, kind)
        yield text(LABELS + time / longest * BARS + 6, top + 9.5, f"{time:.2f}", "dim small")
    yield text(WIDTH - 16, y + 16, f"{ratio:.2f}×", "text ratio", "end")


def legend():
    x = LABELS
    for name, kind in [("mamba_ssm", "theirs"), ("statescan", "ours")]:
        yield f'<rect x="{x}" y="38" width="{THICK}" height="{THICK}" rx="2" class="{kind}"/>'
        yield text(x + THICK + 6, 48, name, "dim")
        x += 110
    yield text(WIDTH - 16, 48, "times as fast", "dim", "end")


def lines(words, most):
    """Words as lines of at most so many letters."""
    found = [""]
    for word in words.split():
        if len(found[-1]) + len(word) + 1 > most:
            found.append("")
        found[-1] = f"{found[-1]} {word}".strip()
    return found


def draw(rows):
    sources = {(item["card"], item["command"]) for item in rows}
    if len(sources) != 1:
        raise SystemExit(f"the rows must be of one run on one card, got {sorted(sources)}")
    ((card, command),) = sources
    title = "Layers: milliseconds of a forward pass, and of forward and backward"
    source = lines(f"One run on one {card}, bf16, the same weights; (batch, seqlen, d_model). {command}", 108)
    bottom = TOP + ROW * len(rows)
    height = bottom + 16 * len(source) + 14
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img">',
        f"<title>{html.escape(title)}</title><style>{STYLE}</style>",
        f'<rect width="{WIDTH}" height="{height}" rx="6" class="ground"/>',
        text(16, 24, title, "text title"),
        *legend(),
    ]
    for place, item in enumerate(rows):
        parts += row(TOP + place * ROW, item["name"], item["theirs"], item["ours"])
    parts += [text(16, bottom + 14 + 16 * place, line, "dim small") for place, line in enumerate(source)]
    return "\n".join([*parts, "</svg>"]) + "\n"


if __name__ == "__main__":
    measured = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "speed.json"
    TARGET.write_text(draw(json.loads(measured.read_text())))
