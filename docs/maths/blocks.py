"""Draws blocks.svg, the blocks of Mamba and Mamba-2: ``python docs/maths/blocks.py``."""

from pathlib import Path

WIDTH, HEIGHT, BOX = 132, 30, 13
COLORS = {"product": "#fbe3c0", "conv": "#cfe3f7", "scan": "#d5efd0", "other": "#f1f1f1"}


def text(x, y, words, size=BOX):
    return f'<text x="{x}" y="{y + size / 3:.1f}" text-anchor="middle" font-size="{size}">{words}</text>'


def box(x, y, words, kind, width=WIDTH):
    place = f'x="{x - width / 2}" y="{y - HEIGHT / 2}" width="{width}" height="{HEIGHT}"'
    return f'<rect {place} rx="5" fill="{COLORS[kind]}" stroke="#555"/>' + text(x, y, words)


def circle(x, y, sign):
    return f'<circle cx="{x}" cy="{y}" r="11" fill="white" stroke="#555"/>' + text(x, y, sign, 16)


def arrow(*points):
    path = " ".join(f"{x},{y}" for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="#555" marker-end="url(#head)"/>'


def ends(x, left, right, out, stream):
    """What both blocks have: the stream, the norm before, the projections, the sum after."""
    return [
        text(x, 16, "stream", 12),
        arrow((x, 24), (x, 45)),
        box(x, 60, "RMSNorm", "other"),
        arrow((x, 75), (x, 95)),
        box(x, 110, "in_proj", "product", right - left + WIDTH),
        box(x, out, "out_proj", "product"),
        arrow((x, out + 15), (x, out + 39)),
        circle(x, out + 50, "+"),
        arrow((x, 34), (stream, 34), (stream, out + 50), (x + 11, out + 50)),
        arrow((x, out + 61), (x, out + 82)),
    ]


def mamba(x):
    left, right = x - 78, x + 78
    return [
        *ends(x, left, right, 440, x + 170),
        arrow((left, 125), (left, 145)),
        box(left, 160, "conv, silu", "conv"),
        arrow((left, 175), (left, 305)),
        box(left, 320, "selective scan", "scan"),
        arrow((left, 195), (left - 82, 195), (left - 82, 205)),
        box(left - 82, 220, "x_proj", "product", 70),
        arrow((left - 82, 235), (left - 82, 250)),
        box(left - 82, 265, "dt_proj", "product", 70),
        arrow((left - 82, 280), (left - 82, 320), (left - 66, 320)),
        text(left - 92, 342, "dt, B, C", 12),
        arrow((left, 335), (left, 370), (x - 11, 370)),
        arrow((right, 125), (right, 305)),
        box(right, 320, "silu", "other"),
        arrow((right, 335), (right, 370), (x + 11, 370)),
        circle(x, 370, "&#215;"),
        arrow((x, 381), (x, 425)),
        text(x, 560, "Mamba", 16),
    ]


def mamba2(x):
    left, right = x - 78, x + 78
    return [
        *ends(x, left, right, 440, x + 170),
        arrow((left, 125), (left, 145)),
        box(left, 160, "conv, silu", "conv"),
        arrow((left, 175), (left, 275)),
        text(left - 36, 225, "x, B, C", 12),
        arrow((x, 125), (x, 260), (left + 30, 260), (left + 30, 275)),
        text(x + 10, 225, "dt", 12),
        box(left, 290, "SSD scan", "scan"),
        arrow((left, 305), (left, 350), (x - 11, 350)),
        arrow((right, 125), (right, 275)),
        box(right, 290, "silu", "other"),
        arrow((right, 305), (right, 350), (x + 11, 350)),
        circle(x, 350, "&#215;"),
        arrow((x, 361), (x, 373)),
        box(x, 388, "RMSNorm of groups", "other"),
        arrow((x, 403), (x, 425)),
        text(x, 560, "Mamba-2", 16),
    ]


def figure():
    head = (
        '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0,0 L8,4 L0,8 z" fill="#555"/></marker>'
    )
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 880 580" font-family="sans-serif">',
        f"<defs>{head}</defs>",
        '<rect width="880" height="580" fill="white"/>',
        *mamba(250),
        *mamba2(650),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    Path(__file__).with_suffix(".svg").write_text(figure())
