#pragma once

#include <spdlog/spdlog.h>

#include <string>

namespace oscar {

/// Sends the log to stderr, so that stdout holds results alone, at this level: trace, debug, info,
/// warn, error or off. Throws InputError for another word.
void set_up_log(const std::string& level);

}  // namespace oscar
