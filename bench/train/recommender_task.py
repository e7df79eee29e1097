"""The recommender of datasets/recipe_ncf.py: NeuMF (He et al. 2017) over PyTorch's functions and the names they use."""

import numpy as np
import torch
from torch.nn import functional as F

from bench.train.task import Setting, Task, cached
import recipe_ncf  # of datasets/, which the line above puts on the path

BATCH = 1200  # positives a rank, each with recipe_ncf.NEGATIVES negatives


def neumf(seed):
    liked = cached(f"neumf_{torch.__version__}", lambda: torch.from_numpy(recipe_ncf.interactions())).numpy()
    users, items = liked.shape
    random = np.random.Generator(np.random.PCG64(seed))
    held_out = torch.tensor([random.choice(np.flatnonzero(row)) for row in liked])
    others = torch.tensor(np.array([random.choice(np.flatnonzero(~row), 99, replace=False) for row in liked]))
    learned = liked.copy()
    learned[np.arange(users), held_out.numpy()] = False
    positive_users, positive_items = (torch.from_numpy(x) for x in np.nonzero(learned))
    likes = torch.from_numpy(liked)

    def batches(generator):
        rows = 1 + recipe_ncf.NEGATIVES
        while True:
            chosen = torch.randint(len(positive_users), (BATCH,), generator=generator)
            user = positive_users[chosen].repeat_interleave(rows)
            item = torch.randint(items, (len(user),), generator=generator)
            item[::rows] = positive_items[chosen]
            yield user, item, likes[user, item].float()  # a negative that happens to be liked is none

    def score(module, rank, ranks):
        mine = slice(rank, None, ranks)
        everybody = torch.arange(users)[mine]
        return recipe_ncf.hit_rate(module, everybody, held_out[mine], others[mine]) * len(everybody), len(everybody)

    return Task(
        model=lambda: recipe_ncf.NeuMF(users, items),
        optimizer=lambda module: torch.optim.Adam(module.parameters(), lr=4e-3),
        batches=batches,
        loss=lambda module, batch: F.binary_cross_entropy_with_logits(module(batch[0], batch[1]), batch[2]),
        score=score,
    )


SETTINGS = {
    "neumf": Setting(
        neumf,
        "NeuMF, names in PyTorch's functions",
        376_561,
        "hit rate at 10",
        f"{BATCH} positives",
        "Adam 4e-3",
        1000,
        0.014,
    ),
}
