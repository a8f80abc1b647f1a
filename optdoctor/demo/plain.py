"""The demo as a plain PyTorch loop."""

import torch
from torch.utils.data import DataLoader

import optdoctor
from optdoctor.demo.training import BATCH, SEED, ByteModel, Plan, Result, Texts, loss_of

LINE = "with optdoctor.watch(model, optimizer) as doctor:"
MODEL = "A small byte-level transformer"


def train(plan: Plan) -> Result:
    """Trains for `plan.steps` updates."""
    torch.manual_seed(SEED)
    model = ByteModel().to(plan.torch_dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=plan.rate)
    loader = DataLoader(Texts(), batch_size=BATCH, shuffle=True, drop_last=True)
    batches = (batch for _ in range(plan.steps) for batch in loader)
    with optdoctor.watch(model, optimizer, out=plan.out) as doctor:
        for _, batch in zip(range(plan.steps), batches, strict=False):
            with torch.autocast("cpu", torch.bfloat16, enabled=plan.mixed):
                loss = loss_of(model, batch)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
            doctor.log(loss=loss)
    return Result(doctor.diagnosis, doctor.runs[0].trace)
