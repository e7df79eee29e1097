"""Models that others published, as model files (docs/model.schema.json): their shapes, and a step's time at a rate that was published.

A layer's part of backward is its share of the multiplications of a sample; backward takes twice as long as forward, the rest nothing.
"""

from typing import Any, Dict, List, Optional, Sequence, Tuple

Layer = Tuple[str, List[Sequence[int]], float]  # name, shapes of its tensors, multiplications of a sample


def convolution(name: str, inputs: int, outputs: int, kernel: int, side: int, *others: Sequence[int]) -> Layer:
    """side: pixels of the output's side. others: shapes of its bias, or of the norm behind it."""
    return name, [(outputs, inputs, kernel, kernel), *others], float(outputs * inputs * kernel * kernel * side * side)


def dense(name: str, inputs: int, outputs: int, rows: int = 1) -> Layer:
    return name, [(outputs, inputs), (outputs,)], float(inputs * outputs * rows)


def resnet50() -> List[Layer]:
    """He et al. 2016, as torchvision has it: 161 tensors, images of 224 × 224."""
    normed = lambda name, inputs, outputs, kernel, side: convolution(name, inputs, outputs, kernel, side, (outputs,), (outputs,))
    layers, inputs = [normed("stem", 3, 64, 7, 112)], 64
    for stage, (blocks, width, side) in enumerate(((3, 64, 56), (4, 128, 28), (6, 256, 14), (3, 512, 7))):
        for block in range(blocks):
            name = f"{stage}.{block}"
            first_side = side * 2 if stage and not block else side  # the 3 × 3 has the stride
            layers.append(normed(f"{name}.1", inputs, width, 1, first_side))
            layers.append(normed(f"{name}.2", width, width, 3, side))
            layers.append(normed(f"{name}.3", width, 4 * width, 1, side))
            if not block:
                layers.append(normed(f"{name}.skip", inputs, 4 * width, 1, side))
            inputs = 4 * width
    return [*layers, dense("fc", 2048, 1000)]


def vgg19() -> List[Layer]:
    """Simonyan and Zisserman 2015: 38 tensors, images of 224 × 224."""
    layers, inputs = [], 3
    for stage, (count, width) in enumerate(((2, 64), (2, 128), (4, 256), (4, 512), (4, 512))):
        for number in range(count):
            layers.append(convolution(f"{stage}.{number}", inputs, width, 3, 224 >> stage, (width,)))
            inputs = width
    return [*layers, dense("fc1", 512 * 7 * 7, 4096), dense("fc2", 4096, 4096), dense("fc3", 4096, 1000)]


def bert_base(tokens: int = 128) -> List[Layer]:
    """Devlin et al. 2019, with the heads of pre-training; the decoder's weights are the embedding's, whose gradient is ready last."""
    width, words = 768, 30522
    norm: Layer = ("norm", [(width,), (width,)], 0.0)
    layers: List[Layer] = [("embedding", [(words, width), (512, width), (2, width)], 0.0), norm]
    for block in range(12):
        layers += [dense(f"{block}.{name}", width, width, tokens) for name in ("query", "key", "value", "out")]
        layers += [norm, dense(f"{block}.up", width, 4 * width, tokens), dense(f"{block}.down", 4 * width, width, tokens), norm]
    decoder: Layer = ("decoder", [(words,)], float(words * width * tokens))
    return [*layers, dense("pooler", width, width), dense("head", width, width, tokens), norm, decoder, dense("next", width, 2)]


def neumf() -> List[Layer]:
    """He et al. 2017 on ML-20m, with 64 factors and layers of 256, 256, 128 and 64, as in MLPerf: 138,493 users, 26,744 items. Embeddings, 99.7 % of all, multiply nothing and are ready last."""
    users, items = 138_493, 26_744
    embeddings: Layer = ("embedding", [(count, width) for width in (64, 128) for count in (users, items)], 0.0)
    return [embeddings, dense("mlp.0", 256, 256), dense("mlp.1", 256, 128), dense("mlp.2", 128, 64), dense("predict", 128, 1)]


def model_file(name: str, layers: Sequence[Layer], step_ns: float, batch: Optional[int]) -> Dict[str, Any]:
    forward, whole = step_ns / 3, sum(work for _, _, work in layers)
    tensors: List[Dict[str, Any]] = []
    done = 0.0
    for layer, shapes, work in reversed(layers):
        done += work
        for number, shape in reversed(list(enumerate(shapes))):
            elements = 1
            for side in shape:
                elements *= side
            ready = round(2 * forward * done / whole)
            tensors.append({"name": f"{layer}.{number}", "elements": elements, "shape": list(shape), "dtype": "f32", "ready_ns": ready})
    for number, tensor in enumerate(reversed(tensors)):
        tensor["name"] = f"{number}.{tensor['name']}"  # norms share a name
    return {
        "schema": "deepreduce-model-1",
        "name": name,
        "date": "2000-01-01T00:00:00Z",
        "machine": {"cpu": None, "cores": 1, "os": "published"},
        "ranks": 1,
        "batch": batch,
        "forward_ns": round(forward),
        "backward_ns": round(2 * forward),
        "rest_ns": 0,
        "tensors": tensors[::-1],
    }
