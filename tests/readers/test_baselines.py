"""progress.csv and monitor.csv of Baselines and Stable-Baselines3: the reward is the aim."""

import math

import pytest

from tests.readers.tables import facts, read, steps, values


@pytest.mark.parametrize(
    ("losses", "watched"),
    [
        ("train/loss,train/value_loss,train/policy_gradient_loss", "train/loss"),
        ("train/policy_loss,train/value_loss,train/entropy_loss", "train/value_loss"),
        ("train/actor_loss,train/ent_coef_loss,train/critic_loss", "train/critic_loss"),
    ],
)
def test_the_watched_loss_is_never_that_of_an_actor_or_a_policy(losses: str, watched: str) -> None:
    trace = read(
        f"time/fps,{losses},rollout/ep_rew_mean,time/total_timesteps\n"
        "900,,,,-120.5,2048\n850,1,2,3,-110.25,4096\n840,4,5,6,nan,6144\n"
    )
    assert trace.reader == "baselines"
    place = losses.split(",").index(watched)
    assert steps(trace) == [4096, 6144]
    assert values(trace) == [1.0 + place, 4.0 + place]
    assert steps(trace, "metric:rollout/ep_rew_mean") == [2048, 4096, 6144]
    assert math.isnan(values(trace, "metric:rollout/ep_rew_mean")[-1])
    assert "metric:time/fps" not in trace.series
    assert facts(trace, "loss_kind", "step_source") == ["reward", "logged"]


def test_steps_of_the_environment_are_never_moved() -> None:
    rows = "".join(f"{-100 + i},{100 * i + 99},0.5\n" for i in range(9))
    trace = read("rollout/ep_rew_mean,time/total_timesteps,train/loss\n" + rows)
    assert steps(trace)[:2] == [99, 199]


def test_a_monitor_file_is_rewards_by_episode() -> None:
    trace = read(
        '#{"t_start": 1700000000.5, "env_id": "Pole-v1"}\nr,l,t\n20.0,20,0.5\n25.5,25,1.5\n'
    )
    assert trace.reader == "baselines"
    assert values(trace, "metric:r") == [20.0, 25.5]
    assert steps(trace, "metric:r") == [1, 2]
    assert sorted(trace.series) == ["metric:l", "metric:r"]
    assert facts(trace, "loss_kind", "step_source") == ["reward", "counted rows"]


def test_the_old_table_of_deep_q_learning_has_rewards_and_no_loss() -> None:
    trace = read(
        "% time spent exploring,episodes,mean 100 episode reward,steps\n"
        "99,100,9.5,1168\n98,200,10.5,2440\n"
    )
    assert values(trace, "metric:mean 100 episode reward") == [9.5, 10.5]
    assert steps(trace, "metric:mean 100 episode reward") == [1168, 2440]
    assert "loss" not in trace.series
