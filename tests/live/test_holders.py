"""Which optimizer holds what: of a model, of another one, twice, elsewhere, by nobody."""

import gc
import json
import warnings
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from small_training import batches, net, quiet, seed, train
from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from optdoctor.findings import Severity
from optdoctor.live.doctor import Doctor
from optdoctor.live.holders import held_by_any
from optdoctor.readers.run_record import read_folder
from optdoctor.trace import TensorInfo


@pytest.fixture(autouse=True)
def without_optimizers_of_earlier_tests() -> None:
    gc.collect()


def infos(doctor: Doctor, run: int = 0) -> dict[str, TensorInfo]:
    return {t.name: t for t in doctor.runs[run].trace.tensors}


def graves(doctor: Doctor) -> dict[str, Severity]:
    return {f.rule: f.severity for f in doctor.diagnosis.findings}


def row_of_layers(count: int = 5) -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(4, 4) for _ in range(count)))


def all_but(model: nn.Module, part: str) -> list[nn.Parameter]:
    return [p for name, p in model.named_parameters() if not name.startswith(part)]


def test_a_forgotten_layer_is_told_before_step_1_and_read_again_from_disk(tmp_path: Path) -> None:
    model = row_of_layers()
    doctor = quiet(model, AdamW(all_but(model, "2."), lr=1e-3), tmp_path / "run")
    assert graves(doctor) == {"parameters-without-optimizer": Severity.WARN}
    doctor.close()
    again = read_folder(tmp_path / "run")
    assert again.tensors == doctor.runs[0].trace.tensors
    lost = next(t for t in again.tensors if t.name == "2.weight")
    assert (lost.times_held, lost.in_optimizer, lost.in_model) == (0, False, True)


def test_a_linear_probe_is_a_note() -> None:
    model = net()
    doctor = quiet(model, AdamW(model.head.parameters(), lr=1e-3))
    train(model, doctor.runs[0].optimizer, 40, doctor)
    assert graves(doctor)["parameters-without-optimizer"] is Severity.NOTE
    frozen = net()
    frozen.requires_grad_(False)
    frozen.head.requires_grad_(True)
    assert graves(quiet(frozen, AdamW(frozen.head.parameters(), lr=1e-3))) == {}


def test_optimizers_of_one_doctor_hold_what_the_others_do_not() -> None:
    model = row_of_layers()
    several = [SGD(model[2].parameters(), lr=1e-2), AdamW(all_but(model, "2."), lr=1e-3)]
    doctor = quiet(model, several)
    assert infos(doctor, 0)["0.weight"].held_elsewhere
    assert not infos(doctor, 0)["2.weight"].held_elsewhere
    assert infos(doctor, 1)["2.weight"].held_elsewhere
    assert [graves(doctor)] == [{}]


def test_an_optimizer_that_nobody_watches_holds_its_part_too() -> None:
    model = row_of_layers()
    other = SGD(model[2].parameters(), lr=1e-2)
    doctor = quiet(model, AdamW(all_but(model, "2."), lr=1e-3))
    assert infos(doctor)["2.weight"].held_elsewhere
    assert graves(doctor) == {}
    del other


def test_an_optimizer_that_is_gone_holds_nothing() -> None:
    model = row_of_layers()
    other = SGD(model[2].parameters(), lr=1e-2)
    gone = weakref.ref(other)
    del other
    gc.collect()
    assert gone() is None
    assert "parameters-without-optimizer" in graves(
        quiet(model, AdamW(all_but(model, "2."), lr=1e-3))
    )


def test_objects_are_looked_at_only_where_a_parameter_is_nobodys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse() -> Any:
        raise AssertionError("nothing is amiss")

    monkeypatch.setattr(gc, "get_objects", refuse)
    model = net()
    doctor = quiet(model, AdamW(model.parameters(), lr=1e-3))
    train(model, doctor.runs[0].optimizer, 3, doctor)
    model.embed.requires_grad_(False)
    rest = [p for p in model.parameters() if p.requires_grad]
    doctors = [doctor, quiet(model, AdamW(rest, lr=1e-3))]
    doctors.append(quiet(model, [SGD(model.head.parameters()), SGD(all_but(model, "head"))]))
    for one in doctors:
        assert [e.text for run in one.runs for e in run.trace.events if "failed" in e.kind] == []


class Hostile:
    """Answers nothing that is asked of it."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)


class Unhashed(type):
    """A class of such classes is met too."""

    def __hash__(cls) -> int:
        raise RuntimeError

    def __eq__(cls, other: object) -> bool:
        raise RuntimeError


class OddlyBuilt(SGD):
    """An optimizer whose constructor has not run."""

    def __init__(self) -> None:
        pass


class Refusing(SGD):
    """An optimizer whose groups cannot be read."""

    def __init__(self) -> None:
        pass

    @property
    def param_groups(self) -> Any:
        raise RuntimeError

    @param_groups.setter
    def param_groups(self, value: Any) -> None:
        raise RuntimeError


def test_objects_that_refuse_every_question_stop_nothing() -> None:
    kind = Unhashed("Kind", (), {})
    keep = [Hostile(), kind(), OddlyBuilt(), Refusing(), type("Late", (Optimizer,), {})]
    model = row_of_layers()
    other = Adam(model[2].parameters())
    assert held_by_any(map(id, model.parameters())) == {id(p) for p in model[2].parameters()}
    assert len(keep) == 5
    del other


def test_the_search_keeps_nothing_alive() -> None:
    model = row_of_layers()
    other = SGD(model[2].parameters(), lr=1e-2)
    gone = weakref.ref(other)
    doctor = quiet(model, AdamW(all_but(model, "2."), lr=1e-3))
    del other
    gc.collect()
    assert gone() is None
    doctor.close()


def test_a_head_replaced_after_the_optimizer_was_built_is_told_before_step_1() -> None:
    model = net()
    optimizer = AdamW(model.parameters(), lr=1e-3)
    model.head = nn.Linear(8, 7)
    doctor = quiet(model, optimizer)
    assert graves(doctor) == {
        "optimizer-of-another-model": Severity.WARN,
        "parameters-without-optimizer": Severity.WARN,
    }
    old = [t for t in infos(doctor).values() if not t.in_model]
    assert [t.shape for t in old] == [(11, 8), (11,)]


def renewed(model: nn.Module) -> None:
    """Gives every module new parameters of the same values, as wrappers and conversions do."""
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            setattr(module, name, nn.Parameter(parameter.detach().clone()))


def test_an_optimizer_built_before_the_model_got_new_parameters_is_critical_to_the_end() -> None:
    model = net()
    optimizer = AdamW(model.parameters(), lr=1e-3)
    renewed(model)
    doctor = quiet(model, optimizer)
    assert graves(doctor)["optimizer-of-another-model"] is Severity.CRITICAL
    train(model, optimizer, 40, doctor)
    assert graves(doctor)["optimizer-of-another-model"] is Severity.CRITICAL


def test_functional_training_of_copies_is_a_note_from_the_first_sample_on() -> None:
    model = net()
    copies = {n: p.detach().clone().requires_grad_() for n, p in model.named_parameters()}
    optimizer = SGD(copies.values(), lr=1e-2)
    doctor = quiet(model, optimizer)
    for batch in batches(10):
        optimizer.zero_grad()
        logits = torch.func.functional_call(model, copies, (batch[0],))
        nn.functional.cross_entropy(logits, batch[1]).backward()
        optimizer.step()
    doctor.close()
    assert graves(doctor)["optimizer-of-another-model"] is Severity.NOTE


def test_a_loss_with_parameters_of_its_own_and_a_watched_part_are_notes() -> None:
    model, loss = row_of_layers(), nn.Linear(4, 4)
    optimizer = AdamW([*model.parameters(), *loss.parameters()], lr=1e-3)
    assert graves(quiet(model, optimizer)) == {"optimizer-of-another-model": Severity.NOTE}
    both = nn.ModuleList([model, loss])
    assert graves(quiet(both, optimizer)) == {}


def test_master_copies_in_the_optimizer_are_a_note() -> None:
    model = row_of_layers().bfloat16()
    masters = [nn.Parameter(p.detach().float()) for p in model.parameters()]
    found = graves(quiet(model, AdamW(masters, lr=1e-3)))
    assert found == {"optimizer-of-another-model": Severity.NOTE}


def test_nothing_trainable_is_critical_before_step_1() -> None:
    model = net().requires_grad_(False)
    assert graves(quiet(model, AdamW(model.parameters()))) == {
        "nothing-trainable": Severity.CRITICAL
    }
    empty = AdamW([{"params": []}])
    assert graves(quiet(model, empty)) == {"nothing-trainable": Severity.CRITICAL}


def test_gradients_written_by_hand_end_it() -> None:
    model = net().requires_grad_(False)
    optimizer = SGD(model.parameters(), lr=1e-3)
    doctor = quiet(model, optimizer)
    for _ in range(4):
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
    doctor.close()
    assert graves(doctor) == {}


def test_a_phase_of_training_that_comes_later_is_a_note() -> None:
    model = net()
    model.head.requires_grad_(False)
    doctor = quiet(model, [SGD(model.head.parameters()), SGD(all_but(model, "head"))])
    assert graves(doctor) == {"nothing-trainable": Severity.NOTE}
    assert doctor.runs[1].diagnosis.findings == ()


def test_lazy_parameters_are_waited_for() -> None:
    model = nn.Sequential(nn.LazyLinear(8), nn.LazyLinear(8))
    doctor = quiet(model, SGD(model.parameters(), lr=1e-3))
    assert graves(doctor) == {}
    model(torch.ones(2, 4)).sum().backward()
    doctor.runs[0].optimizer.step()
    doctor.close()
    assert graves(doctor) == {}
    assert infos(doctor)["1.weight"].times_held == 1


def test_a_duplicate_is_counted_and_a_tie_is_held_once() -> None:
    model = net()
    model.head.weight = model.embed.weight
    assert infos(quiet(model, AdamW(model.parameters())))["embed.weight"].times_held == 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        twice = AdamW([*model.embed.parameters(), *model.head.parameters()])
    doctor = quiet(model, twice)
    assert infos(doctor)["embed.weight"].times_held == 2
    assert graves(doctor)["weights-held-twice"] is Severity.NOTE


@pytest.mark.parametrize("decay", [0.1, 0, torch.tensor(0.25), None, float("nan"), "much"])
def test_the_decay_of_each_group_is_a_number(decay: Any, tmp_path: Path) -> None:
    model = net()
    groups = [
        {"params": list(model.head.parameters()), "weight_decay": 0.5},
        {"params": all_but(model, "head")},
    ]
    optimizer = AdamW(groups)
    optimizer.param_groups[1]["weight_decay"] = decay
    doctor = quiet(model, optimizer, tmp_path / "run")
    assert infos(doctor)["head.weight"].weight_decay == 0.5
    known = decay if isinstance(decay, float | torch.Tensor) and decay == decay else 0.0
    assert infos(doctor)["norm.weight"].weight_decay == pytest.approx(float(known))
    doctor.close()
    assert read_folder(tmp_path / "run").tensors == doctor.runs[0].trace.tensors


def test_a_record_of_an_older_release_knows_nothing_of_it_and_tells_of_nothing(
    tmp_path: Path,
) -> None:
    model = net()
    doctor = quiet(model, AdamW(model.parameters()), tmp_path / "run")
    doctor.close()
    path = tmp_path / "run" / "run.json"
    document = json.loads(path.read_text())
    for tensor in document["tensors"]:
        for name in ("weight_decay", "times_held", "in_model", "held_elsewhere"):
            del tensor[name]
    path.write_text(json.dumps(document))
    tensors = read_folder(tmp_path / "run").tensors
    assert {(t.times_held, t.in_model, t.weight_decay) for t in tensors} == {(1, True, 0.0)}


def test_the_search_leaves_the_training_alone_to_the_bit() -> None:
    plain, watched = net(), net()
    seed()
    losses = train(plain, AdamW(plain.head.parameters(), lr=1e-2), 10)
    optimizer = AdamW(watched.head.parameters(), lr=1e-2)
    with quiet(watched, optimizer) as doctor:
        seed()
        assert train(watched, optimizer, 10, doctor) == losses
