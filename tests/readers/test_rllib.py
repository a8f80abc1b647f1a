"""progress.csv of RLlib: losses in columns or in a dict, rewards that begin as NaN."""

import math

from tests.readers.tables import facts, read, steps, values


def test_losses_are_found_in_a_dict_that_is_written_as_text() -> None:
    trace = read(
        "episode_reward_mean,training_iteration,time_this_iter_s,done,date,config,info\n"
        """nan,1,10.5,False,2020-01-02_10-00-00,"{'lr': 0.5, 'gamma': 0.9}","""
        """"{'learner': {'vf_loss': 5.5, 'policy_loss': -7.5, 'cur_lr': 0.0005}, 'num': 3}"\n"""
        """-20.5,2,10.5,False,2020-01-02_10-00-10,"{'lr': 0.5, 'gamma': 0.9}","""
        """"{'learner': {'vf_loss': nan, 'policy_loss': -6.5, 'cur_lr': 0.0004}, 'num': 4}"\n"""
    )
    assert trace.reader == "rllib"
    assert steps(trace) == [1, 2]
    assert values(trace)[0] == 5.5
    assert math.isnan(values(trace)[1])
    assert values(trace, "metric:info/policy_loss") == [-7.5, -6.5]
    assert values(trace, "lr") == [0.0005, 0.0004]
    assert math.isnan(values(trace, "metric:episode_reward_mean")[0])
    assert facts(trace, "loss_kind") == ["reward"]
    assert not [name for name in trace.series if "config" in name or "time" in name]


def test_losses_in_columns_prefer_the_whole_one() -> None:
    learner = "info/learner/default_policy/learner_stats"
    trace = read(
        f"{learner}/vf_loss,{learner}/total_loss,{learner}/cur_lr,training_iteration,timesteps_total\n"
        "5.5,4.5,0.1,1,4000\n3.5,2.5,0.1,2,8000\n"
    )
    assert values(trace) == [4.5, 2.5]
    assert values(trace, f"metric:{learner}/vf_loss") == [5.5, 3.5]
    assert values(trace, "lr") == [0.1, 0.1]


def test_a_table_without_any_loss_reads_its_rewards() -> None:
    trace = read(
        "episode_reward_mean,training_iteration,timesteps_total,pid\nnan,1,4000,7\n2.5,2,8000,7\n"
    )
    assert steps(trace, "metric:episode_reward_mean") == [1, 2]
    assert "loss" not in trace.series
    assert "metric:pid" not in trace.series
