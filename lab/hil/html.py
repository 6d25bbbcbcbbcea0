"""The parts that pages of the bench are made of: one self-contained HTML text, tables, and plots as inline SVG."""

from __future__ import annotations

import html
import io
import re
from collections.abc import Iterable, Sequence

import matplotlib as mpl
from matplotlib.figure import Figure

__all__ = ["BAD", "GOOD", "INK", "ORANGE", "PALE", "Mark", "page", "svg", "table"]

INK, GOOD, BAD, ORANGE, PALE = "#0b63c5", "#1c7a3c", "#b00020", "#d2691e", "#8a97a6"
_STYLE = f"""body{{font:15px/1.5 system-ui,sans-serif;max-width:66rem;margin:2rem auto;padding:0 1rem;color:#1c2733}}
h1{{font-size:1.5rem;margin-bottom:.3rem}}h2{{font-size:1.1rem;margin-top:2rem}}table{{border-collapse:collapse;width:100%}}
td,th{{padding:.25rem .8rem .25rem 0;text-align:left;border-bottom:1px solid #dde3ea;vertical-align:top}}
th{{font-weight:600}}td:first-child{{white-space:nowrap}}td:nth-child(2){{min-width:8rem}}td{{font-variant-numeric:tabular-nums;overflow-wrap:anywhere}}
.good{{color:{GOOD};font-weight:600;white-space:nowrap}}.bad{{color:{BAD};font-weight:600;white-space:nowrap}}
.none{{color:{PALE};white-space:nowrap}}.number{{white-space:nowrap}}
.verdict{{font-size:1.1rem}}svg{{max-width:100%;height:auto;margin:.5rem 0}}"""


class Mark(str):
    """A verdict in a table's cell, coloured by its kind: good, bad or none; or a number, which no line breaks."""

    kind: str

    def __new__(cls, text: str, kind: str) -> Mark:
        """The text `text` of the class `kind`."""
        made = super().__new__(cls, text)
        made.kind = kind
        return made


def page(title: str, parts: Iterable[str]) -> str:
    """A whole page of HTML parts below its title."""
    name = html.escape(title)
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{name}</title><style>{_STYLE}</style>\n'
        f"<h1>{name}</h1>\n" + "\n".join(parts) + "\n</html>\n"
    )


def table(heading: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A heading and a table; nothing where there are no rows."""
    cells = "".join(f"<tr>{''.join(_cell(value) for value in row)}</tr>" for row in rows)
    if not cells:
        return ""
    names = "".join(f"<th>{html.escape(name)}</th>" for name in columns)
    return f"<h2>{html.escape(heading)}</h2><table><tr>{names}</tr>{cells}</table>"


def _cell(value: object) -> str:
    text = html.escape(str(value))
    return f'<td class="{value.kind}">{text}</td>' if isinstance(value, Mark) else f"<td>{text}</td>"


def svg(figure: Figure) -> str:
    """The figure as an `<svg>` element, the same bytes each time."""
    text = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": "fenced", "svg.fonttype": "path"}):
        figure.savefig(text, format="svg", metadata={"Date": None})
    return re.sub(r"^.*?(?=<svg)", "", text.getvalue(), flags=re.DOTALL)
