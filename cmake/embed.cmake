# A file's bytes in a library. gy_embed(TARGET FILE SYMBOL HEADER [TAG]) makes a source that defines
#   const unsigned char SYMBOL[];  const size_t SYMBOL_len;  with TAG also  const char SYMBOL_tag[];  an HTTP entity tag of the bytes
# as HEADER, named as it is included, declares them. Made again when the file changes. The same file is the script that
# writes the source: cmake -DIN=... -DOUT=... -DSYMBOL=... -DHEADER=... -DTAG=... -P embed.cmake
if(CMAKE_SCRIPT_MODE_FILE)
  file(READ ${IN} hex HEX)
  string(REGEX REPLACE "(................................)" "\\1\n" hex "${hex}")
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," hex "${hex}")
  file(WRITE ${OUT} "#include \"${HEADER}\"\n\nconst unsigned char ${SYMBOL}[] = {\n${hex}0};\nconst size_t ${SYMBOL}_len = sizeof ${SYMBOL} - 1;\n")
  if(TAG)
    file(SHA256 ${IN} hash)
    string(SUBSTRING ${hash} 0 32 hash)
    file(APPEND ${OUT} "const char ${SYMBOL}_tag[] = \"\\\"${hash}\\\"\";\n")
  endif()
  return()
endif()

set(GY_EMBED_SCRIPT ${CMAKE_CURRENT_LIST_FILE})
function(gy_embed target file symbol header)
  set(out ${CMAKE_BINARY_DIR}/embed/${symbol}.c)
  add_custom_command(OUTPUT ${out}
    COMMAND ${CMAKE_COMMAND} -DIN=${CMAKE_SOURCE_DIR}/${file} -DOUT=${out} -DSYMBOL=${symbol} -DHEADER=${header} -DTAG=${ARGV4} -P ${GY_EMBED_SCRIPT}
    DEPENDS ${CMAKE_SOURCE_DIR}/${file} ${GY_EMBED_SCRIPT} VERBATIM)
  target_sources(${target} PRIVATE ${out})
endfunction()
