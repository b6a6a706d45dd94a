#!/usr/bin/env python3
"""The programs against known answers for SmolLM2-135M-Instruct that transformers computed.

    python golden.py BIN MODEL.gguf SHARED statistics|validation [DEVICE]

statistics: every dataset of golden/smollm2_statistics.h5 within 1e-4 relative Frobenius error, on the same tokens.
validation: golden/smollm2_validation.json: perplexity of the reference within 1e-4, local errors within 1 %, perplexity
and KL divergence of every case within 2 %. Exits with 77 (skipped) when something is not here.
"""
import json
import os
import subprocess
import sys
import tempfile


def run(*command):
    print("+", " ".join(command))
    subprocess.run(command, check=True)


def statistics(binaries, model, shared, device, folder):
    try:
        import h5py
        import numpy as np
    except ImportError as error:
        print(f"skipped: {error}")
        sys.exit(77)
    text = f"{shared}/data/text/wikitext2_valid.txt"
    run(f"{binaries}/oscar-calibrate", model, "--output", f"{folder}/out", "--prompts", text, "--precision", "fp32",
        "--chat-template", "none", "--sequence-length", "1024", "--tokens", "2048", "--device", device, "--progress", "none")
    worst = 0.0
    with h5py.File(f"{shared}/golden/smollm2_statistics.h5") as golden, h5py.File(f"{folder}/out/statistics.h5") as ours:
        for layer in golden["layers"]:
            for name, expected in golden["layers"][layer].items():
                expected, found = expected[()], ours["layers"][layer][name][()]
                error = np.linalg.norm(found - expected) / np.linalg.norm(expected)
                worst = max(worst, error)
                if not error <= 1e-4:
                    print(f"layer {layer} {name}: relative error {error:.3g}")
    print(f"largest relative Frobenius error {worst:.3g}")
    return worst <= 1e-4


def validation(binaries, model, shared, device, folder):
    golden = json.load(open(f"{shared}/golden/smollm2_validation.json"))
    good = True

    def close(what, found, expected, tolerance):
        nonlocal good
        if not abs(found - expected) <= tolerance * abs(expected):
            good = False
            print(f"{what}: {found:.6g}, expected {expected:.6g}")
        return abs(found - expected) / abs(expected)

    for k_clip, v_clip in ((0.0, 0.0), (0.96, 0.92)):
        run(f"{binaries}/oscar-validate", model, "--prompts", f"{shared}/data/text/wikitext2_test.txt", "--precision", "fp32",
            "--chat-template", "none", "--sequence-length", "1024", "--tokens", "2048", "--k-clip", str(k_clip), "--v-clip",
            str(v_clip), "--device", device, "--progress", "none", "--json", f"{folder}/report.json")
        report = json.load(open(f"{folder}/report.json"))
        print("reference perplexity off by", close("reference perplexity", report["ppl_reference"], golden["ppl_reference"], 1e-4))
        for name in ("identity", "hadamard"):
            case, found = golden["cases"][f"{name}_{k_clip}_{v_clip}"], report["candidates"][name]
            label = f"{name} {k_clip}/{v_clip}"
            ppl = close(f"{label} perplexity", found["ppl"], case["ppl"], 0.02)
            kld = close(f"{label} KL divergence", found["kld_mean"], case["kld_mean"], 0.02)
            local = max(close(f"{label} layer {a['layer']} {key}", b[key], a[key], 0.01)
                        for a, b in zip(case["layers"], found["layers"], strict=True)
                        for key in ("output_relative_error", "logit_rmse"))
            print(f"{label}: perplexity off by {ppl:.2%}, KL divergence by {kld:.2%}, local errors by at most {local:.3%}")
    return good


def main(binaries, model, shared, what, device="cpu"):
    for path in (model, f"{shared}/golden", f"{shared}/data"):
        if not os.path.exists(path):
            print(f"skipped: {path} is not here")
            sys.exit(77)
    with tempfile.TemporaryDirectory() as folder:
        sys.exit(0 if {"statistics": statistics, "validation": validation}[what](binaries, model, shared, device, folder) else 1)


if __name__ == "__main__":
    main(*sys.argv[1:])
