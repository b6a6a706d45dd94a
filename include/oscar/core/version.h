#pragma once

namespace oscar {

/// The tool's version, as printed by --version and written into every file.
inline constexpr const char* kVersion = OSCAR_VERSION;

}  // namespace oscar
