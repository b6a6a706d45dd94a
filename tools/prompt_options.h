#pragma once

#include <CLI/CLI.hpp>

#include <string>

#include "oscar/text/prompts.h"

namespace oscar::cli {

/// Options that say what text the model reads.
struct TextOptions {
  PromptOptions prompts;
  std::string chat_template = "auto";
  std::string precision = "auto";

  void add_to(CLI::App& app, const char* without_prompts) {
    app.add_option("--prompts", prompts.files,
                   std::string("Text (.txt) or prompt (.jsonl) files; without: ") + without_prompts)
        ->group("Text")
        ->type_name("FILE...");
    app.add_option("--tokens", prompts.tokens, "How many tokens to read; 0: all there are")
        ->group("Text")
        ->check(CLI::NonNegativeNumber)
        ->capture_default_str();
    app.add_option("--sequence-length", prompts.sequence_length, "Longest sequence, in tokens")
        ->group("Text")
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
    app.add_option("--seed", prompts.seed, "Order of .jsonl documents; 0: as they come")
        ->group("Text")
        ->capture_default_str();
    app.add_option(
           "--chat-template", chat_template,
           "For conversations: auto (the model's own), none, or a built-in name such as chatml")
        ->group("Text")
        ->capture_default_str();
    app.add_option("--precision", precision,
                   "Of the forward pass: fp32, bf16 or auto (bf16 on a GPU, fp32 on a CPU)")
        ->group("Running")
        ->capture_default_str();
  }
};

}  // namespace oscar::cli
