# Build options, language standards and warnings.

include(CheckLanguage)
check_language(CUDA)
if(CMAKE_CUDA_COMPILER)
  set(oscar_cuda_default ON)
else()
  set(oscar_cuda_default OFF)
endif()
option(OSCAR_CUDA "Build the CUDA back ends (default: on when nvcc is found)" ${oscar_cuda_default})
option(OSCAR_TESTS "Build the tests" ON)
option(OSCAR_BENCHMARKS "Build the benchmarks" OFF)
option(OSCAR_SANITIZE "Build with AddressSanitizer and UndefinedBehaviorSanitizer" OFF)

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_ARCHIVE_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)

if(OSCAR_CUDA)
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    # Machine code for Ampere and Hopper data-centre GPUs, PTX for everything newer.
    set(CMAKE_CUDA_ARCHITECTURES 80-real 90-real 90-virtual)
  endif()
  set(CMAKE_CUDA_STANDARD 20)
  set(CMAKE_CUDA_STANDARD_REQUIRED ON)
  enable_language(CUDA)
endif()

# -O2: the kernels vectorise by hand, and -O3 only makes the build longer.
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")

# What every target of ours is compiled with. Contraction to fused multiply-add is off: the INT2 codec
# promises the same codes on every processor. GCC 12 sees uninitialised values inside nlohmann::json where
# there are none (GCC bug 105562 and relatives), so that warning is off. Programs are position-independent like
# libraries, so that both can share precompiled headers.
add_library(oscar_flags INTERFACE)
target_include_directories(oscar_flags INTERFACE ${PROJECT_SOURCE_DIR}/include)
target_compile_options(oscar_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wshadow -Wnon-virtual-dtor -Wno-missing-field-initializers -Wno-maybe-uninitialized
    -Werror -ffp-contract=off -fPIC>
  $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra,-Werror,-fPIC -Werror=all-warnings --expt-relaxed-constexpr>)
target_compile_definitions(oscar_flags INTERFACE OSCAR_VERSION="${PROJECT_VERSION}")
if(OSCAR_SANITIZE)
  set(sanitize -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer)
  target_compile_options(oscar_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:${sanitize}>)
  target_link_options(oscar_flags INTERFACE ${sanitize})
endif()
