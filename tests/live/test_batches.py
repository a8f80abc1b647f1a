"""Batches of updates that went wrong: saved, loaded and given to the model again."""

import copy
import io
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from small_training import fingerprint, quiet, seed
from torch import Tensor, nn
from torch.nn import functional as F

import optdoctor
from optdoctor.live.alarm import LEAST, Alarms
from optdoctor.live.batches import NO_FOLDER, Batches, Process, num_bytes
from optdoctor.live.doctor import Doctor
from optdoctor.live.guard import Guard
from optdoctor.live.incoming import Incoming, Odd
from optdoctor.live.journal import Journal
from optdoctor.live.kept_values import keep, plain
from optdoctor.live.outlets import Outlets
from optdoctor.live.schedule import Schedule

torch.set_num_threads(1)
WIDTH, ROWS = 8, 16


class Net(nn.Module):
    """Takes a scale by keyword."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(WIDTH, WIDTH)
        self.dropout = nn.Dropout(0.1)
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, x: Tensor, *, scale: float = 1.0) -> Tensor:
        return self.head(self.dropout(self.body(x * scale).relu()))


def net() -> Net:
    seed()
    return Net()


def batch(step: int) -> tuple[Tensor, Tensor]:
    x = torch.from_numpy(np.random.default_rng(step).standard_normal((ROWS, WIDTH), np.float32))
    return x, x.sum(1, keepdim=True)


def train(
    model: nn.Module,
    optimizer: Any,
    doctor: Doctor | None = None,
    steps: int = 40,
    spoil: dict[int, Any] | None = None,
    micro: int = 1,
    log_after: bool = False,
) -> None:
    """`spoil` {step: what is done to its inputs}; the index of a batch is 1000 + its step."""
    for step in range(1, steps + 1):
        optimizer.zero_grad()
        for number in range(micro):
            x, y = batch(step * micro + number)
            if spoil and step in spoil and number == micro - 1:
                x = spoil[step](x)
            loss = F.mse_loss(model(x, scale=0.5), y)
            loss.backward()
            if doctor is not None and not log_after:
                doctor.log(loss=loss, batch_index=1000 + step)
        optimizer.step()
        if doctor is not None and log_after:
            doctor.log(loss=loss, batch_index=1000 + step)


def nan(x: Tensor) -> Tensor:
    x = x.clone()
    x[3, 2] = torch.nan
    return x


def trained(
    out: Path | None, save_batches: Any = "1 MB", rate: float = 1e-3, **options: Any
) -> Doctor:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    with quiet(model, optimizer, out, save_batches=save_batches) as doctor:
        train(model, optimizer, doctor, **options)
    assert events(doctor, "doctor-failed") == []
    assert not model._forward_pre_hooks
    return doctor


def events(doctor: Doctor, kind: str) -> list[str]:
    return [event.text for event in doctor.runs[0].trace.events if event.kind == kind]


def files(out: Path) -> list[str]:
    return sorted(str(path.relative_to(out)) for path in out.glob("batches/*"))


def load(out: Path, step: int) -> dict[str, Any]:
    saved: dict[str, Any] = torch.load(out / f"batches/step-{step:06d}.pt", weights_only=True)
    return saved


@pytest.mark.parametrize("log_after", [False, True])
def test_a_batch_with_nan_is_saved_and_breaks_sound_weights_again(
    tmp_path: Path, log_after: bool
) -> None:
    doctor = trained(tmp_path, spoil={30: nan}, log_after=log_after)

    assert files(tmp_path) == ["batches/step-000030.pt"]
    saved = load(tmp_path, 30)
    assert np.isnan(saved["loss"])
    about = {name: saved[name] for name in ("step", "batch_index", "rank", "given_to")}
    assert about == {"step": 30, "batch_index": 1030, "rank": 0, "given_to": "model"}
    assert (saved["passes_left_out"], saved["changed_in_place"]) == (0, 0)
    (one,) = saved["passes"]
    assert bool(net()(*one["args"], **one["kwargs"]).isnan().any())
    assert torch.equal(one["args"][0], nan(batch(30)[0])) is False  # NaN is no equal of itself
    assert one["args"][0].nan_to_num(7).equal(nan(batch(30)[0]).nan_to_num(7))
    assert one["kwargs"] == {"scale": 0.5}

    found = {finding.rule: finding for finding in doctor.diagnosis.findings}
    for rule in ("nan-pulse", "nonfinite-gradient"):
        (named,) = (t.title for t in found[rule].treatments if "step-000030.pt" in t.title)
        assert named.startswith("Look for NaN and for values far out of range in batches/step-0000")
        assert 'torch.load(path)["passes"]' in named
    reread = optdoctor.diagnose(optdoctor.read(str(tmp_path)))
    again = [t.title for f in reread.findings for t in f.treatments]
    assert any("batches/step-000030.pt" in title for title in again)


def test_a_batch_that_raises_the_loss_is_saved_and_named_by_its_rule(tmp_path: Path) -> None:
    doctor = trained(tmp_path, steps=120, rate=1e-6, spoil={90: lambda x: x * 300})
    assert files(tmp_path) == ["batches/step-000090.pt"]
    assert load(tmp_path, 90)["passes"][0]["args"][0].equal(batch(90)[0] * 300)
    assert "far from its last" in load(tmp_path, 90)["reason"]
    found = {finding.rule: finding for finding in doctor.diagnosis.findings}
    titles = [treatment.title for treatment in found["bad-batch"].treatments]
    assert any("batches/step-000090.pt" in title for title in titles)


def test_a_bad_batch_that_was_over_long_before_takes_no_blame_for_nan(tmp_path: Path) -> None:
    spoil = {90: lambda x: x * 300, 200: nan}
    doctor = trained(tmp_path, steps=220, rate=1e-6, spoil=spoil)
    found = {finding.rule: finding for finding in doctor.diagnosis.findings}
    assert found["bad-batch"].steps == (90, 90)
    assert found["nan-pulse"].causes.found == ()
    (named,) = (t.title for t in found["nan-pulse"].treatments if "batches/" in t.title)
    assert "batches/step-000200.pt" in named


def test_no_batch_is_to_blame_for_gradients_that_nobody_set_to_zero() -> None:
    alarms = Alarms()
    told = [each for _ in range(20) for each in alarms({"gradients_kept": 1.0})]
    assert [of_batch for _, _, of_batch in told] == [False]


def test_a_batch_whose_loss_is_low_is_no_bad_one(tmp_path: Path) -> None:
    alarms = Alarms()
    for step in range(LEAST):
        assert list(alarms({"loss": 5 + step % 3})) == []
    ((what, value, of_batch),) = alarms({"loss": -99.0})
    assert not of_batch
    ((_, _, of_batch),) = alarms({"loss": 99.0})
    assert of_batch
    kept = Batches(10_000, tmp_path, Process())
    kept.take(batch(1), {})
    kept.belong_to(1)
    assert kept.save(Odd(1, what, value, False, {})) is None
    assert files(tmp_path) == []


def test_all_passes_of_an_accumulated_update_are_saved(tmp_path: Path) -> None:
    trained(tmp_path, micro=3, spoil={20: nan})
    passes = load(tmp_path, 20)["passes"]
    assert [bool(one["args"][0].isnan().any()) for one in passes] == [False, False, True]
    assert passes[0]["args"][0].equal(batch(60)[0])


def test_a_healthy_run_writes_nothing_and_lets_its_inputs_go(tmp_path: Path) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    alive = []
    with quiet(model, optimizer, tmp_path, save_batches="1 MB") as doctor:
        for step in range(1, 60):
            x, y = batch(step)
            alive.append(weakref.ref(x))
            loss = F.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            doctor.log(loss=loss)
            optimizer.step()
            del x
            assert sum(one() is not None for one in alive) == 0
    assert files(tmp_path) == []
    assert not (tmp_path / "batches").exists()


def test_nothing_is_hooked_or_written_unless_asked_for(tmp_path: Path) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with quiet(model, optimizer, tmp_path) as doctor:
        assert not model._forward_pre_hooks
        train(model, optimizer, doctor, spoil={30: nan})
    assert not (tmp_path / "batches").exists()


def test_no_bit_of_the_training_changes(tmp_path: Path) -> None:
    def run(save: bool) -> Any:
        model = net()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        spoil = {25: lambda x: x * 50}
        if not save:
            train(model, optimizer, None, spoil=spoil)
        else:
            with quiet(model, optimizer, tmp_path, save_batches="1 MB") as doctor:
                train(model, optimizer, doctor, spoil=spoil)
            assert files(tmp_path) == ["batches/step-000025.pt"]
        return fingerprint(model, optimizer)

    assert run(False) == run(True)


def test_without_a_folder_one_sentence_says_so(tmp_path: Path) -> None:
    doctor = trained(None, spoil={30: nan})
    assert events(doctor, "gap") == [NO_FOLDER]
    assert events(doctor, "batch-saved") == []


def test_files_never_take_more_than_was_allowed_and_that_is_told_once(tmp_path: Path) -> None:
    spoil = dict.fromkeys(range(10, 40, 3), nan)
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with quiet(model, optimizer, tmp_path, save_batches=5000) as doctor:
        for parameter in model.parameters():  # a NaN gradient leaves these weights whole
            parameter.register_hook(lambda grad: grad.nan_to_num(0))
        train(model, optimizer, doctor, spoil=spoil)
    sizes = [path.stat().st_size for path in tmp_path.glob("batches/*")]
    assert len(sizes) >= 1
    assert sum(sizes) <= 5000 < sum(sizes) + max(sizes)
    assert len(events(doctor, "batch-saved")) == len(sizes) < len(spoil)
    (full,) = events(doctor, "gap")
    assert "save_batches is full" in full
    assert events(doctor, "doctor-failed") == []


def test_outliers_leave_room_for_what_is_not_finite(tmp_path: Path) -> None:
    def odd(step: int, value: float) -> Odd:
        return Odd(step, "odd", value, True, {"loss": value})

    kept = Batches(6000, tmp_path, Process())
    for step in range(1, 9):
        kept.take(batch(step), {})
        kept.belong_to(step)
        kept.save(odd(step, 9.0))
        kept.release(step)
    many = files(tmp_path)
    assert len(many) == 1
    kept.take(batch(9), {})
    kept.belong_to(9)
    event = kept.save(odd(9, float("nan")))
    assert event is not None
    assert event.kind == "batch-saved"
    assert files(tmp_path) == [*many, "batches/step-000009.pt"]


def test_what_is_held_is_bounded_and_what_is_missing_is_told(tmp_path: Path) -> None:
    x = torch.zeros(100)  # 400 bytes
    kept = Batches(4000, tmp_path, Process())
    for _ in range(30):
        kept.take((x.clone(),), {})
    assert kept._num_bytes <= 4000
    kept.belong_to(1)
    event = kept.save(Odd(1, "loss not finite", float("nan"), True, {}))
    assert event is not None
    assert "save_batches is full" in event.text  # what surrounds 4000 bytes finds no room
    kept = Batches(20_000, tmp_path, Process())
    for number in range(3):
        kept.take((torch.zeros(1000 if number else 4500),), {})
    kept.belong_to(1)
    event = kept.save(Odd(1, "loss not finite", float("nan"), True, {}))
    assert event is not None
    assert event.text.endswith("without its first 1 of 3 passes")
    assert load(tmp_path, 1)["passes_left_out"] == 1


def test_a_loss_that_comes_too_late_finds_no_batch_and_says_so(tmp_path: Path) -> None:
    kept = Batches(4000, tmp_path, Process())
    odd = Odd(1, "loss not finite", float("nan"), True, {})
    event = kept.save(odd)
    assert event is not None
    assert "no forward pass of the watched model was seen" in event.text
    kept.take((torch.zeros(2),), {})
    kept.belong_to(1)
    kept.release(1)
    event = kept.save(odd)
    assert event is not None
    assert "the batch of step 1 is not saved" in event.text
    assert kept.save(odd) is None


def test_what_was_written_to_in_place_is_marked(tmp_path: Path) -> None:
    class Centred(Net):
        def forward(self, x: Tensor, *, scale: float = 1.0) -> Tensor:
            return super().forward(x.sub_(x.mean()), scale=scale)

    seed()
    model = Centred()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with quiet(model, optimizer, tmp_path, save_batches="1 MB") as doctor:
        train(model, optimizer, doctor, spoil={30: nan})
    saved = load(tmp_path, 30)
    assert saved["changed_in_place"] == 1
    assert bool(saved["passes"][0]["args"][0].isnan().all())
    (told,) = events(doctor, "batch-saved")
    assert told.endswith("with 1 written to in place since")


def test_a_folder_that_cannot_be_written_ends_it_and_not_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "batches").write_text("a file where the folder should be")
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with quiet(model, optimizer, tmp_path, save_batches="1 MB") as doctor:
        train(model, optimizer, doctor, spoil={30: nan})
        assert not model._forward_pre_hooks
    assert doctor.runs[0].step == 40
    assert ["batches failed" in text for text in events(doctor, "doctor-failed")] == [True]


def test_copies_of_a_watched_model_are_not_watched_and_need_nothing_of_ours(
    tmp_path: Path,
) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with quiet(model, optimizer, tmp_path, save_batches="1 MB") as doctor:
        train(model, optimizer, doctor, steps=3)
        buffer = io.BytesIO()
        torch.save(model, buffer)
        assert b"optdoctor" not in buffer.getvalue()
        buffer.seek(0)
        loaded = torch.load(buffer, weights_only=False)
        kept = doctor.runs[0]._batches
        assert kept is not None
        for other in (copy.deepcopy(model), loaded):
            other(batch(1)[0], scale=0.5)
        assert not kept._held
        model(batch(1)[0], scale=0.5)
        assert len(kept._held) == 1
        with torch.no_grad():
            model(batch(1)[0], scale=0.5)
        assert len(kept._held) == 1


def test_a_new_run_sets_the_files_of_the_last_aside(tmp_path: Path) -> None:
    trained(tmp_path, spoil={30: nan})
    (tmp_path / "batches/mine.txt").write_text("not ours")
    trained(tmp_path)
    assert files(tmp_path) == ["batches/mine.txt"]
    assert files(tmp_path / "earlier-1") == ["batches/step-000030.pt"]


def test_each_process_saves_its_own_part(tmp_path: Path) -> None:
    kept = Batches(10_000, tmp_path, Process(3, 8), "training_step")
    kept.take((torch.ones(2),), {})
    kept.belong_to(7)
    event = kept.save(Odd(7, "gradient not finite", float("nan"), True, {"grad_norm": 1.0}))
    assert event is not None
    assert (event.new, event.old) == ("batches/step-000007-rank3.pt", "training_step")
    assert files(tmp_path) == ["batches/step-000007-rank3.pt"]


@pytest.mark.parametrize("inside", [False, True])
def test_a_compiled_model_is_seen_where_it_is_the_one_that_is_watched(
    inside: bool, tmp_path: Path
) -> None:
    model = net()
    compiled: Any = torch.compile(model, backend="eager", fullgraph=True)
    watched = model if inside else compiled
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with quiet(watched, optimizer, tmp_path, save_batches="1 MB") as doctor:
        train(compiled, optimizer, doctor, steps=12, spoil={10: nan})
    torch._dynamo.reset()
    assert files(tmp_path) == ([] if inside else ["batches/step-000010.pt"])
    assert any("no forward pass" in text for text in events(doctor, "gap")) is inside


def test_numbers_on_a_device_are_fetched_at_once(tmp_path: Path) -> None:
    def odd(prompt: bool) -> list[Odd]:
        schedule = Schedule()
        outlets = Outlets([], Guard(schedule, lambda *_: None), set(), schedule)
        incoming = Incoming(Journal(None, ()), outlets, lambda _: None, prompt=prompt)
        return incoming.add([(1, {"loss": torch.tensor(torch.nan)})])

    assert odd(False) == []
    (one,) = odd(True)
    assert (one.step, one.what) == (1, "loss not finite")


class Pair(NamedTuple):
    left: Tensor
    right: Any


@dataclass
class Example:
    words: Tensor
    name: str


class Tagged(Tensor):
    """A plain subclass."""


def test_all_kinds_of_values_can_be_loaded_with_weights_only(tmp_path: Path) -> None:
    whole = torch.arange(1000.0)
    graph = (torch.ones(2, requires_grad=True) * 3).sum()
    given = {
        "view": whole[10:12],
        "spread": torch.ones(1).expand(4),
        "graph": graph,
        "weight": nn.Parameter(torch.ones(1)),
        "subclass": torch.ones(2).as_subclass(Tagged),
        "sparse": torch.eye(2).to_sparse(),
        "complex": torch.ones(1, dtype=torch.complex64).conj(),
        "bfloat16": torch.ones(1, dtype=torch.bfloat16),
        "meta": torch.ones(2, device="meta"),
        "nested": torch.nested.nested_tensor([torch.ones(1), torch.ones(2)]),
        "array": np.arange(3),
        "backwards": np.arange(3)[::-1],
        "words": np.array(["a"]),
        "scalar": np.float32(2.5),
        "list": [1, True, None, "a", 2.5, (1, [2])],
        "named": Pair(torch.ones(1), {"k": 3}),
        "example": Example(torch.ones(1), "a"),
        "dtype": torch.float16,
        "module": nn.Linear(1, 1),
        "iterator": iter([1]),
        4: {("a", 1): 2},
        "bytes": b"123",
    }
    kept = keep((), given)
    assert all(tensor.grad_fn is None for tensor, _ in kept.tensors)
    torch.save(plain(kept.kwargs), tmp_path / "file.pt")
    loaded = torch.load(tmp_path / "file.pt", weights_only=True)
    assert list(loaded) == list(given)
    assert loaded["view"].equal(whole[10:12])
    assert loaded["view"].untyped_storage().nbytes() == 8
    assert loaded["spread"].equal(torch.ones(4))
    assert loaded["graph"].item() == 6
    assert loaded["sparse"].to_dense().equal(torch.eye(2))
    assert loaded["array"].equal(torch.arange(3))
    assert loaded["scalar"] == 2.5
    assert loaded["list"] == given["list"]
    assert loaded["named"][1] == {"k": 3}
    assert loaded["example"]["name"] == "a"
    assert "Linear" in loaded["module"]
    assert loaded["meta"] == "<Tensor (2,) torch.float32>"
    assert type(loaded["subclass"]) is Tensor


@pytest.mark.parametrize(
    ("size", "bytes_"),
    [("100 MB", 10**8), ("1.5gib", 3 * 2**29), (2048, 2048), ("7", 7), ("64 KB", 64000)],
)
def test_sizes(size: str | int, bytes_: int) -> None:
    assert num_bytes(size) == bytes_


@pytest.mark.parametrize("size", ["", "MB", "-1 MB", 0, -5, True, "10 parsecs", "nan", "1 bgm"])
def test_what_is_no_size_is_refused(size: Any) -> None:
    model = net()
    with pytest.raises(ValueError, match="save_batches"):
        optdoctor.watch(model, torch.optim.SGD(model.parameters()), out=None, save_batches=size)
