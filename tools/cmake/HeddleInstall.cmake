# bin/heddle, lib/heddle/plugins/*.so, include/heddle/heddle_attention.h
include(GNUInstallDirs)
install(TARGETS heddle RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(TARGETS heddle_cpu_sdpa LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/heddle/plugins)
install(FILES ${CMAKE_SOURCE_DIR}/plugins/abi/heddle_attention.h
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/heddle)
