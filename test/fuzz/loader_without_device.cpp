// Replaces the function by which the data loader's thread unpins itself: no fuzz target starts that thread,
// and none links a device.
#include "kernels/simt/device.h"

void simt::unpin_this_thread() {}
