"""Draws `docs/speed.svg` from the times of one run: `python benches/figures/speed.py [FILE.json]`.

The file is a list of rows, as `benches/peers/layers.py --json` writes it: `name`, milliseconds of `theirs` and `ours`, `card` and
`command`, and `mib` for passes with a gradient, which are those that are drawn. All rows must be of one run on one card. Each row
is a pair of bars, as shares of the slower one, so that rows of any length can be compared; the ratio stands beside them. Labels
stand above their bars, so that the picture is narrow enough for a phone. Colours follow the reader's setting, light or dark.
"""

import html
import json
import pathlib
import sys

HERE = pathlib.Path(__file__).parent
TARGET = HERE.parents[1] / "docs" / "speed.svg"

WIDTH, LEFT, BARS = 480, 14, 320
TOP, ROW, THICK = 62, 48, 12

STYLE = """
  svg { font: 14px system-ui, -apple-system, "Segoe UI", sans-serif; }
  .ground { fill: #ffffff } .text { fill: #1f2328 } .dim { fill: #59636e } .theirs { fill: #a8b1bb } .ours { fill: #3b5bdb }
  .title { font-weight: 600; font-size: 15px } .small { font-size: 12.5px } .ratio { font-weight: 600 }
  @media (prefers-color-scheme: dark) {
    .ground { fill: #0d1117 } .text { fill: #e6edf3 } .dim { fill: #9198a1 } .theirs { fill: #57606a } .ours { fill: #7c93ff }
  }
"""


def text(x, y, words, kind, anchor="start"):
    return f'<text x="{x:g}" y="{y:g}" class="{kind}" text-anchor="{anchor}">{html.escape(words)}</text>'


def bar(y, share, kind):
    return f'<rect x="{LEFT}" y="{y:g}" width="{max(share * BARS, 1):.1f}" height="{THICK}" rx="2" class="{kind}"/>'


def row(y, name, theirs, ours):
    """A pair of bars with their times, and above them their name and the ratio."""
    longest, ratio = max(theirs, ours), theirs / ours
    yield text(LEFT, y + 12, name, "text")
    yield text(WIDTH - LEFT, y + 30, f"{ratio:.2f}×", "text ratio", "end")
    for place, (time, kind) in enumerate([(theirs, "theirs"), (ours, "ours")]):
        top = y + 17 + place * (THICK + 1)
        yield bar(top, time / longest, kind)
        yield text(LEFT + time / longest * BARS + 6, top + 10.5, f"{time:.2f}", "dim small")


def legend():
    x = LEFT
    for name, kind in [("mamba_ssm", "theirs"), ("statescan", "ours")]:
        yield f'<rect x="{x}" y="36" width="{THICK}" height="{THICK}" rx="2" class="{kind}"/>'
        yield text(x + THICK + 6, 47, name, "dim")
        x += 124
    yield text(WIDTH - LEFT, 47, "times as fast", "dim", "end")


def trained(rows):
    """The rows of passes with a gradient; the name of one that goes on from the row before is that row's."""
    for before, item in zip([None, *rows], rows):
        if "mib" in item:
            yield {**item, "name": before["name"].removesuffix(" forward") if item["name"] == "and backward" else item["name"]}


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
    rows = list(trained(rows))
    title = "Milliseconds of layers, forward and backward"
    words = f"One run on one {card}, bf16, the same weights; (batch, seqlen, d_model); of models a step with AdamW. {command}"
    source = lines(words, 70)
    bottom = TOP + ROW * len(rows)
    height = bottom + 17 * len(source) + 14
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img">',
        f"<title>{html.escape(title)}</title><style>{STYLE}</style>",
        f'<rect width="{WIDTH}" height="{height}" rx="6" class="ground"/>',
        text(LEFT, 24, title, "text title"),
        *legend(),
    ]
    for place, item in enumerate(rows):
        parts += row(TOP + place * ROW, item["name"], item["theirs"], item["ours"])
    parts += [text(LEFT, bottom + 14 + 17 * place, line, "dim small") for place, line in enumerate(source)]
    return "\n".join([*parts, "</svg>"]) + "\n"


if __name__ == "__main__":
    measured = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "speed.json"
    TARGET.write_text(draw(json.loads(measured.read_text())))
