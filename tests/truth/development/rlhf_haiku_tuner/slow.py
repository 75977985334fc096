"""Fine-tune a small language model with a scripted reward: rollouts, a KL penalty, and PPO updates."""

import argparse
import copy
import json
import math
import time

import torch
import torch.nn.functional as F
from torch import nn

VOCABULARY, WIDTH, HEADS, LAYERS = 4096, 96, 4, 2
PROMPT, RESPONSE, BATCH, EPOCHS = 40, 16, 16, 2


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x, cache=None):
        batch, length, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        if cache is not None:
            if cache:
                k, v = torch.cat([cache[0], k], dim=2), torch.cat([cache[1], v], dim=2)
            cache[:] = [k, v]
        y = F.scaled_dot_product_attention(q, k, v, is_causal=length > 1)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.mlp(self.norm2(x))


class LanguageModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.places = nn.Parameter(torch.randn(PROMPT + RESPONSE, WIDTH) * 0.02)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def hidden(self, tokens, caches=None, start=0):
        x = self.tokens(tokens) + self.places[start : start + tokens.shape[1]]
        for i, block in enumerate(self.blocks):
            x = block(x, None if caches is None else caches[i])
        return self.norm(x)

    @torch.no_grad()
    def generate(self, prompts):
        """Sample RESPONSE tokens; keys and values of the past are kept."""
        caches = [[] for _ in self.blocks]
        tokens, new = prompts, prompts
        for _ in range(RESPONSE):
            start = tokens.shape[1] - new.shape[1]
            logits = self.head(self.hidden(new, caches, start)[:, -1])
            new = torch.multinomial(logits.softmax(-1), 1)
            tokens = torch.cat([tokens, new], dim=1)
        return tokens

    def response_log_probs(self, tokens):
        """Log probability of each token of the response, [batch, RESPONSE]."""
        logits = self.head(self.hidden(tokens[:, :-1]))
        log_probs = logits.log_softmax(-1).gather(2, tokens[:, 1:, None]).squeeze(2)
        return log_probs[:, PROMPT - 1 :]


def scripted_reward(responses):
    """Likes even tokens and dislikes repetition."""
    even = (responses % 2 == 0).float().mean(1)
    ordered = responses.sort(dim=1).values
    repeated = (ordered[:, 1:] == ordered[:, :-1]).float().mean(1)
    return even - repeated


def main(iterations):
    torch.manual_seed(21)
    torch.set_num_threads(1)
    policy = LanguageModel()
    reference = copy.deepcopy(policy).requires_grad_(False)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=3e-4, fused=True)
    baseline, marks, kl_weight = 0.0, [], 0.02
    for _ in range(iterations):
        marks.append(time.perf_counter())
        prompts = torch.randint(0, VOCABULARY, (BATCH, PROMPT))
        tokens = policy.generate(prompts)
        with torch.no_grad():
            old = policy.response_log_probs(tokens)
            kl = old - reference.response_log_probs(tokens)
        scores = scripted_reward(tokens[:, PROMPT:])
        baseline = 0.9 * baseline + 0.1 * float(scores.mean())
        advantages = (scores - baseline).unsqueeze(1) - kl_weight * kl
        advantages = advantages / (advantages.std() + 1e-6)
        for _ in range(EPOCHS):
            ratio = (policy.response_log_probs(tokens) - old).exp()
            loss = -torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages).mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
            optimizer.step()
        kl_weight = min(0.2, max(0.005, kl_weight * math.exp(0.1 * (float(kl.mean()) - 0.05))))
    marks.append(time.perf_counter())
    first = iterations // 5
    rate = (iterations - first) / (marks[-1] - marks[first])
    checksum = float(policy.head.weight.detach().abs().sum())
    updates = iterations * EPOCHS
    print(json.dumps({"env_steps": None, "updates": updates, "units_per_s": rate, "checksum": checksum}))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--iterations", type=int, default=55)
    main(parser.parse_args().iterations)
