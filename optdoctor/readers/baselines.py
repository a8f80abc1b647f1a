"""Tables of OpenAI Baselines and Stable-Baselines3: progress.csv in all ages, and monitor.csv.

The aim is the reward. Of the losses the critic's or the value's is watched; that of an actor or a
policy has no good direction.
"""

from optdoctor.reading.table_format import Meaning, table_reader

_STEPS = (
    "time/total_timesteps",
    "total_timesteps",
    "misc/total_timesteps",
    "TimestepsSoFar",
    "total/steps",
    "steps",
)
_REWARDS = {"rollout/ep_rew_mean", "eprewmean", "EpRewMean", "mean 100 episode reward"}
_MARKS = _REWARDS | {"time/total_timesteps", "total/steps", "rollout/return"}
_LOSSES = (
    "train/loss",
    "train/value_loss",
    "train/critic_loss",
    "loss/value_loss",
    "loss/vf_loss",
    "train/loss_critic",
    "value_loss",
    "loss_vf_loss",
)
_RATES = ("train/learning_rate", "loss/lr", "lr")
_DROPPED = (
    "time/fps",
    "time/time_elapsed",
    "time/iterations",
    "time/episodes",
    "fps",
    "time_elapsed",
    "misc/time_elapsed",
    "TimeElapsed",
    "t",
)
_MONITOR = ("r", "l", "t")
_MONITOR_MARKS = ("r,l,t", "r;l;t", "r\tl\tt", '"r"')


def _claim(names: tuple[str, ...], _: str) -> Meaning | None:
    # A monitor file may go on with columns that the user asked for.
    is_monitor = names[:3] == _MONITOR
    step = next((name for name in _STEPS if name in names), None)
    if not is_monitor and (step is None or _MARKS.isdisjoint(names)):
        return None
    return Meaning(
        aliases=dict.fromkeys(_LOSSES, "loss")
        | dict.fromkeys(_RATES, "lr")
        | dict.fromkeys(_DROPPED, ""),
        step=None if is_monitor else step,
        facts={"loss_kind": "reward"},
        counts_updates=False,
    )


READER = table_reader(
    "baselines",
    _claim,
    marks=(*sorted(_MARKS), *_MONITOR_MARKS),
    sample="""time/fps,rollout/ep_rew_mean,time/total_timesteps,train/value_loss,train/actor_loss
900,-120.5,2048,,
850,-110.25,4096,0.75,-2.5
840,-105.5,6144,0.5,-2.25
""",
)
