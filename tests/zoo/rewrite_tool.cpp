// rewrite_tool IN OUT: loads a rotation file and saves it again, for torch_load.py.
#include <cstdio>
#include <exception>

#include "oscar/zoo/rotation_file.h"

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  try {
    oscar::save_rotations(argv[2], oscar::load_rotations(argv[1], oscar::Side::key));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rewrite_tool: %s\n", error.what());
    return 1;
  }
}
