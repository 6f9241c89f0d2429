# Compiles the sources of a target in groups, each as one file: headers are read, and templates made, once per group. A group
# is a folder, or a part of one, and is named after it: unity_<first folder>-<rest>-<part>. See layers_test.py.
set(INTARSIA_GROUP_LINES 1100 CACHE STRING "How many lines of sources make a group")

function(intarsia_groups target)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  set(last_folder "-")
  foreach(source ${ARGN})
    file(RELATIVE_PATH path ${PROJECT_SOURCE_DIR}/intarsia ${source})
    get_filename_component(folder ${path} DIRECTORY)
    if("${folder}" STREQUAL "dispatch")  # on the way of every call, and g++ inlines less in a large unit: 0.03 us of 0.3
      continue()
    endif()
    string(REPLACE "/" "-" folder "${folder}")
    file(STRINGS ${source} lines)
    list(LENGTH lines count)
    if(NOT "${folder}" STREQUAL "${last_folder}")  # a new file changes the groups of its own folder only
      set(part 1)
      set(size 0)
      set(last_folder "${folder}")
    elseif(size GREATER INTARSIA_GROUP_LINES)
      math(EXPR part "${part} + 1")
      set(size 0)
    endif()
    math(EXPR size "${size} + ${count}")
    set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${folder}-${part})
  endforeach()
endfunction()
