"""Many tensor names in few words: `attn.query, attn.key of blocks 2-3`."""

import re
from collections.abc import Container, Iterable, Sequence

from optdoctor.report.wording import plain, shorten
from optdoctor.trace import TensorInfo

_GROUPS = 3  # groups of names that are spelled out
_NAME = 48  # columns of one name


def fold(names: Sequence[str], tensors: Iterable[TensorInfo], groups_named: int = _GROUPS) -> str:
    """`names`, worst first, with the same part of several blocks named once."""
    known = {tensor.name: tensor for tensor in tensors}
    parts = [_split(name, known[name].layer if name in known else "", known) for name in names]
    stems = {stem for stem, _, _ in (_split(n, t.layer, known) for n, t in known.items()) if stem}
    blocks: dict[tuple[str, str], set[int]] = {}  # {(stem, rest): numbers}
    for stem, block, rest in parts:
        blocks.setdefault((stem, rest), set()).add(block)
    groups: dict[tuple[str, frozenset[int]], list[str]] = {}
    for (stem, rest), found in blocks.items():
        groups.setdefault((stem, frozenset(found)), []).append(rest)
    words = []
    for (stem, numbers), rests in list(groups.items())[:groups_named]:
        inside = ", ".join(shorten(plain(rest), _NAME) for rest in rests[:_GROUPS])
        inside += f" and {len(rests) - _GROUPS} more" if len(rests) > _GROUPS else ""
        of = f" of {_blocks(stem, numbers, len(stems) > 1)}" if stem else ""
        words.append(inside + of)
    more = len(groups) - len(words)
    return "; ".join(words) + (" and others" if more else "")


def bare_name(name: str, others: Container[str] = ()) -> str:
    """The name without `.weight`, where what is left is a name and that of no other tensor."""
    stem = name.removesuffix(".weight")
    is_number = stem.rpartition(".")[2].isdigit()
    return name if is_number or stem in others else stem


def _split(name: str, layer: str, others: Container[str]) -> tuple[str, int, str]:
    """(the block's stem, its number, the rest) of a name; ("", 0, name) outside blocks."""
    bare = bare_name(name, others)
    match = re.fullmatch(r"(.*?)\.?(\d{1,6})", layer)
    dotted = f".{bare}"
    at = dotted.find(f".{layer}.") if layer else -1
    if match is None or at < 0:
        return "", 0, bare
    return match[1] or "block", int(match[2]), dotted[at + len(layer) + 2 :]


def _blocks(stem: str, numbers: Iterable[int], several: bool) -> str:
    """`blocks 0-3, 7`; with the stem where the model has more than one kind of block."""
    ordered = sorted(numbers)
    ranges: list[list[int]] = []
    for number in ordered:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    spelled = ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in ranges)
    word = "block" if len(ordered) == 1 else "blocks"
    return f"{shorten(plain(stem), _NAME)} {word} {spelled}" if several else f"{word} {spelled}"
