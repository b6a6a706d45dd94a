#include "oscar/checkpoint/checkpoint.h"

#include "checkpoint/gguf_checkpoint.h"
#include "checkpoint/huggingface_checkpoint.h"
#include "checkpoint/layout.h"
#include "oscar/core/error.h"

namespace oscar {

std::unique_ptr<Checkpoint> Checkpoint::open(const std::filesystem::path& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  if (!fs::exists(path, error))
    fail_input("{}: does not exist; expected a Hugging Face folder or a GGUF file", path.string());
  std::unique_ptr<Checkpoint> checkpoint;
  if (fs::is_directory(path)) {
    checkpoint = open_huggingface(path);
  } else if (path.extension() == ".gguf") {
    checkpoint = open_gguf(path);
  } else {
    fail_input("{}: is neither a Hugging Face folder nor a .gguf file", path.string());
  }
  check_tensors(*checkpoint);
  return checkpoint;
}

}  // namespace oscar
