# One function per kind of target, so that every room, tool and test is declared the same way.

# oscar_add_precompiled_headers(<name> LIBRARIES target... HEADERS ...): headers compiled once for many targets,
# which is most of the build's time otherwise.
function(oscar_add_precompiled_headers name)
  cmake_parse_arguments(arg "" "" "LIBRARIES;HEADERS" ${ARGN})
  file(WRITE ${PROJECT_BINARY_DIR}/${name}.cpp "")
  add_library(${name} OBJECT ${PROJECT_BINARY_DIR}/${name}.cpp)
  target_link_libraries(${name} PRIVATE oscar_flags fmt::fmt spdlog::spdlog Eigen3::Eigen ${arg_LIBRARIES})
  target_precompile_headers(${name} PRIVATE <fmt/format.h> <nlohmann/json.hpp> <Eigen/Core> ${arg_HEADERS})
endfunction()

oscar_add_precompiled_headers(oscar_headers)
oscar_add_precompiled_headers(oscar_torch_headers LIBRARIES oscar_torch HEADERS <ATen/ATen.h>)
if(OSCAR_TESTS)
  find_package(GTest REQUIRED)
  oscar_add_precompiled_headers(oscar_test_headers LIBRARIES GTest::gmock HEADERS <gmock/gmock.h>)
endif()

# oscar_add_room(<name> SOURCES ... [CUDA ...] [STUB ...] [USES room...] [LIBRARIES target...] [TORCH])
# A static library oscar_<name> from lib/<name>. CUDA sources are compiled with OSCAR_CUDA on, STUB sources
# (the same functions, throwing "built without CUDA") with it off. USES names rooms above this one.
function(oscar_add_room name)
  cmake_parse_arguments(arg "TORCH" "" "SOURCES;CUDA;STUB;USES;LIBRARIES" ${ARGN})
  if(OSCAR_CUDA)
    list(APPEND arg_SOURCES ${arg_CUDA})
  else()
    list(APPEND arg_SOURCES ${arg_STUB})
  endif()
  add_library(oscar_${name} STATIC ${arg_SOURCES})
  target_include_directories(oscar_${name} PRIVATE ${PROJECT_SOURCE_DIR}/lib)
  foreach(room IN LISTS arg_USES)
    target_link_libraries(oscar_${name} PUBLIC oscar_${room})
  endforeach()
  target_link_libraries(oscar_${name} PUBLIC oscar_flags ${arg_LIBRARIES})
  if(arg_TORCH)
    target_link_libraries(oscar_${name} PUBLIC oscar_torch)
    target_precompile_headers(oscar_${name} REUSE_FROM oscar_torch_headers)
  else()
    target_precompile_headers(oscar_${name} REUSE_FROM oscar_headers)
  endif()
endfunction()

# oscar_add_tool(<name> USES room...): the program tools/<name>.cpp.
function(oscar_add_tool name)
  cmake_parse_arguments(arg "" "" "USES" ${ARGN})
  add_executable(${name} ${name}.cpp)
  foreach(room IN LISTS arg_USES)
    target_link_libraries(${name} PRIVATE oscar_${room})
  endforeach()
  target_link_libraries(${name} PRIVATE oscar_flags CLI11::CLI11)
  target_precompile_headers(${name} REUSE_FROM oscar_headers)
endfunction()

# oscar_add_test(<room> SOURCES ... [USES room...] [PROPERTIES property value...] [TORCH]): the program test_<room>,
# its cases known to ctest.
function(oscar_add_test name)
  cmake_parse_arguments(arg "TORCH" "" "SOURCES;USES;LIBRARIES;PROPERTIES" ${ARGN})
  add_executable(test_${name} ${arg_SOURCES})
  foreach(room IN LISTS arg_USES)
    target_link_libraries(test_${name} PRIVATE oscar_${room})
  endforeach()
  target_include_directories(test_${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests ${PROJECT_SOURCE_DIR}/lib)
  if(arg_TORCH)
    target_precompile_headers(test_${name} REUSE_FROM oscar_torch_headers)
  else()
    target_precompile_headers(test_${name} REUSE_FROM oscar_test_headers)
  endif()
  target_link_libraries(test_${name} PRIVATE oscar_flags GTest::gmock GTest::gtest GTest::gtest_main ${arg_LIBRARIES})
  target_compile_definitions(test_${name} PRIVATE
    OSCAR_FIXTURES="${PROJECT_SOURCE_DIR}/tests/fixtures" OSCAR_SHARED="${PROJECT_SOURCE_DIR}/../shared")
  gtest_discover_tests(test_${name} TEST_PREFIX "${name}." DISCOVERY_TIMEOUT 60 PROPERTIES LABELS ${name} ${arg_PROPERTIES})
endfunction()
