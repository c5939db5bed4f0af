#include "system/error.h"
#include "system/unicode_nfc.h"

bool can_normalize() { return false; }

std::string normalized_nfc(std::string_view) { throw Error("this build has no utf8proc"); }
