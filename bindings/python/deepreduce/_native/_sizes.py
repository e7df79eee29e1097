"""Numbers of things and bytes in words, for reprs."""

from __future__ import annotations


def bytes_text(size: float) -> str:
    """512 bytes, 12.3 kB, 4.19 MB."""
    for unit in ("bytes", "kB", "MB"):
        if size < 1000:
            break
        size, unit = size / 1000, "GB"
    return f"{size:.4g} {unit}"


def count_text(number: int, what: str) -> str:
    """1 tensor, 7 tensors, 330,260 rows."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def dtype_text(name: str) -> str:
    """f32 of float32 or torch.float32; other names as they are."""
    short = name.rpartition(".")[2]
    return {"float32": "f32", "float16": "f16", "bfloat16": "bf16", "float64": "f64"}.get(short, short)
