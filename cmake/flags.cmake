# Flags shared by all our code. Warnings are errors.
add_library(gy_flags INTERFACE)
target_include_directories(gy_flags INTERFACE ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR}/include)
target_compile_definitions(gy_flags INTERFACE _GNU_SOURCE PCRE2_CODE_UNIT_WIDTH=8 GY_VERSION="${PROJECT_VERSION}")
target_compile_options(gy_flags INTERFACE
  -Wall -Wextra -Werror -Wshadow -Wundef -Wvla -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith
  -Wcast-qual -Wwrite-strings -Wformat=2 -fno-strict-aliasing -fvisibility=hidden
  # One result on every machine and at every optimisation level: the compiler may neither contract nor reorder floating
  # point. Fused multiply-adds are written as such where they are meant.
  -ffp-contract=off -fno-fast-math)
target_compile_definitions(gy_flags INTERFACE $<$<CONFIG:Debug>:GY_DEBUG>)
if(GY_SANITIZE)
  target_compile_options(gy_flags INTERFACE -fsanitize=${GY_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(gy_flags INTERFACE -fsanitize=${GY_SANITIZE})
  target_compile_definitions(gy_flags INTERFACE GY_SANITIZED)
endif()
if(GY_FUZZ)
  target_compile_options(gy_flags INTERFACE -fsanitize=fuzzer-no-link)
  target_link_options(gy_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()
