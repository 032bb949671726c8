# nvcc and how CUDA sources are compiled with it. Without nvcc HEDDLE_WITH_CUDA is switched off; the
# kernels are then compiled by tests/cuda_emulator alone, which needs no toolkit.
if(HEDDLE_WITH_CUDA)
  find_program(HEDDLE_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES bin)
  if(HEDDLE_NVCC)
    set(CMAKE_CUDA_COMPILER ${HEDDLE_NVCC})
    # Machine code for sm_80 and sm_90a, and PTX from which drivers make code for other chips.
    set(CMAKE_CUDA_ARCHITECTURES 80 90a-real CACHE STRING "")
    if(NOT DEFINED CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
      set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")  # toolkits newer than CMake
    endif()
    enable_language(CUDA)
    set(CMAKE_CUDA_FLAGS_RELEASE "-O3 -DNDEBUG")
    if(HEDDLE_CCACHE)
      set(CMAKE_CUDA_COMPILER_LAUNCHER ${HEDDLE_CCACHE})
    endif()
  else()
    message(STATUS "HEDDLE_WITH_CUDA: off, nvcc not found (set CUDA_HOME or put it on the PATH)")
    set(HEDDLE_WITH_CUDA OFF)
  endif()
endif()

# heddle_cuda_library(NAME x SOURCES a.cu ... LIBS ...): static library heddle_x, alias heddle::x. ptxas
# writes registers, spills and shared memory of every kernel to the build's output.
function(heddle_cuda_library)
  cmake_parse_arguments(ARG "" "NAME" "SOURCES;LIBS" ${ARGN})
  add_library(heddle_${ARG_NAME} STATIC ${ARG_SOURCES})
  target_link_libraries(heddle_${ARG_NAME} PUBLIC ${ARG_LIBS})
  target_include_directories(heddle_${ARG_NAME} PUBLIC ${CMAKE_SOURCE_DIR})
  target_compile_options(heddle_${ARG_NAME} PRIVATE
    $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra -Xptxas=-v>)
  set_target_properties(heddle_${ARG_NAME} PROPERTIES
    CUDA_STANDARD 20 CUDA_STANDARD_REQUIRED ON CUDA_EXTENSIONS OFF CUDA_VISIBILITY_PRESET hidden)
  add_library(heddle::${ARG_NAME} ALIAS heddle_${ARG_NAME})
endfunction()
