# The component `cpp`: headers, library, licenses, CMake package and pkg-config file. What belongs into
# the wheel is `python`, in bindings/CMakeLists.txt.
include(CMakePackageConfigHelpers)

install(TARGETS octofold EXPORT octofold
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT cpp)
install(DIRECTORY include/octofold TYPE INCLUDE COMPONENT cpp)
# The library carries Zstandard and others, whose licenses ask to go where it goes.
install(FILES LICENSE NOTICE TYPE DOC COMPONENT cpp)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/octofold)
install(EXPORT octofold NAMESPACE octofold:: FILE octofold-config.cmake
        DESTINATION ${package_dir} COMPONENT cpp)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/octofold-config-version.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/octofold-config-version.cmake
        DESTINATION ${package_dir} COMPONENT cpp)

# Relative to the file itself, so that the installed tree may be moved.
file(RELATIVE_PATH include_from_pkgconfig /${CMAKE_INSTALL_LIBDIR}/pkgconfig
     /${CMAKE_INSTALL_INCLUDEDIR})
configure_file(cmake/octofold.pc.in octofold.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/octofold.pc
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT cpp)
