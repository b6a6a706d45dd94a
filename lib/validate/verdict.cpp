#include "validate/verdict.h"

#include <fmt/format.h>

#include <algorithm>

namespace oscar {

double perplexity_increase(const ValidationReport& report, const CandidateReport& candidate) {
  return 100 * (candidate.propagated.perplexity / report.perplexity_reference - 1);
}

void judge(ValidationReport& report) {
  std::vector<const CandidateReport*> judged;
  for (const auto& c : report.candidates) {
    if (!c.baseline) judged.push_back(&c);
  }
  if (judged.empty()) {
    for (const auto& c : report.candidates) judged.push_back(&c);
  }
  // NaN compares false: a candidate that lost the model altogether must fail, too.
  const auto keeps_limits = [&](const CandidateReport* c) {
    const bool kld = !report.max_kld || c->propagated.kld_mean <= *report.max_kld;
    const bool perplexity = !report.max_perplexity_increase ||
                            perplexity_increase(report, *c) <= *report.max_perplexity_increase;
    return kld && perplexity;
  };
  const auto failed = std::find_if_not(judged.begin(), judged.end(), keeps_limits);
  report.passed = failed == judged.end();
  const auto best = std::min_element(
      judged.begin(), judged.end(),
      [](const auto* a, const auto* b) { return a->propagated.kld_mean < b->propagated.kld_mean; });
  const CandidateReport& shown = report.passed ? **best : **failed;
  const bool limited = report.max_kld || report.max_perplexity_increase;
  const char* word = !limited ? "" : report.passed ? "PASS: " : "FAIL: ";
  report.verdict = fmt::format(
      "{}{} costs {:+.2f} % perplexity ({:.3f} to {:.3f}) and {:.4f} nats of KL divergence at "
      "{:.2f} bits an element",
      word, shown.name, perplexity_increase(report, shown), report.perplexity_reference,
      shown.propagated.perplexity, shown.propagated.kld_mean, shown.bits_per_element);
  if (!report.passed) {
    if (report.max_kld)
      report.verdict += fmt::format("; at most {} nats were asked for", *report.max_kld);
    if (report.max_perplexity_increase) {
      report.verdict +=
          fmt::format("; at most {:+} % were asked for", *report.max_perplexity_increase);
    }
  }
}

}  // namespace oscar
