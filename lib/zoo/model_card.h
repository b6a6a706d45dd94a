#pragma once

#include <string>

#include "oscar/zoo/pair_folder.h"

namespace oscar {

/// The README.md of a published pair: front matter, results, file format, how to use it (contract,
/// section 4).
std::string model_card(const std::string& model_name, const PairFolder& pair);

}  // namespace oscar
