# What `cmake --install` lays down:
#   bin/heddle, lib/heddle/plugins/*.so            the program looks for plugins in ../lib/heddle/plugins
#   lib/heddle/libheddle_cuda.so                   the CUDA device, where it was built
#   include/heddle/heddle_attention.{h,hpp}        what a plugin author needs
#   share/heddle/templates                         what `heddle plugin new` writes, to read
#   share/cmake/heddle-attention, share/pkgconfig  how their build finds it (headers only, so no libdir)
#   with --component gpu_check: bin/heddle_golden_cuda, bin/heddle_all_reduce_cuda
#
# An installed tree may be moved, and finds libraries that somebody puts into its lib (tools/gpu_bundle.sh
# does): for the libraries of libraries too, hence the old kind of tag.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(HEDDLE_PLUGIN_DIR lib/heddle/plugins)
set(abi ${CMAKE_SOURCE_DIR}/plugins/abi)

function(heddle_install_program target)
  if(TARGET ${target})
    target_link_options(${target} PRIVATE -Wl,--disable-new-dtags)
    set_target_properties(${target} PROPERTIES INSTALL_RPATH "$ORIGIN/../lib")
    install(TARGETS ${target} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} ${ARGN})
  endif()
endfunction()
heddle_install_program(heddle)
heddle_install_program(heddle_golden_cuda COMPONENT gpu_check EXCLUDE_FROM_ALL)
heddle_install_program(heddle_all_reduce_cuda COMPONENT gpu_check EXCLUDE_FROM_ALL)
foreach(plugin heddle_cpu_sdpa heddle_cuda_flash heddle_torch_sdpa heddle_cudnn)
  if(TARGET ${plugin})
    install(TARGETS ${plugin} LIBRARY DESTINATION ${HEDDLE_PLUGIN_DIR})
  endif()
endforeach()

if(TARGET heddle_cuda_device)
  install(TARGETS heddle_cuda_device LIBRARY DESTINATION lib/heddle)
endif()

install(FILES ${abi}/heddle_attention.h ${abi}/heddle_attention.hpp
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/heddle)

install(DIRECTORY ${CMAKE_SOURCE_DIR}/plugins/template/c ${CMAKE_SOURCE_DIR}/plugins/template/cpp
                  ${CMAKE_SOURCE_DIR}/plugins/template/cuda
        DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/heddle/templates)

# The package carries the version of the ABI, not of Heddle: it is what a plugin depends on.
file(STRINGS ${abi}/heddle_attention.h version_lines REGEX "define HEDDLE_ATTENTION_ABI_M(AJ|IN)OR")
string(REGEX REPLACE ".*MAJOR ([0-9]+)u.*MINOR ([0-9]+)u.*" "\\1.\\2" HEDDLE_ABI_VERSION
                     "${version_lines}")
set(HEDDLE_CMAKE_DIR ${CMAKE_INSTALL_DATAROOTDIR}/cmake/heddle-attention)

add_library(heddle_attention_abi INTERFACE)
set_target_properties(heddle_attention_abi PROPERTIES EXPORT_NAME attention_abi)
target_include_directories(heddle_attention_abi INTERFACE
  $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
install(TARGETS heddle_attention_abi EXPORT heddle_attention_targets)
install(EXPORT heddle_attention_targets NAMESPACE heddle:: FILE heddle-attention-targets.cmake
        DESTINATION ${HEDDLE_CMAKE_DIR})

configure_package_config_file(${abi}/heddle-attention-config.cmake.in
  ${CMAKE_BINARY_DIR}/package/heddle-attention-config.cmake
  INSTALL_DESTINATION ${HEDDLE_CMAKE_DIR}
  PATH_VARS CMAKE_INSTALL_INCLUDEDIR HEDDLE_PLUGIN_DIR)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/package/heddle-attention-config-version.cmake
  VERSION ${HEDDLE_ABI_VERSION} COMPATIBILITY SameMajorVersion ARCH_INDEPENDENT)
configure_file(${abi}/heddle-attention.pc.in ${CMAKE_BINARY_DIR}/package/heddle-attention.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/package/heddle-attention-config.cmake
              ${CMAKE_BINARY_DIR}/package/heddle-attention-config-version.cmake
        DESTINATION ${HEDDLE_CMAKE_DIR})
install(FILES ${CMAKE_BINARY_DIR}/package/heddle-attention.pc
        DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/pkgconfig)
