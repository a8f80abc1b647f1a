"""Spelled code of knobs, run for real: on a small model of the framework, with its effect read."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

LR, LAYER = 1e-3, "h.1"
GROUP_KEYS = {"eps": "eps", "weight_decay": "weight_decay", "momentum": "momentum"}
GROUP_KEYS |= {"lr": "lr", "peak_lr": "lr"}
OLD = {"weight_decay": 0.2}
"""Values that the small trainings have before, where that of the library would not do."""


def run(code: str, names: dict[str, Any], given: dict[str, tuple[Any, ...]]) -> Any:
    """The value of the expression, None after a statement; `f(..` gets what `given` has for f."""
    code = re.sub(r"(\w+)\(\.\., ", lambda m: f"{m[1]}(*given[{m[1]!r}], ", code)
    code = code.replace(", ..)", ")")
    names = {**names, "given": given}
    try:
        compiled = compile(code, "<knob>", "eval")
    except SyntaxError:
        exec(code, names)
        return None
    return eval(compiled, names)


def of_groups(optimizer: Any, knob: str) -> Any:
    """What the optimizer's largest group has for the knob."""
    group = max(optimizer.param_groups, key=lambda g: sum(p.numel() for p in g["params"]))
    if knob in ("beta1", "beta2"):
        return group["betas"][knob == "beta2"]
    return group[GROUP_KEYS[knob]]


def rates(optimizer: Any, named: Iterator[tuple[str, Any]]) -> dict[str, float]:
    """{parameter: its rate}; each is in one group."""
    of = {id(p): g["lr"] for g in optimizer.param_groups for p in g["params"]}
    assert len(of) == sum(len(g["params"]) for g in optimizer.param_groups)
    return {name: of[id(p)] for name, p in named}


def check_rates(found: dict[str, float], layer: str, new: float) -> None:
    """The layer's tensors have the new rate, all others, those of h.10 too, the old one."""
    own = {name: f".{layer}." in f".{name}." for name in found}
    assert len(set(own.values())) == 2
    assert found == {name: new if inside else LR for name, inside in own.items()}


def small(torch: Any, dtype: Any = None) -> Any:
    """A model of eleven layers "h.0" to "h.10"."""
    layers = [torch.nn.Linear(2, 2, dtype=dtype) for _ in range(11)]
    model = torch.nn.Sequential(*layers)
    root = torch.nn.Module()
    root.h = model
    root.forward = model.forward
    return root


def apply_torch(knob: str, new: Any, code: str, folder: Path) -> None:
    """Runs the code of a plain loop and asserts its effect."""
    torch = pytest.importorskip("torch")
    dtype = torch.float16 if "float32" in str(new) else torch.float32
    model = small(torch, dtype)
    kind = torch.optim.SGD if knob == "momentum" else torch.optim.AdamW
    optimizer = kind(model.parameters(), lr=LR, weight_decay=OLD["weight_decay"])
    dataset = list(range(12))
    names = {"torch": torch, "model": model, "optimizer": optimizer, "lr": LR, "total_steps": 10}
    names["loss"] = model(torch.ones(1, 2, dtype=dtype)).sum()
    given = {"DataLoader": (dataset,)}
    if knob.endswith("_dtype"):
        code = code.replace('"cuda"', '"cpu"').replace("= ...", "= model(torch.ones(1, 2))")
        exec(code, names)
        assert names["loss"].dtype is torch.bfloat16
        names["loss"].float().sum().backward()
        optimizer.step()
        state = {v.dtype for s in optimizer.state.values() for v in s.values()}
        assert {p.dtype for p in model.parameters()} | state == {torch.float32}
        return
    if knob == "max_grad_norm":
        sum(p.sum() for p in model.parameters()).backward()
        before = norm(torch, model)
        if new == 0:
            name = code.removeprefix("leave out ")
            assert callable(run(name, names, given))
            return
        run(code, names, given)
        assert norm(torch, model) == pytest.approx(min(new, before), rel=1e-4)
        return
    result = run(code, names, given)
    if knob.startswith("tensor_lr:"):
        check_rates(rates(result, model.named_parameters()), knob.partition(":")[2], new)
    elif knob in ("schedule", "total_steps", "warmup_steps"):
        check_schedule(result, optimizer, knob, new)
    elif knob == "accumulation_steps":
        assert str(new) in code.partition("#")[2]
        per_weight = next(model.parameters()).grad.sum()
        whole = torch.autograd.grad(model(torch.ones(1, 2)).sum() / new, next(model.parameters()))[
            0
        ].sum()
        assert per_weight == pytest.approx(float(whole))
    elif knob == "batch_size":
        assert len(next(iter(result))) == new
    else:
        assert of_groups(optimizer, knob) == new


def norm(torch: Any, model: Any) -> float:
    """Global norm of the gradients."""
    return float(torch.stack([p.grad.norm() for p in model.parameters()]).norm())


def check_schedule(scheduler: Any, optimizer: Any, knob: str, new: Any) -> None:
    """The rates of the updates are those of the schedule."""
    steps = new if knob != "schedule" else 10
    seen = []
    for _ in range(steps + 1):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    if knob == "warmup_steps":
        assert seen[0] < LR / 100 and seen[-2] < seen[-1] == pytest.approx(LR)  # noqa: PT018
    elif new == "constant":
        assert set(seen) == {LR}
    else:
        assert seen[0] == LR and seen[-2] > seen[-1] == pytest.approx(0, abs=1e-12)  # noqa: PT018
        middle = seen[2] / LR  # at a fifth of the way; a cosine has hardly begun to fall
        assert new != "cosine" or middle > 0.85
        assert new != "linear" or middle == pytest.approx(0.8)


def apply_huggingface(knob: str, new: Any, code: str, folder: Path) -> None:
    """Runs the code of a Trainer and asserts its effect."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_layer=11, n_head=1, n_embd=4, vocab_size=8, n_positions=8)
    model = transformers.GPT2LMHeadModel(config)
    made: dict[str, Any] = {}

    def arguments(**spelled: Any) -> Any:
        defaults = {"learning_rate": LR, "report_to": [], "use_cpu": True}
        made["arguments"] = transformers.TrainingArguments(str(folder), **{**defaults, **spelled})
        return made["arguments"]

    def from_pretrained(**spelled: Any) -> Any:
        model.half().save_pretrained(folder / "model")
        made["model"] = transformers.GPT2LMHeadModel.from_pretrained(folder / "model", **spelled)
        return made["model"]

    def trainer(**spelled: Any) -> Any:
        made["trainer"] = transformers.Trainer(
            model, made.get("arguments") or arguments(), **spelled
        )
        return made["trainer"]

    names = {"TrainingArguments": arguments, "from_pretrained": from_pretrained, "torch": torch}
    names |= {"Trainer": trainer, "model": model, "lr": LR}
    parameters = (model.parameters(),)
    given = {"from_pretrained": (), "Trainer": (), "SGD": parameters, "AdamW": parameters}
    run(code, names, given)
    if "arguments" not in made or "trainer" not in made:
        trainer()
    made["trainer"].create_optimizer_and_scheduler(num_training_steps=10)
    args, optimizer = made["arguments"], made["trainer"].optimizer
    if knob.startswith("tensor_lr:"):
        check_rates(_initial_rates(optimizer, model), knob.partition(":")[2], new)
    elif knob.endswith("_dtype"):
        assert args.bf16
        # The one that was loaded, and the one that was built.
        models = (made["model"], model) if knob != "compute_dtype" else (model,)
        assert {p.dtype for one in models for p in one.parameters()} == {torch.float32}
    elif knob == "schedule":
        assert args.lr_scheduler_type == new
    elif knob == "warmup_steps":
        assert args.get_warmup_steps(1000) == new
    elif knob in ARGUMENTS:
        assert getattr(args, ARGUMENTS[knob]) == new
    elif knob in ("lr", "peak_lr"):
        assert set(_initial_rates(optimizer, model).values()) == {new}
    else:
        assert of_groups(optimizer, knob) == new


ARGUMENTS = {
    "max_grad_norm": "max_grad_norm",
    "total_steps": "max_steps",
    "accumulation_steps": "gradient_accumulation_steps",
    "batch_size": "train_batch_size",
}
"""{knob: what the Trainer itself reads}."""


def _initial_rates(optimizer: Any, model: Any) -> dict[str, float]:
    """{parameter: its rate before any schedule}."""
    groups = [{**g, "lr": g.get("initial_lr", g["lr"])} for g in optimizer.param_groups]
    return rates(SimpleNamespace(param_groups=groups), model.named_parameters())


def apply_lightning(knob: str, new: Any, code: str, folder: Path) -> None:
    """Trains two updates with the code in its place and asserts its effect."""
    torch = pytest.importorskip("torch")
    library = pytest.importorskip("lightning.pytorch")
    method, _, body = code.partition(": ")
    if not re.fullmatch(r"\w+", method):
        method, body = "", code
    dataset = [torch.ones(2) for _ in range(24)]
    given: dict[str, tuple[Any, ...]] = {"DataLoader": (dataset,)}
    kind = torch.optim.SGD if knob == "momentum" else torch.optim.AdamW
    seen: dict[str, Any] = {"batches": [], "norms": [], "updates": 0}

    class Small(library.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.h = torch.nn.Sequential(*[torch.nn.Linear(2, 2) for _ in range(11)])

        def training_step(self, batch: Any, index: int) -> Any:
            output = self.h(batch)
            seen["batches"].append(len(batch))
            seen["forward"] = output.dtype
            return 100 * output.float().sum()

        def configure_optimizers(self) -> Any:
            optimizer = kind(self.parameters(), lr=LR, weight_decay=OLD["weight_decay"])
            names = {"torch": torch, "self": self, "optimizer": optimizer, "lr": LR}
            if method != "configure_optimizers":
                return optimizer
            result = run(body, {**names, "total_steps": 10}, given)
            if isinstance(result, dict):
                seen["scheduler"] = result
                return {"optimizer": optimizer, "lr_scheduler": result}
            return optimizer if result is None else result

        def on_train_start(self) -> None:
            if method == "on_train_start":
                run(body, {"self": self}, given)

        def train_dataloader(self) -> Any:
            if method == "train_dataloader":
                return run(body, {"torch": torch}, given)
            return torch.utils.data.DataLoader(dataset, batch_size=2)

        def on_before_zero_grad(self, optimizer: Any) -> None:
            if next(self.parameters()).grad is not None:
                seen["norms"].append(norm(torch, self))
                seen["updates"] += 1

    def trainer(**spelled: Any) -> Any:
        quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
        quiet |= {"enable_model_summary": False, "accelerator": "cpu", "max_steps": 3}
        return library.Trainer(default_root_dir=folder, **{**quiet, **spelled})

    fitted = run(body, {"Trainer": trainer}, given) if not method else trainer()
    module = Small()
    with quietly():
        fitted.fit(module)
    optimizer = fitted.optimizers[0]
    if knob.startswith("tensor_lr:"):
        check_rates(rates(optimizer, module.named_parameters()), knob.partition(":")[2], new)
    elif knob.endswith("_dtype"):
        assert {p.dtype for p in module.parameters()} == {torch.float32}
        state = [v.dtype for s in optimizer.state.values() for v in s.values()]
        assert set(state) == {torch.float32}
        half = knob != "compute_dtype" or new == "bfloat16"
        assert seen["forward"] is (torch.bfloat16 if half else torch.float32)
    elif knob in ("schedule", "warmup_steps"):
        scheduler = seen["scheduler"]
        assert fitted.lr_scheduler_configs[0].interval == "step"
        assert scheduler["scheduler"].last_epoch == fitted.global_step
        fresh = kind(module.parameters(), lr=LR)
        again = run(body, {"torch": torch, "optimizer": fresh, "total_steps": 10}, given)
        check_schedule(again["scheduler"], fresh, knob, new)
    elif knob == "max_grad_norm":
        clipped = [value == pytest.approx(new, rel=1e-3) for value in seen["norms"][1:]]
        assert clipped and all(value != (new == 0) for value in clipped)  # noqa: PT018
    elif knob == "total_steps":
        assert fitted.global_step == new
    elif knob == "accumulation_steps":
        assert len(seen["batches"]) == new * fitted.global_step
    elif knob == "batch_size":
        assert seen["batches"][0] == new
    else:
        assert of_groups(optimizer, knob) == new


@contextmanager
def quietly() -> Iterator[None]:
    """Without what Lightning says on the console."""
    import logging
    import warnings

    logging.disable(logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            logging.disable(logging.NOTSET)


APPLY = {
    "torch": apply_torch,
    "huggingface": apply_huggingface,
    "lightning": apply_lightning,
}
