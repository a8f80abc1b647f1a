"""DeepSpeedExamples: DeepSpeed-Chat in its three stages, and the fine-tuning of GPT.

Supervised stages print a perplexity an evaluation, read as its logarithm; reward models a mean
loss an epoch; the PPO stage two losses an update that have no direction. DeepSpeed itself says the
step and the rates.
"""

import math

from optdoctor.reading.text_format import Line, TextFormat

_REWARD = {"loss_kind": "reward"}

READER = TextFormat(
    name="deepspeed-examples",
    lines=(
        Line(
            r"\bstep=<step>, skipped=<skipped>, lr=\[<lr>",
            mark="skipped=",
            names={"skipped": ""},
            claims=False,
        ),
        Line(r"^ ppl: <ppl>", mark="ppl:"),
        Line(r"'step': <step>, 'ppl': <ppl>, 'seq_len': <seq_len>", mark="'ppl':"),
        Line(r"\bStep at <step> with Perplexity: <ppl>", mark="with Perplexity"),
        Line(r"\bEpoch at \d+ with Perplexity: <ppl>", mark="with Perplexity"),
        Line(r"^ Epoch: \d+, Step: \d+, Rank: \d+, loss = <loss>", mark="Rank:"),
        Line(r"^ Epoch \d+/\d+ with loss <loss>$", mark="with loss"),
        Line(
            r"chosen_last_scores \(higher is better\) : <chosen_score>,(?: rejected_last_scores"
            r" \(lower is better\) : <rejected_score>,)? acc \(higher is better\) : <accuracy>",
            mark="chosen_last_scores",
        ),
        Line(
            r"\bepoch: \d+ \| step: \d+ \| ppo_ep: \d+ \| act_loss: <loss>"
            r" \| cri_loss: <critic_loss> \| unsuper_loss: <unsupervised_loss>",
            mark="act_loss",
            facts=_REWARD,
        ),
        Line(
            r"\bEpoch: \d+ \| Step: \d+ \| PPO Epoch: \d+ \| Actor Loss: <loss>"
            r" \| Critic Loss: <critic_loss> \| Unsupervised Loss: <unsupervised_loss>",
            mark="Actor Loss",
            facts=_REWARD,
        ),
        Line(
            r"\baverage reward score: <reward>",
            mark="verage reward score",
            facts=_REWARD,
            claims=False,
        ),
    ),
    aliases={"ppl": "eval_loss"},
    convert={"ppl": math.log},
    from_zero=False,
    facts={"loss_kind": "falling", "loss_base": "nats"},
    sample="""***** Evaluating perplexity, Epoch 0/2 *****
ppl: 4096.5
Epoch: 0, Step: 0, Rank: 0, loss = 2.75
[2026-01-02 03:04:05,678] [INFO] [logging.py:96:log_dist] [Rank 0] step=10, skipped=2, \
lr=[9.5e-06, 9.5e-06], mom=[(0.9, 0.95), (0.9, 0.95)]
Epoch: 0, Step: 10, Rank: 0, loss = 2.25
***** Evaluating perplexity, Epoch 1/2 *****
ppl: 8.25
""",
).reader
