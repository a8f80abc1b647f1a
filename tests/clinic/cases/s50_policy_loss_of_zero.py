"""S50: the loss of GRPO is 0 by construction, and its gradient is not."""

from pathlib import Path

import torch
from acting import watching
from casing import Case
from networks import layers

from optdoctor.findings import Diagnosis

UPDATES, PROMPTS, ANSWERS, COLUMNS, WORDS, RATE = 300, 16, 8, 12, 8, 3e-3


def run(folder: Path) -> Diagnosis:
    torch.manual_seed(0)
    policy = layers(COLUMNS, 32, WORDS)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=RATE)
    earned = []
    with watching(policy, optimizer, out=folder) as doctor:
        for step in range(UPDATES):
            draws = torch.Generator().manual_seed(step)
            prompts = torch.randn(PROMPTS, COLUMNS, generator=draws)
            logarithm = policy(prompts).log_softmax(-1)
            answers = torch.multinomial(logarithm.detach().exp(), ANSWERS, True, generator=draws)
            right = prompts[:, :WORDS].argmax(1, keepdim=True)
            rewards = (answers == right).float()
            spread = rewards.std(1, keepdim=True)
            advantage = (rewards - rewards.mean(1, keepdim=True)) / (spread + 1e-4)
            chosen = logarithm.gather(1, answers)
            ratio = (chosen - chosen.detach()).exp()
            loss = -(ratio * advantage).mean()
            optimizer.zero_grad()
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
            assert abs(float(loss.detach())) < 1e-6 < float(norm)
            doctor.log(loss=loss, grad_norm=norm, reward=rewards.mean(), reward_std=spread.mean())
            optimizer.step()
            earned.append(float(rewards.mean()))
    assert sum(earned[-20:]) > 2 * sum(earned[:20])
    return doctor.diagnosis


CASE = Case(
    number="S50",
    source="huggingface/trl#3452, huggingface/open-r1#239",
    says="A loss of 0 beside a gradient: a ratio of 1 and centred advantages; rewards rise.",
    run=run,
)
