#include "system/version.h"

const char* const version = FLATGPT_VERSION;
