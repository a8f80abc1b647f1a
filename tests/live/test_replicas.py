"""Copies of weights in several processes: whether they are compared, and nothing waits for it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import optdoctor
from optdoctor.live.copies import copies_of
from optdoctor.live.replicas import _packed, _short, is_turn, store, sum_of_bits, sums_of_bits
from optdoctor.live.tensors import track
from optdoctor.optimizers import probe_of

WORKER = Path(__file__).with_name("replicated.py")
ALL = [1, 2, 3, 4, 5, 6, 7, 8, 10, 12]

Told = dict[str, dict[str, Any]]
"""{case: what the doctor of one process saw}"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("replicas")


@pytest.fixture(scope="module")
def both(folder: Path) -> tuple[Told, Told]:
    """All cases, in two processes."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", str(WORKER), str(rank), str(folder)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        for rank in range(2)
    ]
    try:
        told = [process.communicate(timeout=280)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0]
    lines = [[json.loads(line) for line in text.splitlines()] for text in told]
    first, second = ({line["case"]: line for line in several} for several in lines)
    return first, second


def steps(told: dict[str, Any], channel: str = "replicas_differ") -> list[int]:
    return list(told["series"].get(channel, [[], []])[0])


def differing(told: dict[str, Any], channel: str = "replicas_differ") -> list[int]:
    at, values = told["series"].get(channel, [[], []])
    return [step for step, value in zip(at, values, strict=True) if value > 0]


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [
        "plain",
        "given_what_is_within",
        "wrapped_after_watching",
        "dropout_and_batch_norm",
        "statistics_of_their_own",
        "accumulation",
        "loss_scaling",
        "half_precision_gradients",
        "resumed",
        "state_in_parts",
        "averaged_by_hand",
    ],
)
def test_healthy_replicas_are_compared_and_silent(both: tuple[Told, Told], case: str) -> None:
    told = both[0][case]
    assert told["found"] is None
    assert len(steps(told)) >= len(ALL) - 1  # the last may come after the end
    assert differing(told) == []
    assert told["facts"]["replicated"] in ("ddp", "yes")


@pytest.mark.slow
@pytest.mark.parametrize("case", ["averaged_now_and_then", "each_on_its_own", "told_not_to_be"])
def test_copies_that_differ_on_purpose_are_not_compared(both: tuple[Told, Told], case: str) -> None:
    assert both[0][case]["series"] == {}
    assert both[0][case]["found"] is None


@pytest.mark.slow
def test_it_fails_nowhere(both: tuple[Told, Told]) -> None:
    assert [told["case"] for several in both for told in several.values() if told["failed"]] == []


@pytest.mark.slow
def test_another_checkpoint_is_seen_at_the_first_update(both: tuple[Told, Told]) -> None:
    told = both[0]["another_checkpoint"]
    severity, (first, _), tensors, summary = told["found"]
    assert (severity, first, tensors) == ("critical", 1, ["module.0.weight"])
    assert "1 of 2 processes (rank 1)" in summary
    assert told["facts"] == {"replicated": "ddp", "replicas_apart": "1"}


@pytest.mark.slow
def test_another_rate_is_seen_at_its_first_update(both: tuple[Told, Told]) -> None:
    told = both[0]["another_rate"]
    severity, (first, _), tensors, summary = told["found"]
    assert (severity, first, len(tensors)) == ("critical", 7, 4)
    assert "alike until step 6" in summary
    assert differing(told) == [step for step in steps(told) if step >= 7]


@pytest.mark.slow
def test_how_far_they_are_apart_is_that_of_all_weights(both: tuple[Told, Told]) -> None:
    """Of a weight that is 1.5 times what it should be, by far the largest of 4."""
    at, values = both[0]["another_checkpoint"]["series"]["tensor_replica_distance"]
    assert at
    assert values[0][0] == pytest.approx(0.5, rel=0.05)
    assert values[0][1:] == [0, 0, 0]


@pytest.mark.slow
def test_passes_around_the_wrapper_are_seen(both: tuple[Told, Told]) -> None:
    severity, _, tensors, _ = both[0]["around_the_wrapper"]["found"]
    assert severity == "critical"
    assert len(tensors) >= 3


@pytest.mark.slow
def test_updates_within_no_sync_are_a_note(both: tuple[Told, Told]) -> None:
    told = both[0]["always_within_no_sync"]
    assert told["facts"]["replicated"] == "local"
    assert told["found"][0] == "note"


@pytest.mark.slow
def test_a_module_beside_the_wrapper_is_a_note(both: tuple[Told, Told]) -> None:
    told = both[0]["head_left_out"]
    assert differing(told) == []
    assert differing(told, "unwrapped_differ")[0] == 1
    severity, _, tensors, _ = told["found"]
    assert severity == "note"
    assert set(tensors) <= {"1.weight", "1.bias"}


@pytest.mark.slow
def test_one_element_is_enough(both: tuple[Told, Told]) -> None:
    told = both[0]["one_row_of_a_table"]
    assert differing(told) == steps(told)
    assert told["found"][2][0] == "module.1.weight"


@pytest.mark.slow
@pytest.mark.parametrize("case", ["watched_in_the_first_only", "one_ends_early"])
def test_who_does_not_answer_is_not_waited_for(both: tuple[Told, Told], case: str) -> None:
    assert set(steps(both[0][case])) <= {1, 2, 3}


@pytest.mark.slow
def test_the_first_process_alone_tells(both: tuple[Told, Told]) -> None:
    assert [case for case, told in both[1].items() if told["series"]] == []


@pytest.mark.slow
def test_the_record_tells_the_same(both: tuple[Told, Told], folder: Path) -> None:
    live = both[0]["another_rate"]["found"]
    (again,) = [
        f
        for f in optdoctor.diagnose(optdoctor.read(folder / "run")).findings
        if f.rule == "replicas-differ"
    ]
    assert json.loads(json.dumps([again.severity, again.steps, again.tensors, again.summary])) == (
        live
    )


def test_turns_are_dense_and_then_four_to_a_doubling() -> None:
    turns = [update for update in range(1, 65) if is_turn(update)]
    assert turns == [*range(1, 9), 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64]


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.float8_e5m2]
)
@pytest.mark.parametrize("size", [1, 2, 3, 7, 8, 9, 1001])
def test_the_sum_of_bits_is_that_of_its_bytes(dtype: torch.dtype, size: int) -> None:
    flat = torch.randn(size).to(dtype)
    raw = flat.view(torch.uint8).numpy().tobytes()
    padded = raw + b"\0" * (-len(raw) % 8)
    want = sum(int.from_bytes(padded[i : i + 8], "little") for i in range(0, len(padded), 8))
    assert int(sum_of_bits(flat)) % 2**64 == want % 2**64
    assert (sums_of_bits(torch.stack([flat, flat])) == sum_of_bits(flat)).all()


def test_the_sum_of_bits_does_not_depend_on_where_the_tensor_lies() -> None:
    whole = torch.randn(100)
    assert sum_of_bits(whole[1:90]) == sum_of_bits(whole[1:90].clone())


def test_tensors_are_read_in_any_order_and_told_whose_they_are() -> None:
    tensors = [torch.randn(3, 3), torch.randn(5), torch.randn(3, 3), torch.randn(1 << 17)]
    packed, order = _packed(tensors, 4)
    assert sorted(order) == [0, 1, 2, 3]
    for place, i in enumerate(order):
        assert packed[:4].view(torch.int64)[place] == sum_of_bits(tensors[i].reshape(-1))
        elements = packed[4:].reshape(4, 4)[place]
        assert set(elements.tolist()) <= set(tensors[i].double().flatten().tolist())


def test_short_sums_depend_on_every_bit() -> None:
    base = np.uint64(0x0123456789ABCDEF)
    flipped = np.array([base, *(base ^ (np.uint64(1) << np.uint64(i)) for i in range(64))])
    assert len(set(_short(flipped).tolist())) == 65


def test_one_process_alone_has_nothing_to_compare() -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tracked = track(model, optimizer, probe_of(optimizer))
    assert copies_of(model, tracked, "yes") is None
    assert store() is None
