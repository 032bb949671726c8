# Compiler flags that every target shares. Architecture flags belong to single objects
# (kernels/cpu/*): what ships starts on any x86-64-v2 machine.
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")
set(CMAKE_C_FLAGS_RELEASE "-O2 -DNDEBUG")

find_program(HEDDLE_CCACHE ccache)
if(HEDDLE_CCACHE)
  set(CMAKE_C_COMPILER_LAUNCHER ${HEDDLE_CCACHE})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${HEDDLE_CCACHE})
endif()

add_library(heddle_warnings INTERFACE)
target_compile_options(heddle_warnings INTERFACE -Wall -Wextra -Wshadow
                                                 $<$<COMPILE_LANGUAGE:CXX>:-Wnon-virtual-dtor>
  # Designated initializers leave fields to their defaults on purpose.
  -Wno-missing-field-initializers
                                                 $<$<BOOL:${HEDDLE_WERROR}>:-Werror>)

# x86-64-v2 for everything that is not an object of its own ISA.
add_compile_options($<$<COMPILE_LANGUAGE:C,CXX>:-march=x86-64-v2> $<$<COMPILE_LANGUAGE:C,CXX>:-mtune=generic>)

if(HEDDLE_SANITIZE)
  add_compile_options(-fsanitize=${HEDDLE_SANITIZE} -fno-omit-frame-pointer -g)
  add_link_options(-fsanitize=${HEDDLE_SANITIZE})
endif()
