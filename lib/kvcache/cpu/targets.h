#pragma once

// Which instruction sets the CPU back end is compiled for: on x86-64 plain scalar code, AVX2 and
// AVX-512, chosen when the program runs. Included before any Highway header. Vectors whose size the
// compiler does not know can't be held in arrays, as the matrix product does.
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
