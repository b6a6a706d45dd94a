# Third-party libraries as imported targets. Debian packages, and libtorch from the torch wheel in .venv.

find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)
find_package(OpenMP REQUIRED COMPONENTS CXX)
find_package(Eigen3 3.4 REQUIRED NO_MODULE)
find_package(nlohmann_json 3.11 REQUIRED)
find_package(spdlog REQUIRED)
find_package(fmt REQUIRED)
find_package(OpenSSL REQUIRED COMPONENTS Crypto)
find_package(CLI11 REQUIRED)
find_package(ZLIB REQUIRED)
pkg_check_modules(pcre2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(utf8proc REQUIRED IMPORTED_TARGET libutf8proc)
pkg_check_modules(xxhash REQUIRED IMPORTED_TARGET libxxhash)
# Debian's HDF5 lies in a folder of its own; its pkg-config file knows where. Serial C API only.
pkg_check_modules(hdf5 REQUIRED IMPORTED_TARGET hdf5-serial)
if(OSCAR_CUDA)
  find_package(CUDAToolkit REQUIRED)
endif()

# libtorch. find_package(Torch) (seen with torch 2.11) adds CUDA architectures that nvcc 13 refuses and
# fails on a machine without the CUDA toolkit, so its libraries are imported here by hand.
set(OSCAR_TORCH_DIR "" CACHE PATH "Folder of the torch package (holds include/ and lib/); empty: the one in .venv")
if(NOT OSCAR_TORCH_DIR)
  file(GLOB torch_candidates ${PROJECT_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch)
  if(torch_candidates)
    list(GET torch_candidates 0 OSCAR_TORCH_DIR)
  endif()
endif()
if(NOT EXISTS "${OSCAR_TORCH_DIR}/lib/libtorch_cpu.so")
  message(FATAL_ERROR "libtorch was not found. Run scripts/setup, which installs it into .venv, or pass "
                      "-DOSCAR_TORCH_DIR=<folder of the torch package>.")
endif()
message(STATUS "libtorch: ${OSCAR_TORCH_DIR}")

# The wheel's include folder brings a newer fmt than the one that spdlog and we are linked with. The system's
# headers must be found first, so they get a folder of their own, which oscar_flags searches before others.
target_link_libraries(oscar_flags INTERFACE OpenMP::OpenMP_CXX)

find_path(system_fmt_folder fmt/format.h NO_CACHE REQUIRED)
file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/system-fmt)
file(CREATE_LINK ${system_fmt_folder}/fmt ${PROJECT_BINARY_DIR}/system-fmt/fmt SYMBOLIC)
target_include_directories(oscar_flags SYSTEM BEFORE INTERFACE ${PROJECT_BINARY_DIR}/system-fmt)

add_library(oscar_torch INTERFACE)
target_include_directories(oscar_torch SYSTEM INTERFACE
  ${OSCAR_TORCH_DIR}/include ${OSCAR_TORCH_DIR}/include/torch/csrc/api/include)
target_link_libraries(oscar_torch INTERFACE
  ${OSCAR_TORCH_DIR}/lib/libtorch_cpu.so ${OSCAR_TORCH_DIR}/lib/libc10.so)
if(OSCAR_CUDA AND EXISTS "${OSCAR_TORCH_DIR}/lib/libtorch_cuda.so")
  # libtorch_cuda registers its kernels when it is loaded; nothing refers to it by name.
  target_link_libraries(oscar_torch INTERFACE
    "-Wl,--push-state,--no-as-needed" ${OSCAR_TORCH_DIR}/lib/libtorch_cuda.so
    ${OSCAR_TORCH_DIR}/lib/libc10_cuda.so "-Wl,--pop-state" CUDA::cudart)
  # The wheel's own libraries (nvidia/cu13/lib) satisfy libtorch_cuda's needs at link time.
  file(GLOB nvidia_libs ${OSCAR_TORCH_DIR}/../nvidia/*/lib)
  foreach(folder IN LISTS nvidia_libs)
    target_link_options(oscar_torch INTERFACE "LINKER:-rpath-link,${folder}")
  endforeach()
endif()
