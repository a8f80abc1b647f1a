"""S49: GRPO in which all answers to a prompt earn the same: no advantage, loss 0, gradient 0."""

from pathlib import Path

import torch
from acting import watching
from casing import Case
from networks import layers

from optdoctor.findings import Diagnosis

UPDATES, PROMPTS, ANSWERS, COLUMNS, WORDS, RATE, REWARD = 120, 8, 8, 12, 16, 1e-3, 5.0


def run(folder: Path) -> Diagnosis:
    torch.manual_seed(0)
    policy = layers(COLUMNS, 32, WORDS)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=RATE, weight_decay=0.0)
    began = [p.detach().clone() for p in policy.parameters()]
    with watching(policy, optimizer, out=folder) as doctor:
        for step in range(UPDATES):
            draws = torch.Generator().manual_seed(step)
            prompts = torch.randn(PROMPTS, COLUMNS, generator=draws)
            logarithm = policy(prompts).log_softmax(-1)
            answers = torch.multinomial(logarithm.detach().exp(), ANSWERS, True, generator=draws)
            rewards = torch.full(answers.shape, REWARD)
            spread = rewards.std(1, keepdim=True)
            advantage = (rewards - rewards.mean(1, keepdim=True)) / (spread + 1e-4)
            chosen = logarithm.gather(1, answers)
            ratio = (chosen - chosen.detach()).exp()
            loss = -(ratio * advantage).mean()
            optimizer.zero_grad()
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
            assert float(loss.detach()) == 0
            assert float(norm) == 0
            doctor.log(loss=loss, grad_norm=norm, reward=rewards.mean(), reward_std=spread.mean())
            optimizer.step()
    assert all(map(torch.equal, policy.parameters(), began))
    return doctor.diagnosis


CASE = Case(
    number="S49",
    source="modelscope/ms-swift#4547, #4570, huggingface/trl#3857",
    says="Loss and gradient norm are 0 from the start: the rewards in each group are equal.",
    run=run,
    rules=("labels-masked",),
)
