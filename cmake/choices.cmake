# What a user may choose badly. A refused choice would otherwise stay in CMake's cache, and be refused again by every later call that names none.

# The choice will be that of the next call again, if that names none or a bad one.
function(accept name)
    set(${name}_ACCEPTED "${${name}}" CACHE INTERNAL "")
endfunction()

# Ends with this message.
function(refuse name message)
    if(DEFINED ${name}_ACCEPTED)
        set_property(CACHE ${name} PROPERTY VALUE "${${name}_ACCEPTED}")
    else()
        unset(${name} CACHE)
    endif()
    message(FATAL_ERROR "${message}")
endfunction()
