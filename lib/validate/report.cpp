#include "oscar/validate/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "validate/verdict.h"

namespace oscar {

namespace {

OrderedJson settings_json(const ServedSettings& s) {
  return {{"sink", s.sink},          {"recent", s.recent},
          {"group", s.group},        {"scale_type", s.scale_type},
          {"k_clip", s.k_clip},      {"v_clip", s.v_clip},
          {"clip_rule", s.clip_rule}};
}

OrderedJson propagated_json(const PropagatedError& p) {
  return {{"ppl", p.perplexity},
          {"kld_mean", p.kld_mean},
          {"kld_standard_error", p.kld_standard_error},
          {"kld_percentiles", p.kld_percentiles},
          {"top1_agreement", p.top1_agreement}};
}

OrderedJson candidate_json(const CandidateReport& candidate) {
  OrderedJson json = propagated_json(candidate.propagated);
  json["baseline"] = candidate.baseline;
  json["bits_per_element"] = candidate.bits_per_element;
  json["settings"] = settings_json(candidate.settings);
  if (candidate.patch) json["checkpoint_patch"] = propagated_json(*candidate.patch);
  OrderedJson& layers = json["layers"] = OrderedJson::array();
  for (const LayerError& layer : candidate.layers) {
    OrderedJson heads = OrderedJson::array();
    for (std::size_t head = 0; head < layer.heads.size(); ++head) {
      heads.push_back({{"head", head},
                       {"output_relative_error", layer.heads[head].output_relative_error},
                       {"logit_rmse", layer.heads[head].logit_rmse}});
    }
    layers.push_back({{"layer", layer.layer},
                      {"output_relative_error", layer.all.output_relative_error},
                      {"logit_rmse", layer.all.logit_rmse},
                      {"heads", heads}});
  }
  return json;
}

OrderedJson optional_json(const std::optional<double>& value) {
  return value ? OrderedJson(*value) : OrderedJson(nullptr);
}

/// Mean over the layers of one local error.
double mean(const std::vector<LayerError>& layers, double HeadError::*member) {
  double sum = 0;
  for (const LayerError& layer : layers) sum += layer.all.*member;
  return layers.empty() ? 0 : sum / static_cast<double>(layers.size());
}

}  // namespace

OrderedJson to_json(const ValidationReport& report) {
  OrderedJson settings = settings_json(report.candidates.front().settings);
  settings["precision"] = report.precision;
  OrderedJson candidates = OrderedJson::object();
  for (const CandidateReport& c : report.candidates) candidates[c.name] = candidate_json(c);
  return {{"schema", "oscar-validation"},
          {"schema_version", 1},
          {"model", report.model},
          {"model_fingerprint", report.model_fingerprint},
          {"dataset_sha256", report.dataset_sha256},
          {"tokens", report.tokens},
          {"sequence_length", report.sequence_length},
          {"first_scored_position", report.first_scored_position < 0
                                        ? OrderedJson(report.sequence_length / 2)
                                        : OrderedJson(report.first_scored_position)},
          {"scored_positions", report.scored_positions},
          {"settings", settings},
          {"ppl_reference", report.perplexity_reference},
          {"noise_floor",
           report.noise_floor ? propagated_json(*report.noise_floor) : OrderedJson::object()},
          {"candidates", candidates},
          {"verdict",
           {{"passed", report.passed},
            {"text", report.verdict},
            {"max_kld", optional_json(report.max_kld)},
            {"max_ppl_increase_percent", optional_json(report.max_perplexity_increase)}}}};
}

std::string to_text(const ValidationReport& report) {
  std::string text = fmt::format(
      "{} tokens in sequences of up to {}, {} predictions scored, {} arithmetic; reference "
      "perplexity {:.4f}\n\n",
      report.tokens, report.sequence_length, report.scored_positions, report.precision,
      report.perplexity_reference);
  std::size_t width = 11;
  const auto patch_name = [](const CandidateReport& c) { return "(" + c.name + ": patch alone)"; };
  for (const auto& c : report.candidates) {
    width = std::max(width, c.patch ? patch_name(c).size() : c.name.size());
  }
  text += fmt::format("{:<{}}  {:>10}  {:>9}  {:>17}  {:>8}  {:>6}  {:>12}  {:>10}  {:>5}\n",
                      "rotation", width, "perplexity", "increase", "KL (nats)", "KL p99", "top-1",
                      "output error", "logit rmse", "bits");
  const auto row = [&](const std::string& name, const PropagatedError& p,
                       const CandidateReport* c) {
    text += fmt::format("{:<{}}  {:>10.4f}  {:>+8.2f}%  {:>8.5f} ±{:.5f}  {:>8.4f}  {:>5.1f}%",
                        name, width, p.perplexity,
                        100 * (p.perplexity / report.perplexity_reference - 1), p.kld_mean,
                        p.kld_standard_error, p.kld_percentiles.at("99"), 100 * p.top1_agreement);
    if (c != nullptr) {
      text += fmt::format("  {:>12.5f}  {:>10.4f}  {:>5.2f}",
                          mean(c->layers, &HeadError::output_relative_error),
                          mean(c->layers, &HeadError::logit_rmse), c->bits_per_element);
    }
    text += '\n';
  };
  for (const auto& c : report.candidates) {
    row(c.name, c.propagated, &c);
    if (c.patch) row(patch_name(c), *c.patch, nullptr);
  }
  if (report.noise_floor) row("(noise floor)", *report.noise_floor, nullptr);
  text +=
      "\nLower is better everywhere but top-1. Output error and logit rmse are means over the "
      "layers, on the "
      "reference's own activations.\n";

  constexpr std::size_t kWorst = 3;
  for (const auto& c : report.candidates) {
    if (c.baseline) continue;
    std::vector<const LayerError*> layers;
    for (const auto& layer : c.layers) layers.push_back(&layer);
    const std::size_t shown = std::min(kWorst, layers.size());
    std::partial_sort(layers.begin(), layers.begin() + static_cast<std::ptrdiff_t>(shown),
                      layers.end(), [](const auto* a, const auto* b) {
                        return a->all.output_relative_error > b->all.output_relative_error;
                      });
    text += fmt::format("Worst layers of {}:", c.name);
    for (std::size_t i = 0; i < shown; ++i) {
      text += fmt::format("{} {} (output error {:.4f}, logit rmse {:.3f})", i == 0 ? "" : ",",
                          layers[i]->layer, layers[i]->all.output_relative_error,
                          layers[i]->all.logit_rmse);
    }
    text += '\n';
  }
  return text + "\n" + report.verdict + "\n";
}

OrderedJson summary_json(const ValidationReport& report, const std::string& candidate) {
  for (const CandidateReport& c : report.candidates) {
    if (c.name != candidate) continue;
    OrderedJson summary = propagated_json(c.propagated);
    summary["ppl_reference"] = report.perplexity_reference;
    summary["dataset_sha256"] = report.dataset_sha256;
    summary["tokens"] = report.tokens;
    summary["sequence_length"] = report.sequence_length;
    summary["precision"] = report.precision;
    summary["settings"] = settings_json(c.settings);
    return summary;
  }
  return nullptr;
}

}  // namespace oscar
