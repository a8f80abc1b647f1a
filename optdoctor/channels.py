"""Every quantity optdoctor can know about a training run: one table, the vocabulary of all other modules.

A channel types the trace, tells the collector what to compute, tells readers where to map, names the
knobs that treatments turn, and becomes a page of the documentation.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType


class Axis(StrEnum):
    """Along what a channel varies."""

    RUN = "run"  # one value
    STEP = "step"  # [T]
    TENSOR = "tensor"  # [T, P]


class Cost(StrEnum):
    """What measuring a channel takes while training."""

    FREE = "free"  # already on the host
    PASS = "pass"  # part of the one pass over the tensors, exact
    SAMPLED = "sampled"  # from at most 4096 elements a tensor
    COPY = "copy"  # needs a copy of the weights from before the step


@dataclass(frozen=True, slots=True)
class Channel:
    """One measurable quantity."""

    name: str
    axis: Axis
    unit: str
    cost: Cost
    doc: str
    """One sentence that settles before or after clipping, scaled or not, mean or sum, exact or sampled."""

    @property
    def at_samples(self) -> bool:
        """Whether it may be measured at some updates only."""
        return self.axis is Axis.TENSOR or self.cost is not Cost.FREE


def _table(*rows: tuple[str, Axis, str, Cost, str]) -> Mapping[str, Channel]:
    return MappingProxyType({row[0]: Channel(*row) for row in rows})


_STEP, _TENSOR, _RUN = Axis.STEP, Axis.TENSOR, Axis.RUN
_FREE, _PASS, _SAMPLED, _COPY = Cost.FREE, Cost.PASS, Cost.SAMPLED, Cost.COPY

# fmt: off
CHANNELS: Mapping[str, Channel] = _table(
    ("loss", _STEP, "loss", _FREE, "Training loss of one update, summed or averaged over its micro-batches as the framework reports it; a window mean where the fact loss_window says so."),
    ("eval_loss", _STEP, "loss", _FREE, "Mean loss on the evaluation data; stands at the last finished update."),
    ("lr", _STEP, "1", _FREE, "Learning rate that the update used, of the group with the most elements."),
    ("epoch", _STEP, "epochs", _FREE, "Epochs finished when the row was written, fractional where the framework says so."),
    ("loss_scale", _STEP, "1", _FREE, "Factor of the gradient scaler before the update."),
    ("step_skipped", _STEP, "1", _FREE, "1 where the update was attempted and not made, 0 where it was made."),
    ("gradients_kept", _STEP, "1", _FREE, "1 where every backward pass of the update found the gradient as the pass or the update before had left it, since nobody had set it to zero or replaced it, else 0; of one tensor, by identity, number of writes and size (the sum of its absolute values, which is not 0), at every update that a pass reaches it."),
    ("step_time_s", _STEP, "s", _FREE, "Wall time from the last update to this one."),
    ("batch_index", _STEP, "1", _FREE, "Position of the batch in its epoch."),
    ("grad_norm", _STEP, "loss/weight", _FREE, "Global L2 norm of the unscaled gradient before clipping by norm; a clip by value before that is not seen."),
    ("grad_norm_used", _STEP, "loss/weight", _PASS, "Global L2 norm of the unscaled gradient that the optimizer consumed, after clipping; exact, at sampled steps over finite elements."),
    ("grad_variance_ratio", _STEP, "1", _FREE, "Variance over squared mean of grad_norm over its last 50 recorded values: over steps, never over tensors."),
    ("grad_norm_spread", _STEP, "1", _FREE, "Standard deviation over mean of the layers' gradient norms at one step."),
    ("replicas_differ", _STEP, "processes", _PASS, "Processes whose copy of the weights that all of them are to hold alike is not, to the bit, that of the first of their group; after updates 1 to 8 and then 4 to each doubling, where all had told of theirs; of the weights that a DistributedDataParallel holds, or of all where the loop says that they are replicated."),
    ("unwrapped_differ", _STEP, "processes", _PASS, "The same of trained weights of the optimizer that no DistributedDataParallel holds, beside such that one does."),
    ("replica_distance", _STEP, "1", _PASS, "Root mean square of what the copy of another process is more than that of the first, over that of the first, of the weights that replicas_differ counts; the largest among at most 8 processes that differ; from at most 64 elements a tensor."),
    ("attention_logit_max", _STEP, "1", _SAMPLED, "Largest size of a logit, query times key times scale, among keys that the mask lets a query see, over the calls of scaled_dot_product_attention of the update; from at most 2 examples, 8 heads and 16 queries a call, at sampled steps, where asked for."),
    ("attention_entropy", _STEP, "nats", _SAMPLED, "Smallest mean entropy of the attention of one call, over those of its heads and queries that see at least 8 keys; sampled as attention_logit_max is."),
    ("grad_rms", _TENSOR, "loss/weight", _PASS, "Root mean square of the unscaled gradient that the optimizer consumed, after clipping; exact, over finite elements."),
    ("grad_absmax", _TENSOR, "loss/weight", _PASS, "Largest absolute finite element of the gradient that the optimizer consumed; exact."),
    ("grad_nonfinite", _TENSOR, "elements", _PASS, "Elements of the consumed gradient that are NaN or infinite; exact."),
    ("grad_zero", _TENSOR, "share", _SAMPLED, "Share of elements of the consumed gradient that are exactly 0; sampled."),
    ("grad_rms_raw", _TENSOR, "loss/weight", _PASS, "Root mean square of the unscaled gradient before clipping, where a tap before the clip exists; exact, over finite elements."),
    ("grad_nonfinite_raw", _TENSOR, "elements", _PASS, "Elements of the gradient before clipping that are NaN or infinite, where a tap exists; exact."),
    ("first_nonfinite_step", _TENSOR, "step", _PASS, "First step at which this tensor's gradient was not finite; run-long, before clipping where a tap exists."),
    ("param_rms", _TENSOR, "weight", _PASS, "Root mean square of the weights after the update; exact, over finite elements."),
    ("update_rms", _TENSOR, "weight", _COPY, "Root mean square of weights after minus weights before the update, measured, decay included; exact, over finite elements; of a tensor too large for the memory of copies over some of its elements; 0 for a tensor of the optimizer that is not trained and has no gradient."),
    ("update_nonfinite", _TENSOR, "elements", _COPY, "Elements of weights after minus weights before that are NaN or infinite; exact."),
    ("update_ratio", _TENSOR, "1", _COPY, "update_rms over param_rms; not given where param_rms is below 1e-6."),
    ("update_unchanged", _TENSOR, "share", _COPY, "Share of elements with a non-zero gradient that did not move; not given where the rate is 0; sampled."),
    ("tensor_lr", _TENSOR, "1", _FREE, "Learning rate of the tensor's group that the update used."),
    ("update_realized", _TENSOR, "1", _COPY, "How far the measured update goes along the one that the optimizer's rule asks for, over the size of the latter (their dot product over its square): 1 where all of it was made, less where rounding swallowed some, about 1 where it rounds at random; where the rule is known, at the first three samples and wherever rounding may matter; from at most 1024 elements."),
    ("decay_unchanged", _TENSOR, "share", _COPY, "Share of the weights other than 0 that a weight decay made apart from the gradient leaves as they are, because the product rounds to the weight; sampled."),
    ("update_to_lr", _TENSOR, "1", _COPY, "update_rms over tensor_lr."),
    ("effective_lr", _TENSOR, "1", _SAMPLED, "Adam kinds: mean of lr*sqrt(1-beta2^t) / ((1-beta1^t)*(sqrt(v)+eps*sqrt(1-beta2^t))); others: update_rms over grad_rms; effective_lr_from says which; not given where the moment is held in fewer bits by blocks; a mean, so that entries without a gradient yet count with lr/eps (update_to_lr has no such tail); from at most 1024 elements."),
    ("moment1_rms", _TENSOR, "loss/weight", _PASS, "Root mean square of the first moment as stored; exact, over finite elements."),
    ("moment2_rms", _TENSOR, "(loss/weight)^2", _PASS, "Root mean square of the second moment as stored; exact, over finite elements."),
    ("moment2_min", _TENSOR, "(loss/weight)^2", _PASS, "Smallest finite element of the second moment as stored; exact."),
    ("moment2_max", _TENSOR, "(loss/weight)^2", _PASS, "Largest finite element of the second moment as stored; exact."),
    ("moment2_zero", _TENSOR, "share", _SAMPLED, "Share of elements whose second moment is zero while the first is not; sampled, and counted in full on the next sample of a tensor whose exact minimum is zero."),
    ("moment2_subnormal", _TENSOR, "share", _SAMPLED, "Share of second-moment elements that are subnormal in their dtype; sampled."),
    ("moment2_below_eps", _TENSOR, "share", _SAMPLED, "Share of elements with the bias-corrected root of the second moment below eps; sampled."),
    ("moment2_saturated", _TENSOR, "share", _SAMPLED, "Share of second-moment elements that are non-finite or above half the largest number of their dtype; sampled."),
    ("moment2_unchanged", _TENSOR, "share", _SAMPLED, "Share of elements with a non-zero gradient whose second moment is the same after the update; given where it is held in 16 bits; sampled."),
    ("moment_ratio", _TENSOR, "1", _SAMPLED, "Mean of the bias-corrected abs(m) over sqrt(v) where v > 0; from at most 1024 elements."),
    ("tensor_replica_distance", _TENSOR, "1", _PASS, "replica_distance of one tensor, 0 where all copies are the same to the bit, 1e-38 where they differ elsewhere than in the elements taken; at the sample after a comparison that found a difference."),
    ("framework", _RUN, "name", _FREE, "Training framework: huggingface, lightning or torch."),
    ("optimizer", _RUN, "name", _FREE, "Class name of the innermost optimizer."),
    ("optimizer_family", _RUN, "name", _FREE, "Family of optdoctor's own table, as adam or lion; other where nobody knows the optimizer."),
    ("beta1", _RUN, "1", _FREE, "Decay of the first moment, first group's value where groups differ."),
    ("beta2", _RUN, "1", _FREE, "Decay of the second moment, first group's value where groups differ."),
    ("eps", _RUN, "1", _FREE, "Constant added to the denominator of the update; the smallest positive one where groups differ."),
    ("weight_decay", _RUN, "1", _FREE, "Weight decay of the group with the most elements."),
    ("momentum", _RUN, "1", _FREE, "Momentum of the group with the most elements."),
    ("param_dtype", _RUN, "dtype", _FREE, "dtype of the trained weights, the least precise where tensors differ."),
    ("state_dtype", _RUN, "dtype", _FREE, "dtype of the optimizer's moments, the least precise where tensors differ; foretold from the optimizer's kind before it holds any."),
    ("moment2_form", _RUN, "name", _FREE, "How the second moments of most elements are held: full, factored (as rows and columns), quantized (in fewer bits, by blocks), rooted (of the size of a gradient) or projected (in another shape or basis); known after the first sample, absent where none is held."),
    ("effective_lr_from", _RUN, "name", _FREE, "What effective_lr is measured by: moments (the formula of Adam kinds) or update (update_rms over grad_rms); absent where it is not given."),
    ("math_dtype", _RUN, "dtype", _FREE, "dtype in which the optimizer computes its update: float32 where it is fused or keeps its moments in float32, else that of the weights; the least precise where tensors differ."),
    ("compute_dtype", _RUN, "dtype", _FREE, "dtype of the forward pass: autocast's where it is on, else that of the weights."),
    ("casts_kept", _RUN, "name", _FREE, "yes where autocast was on at an update and used a copy of a weight, the doctor's own, that it had made before the update before, no where not; of the first three updates; absent where a model is compiled, which casts in its graph."),
    ("max_grad_norm", _RUN, "loss/weight", _FREE, "Norm at which gradients are clipped; 0 means no clipping."),
    ("accumulation_steps", _RUN, "1", _FREE, "Micro-batches per update."),
    ("batch_size", _RUN, "examples", _FREE, "Examples per micro-batch and device."),
    ("world_size", _RUN, "1", _FREE, "Processes that train together."),
    ("replicated", _RUN, "name", _FREE, "Why all processes are to hold the same trained weights: ddp where a DistributedDataParallel holds them, local where it was within no_sync at an update, so that they need not; yes or no where the loop tells it."),
    ("replicas_apart", _RUN, "ranks", _FREE, "Ranks whose copies were not those of the first process when they were last found to differ."),
    ("total_steps", _RUN, "steps", _FREE, "Updates planned for the run."),
    ("warmup_steps", _RUN, "steps", _FREE, "Updates of the rising part of the schedule."),
    ("schedule", _RUN, "name", _FREE, "Name of the learning-rate schedule."),
    ("num_parameters", _RUN, "elements", _FREE, "Trained elements, tied tensors once."),
    ("weights_nonfinite", _RUN, "elements", _FREE, "Elements of the trained weights that were NaN or infinite when watching began; absent or 0 if none."),
    ("weights_rms", _RUN, "weight", _FREE, "Median over the trained matrices of linear, convolutional, recurrent and attention layers (64 elements or more, of the group with the most elements, no embedding, none below 0.001) of their root mean square when watching began; absent where there is none."),
    ("peak_lr", _RUN, "1", _FREE, "Learning rate that the schedule of the group with the most elements starts from, which is its peak in most: the group's max_lr where a one-cycle schedule has set one, its initial_lr where another has, else its rate when watching began."),
    ("scaler", _RUN, "name", _FREE, "on where torch's gradient scaler multiplies the loss, off where it is disabled; absent where not known, as of scalers that divide in a way of their own."),
    ("norm_placement", _RUN, "name", _FREE, "post where every transformer block normalizes after its residual sum, pre where before it; absent where not known."),
    ("batchnorm_memory", _RUN, "steps", _FREE, "Batches over which the slowest batch norm averages its running statistics, 1 over its momentum, among those whose statistics were as they were made when watching began and that the first update trained with; absent where there is none."),
    ("ties_broken", _RUN, "1", _FREE, "Weights that the model's configuration calls tied and that are two tensors; absent where the model does not say."),
    ("num_classes", _RUN, "1", _FREE, "Classes or vocabulary entries that the loss chooses among; where it is not told, those of a loss that its own graph shows to be a mean cross-entropy."),
    ("loss_input", _RUN, "name", _FREE, "What makes the numbers that the loss takes as logits, where its graph shows that they lie between 0 and 1: softmax or sigmoid; absent where it shows no such thing and where it is not known."),
    ("loss_kind", _RUN, "name", _FREE, "What the loss does in a good run: falling, reward, adversarial, diffusion or unknown."),
    ("loss_base", _RUN, "name", _FREE, "Unit of the loss: nats, bits or other."),
    ("loss_window", _RUN, "steps", _FREE, "Updates whose mean a loss row is; 1 where a row is one update."),
    ("loss_form", _RUN, "name", _FREE, "How one loss row is made of its batches: mean, running mean (since the epoch or the run began), window median, sum, or divided (by the accumulation steps); absent where not known."),
    ("losses_comparable", _RUN, "name", _FREE, "yes where loss and eval_loss are the same function of the same kind of data, no where not, as with label smoothing, mixing, much dropout or augmentation, or another kind of loss, in training only; absent where not known."),
    ("loss_quantum", _RUN, "loss", _FREE, "Smallest difference between two losses that the log can show."),
    ("nan_filter", _RUN, "name", _FREE, "on where the framework replaces NaN losses before it logs them, off where not, seen where the log shows its mark."),
    ("step_source", _RUN, "name", _FREE, "Where step numbers come from: logged, epochs (where each row is one), or counted rows."),
    ("log_interval", _RUN, "steps", _FREE, "Usual distance between two loss rows."),
    ("resumed_from", _RUN, "step", _FREE, "Last step before the newest resume."),
    ("state_loaded", _RUN, "name", _FREE, "yes where a resume began with optimizer state, no where without."),
)
# fmt: on

_PATTERNS = {
    "metric": (
        "metric:",
        _STEP,
        "A number that the user logged under this name; no meaning is assumed.",
    ),
    "direction": (
        "metric_direction:",
        _RUN,
        "Whether the metric of this name should rise or fall.",
    ),
}


def channel(name: str) -> Channel:
    """The channel of this name, `metric:<name>` and `metric_direction:<name>` included.

    Raises:
        KeyError: no such channel.
    """
    if name in CHANNELS:
        return CHANNELS[name]
    for prefix, axis, doc in _PATTERNS.values():
        if name.startswith(prefix) and len(name) > len(prefix):
            return Channel(name, axis, "1", _FREE, doc)
    raise KeyError(name)


def is_channel(name: str) -> bool:
    """Whether the vocabulary holds this name."""
    try:
        channel(name)
    except KeyError:
        return False
    return True
