"""What the Hugging Face `Trainer` prints: dictionaries amid progress bars and warnings.

Up to 4.x the values are floats and a bare nan or inf, from 5.0 on quoted texts of four digits.
Rows carry no step: they are counted, and an evaluation stands at the last loss row.
"""

import re

from optdoctor.log import MAX_NAME, Log, number
from optdoctor.reader import Reader, Source
from optdoctor.readers.huggingface_state import ALIASES, add_row, is_final

_ESCAPE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
_DICTIONARY = re.compile(r"\{\s*'([^{}]*)\}")
_PAIR = re.compile(rf"'([^']{{1,{MAX_NAME}}})'\s*:\s*'?([^',{{}}]{{1,64}})")
_ROW = re.compile(
    r"\{\s*'[^{}\r\n]{0,10000}?(?<=')(?:eval_)?loss'\s*:\s*'?\s*[-+]?(?:\d|\.\d|nan|inf)"
)


def _sniff(head: str) -> bool:
    return _ROW.search(_ESCAPE.sub("", head)) is not None


def _read(source: Source, log: Log) -> None:
    # Bars and warnings are no rows gone astray: only torn dictionaries count as skipped.
    log.facts["framework"] = "huggingface"
    for line in source.lines():
        if "{" not in line:
            continue
        line = _ESCAPE.sub("", line)
        found = [_values(body) for body in _DICTIONARY.findall(line)]
        rows = [row for row in found if _is_row(row)]
        for row in rows:
            add_row(log, row)
        is_cut = line.rfind("{'") > line.rfind("}")
        if is_cut or (not rows and "'loss'" in line):
            log.skip()


def _values(body: str) -> dict[str, str]:
    return dict(_PAIR.findall("'" + body))


def _is_row(values: dict[str, str]) -> bool:
    """Whether it is what the Trainer logs and not a printed configuration."""
    if is_final(values) or "eval_runtime" in values:
        return True
    return any(number(values.get(name)) is not None for name in ("loss", "eval_loss"))


READER = Reader(
    name="huggingface-console",
    sniff=_sniff,
    read=_read,
    aliases=ALIASES,
    sample="""  1%|          | 1/90 [00:01<02:10,  1.5s/it]
{'loss': 2.25, 'grad_norm': 1.5, 'learning_rate': 3e-05, 'epoch': 0.1}
{'loss': 0.0, 'grad_norm': nan, 'learning_rate': 2e-05, 'epoch': 0.2}
{'eval_loss': '2.125', 'eval_runtime': '4.5', 'epoch': '0.2'}
{'loss': '2.062', 'grad_norm': '1.25', 'learning_rate': '1e-05', 'epoch': '0.3'}
""",
)
