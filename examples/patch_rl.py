"""Reinforcement learning with a sampler in a process of its own, which gets each step's bf16 weights as a patch.

The policy adds two digits, modulo ten; the reward is 1 for the right answer. The sampler draws answers in groups and judges
them, the trainer takes a step of a policy gradient on f32 weights, and what changed of their bf16 copies goes back.

python patch_rl.py [STEPS]
"""

import hashlib
import multiprocessing
import sys

import torch

from deepreduce import patch

GROUPS, ANSWERS = 64, 8  # questions a step, answers to each


def policy():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(20, 256), torch.nn.ReLU(), torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))


def questions(digits, dtype):
    return torch.nn.functional.one_hot(digits, 10).flatten(1).to(dtype)


def digest(weights):
    return hashlib.sha256(b"".join(w.view(torch.uint8).numpy().tobytes() for w in weights.values())).hexdigest()


def sampler(pipe):
    torch.set_num_threads(1)
    engine = policy().to(torch.bfloat16)
    weights = engine.state_dict()
    sums = patch.Sums(weights)  # so that no check reads the weights
    torch.manual_seed(1)
    while data := pipe.recv():
        patch.apply(weights, data, sums=sums)
        digits = torch.randint(10, (GROUPS, 2))
        with torch.no_grad():
            chances = engine(questions(digits, torch.bfloat16)).float().softmax(1)
        answers = torch.multinomial(chances, ANSWERS, replacement=True)
        pipe.send((digits, answers, (answers == digits.sum(1, keepdim=True) % 10).float()))
    pipe.send(digest(weights))


def train(steps):
    torch.set_num_threads(1)
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=sampler, args=(theirs,), daemon=True)
    process.start()
    model = policy()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    sent = {name: w.to(torch.bfloat16) for name, w in model.state_dict().items()}
    dense, size = sum(w.nbytes for w in sent.values()), 0
    for step in range(steps):
        weights = {name: w.to(torch.bfloat16) for name, w in model.state_dict().items()}
        data = patch.encode(sent, weights, base=str(step), result=str(step + 1))
        ours.send(data)
        sent, size = weights, size + len(data)
        digits, answers, rewards = ours.recv()
        advantages = (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-3)
        chosen = model(questions(digits, torch.float32)).log_softmax(1).gather(1, answers)
        optimizer.zero_grad()
        (-(advantages * chosen).mean()).backward()
        optimizer.step()
        if step % 50 == 0 or step == steps - 1:
            print(f"step {step}: reward {rewards.mean():.2f}; a patch of {len(data)} bytes instead of {dense}", flush=True)
    ours.send(b"")
    assert ours.recv() == digest(sent)
    process.join()
    print(f"equal weights; {size} bytes instead of {steps * dense}")


if __name__ == "__main__":
    train(int(sys.argv[1]) if len(sys.argv) > 1 else 300)
