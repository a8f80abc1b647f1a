"""The helpers of a trace that rules and reports share."""

import numpy as np

from optdoctor.synthetic import small_gpt
from optdoctor.trace import TensorInfo, Trace


def test_values_are_grouped_by_layer_in_order_of_appearance() -> None:
    trace = Trace(tensors=small_gpt())
    grouped = trace.by_layer(np.arange(9.0))
    assert {layer: values.tolist() for layer, values in grouped.items()} == {
        "": [0],
        "h.0": [1, 2, 3, 4],
        "h.1": [5, 6, 7, 8],
    }


def test_a_tensor_of_unknown_kind_counts_as_any() -> None:
    kinds = ("norm", "mlp", "other")
    trace = Trace(tensors=tuple(TensorInfo(kind, kind=kind) for kind in kinds))
    assert trace.of_kind("norm").tolist() == [True, False, True]


def test_the_worst_come_first_equals_in_order_and_unmeasured_ones_not_at_all() -> None:
    trace = Trace(tensors=tuple(TensorInfo(name) for name in "abcd"))
    values = np.array([1.0, 3.0, np.nan, 3.0])
    assert trace.worst(values) == ("b", "d", "a")
    assert trace.worst(values, values > 2) == ("b", "d")
