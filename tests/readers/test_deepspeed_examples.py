"""DeepSpeedExamples: perplexities, reward models, PPO."""

import math

from optdoctor.readers.deepspeed_examples import READER
from optdoctor.reading.reader import Head
from tests.readers.language_model_logs import read, rows

STEP = (
    "[INFO] [logging.py:96:log_dist] [Rank 0] step={}, skipped=1, lr=[{}, 9.0], mom=[(0.9, 0.95)]"
)


def test_a_perplexity_is_read_as_its_logarithm() -> None:
    trace = read(
        "deepspeed-examples",
        "***** Evaluating perplexity, Epoch 0/16 *****",
        "ppl: 4096.0",
        STEP.format(10, 9.5e-06),
        STEP.format(20, 9.25e-06),
        "***** Evaluating perplexity, Epoch 1/16 *****",
        "ppl: 2.0, loss: 0.6931",
    )
    assert rows(trace, "eval_loss") == {1: math.log(4096), 20: math.log(2)}
    assert rows(trace, "lr") == {10: 9.5e-06, 20: 9.25e-06}
    assert "loss" not in trace.series


def test_a_reward_model_has_one_mean_an_epoch() -> None:
    score = "chosen_last_scores (higher is better) : {}, {}acc (higher is better) : {}"
    trace = read(
        "deepspeed-examples",
        score.format(2.5, "", 0.5),
        STEP.format(10, 9.5e-06),
        "Epoch 1/1 with loss 0.5625",
        score.format(2.25, "rejected_last_scores (lower is better) : 1.75, ", 0.75),
    )
    assert rows(trace) == {10: 0.5625}
    assert list(rows(trace, "metric:accuracy").values()) == [0.5, 0.75]
    assert rows(trace, "metric:rejected_score") == {10: 1.75}


def test_the_losses_of_ppo_are_not_expected_to_fall() -> None:
    for line in (
        "epoch: 0|step: 6|ppo_ep: 1|act_loss: -0.5|cri_loss: 0.25|unsuper_loss: 0.0",
        "Epoch: 0 | Step: 6 | PPO Epoch: 1 | Actor Loss: -0.5 | Critic Loss: 0.25 |"
        " Unsupervised Loss: 0.0",
    ):
        trace = read("deepspeed-examples", line, "average reward score: 0.75")
        assert trace.facts["loss_kind"] == "reward"
        assert list(rows(trace).values()) == [-0.5]
        assert list(rows(trace, "metric:critic_loss").values()) == [0.25]
        assert list(rows(trace, "metric:reward").values()) == [0.75]


def test_a_dictionary_without_braces_is_read() -> None:
    trace = read(
        "deepspeed-examples",
        "'step':0, 'ppl': 64.0, 'seq_len': 256, 'consume layer-tokens': 18432",
        "'step':10, 'ppl': 32.0, 'seq_len': 264, 'consume layer-tokens': 110912",
        "Step at 20 with Perplexity: 16.0",
        "Before cleaning, Epoch at 2 with Perplexity: inf",
    )
    found = rows(trace, "eval_loss")
    assert found == {0: math.log(64), 10: math.log(32), 20: "inf"}


def test_lines_of_deepspeed_alone_are_not_this_format() -> None:
    head = Head("\n".join([STEP.format(step, 1e-05) for step in (10, 20, 30)]).encode())
    assert READER.sniff(head) == 0


def test_losses_of_a_supervised_stage_are_counted_where_no_step_is_said() -> None:
    line = "Epoch: 0, Step: {}, Rank: 0, loss = {}"
    trace = read("deepspeed-examples", line.format(0, 2.5), line.format(1, "nan"))
    assert rows(trace) == {1: 2.5, 2: "nan"}
