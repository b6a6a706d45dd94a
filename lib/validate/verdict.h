#pragma once

#include "oscar/validate/report.h"

namespace oscar {

/// Fills `passed` and `verdict`: the candidates against the limits asked for, in one line.
/// Baselines are judged only when nothing else was scored.
void judge(ValidationReport& report);

/// Perplexity of a candidate over the reference's, in per cent.
double perplexity_increase(const ValidationReport& report, const CandidateReport& candidate);

}  // namespace oscar
