"""torchtune: no blank behind the colon, tensors, the bar."""

from tests.readers.language_model_logs import read, rows


def test_keys_and_values_are_glued() -> None:
    trace = read(
        "torchtune",
        "INFO:torchtune.utils.logging:Model is initialized with precision torch.bfloat16.",
        "Step 1 | loss:2.125 lr:2e-05 tokens_per_second_per_gpu:57.75 peak_memory_active:9.5",
        "Step 2 | loss:nan lr:3e-05 gpu_resources:57 grad_norm:tensor(1.5)",
    )
    assert rows(trace) == {1: 2.125, 2: "nan"}
    assert rows(trace, "lr") == {1: 2e-05, 2: 3e-05}
    assert rows(trace, "grad_norm") == {2: 1.5}
    assert trace.series.keys() == {"loss", "lr", "grad_norm"}


def test_the_bar_tells_the_step_too() -> None:
    trace = read(
        "torchtune",
        "1|1|Loss: 2.125:   1%|1         | 1/90 [00:05<09:05,  5.25s/it]\r"
        "1|2|Loss: 1.875:   2%|2         | 2/90 [00:10<09:05,  5.25s/it]",
        "2|91|Loss: 0.5:   1%|1         | 1/90 [00:05<09:05,  5.25s/it]",
    )
    assert rows(trace) == {1: 2.125, 2: 1.875, 91: 0.5}


def test_rewards_of_a_preference_tuning_are_metrics() -> None:
    trace = read("torchtune", "Step 1 | loss:0.6875 lr:2e-05 rewards/chosen:-0.25")
    assert rows(trace) == {1: 0.6875}
    assert rows(trace, "metric:rewards/chosen") == {1: -0.25}
