"""Records the gradients of a PyTorch model, one .npz file a step.

As a module, inside your own training loop (README.md has the whole example):

    capture = Capture(model, steps=[10, 500], directory="my_gradients", name="mymodel")
    ...
    loss.backward()
    capture.record(step)        # after backward, before zero_grad

As a script, it makes the files bundled with DeepReduce (minutes on one core):

    python datasets/capture.py resnet20-digits --out datasets/gradients      # or neumf-names, lstm-docs

A file is a plain uncompressed numpy archive: parameter name -> little-endian float32 array in the
parameter's shape, members in the order of named_parameters(). Equal gradients give equal bytes.
"""

import argparse
import hashlib
import importlib
import json
import math
import os
import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "bindings" / "python"))  # where the package is not installed

from deepreduce.recording import write_npz  # noqa: E402


# ---- recording -----------------------------------------------------------------------------------


class Capture:
    """Writes the gradients of `module` at chosen steps, and describes each file in a manifest.

    module      any nn.Module; a parameter without a gradient at a recorded step is left out
    steps       the step numbers to record; record() ignores all others
    directory   receives NAME_stepNNNN.npz, is made if absent
    name        the model's name, in the file names and the manifest (default: the class's name)
    seed        of the training run, for the manifest
    regenerate  a sentence or command that makes the file again, for the manifest
    manifest    path of the json (default: manifest.json in `directory`); entries of other files stay
    """

    def __init__(self, module, steps, directory, *, name=None, seed=None, regenerate=None, manifest=None):
        self.module = module
        self.steps = frozenset(steps)
        self.directory = Path(directory)
        self.name = name or type(module).__name__.lower()
        self.seed = seed
        self.regenerate = regenerate
        self.manifest = Path(manifest) if manifest else self.directory / "manifest.json"

    def record(self, step, **metrics):
        """Writes this step's file if the step was chosen; returns its path, else None.

        Call it between backward() and zero_grad(); with gradient accumulation after the last
        backward(), with a loss scaler after unscaling. `metrics` (loss=...) go to the manifest.
        """
        if step not in self.steps:
            return None
        arrays = gradients(self.module)
        if not arrays:
            raise RuntimeError(f"step {step}: no parameter has a gradient; record after backward(), before zero_grad()")
        self.directory.mkdir(parents=True, exist_ok=True)
        path = self.directory / f"{self.name}_step{step:04d}.npz"
        write_npz(path, arrays)
        add_to_manifest(self.manifest, self._entry(path, step, arrays, metrics))
        return path

    def _entry(self, path, step, arrays, metrics):
        return {
            "file": Path(os.path.relpath(path, self.manifest.parent)).as_posix(),
            "model": self.name,
            "step": step,
            "seed": self.seed,
            "parameters": sum(array.size for array in arrays.values()),
            "metrics": metrics,
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
            "torch": str(torch.__version__),
            "regenerate": self.regenerate,
            "tensors": [{"name": name, "shape": list(array.shape)} for name, array in arrays.items()],
        }


def gradients(module):
    """name -> float32 array, a copy of each parameter's .grad, in the order of named_parameters()."""
    arrays = {}
    for name, parameter in module.named_parameters():
        if parameter.grad is None:
            continue
        grad = parameter.grad.detach()
        if grad.layout != torch.strided:  # nn.Embedding(sparse=True)
            grad = grad.to_dense()
        # np.array and not ascontiguousarray: the latter turns a scalar into a vector.
        arrays[name] = np.array(grad.to("cpu", torch.float32).numpy(), dtype="<f4", order="C")
    return arrays


def add_to_manifest(path, entry):
    """Adds an entry to the json at `path`; one that names the same file is replaced."""
    path = Path(path)
    captures = json.loads(path.read_text("utf-8"))["captures"] if path.exists() else []
    captures = [old for old in captures if old["file"] != entry["file"]] + [entry]
    captures.sort(key=lambda capture: capture["file"])
    path.write_text(_manifest_text(captures), "utf-8", newline="\n")


def _manifest_text(captures):
    """Json with a line a field and a line a tensor, so that a diff can be read."""
    entries = []
    for capture in captures:
        fields = []
        for key, value in capture.items():
            text = json.dumps(value)
            if key == "tensors":
                text = "[\n" + ",\n".join(f"        {json.dumps(tensor)}" for tensor in value) + "\n      ]"
            fields.append(f"      {json.dumps(key)}: {text}")
        entries.append("    {\n" + ",\n".join(fields) + "\n    }")
    return '{\n  "captures": [\n' + ",\n".join(entries) + "\n  ]\n}\n"


# ---- ResNet-20 (He et al. 2016, section 4.2) -----------------------------------------------------


class Block(nn.Module):
    """Two 3x3 convolutions around a shortcut that has no parameters (option A of the paper)."""

    def __init__(self, channels_in, channels, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.stride = stride
        self.channels_new = channels - channels_in

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        shortcut = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.channels_new))
        return F.relu(y + shortcut)


class ResNet20(nn.Module):
    """The CIFAR network: images [n, 3, 32, 32] to logits [n, classes]; 269,722 parameters for 10 classes."""

    def __init__(self, classes=10):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = self._stage(16, 16, stride=1)
        self.layer2 = self._stage(16, 32, stride=2)
        self.layer3 = self._stage(32, 64, stride=2)
        self.linear = nn.Linear(64, classes)
        for module in self.modules():
            if isinstance(module, (nn.Conv2d, nn.Linear)):
                nn.init.kaiming_normal_(module.weight)

    @staticmethod
    def _stage(channels_in, channels, stride):
        return nn.Sequential(
            Block(channels_in, channels, stride), Block(channels, channels, 1), Block(channels, channels, 1)
        )

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.linear(x.mean(dim=(2, 3)))


# ---- the bundled recipe: ResNet-20 on scikit-learn's digits --------------------------------------

TEST_IMAGES = 360  # of 1,797
BATCH = 128
MAX_SHIFT = 4  # pixels, as in the paper's augmentation; digits are not mirrored


def load_digits(seed):
    """(train images, train labels, test images, test labels); images [n, 3, 32, 32], normalised.

    The split is random and stratified by class, so both sides hold digits by the same writers.
    """
    from sklearn import datasets, model_selection

    digits = datasets.load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    images = F.interpolate(images, size=(32, 32), mode="bilinear", align_corners=False).repeat(1, 3, 1, 1)
    labels = torch.tensor(digits.target)
    train, test = model_selection.train_test_split(
        np.arange(len(labels)), test_size=TEST_IMAGES, stratify=digits.target, random_state=seed
    )
    images = (images - images[train].mean()) / images[train].std()
    return images[train], labels[train], images[test], labels[test]


def shift_at_random(images):
    """Moves each image by up to MAX_SHIFT pixels in both directions, filling with its darkest value."""
    size = images.shape[-1]
    padded = F.pad(images, (MAX_SHIFT,) * 4, value=images.min().item())
    offsets = torch.randint(0, 2 * MAX_SHIFT + 1, (len(images), 2)).tolist()
    return torch.stack([image[:, y : y + size, x : x + size] for image, (y, x) in zip(padded, offsets)])


def shuffled_batches(images, labels):
    """Batches without end, shuffled anew each epoch; what does not fill a batch waits for another epoch."""
    while True:
        order = torch.randperm(len(labels))
        for start in range(0, len(labels) - BATCH + 1, BATCH):
            chosen = order[start : start + BATCH]
            yield shift_at_random(images[chosen]), labels[chosen]


@torch.no_grad()
def accuracy(model, images, labels):
    """Share of images classified rightly, with the running statistics of batch normalisation."""
    model.eval()
    right = sum((model(x).argmax(1) == y).sum().item() for x, y in zip(images.split(BATCH), labels.split(BATCH)))
    model.train()
    return round(right / len(labels), 4)


def train_resnet20_digits(out, steps, seed):
    """Trains, records the gradients of an early, the middle and the last step, and prints accuracies.

    A recorded gradient is that of the batch's mean loss: without weight decay, which SGD adds later.
    The accuracies beside it are those of the weights at which it was taken.
    """
    # Sums depend on the number of threads, so one thread is part of the recipe.
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(seed)

    train_images, train_labels, test_images, test_labels = load_digits(seed)
    model = ResNet20()
    assert sum(parameter.numel() for parameter in model.parameters()) == 269_722
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    # The paper's schedule: a tenth of the rate after half of the steps, and again after three quarters.
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [steps // 2, steps * 3 // 4], gamma=0.1)
    capture = Capture(
        model,
        steps=[min(10, steps), math.ceil(steps / 2), steps],
        directory=out,
        name="resnet20_digits",
        seed=seed,
        regenerate=f"python datasets/capture.py resnet20-digits --steps {steps} --seed {seed}",
        manifest=Path(out).parent / "manifest.json",
    )

    def accuracies():
        return {
            "train_accuracy": accuracy(model, train_images, train_labels),
            "test_accuracy": accuracy(model, test_images, test_labels),
        }

    for step, (images, labels) in zip(range(1, steps + 1), shuffled_batches(train_images, train_labels)):
        loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        if step in capture.steps:
            metrics = {"loss": round(loss.item(), 6), **accuracies()}
            print(f"step {step}: {metrics} -> {capture.record(step, **metrics)}", flush=True)
        optimizer.step()
        schedule.step()
    print(f"after {steps} steps: {accuracies()}")


# ---- the other recipes, each in a file of its own ------------------------------------------------


def train_by(module, recipe):
    """module.train(steps, seed, start), where start(model, name, steps) gives the Capture that records it."""

    def train(out, steps, seed):
        def start(model, name, recorded):
            return Capture(
                model,
                steps=recorded,
                directory=out,
                name=name,
                seed=seed,
                regenerate=f"python datasets/capture.py {recipe} --steps {steps} --seed {seed}",
                manifest=Path(out).parent / "manifest.json",
            )

        importlib.import_module(module).train(steps, seed, start)

    return train


RECIPES = {
    "resnet20-digits": (train_resnet20_digits, 300),
    "neumf-names": (train_by("recipe_ncf", "neumf-names"), 600),
    "lstm-docs": (train_by("recipe_lstm", "lstm-docs"), 1500),
}


def main():
    parser = argparse.ArgumentParser(description="Train a model and record its gradients.")
    parser.add_argument("recipe", choices=sorted(RECIPES))
    parser.add_argument("--out", default=HERE / "gradients", help="folder of the .npz files; the manifest lies above it")
    parser.add_argument("--steps", type=int, help="default: the bundled files'")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    train, steps = RECIPES[arguments.recipe]
    train(arguments.out, arguments.steps or steps, arguments.seed)


if __name__ == "__main__":
    main()
