"""Words in the names of curves that everybody chooses freely, as in TensorBoard and wandb."""

# fmt: off
EVALUATION = frozenset((
    "eval", "evaluation", "val", "valid", "validation", "test", "testing", "dev", "heldout",
    "holdout", "cv",
))
TEST = frozenset(("test", "testing"))
"""Of several evaluations the one that counts least."""
TRAINING = frozenset(("train", "training", "trn", "tr"))
SAYS_NOTHING = TRAINING | EVALUATION | frozenset((
    "loss", "total", "step", "steps", "batch", "minibatch", "iter", "iters", "iteration",
    "iterations", "epoch", "avg", "average", "mean", "global", "lm", "nll", "reduced", "inner",
    "sample", "samples", "metrics", "metric", "scalars", "scalar", "charts", "all", "overall",
    "logs", "log", "per", "update", "model", "dataloader", "idx", "loop", "main", "running",
    "ray", "tune", "learner", "info",
))
"""Words of a loss that leave it the whole loss."""
NO_LOSS = frozenset((
    "scale", "scaler", "vs", "ppl", "perplexity", "weight", "coef", "coefficient", "lr", "rate",
    "grad", "norm", "gradient", "time", "clip", "ratio", "count", "num", "number", "accuracy",
    "acc", "spike", "best", "improvement",
))
"""Words of a number that is about a loss and is none."""
NO_DIRECTION = frozenset(("actor", "policy", "pi", "pg", "surrogate", "entropy", "ent", "kl"))
"""Words of a part of a loss that neither falls nor rises in a good run: of several parts the last
to be taken for the loss."""
CLOCKS = frozenset((
    "time", "fps", "eta", "elapsed", "throughput", "memory", "runtime", "seconds", "secs", "hp",
    "tflops",
))
"""Words of what no rule reads: clocks, memory, speeds, and Lightning's hp_metric."""
NO_RATE = frozenset((
    "momentum", "decay", "weight", "scale", "mult", "multiplier", "betas", "beta", "vs", "ratio",
))
"""Words of a number that is about a learning rate and is none."""
GENERATOR = frozenset(("g", "gen", "generator"))
DISCRIMINATOR = frozenset(("d", "disc", "discriminator"))
GRADIENT_NAMES = frozenset((
    "grad_norm", "gradient_norm", "total_grad_norm", "grad_norm_total", "grad_2_0_norm_total",
    "grad_2_norm_total", "gnorm", "gradnorm",
))
"""Global norm before clipping: the last part of a name, with "_" for "-", "." and blanks."""
REWARD_NAMES = frozenset((
    "reward", "ep_rew_mean", "episode_reward_mean", "episode_return_mean", "episodic_return",
    "ep_ret", "episode_reward", "ep_reward", "mean_reward", "avg_reward", "average_reward",
    "return", "episode_return", "mean_return", "avg_return", "average_return",
))
"""Last part of a name that tells that the loss beside it has no good direction."""
# fmt: on
