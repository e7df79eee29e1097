"""A recommender in the shape of NCF: the gradient is sparse by itself, since a batch touches only some rows.

NeuMF (He et al. 2017, "Neural collaborative filtering", fig. 3): a product of two embeddings beside a perceptron
over two others. MovieLens is not in any package, so the table of who likes what is another one of that kind: the
users are PyTorch's own functions, the items are the names that they use. It has what matters here: some items
are liked by nearly all, most by few.
"""

import ast
from collections import Counter
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

FOLDERS = ["ao", "distributions", "fx", "nn", "optim", "utils"]  # of the package torch; the same in every build of it
USER_ITEMS = 8  # a user has at least so many items, an item so many users
ITEM_USERS = 5
NEGATIVES = 4  # drawn for each positive, as in the paper
BATCH = 2400  # positives; leaves two fifths of the gradient zero, as the authors of DeepReduce report it for NCF
TOP = 10  # hit rate: the one that was held out is among the first TOP of 100


class NeuMF(nn.Module):
    def __init__(self, users, items, factors=16, layers=(64, 32, 16)):
        super().__init__()
        self.user_mf = nn.Embedding(users, factors)
        self.item_mf = nn.Embedding(items, factors)
        self.user_mlp = nn.Embedding(users, layers[0] // 2)
        self.item_mlp = nn.Embedding(items, layers[0] // 2)
        self.mlp = nn.ModuleList(nn.Linear(a, b) for a, b in zip(layers, layers[1:]))
        self.final = nn.Linear(factors + layers[-1], 1)
        for table in (self.user_mf, self.item_mf, self.user_mlp, self.item_mlp):
            nn.init.normal_(table.weight, std=0.01)

    def forward(self, user, item):
        product = self.user_mf(user) * self.item_mf(item)
        x = torch.cat([self.user_mlp(user), self.item_mlp(item)], dim=-1)
        for layer in self.mlp:
            x = F.relu(layer(x))
        return self.final(torch.cat([product, x], dim=-1)).squeeze(-1)


def names_by_function():
    """One sorted list of names a function of the package, in the order of files and lines."""
    root = Path(torch.__file__).parent
    used = []
    for path in sorted(path for folder in FOLDERS for path in (root / folder).rglob("*.py")):
        functions = [n for n in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(n, ast.FunctionDef)]
        for function in sorted(functions, key=lambda n: (n.lineno, n.col_offset)):
            nodes = list(ast.walk(function))
            names = {n.id for n in nodes if isinstance(n, ast.Name)} | {n.attr for n in nodes if isinstance(n, ast.Attribute)}
            used.append(sorted(names))
    return used


def interactions():
    """(liked [users, items] bool, user and item of each interaction)."""
    used = names_by_function()
    count = Counter(name for names in used for name in names)
    items = {name: i for i, name in enumerate(sorted(name for name, n in count.items() if n >= ITEM_USERS))}
    rows = [[items[name] for name in names if name in items] for names in used]
    rows = [row for row in rows if len(row) >= USER_ITEMS]
    liked = np.zeros((len(rows), len(items)), bool)
    for user, row in enumerate(rows):
        liked[user, row] = True
    return liked


@torch.no_grad()
def hit_rate(model, users, held_out, others):
    """Share of users whose held-out item scores among the first TOP of it and 99 that they do not like."""
    items = torch.cat([held_out[:, None], others], dim=1)
    score = model(users[:, None].expand_as(items), items)
    return round((score[:, 1:] > score[:, :1]).sum(1).lt(TOP).double().mean().item(), 4)


def train(steps, seed, start):
    """start(model, name, steps) -> Capture. Records an early and the last step."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(seed)
    random = np.random.Generator(np.random.PCG64(seed))

    liked = interactions()
    n_users, n_items = liked.shape
    held_out = np.array([random.choice(np.flatnonzero(row)) for row in liked])
    not_liked = np.array([random.choice(np.flatnonzero(~row), 99, replace=False) for row in liked])
    everybody = torch.arange(n_users)
    judge = (everybody, torch.tensor(held_out), torch.tensor(not_liked))
    learned = liked.copy()
    learned[np.arange(n_users), held_out] = False
    positive_users, positive_items = np.nonzero(learned)

    model = NeuMF(n_users, n_items)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    capture = start(model, "neumf_names", [20, steps])
    print(f"{n_users} users, {n_items} items, {len(positive_users)} interactions to learn from")
    for step in range(1, steps + 1):
        chosen = random.integers(len(positive_users), size=BATCH)
        user = np.repeat(positive_users[chosen], 1 + NEGATIVES)
        item = random.integers(n_items, size=len(user))
        item[:: 1 + NEGATIVES] = positive_items[chosen]
        label = liked[user, item]  # a negative that happens to be liked is none
        user, item, label = (torch.tensor(x) for x in (user, item, label))
        loss = F.binary_cross_entropy_with_logits(model(user, item), label.float())
        optimizer.zero_grad()
        loss.backward()
        if step in capture.steps:
            zeros = 1 - sum((p.grad != 0).sum().item() for p in model.parameters()) / sum(p.numel() for p in model.parameters())
            metrics = {"loss": round(loss.item(), 6), "hit_rate": hit_rate(model, *judge), "zeros": round(zeros, 4)}
            print(f"step {step}: {metrics} -> {capture.record(step, **metrics)}", flush=True)
        optimizer.step()
    print(f"after {steps} steps: hit rate {hit_rate(model, *judge)}")
