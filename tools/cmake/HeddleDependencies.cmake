# Required packages, then the optional ones. tools/setup.sh installs them all on Debian 12.
find_package(Threads REQUIRED)
find_package(yaml-cpp REQUIRED)
find_package(CLI11 REQUIRED)
find_package(spdlog REQUIRED)
find_package(fmt REQUIRED)

# Debian's dnnl-config.cmake wants OpenCL headers that the C++ API does not need, so the library
# is looked up directly.
find_path(DNNL_INCLUDE_DIR dnnl.hpp)
find_library(DNNL_LIBRARY dnnl)
if(NOT DNNL_INCLUDE_DIR OR NOT DNNL_LIBRARY)
  message(FATAL_ERROR "oneDNN not found: install libdnnl-dev (tools/setup.sh does)")
endif()
add_library(DNNL::dnnl UNKNOWN IMPORTED)
set_target_properties(DNNL::dnnl PROPERTIES IMPORTED_LOCATION ${DNNL_LIBRARY}
                                            INTERFACE_INCLUDE_DIRECTORIES ${DNNL_INCLUDE_DIR})
find_package(Boost 1.81 REQUIRED COMPONENTS json filesystem)

if(HEDDLE_SANITIZE MATCHES "thread")
  # The thread sanitizer cannot see into libgomp, so parallel_for runs on std::thread there.
  set(HEDDLE_OPENMP OFF)
else()
  find_package(OpenMP REQUIRED COMPONENTS CXX)
  set(HEDDLE_OPENMP ON)
endif()

if(HEDDLE_WITH_MPI)
  find_package(MPI QUIET COMPONENTS CXX)
  if(NOT MPI_CXX_FOUND)
    message(STATUS "HEDDLE_WITH_MPI: off, MPI not found (Debian: libopenmpi-dev openmpi-bin)")
    set(HEDDLE_WITH_MPI OFF)
  endif()
endif()

if(HEDDLE_WITH_GLOO)
  find_package(Gloo QUIET CONFIG)
  if(NOT Gloo_FOUND)
    message(STATUS "HEDDLE_WITH_GLOO: off, Gloo not found (Debian: libgloo-dev)")
    set(HEDDLE_WITH_GLOO OFF)
  endif()
endif()

if(HEDDLE_BUILD_TESTS)
  find_package(GTest REQUIRED)
endif()
