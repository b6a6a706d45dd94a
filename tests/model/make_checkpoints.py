#!/usr/bin/env python3
"""Tiny random checkpoints and what transformers computes with them, for parity_test.cpp.

    python make_checkpoints.py OUTPUT

Each OUTPUT/<name> is a Hugging Face folder (2 layers, vocabulary 64) with tokens.i32 [2, 48] and logits.f32 [2, 48, 64].
Exits with 77 (skipped) without transformers.
"""
import json
import sys
from pathlib import Path

try:
    import torch
    from transformers import (LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM, Qwen2Config,
                              Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM)
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

COMMON = dict(vocab_size=64, num_hidden_layers=2, intermediate_size=96, max_position_embeddings=64, bos_token_id=1,
              eos_token_id=2, pad_token_id=None)
THETA = 10000.0
LLAMA3 = dict(rope_type="llama3", rope_theta=THETA, factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=16)
YARN = dict(rope_type="yarn", rope_theta=THETA, factor=4.0, original_max_position_embeddings=16)


def heads(q, kv, dim, **more):
    return dict(num_attention_heads=q, num_key_value_heads=kv, head_dim=dim, hidden_size=48, **more)


CASES = {
    "llama_default": (LlamaForCausalLM, LlamaConfig, heads(4, 4, 64, tie_word_embeddings=True)),
    "llama_llama3": (LlamaForCausalLM, LlamaConfig, heads(6, 2, 64, rope_parameters=LLAMA3)),
    "llama_linear": (LlamaForCausalLM, LlamaConfig, heads(2, 2, 80, rope_parameters=dict(rope_type="linear", rope_theta=THETA, factor=2.0))),
    "llama_yarn": (LlamaForCausalLM, LlamaConfig, heads(8, 1, 80, rope_parameters=YARN)),
    "llama_yarn_mscale": (LlamaForCausalLM, LlamaConfig,
                          heads(2, 1, 64, rope_parameters=YARN | dict(mscale=1.0, mscale_all_dim=0.5, beta_fast=16, beta_slow=2, truncate=False))),
    "llama_bias": (LlamaForCausalLM, LlamaConfig, heads(3, 1, 64, attention_bias=True, mlp_bias=True)),
    "mistral": (MistralForCausalLM, MistralConfig, heads(8, 1, 64, sliding_window=None)),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config, dict(num_attention_heads=3, num_key_value_heads=1, hidden_size=192)),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config, heads(8, 1, 128)),
    "qwen3_yarn": (Qwen3ForCausalLM, Qwen3Config, heads(3, 3, 128, rope_parameters=YARN, tie_word_embeddings=True)),
}


def old_spelling(path):
    """Rewrites a config.json as transformers 4 wrote it: rope_theta, rope_scaling, torch_dtype."""
    config = json.loads(path.read_text())
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = rope if rope["rope_type"] != "default" else None
    config["torch_dtype"] = config.pop("dtype")
    path.write_text(json.dumps(config, indent=1))


def main(output):
    torch.manual_seed(3)
    for name, (model_class, config_class, settings) in CASES.items():
        folder = Path(output) / name
        model = model_class(config_class(**COMMON | settings)).float().eval()
        with torch.no_grad():
            for parameter_name, parameter in model.named_parameters():
                if parameter_name.endswith("norm.weight"):
                    parameter.uniform_(0.5, 1.5)
                else:
                    parameter.normal_(0, 0.5 if parameter.dim() == 1 else 0.15)
            tokens = torch.randint(0, 64, (2, 48))
            logits = model(tokens).logits.float()
        model.save_pretrained(folder)
        if name in ("llama_llama3", "qwen3_yarn", "qwen2"):
            old_spelling(folder / "config.json")
        (folder / "tokens.i32").write_bytes(tokens.int().numpy().tobytes())
        (folder / "logits.f32").write_bytes(logits.contiguous().numpy().tobytes())
    print(len(CASES), "checkpoints")


if __name__ == "__main__":
    main(sys.argv[1])
