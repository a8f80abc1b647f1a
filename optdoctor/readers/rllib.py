"""progress.csv of Ray's RLlib: one row an iteration.

The aim is the reward, NaN until the first episode ends. Losses stand in columns such as
`info/learner/default_policy/learner_stats/total_loss`; early versions (2018) wrote the Python dict
`info` into one cell.
"""

import re

from optdoctor.reading.table_format import Meaning, table_reader

_MARKS = {"timesteps_total", "time_this_iter_s", "num_env_steps_sampled_lifetime"}
_LOSSES = ("total_loss", "vf_loss", "critic_loss", "qf_loss", "mean_td_error")
_CLOCKS = re.compile(
    r"(^|/)(time|timers|perf|timing\w*|config|date|pid|timestamp|hostname|node_ip|trial_id|done"
    r"|experiment_\w+|warmup_time|iterations_since_restore|sampler_perf)(/|_|$)|_(ms|s)$"
)

_IN_INFO = (
    *("enqueue_time_ms", "learner_dequeue_time_ms", "learner_grad_time_ms", "learner_load_time_ms"),
    *("learner_load_wait_time_ms", "put_weights_time_ms", "sample_processing_time_ms"),
    *("sample_time_ms", "train_time_ms", "grad_time_ms", "load_time_ms", "update_time_ms"),
    *("sample_throughput", "train_throughput", "opt_peak_throughput", "size_count", "size_mean"),
    *("size_std", "num_weight_syncs"),
)
"""Clocks and queues in the dict of early versions."""


def _claim(names: tuple[str, ...], _: str) -> Meaning | None:
    if "training_iteration" not in names or _MARKS.isdisjoint(names):
        return None
    has_dict = "info" in names
    losses = [
        name
        for last in _LOSSES
        for name in (f"info/{last}", *sorted(names))
        if name.startswith(("info/", "learners/")) and name.endswith(f"/{last}")
    ]
    rates = [name for name in names if name.endswith("/cur_lr")]
    return Meaning(
        aliases={name: "" for name in names if _CLOCKS.search(name)}
        | {f"info/{name}": "" for name in _IN_INFO}
        | dict.fromkeys(losses, "loss")
        | dict.fromkeys(("info/cur_lr", *rates), "lr"),
        step="training_iteration",
        facts={"loss_kind": "reward"},
        dicts=frozenset({"info"} if has_dict else ()),
        counts_updates=False,
    )


READER = table_reader(
    "rllib",
    _claim,
    marks=("training_iteration",),
    sample="""episode_reward_mean,training_iteration,timesteps_total,date,info,config
nan,1,4000,2021-05-01_10-00-00,"{'learner': {'vf_loss': 8.5, 'policy_loss': -0.5}}","{'lr': 0.01}"
-20.5,2,8000,2021-05-01_10-01-00,"{'learner': {'vf_loss': 7.5, 'policy_loss': nan}}","{'lr': 0.01}"
-19.5,3,12000,2021-05-01_10-02-00,"{'learner': {'vf_loss': 6.5, 'policy_loss': 0.5}}","{'lr': 0.01}"
""",
)
