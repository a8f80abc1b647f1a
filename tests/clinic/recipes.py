"""How the optimizers that optdoctor reads are used: each with the settings that its users leave
alone, and a learning rate at which it learns."""

import importlib
import importlib.util
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

Loss = Callable[[], Tensor]
RANK = 8
"""Of projected gradients."""


def plain(optimizer: Any, loss: Loss) -> None:
    """Backward, then step."""
    optimizer.zero_grad()
    loss().backward()
    optimizer.step()


def eager(optimizer: Any, loss: Loss) -> None:
    """torchao compiles its update for each shape; the rule is the same."""
    with torch.compiler.set_stance("force_eager"):
        plain(optimizer, loss)


def with_closure(optimizer: Any, loss: Loss) -> None:
    """The optimizer calls for gradients itself."""

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = loss()
        value.backward()
        return value

    optimizer.step(closure)


def two_passes(optimizer: Any, loss: Loss) -> None:
    """The first gradients before the step, the second in its closure."""
    optimizer.zero_grad()
    loss().backward()
    with_closure(optimizer, loss)


def all_in_the_step(optimizer: Any, loss: Loss) -> None:
    """The closure is called twice, and returns outputs too."""

    def closure() -> tuple[None, Tensor]:
        optimizer.zero_grad()
        with torch.enable_grad():
            value = loss()
        value.backward()
        return None, value

    optimizer.step(closure)


def twice_differentiable(optimizer: Any, loss: Loss) -> None:
    """Backward with a graph of its own."""
    optimizer.zero_grad()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loss().backward(create_graph=True)
    optimizer.step()


@dataclass(frozen=True)
class Recipe:
    """One optimizer."""

    name: str
    """Dotted name of the class, and after a comma what is special."""
    rate: float
    """At which it learns: measured by scripts/silence_of_optimizers.py."""
    options: Mapping[str, Any] = field(default_factory=dict)
    make: Callable[["Recipe", nn.Module], Any] = lambda recipe, model: recipe.of(model.parameters())
    step: Callable[[Any, Loss], None] = plain
    task: str = "digits"
    fallen: float = 0.27
    """Largest final loss, over the first, of a run that learnt: the others are at 0.004 to 0.24."""

    def __hash__(self) -> int:
        return hash(self.name)

    @property
    def kind(self) -> str:
        """The dotted name alone."""
        return self.name.partition(",")[0]

    @property
    def package(self) -> str:
        return self.kind.partition(".")[0]

    @property
    def available(self) -> bool:
        """Whether its package is installed."""
        return importlib.util.find_spec(self.package) is not None

    def of(self, parameters: Iterable[Any], *first: Any, **more: Any) -> Any:
        """An optimizer of the class, at the rate."""
        module, _, name = self.kind.partition("(")[0].rpartition(".")
        made = getattr(importlib.import_module(module), name)
        return made(*first, parameters, **{"lr": self.rate, **self.options, **more})


def matrices(recipe: Recipe, model: nn.Module) -> Any:
    """What torch's Muon takes."""
    return recipe.of([p for p in model.parameters() if p.ndim == 2])


def mixed_muon(recipe: Recipe, model: nn.Module) -> Any:
    """Matrices by Muon's rule, the rest by AdamW's, in one optimizer."""
    two = [p for p in model.parameters() if p.ndim == 2]
    rest = [p for p in model.parameters() if p.ndim != 2]
    return recipe.of(
        [
            {"params": two, "lr": recipe.rate, "use_muon": True},
            {"params": rest, "lr": 3e-3, "use_muon": False},
        ]
    )


def low_rank(recipe: Recipe, model: nn.Module) -> Any:
    """Matrices projected, the rest not."""
    two = [p for p in model.parameters() if p.ndim == 2]
    rest = [p for p in model.parameters() if p.ndim != 2]
    given = {"rank": RANK, "update_proj_gap": 50, "scale": 1.0, "projection_type": "std"}
    return recipe.of([{"params": two, **given}, {"params": rest}])


def whole_model(recipe: Recipe, model: nn.Module) -> Any:
    """Its constructor takes the model."""
    module, _, name = recipe.kind.rpartition(".")
    made = getattr(importlib.import_module(module), name)
    return made(model, lr=recipe.rate, **recipe.options)


def lookahead(recipe: Recipe, model: nn.Module) -> Any:
    from pytorch_optimizer import Lookahead

    name = recipe.kind.partition("(")[2].rstrip(")")
    inside = Recipe(f"torch.optim.{name}", recipe.rate, recipe.options)
    if name == "SOAP":
        inside = Recipe("pytorch_optimizer.SOAP", recipe.rate, recipe.options)
    return Lookahead(inside.of(model.parameters()))


def wrapped(recipe: Recipe, model: nn.Module) -> Any:
    from pytorch_optimizer import ScheduleFreeWrapper

    optimizer = ScheduleFreeWrapper(torch.optim.AdamW(model.parameters(), lr=recipe.rate))
    optimizer.train()
    return optimizer


def schedule_free(recipe: Recipe, model: nn.Module) -> Any:
    """In training mode."""
    optimizer = recipe.of(model.parameters())
    if hasattr(optimizer, "train"):
        optimizer.train()
    return optimizer


def around_adamw(recipe: Recipe, model: nn.Module) -> Any:
    """Sharpness-aware, with AdamW inside."""
    first = [model] if recipe.kind.endswith("WSAM") else []
    module, _, name = recipe.kind.rpartition(".")
    made = getattr(importlib.import_module(module), name)
    return made(*first, model.parameters(), torch.optim.AdamW, lr=recipe.rate, **recipe.options)


def gsam(recipe: Recipe, model: nn.Module) -> Any:
    from pytorch_optimizer import GSAM

    inside = torch.optim.AdamW(model.parameters(), lr=recipe.rate)
    return GSAM(model.parameters(), inside, model, SimpleNamespace(step=lambda: 0.05))


def _torch(name: str, rate: float, **more: Any) -> Recipe:
    return Recipe(f"torch.optim.{name}", rate, **more)


def _optional(name: str, rate: float, **more: Any) -> Recipe:
    return Recipe(f"pytorch_optimizer.{name}", rate, **more)


def _blockwise(name: str, rate: float, **options: Any) -> Recipe:
    return Recipe(f"bitsandbytes.optim.{name}", rate, options)


def _torchao(name: str, rate: float) -> Recipe:
    return Recipe(f"torchao.optim.{name}", rate, step=eager)


EIGHT_BITS = {"min_8bit_size": 1024}

RECIPES: tuple[Recipe, ...] = (
    _torch("Adadelta", 3.0),
    _torch("Adafactor", 5e-2),
    _torch("Adagrad", 6e-2),
    _torch("Adam", 6e-3),
    _torch("Adam, amsgrad", 6e-3, options={"amsgrad": True}),
    _torch("AdamW", 6e-3),
    _torch("AdamW, beta2 0.95", 6e-3, options={"betas": (0.9, 0.95)}),
    _torch("AdamW, fused", 6e-3, options={"fused": True}),
    _torch("Adamax", 3e-2),
    _torch("ASGD", 0.3),
    _torch(
        "LBFGS", 1.0, options={"max_iter": 3, "line_search_fn": "strong_wolfe"}, step=with_closure
    ),
    _torch("Muon", 3e-2, make=matrices),
    _torch("NAdam", 6e-3),
    _torch("RAdam", 3e-2),
    _torch("RMSprop", 3e-3),
    _torch("RMSprop, centered, momentum", 6e-4, options={"centered": True, "momentum": 0.9}),
    _torch("Rprop", 3e-3),
    _torch("SparseAdam", 0.1, task="pairs", fallen=0.8),
    _torch("SGD", 0.3),
    _torch("SGD, momentum", 0.09, options={"momentum": 0.9, "nesterov": True}),
    Recipe("transformers.Adafactor", 6e-3, {"relative_step": False, "scale_parameter": False}),
    Recipe("transformers.Adafactor, relative steps", 1.0, {"lr": None, "warmup_init": False}),
    Recipe("lion_pytorch.Lion", 2e-3),
    Recipe("lion_pytorch.foreach.Lion", 2e-3),
    Recipe("lion_pytorch.cautious_lion.Lion", 2e-3, {"cautious_factor": 0.3}),
    Recipe("prodigyopt.Prodigy", 1.0),
    Recipe("schedulefree.AdamWScheduleFree", 1e-2, make=schedule_free),
    Recipe("schedulefree.RAdamScheduleFree", 3e-2, make=schedule_free),
    Recipe("schedulefree.SGDScheduleFree", 3.0, make=schedule_free),
    _blockwise("Adagrad", 6e-2),
    _blockwise("Adagrad8bit", 6e-2),
    _blockwise("Adam", 6e-3),
    _blockwise("Adam8bit", 6e-3, **EIGHT_BITS),
    _blockwise("AdamW", 6e-3),
    _blockwise("AdamW, 8 bits", 6e-3, optim_bits=8, **EIGHT_BITS),
    _blockwise("AdamW8bit", 6e-3, **EIGHT_BITS),
    _blockwise("AdamW32bit", 6e-3),
    _blockwise("PagedAdamW", 6e-3),
    _blockwise("PagedAdamW8bit", 6e-3, **EIGHT_BITS),
    _blockwise("AdEMAMix", 6e-3),
    _blockwise("AdEMAMix8bit", 6e-3, **EIGHT_BITS),
    _blockwise("LAMB", 5e-2),
    _blockwise("LAMB32bit", 5e-2),
    _blockwise("LAMB8bit", 2e-2, **EIGHT_BITS),
    _blockwise("LARS", 1.0, momentum=0.9),
    _blockwise("LARS32bit", 1.0, momentum=0.9),
    _blockwise("LARS8bit", 0.3, momentum=0.9, **EIGHT_BITS),
    _blockwise("Lion", 2e-3),
    _blockwise("Lion8bit", 2e-3, **EIGHT_BITS),
    _blockwise("RMSprop", 3e-3),
    _blockwise("RMSprop8bit", 3e-3, **EIGHT_BITS),
    _blockwise("SGD", 0.09, momentum=0.9),
    _blockwise("SGD8bit", 0.09, momentum=0.9, **EIGHT_BITS),
    _torchao("Adam8bit", 6e-3),
    _torchao("AdamW8bit", 6e-3),
    _torchao("AdamW4bit", 6e-3),
    _torchao("AdamWFp8", 2e-3),
    _optional("AdaBelief", 6e-3),
    _optional("AdaBelief, rectify", 2e-2, options={"rectify": True}),
    _optional("AdaFactor", 1e-2),
    _optional("AdamMini", 6e-3, make=whole_model),
    _optional("AdaNorm", 6e-3),
    _optional("Adan", 1e-2),
    _optional("AdEMAMix", 6e-3),
    _optional("APOLLO", 3e-2, make=low_rank),
    _optional("CAME", 1e-3),
    _optional("DAdaptAdam", 0.2),
    _optional("FriendlySAM", 6e-3, make=around_adamw, step=two_passes),
    _optional("GaLore", 2e-2, make=low_rank),
    _optional("GSAM", 6e-3, make=gsam, step=all_in_the_step),
    _optional("Lamb", 1e-2),
    _optional("LARS", 3.0),
    _optional("Lion", 2e-3),
    _optional("Lookahead(AdamW)", 1e-2, make=lookahead),
    _optional("Lookahead(RMSprop)", 3e-3, make=lookahead),
    _optional("Lookahead(SGD)", 0.2, options={"momentum": 0.9}, make=lookahead),
    _optional("Lookahead(SOAP)", 1e-2, make=lookahead),
    _optional("LookSAM", 9e-3, make=around_adamw, step=two_passes),
    _optional("Muon", 3e-2, make=mixed_muon),
    _optional("Prodigy", 0.5),
    _optional("SAM", 6e-3, make=around_adamw, step=two_passes),
    _optional("ScalableShampoo", 5e-2),
    _optional("ScheduleFreeAdamW", 1e-2, make=schedule_free),
    _optional("ScheduleFreeRAdam", 3e-2, make=schedule_free),
    _optional("ScheduleFreeSGD", 1.0, make=schedule_free),
    _optional("ScheduleFreeWrapper", 6e-3, make=wrapped),
    _optional("Shampoo", 0.2),
    _optional("SOAP", 9e-3),
    _optional("SophiaH", 0.1, step=twice_differentiable),
    _optional("StableAdamW", 6e-3),
    _optional("Tiger", 2e-3),
    _optional("WSAM", 6e-3, make=around_adamw, step=two_passes),
)
