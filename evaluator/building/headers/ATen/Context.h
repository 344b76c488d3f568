// Stands before torch's own header of this name, with the hooks of all devices: every operator includes it and none needs
// it. It stays out only while the short torch/types.h includes operators; a text that includes it later gets it.
#ifndef KERNELWRIGHT_SHORT
#include_next <ATen/Context.h>
#endif
