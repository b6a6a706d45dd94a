#include "oscar/core/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>

#include "oscar/core/error.h"

namespace oscar {

void set_up_log(const std::string& level) {
  const auto parsed = spdlog::level::from_str(level);
  if (parsed == spdlog::level::off && level != "off") {
    fail_input("log level \"{}\" is not known; use trace, debug, info, warn, error or off", level);
  }
  auto logger = spdlog::get("oscar");
  if (!logger) logger = spdlog::stderr_color_mt("oscar");
  logger->set_pattern("%^%l%$: %v");
  logger->set_level(parsed);
  spdlog::set_default_logger(logger);
}

}  // namespace oscar
