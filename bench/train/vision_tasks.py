"""Images: ResNet-20 on scikit-learn's digits, a small CNN on Fashion-MNIST (Xiao et al. 2017; Debian's package)."""

import functools
import gzip
import subprocess

import torch
from torch import nn
from torch.nn import functional as F

from bench.train.task import CACHE, Setting, Task, count_right
import capture  # of datasets/, which the line above puts on the path

RESNET_BATCH = 32  # images a rank
CNN_BATCH = 64
PACKAGE = "dataset-fashion-mnist"
FOLDER = "usr/share/datasets/fashion-mnist"


def classify(module, batch):
    images, labels = batch
    return F.cross_entropy(module(images), labels)


def shuffled(inputs, labels, size, generator):
    while True:
        for chosen in torch.randperm(len(labels), generator=generator).split(size):
            if len(chosen) == size:
                yield inputs[chosen], labels[chosen]


def resnet20(seed):
    """The task of datasets/capture.py: 1,437 images to learn from, shifted at random, 360 held out."""
    images, labels, test_images, test_labels = capture.load_digits(seed)
    # Shifts are drawn from torch's own generator, which a run seeds by its rank.
    batches = lambda generator: (
        (capture.shift_at_random(x), y) for x, y in shuffled(images, labels, RESNET_BATCH, generator)
    )
    return Task(
        model=capture.ResNet20,
        optimizer=lambda module: torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4),
        batches=batches,
        loss=classify,
        score=lambda module, rank, ranks: count_right(module, test_images, test_labels, rank, ranks),
    )


class SmallCNN(nn.Sequential):
    """Images [n, 1, 28, 28] to logits [n, 10]; 207,018 parameters."""

    def __init__(self):
        super().__init__(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(32 * 7 * 7, 128),
            nn.ReLU(),
            nn.Linear(128, 10),
        )


def unpack_fashion():
    """Debian's package in CACHE, downloaded and unpacked there; needs no root."""
    if not (CACHE / FOLDER).exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        try:
            subprocess.run(
                ["apt-get", "-qq", "download", PACKAGE], cwd=CACHE, check=True, capture_output=True, text=True
            )
            package = next(CACHE.glob(f"{PACKAGE}_*.deb"))
            subprocess.run(["dpkg", "-x", package, CACHE], check=True, capture_output=True, text=True)
        except (OSError, subprocess.CalledProcessError) as error:
            message = (getattr(error, "stderr", None) or str(error)).strip()
            raise RuntimeError(f"Fashion-MNIST is Debian's package {PACKAGE}, which could not be had: {message}") from None
    return CACHE / FOLDER


def read_idx(path, header):
    with gzip.open(path) as file:
        return torch.frombuffer(bytearray(file.read()[header:]), dtype=torch.uint8)


@functools.cache
def fashion():
    """(60,000 images [n, 1, 28, 28] f32, their labels, 10,000 test images, their labels)"""
    folder, parts = unpack_fashion(), []
    for name in ("train", "t10k"):
        images = read_idx(folder / f"{name}-images-idx3-ubyte.gz", 16).view(-1, 1, 28, 28).float()
        parts += [(images - 72.94) / 90.02, read_idx(folder / f"{name}-labels-idx1-ubyte.gz", 8).long()]
    return parts


def fashion_cnn(seed):
    images, labels, test_images, test_labels = fashion()
    return Task(
        model=SmallCNN,
        optimizer=lambda module: torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4),
        batches=lambda generator: shuffled(images, labels, CNN_BATCH, generator),
        loss=classify,
        score=lambda module, rank, ranks: count_right(module, test_images, test_labels, rank, ranks),
    )


SETTINGS = {
    "resnet20": Setting(
        resnet20,
        "ResNet-20, scikit-learn's digits",
        269_722,
        "test accuracy",
        f"{RESNET_BATCH} images",
        "SGD 0.1, momentum 0.9",
        150,
        0.12,
    ),
    "cnn": Setting(
        fashion_cnn,
        "CNN, Fashion-MNIST",
        207_018,
        "test accuracy",
        f"{CNN_BATCH} images",
        "SGD 0.05, momentum 0.9",
        400,
        0.025,
    ),
}
