# cmake -DOUTPUT=x.cpp -DROOT=folder -DFILES=a/b;c/d -DTABLE=kName -DHEADER=x.h -P EmbedFiles.cmake
# Writes a table of {path, contents} as C++ raw strings. HEADER declares it.
set(text "// Written by tools/cmake/EmbedFiles.cmake.\n#include \"${HEADER}\"\n\n")
string(APPEND text "namespace heddle {\n\nconst EmbeddedFile ${TABLE}[] = {\n")
set(count 0)
foreach(file IN LISTS FILES)
  file(READ "${ROOT}/${file}" contents)
  string(APPEND text "    {\"${file}\", R\"heddle_file(${contents})heddle_file\"},\n")
  math(EXPR count "${count} + 1")
endforeach()
string(APPEND text "};\nconst size_t ${TABLE}Count = ${count};\n\n}  // namespace heddle\n")
file(WRITE "${OUTPUT}" "${text}")
