// The data loader's thread lets go of its core. No fuzz target starts it, and none links a device.
#include "kernels/simt/device.h"

void simt::unpin_this_thread() {}
