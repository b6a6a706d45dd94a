#!/usr/bin/env python3
"""Compares oscar's tokenizer and chat templates with Hugging Face's, document by document.

    python parity.py ENCODE_TOOL SHARED_DATA [SMOLLM2.gguf]

Every text of SHARED_DATA/text, whole, and 10,000 random Unicode strings, with the Qwen3 tokenizer and, when the
GGUF file is given, with SmolLM2's vocabulary; and conversations through their chat templates. Exits with 77
(skipped) when the packages or the data are not here.
"""
import json
import os
import random
import subprocess
import sys

try:
    import tokenizers
    import transformers
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

RANGES = [(0x20, 0x7E), (0x20, 0x7E), (0x20, 0x7E), (0x09, 0x0D), (0xA0, 0x24F), (0x300, 0x36F), (0x370, 0x5FF),
          (0x600, 0x6FF), (0x900, 0x97F), (0xE00, 0xE7F), (0x1100, 0x11FF), (0x1680, 0x1680), (0x180B, 0x180F),
          (0x1E00, 0x1FFF), (0x2000, 0x206F), (0x2070, 0x218F), (0x2200, 0x22FF), (0x2600, 0x27BF), (0x3000, 0x30FF),
          (0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0xF900, 0xFAFF), (0xFB00, 0xFB4F), (0xFE00, 0xFE0F), (0xFF00, 0xFFEF),
          (0x1D400, 0x1D7FF), (0x1F300, 0x1F64F), (0x1F900, 0x1F9FF), (0x20000, 0x2A6DF), (0xE0100, 0xE01EF),
          (0x00, 0x1F), (0x7F, 0x9F), (0x80, 0xD7FF)]
WORDS = ["hello", " World", "'s", "'LL", "don't", "  ", "\n", "\r\n", "\t", "123", "3.14", " 2024", "ſ", "é", "e\u0301",
         "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<|endoftext|>", "안녕", "你好", "🙂", "👩\u200d🚀", "…", "--", "==>"]


def random_strings(count, seed):
    rng = random.Random(seed)
    for _ in range(count):
        parts = []
        for _ in range(rng.randint(1, 24)):
            if rng.random() < 0.35:
                parts.append(rng.choice(WORDS))
            else:
                low, high = rng.choice(RANGES)
                parts.append("".join(chr(rng.randint(low, high)) for _ in range(rng.randint(1, 4))))
        text = "".join(parts).replace("\0", "")
        yield "".join(c for c in text if not 0xD800 <= ord(c) <= 0xDFFF) or "x"


def ours(tool, model, documents):
    joined = "\0".join(documents).encode()
    lines = subprocess.run([tool, model], input=joined, stdout=subprocess.PIPE, check=True).stdout.decode().split("\n")
    for line in lines[:len(documents)]:
        ids, text = line.split("\t")
        yield [int(i) for i in ids.split()], json.loads(text)


def compare(name, tool, model, encode, decode, documents):
    different = 0
    for document, (ids, text) in zip(documents, ours(tool, model, documents), strict=True):
        expected = encode(document)
        if ids != expected or text != decode(expected):
            different += 1
            if different <= 5:
                at = next((i for i, (a, b) in enumerate(zip(ids, expected)) if a != b), min(len(ids), len(expected)))
                print(f"{name}: differs at token {at}: {document[:80]!r} ours {ids[at:at + 6]} expected {expected[at:at + 6]}")
                if ids == expected:
                    print("   decoded", repr(text[:60]), "expected", repr(decode(expected)[:60]))
    print(f"{name}: {len(documents)} documents, {different} different")
    return different


CONVERSATIONS = [
    [("user", "Hello there"), ("assistant", "Hi! How can I help?")],
    [("system", "You are terse."), ("user", "2+2?"), ("assistant", "4"), ("user", "and 3+3?")],
    [("user", "Think."), ("assistant", "<think>\nlet me see\n</think>\n\nDone."), ("user", "Again"),
     ("assistant", "<think>\nmore\n</think>\n\n\nYes.\n")],
    [("user", "<tool_response>\nx\n</tool_response>"), ("assistant", "ok")],
    [("user", "tool?"), ("tool", "result"), ("assistant", "  spaces  ")],
    [("system", "só acentuação — 你好"), ("user", "multi\nline\n\n")],
]


def compare_template(name, tool, model, tokenizer):
    lines, expected = [], []
    for conversation in CONVERSATIONS:
        for generate in (False, True):
            messages = [{"role": role, "content": content} for role, content in conversation]
            lines.append(json.dumps({"messages": messages, "generate": generate}))
            expected.append(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=generate))
    out = subprocess.run([tool, "--template", model], input="\n".join(lines).encode(), stdout=subprocess.PIPE, check=True).stdout
    rendered = out.decode().split("\0")[:-1]
    different = sum(a != b for a, b in zip(rendered, expected, strict=True))
    for a, b in zip(rendered, expected):
        if a != b:
            print(f"{name} template differs:\n{a!r}\n{b!r}")
    print(f"{name} template: {len(expected)} conversations, {different} different")
    return different


def main(tool, data, gguf=None):
    if not os.path.isdir(data):
        print(f"skipped: {data} is not here")
        sys.exit(77)
    documents = []
    for name in sorted(os.listdir(f"{data}/text")):
        documents.append(open(f"{data}/text/{name}", encoding="utf-8", newline="").read())
    documents += list(random_strings(10000, 1))
    different = 0
    qwen = f"{data}/tokenizers/qwen3"
    fast = tokenizers.Tokenizer.from_file(f"{qwen}/tokenizer.json")
    different += compare("qwen3", tool, qwen, lambda t: fast.encode(t, add_special_tokens=False).ids,
                         lambda ids: fast.decode(ids, skip_special_tokens=False), documents)
    different += compare_template("qwen3", tool, qwen, transformers.AutoTokenizer.from_pretrained(qwen))
    if gguf and os.path.exists(gguf):
        folder, name = os.path.split(gguf)
        smol = transformers.AutoTokenizer.from_pretrained(folder, gguf_file=name)
        backend = smol.backend_tokenizer
        # transformers reads a GGUF vocabulary but not the name of its pre-tokenizer: "smollm" cuts digits first.
        backend.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
            [tokenizers.pre_tokenizers.Digits(individual_digits=True),
             tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)])
        different += compare("smollm2", tool, gguf, lambda t: backend.encode(t, add_special_tokens=False).ids,
                             lambda ids: backend.decode(ids, skip_special_tokens=False), documents)
        different += compare_template("smollm2", tool, gguf, smol)
    sys.exit(1 if different else 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
