"""Formulas of the site as MathML, which browsers draw without a script: a hook of MkDocs."""

import html
import re

from latex2mathml.converter import convert

_FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[\[(](.*?)\\[\])]</\1>', re.DOTALL)


def on_page_content(text, **_):
    return _FORMULA.sub(lambda found: convert(html.unescape(found[2]), display="block" if found[1] == "div" else "inline"), text)
