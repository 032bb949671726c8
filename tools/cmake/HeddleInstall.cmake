# bin/heddle, lib/heddle/plugins/*.so, include/heddle/heddle_attention.h
include(GNUInstallDirs)
if(TARGET heddle)
install(TARGETS heddle RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
if(TARGET heddle_cpu_sdpa)
install(TARGETS heddle_cpu_sdpa LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/heddle/plugins)
endif()
install(FILES ${CMAKE_SOURCE_DIR}/plugins/abi/heddle_attention.h
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/heddle)
