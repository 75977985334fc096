"""Group-relative policy optimisation of a tiny recurrent language model: close the open brackets of a prompt."""
import argparse
import copy
import json
import random
import time
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
TOKENS = "([{)]}."
STOP = 6
PROMPT, ANSWER = 8, 8


@dataclass
class Config:
    prompts: int = 24
    group: int = 8
    epochs: int = 6
    clip: float = 0.2
    kl: float = 0.04
    lr: float = 1e-3


class CharModel(nn.Module):
    def __init__(self, width=96):
        super().__init__()
        self.embed = nn.Embedding(len(TOKENS) + 1, width)
        self.rnn = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, len(TOKENS))

    def forward(self, ids, state=None):
        h, state = self.rnn(self.embed(ids), state)
        return self.head(h), state


def make_prompts(count, rng):
    """Bracket words that leave between one and six brackets open."""
    rows, wanted = [], []
    while len(rows) < count:
        word, stack = [], []
        for _ in range(PROMPT):
            if stack and rng.random() < 0.35:
                word.append(stack.pop() + 3)
            else:
                kind = rng.randrange(3)
                stack.append(kind)
                word.append(kind)
        if 1 <= len(stack) <= 6:
            rows.append(word)
            wanted.append([k + 3 for k in reversed(stack)] + [STOP])
    return torch.tensor(rows), wanted


@torch.no_grad()
def generate(model, prompts, gen):
    logits, state = model(prompts)
    last, out = logits[:, -1], []
    for _ in range(ANSWER):
        token = torch.multinomial(F.softmax(last, dim=-1), 1, generator=gen)
        out.append(token)
        logits, state = model(token, state)
        last = logits[:, -1]
    return torch.cat(out, dim=1)


def token_log_probs(model, prompts, answers):
    logits, _ = model(torch.cat([prompts, answers[:, :-1]], dim=1))
    logp = F.log_softmax(logits[:, PROMPT - 1:], dim=-1)
    return logp.gather(2, answers[..., None]).squeeze(-1)


def score(answers, wanted, group):
    rewards = []
    for i, answer in enumerate(answers.tolist()):
        goal = wanted[i // group]
        right = 0
        for got, want in zip(answer, goal):
            if got != want:
                break
            right += 1
        rewards.append(right / len(goal) + (0.5 if right == len(goal) else 0.0))
    return torch.tensor(rewards)


def warm_up(model, rng, steps=60):
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(steps):
        prompts, wanted = make_prompts(32, rng)
        answers = torch.full((32, ANSWER), STOP)
        for i, goal in enumerate(wanted):
            answers[i, :len(goal)] = torch.tensor(goal)
        loss = -token_log_probs(model, prompts, answers).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    return steps


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--iterations", type=int, default=120)
    args = ap.parse_args()
    cfg, gen, rng = Config(), torch.Generator().manual_seed(9), random.Random(9)
    torch.manual_seed(9)
    model = CharModel()
    updates = warm_up(model, rng)
    reference = copy.deepcopy(model).eval()
    opt = torch.optim.Adam(model.parameters(), lr=cfg.lr)
    start, total = None, 0.0
    for it in range(args.iterations):
        if it == args.iterations // 5:
            start = time.perf_counter()
        prompts, wanted = make_prompts(cfg.prompts, rng)
        prompts = prompts.repeat_interleave(cfg.group, dim=0)
        answers = generate(model, prompts, gen)
        rewards = score(answers, wanted, cfg.group)
        grouped = rewards.view(-1, cfg.group)
        advantage = ((grouped - grouped.mean(1, keepdim=True)) / (grouped.std(1, keepdim=True) + 1e-4)).view(-1, 1)
        mask = ((answers == STOP).cumsum(1) - (answers == STOP).long() == 0).float()
        with torch.no_grad():
            old = token_log_probs(model, prompts, answers)
        for _ in range(cfg.epochs):
            with torch.no_grad():
                base = token_log_probs(reference, prompts, answers)
            logp = token_log_probs(model, prompts, answers)
            ratio = torch.exp(logp - old)
            gain = torch.min(ratio * advantage, ratio.clamp(1 - cfg.clip, 1 + cfg.clip) * advantage)
            kl = torch.exp(base - logp) - (base - logp) - 1.0
            loss = -(((gain - cfg.kl * kl) * mask).sum(1) / mask.sum(1)).mean()
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            updates += 1
        total += rewards.mean().item()
        if it % 20 == 0:
            print(f"iteration {it:3d}: reward {rewards.mean().item():.3f}, KL {kl.mean().item():.4f}", flush=True)
    rate = (args.iterations - args.iterations // 5) / (time.perf_counter() - start)
    print(json.dumps({"env_steps": None, "updates": updates, "units_per_s": rate, "checksum": total}))


if __name__ == "__main__":
    main()
