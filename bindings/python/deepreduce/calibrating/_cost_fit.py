"""Fits costs as functions of size, as tool/calibrate/affine_fit.cpp does: cost(n) = max(floor, base + per_unit n)."""

from __future__ import annotations

from typing import NamedTuple, Sequence, Tuple

import numpy

Samples = Sequence[Tuple[float, float]]


class Affine(NamedTuple):
    """A fitted cost, in the unit of the samples' values; per_unit: per unit of size. r2: of relative errors."""

    floor: float
    base: float
    per_unit: float
    r2: float = 0.0

    def at(self, size: float) -> float:
        return max(self.floor, self.base + self.per_unit * size)


def fit_affine(samples: Samples) -> Affine:
    """Fits by least squares of relative errors.

    The floor is the cost of the k smallest sizes, and a line is fitted to the others. Every k is tried, and the fit with the
    smallest error is returned. Disturbances only make a measurement longer, so a size that costs more than a larger size is
    lowered to the larger size's cost.

    samples  (size, value), sizes ascending, values above 0, at least one
    """
    measured, samples = samples, list(samples)
    for i in range(len(samples) - 2, -1, -1):
        samples[i] = (samples[i][0], min(samples[i][1], samples[i + 1][1]))
    size, value = samples[0]
    if samples[-1][0] == size > 0:  # one size: in proportion
        return Affine(value, 0, value / size, 1.0)
    best, smallest = Affine(0, 0, 0), float("inf")
    for flat in range(max(len(samples) - 2, 1)):  # a line needs three samples: it fits two exactly
        _, base, per_unit, _ = _line(samples[flat:])
        floor = _constant(samples[:flat]) if flat else base if base > 0 else samples[0][1]
        fit = Affine(floor, base, per_unit)
        error = _error(samples, fit)
        if error < smallest:
            best, smallest = fit, error
    constant = _constant(measured)
    spread = _error(measured, Affine(constant, constant, 0))
    return best._replace(r2=1 - _error(measured, best) / spread if spread > 0 else 1.0)


def _constant(samples: Samples) -> float:
    values = numpy.array([value for _, value in samples])
    return float((1 / values).sum() / (1 / values**2).sum())


def _line(samples: Samples) -> Affine:
    n, y = numpy.array(samples, dtype=float).T
    weight = 1 / y**2
    w, wn, wnn = weight.sum(), (weight * n).sum(), (weight * n * n).sum()
    wy, wny = (weight * y).sum(), (weight * n * y).sum()
    determinant = w * wnn - wn * wn
    slope = float((w * wny - wn * wy) / determinant) if determinant > 1e-12 * w * wnn else 0.0
    if slope <= 0:
        return Affine(0, _constant(samples), 0)
    return Affine(0, float((wy - slope * wn) / w), slope)


def _error(samples: Samples, fit: Affine) -> float:
    return sum((fit.at(size) / value - 1) ** 2 for size, value in samples)
