"""Decay groups: norms, biases and other vectors are left out of the weight decay.

Decay pulls weights to zero. Of a matrix that bounds how large its output may be; the scale of a
norm only multiplies what follows, and one pulled to zero weakens it. Common recipes leave both
norms and biases out, and so does transformers' Trainer, by class and by name; what is gained is
small in most runs. It cures no divergence and no overfitting.
"""

import math
from collections.abc import Mapping
from typing import Any

from torch import nn

from optdoctor.errors import did_you_mean
from optdoctor.optimizers import number_of, probe_of
from optdoctor.treatments.intervention import Intervention, Refused
from optdoctor.treatments.name_patterns import Pattern, chosen, names_of
from optdoctor.treatments.parameter_kinds import UNDECAYED, is_flattened, kinds_of
from optdoctor.treatments.rates import Split

SETTINGS = ("lr", "weight_decay", "betas", "momentum", "eps")
"""That a rule may give; torch takes any other key into a group and nobody reads it."""
FLAT = (
    "the first form of FSDP flattens parameters, so that norms cannot be told from matrices",
    "make the groups before the model is wrapped, or use fully_shard, the second form",
)


def decay_groups(
    model: nn.Module,
    weight_decay: float,
    *,
    rules: Mapping[Pattern, Mapping[str, Any]] | None = None,
    decay_embeddings: bool = True,
) -> list[dict[str, Any]]:
    """Groups to build an optimizer from, `torch.optim.AdamW(decay_groups(model, 0.1), lr=3e-4)`.

    Every parameter that is trainable is in one group, tied ones once; those of the same settings
    share one. Norms, biases and other tensors of fewer than 2 dimensions have `weight_decay` 0, by
    the class of their module and their shape (`kinds_of`). Embeddings are decayed as other
    matrices are, which is what transformers' Trainer does; `decay_embeddings=False` leaves them
    out, with a head that is tied to them.

    `rules` is {pattern: {"lr": 1e-4, "weight_decay": 0.05}}, where "lr" and "weight_decay" are the
    values themselves, no factors. A pattern is a name, of a parameter or of a module for all that
    it holds, with wildcards if need be ("*.attn*"), or `re.compile(..)`, which is searched for.
    Where several match, the last one holds, for each setting. The decay of a rule is for what is
    decayed; one that is the whole name of a parameter holds for it, whatever it is.

    Raises:
        ValueError: a pattern matches nothing, a setting is not known or no number, nothing is
            trainable, a parameter has no shape yet, or FSDP has flattened them.
    """
    _check_number("weight_decay", weight_decay)
    if is_flattened(model):
        raise Refused(*FLAT)
    names, kinds = names_of(model), kinds_of(model)
    undecayed = UNDECAYED if decay_embeddings else (*UNDECAYED, "embedding")
    settings: dict[int, dict[str, Any]] = {
        key: {"weight_decay": 0.0 if kind in undecayed else weight_decay}
        for key, kind in kinds.items()
    }
    for pattern, given in (rules or {}).items():
        _check_rule(pattern, given)
        for key in chosen(pattern, names):
            held = kinds[key] in undecayed and pattern not in names[key]
            own = {k: v for k, v in given.items() if not (held and k == "weight_decay")}
            settings[key].update(own)
    groups: dict[str, dict[str, Any]] = {}
    for parameter in model.parameters():
        if parameter.requires_grad:
            own = settings[id(parameter)]
            group = groups.setdefault(repr(sorted(own.items())), {"params": [], **own})
            group["params"].append(parameter)
    if not groups:
        raise ValueError("no parameter of the model is trainable: nothing to optimize")
    return list(groups.values())


def _check_rule(pattern: Pattern, given: Mapping[str, Any]) -> None:
    for name, value in given.items():
        if name not in SETTINGS:
            remedy = did_you_mean(name, SETTINGS, f"there are {', '.join(SETTINGS)}")
            raise ValueError(f"{name!r} of the rule {pattern!r} is no setting of a group: {remedy}")
        for one in value if name == "betas" else (value,):
            _check_number(name, one)


def _check_number(name: str, value: Any) -> None:
    if not 0 <= number_of(value) < math.inf:
        raise ValueError(f"{name} must be a number of at least 0, not {value!r}")


class DecayGroups(Intervention):
    """Steps norms, biases and other vectors without weight decay, and embeddings too if
    `decay_embeddings` is False.

    For each step the groups are divided by it; between steps they are the user's, and so is their
    decay, which a schedule may change. Weights that the decay has shrunk do not come back. Nothing
    is asked of the device.

    Refuses: no model, flat shards of FSDP, optimizers whose groups have no weight decay or 0, and
    models of which nothing is decayed that ought not to be.
    """

    name = "decay-groups"
    safety = "risky"

    def __init__(self, *, decay_embeddings: bool = True) -> None:
        self.decay_embeddings = decay_embeddings
        self._split: Split | None = None

    def check(self) -> None:
        """Refuses where nothing decays, or nothing that should not."""
        kind = type(self.optimizer).__name__
        decays = [number_of(g.get("weight_decay")) for g in self.optimizer.param_groups]
        if not any(decay > 0 for decay in decays):
            raise Refused(
                f"{self.name} has nothing to do: the groups of {kind} have no weight decay above 0",
                "leave it out",
            )
        if self.model is None:
            raise Refused(f"{self.name} tells norms by their modules", "give it the model")
        if is_flattened(self.model):
            raise Refused(f"{self.name}: {FLAT[0]}", FLAT[1])
        if probe_of(self.optimizer).family == "lbfgs":
            raise Refused(
                f"{self.name} needs groups, and {kind} takes only one", "use another optimizer"
            )
        if not self._decayed():
            raise Refused(
                f"{self.name} has nothing to do: no norm, bias or vector is decayed", "leave it out"
            )

    def begin(self) -> None:
        """Tells what is left out."""
        self._split = Split(self.optimizer, "weight_decay")
        self._find()
        left, of = self._decayed(), len(self.parameters())
        most = max(left.values())
        self.note(
            f"{self.name}: {len(left)} of {of} tensors, norms, biases and other vectors, step"
            f" without their weight decay of up to {most:.3g}",
            most,
            0.0,
        )

    def before(self) -> None:
        """Without decay for this step."""
        if self._split is None:
            return
        if sum(len(g["params"]) for g in self.optimizer.param_groups) != self._count:
            self._find()
        self._split.open(self._part_of, {"undecayed": 0.0})

    def after(self) -> None:
        """The groups as they were."""
        if self._split is not None:
            self._split.close()

    def end(self) -> None:
        """The decay of the user."""
        self.after()
        self._split = None
        self.note(f"{self.name} leaves: all tensors have the decay of their groups", kind="undo")

    def _find(self) -> None:
        """Which tensors are left out; anew where groups were added."""
        assert self.model is not None
        kinds = kinds_of(self.model)
        undecayed = UNDECAYED if self.decay_embeddings else (*UNDECAYED, "embedding")
        several = [p for group in self.optimizer.param_groups for p in group["params"]]
        self._count = len(several)
        self._part_of = {
            id(p): "undecayed"
            for p in several
            if kinds.get(id(p), "vector" if p.dim() < 2 else "weight") in undecayed
        }

    def _decayed(self) -> dict[int, float]:
        """{id: its decay} of the tensors that ought to have none."""
        self._find()
        return {
            id(p): decay
            for group in self.optimizer.param_groups
            if (decay := number_of(group.get("weight_decay"))) > 0
            for p in group["params"]
            if id(p) in self._part_of
        }


INTERVENTION = DecayGroups
