// Stands before torch's own header of this name: every operator includes it and none needs it. It is left out only
// while the short torch/types.h includes operators; a text that includes it later, itself or through others, gets it.
#ifndef KERNELWRIGHT_WITHOUT_CONTEXT
#include_next <ATen/Context.h>
#endif
