"""When updates are sampled: often at a start, ever rarer later, within the budget."""

import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn

import optdoctor
from optdoctor.live import guard as live_guard
from optdoctor.live.examiner import FREE_S
from optdoctor.live.guard import Guard
from optdoctor.live.schedule import (
    BURST,
    BURST_REST,
    FLOOR_S,
    GROWTH,
    YOUNG,
    YOUNG_SHARE,
    Schedule,
)

STEP_S = 0.01


def sampled(
    schedule: Schedule,
    steps: int,
    *,
    sample_s: float = 0.0,
    step_s: float = STEP_S,
    alarm: bool = False,
    age: int = 0,
    idle_s: float = 0.0,
) -> list[int]:
    """The updates sampled on a clock that goes `step_s` an update; each sample is billed.

    `idle_s` is what every update costs without a sample.
    """
    out = []
    for update in range(age + 1, age + steps + 1):
        if schedule.due(update * step_s + schedule.billed_s):
            out.append(update)
            schedule.add(sample_s, idle=False)
        schedule.add(idle_s, idle=True)
        if alarm:
            schedule.alarm()
    return out


def is_free(age: int, last: int) -> bool:
    """Whether the update is sampled whatever the bill, the last sample being that of `last`."""
    return age >= GROWTH * last


def test_where_nothing_may_be_spent_a_run_is_sampled_whenever_it_has_grown_by_half() -> None:
    at = [1, 2, 3, 5, 8, 12, 18, 27, 41, 62, 93, 140, 210, 315, 473, 710]
    assert sampled(Schedule(1e-9), 1000, sample_s=100 * STEP_S) == at
    assert len(sampled(Schedule(), 300)) > 50, "where it costs nothing, more often"


@pytest.mark.parametrize("sample_s", [0.0, 0.3 * STEP_S, 5 * STEP_S, 100 * STEP_S])
@pytest.mark.parametrize("step_s", [STEP_S, FLOOR_S])
def test_no_run_has_grown_by_half_since_its_last_sample(sample_s: float, step_s: float) -> None:
    at = sampled(Schedule(), 20_000, sample_s=sample_s, step_s=step_s, idle_s=step_s)
    late = [(a, b) for a, b in pairwise([*at, 20_000]) if is_free(b - 1, a)]
    assert not late


def test_samples_without_cost_are_spaced_by_a_sixteenth_then_a_128th_of_the_age() -> None:
    at = sampled(Schedule(), 50_000)

    def may(after: int, before: int) -> bool:
        return (after - before) * (16 if after <= YOUNG else 128) >= after

    for before, after in pairwise(at):
        assert may(after, before)
        assert not may(after - 1, before), "it could have come earlier"


def test_a_million_updates_take_about_950_samples() -> None:
    at = sampled(Schedule(), 1_000_000)
    assert 900 <= len(at) <= 1000
    of_decade = [sum(10**d < update <= 10 ** (d + 1) for update in at) for d in (3, 4, 5)]
    assert max(of_decade) - min(of_decade) <= 15, "log-uniform: each decade gets as many"


@pytest.mark.parametrize("overhead", [0.01, 0.05])
@pytest.mark.parametrize("cost_in_steps", [0.5, 2.0, 6.0])
def test_the_budget_holds_in_the_long_run(overhead: float, cost_in_steps: float) -> None:
    schedule, cost = Schedule(overhead), cost_in_steps * STEP_S
    sampled(schedule, 20_000, sample_s=cost)
    spent = schedule.billed_s / (20_000 * STEP_S + schedule.billed_s)
    young = YOUNG_SHARE * YOUNG * STEP_S  # what youth may have left behind
    assert spent <= max(overhead, young / (20_000 * STEP_S)) + cost / (20_000 * STEP_S)
    assert schedule.samples > 10


def test_in_youth_a_tenth_may_be_spent_and_no_more() -> None:
    schedule = Schedule()
    sampled(schedule, YOUNG, sample_s=2 * STEP_S)
    spent = schedule.billed_s / (YOUNG * STEP_S)
    assert 0.02 < spent <= YOUNG_SHARE + 0.005


def test_fifteen_microseconds_an_update_are_free_in_any_case() -> None:
    tiny = FLOOR_S / 4  # an update so short that 1 % of it is nothing
    schedule = Schedule()
    at = sampled(schedule, 50_000, step_s=tiny, sample_s=50 * FLOOR_S)
    assert len(at) > 300
    assert schedule.billed_s > 0.01 * 50_000 * tiny
    assert schedule.billed_s <= FLOOR_S * 50_000 + 50 * FLOOR_S


def test_a_dear_youth_and_dear_hooks_leave_no_run_blind() -> None:
    schedule = Schedule()
    sample_s = 200 * FLOOR_S
    at = sampled(schedule, 50_000, step_s=40 * FLOOR_S, sample_s=sample_s, idle_s=10 * FLOOR_S)
    assert schedule.idle_s > schedule.overhead * 50_000 * 50 * FLOOR_S, "hooks have eaten the share"
    gaps = [b - a for a, b in pairwise(at)]
    assert max(gaps) <= YOUNG
    schedule = Schedule(0.05)
    sampled(schedule, 100_000, step_s=1e-2, sample_s=0.0, idle_s=6e-4)
    schedule._age, schedule.work_s, schedule._samples_s = 100_000, 24.0, 1e9
    schedule._last = 99_000
    assert schedule.due(elapsed_s=1000.0), "half of the share is theirs in any case"


def test_further_work_must_fit_the_bill() -> None:
    schedule = Schedule(0.01, work_s=1.0)
    schedule.looked(1.0)
    assert schedule.may_spend(elapsed_s=400.0), "another of 1 s"
    assert not schedule.may_spend(elapsed_s=399.0), "the other half is for samples"


def test_samples_leave_room_for_an_examination_and_it_takes_no_more_than_is_left() -> None:
    schedule = Schedule(0.01)
    schedule.looked(1.0)
    schedule.work_s = 3.0
    assert schedule.may_spend(elapsed_s=400.0)
    assert not schedule.may_spend(elapsed_s=399.0)
    assert aged(work_s=2.9).due(elapsed_s=400.0)
    assert not aged(work_s=3.1).due(elapsed_s=400.0)


def aged(work_s: float) -> Schedule:
    """Long due for a sample, with an examination of 1 s expected."""
    schedule = Schedule(0.01, work_s=work_s, samples=3)
    schedule._age, schedule._last, schedule._samples_s = 5 * YOUNG, 4 * YOUNG, 1e9
    schedule.looked(1.0)
    return schedule


def test_an_interval_fixes_the_samples_whatever_they_cost() -> None:
    schedule = Schedule(interval=7)
    assert sampled(schedule, 30, sample_s=1e9, alarm=True) == [1, 8, 15, 22, 29]
    assert sampled(Schedule(interval=1), 5, sample_s=1e9) == [1, 2, 3, 4, 5]


def test_an_alarm_samples_the_next_two_updates_whatever_the_bill() -> None:
    schedule = Schedule()
    sampled(schedule, 2000)
    schedule.work_s = schedule._samples_s = 1e9
    assert sampled(schedule, 50, age=2000) == []
    schedule.alarm()
    assert sampled(schedule, 50, age=2050) == [2051, 2052]
    assert BURST == 2


def test_endless_alarms_do_not_sample_for_ever() -> None:
    schedule = Schedule()
    sampled(schedule, 2000)
    regular = schedule.samples
    schedule.work_s = schedule._samples_s = 1e9
    at = sampled(schedule, 5000, age=2000, alarm=True)
    of_alarms = [b for a, b in pairwise([2000, *at]) if not is_free(b, a)]
    assert len(of_alarms) == BURST, "a burst is no reason for the next"
    assert schedule.samples - regular == len(at)


def test_there_is_one_burst_in_64_samples() -> None:
    schedule = Schedule()
    sampled(schedule, 300)
    bursts = 0
    for update in range(301, 40_000):
        before = schedule._burst
        schedule.alarm()
        bursts += schedule._burst > before
        schedule.due(update * STEP_S)
    assert bursts >= 3
    assert bursts <= 1 + schedule.samples // BURST_REST


def test_counts_are_the_samples_taken() -> None:
    schedule = Schedule()
    assert len(sampled(schedule, 500)) == schedule.samples


@pytest.mark.parametrize("step_s", [2 * FLOOR_S, 30 * FLOOR_S])
def test_what_hooks_and_log_cost_does_not_starve_the_samples(step_s: float) -> None:
    schedule = Schedule()
    at = sampled(schedule, 100_000, step_s=step_s, sample_s=100 * FLOOR_S, idle_s=3 * FLOOR_S)
    of_decade = [sum(10**d < update <= 10 ** (d + 1) for update in at) for d in (2, 3, 4)]
    assert of_decade[0] >= 1
    assert of_decade[1] >= 50
    assert of_decade[2] >= 200
    assert schedule.work_s <= FLOOR_S * 100_000 + 100 * FLOOR_S
    assert schedule.billed_s == pytest.approx(schedule.work_s + 3 * FLOOR_S * 100_000)


def test_what_hooks_and_log_cost_is_part_of_the_share() -> None:
    schedule = Schedule(0.01, idle_s=1.0, work_s=1.0)
    schedule.looked(1.0)
    assert schedule.may_spend(elapsed_s=500.0)
    assert not schedule.may_spend(elapsed_s=499.0)


def test_a_guard_bills_each_part_once_and_a_sampled_update_as_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, schedule = [0.0], Schedule(interval=2)
    monkeypatch.setattr(live_guard.time, "perf_counter", lambda: now[0])
    guard = Guard(schedule, lambda part, error: None)

    def update() -> tuple[float, float]:
        idle, work = schedule.idle_s, schedule.work_s
        with guard("sampling"):
            schedule.due(0.0)
            now[0] += 1
        with guard("step"):
            now[0] += 2
            with guard("examination"):
                now[0] += 4
            now[0] += 8
        with guard("log"):
            now[0] += 16
        return schedule.idle_s - idle, schedule.work_s - work

    assert update() == (16, 1 + 2 + 4 + 8)
    assert update() == (1 + 2 + 8 + 16, 4)


def test_a_sample_that_would_break_the_bill_waits() -> None:
    schedule = Schedule(0.05)
    at = sampled(schedule, 1600, sample_s=40 * STEP_S)
    assert all(is_free(after, before) for before, after in pairwise([0, *at]))
    at = sampled(schedule, 60_000, sample_s=40 * STEP_S, age=1600)
    waited = [after for before, after in pairwise(at) if not is_free(after, before)]
    assert waited, "it waits, and is not given up"
    assert schedule.billed_s <= 0.05 * (61_600 * STEP_S + schedule.billed_s)


@pytest.mark.parametrize("overhead", [0.2, 0.05])
@pytest.mark.parametrize("step_s", [4e-3, 0.3])
@pytest.mark.parametrize("sample_in_steps", [0.3, 3.0, 6.0])
@pytest.mark.parametrize("look_s", [2e-3, 20e-3])
def test_once_of_age_the_bill_keeps_to_a_quarter_above_the_budget(
    overhead: float, step_s: float, sample_in_steps: float, look_s: float
) -> None:
    """A made-up clock: samples, routine and urgent examinations, and an alarm at every 7th step."""
    schedule, now, next_look, free_s = Schedule(overhead), 0.0, 16, 0.0
    looks = last = 0
    unasked_s = 0.0
    """What samples cost that the bill is not asked for."""
    for update in range(1, 8001):
        now += step_s
        idle_s = min(30e-6, overhead * step_s / 4)
        now += idle_s
        schedule.add(idle_s, idle=True)
        due = schedule.due(now)
        sample_s = sample_in_steps * step_s if due else 0.0
        unasked_s += sample_s if is_free(update, last) else 0.0
        last = update if due else last
        schedule.add(sample_s, idle=False)
        now += sample_s
        if update % 7 == 0:
            schedule.alarm()
        must = free_s <= FREE_S * update or update % 7 == 0
        if update >= next_look and (schedule.may_spend(now) or (must and schedule.may_hurry(now))):
            schedule.add(look_s, idle=False)
            schedule.looked(look_s)
            now, looks, free_s = now + look_s, looks + 1, free_s + look_s
            next_look = update + 16
        if update >= YOUNG:
            assert schedule.billed_s - unasked_s <= 1.25 * overhead * now + 1e-9, update
    assert looks > 0


def test_what_is_urgent_may_exceed_the_bill_by_a_fifth_and_in_youth_borrow() -> None:
    schedule = Schedule(0.01, work_s=1.1)
    schedule._age = YOUNG // 10
    assert schedule.may_hurry(elapsed_s=10.3), "it will have ten times as much"
    assert not schedule.may_hurry(elapsed_s=10.1)
    schedule._age = YOUNG + 1
    assert schedule.may_hurry(elapsed_s=92.0)
    assert not schedule.may_hurry(elapsed_s=91.0)
    schedule.looked(0.1)
    assert not schedule.may_hurry(elapsed_s=92.0), "what it will cost counts before it does"


def test_a_change_of_tensors_is_sampled_whatever_the_bill_and_the_interval() -> None:
    for schedule in (Schedule(), Schedule(interval=1000)):
        sampled(schedule, 2000)
        schedule.work_s = 1e9
        schedule.alarm()
        for _ in range(3):
            schedule.due(0.0)
        schedule.changed()
        assert schedule.due(0.0)


def test_the_bill_is_what_a_clock_beside_it_says() -> None:
    """Hooks and `log` timed from outside: the doctor's own account is within a fifth."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 128))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    doctor = optdoctor.watch(model, optimizer, out=None, sinks=(), interval=4)
    schedule, inputs = doctor.runs[0]._schedule, torch.randn(8, 128)
    spent = [0.0]

    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            result = function(*args, **kwargs)
            spent[0] += time.perf_counter() - start
            return result

        return call

    for held in (optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks):
        for key in held:
            held[key] = timed(held[key])
    log, billed_s = timed(doctor.log), schedule.billed_s
    for _ in range(400):
        loss = model(inputs).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log(loss=loss)
    billed_s = schedule.billed_s - billed_s
    doctor.close()
    assert billed_s == pytest.approx(spent[0], rel=0.2)


@pytest.mark.slow
@pytest.mark.parametrize("overhead", [0.2, 0.05])
def test_a_real_training_keeps_to_its_budget_once_it_is_of_age(overhead: float) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    doctor = optdoctor.watch(model, optimizer, out=None, sinks=(), overhead=overhead)
    schedule, inputs, shares = doctor.runs[0]._schedule, torch.randn(64, 256), []
    start, last, unasked_s = time.perf_counter(), 0, 0.0
    for update in range(1, 1801):
        before_s = schedule.work_s
        loss = (model(inputs) - inputs).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        doctor.log(loss=loss)
        if schedule.sampling:
            # Samples that a run has since it grew by half do not ask the bill: decision 0009.
            unasked_s += schedule.work_s - before_s if is_free(update, last) else 0.0
            last = update
        if update >= YOUNG:
            elapsed_s = time.perf_counter() - start
            free_s = schedule.idle_s + FLOOR_S * update  # small updates: decision 0009
            shares.append((schedule.billed_s - free_s - unasked_s) / elapsed_s)
    doctor.close()
    assert max(shares) <= 1.25 * overhead


def test_of_several_optimizers_each_has_its_part_of_the_bill() -> None:
    one, tenth = Schedule(0.05), Schedule(0.05, part=0.1)
    for schedule in (one, tenth):
        sampled(schedule, 20_000, sample_s=STEP_S)
    assert one.billed_s > 3 * tenth.billed_s
    assert tenth.billed_s <= 1.25 * 0.005 * 20_000 * STEP_S


def test_a_fixed_interval_leaves_urgent_examinations_alone() -> None:
    assert Schedule(interval=1, work_s=1e9).may_hurry(0.0)
