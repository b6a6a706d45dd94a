#!/usr/bin/env python3
"""Wrong input to the programs: each case must end with exit code 2, a message that names what is wrong, and nothing
written. Runs on the tiny checkpoint of tests/fixtures.

    python bad_input.py BIN FIXTURES
"""
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

FAILURES = []


def make_model(folder, fixtures):
    """The tiny Llama with the small tokenizer; its vocabulary is enlarged to fit."""
    model = Path(folder)
    shutil.copytree(f"{fixtures}/checkpoint/tiny-llama", model)
    shutil.copy(f"{fixtures}/text/tokenizer.json", model)
    for name in model.glob("*.safetensors*"):
        name.unlink()
    vocabulary, tensors = 400, {}
    source = f"{fixtures}/checkpoint/tiny-llama"
    for shard in sorted(Path(source).glob("*.safetensors")):
        data = shard.read_bytes()
        size = struct.unpack("<Q", data[:8])[0]
        for name, entry in json.loads(data[8:8 + size]).items():
            if name != "__metadata__":
                a, b = entry["data_offsets"]
                tensors[name] = (entry["shape"], data[8 + size + a:8 + size + b])
    shape, values = tensors["model.embed_tokens.weight"]
    repeats = -(-vocabulary // shape[0])
    tensors["model.embed_tokens.weight"] = ([vocabulary, shape[1]], (values * repeats)[:vocabulary * shape[1] * 4])
    header, body = {}, b""
    for name, (shape, values) in tensors.items():
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(body), len(body) + len(values)]}
        body += values
    text = json.dumps(header).encode()
    (model / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + body)
    config = json.loads((model / "config.json").read_text())
    config["vocab_size"] = vocabulary
    (model / "config.json").write_text(json.dumps(config))
    return model


class Workplace:
    def __init__(self, binaries, fixtures, folder):
        self.binaries, self.folder = binaries, Path(folder)
        self.model = make_model(self.folder / "model", fixtures)
        self.text = self.folder / "text.txt"
        self.text.write_text("The cache keeps what attention has read. " * 60)

    def run(self, program, *arguments):
        return subprocess.run([f"{self.binaries}/{program}", *map(str, arguments)], capture_output=True, text=True,
                              stdin=subprocess.DEVNULL)

    def refuses(self, what, message, program, *arguments, output=None, code=2):
        result = self.run(program, *arguments)
        good = result.returncode == code and message in result.stderr and (output is None or not Path(output).exists())
        print(f"{'ok  ' if good else 'FAIL'} {what}: {result.stderr.strip().splitlines()[-1] if result.stderr.strip() else '(no message)'}")
        if not good:
            FAILURES.append(what)
            print(f"     exit code {result.returncode}, output exists: {output is not None and Path(output).exists()}")

    def calibrate(self, what, message, *more, model=None, prompts=None, code=2):
        output = self.folder / "refused"
        self.refuses(what, message, "oscar-calibrate", model or self.model, "--output", output, "--prompts", prompts or self.text,
                     "--tokens", "64", "--sequence-length", "32", "--device", "cpu", "--progress", "none", *more, output=output, code=code)

    def spoiled(self, spoil):
        """A copy of the model, spoiled."""
        copy = self.folder / "spoiled"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(self.model, copy)
        spoil(copy)
        return copy

    def file(self, name, content):
        path = self.folder / name
        path.write_bytes(content)
        return path


def truncate(model):
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])


def set_config(**fields):
    def spoil(model):
        config = json.loads((model / "config.json").read_text()) | fields
        (model / "config.json").write_text(json.dumps(config))
    return spoil


def put_nan(model):
    weights = model / "model.safetensors"
    data = bytearray(weights.read_bytes())
    size = struct.unpack("<Q", data[:8])[0]
    at = json.loads(data[8:8 + size])["model.layers.1.self_attn.k_proj.weight"]["data_offsets"][0]
    data[8 + size + at:8 + size + at + 4] = struct.pack("<f", float("nan"))
    weights.write_bytes(data)


def rotations(work):
    good = work.folder / "good"
    made = work.run("oscar-calibrate", work.model, "--output", good, "--prompts", work.text, "--tokens", "640",
                    "--sequence-length", "128", "--device", "cpu", "--progress", "none")
    if made.returncode != 0:
        print(made.stderr)
        FAILURES.append("a good run")
        return
    validate = ["--prompts", work.text, "--tokens", "256", "--sequence-length", "128", "--sink", "8", "--recent", "16",
                "--device", "cpu", "--progress", "none"]

    def pair(name, spoil, both=False):
        import torch
        copy = work.folder / name
        shutil.copytree(good, copy)
        (copy / "manifest.json").unlink()
        for path in list(copy.glob("k_rotation*.pt")) + (list(copy.glob("v_rotation*.pt")) if both else []):
            content = torch.load(path, weights_only=True)
            spoil(content)
            torch.save(content, path)
        return copy

    checked = work.run("oscar-validate", work.model, good, *validate)
    if checked.returncode != 0:
        print(checked.stderr)
        FAILURES.append("a good validation")
    work.refuses("output folder that exists", "exists already", "oscar-calibrate", work.model, "--output", good, "--device", "cpu")
    copy = work.folder / "changed"
    shutil.copytree(good, copy)
    with open(next(copy.glob("v_rotation*.pt")), "ab") as file:
        file.write(b"x")
    work.refuses("a file that differs from the manifest", "differs from what the manifest", "oscar-validate", work.model, copy, *validate)
    try:
        import torch  # noqa: F401
    except ImportError:
        print("skipped: spoiled rotation files need torch")
        return
    half = pair("half", lambda c: c["layers"].pop(1))
    work.refuses("a hole in one file's layers", "not a pair", "oscar-validate", work.model, half, *validate)
    hole = pair("hole", lambda c: c["layers"].pop(1), both=True)
    work.refuses("a hole in the layers", "no rotation for layer 1", "oscar-validate", work.model, hole, *validate)
    skew = pair("skew", lambda c: c["layers"][0]["rotation"].mul_(1.1))
    work.refuses("a non-orthogonal matrix", "not orthogonal", "oscar-validate", work.model, skew, *validate)
    other = pair("other", lambda c: c["calibration"].update(model_fingerprint="xxh3:0"))
    work.refuses("a pair for another model", "another model", "oscar-validate", work.model, other, *validate)
    wide = pair("wide", lambda c: [entry.update(rotation=torch.eye(16), eigenvalues=torch.ones(16)) for entry in c["layers"].values()])
    work.refuses("a pair of another head dimension", "head dimension is 8", "oscar-validate", work.model, wide, *validate)
    work.refuses("sequences inside the windows", "nothing would be quantised", "oscar-validate", work.model, good, "--prompts",
                 work.text, "--tokens", "64", "--sequence-length", "64", "--device", "cpu")
    work.refuses("limits that are not kept", "", "oscar-validate", work.model, good, *validate, "--max-kld", "-1", code=3)
    work.refuses("publishing without a manifest", "no manifest.json", "oscar-export", other, work.folder / "zoo",
                 output=work.folder / "zoo")


def write_patch(path, name, count):
    values = struct.pack(f"<{count}f", *([1.25] * count))
    header = json.dumps({name: {"dtype": "F32", "shape": [count], "data_offsets": [0, len(values)]}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + values)
    return path


def patches(work):
    """A patch goes along with what was made with it, and nothing is made without it."""
    other = write_patch(work.folder / "other.safetensors", "model.layers.9.input_layernorm.weight", 32)
    work.calibrate("a patch for another model", "is not one of the decoder layers", "--patch", other)
    work.calibrate("no such patch", "absent.safetensors", "--patch", work.folder / "absent.safetensors")
    patch = write_patch(work.folder / "patch.safetensors", "model.layers.1.input_layernorm.weight", 32)
    made, fitted = work.folder / "patched", work.folder / "fitted"
    common = ["--device", "cpu", "--progress", "none"]
    text = ["--prompts", work.text, "--tokens", "640", "--sequence-length", "128", *common]
    windows = ["--sink", "8", "--recent", "16"]
    report = work.folder / "patched.json"
    for command in (["oscar-calibrate", work.model, "--patch", patch, "--output", made, *text],
                    ["oscar-calibrate", "fit", made / "statistics.h5", "--output", fitted, "--device", "cpu"],
                    ["oscar-validate", work.model, fitted, *text, *windows, "--json", report],
                    ["oscar-export", made, work.folder / "patched-zoo"]):
        result = work.run(*command)
        if result.returncode != 0:
            print(result.stderr)
            FAILURES.append(f"a patch through {command[0]}")
            return
    scored = json.loads(report.read_text())["candidates"]
    listed = [entry["name"] for entry in json.loads((fitted / "manifest.json").read_text())["files"]]
    published = list((work.folder / "patched-zoo").rglob("checkpoint_patch.safetensors"))
    if not (scored["fitted"]["checkpoint_patch"]["kld_mean"] > 0 and "checkpoint_patch" not in scored["hadamard"]
            and "checkpoint_patch.safetensors" in listed and len(published) == 1
            and published[0].read_bytes() == patch.read_bytes()):
        FAILURES.append("a patch goes along")
    alone = work.folder / "alone"
    alone.mkdir()
    shutil.copy(made / "statistics.h5", alone)
    refused = work.folder / "refused"
    work.refuses("statistics without their patch", "put the patch there", "oscar-calibrate", "fit", alone / "statistics.h5",
                 "--output", refused, "--device", "cpu", output=refused)
    shutil.copy(other, alone / "checkpoint_patch.safetensors")
    work.refuses("statistics beside another patch", "is another", "oscar-calibrate", "fit", alone / "statistics.h5",
                 "--output", refused, "--device", "cpu", output=refused)
    work.refuses("a model without key biases", "has no key biases", "oscar-calibrate", "key-bias", work.model, "--statistics",
                 made / "statistics.h5", "--context", "64", "--output", refused, output=refused)


def full_disk(work):
    mount = work.folder / "small"
    mount.mkdir()
    if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", mount], capture_output=True).returncode:
        print("skipped: a small tmpfs could not be mounted")
        return
    try:
        output = mount / "out"
        work.refuses("disk full", "free", "oscar-calibrate", work.model, "--output", output, "--prompts", work.text, "--tokens",
                     "640", "--sequence-length", "128", "--device", "cpu", "--progress", "none", output=output)
    finally:
        subprocess.run(["umount", mount], check=True)


def main(binaries, fixtures):
    with tempfile.TemporaryDirectory() as folder:
        work = Workplace(binaries, fixtures, folder)
        work.calibrate("missing weights", "model.safetensors", model=work.spoiled(lambda m: (m / "model.safetensors").unlink()))
        work.calibrate("truncated weights", "incomplete download", model=work.spoiled(truncate))
        work.calibrate("wrong head count", "_proj.weight has the shape", model=work.spoiled(set_config(num_attention_heads=8)))
        work.calibrate("unknown architecture", "model_type \"mamba\"", model=work.spoiled(set_config(model_type="mamba")))
        work.calibrate("NaN in a weight", "layer 1: the weight model.layers.1.self_attn.k_proj.weight", model=work.spoiled(put_nan))
        work.calibrate("no such model", "does not exist", model=work.folder / "absent")
        work.calibrate("empty prompt file", "the file is empty", prompts=work.file("empty.txt", b""))
        work.calibrate("invalid UTF-8", "not valid UTF-8", prompts=work.file("latin.txt", b"caf\xe9"))
        work.calibrate("invalid JSON", "bad.jsonl, line 2", prompts=work.file("bad.jsonl", b'{"text": "a"}\n{"text": \n'))
        work.calibrate("too little text", "but --tokens 64", prompts=work.file("short.txt", b"too short"))
        work.calibrate("unknown objective", "nonsense", "--objective", "nonsense")
        work.refuses("unknown device", "device \"tpu\"", "oscar-calibrate", work.model, "--output", work.folder / "refused",
                     "--device", "tpu", output=work.folder / "refused")
        work.calibrate("unknown option", "--frobnicate", "--frobnicate")
        work.calibrate("a layer that is not there", "the model has layers 0 to 1", "--layers", "7")
        work.calibrate("groups that nothing chooses from", "--groups needs --objective auto", "--groups", "8,16")
        work.calibrate("auto told what to choose", "are what --objective auto chooses", "--objective", "auto", "--composition", "r_h")
        work.calibrate("too little text to choose on", "--held-out-tokens 4096 were asked for", "--objective", "auto")
        work.refuses("auto without a model", "so it needs MODEL", "oscar-calibrate", "fit", work.folder / "absent.h5", "--objective",
                     "auto", "--output", work.folder / "refused", output=work.folder / "refused")
        rotations(work)
        patches(work)
        full_disk(work)
    print(f"{len(FAILURES)} failed: {FAILURES}" if FAILURES else "all refused as they should be")
    sys.exit(1 if FAILURES else 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
