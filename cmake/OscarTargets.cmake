# One function per kind of target, so that every room, tool and test is declared the same way.

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
    target_precompile_headers(oscar_${name} PRIVATE <ATen/ATen.h>)
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
endfunction()

# oscar_add_test(<room> SOURCES ... [USES room...] [PROPERTIES property value...]): the program test_<room>, its cases known to ctest.
function(oscar_add_test name)
  cmake_parse_arguments(arg "" "" "SOURCES;USES;LIBRARIES;PROPERTIES" ${ARGN})
  add_executable(test_${name} ${arg_SOURCES})
  foreach(room IN LISTS arg_USES)
    target_link_libraries(test_${name} PRIVATE oscar_${room})
  endforeach()
  target_include_directories(test_${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests ${PROJECT_SOURCE_DIR}/lib)
  target_link_libraries(test_${name} PRIVATE oscar_flags GTest::gmock GTest::gtest GTest::gtest_main ${arg_LIBRARIES})
  target_compile_definitions(test_${name} PRIVATE
    OSCAR_FIXTURES="${PROJECT_SOURCE_DIR}/tests/fixtures" OSCAR_SHARED="${PROJECT_SOURCE_DIR}/../shared")
  gtest_discover_tests(test_${name} TEST_PREFIX "${name}." DISCOVERY_TIMEOUT 60 PROPERTIES LABELS ${name} ${arg_PROPERTIES})
endfunction()
