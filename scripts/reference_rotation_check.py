#!/usr/bin/env python3
"""Compares rotation files of the released OSCAR code with ours, layer by layer.

    reference_rotation_check.py REFERENCE.pt OURS.pt [--tolerance 1e-3]

Both are v1 files (one matrix a layer) of one objective and composition, fitted on the same queries, keys and
values. The sign of an eigenvector is arbitrary, and a sign changes more than a column once the Hadamard
matrix follows, so the eigenvectors U are recovered from both rotations and compared column by column up to
sign. Where neighbouring eigenvalues are closer than 1e-3 (relative), only the subspace that their
eigenvectors span is determined: then the subspaces are compared, by the largest entry of what one lacks of
the other. Prints a line a layer and the largest difference; exit code 1 above the tolerance.
"""

import argparse
import sys

import torch

FACTORS = {"plain": "U", "pbr": "P", "br": "UP", "br_h128": "UPH", "r_h": "UH", "h_pbr": "HP", "h_r_pbr": "HUP",
           "h_pbr_r": "HPU", "r_h_pbr": "UHP"}
CLOSE = 1e-3


def hadamard(size):
    """Sylvester's, orthonormal; other sizes than powers of two are blocks of their binary parts."""
    blocks, rest = [], size
    while rest:
        part = 1 << (rest.bit_length() - 1)
        block = torch.ones(1, 1, dtype=torch.float64)
        while block.shape[0] < part:
            block = torch.kron(torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64), block)
        blocks.append(block / part**0.5)
        rest -= part
    return torch.block_diag(*blocks)


def bit_reversal(eigenvalues):
    size = len(eigenvalues)
    bits = (size - 1).bit_length()
    places = [int(f"{i:0{bits}b}"[::-1], 2) if bits else 0 for i in range(1 << bits)]
    places = [place for place in places if place < size]
    ranked = torch.argsort(eigenvalues, descending=True, stable=True)
    matrix = torch.zeros(size, size, dtype=torch.float64)
    matrix[ranked, torch.tensor(places)] = 1
    return matrix


def eigenvectors(rotation, eigenvalues, factors):
    """U from a product of U with H and P on either side."""
    fixed = {"H": hadamard(len(eigenvalues)), "P": bit_reversal(eigenvalues)}
    left, right = factors.split("U")
    for factor in left:
        rotation = fixed[factor].T @ rotation
    for factor in reversed(right):
        rotation = rotation @ fixed[factor].T
    return rotation


def clusters(eigenvalues):
    """Runs of neighbouring columns whose eigenvalues cannot be told apart."""
    run = [0]
    for i in range(1, len(eigenvalues)):
        if (eigenvalues[i] - eigenvalues[i - 1]).abs() > CLOSE * eigenvalues[i].abs():
            yield run
            run = []
        run.append(i)
    yield run


def difference(theirs, ours, columns):
    a, b = theirs[:, columns], ours[:, columns]
    if len(columns) > 1:
        return (b - a @ (a.T @ b)).abs().max().item()
    return min((a - b).abs().max().item(), (a + b).abs().max().item())


def load(path):
    file = torch.load(path, map_location="cpu", weights_only=True)
    return file["objective"], {int(key): entry for key, entry in file["layers"].items()}


def composition_of(objective):
    for name in sorted(FACTORS, key=len, reverse=True):
        if objective.endswith("_" + name):
            return name
    sys.exit(f"the objective {objective!r} names no composition; there is nothing to compare up to sign")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reference")
    parser.add_argument("ours")
    parser.add_argument("--tolerance", type=float, default=1e-3, help="largest difference allowed (default 1e-3)")
    options = parser.parse_args()
    reference_objective, reference = load(options.reference)
    our_objective, ours = load(options.ours)
    if reference_objective != our_objective:
        sys.exit(f"different objectives: {reference_objective!r} and {our_objective!r}")
    if reference.keys() != ours.keys():
        sys.exit(f"different layers: {sorted(reference)} and {sorted(ours)}")
    factors = FACTORS[composition_of(our_objective)]
    worst = 0.0
    for layer in sorted(ours):
        a, b = reference[layer], ours[layer]
        if a["rotation"].shape != b["rotation"].shape or a["rotation"].ndim != 2:
            sys.exit(f"layer {layer}: shapes {tuple(a['rotation'].shape)} and {tuple(b['rotation'].shape)}")
        values = [entry["eigenvalues"].double() for entry in (a, b)]
        spread = ((values[0] - values[1]).abs() / values[0].abs().max()).max().item()
        if "U" in factors:
            theirs, mine = (eigenvectors(e["rotation"].double(), v, factors) for e, v in zip((a, b), values))
            groups = list(clusters(values[0]))
            found = max(difference(theirs, mine, columns) for columns in groups)
            grouped = sum(len(columns) for columns in groups if len(columns) > 1)
        else:
            found, grouped = (a["rotation"] - b["rotation"]).abs().max().item(), 0
        worst = max(worst, found)
        print(f"layer {layer:3d}: columns differ by {found:.2e}, eigenvalues by {spread:.2e} of the largest"
              + (f" ({grouped} columns compared as subspaces)" if grouped else ""))
    print(f"largest difference {worst:.2e}, allowed {options.tolerance:.0e}")
    sys.exit(worst > options.tolerance)


if __name__ == "__main__":
    main()
