"""Inputs for `fuzz_readers.py`: logs of every format, damaged in every way that comes to mind."""

import bz2
import gzip
import io
import json
import lzma
import math
import random
import re
import struct
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeAlias

from optdoctor.readers import readers

MAGIC = 4_194_301.5
"""A loss that only files outside of the folder under test hold."""
LARGEST = 11 << 20
"""Bytes of an input."""
FOLDER_EVERY = 40
"""One input in so many is a folder."""
NUMBERS = (
    *("nan", "-nan", "NaN", "nanxxx", "inf", "-Infinity", "1.#QNAN", "1.#INF", "-1.#IND00"),
    *("1e999", "-1e999", "1e-999", "1e308", "-1.8e308", "5e-324", "0", "-0", "-0.0", "00000012"),
    *("1180591620717411303424", "-9223372036854775809", "9223372036854775807", "4503599627370497"),
    *("18446744073709551616", "2147483648", "0x", "0x1F", "1_000", "1,000,000", "1,0", "1.2.3"),
    *(
        "١٢٣",
        "²³",
        "\uff11\uff12",
        "१.५",
        "1e",
        "1e+",
        "e5",
        ".",
        "-",
        "+",
        "--5",
        "+-1",
        "1-1",
        ".5",
        "5.",
    ),
    *("1e5000000000", "1e-5000000000", "12k", "3.5M", "1G", "99%", "null", "None", "True", '"7"'),
    *("9" * 400, "9" * 5000, "0." + "3" * 5000, "1e" + "9" * 5000, "-" * 50 + "1", "", " "),
)
PIECES = (
    *(
        "\0",
        "\x1b[31m",
        "\x1b[",
        "\x1b]0;",
        "\x9b",
        "\b",
        "\r",
        "\r\n",
        "\n",
        "\x0b",
        "\x0c",
        "\x1c",
    ),
    *(
        "\u2028",
        "\x85",
        "\u202e",
        "\ufeff",
        "\ufffd",
        "\U0001f525",
        "\u017f",
        "İ",
        "ß",
        "́",
        "\ud800",
    ),
    *("{", "}", "[", "]", "(", ")", '"', "'", ",", ":", "=", "|", ";", "\t", " ", "\\", "/", "<"),
    *(
        '{"a":',
        "[[",
        '{"loss": 1,',
        "loss",
        "loss: ",
        "step ",
        "epoch ",
        "1/",
        "%|",
        "tensor(",
        "e",
    ),
    *("nan ", "np.float64(", "- ", "=====", "-----", "...", "a b ", "a.b.", "1 ", "1.", "1,", "1e"),
)

Data: TypeAlias = bytes | tuple[str, str] | None
"""What stands in a folder: a file, a named pipe (None), a link (what it is, whither)."""


ODD_NAMES = (
    *(
        b"a",
        b"run\nrun",
        b"\xff\xfe",
        b"\xed\xa0\x80",
        b"\x1b[31m",
        b"\xe2\x80\xae.log",
        b"x" * 255,
    ),
    *(
        b"*",
        b"[a]",
        b"-",
        b"~",
        b" ",
        b"0",
        b".hidden",
        b"train",
        b"eval",
        b"earlier-1",
        b"run.json",
    ),
    *(b"checkpoint-9", b"checkpoint-\xd9\xa3", b"checkpoint-\xc2\xb2", b"checkpoint-" + b"9" * 200),
    *(b"events.out.tfevents.9", b"events.out.tfevents." + b"8" * 200, b"optdoctor-run"),
)
TARGETS = (
    *(".", "..", "loop", "a", "nowhere", "../folder", "/dev/zero", "/dev/stdin", "/proc/self"),
    *("../outside", "../outside/train.log", "../../outside/train.log", "../outside/run"),
    *("../outside/trainer_state.json", "../outside/events.out.tfevents.1"),
    *("../outside/run/run.json", "../../outside/run/run.json", "../outside/run/events.jsonl"),
    "../outside/run/steps-0001.arrows",
)
"""Whither a link leads."""


@dataclass(frozen=True)
class Input:
    """A file to read, or a folder."""

    made: str
    """How it was made, in words."""
    reader: str
    """The reader whose format it was, "" where none is to be forced."""
    data: bytes = b""
    files: Mapping[bytes, Data] | None = None
    """{path in the folder: what stands there} where it is one."""
    outside: Mapping[bytes, bytes] | None = None
    """Files beside the folder, which nobody may read."""


def hostile(seed: int, number: int, largest: int = LARGEST) -> Input:
    """The input of that number, always the same."""
    rng = random.Random(f"{seed}:{number}")
    if number % FOLDER_EVERY == FOLDER_EVERY - 1:
        return _folder(rng)
    name = rng.choice(sorted(seeds()))
    data, words = seeds()[name], [name]
    if rng.random() < 0.1:
        data = grown(rng, data)
        words.append("grown")
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 5))):
        mutate = rng.choices(*zip(*MUTATIONS, strict=True))[0]
        data = mutate(rng, data)[:largest]
        words.append(mutate.__name__.strip("_"))
    if rng.random() < 0.04:
        pack = rng.choice(PACKED)
        data = pack(data)
        words.append(pack.__name__)
        if rng.random() < 0.6:
            mutate = rng.choice((_cut, _flipped, _doubled_piece, _garbage))
            data = mutate(rng, data)
            words.append(mutate.__name__.strip("_"))
    elif rng.random() < 0.0005:
        data = rng.choice(BOMBS)()
        words = ["bomb"]
    forced = name if rng.random() < 0.5 else ""
    return Input(", ".join(words), forced.partition("/")[0], data[:largest])


# --- What is damaged ----------------------------------------------------------------------------


@cache
def seeds() -> dict[str, bytes]:
    """{reader, or reader/what: a small log of its format}."""
    found = {reader.name: reader.sample.encode() for reader in readers() if reader.sample}
    return found | {
        "tensorboard": _event_file(2),
        "tensorboard/tensors": _event_file(8),
        "wandb": _wandb_file(60),
        "wandb/long": _wandb_file(900),
        "huggingface-state/long": _trainer_state(200),
        "csv/long": _csv(400),
        "json-lines/long": _json_lines(400),
        "guess/binary": bytes(range(256)) * 8,
    }


def grown(rng: random.Random, data: bytes) -> bytes:
    """The log over and over, with other numbers."""
    wanted = rng.choice((5_000, 20_000, 100_000))
    parts, size, at = [], 0, 0
    while size < wanted:
        at += 1
        parts.append(
            re.sub(rb"(?<![\w.])\d+(?![\w.])", lambda n, at=at: b"%d" % (int(n[0][:9]) + at), data)
        )
        size += len(data) + 1
    return b"".join(parts)


def _losses(n: int) -> list[float]:
    return [3 * math.exp(-i / n) + 0.01 * math.sin(7 * i) for i in range(n)]


def _csv(n: int) -> bytes:
    rows = (f"{i},{loss:.4f},{1e-3 / (i + 1):.3e},{i % 50}\n" for i, loss in enumerate(_losses(n)))
    return ("step,loss,lr,epoch\n" + "".join(rows)).encode()


def _json_lines(n: int) -> bytes:
    rows = ({"step": i, "loss": loss, "lr": 1e-3} for i, loss in enumerate(_losses(n)))
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def _trainer_state(n: int, scale: float = 1.0) -> bytes:
    rows = [
        {
            "step": i + 1,
            "epoch": i / 50,
            "loss": scale * loss,
            "learning_rate": 1e-4,
            "grad_norm": 1.5,
        }
        for i, loss in enumerate(_losses(n))
    ]
    return json.dumps({"global_step": n, "max_steps": n, "log_history": rows}, indent=1).encode()


def _varint(value: int) -> bytes:
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def _message(field: int, data: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(data)) + data


def _event_file(field: int, n: int = 80, scale: float = 1.0) -> bytes:
    """Scalars as TensorFlow 1 (field 2) or 2 (field 8) writes them; no checksums."""
    events = [_message(3, b"brain.Event:2")]
    for i, loss in enumerate(_losses(n)):
        number = struct.pack("<f", scale * loss)
        value = (
            b"\x15" + number
            if field == 2
            else _message(8, b"\x08\x01\x12\x00" + _message(4, number))
        )
        pair = _message(1, b"train/loss") + value
        summary = _message(1, pair) + _message(1, _message(1, b"lr") + b"\x15" + number)
        events.append(b"\x10" + _varint(i + 1) + _message(5, summary))
    clock = b"\x09" + struct.pack("<d", 1.5e9)
    return b"".join(
        struct.pack("<QI", len(clock + event), 0) + clock + event + bytes(4) for event in events
    )


def _wandb_file(n: int) -> bytes:
    out = bytearray(struct.pack("<4sHB", b":W&B", 0xBEE1, 0))
    for i, loss in enumerate(_losses(n)):
        row = {"loss": loss, "_step": i, "train/lr": 1e-3, "acc": i / n}
        items = b"".join(
            _message(1, _message(1, key.encode()) + _message(16, json.dumps(value).encode()))
            for key, value in row.items()
        )
        record = _message(2, items)
        room = 32768 - len(out) % 32768
        if room < len(record) + 7:
            out += bytes(room)
        out += struct.pack("<IHB", 0, len(record), 1) + record
    return bytes(out)


# --- How it is damaged --------------------------------------------------------------------------


def _place(rng: random.Random, data: bytes) -> int:
    return rng.randint(0, len(data))


def _piece(rng: random.Random, data: bytes, most: int = 60) -> bytes:
    at = _place(rng, data)
    return data[at : at + rng.choice((1, 1, 2, 3, 5, 8, 13, 21, most))]


def _size(rng: random.Random) -> int:
    """Bytes of what is made long: most of it short, so that there is time for many."""
    least, most = rng.choices(
        (
            (20, 2_000),
            (2_000, 30_000),
            (30_000, 300_000),
            (300_000, 3_000_000),
            (10 << 20, 10 << 20),
        ),
        (60, 30, 6, 0.7, 0.1),
    )[0]
    return rng.randint(least, most)


def _lines(rng: random.Random, data: bytes) -> list[bytes]:
    return data.split(b"\n")


def _cut(rng: random.Random, data: bytes) -> bytes:
    a, b = sorted((_place(rng, data), _place(rng, data)))
    return rng.choice((data[:a], data[:b], data[a:], data[a:b], data[:a] + data[b:]))


def _doubled_lines(rng: random.Random, data: bytes) -> bytes:
    times = rng.choice((2, 2, 3, 10))
    return b"\n".join(line for line in data.split(b"\n") for _ in range(rng.choice((1, times))))


def _shuffled_lines(rng: random.Random, data: bytes) -> bytes:
    lines = data.split(b"\n")
    if rng.random() < 0.5:
        rng.shuffle(lines)
    else:
        lines = [rng.choice(lines) for _ in lines]
    return b"\n".join(lines)


def _flipped(rng: random.Random, data: bytes) -> bytes:
    out = bytearray(data)
    for _ in range(rng.choice((1, 2, 8, 64)) if out else 0):
        at = rng.randrange(len(out))
        out[at] = rng.choice((out[at] ^ 1 << rng.randrange(8), rng.randrange(256), 0, 255))
    return bytes(out)


def _hostile_numbers(rng: random.Random, data: bytes) -> bytes:
    share, one = rng.choice((0.02, 0.1, 0.5, 1.0)), rng.choice(NUMBERS)
    is_mixed = rng.random() < 0.5

    def other(found: re.Match[bytes]) -> bytes:
        if rng.random() > share:
            return found[0]
        return (rng.choice(NUMBERS) if is_mixed else one).encode()

    return re.sub(rb"[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?", other, data)


def _random_numbers(rng: random.Random, data: bytes) -> bytes:
    """Numbers of every size in the places of numbers: steps that jump, losses that explode."""
    top = rng.choice((10, 1e3, 1e6, 1e15, 1e300))

    def other(found: re.Match[bytes]) -> bytes:
        value = rng.random() * top
        return (f"{value:.6g}" if b"." in found[0] else f"{int(min(value, 1e18))}").encode()

    return re.sub(rb"\d+(?:\.\d+)?(?:e[-+]?\d+)?", other, data)


def _inserted(rng: random.Random, data: bytes, what: bytes) -> bytes:
    at = _place(rng, data)
    return data[:at] + what + data[at:]


def _garbage(rng: random.Random, data: bytes) -> bytes:
    return _inserted(rng, data, rng.randbytes(rng.choice((1, 10, 300))))


def _marks(rng: random.Random, data: bytes) -> bytes:
    for _ in range(rng.choice((1, 3, 20))):
        data = _inserted(rng, data, rng.choice(PIECES).encode("utf-8", "surrogatepass"))
    return data


def _repeated(rng: random.Random, data: bytes) -> bytes:
    """A piece of the log over and over within a line, which hostile expressions are slow at."""
    of = rng.random()
    piece = _piece(rng, data) if of < 0.6 else rng.choice(PIECES).encode("utf-8", "surrogatepass")
    if of > 0.9:
        piece += _piece(rng, data, 10)
    at = _place(rng, data)
    keeps_lines = rng.random() < 0.3
    piece = piece if keeps_lines else piece.replace(b"\n", b" ").replace(b"\r", b" ")
    end = rng.choice((at, at, min(at + len(piece), len(data)), len(data)))
    return data[:at] + piece * (_size(rng) // max(len(piece), 1)) + data[end:]


def _of_an_alphabet(rng: random.Random, data: bytes) -> bytes:
    """A long line of a few words of the log in any order."""
    words = re.findall(rb"\w+|[^\w\s]+|[ \t]+", data) or [b" "]
    few = [rng.choice(words) for _ in range(rng.randint(1, 5))]
    size = min(_size(rng), 100_000)
    long = b"".join(rng.choices(few, k=size // max(len(b"".join(few)) // len(few), 1)))
    return _inserted(rng, data, long)


def _doubled_piece(rng: random.Random, data: bytes) -> bytes:
    return _inserted(rng, data, _piece(rng, data, 1000))


def _one_line(rng: random.Random, data: bytes) -> bytes:
    line = data.replace(b"\n", rng.choice((b"", b" ", b"\r", b"\x0b", b"\0", b"\\n", b"\t")))
    return line * max(_size(rng) // max(len(line), 1), 1)


def _nested(rng: random.Random, data: bytes) -> bytes:
    start, end = rng.choice(
        (("[", "]"), ('{"a":', "}"), ("{'a':", "}"), ("(", ")"), ('{"loss":[', "]}"))
    )
    depth = min(_size(rng), 100_000)
    inside = rng.choice((data, b"1", b'{"loss": 1}'))
    whole = start.encode() * depth + inside + end.encode() * rng.choice((0, depth, depth - 1))
    return rng.choice((whole, data + b"\n" + whole, _inserted(rng, data, whole)))


def _spliced(rng: random.Random, data: bytes) -> bytes:
    """Two formats in one file."""
    other = seeds()[rng.choice(sorted(seeds()))]
    kind = rng.randrange(4)
    if kind == 0:
        return data[: _place(rng, data)] + other[_place(rng, other) :]
    if kind == 1:
        return data + b"\n" + other
    if kind == 2:
        return other + data
    lines, others = data.split(b"\n"), other.split(b"\n")
    return b"\n".join(line for both in zip(lines, others, strict=False) for line in both)


def _encoded(rng: random.Random, data: bytes) -> bytes:
    text = data.decode("utf-8", "replace")
    if rng.random() < 0.3:
        text = text.replace("\n", rng.choice(("\r\n", "\r", "\u2028", "\x85", "\n\n", "\r\r\n")))
    code = rng.choice(("utf-16", "utf-16-be", "utf-8-sig", "utf-32", "latin-1", "utf-7", "cp037"))
    packed = text.encode(code, "replace")
    if code == "utf-16-be":
        packed = b"\xfe\xff" + packed
    return packed[: len(packed) - rng.choice((0, 0, 1, 3))]


def _wide(rng: random.Random, data: bytes) -> bytes:
    """Digits and letters of other scripts."""
    text = data.decode("utf-8", "replace")
    zero = rng.choice((0x660, 0x966, 0xFF10, 0x1D7CE))
    share = rng.choice((0.05, 1.0))
    return "".join(
        chr(zero + int(c)) if c in "0123456789" and rng.random() < share else c for c in text
    ).encode()


def _quotes(rng: random.Random, data: bytes) -> bytes:
    old, new = rng.choice(
        (
            (b'"', b"'"),
            (b"'", b'"'),
            (b",", b";"),
            (b":", b"="),
            (b" ", b""),
            (b" ", b"\t"),
            (b".", b","),
            (b"}", b""),
            (b'"', b""),
        )
    )
    return data.replace(old, new)


def _many_columns(rng: random.Random, data: bytes) -> bytes:
    """Rows with more names than anybody logs."""
    width = rng.choice((100, 2000, 12_000))
    names = [f"loss{i}" for i in range(width)]
    if rng.random() < 0.5:
        row = ",".join("1.5" for _ in names)
        return (",".join(names) + "\n" + (row + "\n") * 3).encode() + data
    row = json.dumps(dict.fromkeys(names, 1.5))
    return data + b"\n" + (row + "\n").encode() * 2


def _early_row(rng: random.Random, data: bytes) -> bytes:
    """Much that is no row before the log, or behind it."""
    filler = rng.choice((b"x" * 99 + b"\n", b"\n", b" \n", b"\r", b"warning: 1 of 2\n", b"\0"))
    size = rng.choice((1_000, 1_000, 1_000, 20_000, 1_200_000)) if rng.random() < 0.05 else 500
    pad = filler * (size // len(filler))
    return rng.choice((pad + data, data + pad, pad + data + pad))


def _same(rng: random.Random, data: bytes) -> bytes:
    return data


MUTATIONS: tuple[tuple[Callable[[random.Random, bytes], bytes], float], ...] = (
    (_cut, 2),
    (_doubled_lines, 2),
    (_shuffled_lines, 2),
    (_flipped, 3),
    (_hostile_numbers, 4),
    (_random_numbers, 2),
    (_garbage, 1),
    (_marks, 2),
    (_repeated, 5),
    (_of_an_alphabet, 1),
    (_doubled_piece, 1),
    (_one_line, 0.5),
    (_nested, 1),
    (_spliced, 2),
    (_encoded, 1),
    (_wide, 1),
    (_quotes, 1),
    (_many_columns, 0.1),
    (_early_row, 1),
    (_same, 0.2),
)
"""Each with how often it comes."""


# --- Packed -------------------------------------------------------------------------------------


def in_zip(data: bytes) -> bytes:
    """In an archive of one file."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("train.log", data)
    return file.getvalue()


def in_zstd(data: bytes) -> bytes:
    """As zstd packs it."""
    import pyarrow

    return bytes(pyarrow.compress(data, "zstd", asbytes=True)) if data else b""


def in_lz4(data: bytes) -> bytes:
    """In a frame of lz4."""
    import pyarrow

    sink = pyarrow.BufferOutputStream()
    with pyarrow.CompressedOutputStream(sink, "lz4") as stream:
        stream.write(data)
    return bytes(sink.getvalue())


def in_gzip(data: bytes) -> bytes:
    """As gzip packs it, quickly."""
    return gzip.compress(data, 1)


def twice(data: bytes) -> bytes:
    """One form within another."""
    return gzip.compress(bz2.compress(data[: 1 << 18]), 1)


def in_bzip2(data: bytes) -> bytes:
    """As bzip2 packs it; what is long takes it long."""
    return bz2.compress(data[: 1 << 20], 1)


def in_xz(data: bytes) -> bytes:
    """As xz packs it."""
    return lzma.compress(data[: 1 << 20], preset=0)


PACKED = (in_zip, in_zstd, in_lz4, in_gzip, in_bzip2, in_xz, twice)


@cache
def _zeros() -> bytes:
    return gzip.compress(bytes(300 << 20), 1)


@cache
def _same_line() -> bytes:
    return bz2.compress((b"warning: " + b"x" * 1014 + b"\n") * (300 << 10), 1)


@cache
def _zip_of_zeros() -> bytes:
    return in_zip(bytes(300 << 20))


@cache
def _zip_in_zip() -> bytes:
    return in_zip(in_zip(bytes(200 << 20)))


def _lying_zip() -> bytes:
    """The size that its header names is not the size of the file."""
    whole = bytearray(in_zip(b"step 1 loss 2.5\n" * 100))
    whole[18:26] = b"\xff" * 8
    return bytes(whole)


@cache
def _hidden_in_zip() -> bytes:
    """Zeros beside the log, in a file that is passed over."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for i in range(4):
            archive.writestr(f"__MACOSX/{i}", bytes(300 << 20))
        archive.writestr("train.log", "".join(f"step {i} loss 2.5\n" for i in range(50)))
    return file.getvalue()


def _many_members() -> bytes:
    return gzip.compress(b"", 1) * 400_000


def _many_streams() -> bytes:
    return bz2.compress(b"x", 1) * 100_000


BOMBS = (
    _zeros,
    _same_line,
    _zip_of_zeros,
    _zip_in_zip,
    _lying_zip,
    _hidden_in_zip,
    _many_members,
    _many_streams,
)


# --- Folders ------------------------------------------------------------------------------------


@cache
def run_record(scale: float = 1.0) -> dict[bytes, bytes]:
    """The files of a small run record."""
    import numpy as np

    from optdoctor.live.journal import Journal
    from optdoctor.trace import Event, TensorInfo

    tensors = tuple(TensorInfo(f"h.{i}.weight", (i + 1,), order=i) for i in range(4))
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root) / "run"
        journal = Journal(folder, ("grad_rms", "update_rms"))
        journal.open({"framework": "torch"}, resumed=False, first_step=None)
        journal.retrack(tensors, 1)
        for step, loss in enumerate(_losses(90), 1):
            journal.row(step, {"loss": scale * loss, "lr": 1e-3})
            if step % 3 == 0:
                row = np.full(len(tensors), step, np.float32)
                journal.sample(step, {"grad_rms": row, "update_rms": -row})
            if step == 50:
                journal.event(Event(step, "checkpoint", "x"))
                journal.retrack(tensors, step + 1)
        journal.close()
        return {path.name.encode(): path.read_bytes() for path in folder.iterdir()}


def _folder(rng: random.Random) -> Input:
    """A folder with runs of any kind, links in and out of it, pipes and odd names."""
    files: dict[bytes, Data] = {}
    words = ["folder"]
    for _ in range(rng.choice((1, 1, 2, 4))):
        kind = rng.choice(_FOLDERS)
        words.append(kind.__name__.strip("_"))
        below = rng.choice((b"", b"", _odd_name(rng) + b"/"))
        for name, data in kind(rng).items():
            files[below + name] = data
    for name in sorted(files):
        data = files[name]
        if isinstance(data, bytes) and rng.random() < 0.3:
            files[name] = rng.choices(*zip(*MUTATIONS, strict=True))[0](rng, data)[: 1 << 20]
        if rng.random() < 0.05:
            files[name] = rng.choice((None, b"", _link(rng)))
    outside = {
        b"train.log": "".join(f"step {i} loss {MAGIC}\n" for i in range(50)).encode(),
        b"trainer_state.json": _trainer_state(60, MAGIC),
        b"events.out.tfevents.1": _event_file(2, 60, 0.0).replace(
            struct.pack("<f", 0.0), struct.pack("<f", MAGIC)
        ),
        **{b"run/" + name: data for name, data in run_record(MAGIC).items()},
    }
    return Input(", ".join(words), "", files=files, outside=outside)


def _odd_name(rng: random.Random) -> bytes:
    return rng.choice(ODD_NAMES)


def _link(rng: random.Random) -> tuple[str, str]:
    return "link", rng.choice(TARGETS)


def _logs(rng: random.Random) -> dict[bytes, Data]:
    names = [rng.choice(sorted(seeds())) for _ in range(rng.choice((1, 2, 5)))]
    return {
        rng.choice((name.replace("/", "-").encode(), _odd_name(rng))): seeds()[name]
        for name in names
    }


def _links(rng: random.Random) -> dict[bytes, Data]:
    """Links under the names that are looked for."""
    places = (b"run.json", b"a", b"loop", b"events.out.tfevents.5", b"x.wandb", b"optdoctor-run")
    places += (b"checkpoint-5", b"checkpoint-7/trainer_state.json", b"train", b"0/run.json", b"sub")
    places += (
        b"sub/run.json",
        b"train/events.out.tfevents.3",
        b"sub/x.wandb",
        b"sub/optdoctor-run",
    )
    return {rng.choice(places): _link(rng) for _ in range(rng.choice((1, 3, 6)))}


def _pipes(rng: random.Random) -> dict[bytes, Data]:
    places = (b"run.json", b"train.log", b"x.wandb", b"events.out.tfevents.5", b"train/tfevents")
    places += (b"sub/x.wandb", b"checkpoint-5/trainer_state.json", b"0/run.json", b"sub/run.json")
    return {rng.choice(places): None for _ in range(rng.choice((1, 3)))}


def _record(rng: random.Random) -> dict[bytes, Data]:
    below = rng.choice((b"", b"", b"optdoctor-run/", b"0/"))
    files: dict[bytes, Data] = {below + name: data for name, data in run_record().items()}
    for name in sorted(files):
        if rng.random() < 0.1:
            files[name] = rng.choice((None, _link(rng), b"", b"\0" * 100))
    return files


def _events(rng: random.Random) -> dict[bytes, Data]:
    places = ("", "train/", "validation/", "eval/", "loss_train/", "x/")
    names = [f"{rng.choice(places)}events.out.tfevents.{i}.host" for i in range(rng.choice((1, 3)))]
    return {name.encode(): _event_file(rng.choice((2, 8))) for name in names}


def _checkpoints(rng: random.Random) -> dict[bytes, Data]:
    steps = (b"5", b"100", b"-1", b"x", b"\xc2\xb2", b"9" * 200, b"")
    names = rng.sample(steps, rng.choice((1, 2, 4)))
    return {b"checkpoint-" + step + b"/trainer_state.json": _trainer_state(40) for step in names}


def _crowd(rng: random.Random) -> dict[bytes, Data]:
    data = rng.choice((b"", b"x", b"step 1 loss 2.5\nstep 2 loss 2.25\n"))
    count = 2000 if len(data) < 2 and rng.random() < 0.1 else 30
    ends = (b"", b".log", b".wandb", b"/x.wandb")
    return {b"f%d" % i + rng.choice(ends): data for i in range(count)}


def _deep(rng: random.Random) -> dict[bytes, Data]:
    return {b"d/" * rng.choice((3, 100, 400)) + b"train.log": seeds()["csv"]}


_FOLDERS = (_logs, _links, _pipes, _record, _events, _checkpoints, _crowd, _deep, _links, _record)
