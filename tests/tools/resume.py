#!/usr/bin/env python3
"""Kills a calibration with SIGKILL at random moments, resumes it, and compares every byte with an uninterrupted run.

    python resume.py BIN MODEL.gguf [KILLS] [TOKENS]

Exits with 77 (skipped) when the model is not here.
"""
import filecmp
import os
import random
import subprocess
import sys
import tempfile
import time


def same(a, b):
    names = sorted(os.listdir(a))
    if names != sorted(os.listdir(b)):
        print(f"{names} and {sorted(os.listdir(b))}")
        return False
    _, different, errors = filecmp.cmpfiles(a, b, names, shallow=False)
    print(f"{len(names)} files, different: {different + errors}")
    return not different and not errors


def main(binaries, model, kills="3", tokens="1024"):
    if not os.path.exists(model):
        print(f"skipped: {model} is not here")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as folder:
        command = [f"{binaries}/oscar-calibrate", model, "--tokens", tokens, "--sequence-length", "512", "--device", "cpu",
                   "--progress", "none", "--state-interval", "0.2"]
        start = time.monotonic()
        subprocess.run([*command, "--output", f"{folder}/whole"], check=True, stdout=subprocess.DEVNULL)
        whole = time.monotonic() - start
        subprocess.run([*command, "--output", f"{folder}/twice"], check=True, stdout=subprocess.DEVNULL)
        good = same(f"{folder}/whole", f"{folder}/twice")
        rng, killed = random.Random(4), 0
        while killed < int(kills):
            process = subprocess.Popen([*command, "--output", f"{folder}/killed", "--resume"], stdout=subprocess.DEVNULL)
            try:
                process.wait(timeout=rng.uniform(0.05, 0.6) * whole)
                good = same(f"{folder}/whole", f"{folder}/killed") and good
                subprocess.run(["rm", "-r", f"{folder}/killed"], check=True)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                killed += 1
        subprocess.run([*command, "--output", f"{folder}/killed", "--resume"], check=True, stdout=subprocess.DEVNULL)
        good = same(f"{folder}/whole", f"{folder}/killed") and good
        other = subprocess.run([*command, "--output", f"{folder}/killed", "--resume"], capture_output=True, text=True)
        print("resuming a finished run:", other.returncode, other.stderr.strip())
        good = good and other.returncode == 2
        print(f"{killed} kills, uninterrupted run {whole:.1f} s, {'equal' if good else 'DIFFERENT'}")
        sys.exit(0 if good else 1)


if __name__ == "__main__":
    main(*sys.argv[1:])
