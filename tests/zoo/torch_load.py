#!/usr/bin/env python3
"""Asks torch whether files that oscar rewrote hold the same tensors: torch_load.py REWRITE_TOOL SHARED FIXTURES

REWRITE_TOOL IN OUT loads a rotation file and saves it again. Exits with 77 (skipped) without torch.
"""
import subprocess
import sys
import tempfile
from pathlib import Path

try:
    import torch
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)


def same(a, b):
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    return a == b


def general_file(path):
    """A key file of format v3, with everything that it may hold."""
    torch.manual_seed(1)
    layers = {i: {"layer_id": i, "rotation": torch.randn(2, 8, 8), "eigenvalues": torch.rand(2, 8),
                  "q_rotation": torch.randn(2, 8, 8), "k_mean": torch.randn(2, 8)} for i in range(3)}
    torch.save({"format_version": 3, "source_grouping": "head",
                "transform": {"key": "stretch", "centered": True, "orthogonal": False}, "layers": layers}, path)
    return path


def main(tool, shared, fixtures):
    files = sorted(Path(shared, "data/rotations").glob("*/*.pt")) + [Path(fixtures, "zoo/v1.pt")]
    bad = 0
    with tempfile.TemporaryDirectory() as folder:
        files.append(general_file(Path(folder) / "general.pt"))
        for file in files:
            out = Path(folder) / "again.pt"
            subprocess.run([tool, file, out], check=True)
            equal = same(torch.load(file, map_location="cpu", weights_only=True),
                         torch.load(out, map_location="cpu", weights_only=True))
            print("ok  " if equal else "FAIL", file)
            bad += not equal
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
