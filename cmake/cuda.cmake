# libgyre_cuda.so: the GPU backend, a shared object of its own that gyre loads when it is asked for. Built where nvcc is
# found and works; where not, nothing else changes. nvcc is called directly: CMake's CUDA language would make a toolkit a
# condition of the whole build, and fail it where one is installed without a host compiler that it accepts.
option(GY_CUDA "build libgyre_cuda.so where a working nvcc is found" ON)
set(GY_CUDA_ARCH "90a" CACHE STRING "GPU architectures of libgyre_cuda.so, e.g. 80;89;90a;100;120")

# Sanitizers look at host code; the GPU has compute-sanitizer (./do test-gpu).
if(NOT GY_CUDA OR GY_SANITIZE OR GY_FUZZ)
  return()
endif()
find_program(GY_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda/bin)
if(NOT GY_NVCC)
  return()
endif()

set(gencode)
foreach(arch ${GY_CUDA_ARCH})
  list(APPEND gencode -gencode=arch=compute_${arch},code=sm_${arch})
endforeach()
string(REPLACE ";" ", sm_" built_for "sm_${GY_CUDA_ARCH}")
# -fmad=false: as on the CPU, the compiler may not contract; a fused multiply-add is written as one. Kernels that share a
# device function must agree in every bit (src/ops/cuda/README.md), and that cost nothing measurable.
set(nvcc_flags -std=c++20 -O3 -lineinfo -fmad=false ${gencode} -I${CMAKE_SOURCE_DIR}/src "-DGY_CUDA_BUILT_FOR=\"${built_for}\""
  -Werror all-warnings -Xcompiler=-fPIC,-fvisibility=hidden,-ffp-contract=off,-Wall,-Wextra,-Werror)

# Does it compile at all? Asked once for each nvcc and list of architectures.
set(asked "${GY_NVCC} ${GY_CUDA_ARCH}")
if(NOT GY_CUDA_ASKED STREQUAL asked)
  file(WRITE ${CMAKE_BINARY_DIR}/cuda/probe.cu "#include <cublasLt.h>\n#include <cuda_bf16.h>\n__global__ void probe(void) {}\n")
  execute_process(COMMAND ${GY_NVCC} -std=c++20 ${gencode} -Xcompiler=-fPIC -shared -o ${CMAKE_BINARY_DIR}/cuda/probe.so ${CMAKE_BINARY_DIR}/cuda/probe.cu
    RESULT_VARIABLE rc OUTPUT_VARIABLE said ERROR_VARIABLE said)
  set(GY_CUDA_WORKS 0)
  if(rc EQUAL 0)
    set(GY_CUDA_WORKS 1)
  else()
    message(WARNING "${GY_NVCC} does not work here, so there will be no libgyre_cuda.so:\n${said}")
  endif()
  set(GY_CUDA_WORKS ${GY_CUDA_WORKS} CACHE INTERNAL "nvcc compiles")
  set(GY_CUDA_ASKED ${asked} CACHE INTERNAL "what GY_CUDA_WORKS is about")
endif()
if(NOT GY_CUDA_WORKS)
  return()
endif()

file(GLOB cuda_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/ops/cuda/*.cu)
set(objects)
foreach(source ${cuda_sources})
  get_filename_component(name ${source} NAME_WE)
  set(object ${CMAKE_BINARY_DIR}/cuda/${name}.o)
  add_custom_command(OUTPUT ${object}
    COMMAND ${GY_NVCC} ${nvcc_flags} -MD -MF ${object}.d -c ${source} -o ${object}
    DEPENDS ${source} ${CMAKE_CURRENT_LIST_FILE} DEPFILE ${object}.d COMMENT "nvcc ${name}.cu" VERBATIM)
  list(APPEND objects ${object})
endforeach()
add_custom_command(OUTPUT ${CMAKE_BINARY_DIR}/libgyre_cuda.so
  COMMAND ${GY_NVCC} -shared ${gencode} -Xlinker=--exclude-libs,ALL -Xlinker=--as-needed -Xlinker=-z,defs -o ${CMAKE_BINARY_DIR}/libgyre_cuda.so ${objects} -ldl
  DEPENDS ${objects} COMMENT "Linking libgyre_cuda.so" VERBATIM)
add_custom_target(gyre_cuda ALL DEPENDS ${CMAKE_BINARY_DIR}/libgyre_cuda.so)
install(PROGRAMS ${CMAKE_BINARY_DIR}/libgyre_cuda.so DESTINATION lib)

# Not part of a build: does everything compile for each architecture that GY_CUDA_ARCH may name? What one of them alone has
# (wgmma, TMA) is guarded in the sources.
set(every 80 89 90a 100 120)
set(gencode_every)
foreach(arch ${every})
  list(APPEND gencode_every -gencode=arch=compute_${arch},code=sm_${arch})
endforeach()
set(flags_every ${nvcc_flags})
list(REMOVE_ITEM flags_every ${gencode})
set(objects_every)
foreach(source ${cuda_sources})
  get_filename_component(name ${source} NAME_WE)
  set(object ${CMAKE_BINARY_DIR}/cuda/every/${name}.o)
  add_custom_command(OUTPUT ${object}
    COMMAND ${CMAKE_COMMAND} -E make_directory ${CMAKE_BINARY_DIR}/cuda/every
    COMMAND ${GY_NVCC} ${flags_every} ${gencode_every} -MD -MF ${object}.d -c ${source} -o ${object}
    DEPENDS ${source} ${CMAKE_CURRENT_LIST_FILE} DEPFILE ${object}.d COMMENT "nvcc ${name}.cu for every architecture" VERBATIM)
  list(APPEND objects_every ${object})
endforeach()
add_custom_target(gyre_cuda_every DEPENDS ${objects_every})
