"""Text as HTML: whatever a log holds stays text, on its line and in its direction."""

import html
import re
from collections.abc import Iterable, Sequence

from optdoctor.report.wording import plain

_MINUS = re.compile(r"(?<![\w.\-])-(?=\d)")
_LONG = 40  # characters beyond which a number's cell may break
_WHOLE = 30  # characters up to which a name is not broken
_UNIT = re.compile(r"(?<=\d) (?=%)")


def escaped(text: object) -> str:
    """`text` as HTML or as an attribute; what steers a terminal or a line's direction is U+FFFD."""
    return html.escape(plain(str(text)), quote=True)


def isolated(text: object) -> str:
    """A name from a log: its direction does not reach the text around it."""
    return f"<bdi>{escaped(text)}</bdi>"


def said(text: str) -> str:
    """A sentence of ours: a true minus, and no line break before %."""
    return escaped(_UNIT.sub("\u00a0", _MINUS.sub("\u2212", text)))


def code(text: object) -> str:
    """A name that the reader may type; one that fits a phone's screen stays on its line."""
    kind = ' class="w"' if len(plain(str(text))) <= _WHOLE else ""
    return f"<code{kind}>{isolated(text)}</code>"


def table(head: Sequence[tuple[str, str]], rows: Iterable[Sequence[str]], label: str) -> str:
    """A table that becomes a list on a narrow screen.

    `head`: (title, class) of each column, class `n` for numbers; `rows`: cells as HTML, the first
    of each heads its row.
    """
    titles = "".join(f'<th scope="col"{_class(kind)}>{escaped(t)}</th>' for t, kind in head)
    body = []
    for first, *cells in rows:
        tail = "".join(
            f'<td data-l="{escaped(title)}"{_class(kind if len(cell) <= _LONG else "")}>{cell}</td>'
            for (title, kind), cell in zip(head[1:], cells, strict=True)
        )
        body.append(f'<tr><th scope="row">{first}</th>{tail}</tr>')
    return (
        f'<table class="stack" aria-label="{escaped(label)}"><thead><tr>{titles}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table>"
    )


def _class(kind: str) -> str:
    return f' class="{kind}"' if kind else ""
