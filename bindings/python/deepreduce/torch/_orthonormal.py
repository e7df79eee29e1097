"""deepreduce.torch: orthonormal rows, on a GPU without a wait."""

from __future__ import annotations

from typing import List

import torch


def orthonormalise(matrices: List[torch.Tensor]) -> List[torch.Tensor]:
    """For each batch [n, r, d] of matrices, r <= d: their rows made orthonormal, as lib/transform/orthonormal.cpp makes columns. The span of
    the new rows includes that of the old ones; a row that depends on those before it becomes a unit vector.

    Matrices of about one length are one batch, padded by zeros, which no reflection changes: a step of the loop is a few kernels,
    however many matrices there are. (torch.linalg.qr calls cuSOLVER for each matrix.) In f64, where no square of an f32 overflows.
    """
    classes: dict[int, List[int]] = {}
    for i, batch in enumerate(matrices):
        classes.setdefault(batch.shape[2].bit_length() // 2, []).append(i)
    found = list(matrices)
    for members in classes.values():
        longest = max(matrices[i].shape[2] for i in members)
        counts = [matrices[i].shape[0] for i in members]
        wide = matrices[members[0]].new_zeros(sum(counts), matrices[members[0]].shape[1], longest, dtype=torch.float64)
        parts = wide.split(counts)
        for i, part in zip(members, parts):
            part[:, :, : matrices[i].shape[2]].copy_(matrices[i])
        for i, part in zip(members, reflected(wide).split(counts)):
            found[i] = part[:, :, : matrices[i].shape[2]].to(matrices[i].dtype)
    return found


def reflected(rows: torch.Tensor) -> torch.Tensor:
    """[n, r, d]: the first r rows of the orthogonal matrix of a QR decomposition of each matrix's columns, by Householder reflections
    (Golub and Van Loan, 5.2). `rows` becomes the reflections' vectors."""
    scales = []
    for k in range(rows.shape[1]):
        vector = rows[:, k, k:]
        norm, first = torch.linalg.vector_norm(vector, dim=1), vector[:, 0]
        # (A row of zeros is not reflected.)
        scale = torch.where(norm > 0, -1 / (norm * (norm + first.abs())), 0)[:, None, None]
        first.add_(torch.copysign(norm, first))
        scales.append(scale)
        _reflect(rows[:, k + 1 :, k:], vector, scale)
    made = torch.zeros_like(rows)
    made.diagonal(dim1=1, dim2=2).fill_(1)
    for k in reversed(range(rows.shape[1])):
        _reflect(made[:, k:, k:], rows[:, k, k:], scales[k])
    return made


def _reflect(rows: torch.Tensor, vector: torch.Tensor, scale: torch.Tensor) -> None:
    """Adds to each row scale * (row · vector) * vector."""
    if rows.shape[1]:
        rows.baddbmm_(torch.bmm(rows, vector[:, :, None]) * scale, vector[:, None, :])
