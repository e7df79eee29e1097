"""Records snapshots of weights: three models, pre-training, supervised fine-tuning, and reinforcement learning.

    python -m bench.patch.record [MODEL…]      # into .cache/patch, a few minutes on one core
    python -m bench.patch.record --bundle      # what is bundled of it, into datasets/weights

A model is trained first: `base` has weights of a trained model. All regimes start from there. WARM steps at a rate of 0
settle the moments of the optimizer and leave the weights alone; so all snapshots of a regime differ from `base` by steps with
a settled optimizer. `rl_1e-06_8` is after 8 steps of reinforcement learning at 1e-6. The optimizer has f32 weights;
the snapshots are copies in bf16, as inference engines have them.

    gpt     bytes of Python's help texts (bench/train/byte_gpt.py, narrower); fine-tuned on PyTorch's documentation;
            rl: REINFORCE with groups of eight samples a prompt and normalised advantages, as GRPO with one update a batch
            has it. A sample is rewarded for the share of its bytes that are in whole words of the training text.
    lstm    words of PyTorch's documentation (datasets/recipe_lstm.py), fine-tuned on its last tenth: tables of words, of
            which a batch touches few rows
    resnet  ResNet-20 on scikit-learn's digits (datasets/capture.py), by SGD with momentum; fine-tuned on half of them
"""

import argparse
import copy
import re
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Dict, Iterator, Sequence, Tuple

import torch
from torch import nn
from torch.nn import functional as F

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT)]

from bench.train import byte_gpt, text_tasks, vision_tasks  # noqa: E402
import recipe_lstm  # noqa: E402 (of datasets/, which bench.train puts on the path)

from bench.patch.recordings import BUNDLED, RECORDED, Recording, entries, load, save  # noqa: E402

SEED = 1
WARM = 20
CHAIN = tuple(range(1, 25))  # consecutive steps
PROMPTS, GROUP, PROMPT, ANSWER = 4, 8, 16, 16  # a step of rl: prompts, samples of each, their bytes
CLIP = 1.0  # of the gradient's norm in rl

Gradient = Callable[[nn.Module, torch.Generator], float]  # fills .grad; its result is logged
Optimizer = Callable[[nn.Module, float], torch.optim.Optimizer]


@dataclass(frozen=True)
class Regime:
    """rates: after which steps a snapshot is taken. logged: what gradient() returns."""

    name: str
    gradient: Gradient
    optimizer: Optimizer
    rates: Dict[float, Sequence[int]]
    logged: str = "loss"


@dataclass(frozen=True)
class Subject:
    """module, trained by `steps` of `first` at its own rates: (rate at the step, of all)."""

    module: nn.Module
    first: Gradient
    optimizer: Optimizer
    rate: float
    steps: int
    regimes: Sequence[Regime]


def adamw(module: nn.Module, rate: float) -> torch.optim.Optimizer:
    return torch.optim.AdamW(module.parameters(), lr=rate)


def sgd(module: nn.Module, rate: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(module.parameters(), lr=rate, momentum=0.9, weight_decay=1e-4)


def supervised(loss: Callable, batches: Callable[[torch.Generator], Iterator], of: int = 1) -> Gradient:
    """The gradient of the mean loss of `of` batches joined. The iterator lives as long as its generator."""
    running: Dict[int, Tuple[torch.Generator, Iterator]] = {}

    def gradient(module: nn.Module, generator: torch.Generator) -> float:
        _, stream = running.setdefault(id(generator), (generator, batches(generator)))
        parts = [next(stream) for _ in range(of)]
        value = loss(module, tuple(torch.cat(part) for part in zip(*parts)))
        value.backward()
        return value.item()

    return gradient


def windows(text: torch.Tensor, rows: int, length: int) -> Callable[[torch.Generator], Iterator]:
    def batches(generator: torch.Generator) -> Iterator:
        while True:
            begin = torch.randint(len(text) - length - 1, (rows, 1), generator=generator)
            taken = text[begin + torch.arange(length + 1)]
            yield taken[:, :-1], taken[:, 1:]

    return batches


def like_gpt2(module: nn.Module) -> nn.Module:
    """Matrices of N(0, 0.02²), as Radford et al. 2019 start."""
    for parameter in module.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.02)
    return module


# ---- reinforcement learning --------------------------------------------------------------------------------------


def logits_of(module: nn.Module, text: torch.Tensor) -> torch.Tensor:
    """The logits of a ByteGPT for a text that is shorter than its window."""
    n = text.shape[1]
    hidden = module.token(text) + module.place[:n]
    return module.head(module.layers(hidden, mask=module.mask[:n, :n], is_causal=True))


def bytes_in_words(answer: bytes, known: "set[bytes]") -> float:
    """Share of the bytes that are in known words of two letters or more with no letter before and behind."""
    whole = re.findall(rb"(?<=[^a-z])[a-z]{2,}(?=[^a-z])", answer.lower())
    return sum(len(word) for word in whole if word in known) / len(answer)


def policy_gradient(text: torch.Tensor) -> Gradient:
    known = set(re.findall(rb"[a-z]{2,}", bytes(text.tolist()).lower()))

    def gradient(module: nn.Module, generator: torch.Generator) -> float:
        begin = torch.randint(len(text) - PROMPT, (PROMPTS, 1), generator=generator)
        rows = text[begin + torch.arange(PROMPT)].repeat_interleave(GROUP, 0)
        with torch.no_grad():
            for _ in range(ANSWER):
                chance = logits_of(module, rows)[:, -1].softmax(-1)
                rows = torch.cat([rows, torch.multinomial(chance, 1, generator=generator)], 1)
        reward = torch.tensor([bytes_in_words(bytes(row[PROMPT:].tolist()), known) for row in rows]).view(PROMPTS, GROUP)
        advantage = (reward - reward.mean(1, keepdim=True)) / (reward.std(1, keepdim=True) + 1e-6)
        logits = logits_of(module, rows[:, :-1])[:, PROMPT - 1 :]
        chosen = -F.cross_entropy(logits.flatten(0, 1), rows[:, PROMPT:].flatten(), reduction="none")
        (-(advantage.flatten()[:, None] * chosen.view(len(rows), ANSWER)).mean()).backward()
        nn.utils.clip_grad_norm_(module.parameters(), CLIP)
        return reward.mean().item()

    return gradient


# ---- subjects ------------------------------------------------------------------------------------------------------


def gpt() -> Subject:
    task = byte_gpt.byte_gpt(SEED)
    text = torch.frombuffer(bytearray("\n".join(byte_gpt.topics.values()).encode()), dtype=torch.uint8).long()
    other = torch.frombuffer(bytearray("\n".join(recipe_lstm.documentation()).encode()), dtype=torch.uint8).long()
    first = supervised(task.loss, task.batches, of=4)
    tuned = supervised(task.loss, windows(other, 16, byte_gpt.LENGTH))
    return Subject(
        like_gpt2(byte_gpt.ByteGPT(width=160)), first, adamw, 2e-3, 800,
        [
            Regime("rl", policy_gradient(text), adamw, {1e-8: (1,), 1e-7: (1, 8), 1e-6: CHAIN, 1e-5: CHAIN}, "reward"),
            Regime("sft", tuned, adamw, {1e-6: (1, 8), 1e-5: (1, 8), 1e-4: (1,)}),
            Regime("pre", first, adamw, {1e-4: (1, 8), 1e-3: (1, 8)}),
        ],
    )  # fmt: skip


def lstm() -> Subject:
    words = text_tasks.cached(f"words_{recipe_lstm.VOCABULARY}_{torch.__version__}", recipe_lstm.read_words)
    cut = len(words) - len(words) // recipe_lstm.HELD_OUT
    loss = lambda module, batch: F.cross_entropy(module(batch[0]).flatten(0, 1), batch[1].flatten())
    first = supervised(loss, windows(words[:cut], 32, recipe_lstm.LENGTH))
    tuned = supervised(loss, windows(words[cut:], 32, recipe_lstm.LENGTH))
    return Subject(
        like_gpt2(recipe_lstm.WordLSTM(width=96, units=256)), first, adamw, 2e-3, 600,
        [
            Regime("sft", tuned, adamw, {1e-7: (1,), 1e-6: (1, 8), 1e-5: CHAIN, 1e-4: (1,)}),
            Regime("pre", first, adamw, {1e-4: (1, 8), 1e-3: (1,)}),
        ],
    )  # fmt: skip


def resnet() -> Subject:
    images, labels, _, _ = vision_tasks.capture.load_digits(SEED)
    stream = lambda x, y: lambda generator: vision_tasks.shuffled(x, y, vision_tasks.RESNET_BATCH, generator)
    first = supervised(vision_tasks.classify, stream(images, labels))
    half = labels >= 5
    tuned = supervised(vision_tasks.classify, stream(images[half], labels[half]))
    return Subject(
        vision_tasks.capture.ResNet20(), first, sgd, 0.05, 150,
        [
            Regime("sft", tuned, adamw, {1e-6: (1, 8), 1e-5: (1, 8)}),
            Regime("pre", first, sgd, {1e-4: (1,), 1e-3: (1,), 1e-2: (1, 8)}),
        ],
    )  # fmt: skip


SUBJECTS: Dict[str, Callable[[], Subject]] = {"gpt": gpt, "lstm": lstm, "resnet": resnet}
# What is bundled: from 0.01 % to 44 % changed, in 3 MB.
BUNDLED_TENSORS: Dict[str, Sequence[str]] = {
    "gpt": ("rl_1e-08_1", "rl_1e-07_1", "rl_1e-06_1", "rl_1e-06_8", "rl_1e-05_1", "rl_1e-05_8", "sft_1e-06_1"),
    "resnet": ("sft_1e-06_1", "sft_1e-06_8", "pre_0.01_8"),
}


# ---- recording -----------------------------------------------------------------------------------------------------


def flat(module: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in module.parameters()])


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate


def step(module: nn.Module, optimizer: torch.optim.Optimizer, gradient: Gradient, generator: torch.Generator) -> float:
    optimizer.zero_grad()
    logged = gradient(module, generator)
    optimizer.step()
    return logged


def record_regime(recording: Recording, module: nn.Module, regime: Regime) -> None:
    """Leaves the module as it was."""
    start = copy.deepcopy(module.state_dict())
    optimizer, generator = regime.optimizer(module, 0.0), torch.Generator().manual_seed(1000 * SEED)
    for _ in range(WARM):
        step(module, optimizer, regime.gradient, generator)
    moments, drawn, norms = copy.deepcopy(optimizer.state_dict()), generator.get_state(), copy.deepcopy(module.state_dict())
    for rate, counts in regime.rates.items():
        module.load_state_dict(norms)
        optimizer.load_state_dict(copy.deepcopy(moments))
        set_rate(optimizer, rate)
        generator.set_state(drawn)
        for number in range(1, max(counts) + 1):
            logged = step(module, optimizer, regime.gradient, generator)
            if number in counts:
                name, wide = f"{regime.name}_{rate:g}_{number}", number == 1 and 1e-6 <= rate <= 1e-5
                facts = {"regime": regime.name, "rate": rate, "steps": number, regime.logged: round(logged, 4)}
                recording.add(name, flat(module).numpy(), wide=wide, **facts)
        print(f"{recording.model} {name}: {recording.snapshots[name]}", flush=True)
    module.load_state_dict(start)


def record(model: str) -> Recording:
    torch.set_num_threads(1)  # sums depend on it
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(SEED)
    subject, generator = SUBJECTS[model](), torch.Generator().manual_seed(SEED)
    module = subject.module
    optimizer = subject.optimizer(module, subject.rate)
    for number in range(subject.steps):
        set_rate(optimizer, subject.rate * min(1, (number + 1) / 20) * (1 - 0.9 * number / subject.steps))
        logged = step(module, optimizer, subject.first, generator)
        if number % 100 == 99:
            print(f"{model}, step {number + 1}: {logged:.3f}", flush=True)
    tensors = [(name, tuple(p.shape)) for name, p in module.named_parameters()]
    facts = {"seed": SEED, "torch": str(torch.__version__), "regenerate": f"python -m bench.patch.record {model}"}
    recording = Recording(model, tensors, facts={"loss": round(logged, 4), **facts})
    recording.add("base", flat(module).numpy(), wide=True)
    for regime in subject.regimes:
        record_regime(recording, module, regime)
    return recording


def main() -> None:
    parser = argparse.ArgumentParser(description="Trains models and records snapshots of their weights.")
    parser.add_argument("model", nargs="*", help=f"of {', '.join(SUBJECTS)}; default: all")
    parser.add_argument("--bundle", action="store_true", help="trains nothing; copies what is bundled to datasets/weights")
    arguments = parser.parse_args()
    if arguments.bundle:
        for entry in entries(RECORDED):
            if entry["model"] in BUNDLED_TENSORS:
                path = save(load(entry, RECORDED), BUNDLED, BUNDLED_TENSORS[entry["model"]], wide=False)
                print(path, path.stat().st_size, "bytes")
        return
    for model in arguments.model or SUBJECTS:
        begin = time.process_time()
        path = save(record(model), RECORDED)
        print(f"{path}: {path.stat().st_size} bytes, {time.process_time() - begin:.0f} s of CPU", flush=True)


if __name__ == "__main__":
    main()
